"""From yield times to rates."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.records import Config, Usage
from dlprof.trial.measure import (
    Epoch,
    Stretch,
    blocks_of_rounds,
    is_rising,
    steady_rounds,
    throughput,
)
from dlprof.trial.state import disturbances


def bursts(workers: int, rounds: int, round_s: float = 1.0) -> list[float]:
    """Times of an in-order loader: W batches at once, every ``round_s``."""
    return [round_s * (number // workers + 1) for number in range(workers * rounds)]


def test_warm_up_is_what_was_primed_and_a_round() -> None:
    assert Config(num_workers=4, prefetch_factor=2).warm_up_batches == 12
    assert Config().warm_up_batches == 0


def test_the_end_of_an_epoch_is_left_out() -> None:
    config = Config(num_workers=2, prefetch_factor=2)
    times = bursts(2, 20)
    whole = Epoch(began_s=0.0, yields_s=times, warm_up=6, whole=True)
    cut = Epoch(began_s=0.0, yields_s=times, warm_up=6)

    assert len(steady_rounds(cut, config)) == (40 - 1 - 6) // 2
    assert len(steady_rounds(whole, config)) == (40 - 1 - 6 - 4 - 1) // 2


@given(
    workers=st.integers(1, 16),
    prefetch=st.integers(1, 8),
    rounds=st.integers(30, 80),
    round_s=st.floats(1e-4, 10.0),
)
def test_perfect_bursts_have_an_exact_rate(
    workers: int, prefetch: int, rounds: int, round_s: float
) -> None:
    config = Config(num_workers=workers, prefetch_factor=prefetch)
    epoch = Epoch(
        began_s=0.0,
        yields_s=bursts(workers, rounds, round_s),
        warm_up=config.warm_up_batches,
    )
    found = throughput([epoch], config, enough_s=0.0)

    assert found is not None
    assert found.batches_per_s.value == pytest.approx(workers / round_s)


@given(count=st.integers(0, 2000), workers=st.integers(0, 16), prefetch=st.integers(1, 8))
def test_blocks_are_equal_few_and_never_empty(count: int, workers: int, prefetch: int) -> None:
    config = Config(num_workers=workers, prefetch_factor=prefetch).canonical()
    rounds = [Stretch(seconds=1.0, batches=2, samples=6)] * count
    blocks = blocks_of_rounds(rounds, config)

    assert len(blocks) <= 20
    assert len({block.batches for block in blocks}) <= 1
    assert all(block.samples == 3 * block.batches for block in blocks)
    assert all(block.seconds == pytest.approx(block.batches / 2) for block in blocks)
    assert bool(blocks) == bool(count)


def test_the_interval_covers_the_truth() -> None:
    config = Config(num_workers=4, prefetch_factor=2)
    covered = 0
    for seed in range(300):
        draw = random.Random(seed)
        now, times = 0.0, []
        for _ in range(120):
            now += max(draw.gauss(1.0, 0.2) for _ in range(4))
            times += [now] * 4
        mean_s = 1.0 + 0.2 * 1.02938  # mean of the largest of four normal draws
        epoch = Epoch(began_s=0.0, yields_s=times, warm_up=12)
        found = throughput([epoch], config, enough_s=0.0)
        assert found is not None
        rate = found.batches_per_s
        assert rate.low is not None
        assert rate.high is not None
        covered += rate.low <= 4 / mean_s <= rate.high
    assert 0.92 <= covered / 300 <= 0.98


def test_one_round_has_a_rate_and_no_interval() -> None:
    config = Config(num_workers=2, prefetch_factor=1)
    epoch = Epoch(began_s=0.0, yields_s=bursts(2, 4), warm_up=4)
    found = throughput([epoch], config, enough_s=0.0)

    assert found is not None
    assert found.batches_per_s.value == pytest.approx(2.0)
    assert found.batches_per_s.low is None


def test_what_varies_too_much_for_an_upper_end_has_one_as_far_as_errors_count() -> None:
    """Else the most uncertain trials of all would count as known to 30 %, and not be marked."""
    gaps = [1.0] * 30 + [16.0] * 10 + [1.0] * 30 + [37.0] * 10
    times = [0.0, *itertools.accumulate(gaps)]
    found = throughput([Epoch(began_s=0.0, yields_s=times)], Config(), enough_s=0.0)
    assert found is not None
    rate = found.batches_per_s
    assert rate.low is not None
    assert rate.high == pytest.approx(4 * rate.value)
    assert rate.log_sd is not None
    assert rate.log_sd > 0.5
    assert found.spread is not None
    assert disturbances(Usage(), found.spread, usable_cores=2.0)


def test_even_batches_have_no_spread_and_two_blocks_show_none() -> None:
    even = Epoch(began_s=0.0, yields_s=[float(moment) for moment in range(50)])
    found = throughput([even], Config(), enough_s=0.0)
    assert found is not None
    assert found.spread == pytest.approx(0.0)
    short = Epoch(began_s=0.0, yields_s=[0.0, 1.0, 4.0])
    found = throughput([short], Config(), enough_s=0.0)
    assert found is not None
    assert found.spread is None


def test_too_few_batches_say_nothing() -> None:
    epoch = Epoch(began_s=0.0, yields_s=[1.0], warm_up=0)

    assert throughput([epoch], Config(), enough_s=0.0) is None


def test_whole_epochs_leave_out_the_first() -> None:
    """The first epoch pays for what is paid once a training."""
    epochs = [
        Epoch(began_s=0.0, yields_s=[5.0, 5.1], warm_up=4, whole=True),
        Epoch(began_s=6.0, yields_s=[6.4, 6.5], warm_up=4, whole=True),
        Epoch(began_s=7.0, yields_s=[7.4, 7.5], warm_up=4, whole=True),
        Epoch(began_s=8.0, yields_s=[8.4], warm_up=4),
    ]
    config = Config(num_workers=2, prefetch_factor=1)
    found = throughput(epochs, config, enough_s=1.0)

    assert found is not None
    assert found.whole_epochs
    assert found.batches_per_s.value == pytest.approx(4 / 2.0)


def test_starting_is_no_part_of_the_only_epoch_that_was_seen_whole() -> None:
    """Workers that persist start once, and import what their dataset needs once."""
    epochs = [
        Epoch(began_s=0.0, yields_s=[5.0, 5.1, 5.2], warm_up=4, whole=True, samples=[8, 8, 3]),
        Epoch(began_s=5.3, yields_s=[5.5], warm_up=4, samples=[8]),
    ]
    config = Config(num_workers=2, prefetch_factor=1, persistent_workers=True)
    found = throughput(epochs, config, enough_s=1.0)

    assert found is not None
    assert found.whole_epochs
    assert found.batches_per_s.value == pytest.approx(3 / 0.5)
    assert found.samples_per_s is not None
    assert found.samples_per_s.value == pytest.approx(19 / 0.5)


def test_samples_are_counted_batch_by_batch_where_sizes_vary() -> None:
    """Nine batches of 32 and one of 12 at a time, each taking as long as it is large."""
    sizes = ([32] * 9 + [12]) * 30
    times = list(itertools.accumulate(0.001 * size for size in sizes))
    epoch = Epoch(began_s=0.0, yields_s=times, samples=sizes)
    found = throughput([epoch], Config(), enough_s=0.0)

    assert found is not None
    assert found.samples_per_s is not None
    assert found.samples_per_s.value == pytest.approx(1000.0)
    assert found.window_samples == sum(sizes[1:])  # the time of the first is not known
    assert found.spread == pytest.approx(0.0, abs=1e-9)


def test_batches_of_one_size_have_the_same_rate_either_way() -> None:
    draw = random.Random(1)
    times = list(itertools.accumulate(draw.uniform(0.5, 1.5) for _ in range(200)))
    found = throughput(
        [Epoch(began_s=0.0, yields_s=times, samples=[8] * 200)], Config(), enough_s=0.0
    )

    assert found is not None
    assert found.samples_per_s is not None
    assert found.samples_per_s == found.batches_per_s.times(8)


def test_samples_that_were_not_all_counted_have_no_rate() -> None:
    times = [float(moment) for moment in range(50)]
    epoch = Epoch(began_s=0.0, yields_s=times, samples=[8] * 49)
    found = throughput([epoch], Config(), enough_s=0.0)

    assert found is not None
    assert found.samples_per_s is None
    assert found.window_samples is None


def test_whole_epochs_count_their_partial_batches() -> None:
    epochs = [
        Epoch(began_s=float(n), yields_s=[n + 0.4, n + 0.5], whole=True, samples=[8, 3])
        for n in range(4)
    ]
    config = Config(num_workers=2, prefetch_factor=1)
    found = throughput(epochs, config, enough_s=1.0)

    assert found is not None
    assert found.whole_epochs
    assert found.samples_per_s is not None
    assert found.samples_per_s.value == pytest.approx(11.0)


def of_seconds(*seconds: float) -> list[Stretch]:
    return [Stretch(seconds=each, batches=2, samples=0) for each in seconds]


def test_only_a_slow_beginning_is_rising() -> None:
    assert is_rising(of_seconds(4, 4, 3, 3, 2, 2, 1, 1))
    assert is_rising(of_seconds(4, 4, 1, 1, 1, 1, 1, 1))
    assert not is_rising(of_seconds(2, 2, 3, 3, 1, 1, 1, 1))
    assert not is_rising(of_seconds(1, 1, 2, 2, 3, 3, 4, 4))
    assert not is_rising(of_seconds(1.06, 1.06, 1.04, 1.04, 1.02, 1.02, 1, 1))
    assert not is_rising(of_seconds(4, 3, 2, 1))
