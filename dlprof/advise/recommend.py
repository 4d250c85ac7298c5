"""Which settings to use, from a saved run alone: one situation, one belief, one choice."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from dlprof.advise.candidates import Candidate, gather
from dlprof.advise.choice import Choice, choose, is_better
from dlprof.advise.confidence import certify, judge, unmeasured
from dlprof.advise.limits import within_limits
from dlprof.advise.reasons import (
    assumed,
    conditions,
    explain,
    failed_or_skipped,
    failures,
    foretold,
    levers,
    neighbours,
)
from dlprof.advise.rules import rule_configs, rules_of_thumb
from dlprof.advise.situation import Situation, is_calibrated
from dlprof.advise.speeds import speeds_of
from dlprof.advise.wrong_data import failing_present, findings_of
from dlprof.errors import NothingMeasuredError, UsageError
from dlprof.records import (
    DATA_FAULTS,
    Alternative,
    Config,
    ConfigRate,
    Constraints,
    Expected,
    Machine,
    PredictedCase,
    Reason,
    Recommendation,
    Run,
    ToMeasure,
)
from dlprof.stats import NEAR

if TYPE_CHECKING:
    from dlprof.advise.predict.beside import Agreement

_Relation = Literal["present", "tie", "fastest", "default", "slower"]


def recommend(
    run: Run,
    constraints: Constraints | None = None,
    *,
    machine: Machine | None = None,
    ghz: float | None = None,
) -> Recommendation:
    """The cheapest configuration that is likely within 3 % of the best, within limits.

    Of those that were measured, and of those that were only predicted where these are likely
    better. Where no trial shows the machine, the cores, the ranks or the step that are asked for,
    and the run holds a calibration, of all that are worth predicting.

    Rates are compared over whole epochs where their length is known, so that the worth of
    ``persistent_workers`` follows from it. With a step time, those that keep the step fed come
    first, and the cheapest of them is enough.

    Args:
        run: What was measured.
        constraints: Limits to keep; ``None`` for no limits but the machine's.
        machine: Where the settings are wanted, if not on the one that was measured.
        ghz: Clock of that machine's cores, where it is known.

    Raises:
        NothingMeasuredError: If no trial has a rate.
        UsageError: If no configuration keeps within the limits, or only a calibration could
            answer and there is none.
    """
    situation = Situation.of(run, constraints, machine, ghz=ghz)
    choice, limit_reasons = decide(run, situation)
    cases: tuple[PredictedCase, ...] = ()
    agreed: Agreement | None = None
    if not choice.pick.measured:
        from dlprof.advise.predict.beside import agreement  # noqa: PLC0415 - it loads the model
        from dlprof.advise.predict.there import cases_of  # noqa: PLC0415

        agreed, cases = agreement(run), tuple(cases_of(run, choice))
    certificate = certify(choice, run)
    confidence, confidence_reason = judge(choice, run, certificate, agreed)
    return Recommendation(
        config=choice.pick.config,
        dataloader_kwargs=choice.pick.config.dataloader_kwargs(),
        expected=expected_of(choice, choice.pick),
        confidence=confidence,
        confidence_reason=confidence_reason,
        certificate=certificate,
        reasons=(*failing_present(run), *_reasons(run, choice, limit_reasons, cases)),
        alternatives=tuple(_alternatives(choice)),
        rates=_rates(run, choice),
        constraints=situation.constraints,
        rules_of_thumb=rules_of_thumb(run, choice),
        findings=findings_of(run, extrapolated=situation.extrapolated),
        extrapolated=situation.extrapolated,
        basis="measured" if choice.pick.measured else "predicted",
        cases=cases,
        measure_there=_to_measure(run, choice),
    )


def decide(
    run: Run, situation: Situation, *, also: Config | None = None
) -> tuple[Choice, list[Reason]]:
    """What to choose in a situation, and what limits left out of it.

    Args:
        run: What was measured.
        situation: What the settings are wanted for.
        also: What to predict beside what is worth it, where the model answers.

    Raises:
        NothingMeasuredError: Nothing was measured, and no calibration answers.
        UsageError: No configuration keeps within the limits.
    """
    if situation.by_model:
        return _among_all(run, situation, also)
    measured = [candidate for candidate in gather(run) if candidate.trials]
    if not measured:
        # No time was left for plain trials; where they were tried in vain, that is the answer.
        tried = any(t.purpose == "measure" and t.outcome != "skipped" for t in run.trials)
        cells = [] if tried or not is_calibrated(run) else unmeasured(situation, run)
        if not cells and not situation.constraints.asks_for_cores:
            raise _nothing_measured(run)
        return _among_all(run, situation, also, cells)
    # A configuration that failed once may fail again: only where nothing else is left.
    steady = [candidate for candidate in measured if not candidate.failures] or measured
    try:
        allowed, limit_reasons = within_limits(steady, situation)
    except UsageError:  # what was only predicted may keep them
        if not (situation.as_measured and is_calibrated(run)):
            raise
        return _among_all(run, situation, also)
    choice = choose(allowed, situation, speeds_of(run, situation))
    better = [each for each in unmeasured(situation, run) if is_better(choice, each.key)]
    if not better or not is_calibrated(run):
        return choice, limit_reasons
    from dlprof.advise.predict.carried import candidates_of  # noqa: PLC0415 - it loads the model

    found, speeds = candidates_of(run, situation, better)
    try:
        within, more_reasons = within_limits(found, situation)
    except UsageError:  # none of them keeps the limits, as what was measured does
        return choice, limit_reasons
    both = sorted([*allowed, *within], key=lambda each: each.config.cost_key)
    claim = (
        f"{choice.pick.name} is the best that was measured, and likely slower than what there was "
        "no time to measure"
    )
    left = Reason(claim=claim, evidence={"trials": choice.pick.trial_ids})
    return choose(both, situation, speeds), [left, *limit_reasons, *more_reasons]


def _among_all(
    run: Run, situation: Situation, also: Config | None, cells: Collection[Config] = ()
) -> tuple[Choice, list[Reason]]:
    """The choice among all that is worth predicting, or among what a sweep has predicted."""
    from dlprof.advise.predict.carried import candidates_of  # noqa: PLC0415 - they load the model
    from dlprof.advise.predict.cells import candidate_configs  # noqa: PLC0415

    wanted = {*(cells or candidate_configs(run, situation)), *([] if also is None else [also])}
    by_rules = [each for each in rule_configs(run, situation).values() if each is not None]
    # At once, so that what they have in common is computed once.
    found, speeds = candidates_of(run, situation, {*wanted, *by_rules})
    allowed, limit_reasons = within_limits([c for c in found if c.config in wanted], situation)
    return choose(allowed, situation, speeds), limit_reasons


def _reasons(
    run: Run, choice: Choice, limits: Sequence[Reason], cases: Sequence[PredictedCase]
) -> Iterator[Reason]:
    """All that is to be said, the most telling first."""
    if not choice.pick.measured:
        from dlprof.advise.predict.there import unordered  # noqa: PLC0415 - it loads the model

        yield from explain(choice)
        yield from unordered(run, choice)
        yield from assumed(choice, cases)
        yield from limits
        return
    yield from conditions(choice)
    yield from explain(choice)
    yield from levers(run, choice.pick.config)
    yield from foretold(run, choice)
    yield from neighbours(run)
    yield from limits
    yield from failures(gather(run))


def _to_measure(run: Run, choice: Choice) -> tuple[ToMeasure, ...]:
    if choice.pick.measured:
        return ()
    from dlprof.advise.predict.there import checks  # noqa: PLC0415 - it loads the model

    return tuple(checks(run, choice))


def expected_of(choice: Choice, candidate: Candidate) -> Expected:
    """What a configuration should give."""
    return Expected(
        samples_per_s=choice.speeds.rate(candidate.key),
        wait_fraction=choice.speeds.wait_fraction(candidate),
        pss_bytes=candidate.pss_bytes,
        shm_bytes=candidate.shm_bytes,
        startup_s=candidate.startup_s,
        epoch_turnover_s=candidate.epoch_turnover_s,
    )


def _rates(run: Run, choice: Choice) -> tuple[ConfigRate, ...]:
    """The one rate of each configuration, fastest first."""
    speeds, pick = choice.speeds, choice.pick.key
    known = {trial.config: choice.situation.as_measured for trial in run.completed}
    known |= {each.config: each.measured for each in choice.allowed}
    cells = run.prediction.cells if run.prediction is not None else ()
    known = {cell.config: False for cell in cells} | known
    keys = speeds.claimed or speeds.epochs  # without trials, only what the model was asked for
    rated = {config: measured for config, measured in known.items() if config.key in keys}
    return tuple(
        ConfigRate(
            config=config,
            samples_per_s=speeds.rate(config.key),
            ratio=speeds.ratio(config.key, pick),
            measured=rated[config],
        )
        for config in sorted(rated, key=lambda each: speeds.log_speed(each.key), reverse=True)
    )


def _alternatives(choice: Choice) -> list[Alternative]:
    """The present settings, then ties, fastest, default and the best of fewer workers by speed."""
    found: dict[str, Alternative] = {}
    for candidate, relation in _related(choice):
        if candidate is choice.pick or candidate.key in found:
            continue
        found[candidate.key] = Alternative(
            config=candidate.config,
            expected=expected_of(choice, candidate),
            relation=relation,
            speed=choice.speeds.ratio(candidate.key, choice.pick.key).value,
        )
    return sorted(
        found.values(),
        key=lambda other: (other.relation != "present", -other.speed, other.config.cost_key),
    )


def _related(choice: Choice) -> Iterator[tuple[Candidate, _Relation]]:
    """Candidates with what they are to the choice, the most telling relation first."""
    if choice.present is not None:
        yield choice.present, "present"
    if choice.default is not None:
        yield choice.default, "default"
    yield choice.best, "fastest"
    for candidate in choice.ties:
        if candidate.measured:
            yield candidate, "tie"
    most = choice.pick.config.num_workers
    fewer = [each for each in choice.allowed if each.config.num_workers < most]
    if fewer:
        rival = choice.speeds.fastest(fewer)
        if choice.speeds.ratio(rival.key, choice.pick.key).value < NEAR:
            yield rival, "slower"


def _nothing_measured(run: Run) -> NothingMeasuredError:
    first = next((trial for trial in run.trials if trial.failure is not None), None)
    failed = None if first is None else first.failure
    if not run.trials:
        return NothingMeasuredError(
            "The run holds no trials", hint="Run the sweep again, or go on with --resume."
        )
    faults = (trial.failure for trial in run.trials if trial.failure is not None)
    wrong = next((each for each in faults if each.kind in DATA_FAULTS), None)
    if wrong is not None and all(trial.failure is not None for trial in run.trials):
        return NothingMeasuredError(
            f"No settings give the right data, so there are none to recommend: {wrong.message}",
            hint=wrong.hint,
        )
    if any(trial.batches_per_s is not None for trial in run.completed):
        return NothingMeasuredError(
            "The samples in this target's batches can't be counted, so no rates can be compared",
            hint="Have it yield tensors, or lists with one entry for each sample.",
        )
    if failed is None and any(trial.purpose == "explain" for trial in run.trials):
        foretells = ", or ask dlprof predict what they foretell" if is_calibrated(run) else ""
        return NothingMeasuredError(
            "The run holds explained trials only, which are calibrated by, not compared",
            hint=f"Go on with dlprof sweep --resume{foretells}.",
        )
    if first is None or failed is None:
        return NothingMeasuredError(
            f"{_none_of(run)} rate",
            hint="Give the sweep more time with --budget.",
        )
    return NothingMeasuredError(
        f"{_none_of(run)} rate; {'the first' if len(run.trials) > 1 else 'it'} "
        f"{failed_or_skipped(first)}: {failed.message}",
        hint=failed.hint,
        failures=[
            (trial.failure.kind, trial.failure.message) for trial in run.trials if trial.failure
        ],
    )


def _none_of(run: Run) -> str:
    count = len(run.trials)
    if count == 1:
        return "The run's only trial gave no"
    return f"None of the run's {count} trials gave a"
