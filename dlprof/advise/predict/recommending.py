"""Which settings to use where nothing was measured: the model's answer, marked as predicted."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator

from dlprof.advise.limits import within_limits
from dlprof.advise.predict.beside import agreement
from dlprof.advise.predict.cells import (
    attainable,
    auto_prefetch,
    auto_workers,
    base_config,
    configs_of,
    useful,
)
from dlprof.advise.predict.choosing import Chosen
from dlprof.advise.predict.claims import claims
from dlprof.advise.predict.forecast import cheapest, predicted_rows
from dlprof.advise.predict.question import (
    Place,
    Question,
    as_shared,
    is_calibrated,
    place_of,
    situation_of,
    usable_calibration,
)
from dlprof.advise.predict.there import checks
from dlprof.advise.predict.trust import judge
from dlprof.advise.rules import NO_GPU, without_wrong, workers_by_rule
from dlprof.advise.wrong_data import failing_present, findings_of
from dlprof.model import describe
from dlprof.records import (
    Alternative,
    Calibration,
    Config,
    Constraints,
    Integrity,
    Machine,
    PredictedCase,
    Recommendation,
    RuleOfThumb,
    Run,
)

_ALIKE = 0.995
"""Of what is this close to the fastest, the cheapest is told as that."""


def can_answer(run: Run, constraints: Constraints) -> bool:
    """Whether the run's calibration can answer a question that its trials can't.

    Raises:
        UsageError: Nothing else could answer, and there is no calibration.
    """
    if constraints.asks_for_cores:
        usable_calibration(run)
        return True
    return is_calibrated(run)


def recommend_by_model(
    run: Run,
    constraints: Constraints,
    machine: Machine | None = None,
    ghz: float | None = None,
    *,
    among: Collection[Config] = (),
) -> Recommendation:
    """The cheapest configuration within 3 % of the best, as predicted, within limits.

    Never one that is predicted worse than PyTorch's default, which is among the candidates.

    Args:
        run: That holds a calibration.
        constraints: Limits to keep, and where the settings are wanted; with ``neighbours=None`` on
            the machine that was measured, they are those that were seen there.
        machine: Where they are wanted, if not on the one that was measured.
        ghz: Clock of that machine's cores, where it is known.
        among: What to choose from; nothing for all that is worth predicting.

    Raises:
        UsageError: There is no calibration, or no configuration keeps within the limits.
    """
    calibration = usable_calibration(run)
    question = _question(constraints, machine, ghz)
    place = place_of(run, as_shared(run, question))
    limits = dataclasses.replace(constraints, step_s=_step(place), machine=_named(place))
    choose = functools.partial(_choose, run, calibration, among=among)
    chosen = choose(place, limits)
    agreed = agreement(run, calibration)
    rate, seen = chosen.pick.prediction.batches_per_s, chosen.pick.measured is not None
    confidence, why = judge(run, calibration, place, rate, agreed, seen=seen)
    cases = tuple(_cases(run, calibration, chosen, choose))
    config = chosen.pick.config
    return Recommendation(
        config=config,
        dataloader_kwargs=config.dataloader_kwargs(),
        expected=chosen.expected(chosen.pick),
        confidence=confidence,
        confidence_reason=why,
        reasons=(*failing_present(run), *claims(chosen, cases), *chosen.limit_reasons),
        alternatives=tuple(_alternatives(chosen)),
        constraints=limits,
        rules_of_thumb=without_wrong(_rules(chosen), Integrity.of(run)),
        findings=findings_of(run, extrapolated=place.extrapolated),
        extrapolated=place.extrapolated,
        basis="predicted",
        cases=cases,
        measure_there=tuple(checks(run, calibration, chosen)),
    )


def _question(limits: Constraints, machine: Machine | None, ghz: float | None) -> Question:
    return Question(
        machine=machine,
        ghz=ghz,
        cores=limits.cores,
        ranks=limits.ranks,
        step_s=limits.step_s,
        neighbours=limits.neighbours,
        speed=limits.speed,
    )


def _step(place: Place) -> float | None:
    whole = place.conditions.step_s + place.conditions.step_cpu_s
    return whole or None


def _named(place: Place) -> str | None:
    return place.machine.hostname if place.extrapolated else None


def _choose(
    run: Run,
    calibration: Calibration,
    place: Place,
    limits: Constraints,
    *,
    among: Collection[Config],
) -> Chosen:
    base = base_config(run)
    plain = Config(batch_size=calibration.batch_size)
    workers = auto_workers(calibration, base, place.conditions, limits.max_workers)
    axes = {
        "num_workers": workers,
        "prefetch_factor": auto_prefetch(calibration),
        "persistent_workers": (False, True),
    }
    situation = situation_of(run, limits, place)
    configs = set(among) or {*attainable(run, [*configs_of(base, axes), plain], {})}
    present = situation.present
    if not among and present is not None and present.batch_size in {None, calibration.batch_size}:
        configs.add(present)
    configs = set(useful(run, configs))
    rules = _rule_configs(run, calibration, place)
    # At once, so that what they have in common is reckoned once.
    both = list(configs.union(config for config in rules.values() if config is not None))
    found = {row.config: row for row in predicted_rows(run, calibration, both, place)}
    candidates = [row for config, row in found.items() if config in configs]
    allowed, reasons = within_limits(candidates, situation)
    # There is one: within_limits raises where none is left.
    pick = cheapest(allowed) or allowed[0]
    return Chosen(
        place=place,
        situation=situation,
        calibration=calibration,
        rows=tuple(allowed),
        rules={name: None if each is None else found[each] for name, each in rules.items()},
        pick=pick,
        best=cheapest(allowed, within=_ALIKE) or pick,
        default=next((row for row in allowed if row.config == plain), None),
        present=next((row for row in allowed if row.config == present), None),
        limit_reasons=tuple(reasons),
    )


def _cases(
    run: Run,
    calibration: Calibration,
    chosen: Chosen,
    choose: Callable[[Place, Constraints], Chosen],
) -> Iterator[PredictedCase]:
    """The machine as shared now, where that is known, and dedicated."""
    shared = chosen.place.conditions.neighbours
    states = {"as shared now": shared, "dedicated": 0.0} if shared else {"dedicated": 0.0}
    for name, neighbours in states.items():
        found = chosen
        if neighbours != shared:
            conditions = dataclasses.replace(chosen.place.conditions, neighbours=neighbours)
            place = dataclasses.replace(chosen.place, conditions=conditions)
            found = choose(place, chosen.situation.constraints)
        mine = found.row_of(chosen.pick.config)
        if mine is None:
            asked = [chosen.pick.config]
            mine = predicted_rows(run, calibration, asked, found.place)[0]
        yield PredictedCase(
            name=name,
            neighbours=neighbours,
            expected=found.expected(mine),
            bound=describe(mine.prediction.bound),
            best=found.pick.config,
            best_samples_per_s=found.samples(found.pick),
        )


def _alternatives(chosen: Chosen) -> Iterator[Alternative]:
    """The present settings, the default, the fastest, and the best of half the workers."""
    half = chosen.pick.config.num_workers // 2
    fewer = [row for row in chosen.rows if 0 < row.config.num_workers <= half]
    related = (
        (chosen.present, "present"),
        (chosen.best, "fastest"),
        (max(fewer, key=lambda row: row.speed) if fewer else None, "slower"),
        (chosen.default, "default"),
    )
    seen = {chosen.pick.config}
    for row, relation in related:
        if row is None or row.config in seen:
            continue
        seen.add(row.config)
        yield Alternative(
            config=row.config,
            expected=chosen.expected(row),
            relation=relation,  # type: ignore[arg-type] # the literals above
            speed=row.speed / chosen.pick.speed,
        )


def _rule_configs(run: Run, calibration: Calibration, place: Place) -> dict[str, Config | None]:
    """What rules of thumb say for a machine; ``None`` where one says nothing."""
    found = workers_by_rule(place.machine, run.header.target, place.conditions.ranks)
    size = calibration.batch_size
    return {
        name: None if count is None else Config(num_workers=count, batch_size=size).canonical()
        for name, count in found.items()
    }


def _rules(chosen: Chosen) -> Iterator[RuleOfThumb]:
    """What rules of thumb would give there, each predicted."""
    for name, row in chosen.rules.items():
        if row is None:
            yield RuleOfThumb(name=name, config=Config(), unavailable=NO_GPU)
        else:
            rate = chosen.samples(row).value
            yield RuleOfThumb(
                name=name, config=row.config, expected_samples_per_s=rate, predicted=True
            )
