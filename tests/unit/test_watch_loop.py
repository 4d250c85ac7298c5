"""``dlprof.watch`` around a loop: nothing changes for the loop, and the figures are right."""

from __future__ import annotations

import copy
import pickle
import signal
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader

import dlprof
from dlprof.device import patching
from dlprof.integrations.wait_statistics import MOST_PENDING
from dlprof.integrations.watch import Logger, Watched, load_ipython_extension

MS = 1_000_000


class Clock:
    """A clock that goes on only when it is asked to."""

    def __init__(self) -> None:
        self.now = 5 * MS

    def __call__(self) -> int:
        return self.now

    def wait(self, milliseconds: float) -> None:
        self.now += int(milliseconds * MS)


class Loader:
    """Gives numbers; each epoch takes some time to begin, each batch some, the end some."""

    batch_size = 4

    def __init__(self, clock: Clock, batches: int = 3) -> None:
        self.clock = clock
        self.batches = batches
        self.epoch = 0

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[int]:
        self.clock.wait(100)
        return self._batches()

    def _batches(self) -> Iterator[int]:
        for number in range(self.batches):
            self.clock.wait(10 if number else 50)
            yield number
        self.clock.wait(7)


def watched(loader: Any, clock: Clock, log: Logger | None = None, every: int = 100) -> Watched[Any]:
    return Watched(loader, log=log, every=every, name="loader", clock=clock)


def test_waits_steps_start_up_and_turnover_are_distinguished() -> None:
    clock = Clock()
    loader = watched(Loader(clock), clock)
    for _ in range(2):
        assert list(zip(loader, _steps(clock), strict=False)) == [(0, 0), (1, 1), (2, 2)]
        clock.wait(5000)  # a validation between epochs is neither wait nor step

    seen = loader.summary()
    assert (seen.batches, seen.epochs, seen.epochs_completed) == (6, 2, 2)
    assert seen.startup_s == pytest.approx(0.150)
    assert seen.turnover is not None
    assert seen.turnover.mean_s == pytest.approx(0.007 + 0.150)
    assert seen.wait is not None
    assert seen.wait.count == 4
    assert seen.wait.total_s == pytest.approx(0.040)
    assert seen.step is not None
    assert seen.step.count == 6
    assert seen.step.total_s == pytest.approx(0.180)
    assert seen.waited_s == pytest.approx(2 * (0.150 + 0.020 + 0.007))
    assert seen.wait_fraction == pytest.approx(0.354 / 0.534)
    assert seen.batches_per_s == pytest.approx(6 / 0.534)


def _steps(clock: Clock) -> Iterator[int]:
    """What a loop does between batches, in a form that zip can call."""
    number = 0
    while True:
        clock.wait(30)
        yield number
        number += 1


def test_a_half_consumed_epoch_counts_as_such() -> None:
    clock = Clock()
    loader = watched(Loader(clock, batches=10), clock)
    for batch in loader:
        if batch == 4:
            break
    assert sum(1 for _ in loader) == 10
    seen = loader.summary()
    assert (seen.batches, seen.epochs, seen.epochs_completed) == (15, 2, 1)


def test_more_half_consumed_epochs_than_are_kept_lose_no_batch() -> None:
    clock = Clock()
    loader = watched(Loader(clock), clock)
    kept = []
    for _ in range(200):
        iterator = iter(loader)
        assert [next(iterator), next(iterator)] == [0, 1]
        kept.append(iterator)
    assert [next(iterator) for iterator in kept] == [2] * 200
    assert loader.summary().batches == 600


def test_many_batches_are_worked_out_in_time() -> None:
    clock = Clock()
    loader = watched(Loader(clock, batches=3 * MOST_PENDING), clock)
    for _ in loader:
        clock.wait(1)
    seen = loader.summary()
    assert seen.wait is not None
    assert seen.wait.count == 3 * MOST_PENDING - 1
    assert seen.wait.mean_s == pytest.approx(0.010)
    assert seen.step is not None
    assert seen.step.count == 3 * MOST_PENDING
    assert seen.step.mean_s == pytest.approx(0.001)


def test_everything_else_is_the_loaders_own() -> None:
    clock = Clock()
    loader = Loader(clock)
    seen: Any = watched(loader, clock)
    assert len(seen) == 3
    assert seen.batch_size == 4
    seen.epoch = 7
    assert loader.epoch == 7
    del seen.epoch
    assert not hasattr(loader, "epoch")
    assert bool(watched([], clock)) is False
    assert watched(["a", "b"], clock)[1] == "b"
    assert "Loader object" in repr(seen)
    with pytest.raises(AttributeError, match="no_such_thing"):
        seen.no_such_thing  # noqa: B018 - being read is the test


def test_an_iterator_passes_its_own_attributes_on() -> None:
    class Own:
        state = "kept"

        def __iter__(self) -> Own:
            return self

        def __next__(self) -> int:
            return 1

    iterator: Any = iter(watched(Own(), Clock()))
    assert next(iterator) == 1
    assert iterator.state == "kept"


def test_exceptions_come_through_and_are_counted() -> None:
    class Broken:
        def __iter__(self) -> Iterator[int]:
            yield 1
            raise OSError("gone")

    loader = watched(Broken(), Clock())
    with pytest.raises(OSError, match="gone"):
        list(loader)
    assert (loader.summary().failures, loader.summary().failure) == (1, "OSError")

    class NoIterator:
        def __iter__(self) -> Iterator[int]:
            raise ValueError("none")

    loader = watched(NoIterator(), Clock())
    with pytest.raises(ValueError, match="none"):
        list(loader)
    assert loader.summary().failures == 1


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_is_no_failure_of_the_loader(stop: type[BaseException]) -> None:
    def ended() -> Iterator[int]:
        yield 1
        raise stop

    loader = watched(ended(), Clock())
    with pytest.raises(stop):
        list(loader)
    assert (loader.summary().failures, loader.summary().failure) == (0, "")


def test_nested_loaders_each_have_their_own_figures() -> None:
    clock = Clock()
    outer, inner = watched(Loader(clock), clock), watched(Loader(clock, 5), clock)
    for _ in outer:
        for _ in inner:
            clock.wait(1)
    assert outer.summary().batches == 3
    assert inner.summary().batches == 15
    assert inner.summary().epochs_completed == 3


def test_threads_share_an_iterator() -> None:
    class Shared:
        """An iterator that threads can share, as a generator could not."""

        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.left = 2000

        def __iter__(self) -> Shared:
            return self

        def __next__(self) -> int:
            with self.lock:
                if not self.left:
                    raise StopIteration
                self.left -= 1
                return self.left

    loader = dlprof.watch(Shared())
    iterator, found = iter(loader), []
    barrier = threading.Barrier(4)

    def consume() -> None:
        barrier.wait()
        found.extend(list(iterator))

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    seen = loader.summary()
    assert sorted(found) == list(range(2000))
    assert seen.batches == 2000
    assert (seen.epochs, seen.epochs_completed) == (1, 1)
    assert seen.startup_s is not None
    assert seen.background_s > 0
    assert seen.waited_s - seen.background_s <= seen.startup_s  # iter() was called in this thread


def test_the_logger_hears_of_every_so_many_batches() -> None:
    clock = Clock()
    shown: list[dict[str, float]] = []
    loader = watched(Loader(clock, batches=5), clock, log=shown.append, every=4)
    for _ in range(2):
        for _ in loader:
            clock.wait(20)
    assert [values["dlprof/batches"] for values in shown] == [4.0, 8.0]
    assert all(type(value) is float for values in shown for value in values.values())
    first, second = shown
    assert first["dlprof/wait_fraction"] == pytest.approx(180 / 240)
    assert first["dlprof/wait_mean_s"] == pytest.approx(0.010)
    assert first["dlprof/step_mean_s"] == pytest.approx(0.020)
    assert first["dlprof/batches_per_s"] == pytest.approx(4 / 0.240)
    assert second["dlprof/epochs"] == 2.0


def test_what_the_logger_takes_is_neither_wait_nor_step() -> None:
    clock = Clock()
    loader = watched(Loader(clock), clock, log=lambda _: clock.wait(9000), every=1)
    for _ in loader:
        clock.wait(20)
    seen = loader.summary()
    assert seen.step is not None
    assert seen.step.max_s == pytest.approx(0.020)
    assert seen.waited_s == pytest.approx(0.177)


@pytest.mark.parametrize("kind", [None, "cuda"])
def test_a_logger_that_fails_warns_once_and_the_loop_goes_on(
    monkeypatch: pytest.MonkeyPatch, kind: str | None
) -> None:
    """It names the loop's line, also where copies to a device are noticed on the way."""
    monkeypatch.setattr(patching, "compiled_for", lambda: kind)

    def broken(_: dict[str, float]) -> None:
        raise ConnectionError("no network")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert list(dlprof.watch(range(50), log=broken, every=10)) == list(range(50))
    (warning,) = caught
    assert "ConnectionError: no network" in str(warning.message)
    assert warning.filename == __file__


def test_an_alarm_that_comes_while_the_logger_writes_is_the_scripts() -> None:
    def late(*_: object) -> None:
        raise TimeoutError("an hour is over")

    before = signal.signal(signal.SIGUSR1, late)
    try:
        with pytest.raises(TimeoutError, match="an hour"):
            list(dlprof.watch([1, 2], log=lambda _: signal.raise_signal(signal.SIGUSR1), every=1))
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "10"])
def test_a_wrong_every_is_refused(every: Any) -> None:
    with pytest.raises(dlprof.DlprofError, match="every"):
        dlprof.watch([1], every=every)


def test_a_log_that_cannot_be_called_is_refused_at_once() -> None:
    with pytest.raises(dlprof.DlprofError, match="log=5 is not a function"):
        dlprof.watch([1], log=5)  # type: ignore[arg-type] # what an untyped caller may pass


def test_what_cannot_be_iterated_is_refused() -> None:
    with pytest.raises(dlprof.DlprofError, match="watch: int can't be iterated"):
        dlprof.watch(3)  # type: ignore[arg-type] # likewise


def test_a_loader_without_length_works_with_list() -> None:
    def numbers() -> Iterator[int]:
        yield from range(3)

    class Endless:
        def __iter__(self) -> Iterator[int]:
            return numbers()

    assert list(dlprof.watch(Endless())) == [0, 1, 2]
    with pytest.raises(TypeError):
        len(dlprof.watch(Endless()))


@pytest.mark.parametrize("batches", [0, 1, 3])
def test_a_summary_prints_as_a_text(batches: int) -> None:
    clock = Clock()
    loader = watched(Loader(clock, batches), clock)
    assert list(loader) == list(range(batches))
    text = str(loader.summary())
    assert text.startswith("  loader\n")
    assert "spends" in text if batches else "gave no batch" in text
    assert max(map(len, text.splitlines())) <= 80


def test_watching_imports_nothing_heavy() -> None:
    program = (
        "import dlprof, sys; list(dlprof.watch([1])); "
        "print({'torch', 'rich', 'psutil'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "set()"


def test_copies_load_the_same_and_count_for_themselves() -> None:
    watched = dlprof.watch([1, 2, 3], name="mine")
    list(watched)
    for copied in (
        copy.copy(watched),
        copy.deepcopy(watched),
        pickle.loads(pickle.dumps(watched)),
    ):
        assert copied.summary().batches == 0
        assert list(copied) == [1, 2, 3]
        assert (copied.summary().name, copied.summary().batches) == ("mine", 3)
    assert watched.summary().batches == 3


def test_a_deep_copy_shares_the_logger() -> None:
    shown: list[dict[str, float]] = []
    copied = copy.deepcopy(dlprof.watch([1, 2], log=shown.append, every=1))
    list(copied)
    assert shown


def test_a_cell_s_loaders_of_a_class_that_makes_its_iterators_itself_are_seen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As torchdata's StatefulDataLoader: it was said that no loader was iterated."""
    numbers: Any = range(12)

    class Own(DataLoader[int]):
        def __iter__(self) -> Any:
            return self._get_iterator()

        def _get_iterator(self) -> Any:
            return super()._get_iterator()

    class Passing(Own):
        def __iter__(self) -> Any:
            yield from super().__iter__()

    magics, loaders = list[Any](), list[Any]()
    shell = types.SimpleNamespace(
        user_ns={},
        register_magic_function=lambda magic, **_: magics.append(magic),
        run_cell=lambda _: list(loaders[-1]),
    )
    load_ipython_extension(shell)
    for kind in (DataLoader, Own, Passing):
        plain = kind.__iter__
        loaders.append(kind(numbers, batch_size=4))
        magics[0]("", "")
        assert "3 batches in 1 epoch" in capsys.readouterr().out
        assert kind.__iter__ is plain
