"""Whether the gains that findings predict are true: the fix is applied, and both are measured."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import planted_targets
from common import Table
from planted_cases import TARGETS, Case

from dlprof.records import Config
from dlprof.targets.grammar import parse_target
from dlprof.trial.protocol import BuildRequest, TrialRequest
from dlprof.trial.runner import TrialRunner
from dlprof.trial.state import TrialLimits

ROUNDS = 5
TRIAL_S = 1.5
_BY_NAME = 'set_sharing_strategy("file_system")'


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrueGain:
    """A fix, predicted and measured.

    Attributes:
        case: Its name.
        code: Of the finding whose fix was applied.
        predicted: Throughput after the fix over that before it, as the finding has it.
        low: Lower end of its interval.
        high: Upper end.
        source: How the finding knows.
        true: The geometric mean of the ratios of interleaved pairs.
    """

    case: str
    code: str
    predicted: float
    low: float | None
    high: float | None
    source: str
    true: float

    @property
    def ratio(self) -> float:
        """True over predicted."""
        return self.true / self.predicted

    @property
    def honest(self) -> bool:
        """Whether it is near enough."""
        return 0.8 <= self.ratio <= 1.25


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """What is measured: before the fix, or with it.

    Attributes:
        bench: With the built target.
        config: What is run.
        case: Whose surroundings it is run in; ``None`` for none.
        batches: Of an epoch; ``None`` where that isn't known.
    """

    bench: TrialRunner
    config: Config
    case: Case | None
    batches: int | None

    def rate(self, request: TrialRequest, repetition: int) -> float:
        """Batches per second of one trial, with its share of an epoch's turn."""
        place = contextlib.nullcontext(()) if self.case is None else self.case.place()
        with place:
            request = dataclasses.replace(request, config=self.config)
            trial = self.bench.explain(request, trial_id="t", repetition=repetition)[0]
        if trial.batches_per_s is None:
            return math.nan
        if trial.whole_epochs or self.batches is None or trial.epoch_turnover_s is None:
            return trial.batches_per_s.value
        return 1 / (1 / trial.batches_per_s.value + trial.epoch_turnover_s / self.batches)


def measure_gain(case: Case, findings: Sequence[Mapping[str, Any]]) -> TrueGain | None:
    """Apply what the first finding proposes, and measure both in turn.

    Args:
        case: What was planted.
        findings: Of its profile.

    Returns:
        ``None`` where it promises no gain, or nothing here can apply its fix: a quota is not ours
        to lift, and memory that isn't there has no rate.
    """
    if not findings or findings[0]["predicted_gain"] is None:
        return None
    finding = findings[0]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        sides = _sides(case, finding, Path(folder), stack)
        if sides is None:
            return None
        ratio = _ratio(case, *sides)
    gain = finding["predicted_gain"]
    if ratio is None:
        return None
    return TrueGain(
        case=case.name,
        code=finding["code"],
        predicted=gain["value"],
        low=gain["low"],
        high=gain["high"],
        source=str(finding["evidence"].get("gain_from")),
        true=ratio,
    )


def _sides(
    case: Case, finding: Mapping[str, Any], folder: Path, stack: contextlib.ExitStack
) -> tuple[_Side, _Side] | None:
    """Before and after; ``None`` where the fix can't be applied."""
    with case.place() as prefix:
        if prefix:  # a cgroup or a mount of its own, which this process is not in
            return None
    changed = _settings(finding["fix"] or {})
    fixed = case.name in planted_targets.FIXED and finding["code"] == case.code
    if not (changed or fixed or case.place_is_cause):
        return None
    before = _built(case.spec, case.arguments, folder / "now", stack)
    if changed:
        return before, dataclasses.replace(before, config=_changed(before.config, changed))
    if case.place_is_cause:
        return dataclasses.replace(before, case=case), before
    return before, _built(f"{TARGETS}:fixed", {"name": case.name}, folder / "then", stack)


def _built(
    spec: str, arguments: Mapping[str, str], folder: Path, stack: contextlib.ExitStack
) -> _Side:
    """A bench with a target at its present settings, in no special surroundings."""
    folder.mkdir()
    request = BuildRequest(target=parse_target(spec), arguments=dict(arguments))
    bench = stack.enter_context(contextlib.closing(TrialRunner(request, directory=folder)))
    target = bench.build(TrialLimits(wall_s=60.0, stall_s=30.0, usable_cores=2.0))
    bench.probe(TrialRequest(config=Config(), probe=True))
    config = target.present_settings(has_accelerator=False) or Config()
    return _Side(bench=bench, config=config, case=None, batches=target.batches_per_epoch)


def _ratio(case: Case, before: _Side, after: _Side) -> float | None:
    """Geometric mean of the ratios of interleaved trials."""
    options = case.values()
    step = options.get("--step-time", "0ms").removesuffix("ms")
    request = TrialRequest(
        config=before.config,
        trial_s=TRIAL_S,
        step_s=float(step) / 1000,
        step_callable=options.get("--step"),
    )
    logs = []
    for block in range(ROUNDS):
        order = (before, after) if block % 2 else (after, before)
        rates = {id(side): side.rate(request, block) for side in order}
        logs.append(math.log(rates[id(after)] / rates[id(before)]))
    known = [each for each in logs if math.isfinite(each)]
    return math.exp(statistics.fmean(known)) if known else None


def _settings(fix: Mapping[str, Any]) -> dict[str, Any]:
    """What a fix changes of a configuration."""
    changed = dict(fix.get("dataloader_kwargs") or {})
    if _BY_NAME in (fix.get("code") or ""):
        changed["sharing_strategy"] = "file_system"
    return changed


def _changed(now: Config, settings: Mapping[str, Any]) -> Config:
    """The configuration with settings changed."""
    names = {"multiprocessing_context": "start_method"}
    fields = {names.get(name, name): value for name, value in settings.items()}
    if fields.get("num_workers") and not now.num_workers:
        fields.setdefault("prefetch_factor", 2)
    return dataclasses.replace(now, **fields).canonical()


def gains_table(gains: Sequence[TrueGain]) -> Table:
    """Predicted and true gains."""
    columns = ["case", "code", "predicted", "known", "true", "true / predicted"]
    return Table("Gains", columns, list(map(_row, gains)))


def _row(gain: TrueGain) -> list[str]:
    figures = [f"{gain.predicted:.2f}", gain.source, f"{gain.true:.2f}", f"{gain.ratio:.2f}"]
    return [gain.case, gain.code, *figures]
