"""The measuring loop, on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_loader import FakeGate, FakeLoader, VirtualClock

from dlprof.records import Config
from dlprof.trial.measure import (
    EmptyLoaderError,
    Loop,
    Measurement,
    WindowFigures,
    WrongDataError,
    fill_s,
)


def run(
    loader: FakeLoader,
    config: Config,
    *,
    window_s: float = 2.0,
    step_s: float = 0.0,
    gate: FakeGate | None = None,
    turnover: bool = True,
    one_epoch: bool = False,
    count: Callable[[int], int | None] | None = None,
    ranks: Any = None,
) -> tuple[WindowFigures, list[str]]:
    clock = loader.clock
    edges: list[str] = []
    loop = Loop(
        loader,
        config,
        consume=lambda _batch: clock.pass_by(step_s),
        clock=clock,
        beat=lambda _now: None,
        count=count,
    )
    measured = Measurement(
        loop=loop,
        gate=gate or FakeGate(loader),
        window_s=window_s,
        turnover=turnover,
        one_epoch=one_epoch,
        ranks=ranks,
    ).run(lambda edge, _fill: edges.append(edge))
    return measured, edges


def test_a_plain_loop_has_its_rate_startup_and_turnover() -> None:
    measured, edges = run(FakeLoader(VirtualClock()), Config())

    assert measured.rate is not None
    assert measured.rate.batches_per_s.value == pytest.approx(10.0)
    assert measured.startup_s == pytest.approx(0.5 + 0.1)
    assert measured.epoch_turnover_s == pytest.approx(0.25 + 0.5 + 0.1)
    assert measured.rate.measured_s == pytest.approx(2.0, abs=0.2)
    assert not measured.rate.whole_epochs
    assert edges == ["start", "end"]


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("window_s", [0.31, 1.0, 1.77])
def test_bursts_of_w_do_not_bias_the_rate(workers: int, window_s: float) -> None:
    config = Config(num_workers=workers, prefetch_factor=2)
    measured, _ = run(FakeLoader(VirtualClock(), workers=workers), config, window_s=window_s)

    assert measured.rate is not None
    assert measured.rate.batches_per_s.value == pytest.approx(10.0 * workers)
    assert measured.rate.window_batches % workers == 0


def test_a_step_shows_as_time_not_waited() -> None:
    measured, _ = run(FakeLoader(VirtualClock(), batch_s=0.1), Config(), step_s=0.3, window_s=4.0)

    assert measured.wait_fraction == pytest.approx(0.25, abs=0.02)
    assert measured.rate is not None
    assert measured.rate.batches_per_s.value == pytest.approx(1 / 0.4)


def test_the_step_is_no_part_of_the_turnover() -> None:
    measured, _ = run(
        FakeLoader(VirtualClock(), length=30, batch_s=0.01), Config(), step_s=0.3, window_s=8.0
    )

    assert measured.epoch_turnover_s == pytest.approx(0.25 + 0.5 + 0.01)


def test_short_epochs_are_measured_whole() -> None:
    config = Config(num_workers=2, prefetch_factor=2)
    loader = FakeLoader(VirtualClock(), length=4, workers=2)
    measured, _ = run(loader, config)

    epoch_s = 0.5 + 2 * 0.1 + 0.25
    assert measured.rate is not None
    assert measured.rate.whole_epochs
    assert measured.rate.batches_per_s.value == pytest.approx(4 / epoch_s, rel=0.1)
    assert any("only 4 batches" in warning for warning in measured.warnings)


@pytest.mark.parametrize(
    ("config", "begun"),
    [
        (Config(), 1),
        (Config(num_workers=2, prefetch_factor=2, persistent_workers=True), 1),
        (Config(num_workers=2, prefetch_factor=2), 2),  # those that ended have lost what they kept
    ],
)
@pytest.mark.parametrize("length", [4, 41])
def test_what_a_dataset_keeps_for_its_next_epoch_is_in_no_rate(
    config: Config, begun: int, length: int
) -> None:
    loader = FakeLoader(VirtualClock(), length=length, workers=config.num_workers)
    measured, _ = run(loader, config, window_s=60.0, one_epoch=True)
    assert loader.epochs == begun
    assert measured.rate is not None
    took_s = 0.5 + length / max(1, config.num_workers) * 0.1
    # Of four batches workers show that of the whole epoch only, which is not as those to come.
    short = length == 4 and config.num_workers
    rate = length / took_s if short else 10.0 * max(1, config.num_workers)
    assert measured.rate.batches_per_s.value == pytest.approx(rate, rel=0.05)
    assert not measured.rate.whole_epochs


class _Late:
    """Other ranks, who are ready for each meeting after so many looks at them."""

    waited_s = 0.0

    def __init__(self, looks: int, *, again: int = 0) -> None:
        self.looks, self.again, self.left = looks, again, 0
        self.wanted = list[bool]()

    def arrive(self, *, again: bool = False) -> None:
        self.left = self.looks
        self.wanted.append(again)

    def answer(self) -> bool | None:
        if self.left:
            self.left -= 1
            return None
        self.again -= len(self.wanted) > 1  # whether one of them wants another window
        return self.again >= 0 and len(self.wanted) > 1

    def step(self) -> None: ...


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("looks", "again"),
    [(3, 0), (3, 2), (60, 0), (60, 2)],  # an epoch has 41 batches: the last ones meet later
)
def test_ranks_that_wait_for_others_measure_nothing_that_is_kept(
    workers: int, looks: int, again: int
) -> None:
    config = Config(num_workers=workers, persistent_workers=workers > 0).canonical()
    loader = FakeLoader(VirtualClock(), length=41, workers=workers, kept_s=0.001)
    measured, _ = run(
        loader, config, window_s=1.0, step_s=0.01, one_epoch=True, ranks=_Late(looks, again=again)
    )
    assert measured.rate is not None
    each_s = 0.1 / workers if workers else 0.11
    assert measured.rate.batches_per_s.value == pytest.approx(1 / each_s, rel=0.1)
    assert measured.wait_fraction == pytest.approx(0.8 if workers else 0.91, abs=0.06)
    late = any("before all ranks were ready" in warning for warning in measured.warnings)
    assert late is (looks > 41)


@pytest.mark.parametrize("looks", [0, 3])
def test_an_epoch_that_ranks_end_in_their_warm_up_has_its_samples_counted(looks: int) -> None:
    """Of 2 ranks with 7 workers and 13 batches each had no rate, and so counted as failed."""
    config = Config(num_workers=4, persistent_workers=True).canonical()
    loader = FakeLoader(VirtualClock(), length=7, workers=4, kept_s=0.001)
    gate = FakeGate(loader, each=8)
    measured, _ = run(loader, config, gate=gate, one_epoch=True, ranks=_Late(looks))
    assert measured.rate is not None
    assert measured.rate.samples_per_s is not None
    assert measured.epoch_samples == 7 * 8


def test_an_epoch_of_one_batch_is_measured() -> None:
    measured, _ = run(FakeLoader(VirtualClock(), length=1), Config())

    assert measured.rate is not None
    assert measured.rate.whole_epochs
    assert measured.rate.batches_per_s.value == pytest.approx(1 / 0.85, rel=0.1)


def test_epochs_that_end_inside_the_window_leave_the_steady_rate_alone() -> None:
    config = Config(num_workers=2, prefetch_factor=2)
    measured, _ = run(FakeLoader(VirtualClock(), length=61, workers=2), config, window_s=10.0)

    assert measured.rate is not None
    assert not measured.rate.whole_epochs
    assert measured.rate.batches_per_s.value == pytest.approx(20.0)


def test_slow_batches_cut_the_warm_up_short_and_say_so() -> None:
    config = Config(num_workers=2, prefetch_factor=8)
    measured, _ = run(FakeLoader(VirtualClock(), workers=2, batch_s=1.0), config, window_s=1.0)

    assert measured.rate is not None
    assert measured.rate.batches_per_s.value == pytest.approx(2.0)
    assert any("cut short" in warning for warning in measured.warnings)


def test_without_a_gate_the_turnover_is_unknown() -> None:
    loader = FakeLoader(VirtualClock())
    measured, _ = run(loader, Config(), gate=FakeGate(loader, attached=False))

    assert measured.epoch_turnover_s is None


def test_the_turnover_is_left_out_on_request() -> None:
    measured, _ = run(FakeLoader(VirtualClock()), Config(), turnover=False)

    assert measured.epoch_turnover_s is None


@pytest.mark.parametrize("exact", [True, False])
def test_workers_that_an_early_end_leaves_busy_are_no_turnover(exact: bool) -> None:
    """As mosaicml-streaming's, whose threads go on: an epoch that ends by itself stops them."""
    loader = FakeLoader(VirtualClock(), workers=2, turnover_s=10.0)
    gate = FakeGate(loader)
    gate.exact = exact
    measured, _ = run(loader, Config(num_workers=2, prefetch_factor=2), gate=gate)

    expected = pytest.approx(10.0 + 0.5 + 0.1) if exact else None
    assert measured.epoch_turnover_s == expected
    assert ("ended early" in gate.reason) is not exact


def test_an_epoch_that_ends_early_is_noticed() -> None:
    with pytest.raises(WrongDataError, match="25 of 26 batches"):
        run(FakeLoader(VirtualClock(), length=30, lost=5), Config(), window_s=60.0)


def test_a_loader_that_hands_on_as_many_as_it_promises_ends_as_it_should() -> None:
    """As a class that takes a few batches of a DataLoader, which has asked for more."""

    class Short(FakeLoader):
        def __len__(self) -> int:
            return 25

    measured, _ = run(Short(VirtualClock(), length=30, lost=5), Config(), window_s=60.0)
    assert measured.rate is not None


def test_an_empty_loader_is_named() -> None:
    with pytest.raises(EmptyLoaderError):
        run(FakeLoader(VirtualClock(), length=0), Config())


def test_the_queues_get_time_to_fill_but_not_for_ever() -> None:
    config = Config(num_workers=2, prefetch_factor=2)

    assert fill_s(100.0, config) == pytest.approx(0.06)
    assert fill_s(0.1, config) == pytest.approx(0.25)
    assert fill_s(100.0, Config()) == 0.0


def test_batches_of_changing_size_are_counted_one_by_one() -> None:
    measured, _ = run(FakeLoader(VirtualClock()), Config(), count=lambda n: 12 if n % 10 else 32)

    assert measured.rate is not None
    assert measured.rate.samples_per_s is not None
    assert measured.rate.samples_per_s.value == pytest.approx(10.0 * 14, rel=0.06)
    assert measured.rate.samples_per_batch is not None
    assert measured.rate.samples_per_s.value == pytest.approx(
        measured.rate.batches_per_s.value * measured.rate.samples_per_batch
    )


def test_an_epoch_that_was_seen_whole_has_its_samples() -> None:
    loader = FakeLoader(VirtualClock(), length=15)
    measured, _ = run(loader, Config(), count=lambda n: 3 if n == 14 else 8, window_s=4.0)

    assert measured.epoch_samples == 14 * 8 + 3


def test_a_batch_that_can_t_be_counted_leaves_no_rate_of_samples() -> None:
    measured, _ = run(FakeLoader(VirtualClock()), Config(), count=lambda n: None if n > 5 else 8)

    assert measured.rate is not None
    assert measured.rate.samples_per_s is None


def warming(clock: VirtualClock, slow: int) -> FakeLoader:
    """Batches that take less and less time, from eight times as long, until ``slow`` came."""

    class Warming(FakeLoader):
        def __iter__(self) -> Iterator[int]:
            for number in super().__iter__():
                clock.pass_by(self.batch_s * 7 * max(0.0, 1 - number / slow))
                yield number

    return Warming(clock, batch_s=0.01)


def test_what_the_first_batches_cost_is_no_part_of_the_rate() -> None:
    loader = warming(VirtualClock(), 30)
    measured, edges = run(loader, Config(), window_s=1.0, turnover=False)

    assert measured.rate is not None
    assert measured.rate.batches_per_s.value == pytest.approx(100.0, rel=0.05)
    assert measured.transient_s == pytest.approx(0.01 * 7 * 30 / 2, rel=0.1)
    assert any("got faster for" in warning for warning in measured.warnings)
    assert edges.count("start") > 1
    assert edges[-1] == "end"


def test_a_loader_that_never_gets_steady_is_measured_all_the_same_and_named() -> None:
    loader = warming(VirtualClock(), 10_000)
    measured, edges = run(loader, Config(), window_s=1.0, turnover=False)

    assert measured.rate is not None
    assert edges.count("start") <= 4


def test_a_steady_loader_has_one_window_and_no_transient() -> None:
    config = Config(num_workers=2, prefetch_factor=2)
    measured, edges = run(FakeLoader(VirtualClock(), workers=2), config)

    assert edges == ["start", "end"]
    assert measured.transient_s == pytest.approx(0.0, abs=1e-6)
    assert not measured.warnings


class _Moves:
    """Counts two samples a batch, until the sixth batch shows that each held one."""

    earlier: int | None = None
    came = 0

    def __call__(self, _batch: int) -> int:
        self.came += 1
        self.earlier = 1 if self.came >= 6 else None
        return 3 if self.earlier else 2


def test_batches_that_were_counted_in_the_wrong_place_are_counted_again() -> None:
    loader = FakeLoader(VirtualClock(), length=10, batch_s=0.1)
    loop = Loop(
        loader,
        Config(),
        consume=lambda _batch: None,
        clock=loader.clock,
        beat=lambda _now: None,
        count=_Moves(),
    )
    loop.begin_epoch()
    loop.drain()
    assert list(loop.now.samples) == [1] * 5 + [3] * 5
    assert loop.now.all_samples == 20


def test_what_raises_as_an_epoch_starts_comes_after_none_of_its_batches() -> None:
    loader = FakeLoader(VirtualClock(), length=10, batch_s=0.1)
    loop = Loop(loader, Config(), clock=loader.clock)
    loop.begin_epoch()
    loop.drain()
    assert len(loop.now.yields_s) == 10

    class Raises:
        def __iter__(self) -> Iterator[int]:
            raise ValueError("sample 35 is broken")

    loop.loader = Raises()
    with pytest.raises(ValueError, match="sample 35"):
        loop.begin_epoch()
    assert len(loop.now.yields_s) == 0
