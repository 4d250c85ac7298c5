"""Rules of thumb that people set ``num_workers`` by, and what they would have given."""

from __future__ import annotations

from dlprof.advise.candidates import gather
from dlprof.advise.choice import Choice
from dlprof.advise.reasons import failed_or_skipped
from dlprof.advise.situation import Situation
from dlprof.records import Config, Integrity, Machine, RuleOfThumb, Run, Target

_YOLO_MOST = 8
_NO_GPU = "this machine has no GPU, so the rule says nothing"


def rules_of_thumb(run: Run, choice: Choice) -> tuple[RuleOfThumb, ...]:
    """What each rule says for the machine, with the rate that is believed of it.

    Rules speak of ``num_workers`` only: where it was not measured with everything else at
    PyTorch's defaults, the cheapest configuration of as many workers stands for it.

    Args:
        run: What was measured.
        choice: Where, and what all configurations are worth there.
    """
    said = rule_configs(run, choice.situation)
    return tuple(_rule(name, config, run, choice) for name, config in said.items())


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
    yolo = [cores // ranks, _YOLO_MOST]
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


def _rule(name: str, config: Config | None, run: Run, choice: Choice) -> RuleOfThumb:
    if config is None:
        return RuleOfThumb(name=name, config=Config(), unavailable=_NO_GPU)
    fault = Integrity.of(run).fault(config)
    if fault is not None:
        return RuleOfThumb(name=name, config=config, unavailable=fault.message)
    by_model, speeds, workers = choice.situation.by_model, choice.speeds, config.num_workers
    same = [each for each in gather(run) if each.config.num_workers == workers]
    with_rate = sorted((each for each in same if each.trials), key=lambda c: c.config != config)
    known = None if by_model or not with_rate else with_rate[0].key
    if known is None and config.key in speeds.epochs and (by_model or not same):
        known = config.key
    if known is not None:
        return RuleOfThumb(
            name=name,
            config=config,
            expected_samples_per_s=speeds.rate(known).value,
            predicted=by_model or not with_rate,
        )
    unavailable = f"num_workers={workers} was not measured"
    first = next((trial for each in same for trial in each.failures if trial.failure), None)
    if first is not None and first.failure is not None:
        unavailable = f"num_workers={workers} {failed_or_skipped(first)}: {first.failure.message}"
    return RuleOfThumb(name=name, config=config, unavailable=unavailable)
