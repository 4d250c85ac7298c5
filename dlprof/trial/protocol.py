"""What dlprof's processes say to each other, and how they serve what they are ordered.

Every message is one JSON object on a line. A ``Channel`` is one end of a two-way stream of them.
An order names what is to be done as ``order``, an answer what has happened as ``event``. What else
they hold are plain values, and records, which ``dlprof.records.codec`` reads again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import operator
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
    """Everything that is needed to build the target in another process."""

    target: TargetSpec  # what TARGET names
    arguments: Mapping[str, str] = dataclasses.field(default_factory=dict)  # ``--arg`` pairs
    shuffle: bool | None = None  # overrides the target's own order; ``None`` keeps it
    seed: int = 0  # seeds Python's and torch's generators before the target is built
    # CPU time by which each batch of a warm side is to take longer (self-test only).
    delay_s: float = 0.0
    rank: int = 0  # whose share of a dataset is taken that has no sharding of its own
    ranks: int = 1  # among how many; the process's environment says the same to the user's code


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """One trial, as the supervisor asks for it."""

    config: Config  # what to measure
    trial_s: float = 1.0  # length of the measured window
    step_s: float = 0.0  # length of the consumer's step; 0 for none
    # How steps differ, with ``step_s`` as their mean; empty where all are alike.
    step_spread: str = ""
    step_callable: str | None = None  # ``module:function`` to call with each batch instead
    cold_cache: bool = False  # evict the dataset's files from the page cache first
    temporary: str = ""  # a directory that the trial's processes may use; the supervisor removes it
    turnover: bool = True  # time the end of an epoch, if none comes by itself
    # Measure no more than one epoch: samples that come again come from the dataset's own memory.
    one_epoch: bool = False
    spread: bool = False  # load batches from all over an epoch that is in the dataset's order
    limit_s: float | None = None  # for how long a probe is waited for, if that is known
    # Instead of measuring, load a batch or two in the main process and describe them; with workers,
    # try whether they can be started.
    probe: bool = False
    weigh: bool = False  # instead of that, weigh the dataset within ``trial_s``
    along: bool = False  # instead of that, see whether its samples differ along an epoch
    # Start methods by which one worker is then started; ``own`` for the loader's.
    starts: tuple[str, ...] = ()
    any_size: bool = False  # measure an epoch without one full batch, too
    # Follow each batch through its stages; the rate is then no figure to compare.
    explain: bool = False
    # Whether it may take more memory then, to see what page faults of freed memory cost.
    keeps_freed: bool = False
    # Where batches are copied to before the step, by torch's name; ``auto`` for the accelerator
    # that torch finds.
    device: str = "cpu"
    copy_ahead: bool = False  # copy on a side stream while the batch before is worked on
    # Where a step of ``step_s`` passes: ``host`` (it sleeps) or ``device`` (it works).
    step_on: str = "host"
    rank: int = 0  # whose loader this is, of those that load at once
    ranks: int = 1  # how many load at once
    step_barrier: bool = False  # whether all of them pass each step together
    # What each of them is bound to with its workers, by rank; free where it is empty.
    cpus: tuple[tuple[int, ...], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BlockRequest:
    """One block of a check, as a side is asked for it."""

    # ``load`` for steady loading, ``start`` for a start and the turn of an epoch.
    series: Series = "load"
    batches: int = 0  # how many a block of loading has; those that fill the queues among them
    seed: int = 0  # of the order and of random numbers, so that every block loads the same samples
    # What the side is held to during it, worker after worker; free where it is empty.
    cores: tuple[int, ...] = ()
    # How often a block loads the same samples; more than once by a process of its own, forked from
    # the side, which holds none of them at first and in whose memory they stay.
    epochs: int = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransferRequest:
    """What the process that copies is to measure (``dlprof.transfer``)."""

    # Torch's name; ``auto`` for the accelerator that torch finds, else the CPU.
    device: str = "auto"
    all_devices: bool = False  # copy to all accelerators, one by one and at once
    most_bytes: int = 1 << 28  # largest buffer
    budget_s: float = 10.0  # for plain buffers, over all devices
    # CPUs of the NUMA nodes, by the node's number as text.
    nodes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    # Nodes of the cards' slots, by NVML's UUID.
    near: Mapping[str, int] = dataclasses.field(default_factory=dict)
    build: BuildRequest | None = None  # the target whose batch is copied; ``None`` for none
    batch_size: int | None = None  # of the target's batch; ``None`` keeps the target's own
    seed: int = 0  # of the order of measuring, and of the target's own order
    parent: int = 0  # the process that asks, without which nobody wants the answer; 0 for any


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


def line_of(message: Mapping[str, Any]) -> bytes:
    """A message as it is sent; records in it as plain values."""
    return json.dumps(message, default=_plain).encode() + b"\n"


def _plain(value: Any) -> Any:
    """A record as JSON has it, or a number: a target's settings may be numpy's, or no record's."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    for read in (operator.index, float):
        with contextlib.suppress(TypeError, ValueError):
            return read(value)
    return type(value).__name__


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
        with open(os.devnull, "rb") as nothing:  # what os.devnull names
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        return channel

    def send(self, message: Mapping[str, Any]) -> None:
        """Write one message at once."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, ValueError):
            self._writer.write(line_of(message))
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
        except Exception as error:  # as torch raises a worker's death anywhere
            fault = error
            continue
        if order is None:
            return
        answer = None
        try:
            if fault is None:
                answer = obey(order, orders)
        except BaseException as error:  # whatever the user's code raises is a result
            fault = error
        if fault is not None:
            answer, fault = failed(fault), None
        if answer is not None:
            try:
                channel.send(answer)
            except Exception as error:  # a worker may die right after its last batch
                fault = error
