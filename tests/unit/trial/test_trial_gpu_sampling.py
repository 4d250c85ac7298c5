"""The GPU sampler with cards that are made up: windows, patience and what is shown of both."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlprof.machine.gpus import GpuNeighbours, Gpus
from dlprof.records import GpuInfo, GpuUsage
from dlprof.trial import observer
from dlprof.trial.observer import GpuSampler


class _Cards(Gpus):
    """Two cards; ``obstacle`` is called before each sample."""

    def __init__(self, obstacle: Callable[[], object] = lambda: None) -> None:
        super().__init__({})
        self.calls: list[str] = []
        self.sampled = threading.Event()
        self._obstacle = obstacle

    def list_gpus(self, root: Path = Path("/")) -> tuple[GpuInfo, ...]:
        return tuple(GpuInfo(index=i, name="X", uuid=f"u{i}") for i in range(2))

    def prime(self) -> None:
        self.calls.append("prime")

    def sample(self, *, pcie: bool = False) -> tuple[GpuUsage, ...]:
        self._obstacle()
        self.calls.append("probe" if pcie else "sample")
        self.sampled.set()
        return tuple(
            GpuUsage(
                index=i,
                name="X",
                uuid=f"u{i}",
                kernel_active_fraction=0.5,
                samples=1,
                unavailable={"pcie_rx_bytes_per_s": "not asked for"},
            )
            for i in range(2)
        )

    def neighbours(self) -> tuple[GpuNeighbours, ...]:
        self.calls.append("crowd")
        reasons = {"process_memory_bytes": "not reported"}
        return tuple(
            GpuNeighbours(index=i, name="X", processes=i, unavailable=reasons) for i in range(2)
        )

    def close(self) -> None:
        self.calls.append("close")


def _calm() -> Callable[[], float]:
    """A clock by which hardly any time passes, however busy the machine is."""
    return itertools.count(step=1e-6).__next__


def _window(sampler: GpuSampler, until: threading.Event) -> tuple[GpuUsage, ...]:
    sampler.begin()
    sampler.start()
    until.wait(10)
    sampler.stop()
    return sampler.usage()


def test_a_window_is_primed_sampled_and_framed_by_looks_at_who_is_there() -> None:
    cards = _Cards()
    sampler = GpuSampler(lambda: cards, period_s=0.001, clock=_calm())
    usage = _window(sampler, cards.sampled)
    assert sampler.latest()
    sampler.close()
    assert cards.calls[:3] == ["crowd", "prime", "probe"]
    assert cards.calls[-2:] == ["crowd", "close"]
    second = usage[1]
    assert (second.kernel_active_fraction, second.other_processes, second.processes) == (0.5, 1, 1)
    assert second.samples >= 1
    assert second.sampler_cpu_cores is not None
    assert (
        second.unavailable["pcie_rx_bytes_per_s"] == "the window was too short for this card's turn"
    )
    assert second.unavailable["other_memory_bytes"] == "not reported"


def test_a_window_shorter_than_the_period_has_one_sample_without_a_probe() -> None:
    cards: Any = _Cards()
    begun = threading.Event()
    cards.prime = begun.set  # as the window begins
    sampler = GpuSampler(lambda: cards, period_s=60)
    usage = _window(sampler, begun)
    sampler.close()
    assert [usage[0].samples, cards.calls.count("sample"), cards.calls.count("probe")] == [1, 1, 0]


def test_a_window_that_begins_again_forgets_its_samples() -> None:
    more = threading.Event()
    cards = _Cards(obstacle=lambda: not cards.sampled.is_set() or more.wait(10))
    sampler = GpuSampler(lambda: cards, period_s=0.001)
    sampler.begin()
    sampler.start()
    assert cards.sampled.wait(10)
    sampler.start()
    more.set()
    sampler.stop()
    usage = sampler.usage()
    sampler.close()
    assert cards.calls.count("prime") == 1
    assert usage[0].samples < sum(call in {"probe", "sample"} for call in cards.calls)


def test_each_trial_begins_again() -> None:
    cards = _Cards()
    sampler = GpuSampler(lambda: cards, period_s=0.001)
    _window(sampler, cards.sampled)
    sampler.begin()
    assert sampler.latest() == ()
    sampler.close()


def test_a_driver_that_takes_long_to_load_takes_no_trial_for_others() -> None:
    """What computes on a card by then may be the trial's own."""
    loading, now_s = threading.Event(), [0.0]
    cards = _Cards()

    def load() -> Gpus:
        loading.wait(10)
        return cards

    sampler = GpuSampler(load, period_s=0.001, clock=lambda: now_s[0])
    sampler.begin()
    now_s[0] = 1.0
    sampler.start()
    loading.set()
    cards.sampled.wait(10)
    sampler.stop()
    second = sampler.usage()[1]
    sampler.close()
    assert (second.other_processes, second.processes) == (None, 1)
    assert second.unavailable["other_processes"] == "the GPUs' driver was not ready in time"


def test_a_driver_that_hangs_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "_PATIENCE_S", 0.02)
    now_s = [100.0]
    never, hanging = threading.Event(), threading.Event()

    def hang() -> None:
        hanging.set()
        never.wait()

    cards = _Cards(hang)
    sampler = GpuSampler(lambda: cards, period_s=0.001, clock=lambda: now_s[0])
    for _ in range(2):
        usage = _window(sampler, hanging)
        now_s[0] += 10
        assert usage[0].kernel_active_fraction is None
        assert "may hang" in usage[0].unavailable["kernel_active_fraction"]
        assert "may hang" in usage[0].unavailable["samples"]
    assert cards.calls == ["crowd", "prime"]  # nothing more was ordered of it
    sampler.close()
    never.set()


def test_without_cards_nothing_is_asked() -> None:
    gpus: Gpus = Gpus({"gpus": "none"})
    sampler = GpuSampler(lambda: gpus)
    sampler.begin()
    sampler.start()
    sampler.stop()
    assert sampler.usage() == ()
    sampler.close()
