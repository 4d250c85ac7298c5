"""Whether, where and how a trial's batches are copied to a device, and what pinning them costs."""

from __future__ import annotations

from typing import Any

from dlprof.device.moving import move
from dlprof.device.runtime import Runtime, UnavailableError, find_accelerator, open_runtime
from dlprof.device.spinning import Spinner
from dlprof.errors import TargetError
from dlprof.records import Copies, PinCosts
from dlprof.trial.consumer import Consumer, make_consumer
from dlprof.trial.copying import Copying, Step, Window
from dlprof.trial.pinning import host_memory, pin_costs, pin_threads
from dlprof.trial.protocol import TrialRequest


def open_device(name: str) -> Runtime | None:
    """The device that a trial's batches go to; ``None`` where they stay on the CPU.

    Args:
        name: Torch's, or ``auto``.

    Raises:
        TargetError: It isn't there.
    """
    wanted = find_accelerator() if name == "auto" else name
    if wanted is None or wanted.partition(":")[0] == "cpu":
        return None
    try:
        return open_runtime(wanted)
    except UnavailableError as reason:
        raise TargetError(
            f"Batches can't be copied to {name}: {reason}.",
            hint="Leave --device out, or name a device that torch finds.",
        ) from None


def make_copying(request: TrialRequest) -> Copying | None:
    """What copies batches and then does the step; ``None`` where batches stay on the CPU.

    Raises:
        TargetError: The device isn't there, or the step can't be imported.
    """
    runtime = open_device(request.device)
    if runtime is None:
        return None
    if request.step_callable is not None:
        # It may only order its work, as a training step does that doesn't read its loss.
        step = Step(work=make_consumer(0.0, request.step_callable), runs_ahead=True)
    elif request.step_s > 0 and request.step_on == "device":
        spinner = Spinner(runtime)
        step = Step(work=lambda _batch: spinner.spin(request.step_s), runs_ahead=True)
    else:
        step = Step(
            work=make_consumer(request.step_s, None),
            waits=request.step_s > 0,
            runs_ahead=request.step_s <= 0,
        )
    return Copying(runtime, step, ahead=request.copy_ahead)


class CopyWatch:
    """Copies a trial's batches, and knows at its end what that and pinning cost.

    Args:
        copying: Copies them.
        pins: Whether the configuration pins batches.

    Attributes:
        consume: Called with each batch.
    """

    def __init__(self, copying: Copying, *, pins: bool) -> None:
        self.consume: Consumer = copying
        self._copying = copying
        self._pins = pins
        self._threads = pin_threads() if pins else None
        self._pin: PinCosts | None = None

    def window(self, inner: Window) -> Window:
        """Look at the thread that pins at the window's edges, inside of what else is done there."""

        def edge(name: str, fill_s: float) -> None:
            if name == "end" and self._pins:
                memory = host_memory(self._copying.kind)
                self._pin = pin_costs(self._threads, pin_threads(), self._copying.batches, memory)
            inner(name, fill_s)
            if name == "start" and self._pins:
                self._threads = pin_threads()

        return self._copying.window(edge)

    def told(self) -> Copies:
        """The figures of the window."""
        return self._copying.told(self._pin)

    def exposed_times(self) -> list[float]:
        """Of the timed batches, seconds in which the step had to wait for the copy."""
        return self._copying.exposed_times()

    def held_s(self) -> float:
        """Mean seconds in which a copy held the consuming thread up."""
        return self._copying.held_s()


def watch_copies(request: TrialRequest) -> CopyWatch | None:
    """What copies the batches of a trial; ``None`` where they stay on the CPU.

    Raises:
        TargetError: The device isn't there, or the step can't be imported.
    """
    copying = make_copying(request)
    return None if copying is None else CopyWatch(copying, pins=request.config.pin_memory)


def bring_for_step(batch: Any, device: str) -> Any:
    """A batch where the user's step will find it, to try that step with."""
    runtime = open_device(device)
    return batch if runtime is None else move(batch, runtime.device)
