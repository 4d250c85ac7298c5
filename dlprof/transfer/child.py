"""The process that copies: reads one request, reports what it measures as it goes, and ends."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dlprof.device.runtime import (
    HostRuntime,
    Runtime,
    UnavailableError,
    find_accelerator,
    open_runtime,
)
from dlprof.errors import DlprofError, TargetError, UsageError
from dlprof.records import Config
from dlprof.records.codec import from_json
from dlprof.targets.faults import one_line, refuse_old_torch, user_traceback
from dlprof.transfer.copying import all_at_once, measure_batch, measure_device
from dlprof.trial.child import as_target_error, build
from dlprof.trial.processes import die_with_parent
from dlprof.trial.protocol import (
    BuildRequest,
    Channel,
    Message,
    TransferRequest,
    describe_error,
)

_Open = Callable[[str], Runtime]


def main() -> None:
    """Answer the one request on standard input; what the target prints goes to standard error."""
    channel = Channel.of_standard_streams()
    order = channel.receive()
    if order is not None:
        request = from_json(TransferRequest, order["request"])
        die_with_parent(request.parent or None)  # it may have died while torch was imported
        answer(request, channel.send)
    channel.close()
    os._exit(0)  # not by way of what the user's code has left running


def answer(
    request: TransferRequest, send: Callable[[Message], object], opened: _Open = open_runtime
) -> None:
    """Measure all that is asked for, and report each part when it is known."""
    try:
        _answer(request, send, opened)
    except DlprofError as error:
        send({"event": "failed", "error": describe_error(error)})
        return
    version = str(torch.__version__)
    send({"event": "done", "torch_version": version, "accelerator": find_accelerator()})


def _answer(request: TransferRequest, send: Callable[[Message], object], opened: _Open) -> None:
    refuse_old_torch(torch.__version__)
    try:
        found = [opened(name) for name in _names(request)]
    except UnavailableError as reason:
        raise UsageError(
            f"--device {request.device} can't be copied to: {reason}",
            hint="Leave --device out, or install a torch that supports the device.",
        ) from None
    runtimes = {str(runtime.device): runtime for runtime in found}
    target = request.build
    load = None if target is None else _loading(request, target)
    if load is not None:
        load(False)  # what is wrong with a target is reported before all else is measured
    everywhere = {**runtimes, "cpu": HostRuntime()}
    for name, runtime in everywhere.items():
        send({"event": "progress", "text": f"copying to {name}"})
        copied = measure_device(name, runtime, request, request.budget_s / len(everywhere))
        send({"event": "device", "device": copied})
    if request.all_devices and len(runtimes) > 1:
        send({"event": "progress", "text": f"copying to {len(runtimes)} devices at once"})
        with _missing("together", send):
            send({"event": "together", "rates": all_at_once(runtimes, request.most_bytes)})
    if load is not None and target is not None:
        send({"event": "progress", "text": "copying the target's own batch"})
        with _missing("batch", send):
            runtime = next(iter(everywhere.values()))
            batch = measure_batch(load, runtime, target.target.text)
            send({"event": "batch", "batch": batch})


@contextlib.contextmanager
def _missing(what: str, send: Callable[[Message], object]) -> Iterator[None]:
    """Go on without one part; the device or the batch's own code may raise anything."""
    try:
        yield
    except DlprofError:
        raise
    except UnavailableError as reason:
        send({"event": "missing", "what": what, "reason": str(reason)})
    except Exception as error:  # a batch's objects have a ``to`` of the user's own
        send({"event": "missing", "what": what, "reason": one_line(error)})


def _names(request: TransferRequest) -> tuple[str, ...]:
    """The accelerators to copy to, by torch's names; the CPU always comes besides."""
    found = find_accelerator()
    if request.all_devices and found is not None:
        return tuple(f"{found}:{index}" for index in range(torch.accelerator.device_count()))
    if request.device == "auto":
        return () if found is None else (found,)
    return () if request.device.partition(":")[0] == "cpu" else (request.device,)


def _loading(request: TransferRequest, target: BuildRequest) -> Callable[[bool], Any]:
    """Builds the target; the function then loads the same first batch again and again."""
    from dlprof.targets.loader import make_loader  # torch.utils.data with it

    try:
        built = build(target)
    except BaseException as error:
        raise as_target_error(error) from error

    def load(pin: bool) -> Any:  # noqa: FBT001 - passed on as the one thing that differs
        random.seed(request.seed)
        torch.manual_seed(request.seed)
        loader = make_loader(built, Config(pin_memory=pin, batch_size=request.batch_size))
        batches, spec = iter(loader), built.target.spec
        try:
            return next(batches)
        except StopIteration:
            raise UsageError(
                f"The target {spec!r} gave no batch",
                hint="Give a target with at least one batch.",
            ) from None
        except Exception as error:
            raise TargetError(
                f"Loading a batch of {spec!r} raised {one_line(error)}.",
                hint="The traceback shows where.",
                traceback=user_traceback(error),
            ) from error

    return load


if __name__ == "__main__":
    main()
