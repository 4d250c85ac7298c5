"""Measured rates judged in the light of predicted ones.

What was predicted joins the blocks of measurements (``dlprof.stats.blocks``) as one block more. Its
weight follows from how far apart repeats are: where they agree to a few per cent it is worth less
than one of them, and where a neighbour throws them about by 30 % it is worth a dozen. So noise does
not overturn a prediction, and a clear measurement does: what is surely contradicted is dropped. So
is what was predicted of one configuration where every block belies it, however noisy they are.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from dlprof.records import Estimate, SweepPrediction
from dlprof.stats.blocks import QUIET_LOG_SD, BlockFit, Observation, fit_blocks

_SURELY = 0.99
_CONTRADICTED = math.log(1.25)
"""A prediction that is further off than this is none to hold on to, if a measurement says so
surely."""

_BELIED = math.log(2.0)
"""A prediction that every block misses by more, and in the wrong order, is none to choose by: with
two blocks of noisy trials (``NOISY_LOG_SD``), luck alone does that to a right one in 1 of 400."""

_LEAST_BELYING = 2
"""Blocks that it takes: one alone may have met a neighbour."""

_LEAST_LOG_SD, _MOST_LOG_SD = 0.01, 3.0
"""No model is surer than this, and none says less, whatever a file claims."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Rates that were predicted before anything was measured.

    Attributes:
        log_rates: Steady ones by ``Observation.key``; only how they differ from each other matters.
        log_sd: How far off one of them may be, as a standard deviation.
        epoch_log_rates: Over whole epochs, for observations that cover such; the steady ones
            where they are not known.
        apart: Keys whose rates rest on figures of their own (loading without workers): if they
            turn out wrong, that says nothing of the others.
    """

    log_rates: Mapping[str, float]
    log_sd: float
    epoch_log_rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    apart: frozenset[str] = frozenset()

    @classmethod
    def of(cls, prediction: SweepPrediction) -> Expected:
        """What a sweep's model foretold."""
        return cls(
            log_rates=prediction.log_rates,
            log_sd=min(max(prediction.log_sd, _LEAST_LOG_SD), _MOST_LOG_SD),
            epoch_log_rates=prediction.epoch_log_rates,
            apart=frozenset(c.config.key for c in prediction.cells if not c.config.num_workers),
        )

    def of_observed(self, observations: Sequence[Observation]) -> dict[str, float]:
        """What was expected of those that were observed, by key."""
        found = {}
        for o in observations:
            over = self.epoch_log_rates if o.whole_epochs else self.log_rates
            if o.key in self.log_rates:
                found[o.key] = over.get(o.key, self.log_rates[o.key])
        return found


def fit_expecting(observations: Sequence[Observation], expected: Expected | None) -> BlockFit:
    """The comparison of configurations by what was measured and what was predicted.

    Args:
        observations: What was measured.
        expected: What was predicted, if anything was; of keys that were not observed it tells
            nothing.

    Raises:
        ValueError: If there is no observation.
    """
    measured = fit_blocks(observations)
    if expected is None:
        return measured
    log_rates = _upheld(measured, expected.of_observed(observations), expected)
    wrong = _belied(measured, log_rates)
    log_rates = {key: rate for key, rate in log_rates.items() if key not in wrong}
    believed = _as_block(log_rates, expected.log_sd, observations, measured)
    return fit_blocks([*observations, *believed]) if believed else measured


def is_contradicted(observations: Sequence[Observation], expected: Expected) -> bool:
    """Whether rates, compared with each other, are surely not what was predicted.

    Args:
        observations: What was measured; nothing contradicts nothing.
        expected: What was predicted.
    """
    if not observations:
        return False
    log_rates = _joined(expected.of_observed(observations), expected)
    return _contradicts(fit_blocks(observations), log_rates, expected.log_sd)


def belied(observations: Sequence[Observation], expected: Expected) -> frozenset[str]:
    """Keys of which the prediction does not count, while that of others does.

    Args:
        observations: What was measured; nothing belies nothing.
        expected: What was predicted.
    """
    if not observations:
        return frozenset()
    measured, log_rates = fit_blocks(observations), expected.of_observed(observations)
    if not _belied(measured, log_rates):
        return frozenset()  # and none of fewer: what is upheld takes long to tell
    return _belied(measured, _upheld(measured, log_rates, expected))


def _belied(measured: BlockFit, log_rates: Mapping[str, float]) -> frozenset[str]:
    """What was predicted to be as fast as another, and was far slower in every block."""
    pairs = itertools.permutations(log_rates, 2)
    return frozenset(
        one
        for one, two in pairs
        if log_rates[one] >= log_rates[two]
        and _fell_short(measured, one, two, log_rates[one] - log_rates[two])
    )


def _fell_short(measured: BlockFit, one: str, two: str, predicted: float) -> bool:
    """Whether every block has one below another, by far more than was predicted."""
    ours, theirs = measured.cells[one], measured.cells[two]
    gaps = [ours[block][1] - theirs[block][1] for block in ours.keys() & theirs.keys()]
    limit = min(0.0, predicted - _BELIED)
    return len(gaps) >= _LEAST_BELYING and max(gaps) < limit


def _upheld(
    measured: BlockFit, log_rates: Mapping[str, float], expected: Expected
) -> Mapping[str, float]:
    """What of the predictions is not surely wrong: all, those that stand together, or none."""
    for some in (log_rates, _joined(log_rates, expected)):
        if not _contradicts(measured, some, expected.log_sd):
            return some
    return {}


def _joined(log_rates: Mapping[str, float], expected: Expected) -> dict[str, float]:
    """Predictions that rest on the same figures; all, where those are too few to compare."""
    joined = {key: rate for key, rate in log_rates.items() if key not in expected.apart}
    return joined if len(joined) > 1 else dict(log_rates)


def _contradicts(measured: BlockFit, log_rates: Mapping[str, float], log_sd: float) -> bool:
    doubt = 2 * math.sqrt(2) * log_sd  # two standard errors of a difference
    pairs = itertools.combinations(log_rates, 2)
    return any(
        _surely_differs(measured.ratio(one, two, _SURELY), log_rates[one] - log_rates[two], doubt)
        for one, two in pairs
    )


def _surely_differs(ratio: Estimate, predicted: float, doubt: float) -> bool:
    """Whether a ratio is far from the predicted one, by more than luck on both sides."""
    if not (ratio.low and ratio.high):
        return False
    if abs(math.log(ratio.value) - predicted) <= _CONTRADICTED:
        return False
    return math.log(ratio.low) - predicted > doubt or predicted - math.log(ratio.high) > doubt


def _as_block(
    log_rates: Mapping[str, float],
    log_sd: float,
    observations: Sequence[Observation],
    measured: BlockFit,
) -> list[Observation]:
    """What is expected as one more block, on the level of what was measured."""
    one_of_each = {o.group or o.key: o for o in observations if o.key in log_rates}
    known = {o.key: o for o in one_of_each.values()}
    if len(known) < 2:
        return []  # one alone is compared with nothing
    off = sum(measured.log_rates[key] - log_rates[key] for key in known) / len(known)
    after = max(o.block for o in observations) + 1
    relative_sd = QUIET_LOG_SD * log_sd / math.sqrt(measured.residual.value)
    return [
        dataclasses.replace(o, block=after, log_rate=log_rates[key] + off, log_sd=relative_sd)
        for key, o in known.items()
    ]
