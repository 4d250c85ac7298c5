"""A run as a baseline keeps it: what it may be compared with, and its figures."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence

from dlprof.gate.views import Reading, block_value, read_quad
from dlprof.records import Config, Machine
from dlprof.records.gate import BaselineKey, Block, CheckPlan, Quad


def figures_of(plan: CheckPlan, quads: Sequence[Quad]) -> dict[str, float]:
    """The figures of a run for a baseline: the median over the change's blocks, by metric and view.

    Args:
        plan: Names the metrics.
        quads: What was measured; only sound quads count.
    """
    figures = {}
    for rule in plan.rules:
        read = (read_quad(quad, rule) for quad in quads if quad.series == rule.series)
        sound = [reading for reading in read if isinstance(reading, Reading)]
        for view in rule.views:
            values = [value for each in sound for value in each.values[view, "change"]]
            if values:
                figures[f"{rule.name}.{view}"] = statistics.median(values)
    return figures


def figures_of_blocks(plan: CheckPlan, blocks: Sequence[Block]) -> dict[str, float]:
    """The same of blocks of one side that were measured alone.

    Args:
        plan: Names the metrics.
        blocks: Of one side, of any series; a block that lacks a figure counts for the others.
    """
    figures = {}
    for rule in plan.rules:
        for view in rule.views:
            found = (block_value(block, rule, view) for block in blocks)
            values = [value for value in found if value is not None]
            if values:
                figures[f"{rule.name}.{view}"] = statistics.median(values)
    return figures


def baseline_key(
    machine: Machine, *, target: str, python: str, torch: str, config: Config, data: str
) -> BaselineKey:
    """The key of a run: what must be equal for its figures to be comparable.

    Of versions that change with every security update only the first two numbers count, as of
    the kernel; of torch all do.

    Args:
        machine: What it was measured on.
        target: TARGET with its arguments, as the user wrote them.
        python: Python's version.
        torch: Torch's version.
        config: The loader's settings.
        data: A fingerprint of the data.
    """
    return BaselineKey(
        target=target,
        cpu_model=machine.cpu_model,
        available_cores=round(machine.usable_cores, 2),
        os=_two_numbers(machine.platform),
        python=_two_numbers(python),
        torch=torch,
        config=config.canonical().key,
        data=data,
    )


def _two_numbers(version: str) -> str:
    """A version without what follows its second number: ``Linux 6.1`` of ``Linux 6.1.99-5``."""
    match = re.match(r"\D*\d+(?:\.\d+)?", version)
    return match[0] if match else version
