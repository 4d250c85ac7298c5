"""What dlprof says of what was measured: recommendations, their reasons and limits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from dlprof import late
from dlprof.late import Shown
from dlprof.records.config import Config, Estimate
from dlprof.records.findings import Finding
from dlprof.records.record import empty, record
from dlprof.records.trial import NumaMode

_Loader = TypeVar("_Loader")
Confidence = Literal["high", "medium", "low"]
Relation = Literal["present", "tie", "fastest", "default", "slower", "predicted"]

USELESS = 0.5  # a certificate of no more than half of the best rate says nothing


@record(frozen=True, slots=True, kw_only=True)
class Reason:
    """One claim of a recommendation, with what proves it."""

    claim: str  # one sentence
    evidence: Mapping[str, Any] = empty()  # ids of the trials, and the figures compared


@record(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a configuration should give; each figure is checked by measuring it again."""

    # Rate at the stated step, over whole epochs where their length is known; over ten of a dataset
    # that keeps samples.
    samples_per_s: Estimate
    # Share of the time within epochs that the stated step waits for data: of all time
    # ``wait_fraction * (1 - turnover_fraction)``.
    wait_fraction: float | None = None
    pss_bytes: int | None = None  # memory of the whole process tree
    shm_bytes: int | None = None  # shared memory with full queues
    startup_s: float | None = None  # ``iter`` plus first ``next``
    epoch_turnover_s: float | None = None  # last batch of an epoch to the first of the next
    # Share of all time that epochs' ends take, which the rate counts and ``wait_fraction`` does
    # not: restarts, and what some workers load alone. ``None`` where that isn't known.
    turnover_fraction: float | None = None
    # What must hold for a gain over fewer workers, of an iterable dataset of which no trial saw a
    # whole epoch, of one that keeps samples in memory, or of far more workers than were measured;
    # empty where nothing must.
    gain_if: str = ""


@record(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another configuration worth knowing of."""

    config: Config  # which
    expected: Expected  # what it gave
    # ``present`` (what the target's own DataLoader is set to now), ``tie`` (as fast as the best
    # within noise), ``fastest``, ``default`` (PyTorch's own), ``slower``, ``predicted`` (seems
    # faster, and no trial shows it).
    relation: Relation
    speed: float  # rate relative to the recommended configuration


@record(frozen=True, slots=True, kw_only=True)
class ConfigRate:
    """The one rate that a run has for a configuration."""

    config: Config  # which
    samples_per_s: Estimate  # its estimate, as in ``Expected``
    ratio: Estimate  # over that of the recommended configuration
    # Whether trials show it under the conditions that are asked for; else it is predicted, or
    # computed from trials under others.
    measured: bool
    # The limit that it does not keep, and what it needs instead; empty if it keeps all.
    beyond: str = ""


@record(frozen=True, slots=True, kw_only=True)
class RuleOfThumb:
    """What a common rule would have given."""

    name: str  # the rule, as people know it
    # What it says for this machine; where only others of as many workers were measured, the
    # cheapest of these.
    config: Config
    # What that gave when measured, or would give where it is predicted; ``None`` where it is
    # neither.
    expected_samples_per_s: float | None = None
    unavailable: str = ""  # why ``expected_samples_per_s`` is ``None``; empty otherwise
    predicted: bool = False  # whether that rate is predicted rather than measured


@record(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Limits that a recommendation must keep. ``None`` is no limit."""

    max_workers: int | None = None  # workers of one rank's loader
    max_ram_bytes: int | None = None  # memory of all ranks' process trees together
    max_shm_bytes: int | None = None  # shared memory of all ranks together
    ranks: int = 1  # training processes on the machine, each with a loader of its own
    step_s: float | None = None  # length of the consumer's step that must be kept fed
    # Name of the machine that the limits are taken from, where it is not the one that was measured.
    machine: str | None = None
    # Cores that all ranks may use together, where that is not all of the machine's.
    cores: float | None = None
    # Cores that other processes want, each for a thread that always computes.
    neighbours: float | None = None
    # Speed of a core relative to the machine that was measured, as the user gave it.
    speed: float | None = None
    nodes: int = 1  # machines like that one, with ``ranks`` on each, that share the storage
    # How steps differ, as ``--step-time`` takes it (``normal:50ms,5ms``), with ``step_s`` as their
    # mean; ``None`` where all are alike.
    step_spread: str | None = None

    @property
    def asks_for_cores(self) -> bool:
        """Whether other cores are asked for than those of the machine, as they were shared."""
        return any(asked is not None for asked in (self.cores, self.neighbours, self.speed))


@record(frozen=True, slots=True, kw_only=True)
class PredictedCase:
    """What is predicted for a machine in one state."""

    name: str  # ``dedicated`` (no other processes), or ``as shared now``
    # Threads of other processes that compute all the time: the cores that they keep busy, and more
    # by their run-queue delay.
    neighbours: float
    expected: Expected  # what the recommended configuration would give
    bound: str  # what would limit that, in words
    best: Config  # what would be recommended for this case alone
    best_samples_per_s: Estimate  # what that would give


@record(frozen=True, slots=True, kw_only=True)
class LeastLoss:
    """The setting that loses least, with background load and without."""

    # What is recommended, where it loses about as little; else the cheapest of those that do.
    config: Config
    # Its rate over that of the best, by the name of the ``PredictedCase``.
    speeds: Mapping[str, float]
    # What that is at least (95%), likewise; empty in files of earlier versions.
    at_least: Mapping[str, float] = empty()

    @property
    def is_useful(self) -> bool:
        """Whether half of the best rate is certain in each case: no other is worth a word."""
        return all(self.at_least.get(name, 0.0) >= USELESS for name in self.speeds)


@record(frozen=True, slots=True, kw_only=True)
class ToMeasure:
    """What would make a predicted answer sure."""

    what: str  # what to find out, one clause
    command: str  # how, on the machine in question


@record(frozen=True, slots=True, kw_only=True)
class Certificate:
    """How far from the best a recommendation may be, at most."""

    epsilon: float  # the rate is at least ``1 - epsilon`` of that of the best of all configurations
    epsilon_measured: float  # the same of the best of those that were measured
    probability: float  # probability with which each of them holds
    configurations: int  # how many were measured or predicted, within the limits
    measured: int  # how many of them were measured

    @property
    def shown(self) -> float:
        """The one that is shown: over all, unless predictions are too wide to say anything.

        That of one alone says nothing: it is the best of itself.
        """
        alone = self.measured < 2
        return self.epsilon if alone or self.epsilon <= USELESS else self.epsilon_measured

    @property
    def loss(self) -> float | None:
        """That, where it says something: by which share any of them is faster at most."""
        return None if self.shown > USELESS else self.shown

    @property
    def text(self) -> str:
        """It in words: ``within 4% of the best of 75 settings (95%), 6 measured``."""
        return self.text_of("")

    def text_of(self, which: str) -> str:
        """The same, where all are some that were chosen: ``… best of the 4 settings asked for``."""
        if self.loss is None:
            return "too little was measured to say how near the best it is"
        sure = f"({self.probability:.0%})"
        near = f"within {max(1, math.ceil(100 * self.shown))}% of the best"
        if which and self.epsilon <= USELESS:
            return f"{near} of the {self.configurations} settings {which} {sure}"
        if self.epsilon > USELESS or self.measured == self.configurations:
            rest = "; the others are too uncertain" if self.epsilon > USELESS else ""
            return f"{near} of the {self.measured} measured settings {sure}{rest}"
        some = f", {self.measured} measured" if self.measured else ""
        return f"{near} of {self.configurations} settings {sure}{some}"


@record(frozen=True, slots=True, kw_only=True)
class NumaBinding:
    """What ``torchrun --numa-binding`` brings, which binds each rank to the CPUs of a NUMA node."""

    # As torchrun names it. ``node``, that of the rank's GPU, is what torch advises where in doubt,
    # and the only one that is tried.
    mode: NumaMode = "node"
    # Rate of the ranks with it over that without, by trials that were interleaved; ``None`` where
    # these don't show it.
    gain: Estimate | None = None
    pays: bool = False  # whether it is recommended: it surely gains, and enough to be worth a word
    trials: tuple[str, ...] = ()  # ids of those trials
    unavailable: str = ""  # why ``gain`` is ``None``; empty otherwise

    @property
    def option(self) -> str:
        """It on torchrun's command line."""
        return f"--numa-binding={self.mode}"


@record(frozen=True, slots=True, kw_only=True)
class Recommendation(Shown):
    """Settings to use, and why."""

    config: Config  # the cheapest configuration that is likely within 3% of the best, within limits
    dataloader_kwargs: Mapping[str, Any]  # what to pass to DataLoader
    expected: Expected  # what it should give
    confidence: Confidence  # how sure it is, by the certificate and what no rate shows
    confidence_reason: str  # why no surer, or what makes it sure; one sentence
    # How near the best it is; ``None`` where nothing comparable was measured, and in files of
    # earlier versions.
    certificate: Certificate | None = None
    reasons: tuple[Reason, ...] = ()  # why this and no other, with the trials that prove it
    # Others worth knowing: the present settings first, the rest by speed.
    alternatives: tuple[Alternative, ...] = ()
    # The one rate of each configuration, as all views show it; fastest first. Empty in files of
    # earlier versions.
    rates: tuple[ConfigRate, ...] = ()
    # The limits that were kept.
    constraints: Constraints = dataclasses.field(default_factory=Constraints)
    rules_of_thumb: tuple[RuleOfThumb, ...] = ()  # what common rules would give
    # Causes that the run's profile found, on the machine that was measured, of a sweep only that
    # memory grows; empty for another machine.
    findings: tuple[Finding, ...] = ()
    extrapolated: bool = False  # whether it is for a machine other than the one that was measured
    # ``measured``, as the trials show it or as it is computed from them (``measured`` in
    # ``rates``); ``predicted`` where the calibration's model answers what was not measured: another
    # machine, other cores, ranks or steps.
    basis: Literal["measured", "predicted"] = "measured"
    # The machine with and without background load: predicted, but for the state in which it was
    # measured.
    cases: tuple[PredictedCase, ...] = ()
    # What loses least in both of them; ``None`` where there is only one.
    least_loss: LeastLoss | None = None
    # What to measure on the machine in question to be sure.
    measure_there: tuple[ToMeasure, ...] = ()
    # Whether its ranks are to be bound to NUMA nodes; ``None`` for one rank, one node, or other
    # conditions than those that were measured.
    numa_binding: NumaBinding | None = None

    @property
    def in_trials(self) -> bool:
        """Whether trials show what is asked for; else they, or the model, answer for it.

        A recommendation of an earlier version has no rates.
        """
        rates = {each.config: each.measured for each in self.rates}
        return self.basis == "measured" and rates.get(self.config, True)

    def apply(self, loader: _Loader) -> _Loader:
        """A loader like this one, with the recommended settings.

        Everything else is as the loader has it: dataset, sampler, ``collate_fn``,
        ``worker_init_fn``, generator. ``sharing_strategy`` and ``worker_threads``, which are no
        arguments of a DataLoader, are set in its workers too.

        Args:
            loader: A DataLoader, or a loader around one, such as ``webdataset.WebLoader``. Or what
                makes its loader by itself: a Trainer of Hugging Face or its TrainingArguments, a
                LightningDataModule. It stays as it is, but for a Trainer, which can't be copied.

        Returns:
            A new object of the same class; a Trainer itself.

        Raises:
            UsageError: ``loader`` is no DataLoader, or a setting can't be changed on it.
            TargetError: The loader's class refuses to be made again.
        """
        applied: _Loader = late.call("apply", self.config, loader)
        return applied
