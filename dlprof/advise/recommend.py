"""Which settings to use, from a saved run alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Literal

from dlprof.advise.candidates import Candidate, gather
from dlprof.advise.choice import RISK, Choice, choose
from dlprof.advise.confidence import certify, judge, unmeasured
from dlprof.advise.effective import SAME_STEP, Situation
from dlprof.advise.foretold import foretold, levers
from dlprof.advise.limits import within_limits
from dlprof.advise.reasons import (
    conditions,
    default_of,
    explain,
    failed_or_skipped,
    failures,
    neighbours,
)
from dlprof.advise.rules import rules_of_thumb, without_wrong
from dlprof.advise.wrong_data import failing_present, findings_of
from dlprof.errors import NothingMeasuredError, UsageError
from dlprof.records import (
    DATA_FAULTS,
    Alternative,
    Constraints,
    Expected,
    Integrity,
    Machine,
    Reason,
    Recommendation,
    Run,
)
from dlprof.stats import NEAR

_Relation = Literal["present", "tie", "fastest", "default", "slower"]


def recommend(
    run: Run,
    constraints: Constraints | None = None,
    *,
    machine: Machine | None = None,
    ghz: float | None = None,
) -> Recommendation:
    """The cheapest configuration that is likely within 3 % of the best, within limits.

    Of those that were measured; where that says nothing of the machine, the cores, the ranks or the
    step that are asked for, or something that was only predicted is likely better than all of them,
    and the run holds a calibration, of what its model predicts.

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
    limits = constraints or Constraints()
    if _is_unmeasured(run, limits, machine):
        # Not loaded for what trials answer: it takes as long as all the rest.
        from dlprof.advise.predict.recommending import can_answer, recommend_by_model  # noqa: PLC0415

        if can_answer(run, limits):
            return recommend_by_model(run, limits, machine, ghz)
    situation = Situation.of(run, limits, machine)
    candidates = gather(run)
    measured = [candidate for candidate in candidates if candidate.trials]
    if not measured:
        raise _nothing_measured(run)
    # A configuration that failed once may fail again: only where nothing else is left.
    steady = [candidate for candidate in measured if not candidate.failures] or measured
    try:
        allowed, limit_reasons = within_limits(steady, situation)
    except UsageError:  # what was only predicted may keep them
        from dlprof.advise.predict.recommending import can_answer, recommend_by_model  # noqa: PLC0415

        if not can_answer(run, limits):
            raise
        return recommend_by_model(run, limits, machine, ghz)
    choice = choose(measured, allowed, situation)
    if (answer := _likely_better(choice, run, limits)) is not None:
        return answer
    certificate = certify(choice, run)
    confidence, confidence_reason = judge(choice, run, certificate)
    return Recommendation(
        config=choice.pick.config,
        dataloader_kwargs=choice.pick.config.dataloader_kwargs(),
        expected=_expected(choice, choice.pick),
        confidence=confidence,
        confidence_reason=confidence_reason,
        certificate=certificate,
        reasons=(
            *failing_present(run),
            *conditions(run, choice),
            *explain(choice),
            *levers(run, choice.pick.config),
            *foretold(run, choice),
            *neighbours(run),
            *limit_reasons,
            *failures(candidates),
        ),
        alternatives=tuple(_alternatives(choice)),
        constraints=situation.constraints,
        rules_of_thumb=without_wrong(
            rules_of_thumb(
                situation.machine,
                run.header.target,
                situation.constraints.ranks,
                candidates,
                choice.speeds,
            ),
            Integrity.of(run),
        ),
        findings=findings_of(run, extrapolated=situation.extrapolated),
        extrapolated=situation.extrapolated,
    )


def _likely_better(choice: Choice, run: Run, limits: Constraints) -> Recommendation | None:
    """The model's answer, where something that was only predicted is likely better than all else.

    As where the budget ended before it was measured, or a limit on workers leaves out the best
    that was.
    """
    speeds, pick = choice.speeds, choice.pick.key
    better = [
        config
        for config in unmeasured(choice, run)
        if speeds.chance(config.key, pick, 1 / NEAR) >= 1 - RISK
    ]
    if not better or choice.fed:
        return None
    best = max(speeds.log_speed(each.key) for each in better)
    near = (each for each in better if speeds.log_speed(each.key) >= best + math.log(NEAR))
    pick_of_them = min(near, key=lambda config: config.cost_key)
    from dlprof.advise.predict.recommending import can_answer, recommend_by_model  # noqa: PLC0415

    if not can_answer(run, limits):
        return None
    claim = (
        f"{choice.pick.name} is the best that was measured, and likely slower than what there was "
        "no time to measure"
    )
    try:
        answer = recommend_by_model(run, limits, among=frozenset({pick_of_them}))
    except UsageError:  # none of them keeps the limits, as what was measured does
        return None
    told = Reason(claim=claim, evidence={"trials": choice.pick.trial_ids})
    expected = dataclasses.replace(answer.expected, samples_per_s=speeds.rate(pick_of_them.key))
    return dataclasses.replace(answer, expected=expected, reasons=(told, *answer.reasons))


def _is_unmeasured(run: Run, limits: Constraints, machine: Machine | None) -> bool:
    """Whether the machine, cores, ranks or step that are asked for are others than the trials'."""
    elsewhere = machine is not None and machine.fingerprint != run.header.machine.fingerprint
    another_place = limits.asks_for_cores or elsewhere or limits.ranks > 1
    return another_place or _is_another_step(run, limits.step_s)


def _is_another_step(run: Run, asked_s: float | None) -> bool:
    known = run.header.settings.get("step_s")
    measured_s = float(known) if isinstance(known, int | float) else 0.0
    return bool(asked_s) and not math.isclose(asked_s or 0.0, measured_s, rel_tol=SAME_STEP)


def _expected(choice: Choice, candidate: Candidate) -> Expected:
    return Expected(
        samples_per_s=choice.speeds.rate(candidate.key),
        wait_fraction=choice.speeds.wait_fraction(candidate),
        pss_bytes=candidate.pss_bytes,
        shm_bytes=candidate.shm_bytes,
        startup_s=candidate.startup_s,
        epoch_turnover_s=candidate.epoch_turnover_s,
    )


def _alternatives(choice: Choice) -> list[Alternative]:
    """The present settings, then ties, fastest, default and the best of fewer workers by speed."""
    found: dict[str, Alternative] = {}
    for candidate, relation in _related(choice):
        if candidate is choice.pick or candidate.key in found:
            continue
        found[candidate.key] = Alternative(
            config=candidate.config,
            expected=_expected(choice, candidate),
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
    default = default_of(choice.allowed, choice.pick.config)
    if default is not None:
        yield default, "default"
    yield choice.best, "fastest"
    for candidate in choice.ties:
        yield candidate, "tie"
    fewer = [c for c in choice.allowed if c.config.num_workers < choice.pick.config.num_workers]
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
        from dlprof.advise.predict.question import is_calibrated  # noqa: PLC0415 - as above

        foretells = ", or ask dlprof predict what they foretell" if is_calibrated(run) else ""
        return NothingMeasuredError(
            "The run holds explained trials only, which are calibrated by, not compared",
            hint=f"Go on with dlprof sweep --resume{foretells}.",
        )
    if first is None or failed is None:
        return NothingMeasuredError(
            f"None of the run's {len(run.trials)} trials gave a rate",
            hint="Give the sweep more time with --budget.",
        )
    return NothingMeasuredError(
        f"None of the run's {len(run.trials)} trials gave a rate; the first "
        f"{failed_or_skipped(first)}: {failed.message}",
        hint=failed.hint,
        failures=[
            (trial.failure.kind, trial.failure.message) for trial in run.trials if trial.failure
        ],
    )
