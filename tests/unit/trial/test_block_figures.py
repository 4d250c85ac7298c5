"""From stamps to the figures of a block."""

from __future__ import annotations

import dataclasses

import pytest

from dlprof.tracing.clocks import MISSING
from dlprof.tracing.trace import Made, Row
from dlprof.trial.warm import block_figures

MS = 1_000_000


def row(batch: int, *, run_queue: int = 0, worker: int = 0) -> Row:
    """A batch of 10 ms of fetching and 2 of collating, taken in 3 of which 1 was CPU."""
    made = Made(
        worker=worker,
        ordinal=batch,
        picked=0,
        fetched=10 * MS,
        collated=12 * MS,
        fetch_cpu=8 * MS,
        fetch_run_queue=run_queue,
        collate_cpu=MS,
        collate_run_queue=0 if run_queue >= 0 else MISSING,
        others_cpu=0,
        between_cpu=0,
        process_cpu=0,
    )
    return Row(
        epoch=0,
        batch=batch,
        made=made,
        received=20 * MS,
        rebuilt=23 * MS,
        receive_cpu=MS,
        receive_run_queue=0,
        asked=0,
        yielded=24 * MS,
    )


def test_waiting_for_a_core_is_taken_off() -> None:
    rows = [row(0), row(1, run_queue=4 * MS)]
    figures = block_figures(rows, samples=[4, 4], times_s=[0.0, 0.5])
    assert figures["service_s"] == pytest.approx([0.012, 0.008])
    assert figures["corrected"]
    assert figures["stages_s"] == pytest.approx(
        {"fetch": 0.016, "collate": 0.004, "receive": 0.002}
    )


def test_transforms_are_parts_of_fetching() -> None:
    one = row(0, run_queue=5 * MS)  # half of fetching was waiting for a core
    assert one.made is not None
    made = one.made._replace(chain=(4, 6 * MS, 4, 2 * MS))
    rows = [dataclasses.replace(one, made=made), row(1)]
    figures = block_figures(rows, samples=[4, 4], times_s=[], transforms=["Resize", "Crop"])
    assert figures["stages_s"]["fetch: Resize"] == pytest.approx(0.003)
    assert figures["stages_s"]["fetch: Crop"] == pytest.approx(0.001)


def test_without_it_times_are_wall_times_and_that_is_said() -> None:
    rows = [row(0, run_queue=MISSING), row(1)]
    figures = block_figures(rows, samples=[4, 4], times_s=[])
    assert figures["service_s"] == pytest.approx([0.012, 0.012])
    assert not figures["corrected"]
    assert figures["wall_s"] is None


def test_of_a_loader_that_can_not_be_hooked_the_wait_is_known() -> None:
    rows = [dataclasses.replace(row(0), made=None)]
    figures = block_figures(rows, samples=[4], times_s=[1.0])
    assert figures["service_s"] == pytest.approx([0.024])
    assert not figures["corrected"]
    assert figures["stages_s"] == {}


def test_wall_time_is_that_of_the_undisturbed_part_for_the_whole_block() -> None:
    rows = [row(batch) for batch in range(4)]
    figures = block_figures(rows, samples=[2, 2, 2, 2], times_s=[5.0, 5.1, 5.2])
    assert figures["wall_s"] == pytest.approx(0.4)  # 0.1 s for each of four batches


def test_batches_past_the_hooks_make_no_figures() -> None:
    assert "failure" in block_figures([row(0)], samples=[4, 4], times_s=[])
