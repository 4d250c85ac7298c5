"""What ``dlprof doctor`` found, for people, for an issue, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from dlprof.machine.doctor import Check
from dlprof.records import SCHEMA_VERSION
from dlprof.report.document import Document, Facts, Span, Text, Tone, Words
from dlprof.store.codec import to_json

_TONES: Mapping[str, Tone] = {"ok": "good", "warning": "warn", "problem": "bad"}


def doctor_document(checks: Sequence[Check], system: str) -> str:
    """What ``dlprof doctor --json`` prints.

    Args:
        checks: What was looked at.
        system: The operating system and the version of dlprof, in a few words.
    """
    document = {"schema_version": SCHEMA_VERSION, "system": system, "checks": to_json(checks)}
    return json.dumps(document, indent=2)


def doctor_report(checks: Sequence[Check], system: str) -> Document:
    """The checks, one below the other, with what to do about each.

    Args:
        checks: As for ``doctor_document``.
        system: As for ``doctor_document``.
    """
    rows: list[tuple[str, Words]] = []
    for check in checks:
        tone = _TONES[check.state]
        finding = Span(check.finding, tone if check.state != "ok" else "")
        rows.append((check.name, (Span(f"{check.state}: ", tone), finding)))
        if check.advice:
            rows.append(("", f"fix: {check.advice}"))
    return Document(
        title=system,
        answer=(Text(system), Facts(tuple(rows)), Text(Span(_sum(checks), "strong"))),
    )


def _sum(checks: Sequence[Check]) -> str:
    states = [str(check.state) for check in checks]
    found = [(states.count(state), state) for state in ("problem", "warning")]
    parts = [f"{count} {state}{'s' * (count > 1)}" for count, state in found if count]
    return f"{', '.join(parts)} found." if parts else "No problem found."
