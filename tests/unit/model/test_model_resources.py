"""Memory, shared memory, descriptors, start-up: predicted from a calibration."""

from __future__ import annotations

import dataclasses

import pytest
from builders import trial

from dlprof.model.calibrate import memory_of, startups_of, turnovers_of
from dlprof.model.predict import needs
from dlprof.records import Calibration, Config, Usage

KNOWN = Calibration(
    batch_bytes=10e6,
    batch_tensors=2.0,
    main_bytes=300e6,
    worker_bytes=40e6,
    startup_s={"default": (0.05, 0.01), "spawn": (1.0, 0.5), "main": (0.02,)},
    turnover_s={"persistent": 0.001, "default": 0.2, "main": 0.003},
)


def test_memory_is_main_workers_and_full_queues() -> None:
    found = needs(KNOWN, Config(num_workers=4, prefetch_factor=2))
    assert found.shm_bytes == pytest.approx(9 * 10e6)
    assert found.pss_bytes == pytest.approx(300e6 + 4 * 40e6 + 9 * 10e6)


def test_without_workers_nothing_is_shared() -> None:
    found = needs(KNOWN, Config())
    assert (found.shm_bytes, found.open_files, found.pss_bytes) == (0, 0, 300e6)
    assert (found.startup_s, found.turnover_s) == (0.02, 0.003)


def test_each_tensor_takes_a_descriptor_unless_files_are_shared_by_name() -> None:
    config = Config(num_workers=4, prefetch_factor=4)
    by_descriptor = needs(KNOWN, config).open_files
    by_name = needs(KNOWN, dataclasses.replace(config, sharing_strategy="file_system"))
    assert by_descriptor is not None
    assert by_name.open_files is not None
    assert by_descriptor - by_name.open_files == 17 * 2


def test_open_files_are_the_same_sum_whoever_asks() -> None:
    """``predict`` shows it, limits refuse by it, a sweep skips by the least of it."""
    config = Config(num_workers=3, prefetch_factor=2)
    shown = needs(KNOWN, config).open_files
    assert shown == config.open_files(2.0) == config.open_files(0) + config.queued_batches * 2
    assert config.open_files(2.0, batches=2) == config.open_files(0) + 2 * 2
    assert Config().open_files(1000.0) == 0


def test_queued_batches_are_those_in_flight_and_the_one_in_hand() -> None:
    assert Config(num_workers=3, prefetch_factor=4).queued_batches == 13
    assert Config().queued_batches == 0
    assert Config(num_workers=3, prefetch_factor=4).queued_bytes(10.0) == 130
    assert (Config().queued_bytes(10.0), Config(num_workers=3).queued_bytes(None)) == (0, None)


def test_each_further_worker_takes_its_time_to_start() -> None:
    assert needs(KNOWN, Config(num_workers=1)).startup_s == pytest.approx(0.05)
    assert needs(KNOWN, Config(num_workers=5)).startup_s == pytest.approx(0.09)
    spawned = needs(KNOWN, Config(num_workers=5, start_method="spawn"))
    assert spawned.startup_s == pytest.approx(3.0)
    assert spawned.turnover_s == pytest.approx(3.0)  # all start again at each epoch


def test_workers_that_persist_turn_over_at_once() -> None:
    assert needs(KNOWN, Config(num_workers=4, persistent_workers=True)).turnover_s == 0.001
    assert needs(KNOWN, Config(num_workers=4)).turnover_s == 0.2


def test_what_was_not_calibrated_is_not_reported() -> None:
    found = needs(Calibration(startup_s={"fork": (0.1,)}), Config(num_workers=2))
    assert found.pss_bytes is None
    assert found.shm_bytes is None
    assert found.open_files is None
    assert found.startup_s is None
    assert found.turnover_s is None
    alone = Calibration(startup_s={"fork": (0.1,)})
    assert needs(alone, Config(num_workers=1, start_method="fork")).startup_s == 0.1
    assert needs(alone, Config(num_workers=2, start_method="fork")).startup_s is None


def test_workers_that_seem_to_take_less_than_nothing_take_nothing() -> None:
    """What is shown of them all is then their mean, not more than any of them took."""
    starts = [
        trial(Config(num_workers=1), startup_s=0.5),
        trial(Config(num_workers=2), startup_s=0.4),
    ]
    assert startups_of(starts)["default"] == pytest.approx((0.45, 0.0))
    sizes = {0: 300, 1: 200}
    whole = [
        trial(Config(num_workers=w), batch_bytes=0.0, usage=Usage(pss_peak_bytes=size))
        for w, size in sizes.items()
    ]
    assert memory_of(whole) == pytest.approx((250, 0))


def test_starts_and_restarts_are_those_of_undisturbed_trials() -> None:
    """One beside other processes takes several times as long."""
    took = [(1, 0.9, True), (1, 0.1, False), (2, 1.9, True), (2, 0.2, False), (2, 0.22, False)]
    trials = [
        trial(Config(num_workers=w), startup_s=s, epoch_turnover_s=2 * s, noisy=noisy)
        for w, s, noisy in took
    ]
    assert startups_of(trials)["default"] == pytest.approx((0.1, 0.11))
    assert turnovers_of(trials)["default"] == pytest.approx(0.4)
    noisy = [each for each in trials if each.noisy]
    assert startups_of(noisy)["default"] == pytest.approx((0.9, 1.0))
    assert turnovers_of(noisy)["default"] == pytest.approx(2.8)


def test_queues_that_were_not_full_take_no_more_off_than_they_held() -> None:
    trials = [
        trial(Config(), usage=Usage(pss_peak_bytes=100, shm_peak_bytes=0), batch_bytes=10.0),
        trial(
            Config(num_workers=2, prefetch_factor=2),
            usage=Usage(pss_peak_bytes=230, shm_peak_bytes=30),
            batch_bytes=10.0,
        ),
    ]
    assert memory_of(trials) == pytest.approx((100, 50))
