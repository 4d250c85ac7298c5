"""Where figures mislead: memory that fills up, noise, crowds, trials too short to say."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from builders import around, config, trial
from finding_cases import QUIET, Loader, codes, evidence, modeled, stage, with_explanation

from dlprof.advise.findings.diagnosis import find, remedies
from dlprof.advise.findings.evidence import Evidence, Observation
from dlprof.advise.findings.machine import growth_in_doubt, growth_per_batch, may_grow
from dlprof.records import BatchCosts, DatasetWeight, Finding, SampleCosts, Usage

MIB = 1 << 20
CPU = Loader(fetch_cpu=0.019, rate=100.0)


def _with_memory(points: Sequence[tuple[int, int]], epoch: int = 100_000) -> Evidence:
    """Plain trials of so many batches, with so many MiB in the end."""
    seen = evidence(CPU, target_fields={"batch_bytes": 1000, "batches_per_epoch": epoch})
    plain = tuple(
        Observation(
            trial=trial(
                CPU.config,
                3200.0,
                repetition=block,
                window_batches=batches,
                batch_bytes=1000.0,
                usage=Usage(pss_peak_bytes=mebibytes * MIB),
            ),
        )
        for block, (batches, mebibytes) in enumerate(points)
    )
    rest = tuple(o for o in seen.observations if o.trial.purpose == "explain")
    return dataclasses.replace(seen, observations=(*plain, *rest))


@pytest.mark.parametrize(
    ("points", "grows"),
    [
        ([(100, 200), (200, 250), (800, 550)], True),
        ([(100, 200), (200, 251), (800, 549), (100, 203)], True),
        ([(84, 164), (228, 191), (544, 210)], False),  # filling up: seen of torch's own threads
        ([(60, 143), (240, 270), (800, 272)], False),  # seen of large batches
        ([(34, 173), (60, 192), (132, 237)], False),  # the same, too short to say
        ([(50, 200), (100, 500)], True),  # more than anything fills up by
        ([(100, 200), (200, 203), (800, 206)], False),
        ([(50, 200), (52, 600)], False),
    ],
)
def test_memory_grows_where_it_goes_on(points: Sequence[tuple[int, int]], *, grows: bool) -> None:
    view = _with_memory(points)
    assert (growth_per_batch(view) is not None) == grows


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([(34, 173), (60, 192), (132, 391)], True),  # of a leak: 224 were needed
        ([(34, 173), (132, 265)], False),  # no more than pools fill up by
        ([(50, 200), (100, 500)], False),  # it is known to grow
        ([(50, 200), (900, 400)], False),  # and here not to, after so many batches
        ([(132, 391)], False),
        ([(100, 200), (101, 310)], False),  # of two trials of one length
    ],
)
def test_what_no_trial_was_long_enough_to_show_of_memory_is_said(
    points: Sequence[tuple[int, int]], *, said: bool
) -> None:
    text = growth_in_doubt(_with_memory(points))
    assert bool(text) == said
    assert not said or text.startswith("Memory grew by 218 MiB within 98 batches")


def test_growth_is_reported_with_when_memory_is_full() -> None:
    first = find(_with_memory([(100, 200), (200, 300), (800, 900)]))[0]
    assert first.code == "memory.growth"
    assert first.evidence["growth_bytes_per_batch"] == pytest.approx(MIB, rel=0.01)
    room = 48 << 30
    assert first.evidence["seconds_to_full"] == pytest.approx(room / (100 * MIB), rel=0.01)


def test_memory_that_goes_back_with_an_epochs_workers_comes_last() -> None:
    """100 MiB a second, of which an epoch of 10 s keeps 1 GiB."""
    points = [(100, 200), (200, 300), (800, 900)]
    *_, last = find(_with_memory(points, epoch=1000))
    assert last.code == "memory.growth"
    assert last.evidence["seconds_to_full"] is None
    assert "Workers end with each epoch, after 1000 MiB, and give that back" in last.explanation
    # What went on beyond an epoch outlives its workers.
    assert find(_with_memory(points, epoch=150))[0].code == "memory.growth"


def test_a_suspicion_is_enough_for_a_longer_trial() -> None:
    growing = _with_memory([(50, 200), (100, 206)])
    assert may_grow(growing, 1000)
    assert not may_grow(growing, 200)  # it would not have grown enough by then to be believed
    assert not may_grow(_with_memory([(50, 200), (100, 201)]), 1000)
    assert not may_grow(_with_memory([(50, 200)]), 1000)


def test_a_trial_too_short_to_say_asks_the_model() -> None:
    loader = Loader(config=config(4), fetch_io=0.04, hold_up=0.05, busy=0.55, rate=60)
    model = modeled(lambda chosen, _: around(60.0 if chosen.in_order else 90.0))
    seen = evidence(loader, variants={config(4, in_order=False): 1.05}, predict=model)
    seen = dataclasses.replace(seen, observations=tuple(map(_slow_tail, seen.observations)))
    first = find(seen)[0]
    assert first.code == "order.blocking"
    assert first.evidence["gain_from"] == "model"


def _slow_tail(seen: Observation) -> Observation:
    """The same with one batch in many ten times as slow, and rates as uncertain as that makes."""
    made = dataclasses.replace(seen.trial, noisy=True)
    explained = seen.explanation
    if explained is None:
        return dataclasses.replace(seen, trial=made)
    stages = tuple(
        dataclasses.replace(stage, max_s=10 * stage.median_s) if stage.name == "fetch" else stage
        for stage in explained.stages
    )
    shown = dataclasses.replace(explained, stages=stages)
    return dataclasses.replace(seen, trial=made, explanation=shown)


def test_a_crowd_comes_before_what_loading_takes_and_behind_what_is_wrong() -> None:
    crowd = Usage(own_cpu_cores=0.7, available_cpu_cores=0.7, other_cpu_cores=1.3)
    natural = evidence(Loader(fetch_cpu=0.019, starved=0.035, rate=35), usage=crowd)
    assert codes(find(natural)) == ["cpu.neighbours", "fetch.cpu"]
    wrong = evidence(
        Loader(fetch_cpu=0.004, collate_cpu=0.015, starved=0.035, rate=35), usage=crowd
    )
    assert codes(find(wrong)) == ["collate", "cpu.neighbours"]


@pytest.mark.parametrize(("waits_s", "first"), [(0.03, "fetch.io"), (0.015, "cpu.neighbours")])
def test_a_crowd_comes_behind_what_takes_longer_by_itself(waits_s: float, first: str) -> None:
    crowd = Usage(own_cpu_cores=0.3, available_cpu_cores=0.4, other_cpu_cores=1.6)
    loader = Loader(fetch_cpu=0.002, fetch_io=waits_s, starved=0.024, rate=35)
    found = codes(find(evidence(loader, usage=crowd, noisy=True)))
    assert found[0] == first
    assert "cpu.neighbours" in found


def test_waiting_for_a_starved_worker_is_no_receiving() -> None:
    crowd = Usage(own_cpu_cores=1.9, available_cpu_cores=1.9, other_cpu_cores=0.05)
    loader = Loader(config=config(8), fetch_cpu=0.02, starved=0.08, receive=0.009, rate=90)
    found = codes(find(evidence(loader, usage=crowd, variants={config(2): 1.05})))
    assert found[0] == "cpu.oversubscribed"


def test_one_cpu_for_the_whole_program_is_reported() -> None:
    loader = Loader(fetch_cpu=0.01, starved=0.01, affinity=1, rate=100)
    usage = dataclasses.replace(QUIET, run_queue_wait_fraction=0.5)
    fields = {"affinity_cpus": 1, "logical_cpus": 8, "usable_cores": 1.0}
    found = find(evidence(loader, usage=usage, cores=1, machine_fields=fields))
    assert found[0].code == "cpu.affinity"


@pytest.mark.parametrize("threads", [2, 3])
def test_a_worker_with_its_feeder_has_no_threads_to_spare(threads: int) -> None:
    loader = Loader(fetch_cpu=0.01, put_cpu=0.02, threads=threads, rate=60)
    assert "cpu.threads" not in codes(find(evidence(loader)))


def test_a_feeder_that_copies_large_batches_is_no_pool_of_threads() -> None:
    """As what a collate_fn of one's own stacks is, beside a library's threads that idle."""
    seen = evidence(Loader(fetch_cpu=0.04, put_cpu=0.02, starved=0.02, threads=9, rate=30))
    assert "cpu.threads" in codes(find(seen))
    handed = stage("serialise", 0.019)
    observed = (
        dataclasses.replace(
            each,
            explanation=each.explanation
            and dataclasses.replace(each.explanation, stages=(*each.explanation.stages, handed)),
        )
        for each in seen.observations
    )
    found = find(dataclasses.replace(seen, observations=tuple(observed)))
    assert codes(found)[0] == "fetch.cpu"
    assert "cpu.threads" not in codes(found)


def test_threads_of_workers_that_sleep_compete_for_nothing() -> None:
    loader = Loader(fetch_cpu=0.001, fetch_io=0.08, put_cpu=0.003, threads=5, rate=24)
    assert "cpu.threads" not in codes(find(evidence(loader)))


def test_idle_workers_are_reported_even_where_trials_disagree() -> None:
    loader = Loader(config=config(6), fetch_cpu=0.019, idle_workers=4, busy=1.0, rate=100)
    found = find(evidence(loader, variants={config(2): 0.7}))
    assert "too_many_workers" in codes(found)


def test_a_faster_calibration_is_worth_a_trial() -> None:
    loader = Loader(fetch_cpu=0.001, collate_cpu=0.006, rate=150, busy=0.95)
    alone = Loader(config=config(0), fetch_cpu=0.001, collate_cpu=0.002, rate=300)
    seen = evidence(loader, calibrations=[alone], variants={config(0): 2.0})
    assert "too_many_workers" in codes(find(seen))


def test_a_little_faster_with_fewer_workers_is_chance_beside_others() -> None:
    loader = Loader(fetch_cpu=0.012, starved=0.008, rate=100)
    alone = Loader(config=config(1), fetch_cpu=0.012, rate=120)
    quiet, noisy = (
        evidence(loader, noisy=each, calibrations=[alone], variants={config(1): 1.12})
        for each in (False, True)
    )
    assert "too_many_workers" in codes(find(quiet))
    assert "too_many_workers" not in codes(find(noisy))


def _with_batches(
    seen: Evidence, io_s: tuple[float, ...], *, cpu_s: float = 0.0, queue_s: float = 0.0
) -> Evidence:
    """The same with other batches in what was explained of the settings themselves."""
    zero, cpu, queue = ((each_s,) * len(io_s) for each_s in (0.0, cpu_s, queue_s))
    rows = BatchCosts(
        cpu_s=cpu, io_s=io_s, run_queue_s=queue, put_cpu_s=zero, receive_cpu_s=zero,
        receive_io_s=zero, main_cpu_s=zero,
    )  # fmt: skip
    observations = tuple(
        dataclasses.replace(each, explanation=dataclasses.replace(each.explanation, costs=rows))
        if each.explanation and each.explanation.config == seen.config
        else each
        for each in seen.observations
    )
    return dataclasses.replace(seen, observations=observations)


def test_order_holds_up_only_where_some_batches_are_slow_by_themselves() -> None:
    loader = Loader(config=config(4), fetch_io=0.04, hold_up=0.02, busy=0.55, rate=60)
    seen = evidence(loader, variants={config(4, in_order=False): 1.5})
    tail = (0.03,) * 97 + (0.45,) * 3
    assert "order.blocking" in codes(find(_with_batches(seen, tail)))
    assert "order.blocking" not in codes(find(_with_batches(seen, (0.03, 0.045) * 50)))
    # Nor where they came first, as while a cache fills up: later ones hold nothing up.
    assert "order.blocking" not in codes(find(_with_batches(seen, tail[::-1])))


def _uneven(
    io_s: tuple[float, ...],
    *,
    longest_s: float = 0.4,
    slow: tuple[int, int] = (407, 7),
    weight: DatasetWeight | None = None,
    **target: Any,
) -> list[Finding]:
    """Beside others, who take most of the cores: samples of a few ms, and some."""
    cpu_s, queue_s, blocked_s = 0.03, 0.06, statistics.fmean(io_s)
    loader = Loader(
        config=config(0), fetch_cpu=cpu_s, fetch_io=blocked_s, starved=queue_s,
        rate=1 / (cpu_s + queue_s + blocked_s),
    )  # fmt: skip
    crowd = Usage(
        own_cpu_cores=0.6, available_cpu_cores=0.7, other_cpu_cores=1.3, other_runnable=4.0
    )
    seen = evidence(loader, usage=crowd, noisy=True, weight=weight)
    seen = _with_batches(seen, io_s, cpu_s=cpu_s, queue_s=queue_s)
    seen = dataclasses.replace(seen, target=dataclasses.replace(seen.target, **target))
    samples = SampleCosts(
        count=1600, mean_s=0.006, median_s=0.004, p95_s=0.01, p99_s=0.02, max_s=longest_s,
        slowest={f"{slow[0]}": longest_s, f"{slow[1]}": 0.9 * longest_s, "30": 0.05},
    )  # fmt: skip
    return [*find(with_explanation(seen, samples=samples))]


def test_a_few_samples_that_wait_far_longer_are_named_before_others_who_take_cores() -> None:
    tail = ((0.001,) * 11 + (0.4,)) * 8
    first, *rest = _uneven(tail)
    assert (first.code, first.title.rpartition(": ")[2]) == ("fetch.io", "index 407 (400 ms)")
    assert "407 (400 ms), 7 (360 ms)." in first.explanation
    assert "cpu.neighbours" in codes(rest)
    # What all samples wait for, or one waits for a core, is no tail of theirs.
    for io_s, longest_s in (((0.034,) * 96, 0.4), (tail, 0.05)):
        found = _uneven(io_s, longest_s=longest_s)
        assert codes(found)[0] == "cpu.neighbours"
        assert not any("few samples" in each.title for each in found)


IN_ORDER = {"sampler": "SequentialSampler"}
FIRST_OF_BLOCK = DatasetWeight(far_sample_s=0.4, next_sample_s=0.00001)
ALIKE = DatasetWeight(far_sample_s=0.004, next_sample_s=0.004)


@pytest.mark.parametrize(
    ("slow", "weight", "target", "blocks"),
    [
        ((512, 256), None, IN_ORDER, True),
        ((512, 256), None, {"kind": "iterable", "sampler": None}, True),
        ((300, 7), FIRST_OF_BLOCK, IN_ORDER, True),  # blocks of several lengths
        ((512, 256), ALIKE, IN_ORDER, False),
        ((512, 256), None, {"sampler": "RandomSampler"}, False),
        ((407, 7), None, IN_ORDER, False),
        ((407, 0), None, IN_ORDER, False),  # any one is so far from the first
        ((8, 7), None, IN_ORDER, False),
    ],
)
def test_the_first_of_a_block_waits_for_what_none_is_spared(
    slow: tuple[int, int], weight: DatasetWeight | None, target: dict[str, Any], blocks: bool
) -> None:
    """Left out, it would have the next sample wait: as of row groups that are read whole."""
    tail = ((0.001,) * 11 + (0.4,)) * 8
    first = _uneven(tail, slow=slow, weight=weight, **target)[0]
    title = "The first sample of each block waits" if blocks else "A few samples wait far longer"
    assert (first.code, first.title.startswith(title)) == ("fetch.io", True)
    assert first.fix is not None
    assert ("left out" in first.fix.text) is not blocks
    if blocks:  # reading ahead hides one behind the other
        assert first.predicted_gain is None or first.predicted_gain.value <= 2.0


def test_batches_that_wait_only_at_first_name_no_samples() -> None:
    """As of a cache on disk that a script's first epoch fills."""
    first = _uneven((0.4,) * 8 + (0.001,) * 88)[0]
    title = "The first batches wait far longer than the rest"
    assert (first.code, first.title) == ("fetch.io", title)
    assert first.fix is not None
    assert "Fill a cache before the loop" in first.fix.text
    assert "left out" not in first.fix.text
    assert first.evidence["share"] == pytest.approx(0.515, abs=0.01)


def test_slow_batches_of_which_some_come_later_are_no_beginning() -> None:
    """Five of the first eight, and three others, which were said to be hardly any."""
    found = _uneven(((0.4,) * 5 + (0.001,) * 27) + ((0.4,) + (0.001,) * 20) * 3)[0]
    assert found.title.startswith("A few samples wait far longer")


def test_reading_that_costs_nothing_comes_after_others_who_take_the_cores() -> None:
    """As of batches of 300 tensors: without storage they come no faster, as the cores are busy."""
    loader = Loader(
        fetch_cpu=0.002, fetch_io=0.068, starved=0.034, put_cpu=0.037, receive=0.026, rate=9.0
    )
    crowd = Usage(
        own_cpu_cores=0.6, available_cpu_cores=0.6, other_cpu_cores=1.4, other_runnable=13.0
    )
    found = find(evidence(loader, usage=crowd, noisy=True))
    assert codes(found)[0] == "cpu.neighbours"
    assert all(each.cost < 0.05 for each in found if each.code == "fetch.io")


def test_queues_that_others_empty_are_not_too_shallow() -> None:
    loader = Loader(config=config(2, prefetch_factor=1), fetch_io=0.01, busy=0.5, rate=90)
    tried = {config(2, prefetch_factor=8): 1.4}
    alike, uneven = (0.01,) * 40, ((0.002,) * 12 + (0.06,) * 4) * 3
    quiet, noisy = (evidence(loader, noisy=each, variants=tried) for each in (False, True))
    assert "prefetch.shallow" in codes(find(_with_batches(quiet, alike)))
    assert "prefetch.shallow" in codes(find(_with_batches(noisy, uneven)))
    assert "prefetch.shallow" not in codes(find(_with_batches(noisy, alike)))


@pytest.mark.parametrize(
    ("gains", "batches", "found"),
    [
        ((0.95, 1.6), (0.04,) * 9, False),  # too few batches to show any
        ((0.95, 1.6), (0.04,) * 40, False),
        ((1.35, 1.4), (0.04,) * 9, True),
        ((0.95, 1.6), (0.02,) * 30 + (0.2,) * 3, True),  # bursts
    ],
)
def test_a_deeper_queue_that_may_bring_nothing_fits_only_bursts(
    gains: tuple[float, float], batches: tuple[float, ...], *, found: bool
) -> None:
    """On a machine not at rest two loaders that only compute were said to come in bursts."""
    loader = Loader(config=config(2, prefetch_factor=1), fetch_io=0.04, busy=0.85, rate=40)
    seen, deep = evidence(loader), config(2, prefetch_factor=8)
    tried = (
        Observation(trial=trial(deep, 40 * 32 * gain, repetition=block, trial_id=f"t{block}"))
        for block, gain in enumerate(gains)
    )
    seen = dataclasses.replace(seen, observations=(*seen.observations, *tried))
    assert ("prefetch.shallow" in codes(find(_with_batches(seen, batches)))) is found


def test_many_tensors_are_the_cause_even_where_no_workers_are_better() -> None:
    loader = Loader(fetch_cpu=0.002, receive=0.0095, busy=0.2, rate=100)
    alone = Loader(config=config(0), fetch_cpu=0.002, rate=450)
    seen = evidence(
        loader,
        calibrations=[alone],
        variants={config(0): 4.5},
        target_fields={"batch_tensors": 80},
    )
    found = codes(find(seen))
    assert found[0] == "main.receive"
    assert "too_many_workers" not in found


def test_more_and_fewer_workers_are_not_advised_at_once() -> None:
    loader = Loader(config=config(1), fetch_cpu=0.02, rate=50, busy=1.0)
    alone = Loader(config=config(0), fetch_cpu=0.017, rate=56)
    seen = evidence(loader, calibrations=[alone], variants={config(0): 1.09, config(2): 1.2})
    found = codes(find(seen))
    assert "too_few_workers" in found
    assert "too_many_workers" not in found


def test_a_busy_worker_that_keeps_main_waiting_is_reported_with_its_remedy() -> None:
    by_name = config(2, sharing_strategy="file_system")
    loader = Loader(fetch_cpu=0.03, receive=0.002, hand_shake=0.012, busy=0.6, step=0.04, rate=18)
    first = find(evidence(loader, variants={by_name: 1.25}))[0]
    assert first.code == "main.receive"
    assert "descriptors" in first.explanation
    assert first.fix is not None
    assert "file_system" in first.fix.code


def test_tensors_that_are_shared_by_name_already_need_not_be() -> None:
    by_name = config(2, sharing_strategy="file_system")
    loader = Loader(fetch_cpu=0.03, receive=0.002, hand_shake=0.012, busy=0.6, step=0.04, rate=18)
    assert by_name in remedies(evidence(loader))
    already = evidence(loader, target_fields={"sharing_strategy": "file_system"})
    assert by_name not in remedies(already)


def test_a_remedy_of_receiving_is_not_taken_from_chance_beside_others() -> None:
    by_name = config(2, sharing_strategy="file_system")
    loader = Loader(fetch_cpu=0.03, receive=0.002, hand_shake=0.008, busy=0.6, step=0.04, rate=18)
    quiet, noisy = (
        evidence(loader, noisy=each, variants={by_name: 1.12}) for each in (False, True)
    )
    assert "main.receive" in codes(find(quiet))
    assert "main.receive" not in codes(find(noisy))


@pytest.mark.parametrize(("kind", "method"), [("map", "__getitem__"), ("iterable", "__iter__")])
def test_the_method_that_is_blocked_is_one_that_the_dataset_has(kind: str, method: str) -> None:
    loader = Loader(fetch_cpu=0.002, fetch_io=0.03, rate=35)
    (found,) = (
        each
        for each in find(evidence(loader, target_fields={"kind": kind}))
        if each.code == "fetch.io"
    )
    assert found.title == f"Blocking I/O in {method}"
    assert found.fix is not None
    assert kind == "map" or "__getitem" not in found.fix.text


def test_fewer_workers_come_behind_the_lock_that_makes_them_better() -> None:
    loader = Loader(config=config(4), fetch_cpu=0.002, fetch_io=0.08, rate=45)
    alone = Loader(config=config(1), fetch_cpu=0.002, fetch_io=0.005, rate=140)
    found = find(evidence(loader, calibrations=[alone], variants={config(1): 3.2}))
    assert codes(found)[0] == "lock"
    assert "too_many_workers" in codes(found)


def test_batches_that_wait_for_each_other_are_no_bursts() -> None:
    loader = Loader(config=config(4), fetch_cpu=0.002, fetch_io=0.08, busy=0.5, rate=45)
    alone = Loader(config=config(1), fetch_cpu=0.002, fetch_io=0.005, rate=140)
    tried = {config(4, prefetch_factor=8): 1.5}
    seen = evidence(loader, calibrations=[alone], variants=tried)
    uneven = ((0.06,) * 12 + (0.2,) * 4) * 3
    found = codes(find(_with_batches(seen, uneven)))
    assert found[0] == "lock"
    assert "prefetch.shallow" not in found


def test_a_few_slow_batches_that_one_worker_did_not_meet_are_no_lock() -> None:
    loader = Loader(config=config(4), fetch_cpu=0.002, fetch_io=0.08, busy=0.5, rate=45)
    alone = Loader(config=config(1), fetch_cpu=0.002, fetch_io=0.01, rate=80)
    seen = evidence(loader, calibrations=[alone])
    assert codes(find(_with_batches(seen, (0.07, 0.09) * 20)))[0] == "lock"
    assert "lock" not in codes(find(_with_batches(seen, ((0.01,) * 9 + (0.7,)) * 4)))


def test_a_feeder_takes_turns_with_its_worker_and_wants_no_core_of_its_own() -> None:
    loader = Loader(fetch_cpu=0.0001, put_cpu=0.002, starved=0.001, busy=0.3, step=0.01, rate=40)
    crowd = Usage(own_cpu_cores=0.5, available_cpu_cores=0.6, other_cpu_cores=1.4)
    tried = {config(1): 1.0}
    found = codes(find(evidence(loader, usage=crowd, noisy=True, variants=tried)))
    assert "cpu.oversubscribed" not in found


@pytest.mark.parametrize(("beside_s", "sure"), [(0.0, True), (0.002, True), (0.03, False)])
def test_blocked_time_beside_busy_threads_may_be_a_wait_for_the_gil(
    beside_s: float, *, sure: bool
) -> None:
    seen = evidence(Loader(config=config(0), fetch_cpu=0.001, fetch_io=0.03, rate=32))
    found = {each.code: each for each in find(with_explanation(seen, fetch_threads_cpu_s=beside_s))}
    blocked = found["fetch.io"]
    assert ("GIL" in blocked.title) is not sure
    assert (blocked.severity == "high") is sure or blocked.severity == "medium"
    if not sure:
        assert blocked.severity != "high"
        assert blocked.evidence["gil_at_most_s"] == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("main_s", "beside_s", "blocked_s", "worker_s", "waits", "gain"),
    [
        (0.020, 0.018, 0.0, 0.011, {}, 1.8),  # it spins while its threads wait for each other
        (0.010, 0.010, 0.0, 0.020, {}, None),  # they share the work
        (0.020, 0.018, 0.02, 0.020, {}, None),  # they may do other work, and hold the GIL
        (0.020, 0.018, 0.02, 0.020, {"running": 0.5, "sleep": 0.5}, 2.0),  # they don't hold it
        (0.020, 0.002, 0.0, 0.011, {}, None),  # there is hardly any: the worker had a faster core
    ],
)
def test_threads_of_main_that_cost_more_than_they_give(
    main_s: float,
    beside_s: float,
    blocked_s: float,
    worker_s: float,
    waits: dict[str, float],
    gain: float | None,
) -> None:
    loader = Loader(config=config(0), fetch_cpu=main_s, fetch_io=blocked_s, rate=24)
    seen = evidence(loader, calibrations=[Loader(config=config(1), fetch_cpu=worker_s)])
    shown = find(with_explanation(seen, waits, fetch_threads_cpu_s=beside_s))
    pools = [each for each in shown if each.code == "cpu.threads"]
    assert bool(pools) is (gain is not None)
    for pool in pools:
        assert pool.fix is not None
        assert "torch.set_num_threads(1)" in pool.fix.code
        assert "OMP_NUM_THREADS=1" in pool.fix.text  # of code that calls no torch
        assert pool.predicted_gain is not None
        assert pool.predicted_gain.value == pytest.approx(gain, rel=0.05)
        assert pool.evidence["other_threads_cpu_fraction"] == pytest.approx(0.47, abs=0.01)


@pytest.mark.parametrize(
    ("beside_s", "queue_s", "blocked_s", "worker_s", "first"),
    [
        (0.029, 0.23, 0.005, None, "cpu.threads"),  # as seen beside 20 busy threads
        (0.0, 0.23, 0.005, None, "collate"),  # one thread
        (0.029, 0.0, 0.005, None, "collate"),  # nobody else wants the cores: they work
        (0.029, 0.23, 0.1, None, ""),  # main is blocked while they work
        (0.029, 0.0, 0.0, 0.003, "cpu.threads"),  # a worker collates in a tenth of that
        (0.029, 0.0, 0.0, 0.030, "collate"),  # a worker takes as long
    ],
)
def test_threads_that_wait_for_each_other_are_no_slow_collating(
    beside_s: float, queue_s: float, blocked_s: float, worker_s: float | None, first: str
) -> None:
    made = Loader(config=config(0), fetch_cpu=0.0115, collate_cpu=0.030, rate=3.2)
    worker = dataclasses.replace(made, config=config(1), collate_cpu=worker_s or 0.0)
    seen = evidence(
        dataclasses.replace(made, fetch_io=blocked_s, starved=queue_s),
        usage=Usage(own_cpu_cores=0.2, available_cpu_cores=0.2, other_cpu_cores=1.8),
        calibrations=[] if worker_s is None else [worker],
    )
    found = find(with_explanation(seen, fetch_threads_cpu_s=beside_s))
    named = [each for each in found if each.code in ("cpu.threads", "collate")]
    assert [each.code for each in named] == list(filter(None, [first]))
    if first == "cpu.threads":
        assert named[0].fix is not None
        assert "torch.set_num_threads(1)" in named[0].fix.code
        # What one thread takes is no figure where nobody saw it.
        assert (named[0].predicted_gain is None) is (worker_s is None)
        assert found[0].code == first or queue_s == 0


@pytest.mark.parametrize(("put_s", "first"), [(0.0, "too_few_workers"), (0.1, "cpu.threads")])
def test_workers_that_bring_more_than_one_thread_does_come_before_it(
    put_s: float, first: str
) -> None:
    """As seen of JPEG files beside others: a worker computes in one thread, too."""
    loader = Loader(config=config(0), fetch_cpu=0.152, starved=0.7, rate=1.1)
    worker = Loader(config=config(1), fetch_cpu=0.034, put_cpu=put_s)
    seen = evidence(loader, calibrations=[worker])
    found = find(with_explanation(seen, fetch_threads_cpu_s=0.153))
    assert found[0].code == first
    assert "cpu.threads" in codes(found)


@pytest.mark.parametrize(
    ("waits", "code"),
    [
        ({"running": 0.1, "gil": 0.88, "sleep": 0.02}, "lock"),
        ({"running": 0.1, "gil": 0.02, "sleep": 0.88}, "fetch.io"),
    ],
)
def test_what_waits_for_the_gil_is_no_io(waits: dict[str, float], code: str) -> None:
    seen = evidence(Loader(config=config(0), fetch_cpu=0.001, fetch_io=0.03, rate=32))
    found = find(with_explanation(seen, waits, fetch_threads_cpu_s=0.03))
    blocked = next(each for each in found if each.code in ("lock", "fetch.io"))
    assert blocked.code == code
    assert ("GIL" in blocked.title) is (code == "lock")
    assert {each.code for each in found} & {"lock", "fetch.io"} == {code}


@pytest.mark.parametrize(("share", "first"), [(0.7, "lock"), (0.1, "fetch.io")])
def test_workers_that_are_seen_in_a_shared_lock_need_no_comparison(
    share: float, first: str
) -> None:
    seen = evidence(Loader(fetch_cpu=0.002, fetch_io=0.03, rate=60))
    waits = {"lock": share, "sleep": 0.9 - share, "running": 0.1}
    observed = [
        dataclasses.replace(
            each,
            trial=dataclasses.replace(each.trial, usage=Usage(worker_waits=waits)),
        )
        if each.explanation
        else each
        for each in seen.observations
    ]
    assert codes(find(dataclasses.replace(seen, observations=tuple(observed))))[0] == first
