"""``dlprof transfer`` from options to figures: another process copies, this one listens."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from dlprof.engine.trials import ProgressListener
from dlprof.engine.workplace import work_directory
from dlprof.errors import NothingMeasuredError, UsageError
from dlprof.machine import inspect_machine
from dlprof.machine.inspection import node_cpus
from dlprof.records import Machine
from dlprof.records.codec import from_json
from dlprof.records.transfer import BatchTransfer, DeviceTransfer, TogetherRate, Transfers
from dlprof.settings import by_key
from dlprof.targets.builtin.options import prepare
from dlprof.targets.grammar import parse_target
from dlprof.trial.failures import ended, last_lines
from dlprof.trial.protocol import BuildRequest, Message, TransferRequest, error_of
from dlprof.trial.runtime import Inbox, ModuleProcess, TrialLog, open_log

_SHARED = "Copies ran to all devices at once, which slows down other users of their links."


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings:
    """What the user asked for."""

    device: str = "auto"  # torch's name, or ``auto``
    all_devices: bool = False  # copy to all accelerators, one by one and at once
    budget_s: float = 10.0  # for copies of plain buffers, over all devices
    target: str | None = None  # whose batch is copied; ``None`` for none
    # ``--arg`` pairs of the target.
    arguments: Mapping[str, str] = dataclasses.field(default_factory=dict)
    batch_size: int | None = None  # of its batch; ``None`` keeps the target's own
    shuffle: bool | None = None  # overrides the target's own order
    seed: int = 0  # of the target's order
    timeout_s: float = 300.0  # the whole is ended after it

    @classmethod
    def of(
        cls, given: Mapping[str, object | None], named: Callable[[str], str] = str
    ) -> TransferSettings:
        """What was asked for, read by the rules that all commands share.

        Args:
            given: Texts or natural values under the keys of a sweep's options, and
                ``all_devices``; ``None`` is not given.
            named: What an option is called where it was given.
        """
        asked = {key: value for key, value in given.items() if value is not None}
        every = bool(asked.pop("all_devices", False))
        for key in ("arg", "batch_size", "shuffle"):
            if key in asked and "target" not in asked:
                raise UsageError(
                    f"{named(key)} belongs to {named('target')}",
                    hint=f"Give {named('target')} too, or leave it out.",
                )
        if every and "device" in asked:
            raise UsageError(
                f"{named('device')} and {named('all_devices')} don't go together",
                hint="Leave one of them out.",
            )
        options = by_key()
        read = {options[key].field: options[key].read(v, named(key)) for key, v in asked.items()}
        sizes = read.pop("batch_size", None)
        if sizes is not None and len(sizes) > 1:
            raise UsageError(
                f"{named('batch_size')} takes one value here", hint="Give one of them."
            )
        return cls(**read, batch_size=None if sizes is None else sizes[0], all_devices=every)


def run_transfer(options: TransferSettings, listener: ProgressListener) -> Transfers:
    """Measure how fast data reaches the device."""
    machine = inspect_machine()
    build = None
    if options.target is not None:
        spec = parse_target(options.target)
        if spec.kind == "builtin":
            prepare(spec, listener.preparing, arguments=options.arguments)
        build = BuildRequest(
            target=spec, arguments=options.arguments, shuffle=options.shuffle, seed=options.seed
        )
    request = TransferRequest(
        device=options.device,
        all_devices=options.all_devices,
        most_bytes=largest_buffer(machine),
        budget_s=options.budget_s,
        nodes={str(node): cpus for node, cpus in node_cpus().items()},
        near={gpu.uuid: gpu.numa_node for gpu in machine.gpus if gpu.numa_node is not None},
        build=build,
        batch_size=options.batch_size,
        seed=options.seed,
        parent=os.getpid(),
    )
    deadline_s = time.monotonic() + options.timeout_s + options.budget_s
    cut = ""
    heard = collections.defaultdict[str, list[Message]](list)
    with work_directory() as directory, open_log(directory / "transfer.log") as file:
        process = ModuleProcess(
            [sys.executable, "-m", "dlprof.transfer.copying"],
            what="the process that copies",
            inbox=Inbox(lambda: listener.pulse(None)),
            source="transfer",
            log=file,
        )
        with contextlib.ExitStack() as ending:
            ending.callback(process.end)
            process.order("copy", request=request)
            while not (cut or heard["done"]):
                answer = process.answer(deadline_s - time.monotonic())
                if answer is None:
                    cut = f"it took longer than {options.timeout_s:g} s"
                elif (message := answer.message) is None:
                    cut = f"the process that copies {ended(process.status())}"
                elif message["event"] == "progress":
                    listener.preparing(message["text"], 0, 0)
                elif message["event"] == "failed":
                    raise error_of(message["error"])
                else:
                    heard[message["event"]].append(message)
        return _transfers(machine, options, heard, cut, last_lines(TrialLog(file).text()))


def largest_buffer(machine: Machine) -> int:
    """Bytes of the largest buffer that leaves memory to others: 256 MiB, or what can be spared.

    That is an eighth of what is available, since three are held at once, and 4 MiB at least.
    """
    size, free = 1 << 28, machine.memory_available_bytes
    while free is not None and size > 1 << 22 and size > free // 8:
        size //= 4
    return size


def _transfers(
    machine: Machine,
    options: TransferSettings,
    heard: Mapping[str, Sequence[Message]],
    cut: str,
    log: str,
) -> Transfers:
    """All that the process has reported."""
    done: Message = next(iter(heard["done"]), {})
    devices = [from_json(DeviceTransfer, each["device"]) for each in heard["device"]]
    if not devices:
        raise NothingMeasuredError(
            f"No copy could be measured: {cut}.",
            hint="See the last lines that it wrote; dlprof machine shows the devices.",
            traceback=log,
        )
    rates = [rate for each in heard["together"] for rate in each["rates"]]
    together = tuple(from_json(TogetherRate, rate) for rate in rates)
    batches = [from_json(BatchTransfer, each["batch"]) for each in heard["batch"]]
    accelerator = done.get("accelerator")
    missing = {}
    if cut:
        missing["rest"] = cut
    elif accelerator is None:
        missing["accelerator"] = "torch finds no accelerator on this machine"
    if options.all_devices and not together:
        missing["together"] = cut or "there are not two accelerators"
    if options.target is not None and not batches:
        missing["batch"] = cut
    missing |= {each["what"]: each["reason"] for each in heard["missing"]}
    return Transfers(
        machine=machine,
        torch_version=done.get("torch_version", ""),
        accelerator=accelerator,
        devices=tuple(devices),
        together=together,
        batch=batches[-1] if batches else None,
        warnings=(_SHARED,) if together else (),
        unavailable=missing,
    )
