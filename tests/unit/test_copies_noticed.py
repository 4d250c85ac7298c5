"""Copies that a program makes by itself: noticed while its loader is followed, and left alone."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dlprof.device import patching
from dlprof.device.patching import Noticer, compiled_for
from dlprof.integrations.copies import ConsumerCopies
from dlprof.integrations.wait_statistics import WaitStatistics
from dlprof.integrations.watch import watch


class Stream:
    """Work whose end a test sets."""

    def __init__(self) -> None:
        self.until_ms = 0.0


class Event:
    """A mark; reached as soon as ``Event.reached`` says so."""

    reached = True

    def __init__(self, *_: object, **__: object) -> None:
        self.at_ms = 0.0

    def record(self, stream: Stream) -> None:
        stream.until_ms += 1.0  # each copy takes 1 ms between its two marks
        self.at_ms = stream.until_ms

    def query(self) -> bool:
        return type(self).reached

    def elapsed_time(self, end_event: Any) -> float:
        return float(end_event.at_ms - self.at_ms)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Stream]]:
    """A torch that sees an accelerator; ``meta`` stands in for it. The last is the current one."""
    current = [Stream()]
    there = torch.device("meta")
    stand_ins: dict[str, Any] = {
        "current_accelerator": lambda: there,
        "current_device_index": lambda: 0,
        "current_stream": lambda _device=None: current[-1],
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.accelerator, name, stand_in, raising=False)
    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(Event, "reached", True)
    monkeypatch.setattr(patching.seen, "reached", set())
    monkeypatch.setattr(patching.seen, "pending", [])
    monkeypatch.setattr(patching.seen, "spare", {})
    yield current
    assert "to" not in vars(torch.Tensor)


def _noticer(batches: int = 100) -> Noticer:
    return Noticer("meta", batches=batches, seconds=60.0)


def _loop(noticer: Noticer, batches: int, *tensors: torch.Tensor) -> None:
    for _ in range(batches):
        noticer.asked()
        noticer.came()
        for tensor in tensors:
            assert tensor.to("meta", non_blocking=True).device.type == "meta"
    noticer.asked()


def test_copies_between_batches_are_counted(streams: list[Stream]) -> None:
    noticer = _noticer()
    _loop(noticer, 3, torch.zeros(4), torch.zeros(8))
    noticer.pause()
    first, second = noticer.moves(1)
    assert first.bytes == second.bytes == 48
    assert first.pinned_bytes == 0
    assert first.copy_s == first.exposed_s == pytest.approx(2e-3)
    assert 0 < first.blocked_s <= first.copy_s
    assert str(first.device) == "meta:0"


def test_all_ways_to_name_the_device_count_and_no_other_call_does(streams: list[Stream]) -> None:
    noticer, like = _noticer(), torch.zeros(1, device="meta")
    _loop(noticer, 1, torch.zeros(1))
    noticer.came()
    for arguments, options in (
        (("meta",), {}),
        ((torch.device("meta"), torch.float64), {"copy": True}),
        ((like,), {}),
        ((), {"device": "meta"}),
        ((), {"tensor": like}),
    ):
        torch.zeros(2).to(*arguments, **options)
    torch.zeros(2).to(torch.float64)
    torch.zeros(2).to("cpu", torch.int64)
    like.to("meta")
    noticer.asked()
    noticer.pause()
    assert [each.bytes for each in noticer.moves(1)] == [4 * 8 + 16]  # one is converted first


def test_what_next_and_other_threads_copy_is_not_the_consumers(streams: list[Stream]) -> None:
    noticer, tensor = _noticer(), torch.zeros(2)
    _loop(noticer, 2, tensor)
    tensor.to("meta")  # within next()
    noticer.came()
    other = threading.Thread(target=lambda: tensor.to("meta"))
    other.start()
    other.join()
    noticer.asked()
    noticer.pause()
    assert [each.bytes for each in noticer.moves(1)] == [8, 0]


def test_copies_on_a_side_stream_are_hidden(streams: list[Stream]) -> None:
    noticer, tensor = _noticer(), torch.zeros(2)
    _loop(noticer, 1, tensor)
    noticer.came()
    streams.append(Stream())
    tensor.to("meta")
    streams.pop()
    noticer.asked()
    noticer.pause()
    (reported,) = noticer.moves(1)
    assert reported.copy_s == pytest.approx(1e-3)
    assert reported.exposed_s == 0.0


def test_copies_under_way_are_not_waited_for(
    streams: list[Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Event, "reached", False)
    noticer = _noticer()
    _loop(noticer, 3, torch.zeros(2))
    noticer.pause()
    assert noticer.moves(1) == []
    monkeypatch.setattr(Event, "reached", True)
    assert len(noticer.moves(1)) == 2


def test_two_loaders_at_once_are_distinguished(streams: list[Stream]) -> None:
    train, validation, tensor = _noticer(), _noticer(), torch.zeros(2)
    train.came()
    tensor.to("meta")
    _loop(validation, 3, tensor)
    validation.pause()
    train.asked()
    train.pause()
    assert [each.bytes for each in train.moves(0)] == [8]
    assert [each.bytes for each in validation.moves(0)] == [8, 8, 8]


def test_a_loader_within_another_has_the_same_copies(streams: list[Stream]) -> None:
    inner, outer = _noticer(), _noticer()
    for _ in range(2):
        outer.asked()
        inner.asked()
        inner.came()
        outer.came()
        torch.zeros(2).to("meta")
    outer.asked()
    inner.asked()
    outer.pause()
    inner.pause()
    assert [each.bytes for each in inner.moves(0)] == [8, 8]
    assert [each.bytes for each in outer.moves(0)] == [8, 8]


def test_following_ends_by_itself(streams: list[Stream]) -> None:
    noticer = _noticer(batches=2)
    _loop(noticer, 5, torch.zeros(2))
    assert noticer.over
    assert "to" not in vars(torch.Tensor)
    assert len(noticer.moves(0)) == 2


def test_anothers_patch_is_left_and_given_back(streams: list[Stream]) -> None:
    calls: list[str] = []
    tensor: Any = torch.Tensor
    plain = tensor.to

    def below(*args: Any, **kwargs: Any) -> Any:
        calls.append("below")
        return plain(*args, **kwargs)

    tensor.to = below
    noticer = _noticer()
    try:
        noticer.came()
        ours = vars(torch.Tensor)["to"]
        assert ours is not below

        def above(*args: Any, **kwargs: Any) -> Any:
            calls.append("above")
            return ours(*args, **kwargs)

        tensor.to = above
        noticer.pause()
        assert vars(torch.Tensor)["to"] is above
        torch.zeros(2).to("meta")
        assert calls == ["above", "below"]
        tensor.to = below
        noticer.came()
        noticer.pause()
        assert vars(torch.Tensor)["to"] is below
    finally:
        del torch.Tensor.to


def test_errors_and_faults_leave_the_call_as_it_is(
    streams: list[Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the device is lost")

    tensor: Any = torch.zeros(2)
    with pytest.raises(TypeError) as plain:
        tensor.to("meta", wrong=True)
    noticer = _noticer()
    _loop(noticer, 2, torch.zeros(2))
    noticer.came()
    with pytest.raises(TypeError) as noticed:
        tensor.to("meta", wrong=True)
    assert str(noticed.value) == str(plain.value)
    noticer.asked()
    monkeypatch.setattr(patching.seen, "spare", {})
    monkeypatch.setattr(torch, "Event", broken)
    _loop(noticer, 2, torch.zeros(2))
    noticer.pause()
    assert len(noticer.moves(1)) == 1


def test_the_method_in_its_place_can_be_pickled(streams: list[Stream]) -> None:
    noticer = _noticer()
    noticer.came()
    kept = pickle.dumps(torch.Tensor.to)
    noticer.pause()
    assert pickle.loads(kept) is torch.Tensor.to


def test_an_iterator_that_is_let_go_of_takes_it_off(streams: list[Stream]) -> None:
    copies = ConsumerCopies()
    statistics = WaitStatistics(clock=lambda: 1, began_ns=0)
    reading, iterator = statistics.open(lambda: iter([torch.zeros(2)] * 9))
    take = copies.noticed(reading.take)
    for _ in range(4):
        take(next, iterator).to("meta")
    assert "to" in vars(torch.Tensor)
    del take
    gc.collect()
    assert "to" not in vars(torch.Tensor)
    reported = copies.to_record()
    assert reported is not None
    assert (reported.device, reported.timed, reported.bytes, reported.pinned_fraction) == (
        "meta:0",
        2,
        8,
        0.0,
    )
    assert reported.exposed_s == pytest.approx(1e-3)
    assert not reported.prefetched


def test_without_an_accelerator_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: None)
    assert compiled_for() is None
    copies = ConsumerCopies()
    reading = WaitStatistics(clock=lambda: 1, began_ns=0).open(lambda: None)[0]
    take = reading.take
    assert copies.noticed(take) is take
    assert copies.to_record() is None


def test_torch_knows_its_methods_again_afterwards(streams: list[Stream]) -> None:
    noticer = _noticer()
    noticer.came()
    torch.overrides.is_tensor_method_or_property(torch.Tensor.add)  # notes what methods there are
    noticer.pause()
    assert torch.overrides.is_tensor_method_or_property(torch.Tensor.to)


def test_threads_that_share_a_loader_put_it_in_place_once(
    streams: list[Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    noticer, held = _noticer(), patching.Patch.held
    others: list[threading.Thread] = []

    def beside(kind: str) -> Any:
        if not others:
            others.append(threading.Thread(target=noticer.came))
            others[0].start()
            others[0].join(0.2)  # it comes to an end here only if nothing holds it off
        return held(kind)

    monkeypatch.setattr(patching.Patch, "held", beside)
    noticer.came()
    others[0].join()
    noticer.pause()
    assert "to" not in vars(torch.Tensor)


def test_a_batch_of_very_many_tensors_is_timed_too(streams: list[Stream]) -> None:
    noticer = _noticer()
    _loop(noticer, 3, *[torch.zeros(1)] * 600)
    noticer.pause()
    assert [each.bytes for each in noticer.moves(1)] == [2400, 2400]


def test_copies_to_another_device_are_exposed_on_its_own_stream(
    streams: list[Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {torch.device("meta", index): [Stream()] for index in range(2)}
    monkeypatch.setattr(
        torch.accelerator,
        "current_stream",
        lambda *given: there[given[0] if given else torch.device("meta", 0)][-1],
    )
    noticer, second = _noticer(), torch.device("meta", 1)
    for _ in range(3):
        noticer.asked()
        noticer.came()  # while device 0 is the current one
        with monkeypatch.context() as entered:
            entered.setattr(torch.accelerator, "current_device_index", lambda: 1)
            torch.zeros(2).to("meta")
    there[second].append(Stream())
    torch.zeros(2).to(second)  # on a side stream of it
    noticer.asked()
    noticer.pause()
    plain, last = noticer.moves(1)
    assert plain.exposed_s == plain.copy_s == pytest.approx(1e-3)
    assert last.copy_s == pytest.approx(2e-3)
    assert last.exposed_s == pytest.approx(1e-3)


class _Wrapping(torch.Tensor):
    """Sends what it wraps by a call of its own, as backends and subclasses do."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.__name__ == "to":
            return args[0].as_subclass(torch.Tensor).to(*args[1:], **kwargs or {})
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call] # torch's


def test_a_copy_within_a_copy_is_counted_once(streams: list[Stream]) -> None:
    noticer = _noticer()
    _loop(noticer, 2, torch.zeros(4).as_subclass(_Wrapping))
    noticer.pause()
    (reported,) = noticer.moves(1)
    assert reported.bytes == 16
    assert reported.copy_s == pytest.approx(1e-3)


def test_sparse_rows_are_counted_too(streams: list[Stream]) -> None:
    noticer, rows = _noticer(), torch.eye(3).to_sparse_csr()
    _loop(noticer, 2, rows)
    noticer.pause()
    assert [each.bytes for each in noticer.moves(1)] == [rows.nbytes]


def test_apples_devices_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch reads their events only by waiting for all that the program has ordered."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    assert compiled_for() is None


class _Seeing(TorchFunctionMode):
    """Notes what functions it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[str] = []

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.shown.append(func.__name__)
        return func(*args, **kwargs or {})


class _SeeingBelow(TorchDispatchMode):
    """Notes what operations it is shown."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self.shown: list[str] = []

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.shown.append(str(func))
        return func(*args, **kwargs or {})


@pytest.mark.slow
def test_modes_are_shown_the_programs_own_calls_only(streams: list[Stream]) -> None:
    noticer, tensor = _noticer(), torch.zeros(2)
    with _Seeing() as seeing, _SeeingBelow() as below:
        tensor.to("meta")
    plain = seeing.shown, below.shown
    _loop(noticer, 1, tensor)
    noticer.came()
    with _Seeing() as noticed:
        tensor.to("meta")
    noticer.asked()
    noticer.came()
    with _SeeingBelow() as noticed_below:
        tensor.to("meta")
    noticer.asked()
    noticer.pause()
    assert (noticed.shown, noticed_below.shown) == plain
    assert [each.bytes for each in noticer.moves(1)] == [8]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_is_forked_meanwhile_is_rid_of_it(streams: list[Stream]) -> None:
    noticer = _noticer()
    noticer.came()
    child = os.fork()
    if child == 0:
        os._exit("to" in vars(torch.Tensor))
    _, status = os.waitpid(child, 0)
    assert "to" in vars(torch.Tensor)
    noticer.pause()
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.slow
def test_torch_compile_has_no_more_to_compile(
    streams: list[Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives up a loop that prints, and tries each function that is called there."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: None)
    graphs: list[Any] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def batches() -> Iterator[torch.Tensor]:
        yield from (torch.zeros(2), torch.zeros(3))

    def train() -> None:
        for batch in batches():
            print(end="")  # noqa: T201 - what breaks the graph
            batch.to("meta")

    noticer = _noticer()
    _loop(noticer, 1, torch.zeros(2))
    compiled = torch.compile(train, backend=backend)  # loads the compiler
    noticer.pause()
    noticer.came()
    compiled()
    noticer.asked()
    noticer.pause()
    assert graphs == []
    assert [each.bytes for each in noticer.moves(1)] == [20]


def test_what_is_converted_or_gathered_on_the_way_is_not_pinned(
    streams: list[Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch copies it from memory of its own, whatever the batch lies in."""
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _tensor: True)
    noticer, square = _noticer(), torch.zeros(4, 4, dtype=torch.uint8)
    _loop(noticer, 1, square)
    ways: tuple[tuple[torch.Tensor, tuple[Any, ...]], ...] = (
        (square, (None,)),
        (square.t(), (None,)),
        (square[:, :2], (None, True)),
        (square, (torch.float32,)),
        (square, (torch.float32, True)),
    )
    for tensor, arguments in ways:
        noticer.came()
        tensor.to("meta", *arguments)
        noticer.asked()
    noticer.pause()
    reported = [(each.bytes, each.pinned_bytes) for each in noticer.moves(1)]
    assert reported == [(16, 16), (16, 16), (8, 0), (64, 0), (16, 16)]


def test_copies_that_can_not_be_timed_have_a_reason(
    streams: list[Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_event: Event) -> bool:
        raise RuntimeError("the device is lost")

    loader = watch([torch.zeros(2)] * 4)
    assert "copies" not in loader.summary().unavailable
    monkeypatch.setattr(Event, "query", broken)
    for tensor in loader:
        tensor.to("meta")
    reported = loader.summary()
    assert reported.copies is None
    assert reported.unavailable["copies"] == "they were seen, and could not be timed"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_is_forked_while_another_thread_changes_methods_is_not_held_up() -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with patching.CHANGING:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        os._exit(0 if patching.CHANGING.acquire(timeout=5.0) else 1)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert status == 0
