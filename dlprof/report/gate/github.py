"""What GitHub Actions reads: an annotation, and outputs of the step."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from dlprof.records.gate import CheckReport
from dlprof.report.gate.wording import headline, named_targets, short
from dlprof.report.text import clean_lines

_MOST_MESSAGE = 1000
_MOST_OUTPUT = 10_000


def render_annotation(check: CheckReport, *, fails: bool) -> str:
    """One workflow command that marks the target's line; empty for a check that passed.

    Args:
        check: What came out.
        fails: Whether it fails the job: then it is an error, else a warning.
    """
    if check.state == "pass":
        return ""
    level = "error" if fails else "warning"
    _, target = named_targets(check)[0]
    properties = {"title": f"dlprof: {headline(check)}"}
    if target.source_file:
        place = {"file": short(target.source_file)}
        if target.source_line is not None:
            place["line"] = str(target.source_line)
        properties = place | properties
    message = short(check.explanation, _MOST_MESSAGE)
    if check.override:
        message += f" Allowed: {short(check.override)}"
    listed = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{level} {listed}::{_data(message)}"


def _data(text: str) -> str:
    """As the runner unescapes what stands behind the second ``::``."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """As the runner unescapes the values of properties."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _random_delimiter() -> str:
    return f"ghadelimiter_{secrets.token_hex(16)}"


def render_outputs(check: CheckReport, delimiter: Callable[[], str] = _random_delimiter) -> str:
    """Lines for ``$GITHUB_OUTPUT``, from which later steps read the verdict.

    Args:
        check: The check.
        delimiter: Gives a new delimiter that no text can foresee.
    """
    return "".join(_output(name, value, delimiter) for name, value in _outputs(check).items())


def _outputs(check: CheckReport) -> Mapping[str, str]:
    name, target = named_targets(check)[0]
    gates = target.verdict.gates
    state = target.verdict.state
    fitting = [gate for gate in gates if gate.state == state]
    # An undecided metric that nobody waits for decides nothing.
    decisive = next((gate for gate in fitting if gate.blocking or state != "inconclusive"), None)
    view = decisive.views[0] if decisive and decisive.views else None
    ratio = view if decisive and decisive.scale == "ratio" else None
    figures = (ratio.shift, ratio.low, ratio.high) if ratio else (None, None, None)
    shift, low, high = ("" if figure is None else f"{figure:.6f}" for figure in figures)
    return {
        "verdict": check.state,
        "explanation": check.explanation,
        "target": name,
        "metric": decisive.name if decisive else "",
        "slower": shift,
        "slower_low": low,
        "slower_high": high,
    }


def _output(name: str, value: str, delimiter: Callable[[], str]) -> str:
    text = clean_lines(value)[:_MOST_OUTPUT]
    while (end := delimiter()) in text:
        continue
    return f"{name}<<{end}\n{text}\n{end}\n"
