"""The figures of a window, and the reasons for those that are missing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlprof.machine.snapshot import Sampler, Snapshot, usage_between
from dlprof.machine.tree import TreeUsage
from dlprof.records import GpuUsage, Usage

_S = 1_000_000_000
_OWN, _PARENT = Path("/cg/job/trial"), Path("/cg/job")


def _tree(**totals: Any) -> TreeUsage:
    return dataclasses.replace(
        TreeUsage(
            processes=3,
            cpu_ns=0,
            run_ns=0,
            wait_ns=0,
            read_chars=0,
            read_bytes=0,
            first_ns=0,
        ),
        **totals,
    )


def _pressures(cpu: int | None, io: int | None, memory: int | None) -> dict[str, int | None]:
    return {"cpu": cpu, "io": io, "memory": memory}


def _snapshot(at_s: float, tree: TreeUsage, **totals: Any) -> Snapshot:
    start = Snapshot(
        time_ns=int(at_s * _S),
        tree=tree,
        idle_ns=0,
        allowed_cpus=4,
        quota_cores=None,
        throttled_ns={_OWN: 0, _PARENT: 5 * _S},
        pressures_us=_pressures(0, 0, 0),
        pss_peak_bytes=None,
        shm_peak_bytes=None,
        observer_cpu_ns=0,
    )
    return dataclasses.replace(start, **totals)


_START = _snapshot(100, _tree())


def _window(tree: TreeUsage, **totals: Any) -> tuple[Usage, dict[str, str]]:
    """Two seconds on four CPUs."""
    return usage_between(_START, _snapshot(102, tree, **totals))


def test_own_idle_and_other_cores_are_all_the_cores() -> None:
    usage, _ = _window(_tree(cpu_ns=3 * _S), idle_ns=2 * _S)
    assert usage.own_cpu_cores == 1.5
    assert usage.available_cpu_cores == 2.5
    assert usage.other_cpu_cores == 1.5


def test_what_a_hypervisor_took_is_reported_of_what_others_had() -> None:
    usage, missing = _window(_tree(cpu_ns=3 * _S), idle_ns=2 * _S, stolen_ns=_S)
    assert (usage.other_cpu_cores, usage.stolen_cpu_cores) == (1.5, None)
    assert "stolen_cpu_cores" in missing
    began = dataclasses.replace(_START, stolen_ns=4 * _S)
    ended = _snapshot(102, _tree(cpu_ns=3 * _S), idle_ns=2 * _S, stolen_ns=5 * _S)
    assert usage_between(began, ended)[0].stolen_cpu_cores == 0.5


def test_a_quota_bounds_what_could_be_had_but_not_what_was() -> None:
    usage, _ = _window(_tree(cpu_ns=2 * _S), idle_ns=6 * _S, quota_cores=1.5)
    assert usage.available_cpu_cores == 1.5
    usage, _ = _window(_tree(cpu_ns=4 * _S), idle_ns=0, quota_cores=1.5)
    assert usage.available_cpu_cores == 2.0


def test_waiting_is_a_share_of_the_time_that_threads_wanted_to_run() -> None:
    usage, _ = _window(_tree(cpu_ns=_S, run_ns=_S, wait_ns=3 * _S))
    assert usage.run_queue_wait_fraction == 0.75


def test_others_that_want_cores_are_all_that_do_less_the_trials_own() -> None:
    own = _tree(cpu_ns=2 * _S, run_ns=2 * _S, wait_ns=_S)
    usage, _ = _window(own, runnable=40, looks=10)
    assert usage.other_runnable == 4 - 1.5
    usage, missing = _window(own)
    assert usage.other_runnable is None
    assert "too short" in missing["other_runnable"]


def test_main_is_one_of_the_threads_that_wanted_to_run() -> None:
    tree = _tree(cpu_ns=3 * _S, run_ns=3 * _S, wait_ns=_S, first_ns=_S)
    assert _window(tree)[0].main_runnable == 0.5
    assert "main_runnable" in _window(_tree(first_ns=None))[1]


def test_waiting_is_unknown_where_most_of_the_work_was_not_seen() -> None:
    usage, missing = _window(_tree(cpu_ns=4 * _S, run_ns=_S, wait_ns=_S))
    assert usage.run_queue_wait_fraction is None
    assert "too briefly" in missing["run_queue_wait_fraction"]


@pytest.mark.parametrize(
    ("used_s", "throttled_s", "share"),
    [
        (1.0, 1.0, 0.5),  # one process that always wants to run
        (0.5, 0.5, 0.25),  # one that sleeps half of the time
        (2.0, 6.0, 0.75),  # four processes on one core of quota
        (2.0, 0.0, 0.0),
    ],
)
def test_throttling_is_a_share_of_what_was_wanted(
    used_s: float, throttled_s: float, share: float
) -> None:
    throttled = {_OWN: int(throttled_s * _S), _PARENT: 5 * _S}
    usage, _ = _window(_tree(cpu_ns=int(used_s * _S)), throttled_ns=throttled)
    assert usage.throttled_fraction == share


@pytest.mark.parametrize(("own_s", "parent_s"), [(1.0, 0.8), (0.8, 1.0), (1.0, 1.0), (0.0, 1.0)])
def test_nested_quotas_count_once(own_s: float, parent_s: float) -> None:
    throttled = {_OWN: int(own_s * _S), _PARENT: int((5 + parent_s) * _S)}
    usage, _ = _window(_tree(cpu_ns=_S), throttled_ns=throttled)
    assert usage.throttled_fraction == 0.5


def test_quotas_that_are_no_longer_to_be_seen_are_unknown() -> None:
    usage, missing = _window(_tree(cpu_ns=_S), throttled_ns=None)
    assert usage.throttled_fraction is None
    assert missing["throttled_fraction"] == "the system stopped reporting it"


def test_pressures_are_shares_of_the_window() -> None:
    usage, _ = _window(_tree(), pressures_us=_pressures(1_000_000, 500_000, 9_000_000))
    assert usage.cpu_pressure_fraction == 0.5
    assert usage.io_pressure_fraction == 0.25
    assert usage.memory_pressure_fraction == 1.0


def test_cache_hits_are_what_storage_did_not_deliver() -> None:
    usage, _ = _window(_tree(read_chars=1000, read_bytes=250))
    assert usage.cache_hit_fraction == 0.75
    assert usage.read_bytes_per_s == 125
    usage, _ = _window(_tree(read_chars=1000, read_bytes=4096))
    assert usage.cache_hit_fraction == 0.0


def test_cache_hits_of_nothing_are_unknown() -> None:
    usage, missing = _window(_tree())
    assert usage.cache_hit_fraction is None
    assert "read()" in missing["cache_hit_fraction"]
    assert usage.read_bytes_per_s == 0


def test_reasons_come_with_every_missing_figure_and_no_other() -> None:
    tree = _tree(run_ns=None, wait_ns=None, read_chars=None, read_bytes=None)
    last = _snapshot(
        102,
        tree,
        idle_ns=None,
        throttled_ns=None,
        pressures_us=_pressures(None, 0, 0),
    )
    usage, missing = usage_between(_START, last)
    empty = {f.name for f in dataclasses.fields(Usage) if getattr(usage, f.name) is None}
    assert set(missing) == empty
    assert missing["throttled_fraction"] == "the system stopped reporting it"
    assert usage.own_cpu_cores == 0
    assert usage.available_cpu_cores is None


def test_a_window_without_length_has_no_figures() -> None:
    usage, missing = usage_between(_START, _START)
    assert usage == Usage()
    assert set(missing.values()) == {"the window has no length"}


def test_a_trial_that_had_not_started_has_no_cpu_time() -> None:
    usage, missing = usage_between(
        _snapshot(100, _tree(processes=0)), _snapshot(101, _tree(cpu_ns=_S))
    )
    assert usage.own_cpu_cores is None
    assert "own_cpu_cores" in missing


def test_peaks_gpus_and_the_observers_own_cost_are_passed_on() -> None:
    gpu = GpuUsage(index=0, name="X", uuid="u")
    last = _snapshot(102, _tree(), pss_peak_bytes=7, shm_peak_bytes=0, observer_cpu_ns=_S // 50)
    usage, missing = usage_between(_START, last, gpu=[gpu])
    assert (usage.pss_peak_bytes, usage.shm_peak_bytes) == (7, 0)
    assert usage.observer_cpu_cores == 0.01
    assert usage.gpu == (gpu,)
    assert "shm_peak_bytes" not in missing


_TOTAL = st.one_of(st.none(), st.integers(0, 10**12))


@settings(deadline=None)
@given(st.lists(_TOTAL, min_size=8, max_size=8), st.integers(1, 10**12))
def test_fractions_stay_within_0_and_1_whatever_the_totals(
    totals: list[int | None], window_ns: int
) -> None:
    run, wait, chars, fetched, idle, throttled, cpu_us, io_us = totals
    tree = _tree(cpu_ns=run or 0, run_ns=run, wait_ns=wait, read_chars=chars, read_bytes=fetched)
    last = _snapshot(
        0,
        tree,
        idle_ns=idle,
        throttled_ns=None if throttled is None else {_OWN: throttled},
        pressures_us=_pressures(cpu_us, io_us, 0),
    )
    last = dataclasses.replace(last, time_ns=_START.time_ns + window_ns)
    usage, missing = usage_between(_START, last)
    for field in dataclasses.fields(Usage):
        value = getattr(usage, field.name)
        assert (value is None) == (field.name in missing)
        if field.name.endswith("_fraction") and value is not None:
            assert 0 <= value <= 1


def test_figures_of_a_run_file_are_never_zero_for_unknown(tmp_path: Path) -> None:
    sampler = Sampler(2**22 + 1, root=tmp_path, clock=iter([0, _S]).__next__, cpu_clock=lambda: 0)
    usage, missing = usage_between(sampler.take(memory=True), sampler.take(memory=True))
    assert usage.own_cpu_cores is None
    assert usage.throttled_fraction is None
    assert "/proc" in missing["pss_peak_bytes"]
