"""The fewest workers and cores that keep a step fed, where sums can be done by hand."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from builders import WAITING, blocks, config, target, trial
from golden import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from predicted_runs import asked, calibrated, calibration, elsewhere

from dlprof.advise.forecast import Feed, feed, feed_config
from dlprof.errors import UsageError
from dlprof.records import Calibration, Usage
from dlprof.report.predict import feed_report, feed_text, predict_document


def fed_by(costs: Calibration, max_wait: float = 0.02, **question: Any) -> Feed:
    run = calibrated(costs)
    return feed(asked(run, **question), max_wait=max_wait)


def test_waiting_takes_workers_and_no_cores() -> None:
    found = fed_by(calibration(cpu=1e-6, io=0.1), step_s=0.01)
    # 100 ms a batch, one wanted every 10 ms
    assert found.workers.value == pytest.approx(10, abs=1)
    assert found.cores.value == 1
    assert found.reached
    assert found.enough


def test_how_sure_it_is_says_how_far_off_loading_may_be() -> None:
    found = fed_by(calibration(cpu=1e-6, io=0.1), step_s=0.01)
    assert "; loading may be up to " in found.confidence_reason
    assert found.confidence_reason.endswith("% slower than predicted (95%)")


def test_computing_takes_cores() -> None:
    found = fed_by(calibration(cpu=0.02), step_s=0.01, ranks=4)
    # 4 ranks x 20 ms every 10 ms
    assert found.cores.value == pytest.approx(8, abs=1)
    assert found.workers.value == pytest.approx(3, abs=1)
    assert found.busy_cores == pytest.approx(8, rel=0.05)
    assert found.batch_bytes_per_s == pytest.approx(4 * 100 * 1e6, rel=0.05)
    assert found.storage_bytes_per_s == pytest.approx(4 * 100 * 2e6, rel=0.05)
    assert found.pss_bytes is not None
    assert found.prediction.pss_bytes is not None
    assert found.pss_bytes == pytest.approx(4 * found.prediction.pss_bytes)


def test_too_few_cores_are_said_to_be_too_few() -> None:
    found = fed_by(calibration(cpu=0.02), step_s=0.01, ranks=8)
    assert found.cores.value > 8
    assert not found.enough
    assert found.machine_wait_fraction > 0.4


def test_of_more_cores_other_sessions_leave_more() -> None:
    """They want six: 1.5 of eight cores are its share, of nine three are free."""
    crowd = Usage(other_cpu_cores=6.0, fair_cpu_cores=1.5)
    run = calibrated(calibration(cpu=0.02), [trial(config(2), 2400.0, usage=crowd)])
    found = feed(asked(run, step_s=0.01))
    assert found.least_wait_fraction < 0.02
    assert found.reached
    assert not found.enough
    assert found.machine_wait_fraction > 0.2
    assert 8 < found.cores.value < 11


def test_of_fewer_cores_other_sessions_leave_no_more() -> None:
    """It got two of eight, though four should be free: seven, of which three should be, fed it."""
    crowd = Usage(other_cpu_cores=4.0, fair_cpu_cores=2.0)
    there = asked(calibrated(calibration(cpu=0.02), [trial(config(2), 2400.0, usage=crowd)]))
    shares = [there.conditions.on(float(cores)).fair_cores or 0.0 for cores in range(1, 13)]
    assert shares == sorted(shares)
    assert shares[7] == there.fair_cores == 2.0
    assert shares[11] == 8.0


def test_a_loader_that_is_quick_needs_no_workers() -> None:
    found = fed_by(calibration(cpu=1e-5), step_s=0.01)
    assert found.config == config(0)
    assert found.workers.value == 0


def test_what_taking_batches_in_costs_is_added_to_what_is_asked() -> None:
    found = fed_by(calibration(cpu=0.02, receive=0.002), step_s=0.01)
    assert found.least_wait_fraction == pytest.approx(2 / 12, rel=0.1)
    assert 1 - found.max_wait_fraction == pytest.approx(0.98 * (1 - found.least_wait_fraction))
    assert found.asked_wait_fraction == 0.02
    assert found.reached


def test_no_loader_waits_for_less_than_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ample workers wait is predicted; trials of fewer may show that these wait for less."""
    search = "dlprof.advise.forecast._Search.least_wait"
    monkeypatch.setattr(search, lambda _self: 0.17)
    found = fed_by(calibration(cpu=0.02, receive=0.001), step_s=0.01)
    assert found.prediction.wait_fraction is not None
    assert found.least_wait_fraction <= found.prediction.wait_fraction < 0.17


def test_a_wait_that_hardly_any_loader_keeps_is_reported_as_such() -> None:
    found = fed_by(calibration(cpu=0.02, receive=0.00018), step_s=0.01)
    assert found.least_wait_fraction < 0.02 < found.max_wait_fraction
    text = " ".join(drawn(feed_report(found), 200).split())
    assert "hardly any loader keeps it below 2%" in text
    assert "no loader" not in text


def test_storage_that_is_too_slow_is_reported() -> None:
    found = fed_by(calibration(cpu=1e-4), step_s=0.01, storage_bytes_per_s=2e7)
    # 2 MB a batch, 10 batches a second instead of 100
    assert found.least_wait_fraction == pytest.approx(0.9, abs=0.02)


def test_a_wait_that_may_be_longer_takes_less() -> None:
    strict = fed_by(calibration(cpu=0.01, io=0.05), step_s=0.01)
    loose = fed_by(calibration(cpu=0.01, io=0.05), 0.3, step_s=0.01)
    assert loose.workers.value < strict.workers.value


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(
    cpu=st.floats(1e-4, 0.05),
    io=st.floats(0, 0.1),
    step_s=st.floats(0.002, 0.1),
    ranks=st.integers(1, 8),
)
def test_what_is_found_feeds_by_the_same_model(
    cpu: float, io: float, step_s: float, ranks: int
) -> None:
    found = fed_by(calibration(cpu=cpu, io=io), step_s=step_s, ranks=ranks)
    if not found.reached:  # more workers than anybody starts
        assert cpu + io > 50 * step_s
        return
    wait = found.prediction.wait_fraction
    assert wait is not None
    assert wait <= found.max_wait_fraction + 0.01
    for estimate in (found.workers, found.cores):
        assert estimate.low is None or estimate.low <= estimate.value
        assert estimate.high is None or estimate.high >= estimate.value


def test_there_must_be_a_step() -> None:
    with pytest.raises(UsageError) as caught:
        fed_by(calibration(cpu=0.01))
    assert "--step-time" in str(caught.value.hint)


def test_the_answer_is_one_line() -> None:
    found = fed_by(calibration(cpu=0.02), step_s=0.01, ranks=4)
    text = feed_text(found)
    assert text.startswith("Feeding 4 ranks at a step of 10 ms takes ")
    assert "workers a rank" in text
    assert "\n" not in text
    shown = " ".join(drawn(feed_report(found), 200).split())
    assert "MiB/s, 4 ranks together" in shown.partition("Throughput")[2]


def test_a_wait_that_is_shown_as_the_one_asked_for_is_fed() -> None:
    found = fed_by(calibration(cpu=0.02), step_s=0.01)
    for wait, fed in ((0.024, True), (0.026, False)):
        shown = dataclasses.replace(
            found,
            max_wait_fraction=0.05,
            least_wait_fraction=0.023,
            prediction=dataclasses.replace(found.prediction, wait_fraction=wait),
        )
        assert ("can't be done" not in feed_text(shown)) is fed


def test_on_a_machine_that_has_the_cores_one_number_of_workers_is_to_paste() -> None:
    found = fed_by(calibration(cpu=0.02), step_s=0.01)
    fewer = dataclasses.replace(found.config, num_workers=found.config.num_workers - 1)
    for cores, pasted in ((found.cores.value, fewer), (found.cores.value - 1, found.config)):
        shown = dataclasses.replace(found, recommended=fewer, machine_cores=cores)
        text = " ".join(drawn(feed_report(shown), 200).split())
        assert f"num_workers={fewer.num_workers} is recommended" in text
        assert ("no measurable gain" in text) is (pasted is fewer)
        assert f"DataLoader(dataset, ..., num_workers={pasted.num_workers}" in text


def test_of_a_dataset_that_keeps_samples_it_is_the_first_epoch_that_is_fed() -> None:
    """Later ones load little: what they need is no figure of this answer."""
    found = fed_by(calibration(cpu=0.02), step_s=0.01, ranks=4)
    header = found.run.header
    keeping = dataclasses.replace(header.target, first_sample_s=0.01, kept_sample_s=1e-4)
    run = dataclasses.replace(found.run, header=dataclasses.replace(header, target=keeping))
    kept = dataclasses.replace(found, run=run)
    assert feed_text(kept).startswith("Feeding 4 ranks at a step of 10 ms in a first epoch takes ")
    assert "of the first epoch" in " ".join(drawn(feed_report(kept), 200).split())
    assert "first epoch" not in drawn(feed_report(found), 200)


def test_the_document_holds_the_answer() -> None:
    costs = calibration(cpu=0.02, main_bytes=None, read_bytes_per_batch=None)
    found = fed_by(costs, step_s=0.01)
    document = json.loads(predict_document(found))
    assert document["answer"] == feed_text(found)
    assert document["storage_bytes_per_s"] is None
    missing = {name for name in ("storage_bytes_per_s", "pss_bytes") if document[name] is None}
    assert missing == set(document["unavailable"])
    assert document["dataloader_kwargs"]["num_workers"] == found.config.num_workers


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("there", [False, True])
def test_the_screen_keeps_to_its_width(width: int, there: bool) -> None:
    costs = calibration(cpu=0.02, receive=0.002, read_bytes_per_batch=0.0)
    machine = elsewhere() if there else None
    run = calibrated(costs)
    found = feed(asked(run, machine=machine, step_s=0.01, ranks=2))
    lines = drawn(feed_report(found), width).splitlines()
    assert max(map(len, lines)) <= width
    assert "the page cache" in " ".join(" ".join(lines).split())
    assert ("not measured there" in " ".join(" ".join(lines).split())) == there


def test_the_least_wait_is_that_of_workers_at_rest() -> None:
    """Receiving is expensive only from workers that compute, and plenty of them hardly do."""
    costs = calibration(cpu=0.0125, receive=0.0002, receive_busy_s={"default": 0.0024})
    run = calibrated(costs)
    found = feed(asked(run, step_s=0.005, cores=16.0))
    assert found.least_wait_fraction == pytest.approx(0.2 / 5.2, abs=0.01)
    assert found.prediction.wait_fraction is not None
    assert found.prediction.wait_fraction <= found.max_wait_fraction + 0.005
    assert found.workers.value == 3


def test_a_step_that_no_loader_feeds_is_reported_as_such() -> None:
    found = fed_by(calibration(cpu=0.02, receive=0.002), step_s=1e-6, cores=2.0)
    assert found.least_wait_fraction > 0.99
    assert found.max_wait_fraction < 1
    assert not found.reached
    assert not found.enough
    assert "can't be done" in feed_text(found)
    best = 1 / 0.002
    assert found.prediction.batches_per_s.value == pytest.approx(best, rel=0.05)


@pytest.mark.parametrize(
    ("least", "said"),
    [("storage", "as storage gives no more"), ("workers", "as more workers give no more")],
)
def test_what_keeps_a_step_from_being_fed_is_named(least: str, said: str) -> None:
    """A disk of 10 batches a second; or a server of as many, that workers share."""
    if least == "storage":
        found = fed_by(calibration(cpu=1e-4), step_s=0.01, storage_bytes_per_s=2e7)
    else:
        rates = {config(n): [320.0] * 3 for n in (4, 8, 16)}
        trials = blocks({config(1): [160.0] * 3, **rates}, usage=WAITING)
        made = calibrated(calibration(io=0.2, cpu=0.001, receive=1e-5), trials=trials)
        found = feed(asked(made, step_s=0.01))
    assert found.least_bound == least
    text = " ".join(drawn(feed_report(found), 200).split())
    assert said in text
    assert "receiving" not in text


def test_no_more_workers_feed_than_an_epoch_has_batches_and_those_are_kept() -> None:
    costs = calibration(io=0.64, turnover_s={"default": 0.9, "main": 0.0})
    where = asked(calibrated(costs, target=target(batches_per_epoch=3)), step_s=0.1)
    found = feed(where)
    assert found.config.num_workers == 3
    assert found.least_bound == "workers"
    assert found.config.persistent_workers  # as ``recommend`` has them
    assert feed_config(where).persistent_workers
