"""Measured rates judged in the light of predicted ones.

What was predicted joins the blocks of measurements (``dlprof.stats.blocks``) as one block more. Its
weight follows from how far apart repeats are: where they agree to a few per cent it is worth less
than one of them, and where a neighbour throws them about by 30 % it is worth a dozen. So noise does
not overturn a prediction, and a clear measurement does: what is surely contradicted is dropped.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from dlprof.records import SweepPrediction
from dlprof.stats.blocks import QUIET_LOG_SD, BlockFit, Observation, fit_blocks

_SURELY = 0.99
_CONTRADICTED = math.log(1.25)
"""A prediction that is further off than this is none to hold on to, if a measurement says so
surely."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Rates that were predicted before anything was measured.

    Attributes:
        log_rates: By ``Observation.key``; only how they differ from each other matters.
        log_sd: How far off one of them may be, as a standard deviation.
    """

    log_rates: Mapping[str, float]
    log_sd: float

    @classmethod
    def of(cls, prediction: SweepPrediction) -> Expected:
        """What a sweep's model foretold."""
        return cls(log_rates=prediction.log_rates, log_sd=prediction.log_sd)


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
    if expected is None or _contradicts(measured, expected):
        return measured
    believed = _as_block(expected, observations, measured)
    return fit_blocks([*observations, *believed]) if believed else measured


def is_contradicted(observations: Sequence[Observation], expected: Expected) -> bool:
    """Whether rates, compared with each other, are surely not what was predicted.

    Args:
        observations: What was measured; nothing contradicts nothing.
        expected: What was predicted.
    """
    return bool(observations) and _contradicts(fit_blocks(observations), expected)


def _contradicts(measured: BlockFit, expected: Expected) -> bool:
    known = [key for key in measured.log_rates if key in expected.log_rates]
    pairs = itertools.combinations(known, 2)
    return any(_surely_differ(measured, expected, *pair) for pair in pairs)


def _surely_differ(measured: BlockFit, expected: Expected, key: str, other: str) -> bool:
    """Whether the ratio of two is far from the predicted one, by more than luck on both sides."""
    ratio = measured.ratio(key, other, _SURELY)
    if not (ratio.low and ratio.high):
        return False
    predicted = expected.log_rates[key] - expected.log_rates[other]
    if abs(math.log(ratio.value) - predicted) <= _CONTRADICTED:
        return False
    doubt = 2 * math.sqrt(2) * expected.log_sd
    return math.log(ratio.low) - predicted > doubt or predicted - math.log(ratio.high) > doubt


def _as_block(
    expected: Expected, observations: Sequence[Observation], measured: BlockFit
) -> list[Observation]:
    """What is expected as one more block, on the level of what was measured."""
    log_rates = expected.log_rates
    one_of_each = {o.group or o.key: o for o in observations if o.key in log_rates}
    known = {o.key: o for o in one_of_each.values()}
    if len(known) < 2:
        return []  # one alone is compared with nothing
    off = sum(measured.log_rates[key] - log_rates[key] for key in known) / len(known)
    after = max(o.block for o in observations) + 1
    log_sd = QUIET_LOG_SD * expected.log_sd / math.sqrt(measured.residual.value)
    return [
        dataclasses.replace(o, block=after, log_rate=log_rates[key] + off, log_sd=log_sd)
        for key, o in known.items()
    ]
