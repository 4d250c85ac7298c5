"""What dlprof says of what was measured: recommendations, their reasons and limits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from dlprof import late
from dlprof.records.config import Config, Estimate
from dlprof.records.findings import Finding
from dlprof.records.record import record
from dlprof.records.trial import NumaMode

_Loader = TypeVar("_Loader")
Confidence = Literal["high", "medium", "low"]
Relation = Literal["present", "tie", "fastest", "default", "slower", "predicted"]

USELESS = 0.5
"""A certificate of no more than half of the best rate says nothing."""


@record(frozen=True, slots=True, kw_only=True)
class Reason:
    """One claim of a recommendation, with what proves it.

    Attributes:
        claim: One sentence.
        evidence: Ids of the trials, and the figures compared.
    """

    claim: str
    evidence: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@record(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a configuration should give; each figure is checked by measuring it again.

    Attributes:
        samples_per_s: Rate at the stated step, over whole epochs where their length is known.
        wait_fraction: Share of the time within epochs that the stated step waits for data: of all
            time ``wait_fraction * (1 - turnover_fraction)``.
        pss_bytes: Memory of the whole process tree.
        shm_bytes: Shared memory with full queues.
        startup_s: ``iter`` plus first ``next``.
        epoch_turnover_s: Last batch of an epoch to the first of the next.
        turnover_fraction: Share of all time that this takes, which the rate counts and
            ``wait_fraction`` does not; ``None`` where the epoch's length isn't known.
        gain_if: What must hold for a gain over fewer workers, of an iterable dataset of which no
            trial saw a whole epoch; empty where nothing must.
    """

    samples_per_s: Estimate
    wait_fraction: float | None = None
    pss_bytes: int | None = None
    shm_bytes: int | None = None
    startup_s: float | None = None
    epoch_turnover_s: float | None = None
    turnover_fraction: float | None = None
    gain_if: str = ""


@record(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another configuration worth knowing of.

    Attributes:
        config: Which.
        expected: What it gave.
        relation: ``present`` (what the target's own DataLoader is set to now), ``tie`` (as fast
            as the best within noise), ``fastest``, ``default`` (PyTorch's own), ``slower``,
            ``predicted`` (seems faster, and no trial shows it).
        speed: Rate relative to the recommended configuration.
    """

    config: Config
    expected: Expected
    relation: Relation
    speed: float


@record(frozen=True, slots=True, kw_only=True)
class ConfigRate:
    """The one rate that a run has for a configuration.

    Attributes:
        config: Which.
        samples_per_s: Its estimate, as in ``Expected``.
        ratio: Over that of the recommended configuration.
        measured: Whether trials show it under the conditions that are asked for; else it is
            predicted, or computed from trials under others.
        beyond: The limit that it does not keep, and what it needs instead; empty if it keeps all.
    """

    config: Config
    samples_per_s: Estimate
    ratio: Estimate
    measured: bool
    beyond: str = ""


@record(frozen=True, slots=True, kw_only=True)
class RuleOfThumb:
    """What a common rule would have given.

    Attributes:
        name: The rule, as people know it.
        config: What it says for this machine; where only others of as many workers were measured,
            the cheapest of these.
        expected_samples_per_s: What that gave when measured, or would give where it is predicted;
            ``None`` where it is neither.
        unavailable: Why ``expected_samples_per_s`` is ``None``; empty otherwise.
        predicted: Whether that rate is predicted rather than measured.
    """

    name: str
    config: Config
    expected_samples_per_s: float | None = None
    unavailable: str = ""
    predicted: bool = False


@record(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Limits that a recommendation must keep. ``None`` is no limit.

    Attributes:
        max_workers: Workers of one rank's loader.
        max_ram_bytes: Memory of all ranks' process trees together.
        max_shm_bytes: Shared memory of all ranks together.
        ranks: Training processes on the machine, each with a loader of its own.
        step_s: Length of the consumer's step that must be kept fed.
        machine: Name of the machine that the limits are taken from, where it is not the one
            that was measured.
        cores: Cores that all ranks may use together, where that is not all of the machine's.
        neighbours: Cores that other processes want, each for a thread that always computes.
        speed: Speed of a core relative to the machine that was measured, as the user gave it.
        nodes: Machines like that one, with ``ranks`` on each, that share the storage.
        step_spread: How steps differ, as ``--step-time`` takes it (``normal:50ms,5ms``), with
            ``step_s`` as their mean; ``None`` where all are alike.
    """

    max_workers: int | None = None
    max_ram_bytes: int | None = None
    max_shm_bytes: int | None = None
    ranks: int = 1
    step_s: float | None = None
    machine: str | None = None
    cores: float | None = None
    neighbours: float | None = None
    speed: float | None = None
    nodes: int = 1
    step_spread: str | None = None

    @property
    def asks_for_cores(self) -> bool:
        """Whether other cores are asked for than those of the machine, as they were shared."""
        return any(asked is not None for asked in (self.cores, self.neighbours, self.speed))


@record(frozen=True, slots=True, kw_only=True)
class PredictedCase:
    """What is predicted for a machine in one state.

    Attributes:
        name: ``dedicated`` (no other processes), or ``as shared now``.
        neighbours: Threads of other processes that compute all the time: the cores that they keep
            busy, and more by their run-queue delay.
        expected: What the recommended configuration would give.
        bound: What would limit that, in words.
        best: What would be recommended for this case alone.
        best_samples_per_s: What that would give.
    """

    name: str
    neighbours: float
    expected: Expected
    bound: str
    best: Config
    best_samples_per_s: Estimate


@record(frozen=True, slots=True, kw_only=True)
class LeastLoss:
    """The setting that loses least, with background load and without.

    Attributes:
        config: The cheapest of those that lose about as little.
        speeds: Its rate over that of the best, by the name of the ``PredictedCase``.
    """

    config: Config
    speeds: Mapping[str, float]


@record(frozen=True, slots=True, kw_only=True)
class ToMeasure:
    """What would make a predicted answer sure.

    Attributes:
        what: What to find out, one clause.
        command: How, on the machine in question.
    """

    what: str
    command: str


@record(frozen=True, slots=True, kw_only=True)
class Certificate:
    """How far from the best a recommendation may be, at most.

    Attributes:
        epsilon: The rate is at least ``1 - epsilon`` of that of the best of all configurations.
        epsilon_measured: The same of the best of those that were measured.
        probability: Probability with which each of them holds.
        configurations: How many were measured or predicted, within the limits.
        measured: How many of them were measured.
    """

    epsilon: float
    epsilon_measured: float
    probability: float
    configurations: int
    measured: int

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
    """What ``torchrun --numa-binding`` brings, which binds each rank to the CPUs of a NUMA node.

    Attributes:
        mode: As torchrun names it. ``node``, that of the rank's GPU, is what torch advises where
            in doubt, and the only one that is tried.
        gain: Rate of the ranks with it over that without, by trials that were interleaved; ``None``
            where these don't show it.
        pays: Whether it is recommended: it surely gains, and enough to be worth a word.
        trials: Ids of those trials.
        unavailable: Why ``gain`` is ``None``; empty otherwise.
    """

    mode: NumaMode = "node"
    gain: Estimate | None = None
    pays: bool = False
    trials: tuple[str, ...] = ()
    unavailable: str = ""

    @property
    def option(self) -> str:
        """It on torchrun's command line."""
        return f"--numa-binding={self.mode}"


@record(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Settings to use, and why.

    Attributes:
        config: The cheapest configuration that is likely within 3% of the best, within limits.
        dataloader_kwargs: What to pass to DataLoader.
        expected: What it should give.
        confidence: How sure it is, by the certificate and what no rate shows.
        confidence_reason: Why no surer, or what makes it sure; one sentence.
        certificate: How near the best it is; ``None`` where nothing comparable was measured, and in
            files of earlier versions.
        reasons: Why this and no other, with the trials that prove it.
        alternatives: Others worth knowing: the present settings first, the rest by speed.
        rates: The one rate of each configuration, as all views show it; fastest first. Empty in
            files of earlier versions.
        constraints: The limits that were kept.
        rules_of_thumb: What common rules would give.
        findings: Causes that the run's profile found, on the machine that was measured; empty for
            a sweep, and for another machine.
        extrapolated: Whether it is for a machine other than the one that was measured.
        basis: ``measured``, as the trials show it or as it is computed from them (``measured`` in
            ``rates``); ``predicted`` where the calibration's model answers what was not
            measured: another machine, other cores, ranks or steps.
        cases: The machine with and without background load: predicted, but for the state in which
            it was measured.
        least_loss: What loses least in both of them; ``None`` where there is only one.
        measure_there: What to measure on the machine in question to be sure.
        numa_binding: Whether its ranks are to be bound to NUMA nodes; ``None`` for one rank, one
            node, or other conditions than those that were measured.
    """

    config: Config
    dataloader_kwargs: Mapping[str, Any]
    expected: Expected
    confidence: Confidence
    confidence_reason: str
    certificate: Certificate | None = None
    reasons: tuple[Reason, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    rates: tuple[ConfigRate, ...] = ()
    constraints: Constraints = dataclasses.field(default_factory=Constraints)
    rules_of_thumb: tuple[RuleOfThumb, ...] = ()
    findings: tuple[Finding, ...] = ()
    extrapolated: bool = False
    basis: Literal["measured", "predicted"] = "measured"
    cases: tuple[PredictedCase, ...] = ()
    least_loss: LeastLoss | None = None
    measure_there: tuple[ToMeasure, ...] = ()
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

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return str(late.call("notebook_html", self))
