"""What ``dlprof doctor`` found, for people, for an issue, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dlprof.machine.doctor import Check
from dlprof.records import SCHEMA_VERSION
from dlprof.report.text import clean
from dlprof.store.codec import to_json

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor_document(checks: Sequence[Check], system: str) -> str:
    """What ``dlprof doctor --json`` prints.

    Args:
        checks: What was looked at.
        system: The operating system and the version of dlprof, in a few words.
    """
    document = {"schema_version": SCHEMA_VERSION, "system": system, "checks": to_json(checks)}
    return json.dumps(document, indent=2)


def render_doctor(checks: Sequence[Check], system: str) -> RenderableType:
    """The checks, one below the other, with what to do about each.

    Args:
        checks: As for ``doctor_document``.
        system: As for ``doctor_document``.
    """
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        finding = Text(clean(check.finding), style=_STYLES[check.state] * (check.state != "ok"))
        table.add_row(Text(check.state, style=_STYLES[check.state]), Text(check.name), finding)
        if check.advice:
            table.add_row("", "", Text(f"fix: {clean(check.advice)}"))
    return Group(Text(clean(system)), table, Text(_sum(checks), style="bold"))


def _sum(checks: Sequence[Check]) -> str:
    states = [str(check.state) for check in checks]
    found = [(states.count(state), state) for state in ("problem", "warning")]
    parts = [f"{count} {state}{'s' * (count > 1)}" for count, state in found if count]
    return f"{', '.join(parts)} found." if parts else "No problem found."
