"""How sure a recommendation is, and why no surer."""

from __future__ import annotations

from collections.abc import Iterator

from dlprof.advise.candidates import Candidate, rest_on_one_batch
from dlprof.advise.choice import WITHIN, Choice, is_tie, surely_differs
from dlprof.advise.wording import percent, times
from dlprof.records import Confidence, Config, Run, Trial
from dlprof.units import counted, format_duration

_SHORT_WINDOW_BATCHES = 20
"""Windows of fewer batches than this say little about their own spread."""

_WIDE = 0.15
"""Half-width of the rate's interval, as a share of it, from which it is worth a warning."""

_FAR_WIDE = 0.5
"""The same from which the rate is hardly known."""

_OUTRUN = 1.25
"""Beyond what drift explains."""


def judge(choice: Choice, run: Run) -> tuple[Confidence, str]:
    """The confidence and one sentence: the gravest doubt, or what makes it sure."""
    for sentence in _grave_doubts(choice, run):
        return "low", sentence
    for sentence in _doubts(choice, run):
        return "medium", sentence
    return "high", _sure(choice)


def _grave_doubts(choice: Choice, run: Run) -> Iterator[str]:
    pick, situation = choice.pick, choice.situation
    ranks = situation.constraints.ranks
    if situation.extrapolated:
        yield (
            f"it was measured on {run.header.machine.hostname}, not on "
            f"{situation.machine.hostname}: only the limits are known there"
        )
    if rest_on_one_batch(run, pick.trials):
        yield "its rate rests on the size of one batch"
    if ranks > 1:
        yield f"one loader was measured, not {ranks} at once"
    if pick.failures:
        yield f"{pick.name} also failed {times(len(pick.failures))}"
    yield from _outrun_explained(choice, run)
    if choice.speeds.steady.blocks(pick.key) == 1:
        yield f"{pick.name} was measured only once"
    if 2 * pick.noisy > len(pick.trials):
        yield _noise(pick)
    yield from _spread(choice, _FAR_WIDE)


def _doubts(choice: Choice, run: Run) -> Iterator[str]:
    pick, derived_s = choice.pick, choice.situation.derived_step_s
    if len(choice.speeds.epochs) == 1:  # of all that was measured
        yield "no other configuration gave a rate that it could be compared with"
    if derived_s is not None:
        step = format_duration(derived_s)
        yield f"a step of {step} was not measured: sweep with --step-time to be sure"
    if choice.undecided:
        cheaper = choice.undecided[0].name
        yield f"{cheaper} is cheaper and not ruled out: more repeats would settle it"
    if _is_at_the_edge(choice, run):
        yield f"num_workers={pick.config.num_workers} is the most that was tried"
    if pick.noisy:
        yield _noise(pick)
    if run.end is not None and run.end.reason == "interrupted":
        yield "the sweep was interrupted"
    if any(_is_short(trial) for trial in pick.trials):
        yield "the measured windows were short"
    yield from _spread(choice, _WIDE)


def _spread(choice: Choice, most: float) -> Iterator[str]:
    """That the rate may be lower by more than a share of it."""
    rate = choice.speeds.steady.rate(choice.pick.key)
    if rate.low is not None and rate.low < (1 - most) * rate.value:
        yield f"its rate may be {percent(1 - rate.low / rate.value)} lower: repeats differ"


def _noise(pick: Candidate) -> str:
    verb = "was" if pick.noisy == 1 else "were"
    return f"{pick.noisy} of its {counted(len(pick.trials), 'trial')} {verb} disturbed or drifted"


def _is_short(trial: Trial) -> bool:
    rate = trial.samples_per_s
    return rate is None or rate.low is None or trial.window_batches < _SHORT_WINDOW_BATCHES


def outran(choice: Choice, run: Run) -> tuple[float, Config] | None:
    """By how much an explained trial, which is slower if anything, outran what was chosen.

    Of those with no more workers, which keep whatever limits the chosen settings keep; not where a
    step limits them all.

    Returns:
        Its rate over that of the choice, and its configuration; ``None`` where none did.
    """
    told, pick = choice.speeds.steady.rate(choice.pick.key).value, choice.pick.config
    rates = [
        (t.samples_per_s.value / told, t.config)
        for t in run.trials
        if t.purpose == "explain"
        and t.samples_per_s is not None
        and t.config.batch_size == pick.batch_size
        and t.config.num_workers <= pick.num_workers
    ]
    best = max(rates, key=lambda each: each[0], default=None)
    if best is None or best[0] <= _OUTRUN or choice.situation.constraints.step_s:
        return None
    return best


def _outrun_explained(choice: Choice, run: Run) -> Iterator[str]:
    """That an explained trial outran what is recommended."""
    found = outran(choice, run)
    if found is not None:
        gain, config = found
        name = f"num_workers={config.num_workers}"
        yield f"{name} gave {gain:.1f}x of it while it was explained: measure for longer"


def _is_at_the_edge(choice: Choice, run: Run) -> bool:
    """Whether more workers than were tried might be faster still."""
    pick = choice.pick.config.num_workers
    limit = choice.situation.constraints.max_workers
    tried = max(candidate.config.num_workers for candidate in choice.allowed)
    if choice.fed or not pick or pick < tried or (limit is not None and pick >= limit):
        return False
    if any(t.failure is not None and t.config.num_workers > pick for t in run.trials):
        return False  # which is told among the reasons
    fewer = [c for c in choice.pool if c.config.num_workers < pick]
    return not any(is_tie(choice.speeds.ratio(each, choice.pick)) for each in fewer)


def _sure(choice: Choice) -> str:
    count = choice.speeds.steady.blocks(choice.pick.key)
    ruled_out = len(choice.allowed) - len(choice.ties)
    measured = f"its rate was measured {times(count)}"
    dearer = [each for each in choice.ties if each is not choice.pick]
    ones = counted(len(dearer), "dearer one")
    if any(surely_differs(choice.speeds.ratio(each, choice.pick)) for each in dearer):
        verb = "is" if len(dearer) == 1 else "are"
        return f"{measured}; {ones} {verb} {WITHIN} or can't be told apart"
    if dearer:
        return f"{measured}; {ones} can't be told apart from it"
    others = "the other one is" if ruled_out == 1 else f"all {ruled_out} others are"
    return f"{measured}; {others} slower" if ruled_out else measured
