"""Rules of thumb that people set ``num_workers`` by, and what they would have given."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from dlprof.advise.candidates import Candidate
from dlprof.advise.reasons import failed_or_skipped
from dlprof.advise.speeds import Speeds
from dlprof.records import Config, Integrity, Machine, RuleOfThumb, Target

_YOLO_MOST = 8

NO_GPU = "this machine has no GPU, so the rule says nothing"


def rules_of_thumb(
    machine: Machine,
    target: Target,
    ranks: int,
    measured: Sequence[Candidate],
    speeds: Speeds,
) -> tuple[RuleOfThumb, ...]:
    """What each rule says for the machine, with the rate where that was measured.

    Rules speak of ``num_workers`` only: where it was not measured with everything else at
    PyTorch's defaults, the cheapest configuration of as many workers stands for it.

    Args:
        machine: Which the rules are applied to.
        target: For the batch size that one of the rules looks at.
        ranks: Training processes on the machine.
        measured: All configurations of the run, cheapest first.
        speeds: Their rates, and those of what was only predicted.
    """
    tried = {each.config.num_workers for each in measured}
    return tuple(
        _predicted(_rule(name, workers, measured, speeds), tried, speeds)
        for name, workers in workers_by_rule(machine, target, ranks).items()
    )


def _predicted(rule: RuleOfThumb, tried: Collection[int], speeds: Speeds) -> RuleOfThumb:
    """A rule that was not tried, with what is believed of it; one that failed stays that."""
    key = rule.config.key
    if rule.config.num_workers in tried or key not in speeds.epochs or rule.unavailable == NO_GPU:
        return rule
    rate = speeds.rate(key).value
    return dataclasses.replace(rule, expected_samples_per_s=rate, unavailable="", predicted=True)


def without_wrong(rules: Iterable[RuleOfThumb], found: Integrity) -> tuple[RuleOfThumb, ...]:
    """The rules, those that name settings of wrong data without a rate."""
    return tuple(
        rule
        if (fault := found.fault(rule.config)) is None
        else dataclasses.replace(
            rule, expected_samples_per_s=None, unavailable=fault.message, predicted=False
        )
        for rule in rules
    )


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
        "torch's suggested most": affinity,
    }


def _rule(
    name: str, workers: int | None, measured: Sequence[Candidate], speeds: Speeds
) -> RuleOfThumb:
    if workers is None:
        return RuleOfThumb(name=name, config=Config(), unavailable=NO_GPU)
    config = Config(num_workers=workers).canonical()
    same = [each for each in measured if each.config.num_workers == workers]
    with_rate = sorted((each for each in same if each.trials), key=lambda c: c.config != config)
    if with_rate:
        rate = speeds.rate(with_rate[0].key).value
        return RuleOfThumb(name=name, config=config, expected_samples_per_s=rate)
    unavailable = f"num_workers={workers} was not measured"
    first = next((trial for each in same for trial in each.failures if trial.failure), None)
    if first is not None and first.failure is not None:
        unavailable = f"num_workers={workers} {failed_or_skipped(first)}: {first.failure.message}"
    return RuleOfThumb(name=name, config=config, unavailable=unavailable)
