"""What stands against comparing two runs, and what forbids it."""

from __future__ import annotations

from collections.abc import Iterator

from dlprof.advise.compare.pairing import Pair
from dlprof.errors import UsageError
from dlprof.records import Config, Run, Trial
from dlprof.units import format_duration

_SAME_STEP = 0.05


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
    if _batch_size(pair.run_a, pair.config_a) != _batch_size(pair.run_b, pair.config_b):
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


def _batch_size(run: Run, config: Config) -> int | None:
    return config.batch_size or run.header.target.batch_size


def _of_targets(a: Run, b: Run) -> Iterator[str]:
    one, two = a.header.target, b.header.target
    if one.spec != two.spec:
        yield f"The targets have different names ({one.spec} and {two.spec})."
    if one.dataset != two.dataset:
        yield f"The data sets are of different classes ({one.dataset} and {two.dataset})."
    if one.arguments != two.arguments:
        yield "The targets were given different arguments."
    if one.length != two.length:
        yield f"The data sets differ in length ({_known(one.length)} and {_known(two.length)})."


def _known(length: int | None) -> str:
    return "unknown" if length is None else f"{length:,}"


def _of_steps(a: Run, b: Run) -> Iterator[str]:
    one, two = a.header.settings.get("step_s"), b.header.settings.get("step_s")
    known = [float(each) if isinstance(each, int | float) else 0.0 for each in (one, two)]
    if abs(known[0] - known[1]) > _SAME_STEP * max(known):
        yield (
            "The runs were measured with different steps"
            f" ({format_duration(known[0])} and {format_duration(known[1])})."
        )


def _of_trials(name: str, config: Config, trials: tuple[Trial, ...]) -> Iterator[str]:
    trials = tuple(trial for trial in trials if trial.config == config)
    if len(trials) == 1:
        yield f"{name} was measured only once, so nothing tells how steady it is."
    if any(trial.whole_epochs for trial in trials):
        yield f"The epochs of {name} were too short: its rate counts the turn of the epoch."
