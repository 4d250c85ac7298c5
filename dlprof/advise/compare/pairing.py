"""Which configurations of two runs are compared, like with like, and what stands against it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from dlprof.advise.candidates import Candidate, gather, has_rate
from dlprof.advise.situation import Situation
from dlprof.advise.speeds import speeds_of
from dlprof.advise.thresholds import SAME_STEP
from dlprof.errors import NothingMeasuredError, UsageError
from dlprof.records import Config, Run, Trial
from dlprof.units import format_duration


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What is compared.

    Attributes:
        run_a: The first run.
        run_b: The second run.
        config_a: Of the first run.
        config_b: Of the second run.
        trials_a: Trials of the first run with a rate.
        trials_b: Trials of the second run with a rate.
        same: Whether both configurations are the same settings.
        bridges: Where they are not, what both runs measured of the two, to tell settings from the
            rest: the configuration as A has it, and as B does.
        how: Which were compared and why, one sentence.
    """

    run_a: Run
    run_b: Run
    config_a: Config
    config_b: Config
    trials_a: tuple[Trial, ...]
    trials_b: tuple[Trial, ...]
    same: bool
    bridges: tuple[tuple[Config, Config], ...] = ()
    how: str


def pair(a: Run, b: Run, *, num_workers: int | None = None, best: bool = False) -> Pair:
    """Choose what to compare.

    Args:
        a: The first run.
        b: The second run.
        num_workers: Compare only configurations of so many workers.
        best: Compare the fastest of each run also where they share settings.

    Raises:
        NothingMeasuredError: If one of them has no rate at all.
        UsageError: If one of them has none for ``num_workers``.
    """
    found_a, found_b = _measured(a, num_workers), _measured(b, num_workers)
    shared = [key for key in found_a if key in found_b]
    if shared and not best:
        rates_a, rates_b = _steady(a), _steady(b)
        key = max(shared, key=lambda key: rates_a[found_a[key].key] + rates_b[found_b[key].key])
        how = f"Compared at the same settings in both runs: {found_a[key].name}"
        if len(shared) > 1:
            how += f", of {len(shared)} that both measured the fastest over both"
        return _pair(a, b, found_a[key], found_b[key], how=how + ".")
    one, two = _fastest(a, found_a), _fastest(b, found_b)
    why = "" if shared else ", as no settings were measured in both"
    how = f"Compared at the fastest settings of each run{why}: {one.name}, and {two.name}."
    return _pair(a, b, one, two, how=how)


def alike_trials(run: Run) -> Run:
    """The run with those trials alone whose rates can be compared with each other.

    None of explaining passes or with a cold cache; and no trial without a step beside trials of the
    same configuration that have one.
    """
    found = [trial for trial in run.trials if trial.purpose == "measure"]
    stepped = {trial.config for trial in found if trial.wait_fraction is not None}
    kept = [t for t in found if t.wait_fraction is not None or t.config not in stepped]
    return dataclasses.replace(run, trials=tuple(kept))


def _measured(run: Run, num_workers: int | None) -> dict[Config, Candidate]:
    """The configurations with a rate, by their settings with the target's batch size filled in."""
    measured = [each for each in gather(run) if each.trials]
    if not measured:
        raise NothingMeasuredError(
            f"No trial of {run.path} gave a rate",
            hint="Give run files of dlprof sweep or dlprof profile.",
        )
    wanted = [
        each for each in measured if num_workers is None or each.config.num_workers == num_workers
    ]
    if not wanted:
        tried = sorted({each.config.num_workers for each in measured})
        raise UsageError(
            f"{run.path} did not measure num_workers={num_workers}",
            hint=f"It has {', '.join(map(str, tried))}.",
        )
    return {_settings(run, each.config): each for each in wanted}


def _settings(run: Run, config: Config) -> Config:
    """The settings as both runs name them: batch sizes in figures."""
    own = run.header.target.batch_size
    return dataclasses.replace(config, batch_size=config.batch_size or own)


def _fastest(run: Run, found: Mapping[Config, Candidate]) -> Candidate:
    steady = _steady(run)
    return max(found.values(), key=lambda each: steady[each.key])


def _steady(run: Run) -> Mapping[str, float]:
    """Logarithms of the steady rates as the run has them, by ``Config.key``."""
    return speeds_of(run, Situation.of(run)).belief.log_rates


def _pair(a: Run, b: Run, one: Candidate, two: Candidate, *, how: str) -> Pair:
    same = _settings(a, one.config) == _settings(b, two.config)
    return Pair(
        run_a=a,
        run_b=b,
        config_a=one.config,
        config_b=two.config,
        trials_a=tuple(trial for trial in a.trials if has_rate(trial)),
        trials_b=tuple(trial for trial in b.trials if has_rate(trial)),
        same=same,
        bridges=() if same else _bridges(a, b, one.config, two.config),
        how=how,
    )


def _bridges(
    a: Run, b: Run, config_a: Config, config_b: Config
) -> tuple[tuple[Config, Config], ...]:
    """The two settings, as far as the run of the other one measured them too."""
    in_a = {_settings(a, each): each for each in (t.config for t in a.trials if has_rate(t))}
    in_b = {_settings(b, each): each for each in (t.config for t in b.trials if has_rate(t))}
    return tuple(
        (in_a[key], in_b[key])
        for key in (_settings(a, config_a), _settings(b, config_b))
        if key in in_a and key in in_b
    )


def refuse_unlike(a: Run, b: Run) -> None:
    """Refuse two runs that load different things: a difference of their rates says nothing.

    Raises:
        UsageError: If both the target and the class of the data set differ.
    """
    one, two = a.header.target, b.header.target
    if one.dataset != two.dataset and one.spec != two.spec:
        raise UsageError(
            f"The runs load different data: {one.spec} ({one.dataset}) and {two.spec} "
            f"({two.dataset})",
            hint="Compare runs of one target, or of two versions of it with one name.",
        )


def doubts(pair: Pair) -> tuple[str, ...]:
    """What stands against the comparison, one sentence each."""
    a, b = pair.run_a.header, pair.run_b.header
    found = [*_of_targets(pair.run_a, pair.run_b)]
    one, two = _settings(pair.run_a, pair.config_a), _settings(pair.run_b, pair.config_b)
    if one.batch_size != two.batch_size:
        found.append("The batch sizes differ: samples per second are compared all the same.")
    if not pair.same and not pair.bridges:
        found.append(
            "Neither run measured both settings, so that their part is reckoned; more workers also"
            " take a larger share of cores that neighbours want."
        )
    found += _of_steps(pair.run_a, pair.run_b)
    if a.torch_version != b.torch_version:
        found.append(
            f"The versions of torch differ ({a.torch_version} and {b.torch_version}): part of the"
            " CPU time per sample may be theirs."
        )
    if a.python_version != b.python_version:
        found.append(f"The versions of Python differ ({a.python_version} and {b.python_version}).")
    if (a.accelerator is None) != (b.accelerator is None):
        found.append("Only one of the runs had an accelerator.")
    found += _of_trials("A", pair.config_a, pair.trials_a)
    found += _of_trials("B", pair.config_b, pair.trials_b)
    return tuple(found)


def _of_targets(a: Run, b: Run) -> Iterator[str]:
    one, two = a.header.target, b.header.target
    if one.spec != two.spec:
        yield f"The targets have different names ({one.spec} and {two.spec})."
    if one.dataset != two.dataset:
        yield f"The data sets are of different classes ({one.dataset} and {two.dataset})."
    if one.arguments != two.arguments:
        yield "The targets were given different arguments."
    if one.length != two.length:
        known = ("unknown" if each is None else f"{each:,}" for each in (one.length, two.length))
        yield f"The data sets differ in length ({' and '.join(known)})."


def _of_steps(a: Run, b: Run) -> Iterator[str]:
    one, two = a.header.settings.get("step_s"), b.header.settings.get("step_s")
    known = [float(each) if isinstance(each, int | float) else 0.0 for each in (one, two)]
    if abs(known[0] - known[1]) > SAME_STEP * max(known):
        yield (
            "The runs were measured with different steps"
            f" ({format_duration(known[0])} and {format_duration(known[1])})."
        )


def _of_trials(name: str, config: Config, trials: tuple[Trial, ...]) -> Iterator[str]:
    own = [trial for trial in trials if trial.config == config]
    if len(own) == 1:
        yield f"{name} was measured only once, so nothing tells how steady it is."
    if any(trial.whole_epochs for trial in own):
        yield f"The epochs of {name} were too short: its rate counts the turn of the epoch."
