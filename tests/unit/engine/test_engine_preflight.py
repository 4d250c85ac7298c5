"""What can't work is skipped, with the sum; what might is not."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest
from builders import config, machine, target
from hypothesis import given
from hypothesis import strategies as st

from dlprof.engine.preflight import Preflight
from dlprof.engine.trials import (
    Deadline,
    Outlook,
    _refuse_small,
    limits_of,
    plan_sweep,
    trial_cost,
)
from dlprof.errors import TargetError, UsageError
from dlprof.records import Config, Failure
from dlprof.search.space import DEFAULT_OVERHEAD_S, Space
from dlprof.settings import SweepSettings
from dlprof.units import parse_duration_s

MIB = 1 << 20
PROBE: dict[str, Any] = {
    "least_bytes": 2 * MIB,
    "shared_bytes": 2 * MIB,
    "descriptors": 3,
    "start_method": "fork",
    "sharing_strategy": "file_descriptor",
    "batch_failure": None,
}
NOT_PICKLABLE = Failure(kind="not_picklable", message="It holds a lock.", hint="Leave it out.")


def preflight(
    *,
    settings: SweepSettings | None = None,
    probe: dict[str, Any] | None = None,
    unstartable: Failure | None = None,
    own_config: Config | None = None,
    threads: int | None = None,
    **room: Any,
) -> Preflight:
    return Preflight(
        settings or SweepSettings(),
        target(own_config=own_config),
        machine(**room),
        PROBE | (probe or {}),
        threads,
        unstartable,
    )


def test_several_forked_workers_that_share_a_file_are_skipped() -> None:
    found = Preflight(SweepSettings(), target(shared_files=("file of a.zip",)), machine(), PROBE)
    assert [found.fault(config(workers)) is None for workers in (0, 1, 2)] == [True, True, False]
    assert fault(found, config(2)).kind == "shared_file"
    assert found.fault(config(2, start_method="spawn")) is None


@pytest.mark.parametrize(
    ("timeout_s", "stall_s"), [(5.0, 5.0), (60.0, 20.0), (120.0, 20.0), (240.0, 40.0)]
)
def test_whoever_raises_the_timeout_waits_longer_for_a_batch(
    timeout_s: float, stall_s: float
) -> None:
    assert limits_of(SweepSettings(timeout_s=timeout_s), machine()).stall_s == stall_s


def fault(found: Preflight, tried: Config) -> Failure:
    failure = found.fault(tried)
    assert failure is not None
    assert failure.message.endswith(".")
    assert failure.hint
    return failure


def test_where_there_is_room_for_all_nothing_is_skipped() -> None:
    assert preflight().fault(config(64, 16)) is None


@given(
    room=st.integers(0, 1 << 40),
    files=st.integers(1, 1 << 20),
    size=st.integers(0, 1 << 40),
    pieces=st.integers(0, 1 << 20),
)
def test_no_workers_are_always_measured(room: int, files: int, size: int, pieces: int) -> None:
    found = preflight(
        memory_available_bytes=room,
        shm_available_bytes=room,
        open_files_limit=files,
        probe={
            "least_bytes": size,
            "shared_bytes": size,
            "descriptors": pieces,
            "batch_failure": dataclasses.asdict(NOT_PICKLABLE),
        },
        unstartable=NOT_PICKLABLE,
    )
    assert found.fault(config(0)) is None
    assert found.fault(config(0, pin_memory=True)) is None


def test_full_queues_must_fit_shared_memory() -> None:
    found = preflight(shm_available_bytes=64 * MIB)
    failure = fault(found, config(8, 4))
    assert failure.kind == "shared_memory"
    assert "8 x 4 + 1 batches of 2.0 MiB need 66.0 MiB of shared memory" in failure.message
    assert "64.0 MiB is free" in failure.message
    assert "--shm-size" in failure.hint
    assert found.fault(config(8, 2)) is None


def test_what_is_not_sent_through_shared_memory_needs_none() -> None:
    found = preflight(shm_available_bytes=1, probe={"shared_bytes": 0})
    assert found.fault(config(8, 4)) is None


def test_ranks_share_the_limit_of_shared_memory() -> None:
    settings = SweepSettings(max_shm_bytes=64 * MIB, ranks=2)
    failure = fault(preflight(settings=settings), config(8, 2))
    assert "--max-shm leaves 32.0 MiB to each of 2 ranks" in failure.message


def test_batches_grow_with_their_size() -> None:
    found = preflight(shm_available_bytes=64 * MIB)
    assert found.fault(config(8, 2, batch_size=32)) is None
    assert "of 16.0 MiB" in fault(found, config(8, 2, batch_size=256)).message


def test_workers_and_full_queues_must_fit_memory() -> None:
    found = preflight(memory_available_bytes=100_000_000)
    failure = fault(found, config(8, 2))
    assert failure.kind == "out_of_memory"
    assert "8 workers of at least 10.5 MiB and 8 x 2 + 1 batches of 2.0 MiB" in failure.message
    assert "need 118 MiB of memory, and 95.4 MiB is free" in failure.message
    assert found.fault(config(4, 2)) is None


def test_workers_that_import_torch_again_need_more() -> None:
    found = preflight(memory_available_bytes=500_000_000)
    assert found.fault(config(8, 2, start_method="fork")) is None
    assert "95.4 MiB" in fault(found, config(8, 2, start_method="spawn")).message


def test_ranks_share_the_limit_of_memory() -> None:
    settings = SweepSettings(max_ram_bytes=200_000_000, ranks=4)
    failure = fault(preflight(settings=settings), config(8, 2))
    assert "--max-ram leaves 47.7 MiB to each of 4 ranks" in failure.message


def test_tensors_need_descriptors() -> None:
    found = preflight(open_files_limit=1024, probe={"descriptors": 509})
    failure = fault(found, config(2))
    assert failure.kind == "file_descriptors"
    assert "2 batches of 509 tensors and the queues of 2 workers need 1,028" in failure.message
    assert "may have 1,024" in failure.message
    assert "ulimit -n" in failure.hint
    assert found.fault(config(1)) is None


@pytest.mark.parametrize(
    ("probe", "tried"),
    [
        ({}, config(2, sharing_strategy="file_system")),
        ({"sharing_strategy": "file_system"}, config(2)),
        ({"sharing_strategy": None}, config(2)),
        ({"sharing_strategy": None}, config(2, sharing_strategy="file_descriptor")),
        ({}, config(2, batch_size=8)),
    ],
)
def test_descriptors_are_counted_only_where_it_is_certain(
    probe: dict[str, Any], tried: Config
) -> None:
    found = preflight(open_files_limit=64, probe={"descriptors": 510, **probe})
    assert found.fault(tried) is None


def test_workers_need_threads_that_ranks_share() -> None:
    failure = fault(preflight(threads=100), config(64))
    assert failure.kind == "start_failed"
    assert "64 workers need 128 processes and threads" in failure.message
    assert "a cgroup lets 100 be started" in failure.message
    assert "--pids-limit" in failure.hint
    assert preflight(threads=100).fault(config(50)) is None
    two = preflight(threads=100, settings=SweepSettings(launch_ranks=(2,)))
    assert [two.fault(config(workers)) is None for workers in (25, 26)] == [True, False]


@pytest.mark.parametrize("start", [None, "fork", "spawn"])
def test_a_batch_that_can_not_be_sent_leaves_no_workers(start: str | None) -> None:
    unsendable = Failure(kind="batch_not_picklable", message="An open file.", hint="Close it.")
    found = preflight(probe={"batch_failure": dataclasses.asdict(unsendable)})
    assert fault(found, config(1, start_method=start)) == unsendable


def test_what_can_not_be_pickled_can_still_be_forked() -> None:
    found = preflight(unstartable=NOT_PICKLABLE)
    assert fault(found, config(1, start_method="spawn")) == NOT_PICKLABLE
    assert fault(found, config(1, start_method="forkserver")) == NOT_PICKLABLE
    assert found.fault(config(1, start_method="fork")) is None
    assert found.fault(config(1)) is None


def test_the_target_s_own_start_method_counts_before_the_platform_s() -> None:
    found = preflight(unstartable=NOT_PICKLABLE, own_config=config(2, start_method="spawn"))
    assert fault(found, config(1)) == NOT_PICKLABLE
    by_default = preflight(unstartable=NOT_PICKLABLE, probe={"start_method": "forkserver"})
    assert fault(by_default, config(1)) == NOT_PICKLABLE


def test_what_is_not_known_skips_nothing() -> None:
    found = preflight(
        memory_available_bytes=None,
        shm_available_bytes=None,
        open_files_limit=None,
        probe={"least_bytes": None, "shared_bytes": None, "descriptors": None},
    )
    assert found.fault(config(64, 16)) is None


@pytest.mark.parametrize(
    ("length", "samples", "sizes"), [(1, "1 sample,", "1, "), (2, "2 samples,", "2 or less, ")]
)
def test_a_dataset_smaller_than_a_batch_is_refused(length: int, samples: str, sizes: str) -> None:
    small = dataclasses.replace(target(), kind="map", length=length, batch_size=32)
    with pytest.raises(TargetError, match=samples) as caught:
        _refuse_small(small, SweepSettings())
    assert f"--batch-size {sizes}" in caught.value.hint
    # Without drop_last its epoch is one batch, if not a full one.
    assert "too few for a full batch of 32" in caught.value.message


def test_what_needs_a_worker_is_skipped_without_one_only() -> None:
    none = Failure(kind="worker_exception", message="It takes a worker.", hint="Use one.")
    found = Preflight(SweepSettings(), target(main_failure=none), machine(), PROBE)
    assert [found.fault(config(workers)) for workers in (0, 1, 2)] == [none, None, None]


FORKS: Any = types.SimpleNamespace(fork_safe=True)


def test_trials_cost_what_batches_of_the_size_that_is_asked_for_take() -> None:
    """The probe loads one of the target's own size."""
    known = target(batch_size=32, batch_s=0.8, batch_cpu_s=0.4)
    own, half = (
        trial_cost(SweepSettings(batch_size=size), machine(), known, FORKS)
        for size in (None, (16,))
    )
    assert (own.batch_s, own.batch_cpu_s) == (0.8, 0.4)
    assert (half.batch_s, half.batch_cpu_s) == (0.4, 0.2)


@pytest.mark.parametrize(("kind", "begins_s"), [("iterable", 25.0), ("map", 0.0)])
def test_trials_of_an_iterable_cost_what_comes_before_its_first_batch(
    kind: str, begins_s: float
) -> None:
    known = target(kind=kind, batch_s=0.5, first_batch_s=25.5)
    cost = trial_cost(SweepSettings(), machine(), known, FORKS)
    assert cost.overhead_s == pytest.approx(DEFAULT_OVERHEAD_S + begins_s)


@pytest.mark.parametrize(
    ("batch_s", "search", "workers"),
    [(0.1, "model", [0, 1, 2]), (1.5, "model", [2]), (6.0, "grid", [])],
)
def test_slow_batches_are_calibrated_by_two_workers_alone(
    batch_s: float, search: str, workers: list[int]
) -> None:
    cells = tuple(config(count) for count in (0, 1, 2, 4, 8, 16, 32))
    outlook = Outlook(
        target=target(batch_s=batch_s, batch_cpu_s=0.01),
        accelerator=None,
        space=Space(configs=cells, left_out=()),
        faults={},
        cells=cells,
    )
    deadline = Deadline(budget_s=60.0, began_s=0.0, clock=lambda: 10.0)
    plan, no_room = plan_sweep(SweepSettings(budget_s=60.0), machine(2), outlook, FORKS, deadline)
    assert plan.search == search
    assert [each.num_workers for each in plan.calibration] == workers
    short = [each.reason for each in no_room if each.setting == "search=model"]
    assert len(short) == (search == "grid")
    for reason in short:  # what it says is enough is
        enough_s = parse_duration_s(reason.partition("--budget ")[2].partition(" ")[0])
        deadline = dataclasses.replace(deadline, budget_s=enough_s)
        settings = SweepSettings(budget_s=enough_s)
        plan, no_room = plan_sweep(settings, machine(2), outlook, FORKS, deadline)
        assert (plan.search, no_room) == ("model", ())


def test_the_budget_that_is_said_to_be_enough_has_what_came_before_in_it() -> None:
    """Also where nobody named one, and a target that took 100 s left two thirds of 45 s to trials.

    Of these one takes 40 s: whoever names a budget then names the 100 s with it.
    """
    cells = tuple(config(count) for count in (0, 1, 2))
    known = target(kind="iterable", batch_s=0.5, first_batch_s=40.0)
    outlook = Outlook(
        target=known,
        accelerator=None,
        space=Space(configs=cells, left_out=()),
        faults={},
    )
    settings = SweepSettings(budget_s=45.0)
    late = Deadline(budget_s=45.0, began_s=0.0, named=False, clock=lambda: 100.0).for_trials()
    assert late.left_s == 30.0
    needed = "budget of 2 min 10 s can't hold .* takes about 2 min 22 s with all before it"
    with pytest.raises(UsageError, match=needed) as shown:
        plan_sweep(settings, machine(2), outlook, FORKS, late)
    assert shown.value.hint == "Give a budget of 5 min 55 s or more."
