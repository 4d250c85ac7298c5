"""The files that a check writes for CI systems, by format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from dlprof.records.gate import CheckReport
from dlprof.report.gate.check import check_document, check_report
from dlprof.report.gate.junit import render_junit
from dlprof.report.gate.markdown import render_comment
from dlprof.report.gate.metrics import (
    render_bencher,
    render_benchmark_action,
    render_openmetrics,
)
from dlprof.report.page import to_html

RENDERERS: Mapping[str, Callable[[CheckReport], str]] = MappingProxyType(
    {
        "json": lambda check: check_document(check) + "\n",
        "html": lambda check: to_html(check_report(check)),
        "junit": render_junit,
        "markdown": render_comment,
        "bencher": render_bencher,
        "benchmark_action": render_benchmark_action,
        "openmetrics": render_openmetrics,
    }
)
"""What makes the text of each format."""
