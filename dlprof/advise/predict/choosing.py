"""What the model chose, and from what."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from dlprof.advise.effective import Situation
from dlprof.advise.predict.forecast import Row
from dlprof.advise.predict.question import Place
from dlprof.records import Calibration, Config, Estimate, Expected, Reason


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A choice among predictions.

    Attributes:
        place: Where the settings are wanted.
        situation: The same, with the limits.
        calibration: What is predicted from.
        rows: All that keep the limits, cheapest first.
        rules: What rules of thumb say, by their names; ``None`` where one says nothing.
        pick: The cheapest within 3 % of the best, over whole epochs where their length is known.
        best: The fastest.
        default: PyTorch's own, if it keeps the limits.
        present: What the target's own DataLoader is set to now, likewise.
        limit_reasons: What limits left out.
    """

    place: Place
    situation: Situation
    calibration: Calibration
    rows: tuple[Row, ...]
    rules: Mapping[str, Row | None]
    pick: Row
    best: Row
    default: Row | None
    present: Row | None
    limit_reasons: tuple[Reason, ...]

    @property
    def anew(self) -> Row | None:
        """The pick with workers that each epoch starts anew; ``None`` where its own are that."""
        config = self.pick.config
        other = dataclasses.replace(config, persistent_workers=False)
        return self.row_of(other) if config.persistent_workers else None

    def row_of(self, config: Config) -> Row | None:
        """The prediction of a configuration, if it keeps the limits."""
        return next((row for row in self.rows if row.config == config), None)

    def samples(self, row: Row) -> Estimate:
        """Samples per second of one rank; batches where nobody knows how many samples they have."""
        if row.prediction.samples_per_s is not None:
            return row.prediction.samples_per_s
        return row.prediction.batches_per_s

    def expected(self, row: Row) -> Expected:
        """What a configuration would give."""
        found = row.prediction
        return Expected(
            samples_per_s=self.samples(row),
            wait_fraction=found.wait_fraction,
            pss_bytes=row.pss_bytes,
            shm_bytes=row.shm_bytes,
            startup_s=found.startup_s,
            epoch_turnover_s=found.turnover_s,
        )
