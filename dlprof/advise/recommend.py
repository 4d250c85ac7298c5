"""Which settings to use, from a saved run alone: one situation, one belief, one choice."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

from dlprof.advise.candidates import (
    OWN,
    Candidate,
    base_config,
    beyond_text,
    breach,
    candidate_configs,
    gather,
    stored_limits,
    wanted_configs,
    within_limits,
)
from dlprof.advise.choice import (
    Choice,
    certify,
    choose,
    is_better,
    judge,
    perhaps_faster,
    unmeasured,
)
from dlprof.advise.reasons import (
    CAVEATS,
    as_predicted,
    assumed,
    conditions,
    explain,
    failed_or_skipped,
    failures,
    levers,
    neighbours,
    unchecked,
)
from dlprof.advise.scaling import numa_binding
from dlprof.advise.situation import Situation, is_calibrated, usable_calibration
from dlprof.advise.speeds import candidates_of, predictions, speeds_of
from dlprof.advise.thresholds import PAYS, STORAGE_WAITS
from dlprof.advise.wrong_data import data_findings, present_failure
from dlprof.errors import DlprofError, NothingMeasuredError, UsageError
from dlprof.records import (
    DATA_FAULTS,
    Alternative,
    Config,
    ConfigRate,
    Constraints,
    Expected,
    Integrity,
    LeastLoss,
    Machine,
    PredictedCase,
    Reason,
    Recommendation,
    RuleOfThumb,
    Run,
    Target,
    ToMeasure,
)
from dlprof.stats import NEAR
from dlprof.units import format_duration

_Relation = Literal["present", "tie", "fastest", "default", "slower", "predicted"]


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

    Where the run keeps the answer to that question, it is that one: a later version may estimate
    otherwise, and one run has one figure everywhere.

    Rates are compared over whole epochs where their length is known, so that the worth of
    ``persistent_workers`` follows from it. With a step time, those that keep the step fed come
    first, and the cheapest of them is enough.

    Raises:
        NothingMeasuredError: If no trial has a rate.
        UsageError: If no configuration keeps within the limits, or only a calibration could
            answer and there is none.
    """
    situation = Situation.of(run, constraints, machine, ghz=ghz)
    if (kept := kept_answer(run, situation)) is not None:
        return kept
    choice, limit_reasons = decide(run, situation)
    measured = choice.pick.measured
    load = run.header.settings.get("make_load")
    calibrated = usable_calibration(run) if load and is_calibrated(run) else None
    by_load = calibrated is not None and choice.pick.config.batch_size == calibrated.batch_size
    cases, least_loss = _cases(run, choice) if by_load or not measured else ((), None)
    wrong, found = data_findings(run), () if situation.extrapolated else run.findings
    others = [each for each in found if each.code not in {one.code for one in wrong}]
    certificate = certify(choice, run)
    confidence, confidence_reason = judge(choice, run, certificate)
    if measured and certificate is not None:
        choice = dataclasses.replace(choice, loss=certificate.loss)
    return Recommendation(
        config=choice.pick.config,
        dataloader_kwargs=choice.pick.config.dataloader_kwargs(),
        expected=expected_of(choice, choice.pick),
        confidence=confidence,
        confidence_reason=confidence_reason,
        certificate=certificate,
        reasons=(*present_failure(run), *_reasons(run, choice, limit_reasons, cases)),
        alternatives=(*_alternatives(choice), *_perhaps_faster(run, choice)),
        rates=_rates(run, choice, limit_reasons),
        constraints=situation.constraints,
        rules_of_thumb=tuple(rules_of_thumb(run, choice)),
        findings=(*wrong, *others),
        extrapolated=situation.extrapolated,
        basis="measured" if measured else "predicted",
        cases=cases,
        least_loss=least_loss,
        measure_there=() if measured and situation.as_measured else tuple(_checks(run, choice)),
        numa_binding=numa_binding(run, choice.pick.config) if situation.as_measured else None,
    )


def kept_answer(run: Run, situation: Situation) -> Recommendation | None:
    """What a run keeps as the answer to a question, if it does."""
    kept = run.recommendation if situation.as_measured else None
    same = kept is not None and kept.rates and kept.constraints == situation.constraints
    return kept if same else None


def decide(
    run: Run, situation: Situation, *, among: Collection[Config] | None = None
) -> tuple[Choice, list[Reason]]:
    """What to choose in a situation, and what limits left out of it.

    ``among`` names what to choose from, which a calibration has to predict.

    Raises:
        NothingMeasuredError: Nothing was measured, and no calibration answers.
        UsageError: No configuration keeps within the limits.
    """
    known = [each for each in gather(run) if among is None or each.config in among]
    measured = [candidate for candidate in known if candidate.trials]
    others = unmeasured(situation, run, among)
    if situation.by_model or (among is not None and not measured):
        return _among_all(run, situation, others or among or ())
    if not measured:
        # No time was left for plain trials; where they were tried in vain, that is the answer.
        tried = any(t.purpose == "measure" and t.outcome != "skipped" for t in run.trials)
        cells = [] if tried or not is_calibrated(run) else others
        if not cells and not situation.constraints.asks_for_cores:
            raise _nothing_measured(run)
        return _among_all(run, situation, cells)
    # A configuration that failed once may fail again: only where nothing else is left.
    steady = [candidate for candidate in measured if not candidate.failures] or measured
    # Nor more workers than get data, which change nothing but what they take.
    most = Integrity.of(run).fed or 0
    kept = [c for c in steady if c.config == situation.present or c.config.num_workers <= most]
    if any(0 < candidate.config.num_workers <= most for candidate in kept):
        steady = kept
    try:
        allowed, limit_reasons = within_limits(steady, situation)
    except UsageError:  # what was only predicted may keep them
        if not (situation.as_measured and is_calibrated(run)):
            raise
        return _among_all(run, situation, among or ())
    asked = others if among is not None else ()
    speeds = candidates_of(run, situation, asked)[1] if asked else speeds_of(run, situation)
    choice = choose(allowed, situation, speeds)
    better = [each for each in others if is_better(choice, each.key)]
    if not better or not is_calibrated(run):
        return choice, limit_reasons

    found, speeds = candidates_of(run, situation, {*better, *asked})
    try:
        within, more_reasons = within_limits([c for c in found if c.config in better], situation)
    except UsageError:  # none of them keeps the limits, as what was measured does
        return choice, limit_reasons
    both = sorted([*allowed, *within], key=lambda each: each.config.cost_key)
    claim = (
        f"{choice.pick.name} is the best measured configuration, and likely slower than one "
        "that was not measured"
    )
    left = Reason(claim=claim, evidence={"trials": choice.pick.trial_ids})
    return choose(both, situation, speeds), [left, *limit_reasons, *more_reasons]


def _among_all(
    run: Run, situation: Situation, cells: Collection[Config]
) -> tuple[Choice, list[Reason]]:
    """The choice among all that is worth predicting, or among some configurations."""
    wanted = {*(cells or candidate_configs(run, situation))}
    by_rules = [each for each in rule_configs(run, situation).values() if each is not None]
    # At once, so that what they have in common is computed once.
    found, speeds = candidates_of(run, situation, {*wanted, *by_rules})
    allowed, limit_reasons = within_limits([c for c in found if c.config in wanted], situation)
    return choose(allowed, situation, speeds), limit_reasons


def _reasons(
    run: Run, choice: Choice, limits: Sequence[Reason], cases: Sequence[PredictedCase]
) -> Iterator[Reason]:
    pick, measured = choice.pick, choice.pick.measured
    yield from conditions(choice) if measured else ()
    yield from explain(choice)
    if measured:
        yield from levers(run, pick.config)
        yield from as_predicted(run, choice)
    else:
        yield from _unordered(run, choice)
        yield from assumed(choice, cases)
    yield from unchecked(run, pick.config)
    yield from neighbours(run) if measured else ()
    yield from limits
    yield from failures(gather(run)) if measured else ()


def expected_of(choice: Choice, candidate: Candidate) -> Expected:
    """What a configuration should give."""
    log = choice.speeds.epochs[candidate.key].value
    return Expected(
        samples_per_s=choice.speeds.rate(candidate.key),
        wait_fraction=choice.speeds.wait_fraction(candidate),
        pss_bytes=candidate.pss_bytes,
        shm_bytes=candidate.shm_bytes,
        startup_s=candidate.startup_s,
        epoch_turnover_s=candidate.epoch_turnover_s,
        turnover_fraction=-math.expm1(log) if log < 0 else None,
    )


def _rates(run: Run, choice: Choice, limits: Sequence[Reason]) -> tuple[ConfigRate, ...]:
    speeds, pick, beyond = choice.speeds, choice.pick.key, dict[str, str]()
    for reason in limits:
        beyond |= reason.evidence.get("beyond", {})
    as_measured = choice.situation.as_measured
    known = {trial.config: as_measured for trial in run.completed}
    known |= {each.config: each.measured and as_measured for each in choice.allowed}
    cells = run.prediction.cells if run.prediction is not None else ()
    known = {cell.config: False for cell in cells} | known
    keys = speeds.claimed or speeds.epochs  # without trials, only what the model was asked for
    rated = {config: measured for config, measured in known.items() if config.key in keys}
    for config in rated:  # what nobody thought of choosing breaks a limit on workers, too
        broken = breach(Candidate(config=config, name=""), choice.situation)
        if broken is not None:
            beyond.setdefault(config.key, beyond_text(*broken))
    return tuple(
        ConfigRate(
            config=config,
            samples_per_s=speeds.rate(config.key),
            ratio=speeds.ratio(config.key, pick),
            measured=rated[config],
            beyond=beyond.get(config.key, ""),
        )
        for config in sorted(rated, key=lambda each: speeds.log_speed(each.key), reverse=True)
    )


def _alternatives(choice: Choice) -> list[Alternative]:
    """The present settings, then ties, fastest, default and the best of fewer workers by speed."""
    pick, speeds = choice.pick, choice.speeds
    fewer = [each for each in choice.allowed if each.config.num_workers < pick.config.num_workers]
    rivals = [speeds.fastest(fewer)] if fewer else []
    related: dict[_Relation, Sequence[Candidate | None]] = {  # the most important first
        "present": [choice.present],
        "default": [choice.default],
        "fastest": [choice.best],
        "tie": [each for each in choice.ties if each.measured],
        "slower": [each for each in rivals if speeds.ratio(each.key, pick.key).value < NEAR],
    }
    found: dict[str, Alternative] = {}
    for relation, several in related.items():
        for each in several:
            if each is not None and each is not pick and each.key not in found:
                found[each.key] = Alternative(
                    config=each.config,
                    expected=expected_of(choice, each),
                    relation=relation,
                    speed=speeds.ratio(each.key, pick.key).value,
                )
    return sorted(
        found.values(), key=lambda a: (a.relation != "present", -a.speed, a.config.cost_key)
    )


def _perhaps_faster(run: Run, choice: Choice) -> Iterator[Alternative]:
    """What to measure next: as ``predict`` says it, of all that it predicts."""
    situation, pick = choice.situation, choice.pick
    if not (pick.measured and situation.as_measured and is_calibrated(run)):
        return
    with contextlib.suppress(DlprofError):  # nothing can be predicted
        found, speeds = candidates_of(run, situation, wanted_configs(run, situation, {}))
        better = perhaps_faster(pick, found, speeds, situation)
        if better is not None:
            yield Alternative(
                config=better.config,
                expected=expected_of(dataclasses.replace(choice, speeds=speeds), better),
                relation="predicted",
                speed=speeds.ratio(better.key, pick.key).value,
            )


def _cases(run: Run, choice: Choice) -> tuple[tuple[PredictedCase, ...], LeastLoss | None]:
    """The machine as shared now, where that is known, and dedicated; and what loses least in both.

    Under a load of dlprof's own as many cores are busy as that keeps threads running.
    """
    from dlprof.model import describe

    load = run.header.settings.get("make_load")
    made = load.get("cores") if choice.situation.as_measured and isinstance(load, dict) else None
    shared = float(made or 0.0) or choice.situation.neighbours
    states = {"as shared now": shared, "dedicated": 0.0} if shared else {"dedicated": 0.0}
    cases, speeds = [], dict[str, dict[Config, float]]()
    for name, others in states.items():
        found, mine = choice, choice.pick
        if others != shared:
            where = choice.situation.supposing(neighbours=others)
            size, mine_too = mine.config.batch_size, {each.config for each in choice.allowed}
            among = {each for each in mine_too if each.batch_size == size}
            found, _ = decide(run, where, among={*candidate_configs(run, where), *among})
            mine = found.of(mine.config) or found.pick
        bound = "" if mine.prediction is None else describe(mine.prediction.bound)
        best = found.speeds.log_speed(found.best.key)
        speeds[name] = {
            each.config: math.exp(found.speeds.log_speed(each.key) - best) for each in found.allowed
        }
        cases.append(
            PredictedCase(
                name=name,
                neighbours=others,
                expected=expected_of(found, mine),
                bound=bound,
                best=found.pick.config,
                best_samples_per_s=found.speeds.rate(found.pick.key),
            )
        )
    worst = {
        config: min(each[config] for each in speeds.values())
        for config in speeds[cases[0].name]
        if all(config in each for each in speeds.values())
    }
    near = [config for config, speed in worst.items() if speed >= NEAR * max(worst.values())]
    if len(cases) < 2 or not near:
        return tuple(cases), None
    config = min(near, key=lambda each: each.cost_key)
    kept = {name: min(1.0, each[config]) for name, each in speeds.items()}
    return tuple(cases), LeastLoss(config=config, speeds=kept)


def _unordered(run: Run, choice: Choice) -> Iterator[Reason]:
    """What yielding batches as they come would earn, and cost, where it is worth a sentence."""
    config = choice.pick.config
    if config.num_workers < 2 or not config.in_order:
        return

    other = dataclasses.replace(config, in_order=False)
    found = predictions(run, choice.situation, [config, other])
    gain = found[other].batches_per_s.value / found[config].batches_per_s.value
    if gain >= PAYS:
        claim = f"in_order=False would be {gain:.2f}x as fast, {CAVEATS['in_order']}"
        yield Reason(claim=claim, evidence={"gain": gain})


def _checks(run: Run, choice: Choice) -> Iterator[ToMeasure]:
    """What to find out, the most important first."""
    from dlprof.model import cell_of

    situation, pick = choice.situation, choice.pick
    given, kept = run.header.settings.get("arguments"), _kept(run, pick.config, situation.present)
    pairs = given.items() if isinstance(given, dict) else ()
    words = [f"--arg {shlex.quote(f'{name}={value}')}" for name, value in pairs]
    target = " ".join([shlex.quote(run.header.target.spec), *words])
    limits, workers = situation.constraints, pick.config.num_workers
    values = {0, workers // 2, workers, max(2, math.ceil(1.5 * workers))}
    if situation.extrapolated and pick.measured:  # which no model looked further than
        cores = max(1, math.floor(situation.cores / limits.ranks))
        doubled = (max(2, workers) << n for n in range(1, cores.bit_length()))
        values |= {*(count for count in doubled if count < cores), cores}
    most = max(values) if limits.max_workers is None else limits.max_workers
    counts = ",".join(map(str, sorted(value for value in values if value <= most)))
    command = f"dlprof sweep {target} --num-workers {counts}"
    command += f" --prefetch-factor {pick.config.prefetch_factor}" if workers else ""
    if limits.step_s is not None:
        command += f" --step-time {limits.step_spread or f'{limits.step_s * 1000:g}ms'}"
    command += f" --launch-ranks {limits.ranks}" if limits.ranks > 1 else ""
    where = " there" if situation.extrapolated else ""
    yield ToMeasure(what=f"whether {pick.name} is the best{where}", command=f"{command}{kept}")
    if not situation.extrapolated:
        return
    yield ToMeasure(
        what="what a batch costs on its cores: dlprof recommend predicts from the new run file",
        command=f"dlprof profile {target} --num-workers 2{kept}",
    )
    blocked_s = 0.0
    if is_calibrated(run):
        means = cell_of(usable_calibration(run), pick.config, situation.conditions).work.means
        blocked_s = means.io if means.io > STORAGE_WAITS * (means.cpu + means.io) else 0.0
    if blocked_s > 0:
        yield ToMeasure(
            what=f"whether a batch is blocked for {format_duration(blocked_s)} on its storage, "
            "as here",
            command=f"dlprof profile {target} --num-workers 2{kept} --cold-cache",
        )
    yield ToMeasure(
        what="how many cores other processes keep busy: give that with --assume-background",
        command="dlprof machine",
    )


def _kept(run: Run, pick: Config, present: Config | None) -> str:
    """The other settings that were predicted with, as options: without them others are measured.

    Nothing for those that are the target's own anyway.
    """
    config, own = pick if pick.num_workers else base_config(run), present or Config()
    words = []
    for name in ("batch_size", *OWN):  # what a command would otherwise choose itself
        value = getattr(config, name)
        if value is not None and value != getattr(own, name):
            given = ("on" if value else "off") if isinstance(value, bool) else value
            words.append(f" --{name.replace('_', '-')} {given}")
    shuffle = run.header.settings.get("shuffle")
    if isinstance(shuffle, bool):
        words.append(" --shuffle" if shuffle else " --no-shuffle")
    return "".join(words)


def _nothing_measured(run: Run) -> NothingMeasuredError:
    failed = [(trial, trial.failure) for trial in run.trials if trial.failure is not None]
    wrong = next((failure for _, failure in failed if failure.kind in DATA_FAULTS), None)
    said, hint = "The run holds no trials", f"Go on with it: {run.resume_command}"
    if not run.trials and run.end is not None and run.end.reason == "budget":
        said, hint = "The budget ended before the first trial", "Give more: --budget 1m."
    if run.is_script:
        said = "This is a script's run: it shows why loading is slow, and compares no settings"
        hint = "See it with dlprof report, or sweep the script's dataset with dlprof sweep TARGET."
    if wrong is not None and len(failed) == len(run.trials):
        said = f"No settings give the right data, so there are none to recommend: {wrong.message}"
        return NothingMeasuredError(said, hint=wrong.hint)
    if any(trial.batches_per_s is not None for trial in run.completed):
        said = "The samples in this target's batches can't be counted, so no rates can be compared"
        hint = "Have it yield tensors, or lists with one entry for each sample."
    elif not failed and any(trial.purpose == "explain" for trial in run.trials):
        also = ", or give this run file to dlprof predict" if is_calibrated(run) else ""
        said = "The run holds only traced trials, whose rates are not compared"
        hint = f"Go on with it{also}: {run.resume_command}"
    elif run.trials:
        count = len(run.trials)
        said = "The run's only trial gave no rate"
        if count > 1:
            said = f"None of the run's {count} trials gave a rate"
        if not failed:
            return NothingMeasuredError(said, hint="Give the sweep more time with --budget.")
        first, failure = failed[0]
        one = "the first" if count > 1 else "it"
        return NothingMeasuredError(
            f"{said}; {one} {failed_or_skipped(first)}: {failure.message}",
            hint=failure.hint,
            failures=[(each.kind, each.message) for _, each in failed],
        )
    return NothingMeasuredError(said, hint=hint)


_NO_GPU = "this machine has no GPU, so the rule says nothing"


def rules_of_thumb(run: Run, choice: Choice) -> Iterator[RuleOfThumb]:
    """What each rule says for the machine, with the rate that is believed of it.

    Rules speak of ``num_workers`` only: where it was not measured with everything else at
    PyTorch's defaults, the cheapest configuration of as many workers stands for it.
    """
    by_model, speeds, found = choice.situation.by_model, choice.speeds, Integrity.of(run)
    seen = gather(run)
    for name, config in rule_configs(run, choice.situation).items():
        fault = None if config is None else found.fault(config)
        if config is None or fault is not None:
            why = _NO_GPU if fault is None else fault.message
            yield RuleOfThumb(name=name, config=config or Config(), unavailable=why)
            continue
        same = [each for each in seen if each.config.num_workers == config.num_workers]
        measured = [each for each in same if each.trials and not by_model]
        known = [each.key for each in sorted(measured, key=lambda each: each.config != config)]
        if config.key in speeds.epochs and (by_model or not same):
            known.append(config.key)
        failed = [t for each in same for t in each.failures if t.failure is not None and not known]
        why = "" if known else f"num_workers={config.num_workers} was not measured"
        for trial, failure in [(trial, trial.failure) for trial in failed[:1]]:
            what = failed_or_skipped(trial)
            why = f"num_workers={config.num_workers} {what}: {failure.message if failure else ''}"
        yield RuleOfThumb(
            name=name,
            config=config,
            expected_samples_per_s=speeds.rate(known[0]).value if known else None,
            predicted=bool(known) and not measured,
            unavailable=why,
        )


def rule_configs(run: Run, situation: Situation) -> dict[str, Config | None]:
    """The configuration that each rule names; ``None`` where it says nothing.

    At the batch size of the calibration where that is predicted from, else at the target's own.
    """
    said = workers_by_rule(situation.machine, run.header.target, situation.constraints.ranks)
    size = situation.batch_size if situation.by_model else None
    return {
        name: None if count is None else Config(num_workers=count, batch_size=size).canonical()
        for name, count in said.items()
    }


def workers_by_rule(machine: Machine, target: Target, ranks: int) -> dict[str, int | None]:
    """``num_workers`` by each rule; ``None`` where a rule says nothing."""
    cores, affinity, gpus = machine.logical_cpus, machine.affinity_cpus, len(machine.gpus)
    yolo = [cores // ranks, 8]
    if target.batch_size is not None:
        yolo.append(target.batch_size if target.batch_size > 1 else 0)
    return {
        "PyTorch's default": 0,
        "num_workers = cores": cores,
        "4 x GPUs": 4 * gpus if gpus else None,
        "Lightning: max(1, cores // ranks - 1)": max(1, affinity // ranks - 1),
        "YOLOv5: min(cores // ranks, batch, 8)": min(yolo),
        "torch's suggested maximum": affinity,
    }


def with_recommendation(run: Run) -> Run:
    """The run with a recommendation, as ``dlprof recommend`` gives it where the sweep keeps none.

    One of an earlier version, without rates, was made by other rules.
    """
    if run.diagnosis is not None:
        return run
    try:
        found = recommend(run, stored_limits(run.header.settings))
        return dataclasses.replace(run, recommendation=found)
    except DlprofError:  # nothing measured, or nothing within the limits: there is none
        return run
