"""The limits of ``recommend`` from the texts of its flags."""

from __future__ import annotations

from dlprof.records import Constraints


def read_constraints(
    *,
    max_workers: str | None,
    max_ram: str | None,
    max_shm: str | None,
    ranks: str | None,
    step_time: str | None,
) -> Constraints:
    """The limits that a recommendation must keep; texts mean what they mean to a sweep.

    Args:
        max_workers: Workers of one rank's loader; ``None`` is no limit.
        max_ram: Memory of all ranks together.
        max_shm: Shared memory of all ranks together.
        ranks: Training processes on the machine; ``None`` is 1.
        step_time: Length of a training step; ``None`` is the step that was measured.

    Raises:
        UsageError: For a text that is no such value, or a value out of range.
    """
    texts = {
        "max_workers": max_workers,
        "max_ram": max_ram,
        "max_shm": max_shm,
        "ranks": ranks,
        "step_time": step_time,
    }
    given = {key: text for key, text in texts.items() if text is not None}
    if not given:
        return Constraints()
    from dlprof.settings import parse_option  # noqa: PLC0415 - most calls name no limit

    values = {key: parse_option(key, text) for key, text in given.items()}
    return Constraints(
        max_workers=values.get("max_workers"),
        max_ram_bytes=values.get("max_ram"),
        max_shm_bytes=values.get("max_shm"),
        ranks=values.get("ranks", 1),
        step_s=values.get("step_time"),
    )
