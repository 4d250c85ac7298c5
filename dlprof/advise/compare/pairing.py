"""Which configurations of two runs are compared, like with like, and what stands against it."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping

from dlprof.advise.candidates import Candidate, gather, has_rate
from dlprof.advise.situation import Situation
from dlprof.advise.speeds import speeds_of
from dlprof.advise.thresholds import SAME_STEP
from dlprof.errors import NothingMeasuredError, UsageError
from dlprof.records import Config, Estimate, Run, RunHeader, Trial
from dlprof.units import format_duration

_MOST_GROUPS = 20
"""Trials of one configuration are left out in at most so many groups, however many there are."""

_LEAST, _MOST = 1e-12, 1e12


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A configuration of a run that is compared.

    Attributes:
        run: The run.
        config: Which.
        trials: Those with a rate, of this configuration and of others.
        rates: The one rate of each configuration, as all views of the run have it.
        means: Mean natural logarithm of the rates of each one's trials, of all of them.
    """

    run: Run
    config: Config
    trials: tuple[Trial, ...]
    rates: Mapping[Config, Estimate]
    means: Mapping[Config, float]

    @property
    def own(self) -> list[Trial]:
        """The trials of this configuration."""
        return [trial for trial in self.trials if trial.config == self.config]

    @property
    def rate(self) -> Estimate:
        """What this configuration is worth."""
        return self.rates[self.config]

    @property
    def log_rate(self) -> float:
        """Natural logarithm of the rate, moved by as much as the trials that are left out do."""
        left = statistics.fmean(map(log_of, self.own))
        return math.log(self.rate.value) + left - self.means[self.config]

    @property
    def settings(self) -> Config:
        """The settings as both runs name them."""
        return _settings(self.run, self.config)

    def having(self, settings: Config) -> Chosen | None:
        """The configuration of such settings, if the run measured it."""
        known = {_settings(self.run, trial.config): trial.config for trial in self.trials}
        found = known.get(settings)
        return None if found is None else dataclasses.replace(self, config=found)

    def leaving_out(self) -> list[Chosen]:
        """Without each of its own trials, or group of them; none if there is but one."""
        own = self.own
        count = min(_MOST_GROUPS, len(own))
        return [
            dataclasses.replace(self, trials=tuple(t for t in self.trials if id(t) not in out))
            for place in range(count if count > 1 else 0)
            for out in [{id(trial) for trial in own[place::count]}]
        ]


def pair(
    a: Run, b: Run, *, num_workers: int | None = None, best: bool = False
) -> tuple[Chosen, Chosen, str]:
    """Choose what to compare.

    Args:
        a: The first run.
        b: The second run.
        num_workers: Compare only configurations of so many workers.
        best: Compare the fastest of each run also where they share settings.

    Returns:
        That of either run, and which these are and why, one sentence.

    Raises:
        NothingMeasuredError: If one of them has no rate at all.
        UsageError: If one of them has none for ``num_workers``, or if they load different data, so
            that a difference of their rates says nothing.
    """
    data, other = a.header.target, b.header.target
    if data.dataset != other.dataset and data.spec != other.spec:
        raise UsageError(
            f"The runs load different data: {data.spec} ({data.dataset}) and {other.spec} "
            f"({other.dataset})",
            hint="Compare runs of one target, or of two versions of it with one name.",
        )
    a, b = _alike_trials(a), _alike_trials(b)
    found_a, found_b = _measured(a, num_workers), _measured(b, num_workers)
    rates_a, rates_b = _rates(a), _rates(b)
    speed_a, speed_b = (
        {config: rate.value for config, rate in rates.items()} for rates in (rates_a, rates_b)
    )
    shared = [key for key in found_a if key in found_b]
    if shared and not best:
        key = max(
            shared, key=lambda key: speed_a[found_a[key].config] * speed_b[found_b[key].config]
        )
        one, two = found_a[key], found_b[key]
        how = f"Compared at the same settings in both runs: {one.name}"
        if len(shared) > 1:
            how += f", the fastest of the {len(shared)} that both measured"
    else:
        one = max(found_a.values(), key=lambda each: speed_a[each.config])
        two = max(found_b.values(), key=lambda each: speed_b[each.config])
        why = "" if shared else ", as no settings were measured in both"
        how = f"Compared at the fastest settings of each run{why}: {one.name}, and {two.name}"
    return _chosen(a, one.config, rates_a), _chosen(b, two.config, rates_b), f"{how}."


def _chosen(run: Run, config: Config, rates: Mapping[Config, Estimate]) -> Chosen:
    trials = tuple(filter(has_rate, run.trials))
    logs: dict[Config, list[float]] = {}
    for trial in trials:
        logs.setdefault(trial.config, []).append(log_of(trial))
    means = {each: statistics.fmean(found) for each, found in logs.items()}
    return Chosen(run=run, config=config, trials=trials, rates=rates, means=means)


def _rates(run: Run) -> dict[Config, Estimate]:
    """The one rate of each configuration that was measured: as it was kept, or else made now."""
    speeds = speeds_of(run, Situation.of(run))
    tried, kept = {trial.config for trial in filter(has_rate, run.trials)}, run.kept_rates
    return {
        config: kept[config].samples_per_s if config in kept else speeds.rate(config.key)
        for config in tried
    }


def rate_of(trial: Trial) -> float:
    """Samples per second, within what logarithms and quotients can take, whatever a file says."""
    return bounded(trial.samples_per_s.value) if trial.samples_per_s is not None else _LEAST


def log_of(trial: Trial) -> float:
    """Natural logarithm of the samples per second."""
    return math.log(rate_of(trial))


def bounded(value: float) -> float:
    """A figure within what logarithms and quotients can take."""
    return min(_MOST, max(_LEAST, value))


def _alike_trials(run: Run) -> Run:
    """The run with those trials alone whose rates can be compared with each other.

    None of traced trials or with a cold cache; and no trial without a step beside trials of the
    same configuration that have one.
    """
    found = [trial for trial in run.trials if trial.purpose == "measure"]
    stepped = {trial.config for trial in found if trial.wait_fraction is not None}
    kept = [t for t in found if t.wait_fraction is not None or t.config not in stepped]
    return dataclasses.replace(run, trials=tuple(kept))


def _measured(run: Run, num_workers: int | None) -> dict[Config, Candidate]:
    """The configurations with a rate, by their settings."""
    measured = [each for each in gather(run) if each.trials]
    if not measured:
        raise NothingMeasuredError(
            f"No trial of {run.path} gave a rate",
            hint="Give run files of dlprof sweep or dlprof profile.",
        )
    tried = sorted({each.config.num_workers for each in measured})
    if num_workers is not None and num_workers not in tried:
        raise UsageError(
            f"{run.path} did not measure num_workers={num_workers}",
            hint=f"It has {', '.join(map(str, tried))}.",
        )
    return {
        _settings(run, each.config): each
        for each in measured
        if num_workers in {None, each.config.num_workers}
    }


def _settings(run: Run, config: Config) -> Config:
    """The settings with the target's batch size filled in."""
    own = run.header.target.batch_size
    return dataclasses.replace(config, batch_size=config.batch_size or own)


def bridges(a: Chosen, b: Chosen) -> list[tuple[Chosen, Chosen]]:
    """Where the settings differ, the same ones of both runs: as A has them, and as B does.

    They tell settings from the rest, as far as the run of the other one measured them too.
    """
    if a.settings == b.settings:
        return []
    known = [(a.having(settings), b.having(settings)) for settings in (a.settings, b.settings)]
    return [(one, two) for one, two in known if one is not None and two is not None]


def doubts(a: Chosen, b: Chosen) -> Iterator[str]:
    """What is against the comparison, one sentence each."""
    yield from _of_data(a, b)
    yield from _of_machines(a.run.header, b.run.header)
    if a.settings != b.settings and not bridges(a, b):
        yield (
            "Neither run measured both settings, so their part is an estimate. More workers "
            "also take a larger share of busy cores."
        )
    for name, own in (("A", a.own), ("B", b.own)):
        if len(own) == 1:
            yield f"{name} was measured only once, so its spread is unknown."
        if any(trial.whole_epochs for trial in own):
            yield f"The epochs of {name} were too short: its rate includes epoch restarts."


def _of_data(a: Chosen, b: Chosen) -> Iterator[str]:
    data, other = a.run.header.target, b.run.header.target
    if data.spec != other.spec:
        yield f"The targets have different names ({data.spec} and {other.spec})."
    if data.dataset != other.dataset:
        yield f"The datasets are of different classes ({data.dataset} and {other.dataset})."
    if data.arguments != other.arguments:
        yield "The targets were given different arguments."
    if data.length != other.length:
        lengths = ("unknown" if n is None else f"{n:,}" for n in (data.length, other.length))
        yield f"The datasets differ in length ({' and '.join(lengths)})."
    if a.settings.batch_size != b.settings.batch_size:
        yield "The batch sizes differ; samples per second are compared."


def _of_machines(one: RunHeader, two: RunHeader) -> Iterator[str]:
    steps = [side.settings.get("step_s") for side in (one, two)]
    step_s = [float(each) if isinstance(each, int | float) else 0.0 for each in steps]
    if abs(step_s[0] - step_s[1]) > SAME_STEP * max(step_s):
        lasting = " and ".join(map(format_duration, step_s))
        yield f"The runs were measured with different steps ({lasting})."
    if one.torch_version != two.torch_version:
        yield (
            f"The versions of torch differ ({one.torch_version} and {two.torch_version}): that "
            "may explain some of the CPU time per sample."
        )
    if one.python_version != two.python_version:
        yield f"The versions of Python differ ({one.python_version} and {two.python_version})."
    if (one.accelerator is None) != (two.accelerator is None):
        yield "Only one of the runs had an accelerator."
