"""What dlprof's processes say to each other, and how they serve what they are ordered.

Every message is one JSON object on a line. A ``Channel`` is one end of a two-way stream of them.
An order names what is to be done as ``order``, an answer what has happened as ``event``. What else
they hold are plain values, and records as ``dlprof.records.codec`` reads them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, TypeVar

from dlprof.errors import DlprofError, FileError, NothingMeasuredError, TargetError, UsageError
from dlprof.records import Config
from dlprof.records.codec import from_json
from dlprof.records.gate import Series
from dlprof.targets.grammar import TargetSpec

Message = dict[str, Any]
_Record = TypeVar("_Record")

_ERRORS: dict[str, type[DlprofError]] = {
    each.kind: each for each in (TargetError, UsageError, FileError, NothingMeasuredError)
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """Everything that is needed to build the target in another process.

    Attributes:
        target: What TARGET names.
        arguments: ``--arg`` pairs.
        shuffle: Overrides the target's own order; ``None`` keeps it.
        seed: Seeds Python's and torch's generators before the target is built.
        delay_s: CPU time by which each batch of a warm side is to take longer (self-test only).
        rank: Whose share of a dataset is taken that has no sharding of its own.
        ranks: Among how many; the process's environment says the same to the user's code.
    """

    target: TargetSpec
    arguments: Mapping[str, str] = dataclasses.field(default_factory=dict)
    shuffle: bool | None = None
    seed: int = 0
    delay_s: float = 0.0
    rank: int = 0
    ranks: int = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """One trial, as the supervisor asks for it.

    Attributes:
        config: What to measure.
        trial_s: Length of the measured window.
        step_s: Length of the consumer's step; 0 for none.
        step_spread: How steps differ, with ``step_s`` as their mean; empty where all are alike.
        step_callable: ``module:function`` to call with each batch instead.
        cold_cache: Evict the dataset's files from the page cache first.
        temporary: A directory that the trial's processes may use; the supervisor removes it.
        turnover: Time the end of an epoch, if none comes by itself.
        probe: Instead of measuring, load a batch or two in the main process and describe them; with
            workers, try whether they can be started.
        weigh: Instead of that, weigh the dataset within ``trial_s``.
        starts: Start methods by which one worker is then started; ``own`` for the loader's.
        explain: Follow each batch through its stages; the rate is then no figure to compare.
        device: Where batches are copied to before the step, by torch's name; ``auto`` for the
            accelerator that torch finds.
        copy_ahead: Copy on a side stream while the batch before is worked on.
        step_on: Where a step of ``step_s`` passes: ``host`` (it sleeps) or ``device`` (it works).
        rank: Whose loader this is, of those that load at once.
        ranks: How many load at once.
        step_barrier: Whether all of them pass each step together.
        cpus: What each of them is bound to with its workers, by rank; free where it is empty.
    """

    config: Config
    trial_s: float = 1.0
    step_s: float = 0.0
    step_spread: str = ""
    step_callable: str | None = None
    cold_cache: bool = False
    temporary: str = ""
    turnover: bool = True
    probe: bool = False
    weigh: bool = False
    starts: tuple[str, ...] = ()
    explain: bool = False
    device: str = "cpu"
    copy_ahead: bool = False
    step_on: str = "host"
    rank: int = 0
    ranks: int = 1
    step_barrier: bool = False
    cpus: tuple[tuple[int, ...], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BlockRequest:
    """One block of a check, as a side is asked for it.

    Attributes:
        series: ``load`` for steady loading, ``start`` for a start and the turn of an epoch.
        batches: How many a block of loading has; those that fill the queues among them.
        seed: Of the order and of random numbers, so that every block loads the same samples.
        cores: What the side is held to during it, worker after worker; free where it is empty.
    """

    series: Series = "load"
    batches: int = 0
    seed: int = 0
    cores: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransferRequest:
    """What the process that copies is to measure (``dlprof.transfer``).

    Attributes:
        device: Torch's name; ``auto`` for the accelerator that torch finds, else the CPU.
        all_devices: Copy to all accelerators, one by one and at once.
        most_bytes: Largest buffer.
        budget_s: For plain buffers, over all devices.
        nodes: CPUs of the NUMA nodes, by the node's number as text.
        near: Nodes of the cards' slots, by NVML's UUID.
        build: The target whose batch is copied; ``None`` for none.
        batch_size: Of the target's batch; ``None`` keeps the target's own.
        seed: Of the order of measuring, and of the target's own order.
        parent: The process that asks, without which nobody wants the answer; 0 for any.
    """

    device: str = "auto"
    all_devices: bool = False
    most_bytes: int = 1 << 28
    budget_s: float = 10.0
    nodes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    near: Mapping[str, int] = dataclasses.field(default_factory=dict)
    build: BuildRequest | None = None
    batch_size: int | None = None
    seed: int = 0
    parent: int = 0


def record_of(kind: type[_Record], values: object) -> _Record | None:
    """A record that another process sent as plain values; ``None`` where it sent none.

    Raises:
        MismatchError: They don't fit the record, or hold a number that isn't finite.
    """
    return None if values is None else from_json(kind, values)


def describe_error(error: DlprofError) -> dict[str, str]:
    """An error as a message, for ``error_of`` in the process that asked."""
    return {
        "kind": error.kind,
        "message": error.message,
        "hint": error.hint,
        "traceback": error.traceback,
    }


def error_of(fault: Mapping[str, str]) -> DlprofError:
    """The error that another process described."""
    kind = _ERRORS.get(fault["kind"], TargetError)
    return kind(fault["message"], hint=fault["hint"], traceback=fault["traceback"])


class Channel:
    """One end of a stream of messages, over file objects or a pair of descriptors.

    Sending to an end whose reader has gone is not an error: whoever waits for an answer sees the
    end of the stream instead.
    """

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    def of_descriptors(cls, read_fd: int, write_fd: int) -> Channel:
        """A channel over two descriptors, which it then owns."""
        return cls(os.fdopen(read_fd, "rb"), os.fdopen(write_fd, "wb"))

    @classmethod
    def of_socket(cls, link: socket.socket) -> Channel:
        """A channel that keeps the socket's descriptor open by itself."""
        return cls(link.makefile("rb"), link.makefile("wb"))

    @classmethod
    def of_standard_streams(cls) -> Channel:
        """The channel to who started this process.

        What the target prints goes to stderr; where it asks for input, there is none.
        """
        channel = cls.of_descriptors(os.dup(0), os.dup(1))
        with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - what os.devnull names
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        return channel

    def send(self, message: Mapping[str, Any]) -> None:
        """Write one message at once."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, ValueError):
            self._writer.write(json.dumps(message).encode() + b"\n")
            self._writer.flush()

    def receive(self) -> Message | None:
        """The next message, or ``None`` at the end of the stream.

        Lines that are no message are left out: a dataset that writes to a descriptor which is not
        its own must not end the sweep.
        """
        with contextlib.suppress(ConnectionResetError, ValueError, OSError):
            while (line := self._reader.readline()).endswith(b"\n"):
                try:
                    message = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(message, dict):
                    return message
        return None

    def hear(self) -> Message | None:
        """The next event of a process that may run the user's code, or ``None`` at the end.

        What names none is left out: a dataset may write JSON of its own there.
        """
        while (message := self.receive()) is not None:
            if isinstance(message.get("event"), str):
                return message
        return None

    def close_writing(self) -> None:
        """Say to the other end that nothing more will come; what it says is still received."""
        with contextlib.suppress(OSError):
            self._writer.close()

    def close(self) -> None:
        """Close both directions."""
        for stream in (self._writer, self._reader):
            with contextlib.suppress(OSError):
                stream.close()


Orders = Mapping[str, Callable[..., Message | None]]
"""What to call by an order's name, with what else it holds as keywords; it may return an answer."""


def obey(order: Message, orders: Orders) -> Message | None:
    """Carry out one order; what is none of the orders does nothing."""
    function = orders.get(order.get("order", ""))
    details = {name: value for name, value in order.items() if name != "order"}
    return None if function is None else function(**details)


def serve(channel: Channel, orders: Orders, failed: Callable[[BaseException], Message]) -> None:
    """Carry out order after order, until who gives them goes away.

    What an order raises, ``failed`` makes an answer of.
    """
    fault: BaseException | None = None
    while True:
        try:
            order = channel.receive()
        except Exception as error:  # noqa: BLE001 - as torch raises a worker's death anywhere
            fault = error
            continue
        if order is None:
            return
        answer = None
        try:
            if fault is None:
                answer = obey(order, orders)
        except BaseException as error:  # noqa: BLE001 - whatever the user's code raises is a result
            fault = error
        if fault is not None:
            answer, fault = failed(fault), None
        if answer is not None:
            try:
                channel.send(answer)
            except Exception as error:  # noqa: BLE001 - a worker may die right after its last batch
                fault = error
