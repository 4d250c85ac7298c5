"""What a sweep sets out to measure, what it leaves out, and what that is expected to cost."""

from __future__ import annotations

from typing import Literal

from dlprof.records.config import Config
from dlprof.records.record import record


@record(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Settings that the sweep did not measure, and why.

    Attributes:
        setting: Which, such as ``pin_memory=True`` or ``num_workers=64``.
        reason: Why, one sentence.
    """

    setting: str
    reason: str


@record(frozen=True, slots=True, kw_only=True)
class TrialCost:
    """What a trial is expected to cost, from what the probe saw of the target.

    Attributes:
        overhead_s: Whatever the batches cost: the process, its workers, sending figures back.
        batch_s: One batch, loaded alone.
        batch_cpu_s: CPU time of one batch.
        usable_cores: Cores that all workers share.
    """

    overhead_s: float
    batch_s: float = 0.0
    batch_cpu_s: float = 0.0
    usable_cores: float = 1.0

    def of(self, config: Config, trial_s: float) -> float:
        """Seconds for one trial of a configuration with a window of ``trial_s``.

        A round is the time in which each worker loads a batch. The window has three rounds, or
        as many as three times its length allows, one at least. Beside it, a trial spends two
        rounds without workers (start and epoch restart) and four with them (warm-up, and what
        the workers have in hand at the end).
        """
        round_s = max(self.batch_s, self.batch_cpu_s * config.num_workers / self.usable_cores)
        window_s = max(trial_s, min(3 * round_s, max(3 * trial_s, round_s)))
        return self.overhead_s + window_s + (4 if config.num_workers else 2) * round_s


@record(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a sweep sets out to measure; kept in the run file, so that a resumed sweep goes on.

    Attributes:
        configs: To be measured, in their stable order.
        trial_s: Length of a trial's measured window.
        min_repeats: Blocks before the search may call itself decided.
        max_repeats: Blocks after which it is complete.
        planned_repeats: Blocks that it is likely to take.
        take_turns: Whether, after the first block, configurations of the same steady rate (those
            that differ only in ``persistent_workers``) are measured in turn rather than all in
            each block.
        cost: What trials are expected to cost.
        present: Which of them the target's own DataLoader is set to now; the most important one.
        search: ``grid`` measures all of them; ``model`` calibrates, predicts ``cells``, and
            measures the few that may be the best.
        calibration: What ``model`` calibrates by, in its order.
        cells: What ``model`` predicts.
    """

    configs: tuple[Config, ...]
    trial_s: float
    min_repeats: int
    max_repeats: int
    planned_repeats: int
    take_turns: bool
    cost: TrialCost
    present: Config | None = None
    search: Literal["grid", "model"] = "grid"
    calibration: tuple[Config, ...] = ()
    cells: tuple[Config, ...] = ()
