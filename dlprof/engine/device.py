"""Where the batches of a run's trials go."""

from __future__ import annotations

from typing import TypedDict

from dlprof.errors import UsageError
from dlprof.settings import SweepSettings


class Place(TypedDict):
    """The fields of a ``TrialRequest`` that say where batches go."""

    device: str
    copy_ahead: bool
    step_on: str


def place_of(settings: SweepSettings, accelerator: str | None) -> Place:
    """Where batches go, for every trial of a run.

    Args:
        settings: What the user asked for.
        accelerator: Torch's name of the kind of accelerator that is used; ``None`` for the CPU.

    Raises:
        UsageError: Options ask for a device where batches stay on the CPU.
    """
    if accelerator is None:
        return _on_the_cpu(settings)
    named = settings.device != "auto"
    return Place(
        device=settings.device if named else accelerator,
        copy_ahead=settings.copy_ahead,
        step_on=settings.step_on,
    )


def _on_the_cpu(settings: SweepSettings) -> Place:
    for asked, option in (
        (settings.copy_ahead, "copy_ahead = on"),
        (settings.step_on == "device", "step_on = device"),
    ):
        if asked:
            raise UsageError(
                f"{option} needs an accelerator, and batches stay on the CPU here",
                hint="Leave it out, or see with dlprof transfer which devices torch finds.",
            )
    return Place(device="cpu", copy_ahead=False, step_on="host")
