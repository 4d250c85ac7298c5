"""Which settings to use, from a saved run alone: one situation, one belief, one choice.

And each configuration of a run with the figures that this rests on, so that no view shows others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dlprof.advise import candidates
from dlprof.advise.choice import (
    Candidate,
    Choice,
    broken_limit,
    candidates_of,
    decide,
    gain_if,
    gather,
    may_fail,
    perhaps_faster,
    product,
    speeds_of,
)
from dlprof.advise.reasons import certainty_of, certify, explain, nearness, slow_to_begin
from dlprof.advise.scaling import numa_binding
from dlprof.advise.situation import Situation
from dlprof.advise.thresholds import PAYS, STORAGE_WAITS
from dlprof.advise.wording import failed_or_skipped
from dlprof.advise.wrong_data import data_findings, present_failure
from dlprof.errors import DlprofError, UsageError
from dlprof.records import (
    Alternative,
    Config,
    ConfigRate,
    Constraints,
    Estimate,
    Expected,
    Finding,
    Integrity,
    LeastLoss,
    Machine,
    PredictedCase,
    Reason,
    Recommendation,
    RuleOfThumb,
    Run,
)
from dlprof.records.advice import Relation, ToMeasure
from dlprof.records.record import record
from dlprof.stats.belief import NEAR
from dlprof.units import format_duration

if TYPE_CHECKING:  # most answers need no predictions
    from dlprof.advise.forecast import Accelerators


def recommend(
    run: Run, constraints: Constraints | None = None, *, machine: Machine | None = None
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
    situation = Situation.of(run, constraints, machine)
    if (kept := kept_answer(situation)) is not None:
        return kept
    choice, limit_reasons = decide(situation)
    measured = choice.pick.measured
    by_load = (
        bool(run.header.settings.get("make_load"))
        and situation.is_calibrated
        and choice.pick.config.batch_size == situation.calibration.batch_size
    )
    cases, least_loss = _cases(choice) if by_load or not measured else ((), None)
    found = run.findings
    if not found and run.trials:
        from dlprof.advise.findings.diagnosis import shown_in  # which needs the model

        found = tuple(_over_pick(shown_in(run), choice))
    found = () if situation.extrapolated else found
    wrong = data_findings(run)
    others = [each for each in found if each.code not in {one.code for one in wrong}]
    certificate, faster = certify(choice), tuple(_perhaps_faster(choice))
    confidence, reason = certainty_of(choice, certificate, faster=bool(faster))
    if measured and certificate is not None:
        choice = dataclasses.replace(choice, loss=certificate.loss)
    return Recommendation(
        config=choice.pick.config,
        dataloader_kwargs=choice.pick.config.dataloader_kwargs(),
        expected=expected_of(choice, choice.pick),
        confidence=confidence,
        confidence_reason=reason + slow_to_begin(run),
        certificate=certificate,
        reasons=(*present_failure(run), *explain(choice, limit_reasons, cases)),
        alternatives=(*_alternatives(choice), *faster),
        rates=_rates(choice, limit_reasons),
        constraints=situation.constraints,
        rules_of_thumb=tuple(rules_of_thumb(choice)),
        findings=(*wrong, *others),
        extrapolated=situation.extrapolated,
        basis="measured" if measured else "predicted",
        cases=cases,
        least_loss=least_loss,
        measure_there=() if measured and situation.as_measured else tuple(_checks(choice)),
        numa_binding=numa_binding(run, choice.pick.config) if situation.as_measured else None,
    )


def kept_answer(situation: Situation) -> Recommendation | None:
    """What its run keeps as the answer to a question, if it does."""
    kept = situation.run.recommendation if situation.as_measured else None
    same = kept is not None and kept.rates and kept.constraints == situation.constraints
    return kept if same else None


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
        gain_if=gain_if(choice.situation.run, candidate.config),
    )


def _rates(choice: Choice, limits: Sequence[Reason]) -> tuple[ConfigRate, ...]:
    run, as_measured = choice.situation.run, choice.situation.as_measured
    speeds, pick, beyond = choice.speeds, choice.pick.key, dict[str, str]()
    for reason in limits:
        beyond |= reason.evidence.get("beyond", {})
    cells = run.prediction.cells if run.prediction is not None else ()
    # What failed has no rate, whatever was predicted of it before.
    works = (each for each in cells if not (as_measured and may_fail(run, each.config)))
    known = {cell.config: False for cell in works}
    known |= {trial.config: as_measured for trial in run.completed}
    known |= {each.config: each.measured and as_measured for each in choice.allowed}
    # Without trials, only what the model was asked for.
    keys = speeds.claimed or speeds.belief.log_rates
    rated = [config for config in known if config.key in keys]
    return tuple(
        ConfigRate(
            config=config,
            samples_per_s=speeds.rate(config.key),
            ratio=speeds.ratio(config.key, pick),
            measured=known[config],
            # What nobody thought of choosing breaks a limit on workers, too.
            beyond=beyond.get(config.key)
            or broken_limit(Candidate(config=config, name=""), choice.situation),
        )
        for config in sorted(rated, key=lambda each: speeds.log_speed(each.key), reverse=True)
    )


def _alternatives(choice: Choice) -> list[Alternative]:
    """The present settings, then ties, fastest, default and the best of fewer workers by speed."""
    pick, speeds = choice.pick, choice.speeds
    fewer = [each for each in choice.allowed if each.config.num_workers < pick.config.num_workers]
    rival = speeds.fastest(fewer) if fewer else pick
    ratio = speeds.ratio(rival.key, pick.key)
    # By more than noise: what may be as fast is said to be, beside its rate.
    slower = ratio.value < NEAR and ratio.ends[1] < 1
    related: dict[Relation, Sequence[Candidate | None]] = {  # the most important first
        "present": [choice.present],
        "default": [choice.default],
        "fastest": [choice.best],
        "tie": [each for each in choice.ties if each.measured],
        "slower": [rival] if slower else [],
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


def _over_pick(found: Sequence[Finding], choice: Choice) -> Iterator[Finding]:
    """What was found; of page faults without workers, where that beats what was chosen."""
    alone, wait = choice.default, choice.speeds.wait_fraction(choice.pick)
    for each in found:
        gain = each.predicted_gain
        if each.code != "memory.faults" or gain is None:
            yield each
        elif alone is not None:
            gain = product(choice.speeds.ratio(alone.key, choice.pick.key), gain)
            # With a step, what waits for none is as fast as can be.
            if gain.value >= PAYS and (wait is None or PAYS * (1 - wait) <= 1):
                yield dataclasses.replace(each, predicted_gain=gain)


def _perhaps_faster(choice: Choice) -> Iterator[Alternative]:
    """What to measure next: as ``predict`` says it, of all that it predicts."""
    situation, pick, first = choice.situation, choice.pick, choice.situation.run.advised
    known = pick.measured or pick.config == first
    if not (known and situation.as_measured and situation.is_calibrated):
        return
    kept = dataclasses.replace(pick.config, persistent_workers=True)
    with contextlib.suppress(DlprofError):  # nothing can be predicted
        wanted = candidates.wanted_configs(situation, {})
        # These go first: where one of them is the answer, no other need be predicted.
        ahead = [each for each in wanted if each in (kept, first) and each != pick.config]
        for some in filter(None, (ahead, wanted)):
            found, speeds = candidates_of(
                situation, some if pick.measured else {*some, pick.config}
            )
            better = perhaps_faster(pick, found, speeds, situation)
            if better is not None:
                yield Alternative(
                    config=better.config,
                    expected=expected_of(dataclasses.replace(choice, speeds=speeds), better),
                    relation="predicted",
                    speed=speeds.ratio(better.key, pick.key).value,
                )
                return


def _cases(choice: Choice) -> tuple[tuple[PredictedCase, ...], LeastLoss | None]:
    """The machine as shared now, where that is known, and dedicated; and what loses least in both.

    Under a load of dlprof's own as many cores are busy as that keeps threads running.
    """
    from dlprof.model.bounds import describe

    situation = choice.situation
    load = situation.run.header.settings.get("make_load")
    made = load.get("cores") if situation.as_measured and isinstance(load, dict) else None
    shared = float(made or 0.0) or situation.neighbours
    states = {"as shared now": shared, "dedicated": 0.0} if shared else {"dedicated": 0.0}
    cases, speeds, choices = [], dict[str, dict[Config, float]](), dict[str, Choice]()
    for name, others in states.items():
        found, mine = choice, choice.pick
        if others != shared:
            where = situation.supposing(neighbours=others)
            size, mine_too = mine.config.batch_size, {each.config for each in choice.allowed}
            among = {each for each in mine_too if each.batch_size == size}
            found, _ = decide(where, among={*candidates.candidate_configs(where), *among})
            mine = found.of(mine.config) or found.pick
        bound = ""
        if mine.prediction is not None:
            bound = describe(mine.prediction.bound, situation.main_work)
        choices[name], best = found, found.speeds.log_speed(found.best.key)
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
    pick = choice.pick.config  # no other is worth a word where this loses about as little
    config = pick if pick in near else min(near, key=lambda each: each.cost_key)
    kept = {name: min(1.0, each[config]) for name, each in speeds.items()}
    at_least = dict[str, float]()
    for name, found in choices.items():
        own = next(each for each in found.allowed if each.config == config)
        certificate = nearness(dataclasses.replace(found, pick=own))
        lost = 0.0 if certificate is None else certificate.epsilon
        at_least[name] = min(kept[name], 1 - lost)
    return tuple(cases), LeastLoss(config=config, speeds=kept, at_least=at_least)


def _checks(choice: Choice) -> Iterator[ToMeasure]:
    """What to find out, the most important first."""
    from dlprof.model.bounds import cell_of

    situation, run, pick = choice.situation, choice.situation.run, choice.pick
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
    if situation.is_calibrated:
        means = cell_of(situation.calibration, pick.config, situation.conditions).work.means
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
    config, own = pick if pick.num_workers else candidates.base_config(run), present or Config()
    words = []
    for name in ("batch_size", *candidates.OWN):  # what a command would otherwise choose itself
        value = getattr(config, name)
        if value is not None and value != getattr(own, name):
            given = ("on" if value else "off") if isinstance(value, bool) else value
            words.append(f" --{name.replace('_', '-')} {given}")
    shuffle = run.header.settings.get("shuffle")
    if isinstance(shuffle, bool):
        words.append(" --shuffle" if shuffle else " --no-shuffle")
    return "".join(words)


def rules_of_thumb(choice: Choice) -> Iterator[RuleOfThumb]:
    """What each rule says for the machine, with the rate that is believed of it.

    Rules speak of ``num_workers`` only: where it was not measured with everything else at
    PyTorch's defaults, the cheapest configuration of as many workers stands for it.
    """
    situation, speeds = choice.situation, choice.speeds
    by_model, found, seen = situation.by_model, Integrity.of(situation.run), gather(situation.run)
    for name, config in candidates.rule_configs(situation).items():
        fault = None if config is None else found.fault(config)
        if config is None or fault is not None:
            why = fault.message if fault else "this machine has no GPU, so the rule says nothing"
            yield RuleOfThumb(name=name, config=config or Config(), unavailable=why)
            continue
        same = [each for each in seen if each.config.num_workers == config.num_workers]
        measured = [each.config for each in same if each.trials and not by_model]
        known = sorted(measured, key=lambda each: each != config)
        if config.key in speeds.belief.log_rates and (by_model or not same):
            known.append(config)
        failed = ((t, t.failure.message) for each in same for t in each.failures if t.failure)
        whys = [f"{failed_or_skipped(trial)}: {message}" for trial, message in failed]
        why = f"num_workers={config.num_workers} {[*whys, 'was not measured'][0]}"
        yield RuleOfThumb(
            name=name,
            config=known[0] if known else config,
            expected_samples_per_s=speeds.rate(known[0].key).value if known else None,
            predicted=bool(known) and not measured,
            unavailable="" if known else why,
        )


def with_recommendation(run: Run) -> Run:
    """The run with a recommendation, as ``dlprof recommend`` gives it where the sweep keeps none.

    One of an earlier version, without rates, was made by other rules.
    """
    if run.diagnosis is not None:
        return run
    try:
        found = recommend(run, candidates.stored_limits(run.header.settings))
        return dataclasses.replace(run, recommendation=found)
    except DlprofError:  # nothing measured, or nothing within the limits: there is none
        return run


def asked_accelerators(run: Run, advice: Recommendation | None = None) -> Accelerators | str | None:
    """What a sweep was asked of utilization, or why that isn't known.

    ``None`` where it wasn't asked, or ``advice`` is for other conditions than the sweep's.
    """
    if run.header.settings.get("au") is None:
        return None
    from dlprof.advise.forecast import accelerators_of

    if advice is not None:
        there, own = Situation.of(run, advice.constraints), Situation.of(run).constraints.step_s
        without = own is not None and advice.constraints.step_s is None
        if advice.extrapolated or without or not there.as_measured:
            return None
    try:
        return accelerators_of(run)
    except DlprofError as error:
        return error.message


PICK = "recommended"
PRESENT = "yours"
TIE = "tie"
FASTEST = "fastest"
DEFAULT = "default"
FAILED = "failed"


@record(frozen=True, slots=True, kw_only=True)
class ConfigSummary:
    """One configuration over all its trials."""

    seen: Candidate  # what was seen of it
    # ``recommended``, ``yours`` (what the target is set to now), ``tie``, ``fastest``, ``default``
    # (PyTorch's own), ``failed`` or empty.
    role: str
    # The one rate that the run has for it, over whole epochs where their length is known; ``None``
    # without figures.
    rate: Estimate | None = None
    # The same as a model predicted it before anything was measured.
    predicted: Estimate | None = None
    # That rate over that of the pick (of the fastest, where nothing is recommended).
    relative: Estimate | None = None
    wait_fraction: float | None = None  # mean share of time waiting for data at the stated step

    @property
    def config(self) -> Config:
        """Which."""
        return self.seen.config


def summarize(run: Run, advice: Recommendation | None = None) -> tuple[ConfigSummary, ...]:
    """One for each configuration, fastest first, those without figures last."""
    advice = advice or run.recommendation
    candidates = gather(run)
    failed = tuple(
        ConfigSummary(seen=Candidate(config=each.config, name=each.name), role=FAILED)
        for each in candidates
        if not (each.trials or any(trial.outcome == "skipped" for trial in each.failures))
    )
    measured = [each for each in candidates if each.trials]
    if not measured:
        return failed
    situation = Situation.of(run)
    # What the trials gave, where the recommendation is for what they don't show.
    with contextlib.suppress(UsageError):
        asked = Situation.of(run, advice.constraints if advice else None)
        situation = situation if asked.by_model else asked
    speeds = speeds_of(situation)
    fastest = speeds.fastest(measured)
    pick = next((each for each in measured if advice and each.config == advice.config), None)
    roles = {} if situation.present is None else {situation.present: PRESENT}
    if advice is None:
        roles = {fastest.config: FASTEST} | roles
    else:
        related = {other.config: other.relation for other in advice.alternatives}
        known = {config: role for config, role in related.items() if role != "slower"}
        roles = known | roles | {advice.config: PICK}
    predicted = {
        cell.config: cell.samples_per_s
        if cell.epoch_samples_per_s is None
        else cell.samples_per_s.times(cell.epoch_samples_per_s / cell.samples_per_s.value)
        for cell in (run.prediction.cells if run.prediction is not None else ())
    }
    rows = (
        ConfigSummary(
            seen=each,
            role=roles.get(each.config, ""),
            rate=speeds.rate(each.key),
            predicted=predicted.get(each.config),
            relative=speeds.ratio(each.key, (pick or fastest).key),
            wait_fraction=speeds.wait_fraction(each),
        )
        for each in sorted(measured, key=lambda each: speeds.log_speed(each.key), reverse=True)
    )
    return (*rows, *failed)
