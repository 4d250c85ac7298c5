"""What looks at a training mean: a loader by a few figures, and the cause that they show."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from builders import machine

from dlprof.advise.wording import NO_LIMIT
from dlprof.attach.diagnosis import (
    Attached,
    _depth,
    _direct,
    _explanation,
    _shares,
    diagnose_training,
)
from dlprof.attach.trainings import Training
from dlprof.attach.watching import Look, ProcessSeen, Seen
from dlprof.machine.waits import Wait
from dlprof.records import Estimate, Usage
from dlprof.report.findings import answer

QUIET = Usage(own_cpu_cores=1.0, available_cpu_cores=2.0, other_cpu_cores=0.05)
HERE = dataclasses.replace(
    machine(), logical_cpus=2, affinity_cpus=2, usable_cores=2.0, quota_cores=None
)
MESSAGE, INDICES = 363, 40
LOOKS = 200


def _looks(*parts: tuple[int, Look]) -> list[Look]:
    return [look for count, look in parts for _ in range(count)]


def _seen(
    looks: Sequence[Look],
    *,
    workers: int = 2,
    batches: int = 400,
    message: int = MESSAGE,
    tensors: int = 1,
    feeding_s: float = 0.0,
    main: dict[str, Any] | None = None,
    worker: dict[str, Any] | None = None,
    worker_waits: dict[Wait, int] | None = None,
    **fields: Any,
) -> Seen:
    """A training that was watched for 10 s."""
    states: dict[Wait, int] = {}
    for look in looks:
        states[look.main] = states.get(look.main, 0) + 1
    idle = sum(look.idle for look in looks) // max(1, workers)
    each = ProcessSeen(
        pid=2,
        waits=worker_waits or {"running": LOOKS - idle, "queue": idle},
        messages=batches // max(1, workers),
        message_bytes=message * batches // max(1, workers),
        feeding_cpu_s=feeding_s / max(1, workers),
        **{"threads": 3, "cpus": 2, **(worker or {})},
    )
    pids = tuple(range(2, 2 + workers))
    return Seen(
        training=Training(
            pid=1, start_ticks=1, parent=1, command=("python", "train.py"), workers=pids
        ),
        window_s=10.0,
        looks=looks,
        main=ProcessSeen(
            pid=1,
            waits=states,
            messages=batches,
            message_bytes=INDICES * batches,
            **{"reads": batches * (2 + 6 * tensors), "threads": 4, "cpus": 2, **(main or {})},
        ),
        workers=tuple(dataclasses.replace(each, pid=pid) for pid in pids),
        **fields,
    )


def _look(main: Wait, *, idle: int = 0, alive: int = 2, finished: int = 0) -> Look:
    return Look(
        main=main, pin=None, idle=idle, alive=alive, finished_bytes=finished * MESSAGE, sent_bytes=0
    )


WAITS = _look("queue")._replace(sent_bytes=2 * INDICES)


def _diagnose(seen: Seen, usage: Usage = QUIET) -> Attached:
    return diagnose_training(seen, HERE, usage)


def _first(seen: Seen, usage: Usage = QUIET) -> str:
    found = _diagnose(seen, usage)
    return found.finding.code if found.finding else "none"


def _io() -> Seen:
    return _seen(
        _looks((190, WAITS), (10, _look("running"))),
        worker={"run_s": 0.5, "queued_s": 0.02},
        worker_waits={"sleep": 190, "running": 10},
        main={"run_s": 0.5},
    )


def _cpu() -> Seen:
    return _seen(
        _looks((190, WAITS), (10, _look("running"))),
        worker={"run_s": 9.5, "queued_s": 0.2},
        main={"run_s": 0.3},
    )


def _consumer() -> Seen:
    return _seen(
        _looks((196, _look("running", idle=2, finished=4)), (4, WAITS)),
        worker={"run_s": 2.0, "queued_s": 0.02},
        main={"run_s": 9.7},
    )


def _sampler() -> Seen:
    # One of P x W batches was taken, and the sampler draws the indices of the next.
    return _seen(
        _looks(
            (180, _look("running", idle=2, finished=3)), (20, _look("running", idle=2, finished=2))
        ),
        worker={"run_s": 1.0, "queued_s": 0.02},
        main={"run_s": 9.7},
    )


def _receive() -> Seen:
    return _seen(
        _looks(
            (180, _look("running", idle=2, finished=3)), (20, _look("running", idle=1, finished=2))
        ),
        tensors=160,
        worker={"run_s": 1.0, "queued_s": 0.02},
        main={"run_s": 9.7},
    )


def _objects() -> Seen:
    return _seen(
        _looks((200, _look("running", idle=2, finished=0))),
        message=250_000,
        tensors=0,
        feeding_s=400 * 0.0020,
        worker={"run_s": 0.2, "queued_s": 0.01},
        main={"run_s": 9.7},
    )


def _order() -> Seen:
    held = _look("queue", idle=3, alive=4)
    return _seen(
        _looks((150, held), (50, _look("running", idle=2, alive=4, finished=6))),
        workers=4,
        worker={"run_s": 0.2, "queued_s": 0.01},
        worker_waits={"sleep": 60, "queue": 140},
        main={"run_s": 0.3},
    )


def _bursts() -> Seen:
    return _seen(
        _looks((60, WAITS), (140, _look("sleep", idle=2, finished=4))),
        worker={"run_s": 0.2, "queued_s": 0.01},
        worker_waits={"sleep": 60, "queue": 140},
        main={"run_s": 0.3},
    )


def _lock() -> Seen:
    return dataclasses.replace(
        _seen(
            _looks((190, WAITS), (10, _look("running"))),
            worker={"run_s": 0.2, "queued_s": 0.01},
            worker_waits={"lock": 150, "sleep": 50},
            main={"run_s": 0.3},
        )
    )


def _busy() -> Seen:
    """One worker computes all the time, and hands each batch over late."""
    return _seen(
        _looks((185, _look("handover", alive=1)), (15, _look("running", alive=1))),
        workers=1,
        worker={"run_s": 9.2, "queued_s": 0.1},
        worker_waits={"running": LOOKS},
        main={"run_s": 0.3},
    )


def _sends(*, alive: int) -> Seen:
    """Workers are spawned: main is blocked in sending them what the dataset holds."""
    started = _looks((150, _look("handover", alive=alive)), (50, _look("queue", alive=2)))
    looks = started if alive else started[:150]
    sent = {"run_s": 3.0, "written_bytes": 300 << 20}
    if not alive:
        return _seen(looks, workers=0, batches=0, main=sent, start_method="forkserver")
    return _seen(looks, main=sent, started_workers=4, start_method="spawn")


def _sends_the_second() -> Seen:
    """One of two workers has started, and no batch was asked for yet."""
    looks = _looks((180, _look("handover", idle=1, alive=1)), (20, _look("running", alive=1)))
    sent = {"run_s": 3.0, "written_bytes": 30 << 20}
    waits: dict[Wait, int] = {"queue": LOOKS}
    return _seen(looks, workers=1, batches=0, main=sent, worker_waits=waits, start_method="spawn")


def _restarts() -> Seen:
    return _seen(
        _looks((100, _look("running", alive=0)), (100, WAITS)),
        worker={"run_s": 0.2, "queued_s": 0.01},
        main={"run_s": 3.0},
        started_workers=40,
    )


def _growing() -> Seen:
    seen = _cpu()
    workers = tuple(dataclasses.replace(each, grown_bytes=300 << 20) for each in seen.workers)
    return dataclasses.replace(seen, workers=workers)


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("fetch.io", _io()),
        ("fetch.cpu", _cpu()),
        ("consumer", _consumer()),
        ("main.sampler", _sampler()),
        ("main.receive", _receive()),
        ("main.receive", _objects()),
        ("order.blocking", _order()),
        ("prefetch.shallow", _bursts()),
        ("lock", _lock()),
        ("too_few_workers", _busy()),
        ("startup", _restarts()),
        ("dataset.heavy", _sends(alive=1)),
        ("dataset.heavy", _sends(alive=0)),
        ("dataset.heavy", _sends_the_second()),
        ("memory.growth", _growing()),
    ],
)
def test_the_cause_that_looks_show_comes_first(code: str, seen: Seen) -> None:
    assert _first(seen) == code


@pytest.mark.parametrize(("idle", "more_first"), [(1, True), (2, False)])
def test_more_workers_come_before_another_order_where_they_bring_more(
    idle: int, *, more_first: bool
) -> None:
    """Of four, one idles while a slow sample holds batches back, or two do."""
    ready = _look("running", idle=2, alive=4, finished=6)
    seen = _seen(
        _looks((190, _look("queue", idle=idle, alive=4)), (10, ready)),
        workers=4,
        worker={"run_s": 0.2, "queued_s": 0.01},
        worker_waits={"sleep": 220 - 60 * idle, "queue": 60 * idle - 20},
        main={"run_s": 0.5},
    )
    findings = _diagnose(seen).diagnosis.findings
    gains = {each.code: each.predicted_gain for each in findings}
    assert gains.keys() >= {"order.blocking", "fetch.io"}
    order, more = gains["order.blocking"], gains["fetch.io"]
    assert order is not None
    assert more is not None
    assert order.value == pytest.approx(1 / (1 - 0.95 * idle / 4))
    assert (findings[0].code == "fetch.io") is more_first
    assert findings[int(more_first)].code == "order.blocking"
    assert (more.value > 1.1 * order.value) is more_first
    # While they are held back more workers change nothing.
    assert more.value < 1 / (0.95 * idle / 3)


@pytest.mark.parametrize(("locked", "does"), [(150, True), (80, False)])
def test_one_worker_does_for_a_lock_only_where_that_is_nearly_all(
    locked: int, *, does: bool
) -> None:
    """Of four, each may do more outside of the lock than a single worker can."""
    seen = _seen(
        _looks((190, WAITS), (10, _look("running"))),
        workers=4,
        worker={"run_s": 0.2, "queued_s": 0.01},
        worker_waits={"lock": locked, "sleep": LOOKS - locked},
        main={"run_s": 0.3},
    )
    found, *others = _diagnose(seen).diagnosis.findings
    assert found.code == "lock"
    assert found.fix is not None
    assert ("num_workers=1 is as fast" in found.fix.text) is does
    # More workers would wait for it, too.
    fixes = (each.fix.dataloader_kwargs for each in others if each.fix)
    assert not any("num_workers" in each for each in fixes)


def test_a_lock_counts_by_the_rule_of_profile_and_run() -> None:
    """By its share of the time in which workers have a batch to make, and with what it is worth."""
    seen = _seen(
        _looks((190, WAITS._replace(idle=1)), (10, _look("running", idle=1))),
        worker={"run_s": 0.2, "queued_s": 0.01},
        worker_waits={"lock": 50, "sleep": 50, "queue": 100},
        main={"run_s": 0.3},
    )
    found = _diagnose(seen).finding
    assert found is not None
    assert found.code == "lock"
    assert found.evidence["locked_fraction"] == pytest.approx(0.5)
    assert found.predicted_gain is not None
    assert 1.0 < found.predicted_gain.value < 2.1


def test_workers_that_ask_another_process_are_warned_of_it() -> None:
    seen = _seen(
        _looks((190, WAITS), (10, _look("running"))),
        worker={"run_s": 0.5, "queued_s": 0.02},
        worker_waits={"handover": 190, "running": 10},
        main={"run_s": 0.5},
    )
    found = _diagnose(seen).finding
    assert found is not None
    assert (found.code, "Unix socket" in found.explanation) == ("fetch.io", True)


def test_workers_that_share_the_cores_with_others_are_warned() -> None:
    crowd = Usage(
        own_cpu_cores=0.8, available_cpu_cores=0.8, other_cpu_cores=1.2, other_runnable=4.0
    )
    seen = _seen(
        _looks((190, WAITS), (10, _look("running"))),
        worker={"run_s": 4.0, "queued_s": 5.5},
        main={"run_s": 0.3},
    )
    found = _diagnose(seen, crowd)
    assert found.finding is not None
    assert found.finding.code == "cpu.neighbours"
    assert "at the same time" in found.confidence_reason


def test_others_promise_nothing_beside_a_limit_that_workers_may_share() -> None:
    """Before a server that is slow for all of them cores bring nothing: 1.6x was promised."""
    crowd = Usage(
        own_cpu_cores=0.3, available_cpu_cores=0.3, other_cpu_cores=1.7, other_runnable=4.0
    )
    seen = _seen(
        _looks((190, WAITS), (10, _look("running"))),
        worker={"run_s": 0.5, "queued_s": 2.5},
        worker_waits={"sleep": 140, "running": 60},
        main={"run_s": 0.5},
    )
    first, *rest = _diagnose(seen, crowd).diagnosis.findings
    others = next(each for each in rest if each.code == "cpu.neighbours")
    assert first.code == "fetch.io"
    for each in (first, others):
        assert each.predicted_gain is not None
        assert each.predicted_gain.value > 1.1
        assert each.predicted_gain.ends[0] <= 1.0
        assert each.evidence["gain_if"] == NO_LIMIT
    said = dict(answer((first, *rest), 0.9, workers=2))
    assert "Also" not in said
    assert str(said["Speed-up"]).startswith("up to ")


@pytest.mark.parametrize(
    ("child", "looks", "cause", "queued_s"),
    [
        ({"children_cpu_s": 9.0, "children": {"gzip": 190}}, "child", "fetch.cpu", 0.5),
        ({"children_cpu_s": 4.5, "children": {"gzip": 190}}, "child", "fetch.cpu", 5.0),
        ({"children_cpu_s": 0.2}, "other", "fetch.io", 0.0),  # as curl: it waits itself
    ],
)
def test_workers_that_wait_for_a_child_that_computes_keep_cores_busy(
    child: dict[str, Any], looks: Wait, cause: str, queued_s: float
) -> None:
    """Their waiting was taken for I/O, and 16 workers advised where two do."""
    seen = _seen(
        _looks((190, WAITS), (10, _look("running"))),
        worker={"run_s": 0.5, "queued_s": 0.0, **child},
        worker_waits={looks: 190, "running": 10},
        main={"run_s": 0.5},
    )
    found = _diagnose(seen)
    assert found.finding is not None
    assert found.finding.code == cause
    asked = found.finding.fix.dataloader_kwargs if found.finding.fix else {}
    assert ("num_workers" in asked) is (cause == "fetch.io")
    assert (found.finding.title == "Child processes (gzip) compute in __getitem__") is (
        cause == "fetch.cpu"
    )
    costs = _explanation(seen, _shares(seen), found.config).costs
    made_s = costs.cpu_s[0] + costs.run_queue_s[0] + costs.io_s[0]
    assert 400 * made_s == pytest.approx(2 * 10.0)  # of two workers, all the time
    assert 400 * costs.run_queue_s[0] == pytest.approx(2 * queued_s)
    apart = _explanation(seen, _shares(seen), found.config, crowded=False).costs
    assert apart.cpu_s[0] + apart.io_s[0] == pytest.approx(made_s)


def _ranked(seen: Seen) -> Seen:
    return dataclasses.replace(seen, training=dataclasses.replace(seen.training, ranks=4))


def test_ranks_of_one_job_are_no_background_load_to_each_other() -> None:
    usage = Usage(own_cpu_cores=0.8, available_cpu_cores=0.8, other_cpu_cores=1.2)
    seen = _seen(
        _looks((190, WAITS), (10, _look("running"))),
        worker={"run_s": 4.0, "queued_s": 5.5},
        main={"run_s": 0.3},
    )
    wide = dataclasses.replace(HERE, logical_cpus=8, affinity_cpus=8, usable_cores=8.0)
    ranks = diagnose_training(_ranked(seen), wide.shared_by(4), usage)
    assert _first(seen, usage) == "cpu.neighbours"
    assert "cpu.neighbours" not in [each.code for each in ranks.diagnosis.findings]
    assert ranks.finding is not None
    assert ranks.finding.code == "fetch.cpu"
    assert ranks.usage == usage


def test_a_rank_is_advised_workers_for_its_share_of_the_cores() -> None:
    looks = [_look("running", alive=0)] * LOOKS
    seen = _seen(looks, workers=0, batches=0, main={"run_s": 9.8})
    offered = dataclasses.replace(HERE, logical_cpus=32, affinity_cpus=32, usable_cores=32.0)
    for each, there, workers in ((seen, offered, 32), (_ranked(seen), offered.shared_by(4), 8)):
        first = diagnose_training(each, there, QUIET).finding
        assert first is not None
        assert first.fix is not None
        assert first.fix.dataloader_kwargs == {"num_workers": workers}


def test_a_wait_has_its_interval_and_the_depth_of_the_queues_is_seen() -> None:
    found = _diagnose(_consumer())
    assert found.config.num_workers == 2
    assert found.config.prefetch_factor == 2
    assert found.batches_per_s == pytest.approx(40.0)
    assert found.wait_fraction is not None
    assert found.wait_fraction.low is not None
    assert found.wait_fraction.high is not None
    assert 0 < found.wait_fraction.low < 0.04 < found.wait_fraction.high < 0.1
    assert found.finished_batches == pytest.approx(4 * 196 / 200)


@pytest.mark.parametrize(
    ("workers", "prefetch", "flights"),
    [
        (2, 2, {1: 1, 2: 2, 3: 21, 4: 12, 5: 5}),
        (3, 2, {3: 1, 4: 6, 5: 5, 6: 16, 7: 2, 8: 1}),
        (4, 2, {1: 1, 5: 6, 6: 1, 7: 13, 8: 7, 9: 1, 10: 4}),
        (2, 1, {1: 5, 2: 32, 3: 3}),
        (2, 3, {0: 1, 1: 1, 3: 2, 4: 13, 5: 13, 6: 11, 8: 1}),
    ],
)
def test_batches_that_show_twice_on_a_busy_machine_make_no_queue_deeper(
    workers: int, prefetch: int, flights: dict[int, int]
) -> None:
    """As looks at such loaders were, where 15 processes wanted 2 cores."""
    look = _look("queue", idle=0, finished=0)
    seen = [(look, float(n)) for n, looks in flights.items() for _ in range(2 * looks)]
    assert _depth(seen, workers) == prefetch


def test_what_a_worker_has_just_handed_over_makes_no_queue_deeper() -> None:
    """On the busiest machine a third of the looks found it at work still, and its batch queued."""
    twice = [(_look("running", idle=0, finished=1), 5.0)] * 20
    starved = [(_look("queue", idle=0, finished=0), 4.0)] * 20
    full = [(_look("running", idle=2, finished=4), 4.0)] * 20
    assert _depth([*twice, *starved, *full], 2) == 2
    assert _depth(3 * twice, 2) == 3  # nothing else was seen


def test_of_shards_that_are_fewer_than_workers_the_idle_ones_count() -> None:
    seen = _cpu()
    training = dataclasses.replace(seen.training, ended_workers=4)
    found = _diagnose(dataclasses.replace(seen, training=training))
    assert found.config.num_workers == 6
    assert "too_many_workers" in [each.code for each in found.diagnosis.findings]


def _fed(*, persist: bool) -> Seen:
    """Of four workers, the third and the fourth give all batches."""
    seen = _cpu()
    idle: dict[str, Any] = {"waits": {"queue": LOOKS}, "messages": 0, "run_s": 0.0}
    first, second = (
        dataclasses.replace(each, pid=each.pid + 2, messages=200) for each in seen.workers
    )
    if not persist:
        return dataclasses.replace(seen, workers=(first, second), ended_before=(2, 3))
    empty = (dataclasses.replace(each, **idle) for each in seen.workers)
    return dataclasses.replace(seen, workers=(*empty, first, second))


@pytest.mark.parametrize("persist", [True, False])
def test_workers_without_data_are_of_an_iterable_and_named(persist: bool) -> None:
    seen = _fed(persist=persist)
    training = dataclasses.replace(seen.training, ended_workers=len(seen.ended_before))
    found = _diagnose(dataclasses.replace(seen, training=training))
    assert found.finding is not None
    assert found.finding.code == "workers.unfed"
    assert found.config.num_workers == 4
    assert found.finding.title == "2 of 4 workers end before the others"
    assert "Workers 0 and 1 gave none of 400 batches" in found.finding.explanation
    codes = [each.code for each in found.diagnosis.findings]
    assert "too_many_workers" not in codes
    fixes = (each.fix.dataloader_kwargs for each in found.diagnosis.findings if each.fix)
    assert not any("num_workers" in each for each in fixes)
    # Those of several loaders, or that just start, are not said to be without data.
    seen = dataclasses.replace(seen, training=training)
    assert _first(dataclasses.replace(seen, other_workers=2)) != "workers.unfed"
    assert _first(dataclasses.replace(seen, started_workers=4)) != "workers.unfed"


def test_queues_that_are_as_deep_as_any_is_advised_are_not_made_deeper() -> None:
    """Of 16 batches for each worker 16 were advised, and of 32 as well."""
    seen = _bursts()
    flights = _shares(seen)
    config = _diagnose(seen).config
    for depth, advised in ((config.prefetch_factor, True), (16, False), (32, False)):
        deep = dataclasses.replace(config, prefetch_factor=depth)
        explained = _explanation(seen, flights, deep)
        found = _direct(seen, flights, deep, explained, locked=False)
        assert ("prefetch.shallow" in {each.code for each in found}) is advised


def test_a_batch_costs_what_those_who_live_took_for_theirs() -> None:
    """Half of all batches came from workers of an epoch that is over, with what these took."""
    seen = _cpu()
    living = (
        dataclasses.replace(each, messages=each.messages // 2, run_s=each.run_s / 2)
        for each in seen.workers
    )
    restarted = dataclasses.replace(seen, workers=tuple(living), started_workers=2)
    whole, half = (
        _explanation(each, _shares(each), _diagnose(each).config).costs.cpu_s[0]
        for each in (seen, restarted)
    )
    assert half == pytest.approx(whole)


def test_workers_of_two_epochs_that_overlap_are_no_more_workers() -> None:
    """Lightning makes an epoch's iterator before it lets go of the last one."""
    seen = _io()
    overlap = [look._replace(alive=2 * look.alive - 1) for look in seen.looks[:5]]
    looks = (*overlap, *seen.looks[5:])
    seen = dataclasses.replace(seen, looks=looks, started_workers=len(seen.workers))
    found = _diagnose(seen)
    assert found.config.num_workers == len(seen.workers)
    assert "startup" not in {each.code for each in found.diagnosis.findings}


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"oom_kills": 1}, "memory.limit"), ({"shm_used_fraction": 0.97}, "memory.shm"), ({}, "none")],
)
def test_what_ended_a_training_is_named_where_it_shows(fields: dict[str, Any], code: str) -> None:
    assert _first(dataclasses.replace(_cpu(), ended=True, **fields)) == code


def test_without_workers_it_says_what_it_can_not_see() -> None:
    looks = [Look(main="running", pin=None, idle=0, alive=0) for _ in range(LOOKS)]
    seen = _seen(looks, workers=0, batches=0, main={"run_s": 9.8, "others_cpu_s": 0.1})
    found = _diagnose(seen)
    assert found.finding is not None
    assert found.finding.code == "too_few_workers"
    assert found.wait_fraction is None
    assert found.confidence == "low"
    # As one that writes images to a program that shows them.
    writes = [Look(main="handover", pin=None, idle=0, alive=0) for _ in range(LOOKS)]
    assert _first(_seen(writes, workers=0, batches=0, main={"written_bytes": 9 << 20})) == "none"
    idle = [Look(main="threads", pin=None, idle=0, alive=0) for _ in range(LOOKS)]
    assert _first(_seen(idle, workers=0, batches=0, main={"run_s": 0.01})) == "none"


def test_without_workers_a_wait_for_the_gil_shows() -> None:
    looks = [Look(main="gil", pin=None, idle=0, alive=0) for _ in range(LOOKS)]
    found = _diagnose(_seen(looks, workers=0, batches=0, main={"run_s": 0.5}))
    assert found.finding is not None
    assert found.finding.code == "lock"
    assert "100% of the time for the GIL" in found.finding.explanation
    assert found.confidence == "low"


def test_a_loader_that_hangs_is_distinguished_from_a_slow_one() -> None:
    stuck = _looks((200, _look("queue", idle=2)))
    found = _diagnose(_seen(stuck, batches=0, worker_waits={"queue": 200}))
    assert found.finding is None
    assert "hangs" in found.diagnosis.notes[0]
    slow = _looks((200, _look("queue", idle=0)))
    assert not _diagnose(_seen(slow, batches=0, worker={"run_s": 9.0})).diagnosis.notes


def test_queues_that_shared_memory_can_not_hold_are_named_before_it_is_full() -> None:
    small = dataclasses.replace(HERE, shm_bytes=8 << 20, shm_available_bytes=8 << 20)
    seen = dataclasses.replace(_cpu(), shared_tensor_bytes=float(2 << 20))
    found = diagnose_training(seen, small, QUIET)
    assert found.finding is not None
    assert found.finding.code == "memory.shm"
    roomy = dataclasses.replace(small, shm_bytes=64 << 20)
    assert diagnose_training(seen, roomy, QUIET).finding != found.finding


def test_workers_are_kept_only_where_the_dataset_does_not_change_with_the_epoch() -> None:
    """Which can't be seen from outside: no argument for scripts to take."""
    (found,) = (e for e in _diagnose(_restarts()).diagnosis.findings if e.code == "startup")
    assert found.fix is not None
    assert "Set persistent_workers=True" in found.fix.text
    assert "Not where the dataset has a set_epoch of its own" in found.fix.text
    assert not found.fix.dataloader_kwargs


def test_between_two_epochs_there_may_be_no_worker_to_ask() -> None:
    between = dataclasses.replace(_restarts(), workers=())
    assert _first(between) == "startup"


def test_of_a_few_batches_nothing_is_sure() -> None:
    found = _diagnose(_seen(_looks((200, WAITS)), batches=2, worker={"run_s": 9.0}))
    assert found.confidence == "low"
    assert "--seconds" in found.confidence_reason


def _waiting(seen: Seen) -> Estimate:
    wait = _diagnose(seen).wait_fraction
    assert wait is not None
    return wait


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_for_how_long_main_runs_is_by_the_kernels_count(share: float) -> None:
    """On busy cores looks come when somebody lets one go, as main does as it begins to wait."""
    ready = _look("running", idle=1, finished=3)
    looks = _looks((60, ready), (140, WAITS))
    seen = _seen(looks, main={"run_s": 9.0 * share, "queued_s": share}, worker={"run_s": 6.0})
    wait = _waiting(seen)
    assert wait.value == pytest.approx(1 - share, abs=0.02)
    assert (wait.high or 1.0) - (wait.low or 0.0) < 0.06  # no look found it blocked elsewhere


def test_what_main_is_blocked_on_is_by_all_looks_at_it() -> None:
    """Those at it alone are many more than those at all."""
    few = _seen(
        _looks((70, _look("sleep", idle=1, finished=2)), (30, WAITS)), main={"run_s": 0.001}
    )
    waits: dict[Wait, int] = {"sleep": 280, "queue": 120 + 400}
    many = dataclasses.replace(few, main=dataclasses.replace(few.main, waits=waits))
    assert _waiting(few).value == pytest.approx(0.3, abs=0.02)
    assert _waiting(many).value == pytest.approx(0.65, abs=0.02)
    wide, narrow = ((e.high or 1.0) - (e.low or 0.0) for e in map(_waiting, (few, many)))
    assert narrow < 0.5 * wide


def test_of_running_the_part_in_next_is_no_step() -> None:
    """A step that sleeps: 4 of 5 times main wants a core it has a batch to take in, cold."""
    looks = _looks((40, _look("sleep", idle=1, finished=2)), (120, WAITS), (40, _look("running")))
    main = {"run_s": 0.6, "queued_s": 1.4, "yielded": 2000, "preempted": 0}
    warm = _waiting(_seen(looks, main=main))
    cold = _waiting(_seen(looks, main=main, cold_factor=5.0))
    # Blocked for 0.6 of the time, 0.112 of waiting for a core, and 0.012 of computing.
    assert warm.value == pytest.approx(0.6 + 0.8 * 0.14 + 0.012, abs=0.005)
    assert cold.value == pytest.approx(warm.value + 0.012 * 4 * 0.6, abs=0.005)
    # What is preempted computes: as much of that delay is in next() as of the CPU time.
    forced = _waiting(_seen(looks, main=main | {"yielded": 0, "preempted": 2000}))
    assert forced.value == pytest.approx(0.6 + 0.2 * 0.14 + 0.012, abs=0.005)


def test_without_a_pin_thread_main_waits_for_threads_of_the_step() -> None:
    busy = _look("threads", finished=4)
    step = _diagnose(_seen(_looks((200, busy)), worker={"run_s": 2.0}, main={"run_s": 9.7}))
    pinned = _diagnose(
        _seen(
            _looks((200, busy._replace(pin="queue"))),
            worker={"run_s": 9.0},
            main={"run_s": 0.3},
        )
    )
    assert step.wait_fraction is not None
    assert pinned.wait_fraction is not None
    assert step.wait_fraction.value < 0.1
    assert pinned.wait_fraction.value > 0.9


@pytest.mark.parametrize(("idle", "waits"), [(0, True), (2, False)])
def test_main_may_wait_for_a_thread_of_the_script_that_takes_the_batches(
    idle: int, waits: bool
) -> None:
    """A prefetcher's queue is no work of the step: main itself then reads no batch."""
    ready = _look("threads", idle=idle, finished=2 * idle)
    seen = _seen(_looks((200, ready)), worker={"run_s": 0.5}, main={"reads": 3, "run_s": 0.3})
    found = _diagnose(seen)
    assert found.wait_fraction is not None
    assert (found.wait_fraction.value > 0.9) is waits
    assert found.finding is not None
    assert (found.finding.code == "consumer") is not waits
    assert found.confidence == "low"
    assert "another thread takes the batches" in found.confidence_reason


def test_a_pin_thread_that_copies_all_the_time_is_the_limit() -> None:
    copies = _look("threads", idle=1, finished=2)._replace(pin="running")
    seen = _seen(_looks((200, copies)), worker={"run_s": 4.0}, main={"run_s": 0.3})
    assert _first(seen) == "main.pin"


def test_workers_that_wait_for_their_gil_are_distinguished_from_those_that_read() -> None:
    looks = _looks((190, WAITS), (10, _look("running")))
    fields: dict[str, Any] = {"worker": {"run_s": 0.5}, "main": {"run_s": 0.3}}
    held = _seen(looks, worker_waits={"gil": 180, "running": 20}, **fields)
    found = _diagnose(held).finding
    assert found is not None
    assert (found.code, "GIL" in found.title) == ("lock", True)
    assert _first(_seen(looks, worker_waits={"disk": 180, "running": 20}, **fields)) == "fetch.io"


def test_batches_of_workers_that_end_meanwhile_give_a_rate_where_any_was_counted() -> None:
    """What main sent to workers that have ended stays counted; none is no rate of 0."""
    restarts = _restarts()
    found = _diagnose(restarts)
    assert found.batches_per_s == restarts.main.messages / restarts.window_s > 0
    assert found.confidence == "low"
    assert "a few batches may not be counted" in found.confidence_reason
    none = dataclasses.replace(restarts, main=dataclasses.replace(restarts.main, messages=0))
    assert _diagnose(none).batches_per_s is None
    assert _diagnose(_io()).batches_per_s


def test_a_training_of_which_one_batch_was_seen_is_to_be_watched_longer() -> None:
    one = dataclasses.replace(_io(), main=dataclasses.replace(_io().main, messages=1))
    assert ", 1 batch seen: watch longer (--seconds 60)" in _diagnose(one).confidence_reason


def test_of_two_loaders_that_give_batches_the_certainty_is_low() -> None:
    found = _diagnose(dataclasses.replace(_io(), other_workers=1, other_batches=9))
    assert found.confidence == "low"
    assert "another loader gave batches too" in found.confidence_reason
    assert _diagnose(dataclasses.replace(_io(), other_workers=1)).confidence != "low"


def test_batches_that_wait_for_an_earlier_one_are_counted_only_where_they_are_seen() -> None:
    """Not beside another loader, nor where a batch is a large message."""
    for seen, known in ((_order(), True), (dataclasses.replace(_order(), other_workers=2), False)):
        found = _diagnose(seen).finding
        assert found is not None
        assert found.code == "order.blocking"
        assert ("held_batches" in found.evidence) is known
        assert (" nothing to do and finished batches wait " in found.explanation) is not known


def test_what_another_loader_gave_is_no_batch_of_the_one_that_is_diagnosed() -> None:
    alone, main = _io(), _io().main
    both = dataclasses.replace(main, messages=2 * main.messages, reads=2 * main.reads)
    seen = dataclasses.replace(alone, main=both, other_workers=2, other_batches=main.messages)
    assert _diagnose(seen).batches_per_s == _diagnose(alone).batches_per_s
    costs = [_explanation(e, _shares(e), _diagnose(e).config).costs for e in (alone, seen)]
    assert costs[0].cpu_s == costs[1].cpu_s
