"""The recommendation as people read it: what to paste, what to expect, why, and what else."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from dlprof.records import (
    Alternative,
    Constraints,
    Expected,
    Machine,
    Recommendation,
    Run,
)
from dlprof.report.findings import first_lines
from dlprof.report.labels import percent_text, rate_text, ratio_text, settings_text
from dlprof.report.layout import INDENT, Hanging, bullet
from dlprof.report.snippets import loader_call
from dlprof.report.text import clean
from dlprof.units import format_bytes, format_duration, format_rate

_MOST_TRIALS = 6
_MOST_TIES = 5
_RELATIONS = {
    "present": "present",
    "tie": "as fast",
    "fastest": "fastest",
    "default": "default",
    "slower": "slower",
}
_CONFIDENCE_STYLES = {"high": "green", "medium": "yellow", "low": "red"}


def render_recommendation(
    run: Run,
    recommendation: Recommendation,
    *,
    saved: bool = False,
    again: str = "",
    first: bool = True,
) -> RenderableType:
    """The whole recommendation for a terminal or a pipe.

    Args:
        run: What it was drawn from.
        recommendation: What to show.
        saved: Whether it has just been saved, so that saving is no next step.
        again: Options that it was asked with, for commands that are to give the same answer.
        first: Whether it stands alone, so that it begins with what is wrong.
    """
    parts: list[RenderableType] = [
        *(first_lines(run) if first else ()),
        Hanging("", Text(_title(run, recommendation), style="bold")),
        *_code(loader_call(recommendation.dataloader_kwargs)),
        *_beside_the_loader(recommendation),
        Text(),
        *_pairs(_expectations(recommendation)),
    ]
    parts += _section("Cases", _cases(recommendation))
    parts += _section("Why", [_reason(r.claim, r.evidence) for r in recommendation.reasons])
    parts += _section("Also", _alternatives(recommendation.alternatives))
    parts += _section("What rules of thumb would give", _rules(recommendation))
    parts += _section("Measure there to be sure", _to_measure(recommendation))
    steps = _next_steps(run, recommendation.constraints, saved=saved, again=again)
    parts += _section("Next", steps)
    return Group(*parts)


def _title(run: Run, recommendation: Recommendation) -> str:
    if recommendation.basis == "measured":
        return "Recommended settings"
    named = recommendation.constraints.machine
    if not recommendation.extrapolated or named is None:
        return "Recommended settings, predicted rather than measured"
    measured = clean(run.header.machine.hostname)
    return f"Recommended settings for {clean(named)}, extrapolated from {measured}"


def _cases(recommendation: Recommendation) -> list[RenderableType]:
    """The machine with and without its neighbours, one line each."""
    lines: list[RenderableType] = []
    for case in recommendation.cases:
        others = f" ({case.neighbours:.3g} cores busy with others)" if case.neighbours else ""
        text = f"{clean(case.name)}{others}: {rate_text(case.expected.samples_per_s)}"
        if case.expected.wait_fraction is not None:
            text += f", data wait {percent_text(case.expected.wait_fraction)}"
        text += f"; {clean(case.bound)}"
        if case.best != recommendation.config:
            text += (
                f"; best there: {settings_text(case.best)}, {rate_text(case.best_samples_per_s)}"
            )
        lines.append(bullet(Text(text)))
    return lines


def _to_measure(recommendation: Recommendation) -> list[RenderableType]:
    """What to find out on the machine in question, each with its command below it."""
    lines: list[RenderableType] = []
    for each in recommendation.measure_there:
        lines += [bullet(Text(clean(each.what))), *_code([f"  {clean(each.command)}"], "cyan")]
    return lines


def _code(lines: Iterable[str], style: str = "green") -> list[RenderableType]:
    """Lines to copy: never wrapped, nothing behind them."""
    return [Text(INDENT + line, style=style, no_wrap=True, overflow="ignore") for line in lines]


def _section(title: str, items: Sequence[RenderableType]) -> list[RenderableType]:
    """A heading and what stands under it; nothing where there is nothing to say."""
    if not items:
        return []
    return [Text(), Text(title, style="bold"), *items]


def _pairs(rows: Sequence[tuple[str, Text]]) -> list[RenderableType]:
    width = max(len(name) for name, _ in rows)
    return [Hanging(f"{INDENT}{name:<{width}}  ", text) for name, text in rows]


def _beside_the_loader(recommendation: Recommendation) -> list[RenderableType]:
    """Settings that are no DataLoader arguments, as sentences."""
    config = recommendation.config
    lines = []
    if config.sharing_strategy is not None:
        strategy = clean(config.sharing_strategy)
        lines.append(f'with torch.multiprocessing.set_sharing_strategy("{strategy}") before')
    if config.worker_threads is not None:
        lines.append(f"with torch.set_num_threads({config.worker_threads}) in worker_init_fn")
    return [Hanging(INDENT, Text(line)) for line in lines]


def _expectations(recommendation: Recommendation) -> list[tuple[str, Text]]:
    expected = recommendation.expected
    confidence = Text(recommendation.confidence, _CONFIDENCE_STYLES[recommendation.confidence])
    confidence.append(f": {clean(recommendation.confidence_reason)}", style="default")
    rows = [("throughput", Text(rate_text(expected.samples_per_s)))]
    rows += [(name, Text(text)) for name, text in _other_figures(expected)]
    told = {
        "limits kept": _limits(recommendation.constraints),
        "asked for": _circumstances(recommendation.constraints),
    }
    rows += [(name, Text(", ".join(parts))) for name, parts in told.items() if parts]
    return [*rows, ("confidence", confidence)]


def _other_figures(expected: Expected) -> list[tuple[str, str]]:
    """The figures that could be had; the step's wait first, as it decides."""
    figures: list[tuple[str, str]] = []
    if expected.wait_fraction is not None:
        figures.append(("data wait", f"{percent_text(expected.wait_fraction)} of the time"))
    if expected.pss_bytes is not None:
        figures.append(("memory", format_bytes(expected.pss_bytes)))
    if expected.shm_bytes is not None:
        figures.append(("shared memory", format_bytes(expected.shm_bytes)))
    if expected.startup_s is not None:
        figures.append(("start-up", format_duration(expected.startup_s)))
    if expected.epoch_turnover_s is not None:
        figures.append(("epoch turnover", format_duration(expected.epoch_turnover_s)))
    return figures


def _limits(constraints: Constraints) -> list[str]:
    """The limits that the settings keep; none where there are none."""
    parts = []
    if constraints.max_workers is not None:
        parts.append(f"{constraints.max_workers} workers")
    if constraints.max_ram_bytes is not None:
        parts.append(f"{format_bytes(constraints.max_ram_bytes)} of memory")
    if constraints.max_shm_bytes is not None:
        parts.append(f"{format_bytes(constraints.max_shm_bytes)} of shared memory")
    return parts


def _circumstances(constraints: Constraints) -> list[str]:
    """Where and for what the settings were asked for, which no settings could keep or break."""
    parts = []
    if constraints.machine is not None:
        parts.append(f"machine {clean(constraints.machine)}")
    if constraints.cores is not None:
        parts.append(f"{constraints.cores:g} cores")
    if constraints.neighbours is not None:
        parts.append(f"{constraints.neighbours:g} cores busy with others")
    if constraints.speed is not None:
        parts.append(f"cores of {constraints.speed:g}x the speed")
    if constraints.ranks > 1:
        parts.append(f"{constraints.ranks} ranks")
    if constraints.step_s is not None:
        parts.append(f"a step of {format_duration(constraints.step_s)}")
    return parts


def _reason(claim: str, evidence: Mapping[str, Any]) -> RenderableType:
    text = Text(clean(claim))
    proof = evidence.get("trials")
    trials = [clean(str(trial)) for trial in proof] if isinstance(proof, list | tuple) else []
    if trials:
        more = f" and {len(trials) - _MOST_TRIALS} more" if len(trials) > _MOST_TRIALS else ""
        text.append(f" [{', '.join(trials[:_MOST_TRIALS])}{more}]", style="dim")
    return bullet(text)


def _alternatives(alternatives: Sequence[Alternative]) -> list[RenderableType]:
    """The present settings, the fastest, the default and the first few ties, one line each."""
    ties = [other for other in alternatives if other.relation == "tie"]
    hidden = ties[_MOST_TIES:]
    lines: list[RenderableType] = [
        bullet(
            Text(f"{_RELATIONS[other.relation]}: {settings_text(other.config)}: ").append(
                f"{rate_text(other.expected.samples_per_s)}, {ratio_text(other.speed)}"
            )
        )
        for other in alternatives
        if other not in hidden
    ]
    if hidden:
        lines.append(bullet(Text(f"{len(hidden)} more that are as fast")))
    return lines


def _rules(recommendation: Recommendation) -> list[RenderableType]:
    lines: list[RenderableType] = []
    all_predicted = recommendation.basis == "predicted"  # which the whole answer says
    best = recommendation.expected.samples_per_s.value
    for rule in recommendation.rules_of_thumb:
        text = Text(f"{clean(rule.name)}: {settings_text(rule.config)}: ")
        rate = rule.expected_samples_per_s
        if rate is None:
            text.append(clean(rule.unavailable) or "not measured")
        else:
            known = "predicted " if rule.predicted and not all_predicted else ""
            speed = f", {ratio_text(rate / best)}" if best > 0 else ""
            text.append(f"{known}{format_rate(rate)} samples/s{speed}")
        lines.append(bullet(text))
    return lines


def _next_steps(run: Run, asked: Constraints, *, saved: bool, again: str) -> list[RenderableType]:
    """The commands that most likely come next, ready to paste."""
    command = " ".join(
        filter(None, ("dlprof recommend", shlex.quote(clean(run.path)), clean(again)))
    )
    python = _code([f"{command} --format python"], style="cyan")
    elsewhere = any(each is not None for each in (asked.machine, asked.cores, asked.speed))
    if saved or elsewhere:  # settings are saved for the machine that was measured
        return python
    return [
        *_code([f"{command} --save dlprof.toml"], style="cyan"),
        Hanging(INDENT, Text("and in the training script, on each machine that has saved:")),
        *_code(['loader = DataLoader(dataset, **dlprof.kwargs_for("dlprof.toml"))']),
        Hanging(INDENT, Text("or settings to paste:")),
        *python,
    ]


def saved_note(path: str, machine: Machine) -> str:
    """What ``--save`` did, and how the settings are used."""
    return (
        f"Saved for {clean(machine.fingerprint)} in {clean(path)}.\n"
        f"Use them: DataLoader(dataset, **dlprof.kwargs_for({clean(path)!r}))"
    )
