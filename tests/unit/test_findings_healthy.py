"""Loaders that keep up, measured on a machine that disturbed some of the trials."""

from __future__ import annotations

import dataclasses

import pytest
from builders import config
from finding_cases import QUIET, Loader, codes, evidence

from dlprof.advise.findings.diagnosis import find

STEP_S = 0.016
KEEPS_UP = Loader(
    config=config(4),
    rate=1 / 0.0176,
    busy=0.25,
    fetch_io=0.016,
    receive=0.0005,
    hand_shake=0.001,
    step=STEP_S,
)
DISTURBED = {"wait_fraction": 0.32}
"""Of the plain trials; the explained one waited 9 %."""


def test_a_hand_over_costs_no_more_than_it_took_where_it_was_timed() -> None:
    by_name = dataclasses.replace(KEEPS_UP.config, sharing_strategy="file_system")
    seen = evidence(KEEPS_UP, variants={by_name: 1.02}, trial_fields=DISTURBED)
    assert codes(find(seen)) == []


def test_workers_that_could_feed_the_step_twice_hold_nobody_up() -> None:
    idle = dataclasses.replace(KEEPS_UP, receive=0.0001, hand_shake=0.0, busy=0.45, wait=0.0035)
    assert codes(find(evidence(idle))) == []
    busy = dataclasses.replace(idle, busy=0.9)
    assert codes(find(evidence(busy))) == ["fetch.io"]


def test_fewer_workers_that_do_as_well_are_no_cause_of_waiting() -> None:
    seen = evidence(
        dataclasses.replace(KEEPS_UP, receive=0.0001, hand_shake=0.0, wait=0.0035),
        variants={config(2): 1.03},
        calibrations=[Loader(config=config(2), rate=70.0, fetch_io=0.016, step=STEP_S)],
    )
    assert codes(find(seen)) == []


def test_trials_that_disagree_by_half_were_disturbed() -> None:
    seen = evidence(KEEPS_UP)
    assert not seen.is_noisy
    first, *rest = seen.observations
    assert first.trial.batches_per_s is not None
    slow = dataclasses.replace(
        first.trial.batches_per_s, value=first.trial.batches_per_s.value / 1.6
    )
    held = dataclasses.replace(first, trial=dataclasses.replace(first.trial, batches_per_s=slow))
    disturbed = dataclasses.replace(seen, observations=(held, *rest))
    assert disturbed.is_noisy
    assert disturbed.unsteady == pytest.approx(1.6)
    cold = dataclasses.replace(disturbed, reads_files=True)
    assert not cold.is_noisy  # the first trial of several may find its files cold


def test_a_disturbed_machine_has_a_wider_limit_for_a_consumer_that_keeps_up() -> None:
    waits = {"wait_fraction": 0.12}
    loader = dataclasses.replace(KEEPS_UP, wait=0.0023)
    assert codes(find(evidence(loader, trial_fields=waits))) != ["consumer"]
    assert codes(find(evidence(loader, trial_fields=waits, noisy=True))) == ["consumer"]


def test_the_doubt_says_what_was_seen_of_the_disturbance() -> None:
    computes = Loader(fetch_cpu=0.019, rate=100.0)
    uneven = find(evidence(computes, noisy=True))[0]
    assert uneven.doubtful == "Batches came unevenly while this was measured."
    crowded = dataclasses.replace(QUIET, other_cpu_cores=0.9, available_cpu_cores=1.1)
    flagged = find(evidence(computes, noisy=True, usage=crowded))[-1]
    assert "Other processes kept 0.9 of 2 cores busy" in flagged.doubtful
    seen = evidence(computes)
    slow = dataclasses.replace(
        seen.observations[0], trial=evidence(dataclasses.replace(computes, rate=50.0)).trials()[0]
    )
    found = find(dataclasses.replace(seen, observations=(slow, *seen.observations[1:])))
    assert "Trials of the same settings differ by 2.0x" in found[0].doubtful
