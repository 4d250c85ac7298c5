"""Each cause, described by the figures that show it, is found first; what it hides comes behind."""

from __future__ import annotations

import ast
import dataclasses
from typing import Any, get_args

import pytest
import torch
from builders import around, config, failed, machine, target, trial
from finding_cases import (
    QUIET,
    Loader,
    codes,
    evidence,
    failing,
    modeled,
    with_explanation,
    with_usage,
)

from dlprof.advise.findings.claims import changed
from dlprof.advise.findings.diagnosis import TABLE, find
from dlprof.advise.findings.evidence import Evidence
from dlprof.records import (
    COPIED_SIGN,
    LENGTH_SIGN,
    Config,
    DatasetWeight,
    Failure,
    Finding,
    FindingCode,
    GpuInfo,
    GpuUsage,
    LoaderCall,
    PageFaults,
    TransformCost,
    Usage,
    shared_position,
)
from dlprof.records.stages import KEEPING
from dlprof.report.findings import answer
from dlprof.trial import data_checks

CPU = Loader(fetch_cpu=0.019, rate=100.0)
FULL = Usage(
    own_cpu_cores=1.95,
    available_cpu_cores=2.0,
    other_cpu_cores=0.02,
    run_queue_wait_fraction=0.05,
)


def _cpu_bound() -> Evidence:
    return evidence(CPU, usage=FULL)


def _waiting() -> Evidence:
    more = config(16)
    return evidence(Loader(fetch_io=0.02, rate=100), variants={more: 6.0})


def _held_back(read: float = 9.7e6) -> Evidence:
    usage = dataclasses.replace(QUIET, read_bytes_per_s=read)
    limit = {"read_limit_bytes_per_s": 1e7}
    return evidence(Loader(fetch_io=0.02, rate=100), usage=usage, machine_fields=limit)


def _few() -> Evidence:
    return evidence(
        Loader(config=config(1), fetch_cpu=0.02, rate=50, busy=1.0), variants={config(2): 1.9}
    )


def _none() -> Evidence:
    return evidence(
        Loader(config=config(0), fetch_cpu=0.02, rate=50),
        calibrations=[Loader(config=config(2), fetch_cpu=0.02)],
        variants={config(2): 1.9},
    )


def _collating() -> Evidence:
    return evidence(Loader(fetch_cpu=0.004, collate_cpu=0.015, rate=100), usage=FULL)


def _receiving() -> Evidence:
    loader = Loader(fetch_cpu=0.004, receive=0.0095, busy=0.3, rate=100)
    return evidence(loader, target_fields={"batch_tensors": 60})


def _sampling() -> Evidence:
    return evidence(Loader(fetch_cpu=0.004, dispatch=0.009, busy=0.3, rate=100))


def _sampling_alone() -> Evidence:
    return evidence(Loader(config=config(0), fetch_cpu=0.001, dispatch=0.009, rate=100))


def _blocked() -> Evidence:
    free = config(4, in_order=False)
    loader = Loader(config=config(4), fetch_io=0.04, hold_up=0.02, busy=0.55, rate=60)
    return evidence(loader, variants={free: 1.5, config(4, prefetch_factor=8): 1.3})


def _shallow() -> Evidence:
    loader = Loader(config=config(2, prefetch_factor=1), fetch_io=0.01, busy=0.5, rate=90)
    return evidence(loader, variants={config(2, prefetch_factor=8): 1.4})


def _locked() -> Evidence:
    loader = Loader(config=config(4), fetch_cpu=0.005, fetch_io=0.03, rate=110)
    alone = Loader(config=config(1), fetch_cpu=0.005, fetch_io=0.004, rate=110)
    return evidence(loader, calibrations=[alone])


def _oversubscribed() -> Evidence:
    loader = Loader(config=config(8), fetch_cpu=0.02, starved=0.06, rate=95)
    usage = dataclasses.replace(FULL, run_queue_wait_fraction=0.7)
    return evidence(loader, usage=usage, variants={config(2): 1.08})


def _threaded() -> Evidence:
    loader = Loader(fetch_cpu=0.01, put_cpu=0.02, starved=0.02, threads=9, rate=40)
    single = config(2, worker_threads=1)
    return evidence(loader, usage=FULL, variants={single: 3.0})


def _pinned_workers() -> Evidence:
    loader = Loader(fetch_cpu=0.01, starved=0.01, affinity=1, rate=100)
    return evidence(loader, usage=dataclasses.replace(QUIET, run_queue_wait_fraction=0.5))


def _throttled() -> Evidence:
    usage = dataclasses.replace(FULL, throttled_fraction=0.5, own_cpu_cores=1.0)
    return evidence(
        Loader(fetch_cpu=0.019, rate=50),
        usage=usage,
        cores=1.0,
        machine_fields={"affinity_cpus": 2, "quota_cores": 1.0, "logical_cpus": 2},
    )


def _crowded() -> Evidence:
    usage = Usage(
        own_cpu_cores=0.7,
        available_cpu_cores=0.7,
        other_cpu_cores=1.3,
        run_queue_wait_fraction=0.65,
    )
    return evidence(Loader(fetch_cpu=0.019, starved=0.035, rate=35), usage=usage, noisy=True)


def _short_epochs() -> Evidence:
    return evidence(
        Loader(fetch_cpu=0.005, busy=0.4, rate=200),
        target_fields={"batches_per_epoch": 10},
        trial_fields={"epoch_turnover_s": 0.08},
    )


def _growing() -> Evidence:
    persisting = config(2, persistent_workers=True)
    loader = dataclasses.replace(CPU, growth=800_000.0, config=persisting)
    return evidence(loader, usage=FULL)


def _too_little_shm() -> Evidence:
    chosen = config(4, prefetch_factor=4)
    lost = failed(chosen, failure=Failure(kind="shared_memory", message="No space left."))
    return failing(
        chosen,
        lost,
        machine_fields={"shm_available_bytes": 64 << 20},
        target_fields={"batch_bytes": 20 << 20},
    )


def _projected_shm() -> Evidence:
    return evidence(CPU, usage=FULL, machine_fields={"shm_available_bytes": 64 << 20})


def _out_of_memory() -> Evidence:
    chosen = config(8)
    lost = failed(chosen, failure=Failure(kind="out_of_memory", message="The kernel killed it."))
    return failing(chosen, lost)


def _duplicated() -> Evidence:
    chosen = config(2)
    lost = failed(chosen, failure=Failure(kind="duplicated", message="Each sample comes twice."))
    return failing(chosen, lost)


def _shared_file() -> Evidence:
    chosen = config(2)
    files = ("file (zipfile.ZipFile of a.zip)",)
    lost = failed(chosen, failure=shared_position(files))
    return failing(chosen, lost, target_fields={"shared_files": files})


def _truncated() -> Evidence:
    chosen = config(2)
    lost = failed(chosen, failure=Failure(kind="truncated", message="10 of 20 batches came."))
    return failing(chosen, lost)


def _lying_length() -> Evidence:
    chosen = config(2)
    said = f"An epoch gave 5 batches {LENGTH_SIGN} 9."
    lost = failed(chosen, failure=Failure(kind="truncated", message=said))
    return failing(chosen, lost)


def _fed() -> Evidence:
    return evidence(Loader(fetch_cpu=0.01, busy=0.4, rate=50, step=0.0195), usage=QUIET)


def _wasteful() -> Evidence:
    loader = Loader(config=config(16), fetch_cpu=0.003, busy=0.02, rate=50, step=0.0198)
    return evidence(loader, usage=QUIET, variants={config(1): 1.0})


def _too_cheap() -> Evidence:
    loader = Loader(config=config(4), fetch_cpu=0.0002, receive=0.0004, busy=0.2, rate=2000)
    return evidence(loader, variants={config(0): 2.5})


def _idle() -> Evidence:
    loader = Loader(config=config(8), fetch_cpu=0.019, idle_workers=6, rate=100)
    return evidence(loader, usage=FULL, variants={config(2): 1.02})


GPU = GpuInfo(index=0, name="Card", uuid="u", pcie_generation=4, pcie_width=16)


def _pageable() -> Evidence:
    loader = Loader(fetch_cpu=0.01, copy=0.004, step=0.005, busy=0.6, rate=70)
    return evidence(loader, accelerator="cuda", machine_fields={"gpus": (GPU,)}, usage=QUIET)


def _slow_link() -> Evidence:
    pinned = config(2, pin_memory=True)
    loader = Loader(config=pinned, fetch_cpu=0.01, copy=0.012, step=0.001, busy=0.6, rate=70)
    return evidence(loader, accelerator="cuda", machine_fields={"gpus": (GPU,)})


def _pinning() -> Evidence:
    pinned = config(4, pin_memory=True)
    loader = Loader(config=pinned, fetch_cpu=0.01, pin=0.0098, busy=0.4, rate=100)
    return evidence(loader, accelerator="cuda", variants={config(4): 1.6})


def _faulting(left: float = 0.3) -> Evidence:
    spared = PageFaults(spared=5000, cpu_s=0.009, kept_cpu_s=left * 0.009)
    loader = Loader(config=config(0), fetch_cpu=0.005, collate_cpu=0.004, rate=105)
    return evidence(dataclasses.replace(loader, page_faults=spared))


def _faulting_beside_workers(left: float = 0.15) -> Evidence:
    """Two workers that are no faster than none: handing a batch over takes as long as making it."""
    spared = PageFaults(spared=9000, cpu_s=0.02, kept_cpu_s=left * 0.02)
    alone = Loader(config=config(0), fetch_cpu=0.01, collate_cpu=0.01, rate=49)
    alone = dataclasses.replace(alone, page_faults=spared)
    now = Loader(fetch_cpu=0.01, collate_cpu=0.01, receive=0.02, rate=48)
    return evidence(now, calibrations=[alone])


def test_none_is_no_merit_of_kept_memory() -> None:
    """Loading without workers, which may be faster than with, is another finding's."""
    found = next(each for each in find(_faulting_beside_workers()) if each.code == "memory.faults")
    assert found.fix is not None
    assert "and with num_workers=0" in found.fix.text
    assert found.fix.code == f"{KEEPING} python train.py"
    assert found.evidence["page_fault_fraction"] == pytest.approx(0.85)
    for left in (1.0, 0.95):
        assert "memory.faults" not in codes(find(_faulting_beside_workers(left)))
        assert "memory.faults" not in codes(find(_faulting(left)))


def _shared_device() -> Evidence:
    card = GpuUsage(index=0, name="Card", uuid="u", kernel_active_fraction=0.9)
    usage = dataclasses.replace(QUIET, gpu=(card,))
    return evidence(Loader(fetch_cpu=0.0001, receive=0.0, busy=0.1, rate=100), usage=usage)


CASES: dict[str, list[Any]] = {
    "consumer": [_fed],
    "fetch.cpu": [_cpu_bound],
    "fetch.io": [_waiting, _held_back],
    "collate": [_collating],
    "main.receive": [_receiving],
    "main.pin": [_pinning],
    "main.sampler": [_sampling, _sampling_alone],
    "order.blocking": [_blocked],
    "prefetch.shallow": [_shallow],
    "lock": [_locked],
    "too_few_workers": [_few, _none],
    "too_many_workers": [_wasteful, _too_cheap, _idle],
    "cpu.oversubscribed": [_oversubscribed],
    "cpu.threads": [_threaded],
    "cpu.affinity": [_pinned_workers],
    "cpu.quota": [_throttled],
    "cpu.neighbours": [_crowded],
    "startup": [_short_epochs],
    "memory.growth": [_growing],
    "memory.limit": [_out_of_memory],
    "memory.shm": [_too_little_shm, _projected_shm],
    "memory.faults": [_faulting],
    "data.shared_file": [_shared_file],
    "data.duplicated": [_duplicated],
    "data.truncated": [_truncated, _lying_length],
    "transfer.pageable": [_pageable],
    "transfer.link": [_slow_link],
}
EACH = [(code, make) for code, makers in CASES.items() for make in makers]


@pytest.mark.parametrize(("code", "make"), EACH, ids=[make.__name__[1:] for _, make in EACH])
def test_the_cause_comes_first(code: str, make: Any) -> None:
    findings = find(make())
    assert codes(findings)[:1] == [code]
    first = findings[0]
    assert first.title
    assert first.explanation.endswith(".")
    assert first.evidence["trials"]
    assert (first.fix is None) == (code == "consumer")


def _vain(code: FindingCode, seen: Evidence) -> Finding:
    found = next(each for each in find(seen) if each.code == code)
    assert found.predicted_gain is None
    assert found.evidence["tried"] in found.explanation
    return found


def test_a_fix_that_the_profile_itself_tried_in_vain_is_none() -> None:
    kept = config(2, persistent_workers=True)
    fields = {"epoch_turnover_s": 0.08}
    slow = Loader(fetch_cpu=0.005, busy=0.4, rate=200)
    target = {"batches_per_epoch": 10}
    seen = evidence(slow, target_fields=target, trial_fields=fields, variants={kept: 1.0})
    found = _vain("startup", seen)
    assert found.fix is None
    assert "persistent_workers=True was tried: 1.00x as fast" in found.explanation
    assert [name for name, _ in answer([found])] == ["Bottleneck", "Tried"]


def test_what_only_an_estimate_says_of_a_trial_is_not_given_as_what_it_measured() -> None:
    """In the middle of an epoch it was 1.3x as fast, and its workers started as slowly."""
    kept = config(2, persistent_workers=True)
    found = _vain(
        "startup",
        evidence(
            Loader(fetch_cpu=0.005, busy=0.4, rate=200),
            target_fields={"batches_per_epoch": 10},
            trial_fields={"epoch_turnover_s": 0.08, "whole_epochs": False},
            variants={kept: 1.3},
        ),
    )
    assert "persistent_workers=True was tried: 1.00x as fast" in found.explanation
    assert found.explanation.endswith(", as estimated of whole epochs.")


def test_what_was_tried_in_vain_comes_behind_what_can_be_mended() -> None:
    kept, more = config(2, persistent_workers=True), config(10)
    findings = find(
        evidence(
            Loader(fetch_cpu=0.005, busy=0.9, fetch_io=0.01, rate=100),
            cores=8,
            target_fields={"batches_per_epoch": 10},
            trial_fields={"epoch_turnover_s": 0.3},
            variants={kept: 1.0, more: 2.5},
        )
    )
    assert findings[0].fix is not None
    assert findings[0].fix.dataloader_kwargs == {"num_workers": 10}
    vain = next(each for each in findings if each.code == "startup")
    assert "tried" in vain.evidence
    # Where it is the first even so, there is no Fix that the next would come with.
    (said,) = (words for name, words in answer([vain, findings[0]]) if name == "Also")
    assert "by itself" not in str(said)


def test_what_a_sampler_takes_of_main_is_not_for_sending_batches() -> None:
    loader = Loader(fetch_cpu=0.004, dispatch=0.009, receive=0.0005, busy=0.3, rate=100)
    first, *others = find(evidence(loader, noisy=True, variants={config(1): 1.12}))
    assert first.code == "main.sampler"
    assert not any("Sending batches" in each.explanation for each in others)


def test_receiving_has_the_share_of_the_wait_that_it_takes_with_a_core_at_hand() -> None:
    """It was said to take 7 ms, and what it took with its run-queue delay of the wait."""
    loader = Loader(
        fetch_cpu=0.004, starved=0.0042, receive=0.004, hand_shake=0.006, busy=0.3, rate=80
    )
    seen = evidence(loader, target_fields={"batch_tensors": 60})
    found = next(each for each in find(seen) if each.code == "main.receive")
    assert "56% of the time that the consumer waits" in found.explanation


def test_without_workers_too_a_sampler_has_its_share_of_the_wait() -> None:
    loader = Loader(
        config=config(0), fetch_cpu=0.001, dispatch=0.009, wait=0.0105, step=0.0105, rate=47.6
    )
    found = next(each for each in find(evidence(loader)) if each.code == "main.sampler")
    assert found.evidence["share_of_wait"] == pytest.approx(0.009 / 0.0105)


def test_workers_that_nobody_weighed_start_as_a_note_on_the_target_says() -> None:
    note = f"Workers start by forkserver here {COPIED_SIGN}, so each gets the dataset pickled."
    assert evidence(Loader(), target_fields={"notes": (note,)}).start_method == "forkserver"


def test_idle_workers_without_which_it_was_slower_are_not_called_as_good() -> None:
    loader = Loader(config=config(8), fetch_cpu=0.019, idle_workers=6, rate=100)
    found = _vain("too_many_workers", evidence(loader, usage=FULL, variants={config(2): 0.85}))
    assert found.title == "Some workers have nothing to do"
    assert found.explanation.startswith(
        "6 of 8 workers have nothing to do. num_workers=2 was tried: 0.85x as fast"
    )


@pytest.mark.parametrize(
    ("rates", "first"), [((1.4, 0.95), "fetch.cpu"), ((1.4, 1.4), "too_many_workers")]
)
def test_what_fewer_workers_may_beat_is_explained_first(
    rates: tuple[float, float], first: str
) -> None:
    """As of inflated archives, that one worker beat in one of two blocks."""
    alone = Loader(config=config(1), fetch_cpu=0.004, rate=130)
    seen = evidence(
        Loader(fetch_cpu=0.019, rate=100), calibrations=[alone], variants={config(1): 1.0}
    )
    ratios = iter(rates)
    observations = tuple(
        dataclasses.replace(
            each,
            trial=trial(
                config(1),
                3200 * next(ratios),
                repetition=each.trial.repetition,
                trial_id=each.trial.id,
            ),
        )
        if seen.role(each.trial) == "variant"
        else each
        for each in seen.observations
    )
    found = codes(find(dataclasses.replace(seen, observations=observations)))
    assert found[0] == first
    assert {"fetch.cpu", "too_many_workers"} <= {*found}


def test_threads_that_one_thread_in_each_pool_leaves_there_are_the_datasets() -> None:
    """As a pool of Python threads is, whatever worker_init_fn sets."""
    loader = Loader(fetch_cpu=0.01, put_cpu=0.02, starved=0.02, threads=9, rate=40)
    seen = evidence(loader, usage=FULL, variants={config(2, worker_threads=1): 0.99})
    found = _vain("cpu.threads", seen)
    assert "worker_threads=1 was tried: 0.99x as fast" in found.explanation
    assert found.fix is not None
    assert "starts threads of its own, start fewer, as by TOKENIZERS" in found.fix.text
    assert not found.fix.code


@pytest.mark.parametrize(
    ("starved", "queued", "tried", "found"),
    [
        (0.0, 0.05, None, False),  # cores for all of them
        (0.02, 0.05, None, True),
        (0.0, 0.6, None, True),  # while a worker sleeps, those of its pool wait for a core
        (0.0, 0.05, 0.99, False),
        (0.02, 0.05, 0.99, True),
        (0.0, 0.05, 1.3, True),  # they cost more than they give all the same
        (0.02, 0.6, 0.6, False),  # one thread is surely slower
    ],
)
def test_threads_that_have_cores_or_bring_something_compete_for_none(
    starved: float, queued: float, tried: float | None, *, found: bool
) -> None:
    """As OpenCV's of two workers on sixteen cores: to start fewer was the first advice."""
    loader = Loader(fetch_cpu=0.01, put_cpu=0.02, starved=starved, threads=9, rate=40)
    variants = {} if tried is None else {config(2, worker_threads=1): tried}
    usage = dataclasses.replace(FULL, run_queue_wait_fraction=queued)
    shown = find(evidence(loader, usage=usage, variants=variants))
    assert ("cpu.threads" in codes(shown)) is found


@pytest.mark.parametrize(("method", "theirs"), [("fork", True), ("forkserver", False)])
def test_the_thread_that_watches_workers_which_are_no_forks_is_none_of_theirs(
    method: Any, theirs: bool
) -> None:
    """However they come to start so: by Python's own default, which no setting names."""
    loader = Loader(fetch_cpu=0.01, put_cpu=0.02, starved=0.02, threads=4, rate=40)
    seen = evidence(loader, usage=FULL, weight=DatasetWeight(start_method=method))
    found = {each.code: each for each in find(seen)}
    assert ("cpu.threads" in found) is theirs
    for fix in [found["cpu.threads"].fix] if theirs else []:
        assert fix is not None
        assert "OMP_NUM_THREADS=1" in fix.text


def test_a_fix_that_the_users_framework_does_not_take_says_so() -> None:
    """A script's loader, of which no more is known than the call that makes it."""
    call = LoaderCall(
        text="TrainingArguments(..., {settings})",
        fixed={"in_order": "TrainingArguments has no dataloader_in_order"},
    )
    seen = _blocked()
    seen = dataclasses.replace(seen, target=dataclasses.replace(seen.target, call=call))
    first = find(seen)[0]
    assert first.code == "order.blocking"
    assert first.fix is not None
    assert not first.fix.dataloader_kwargs
    assert "prevents it: TrainingArguments has no dataloader_in_order." in first.fix.text


def test_what_has_no_worker_init_fn_is_sent_to_the_first_sample() -> None:
    call = LoaderCall(text="Args({settings})", fixed={"worker_init_fn": "Args has none"})
    seen = _locked()
    seen = dataclasses.replace(seen, target=dataclasses.replace(seen.target, call=call))
    fix = find(seen)[0].fix
    assert fix is not None
    assert fix.text.endswith("But Args has none: do it in the dataset, at a worker's first sample.")
    assert not fix.code


_TRAINER = LoaderCall(
    text="TrainingArguments(..., {settings})",
    variable="args",
    fixed={"sampler": "Trainer takes no sampler"},
    elsewhere={"collate_fn": "trainer = Trainer(..., data_collator={value})"},
)
_MODULE = LoaderCall(
    text="def train_dataloader(self):  # of Data\n    return DataLoader(dataset, ..., {settings})",
    variable="",
)


@pytest.mark.parametrize("on", ["handover", "network"])
def test_waits_for_another_process_are_seen_beside_run_queue_delays(on: str) -> None:
    """As of a Manager's dict, which has the cores while its clients wait: nothing was found."""
    loader = Loader(
        config=config(4), fetch_cpu=0.0008, fetch_io=0.0014, starved=0.004, busy=0.9, rate=460
    )
    seen = evidence(loader)
    looks = Usage(worker_waits={"running": 0.5, "queue": 0.36, on: 0.14})
    found = find(with_usage(seen, looks))
    (first,) = (each for each in found if each.code == "fetch.io")
    assert (first.title == "__getitem__ waits for another process") is (on == "handover")
    assert first.fix is not None
    assert ("in a tensor" in first.fix.text) is (on == "handover")
    assert (not first.fix.dataloader_kwargs) or on == "network"


@pytest.mark.parametrize(("workers", "who"), [(2, "the worker"), (0, "the main process")])
@pytest.mark.parametrize(
    ("looks", "named"),
    [
        ({"child ffmpeg": 0.7, "child (forked)": 0.1, "running": 0.2}, " (ffmpeg)"),
        ({"child (forked)": 0.8, "running": 0.2}, ""),
        ({}, ""),
    ],
)
def test_a_child_process_that_computes_is_said_to(
    workers: int, who: str, looks: dict[str, float], named: str
) -> None:
    """Their time was taken for I/O, and as many workers advised as would wait for that."""
    loader = Loader(config=config(workers), fetch_cpu=0.02, rate=95 if workers else 48)
    seen = evidence(dataclasses.replace(loader, children=0.018))
    usage = dataclasses.replace(QUIET, own_cpu_cores=1.9, worker_waits=looks, main_waits=looks)
    found = find(with_usage(seen, usage))
    (first,) = (each for each in found if each.code == "fetch.cpu")
    assert first.title == f"Child processes{named} compute in __getitem__"
    assert f"18 ms of it is of child processes{named}, for which {who} waits." in first.explanation
    assert first.fix is not None
    assert "by a library" in first.fix.text
    assert (first.evidence["children_cpu_s"], first.evidence["child"] or "") == (
        0.018,
        named.strip(" ()"),
    )
    few = find(evidence(dataclasses.replace(loader, children=0.002)))
    assert "CPU time in __getitem__" in [each.title for each in few]


def test_child_processes_beside_a_worker_are_no_threads_of_it() -> None:
    loader = Loader(fetch_cpu=0.01, put_cpu=0.02, starved=0.01, threads=8, rate=60, children=0.008)
    seen = evidence(loader)
    assert "cpu.threads" in codes(find(seen))
    alone = with_explanation(seen, fetch_threads_cpu_s=0.0002)
    assert "cpu.threads" not in codes(find(alone))


def _unpickling() -> Evidence:
    loader = Loader(config=config(4), fetch_cpu=0.03, receive=0.0095, busy=0.3, rate=100)
    return evidence(loader, cores=8, target_fields={"batch_tensors": 3})


@pytest.mark.parametrize("seen", [_collating(), _unpickling()], ids=["collate", "main.receive"])
@pytest.mark.parametrize(
    ("call", "ends"),
    [
        (LoaderCall(), "\n\nloader = DataLoader(dataset, ..., collate_fn=collate)"),
        (
            LoaderCall(text="made({settings})"),
            "\n\nloader = DataLoader(dataset, ..., collate_fn=collate)",
        ),
        (_TRAINER, " for name in names}\n\ntrainer = Trainer(..., data_collator=collate)"),
        (_MODULE, f"\n\n{_MODULE.text.format(settings='collate_fn=collate')}"),
    ],
)
def test_what_collates_is_set_in_the_users_framework(
    seen: Evidence, call: LoaderCall, ends: str
) -> None:
    seen = dataclasses.replace(seen, target=dataclasses.replace(seen.target, call=call))
    fix = find(seen)[0].fix
    assert fix is not None
    assert fix.code.startswith("def collate(samples):\n")
    assert fix.code.endswith(ends)
    ast.parse(fix.code)


@pytest.mark.parametrize("seen", [_collating(), _unpickling()], ids=["collate", "main.receive"])
def test_no_collate_function_is_shown_for_a_loader_that_leaves_it_out(seen: Evidence) -> None:
    """As PyG's do in silence; what theirs costs lies in what that calls."""
    none = "NeighborLoader takes no collate_fn: its own samples each batch and calls transform"
    fixed = {"collate_fn": none}
    call = LoaderCall(text="NeighborLoader(data, ..., {settings})", fixed=fixed)
    fix = find(dataclasses.replace(seen, target=dataclasses.replace(seen.target, call=call)))[0].fix
    assert fix is not None
    assert none in fix.text
    assert "Stack whole tensors" not in fix.text
    assert not fix.code


def test_indices_that_a_trainer_does_not_take_are_drawn_all_the_same() -> None:
    seen = _sampling()
    seen = dataclasses.replace(seen, target=dataclasses.replace(seen.target, call=_TRAINER))
    fix = find(seen)[0].fix
    assert fix is not None
    assert fix.text.endswith("in Python. But Trainer takes no sampler.")
    assert fix.code.startswith("class Drawn(")
    assert "DataLoader" not in fix.code


_BATCHES = {"batch_size": None}


@pytest.mark.parametrize(
    ("target", "call", "given"),
    [
        ({}, LoaderCall(), "DataLoader(dataset, ..., sampler=Drawn())"),
        (_BATCHES, LoaderCall(), "DataLoader(dataset, ..., batch_sampler=Drawn())"),
        (_BATCHES, _TRAINER, ""),
    ],
)
def test_all_indices_are_drawn_at_once_in_each_epoch(
    target: dict[str, Any], call: LoaderCall, given: str
) -> None:
    """Torch refuses a sampler beside a batch_sampler; a list would give all epochs one order."""
    loader = Loader(fetch_cpu=0.004, dispatch=0.009, busy=0.3, rate=90)
    seen = evidence(loader, target_fields={**target, "call": call})
    (found,) = (each for each in find(seen) if each.code == "main.sampler")
    assert found.fix is not None
    code, _, after = found.fix.code.partition("\n\nloader = ")
    assert after == given
    names: dict[str, Any] = {"torch": torch, "dataset": range(10), "batch_size": 4}
    exec(code, names)
    drawn = names["Drawn"]()
    batches = [*drawn] if "batch_sampler" in given else [[*drawn]]
    assert sorted(index for batch in batches for index in batch) == [*range(10)]
    assert sum(len(batch) for batch in batches) == 10
    assert len(drawn) == (len(batches) if "batch_sampler" in given else 10)
    shared = next(e.fix for e in find(dataclasses.replace(seen, ranks=2)) if e.code == found.code)
    assert shared is not None
    assert not shared.code  # each rank would load all samples


@pytest.mark.parametrize("sample", [(torch.zeros(2, 3), 1), {"a": torch.zeros(2, 3), "b": 1}])
def test_the_code_to_join_tensors_takes_tuples_dicts_and_numbers(sample: Any) -> None:
    fix = find(_unpickling())[0].fix
    assert fix is not None
    names: dict[str, Any] = {"torch": torch}
    exec(fix.code.partition("\n\nloader")[0], names)
    assert names["collate"]([sample] * 4).shape == (4, 7)


def test_the_code_to_collate_columns_takes_lists_and_numbers() -> None:
    """As Hugging Face's datasets give them unless they are set to give tensors."""
    seen = _collating()
    seen = dataclasses.replace(seen, target=dataclasses.replace(seen.target, call=_TRAINER))
    fix = find(seen)[0].fix
    assert fix is not None
    names: dict[str, Any] = {"torch": torch}
    exec(fix.code.partition("\n\ntrainer")[0], names)
    batch = names["collate"]([{"pixel_values": [0.0, 1.0], "labels": 3, "path": "1.jpg"}] * 4)
    assert {name: [*each.shape] for name, each in batch.items()} == {
        "pixel_values": [4, 2],
        "labels": [4],
    }


@pytest.mark.parametrize(
    ("rate", "does"),
    [
        (110.0, "; until then num_workers=1 is as fast."),
        (100.0, "; until then num_workers=1 may be as fast."),
        (45.0, "around slow work."),
    ],
)
def test_one_worker_does_for_a_lock_only_where_it_was_as_fast(rate: float, does: str) -> None:
    """Four workers that hold it for a part of a sample are faster than one.

    By a tenth two windows of a second differ by chance.
    """
    loader = Loader(config=config(4), fetch_cpu=0.005, fetch_io=0.03, rate=110)
    alone = Loader(config=config(1), fetch_cpu=0.005, fetch_io=0.004, rate=rate)
    found = find(evidence(loader, calibrations=[alone]))[0]
    assert found.fix is not None
    assert found.fix.text.endswith(does)


def test_a_busy_device_is_reported_behind_what_slows_the_loader() -> None:
    assert codes(find(_shared_device()))[-1] == "gpu.neighbours"


def test_the_table_has_every_code_once() -> None:
    listed = [row.code for row in TABLE]
    # Wrong data any run shows by itself.
    by_any_run = ["data.duplicated", "data.shared_file", "data.truncated", "data.unshared"]
    assert sorted([*listed, *by_any_run]) == sorted(get_args(FindingCode))


def test_the_sign_of_a_length_is_that_of_the_warnings_of_trials() -> None:
    assert LENGTH_SIGN in data_checks.LENGTH


def test_a_light_step_keeps_its_loader_quiet() -> None:
    assert codes(find(_fed())) == ["consumer"]


def test_one_neighbour_comes_behind_what_the_cores_are_needed_for() -> None:
    usage = Usage(own_cpu_cores=1.3, available_cpu_cores=1.34, other_cpu_cores=0.66)
    seen = evidence(Loader(fetch_cpu=0.019, starved=0.009, rate=68), usage=usage, noisy=True)
    findings = find(seen)
    assert codes(findings) == ["fetch.cpu", "cpu.neighbours"]
    assert "0.7 of 2 cores busy" in findings[0].doubtful
    assert not findings[1].doubtful


@pytest.mark.parametrize(
    ("others", "first"), [(1.0, "fetch.cpu"), (6.0, "cpu.neighbours"), (None, "cpu.neighbours")]
)
def test_whether_others_are_a_crowd_is_reported_by_how_many_want_a_core(
    others: float | None, first: str
) -> None:
    """Between two sessions the kernel halves two cores, however many threads the other has."""
    seen = evidence(
        Loader(fetch_cpu=0.019, starved=0.019, rate=52),
        usage=Usage(
            own_cpu_cores=1.0,
            available_cpu_cores=1.0,
            other_cpu_cores=1.0,
            other_runnable=others,
        ),
        noisy=True,
    )
    assert codes(find(seen))[0] == first
    assert {"fetch.cpu", "cpu.neighbours"} == set(codes(find(seen)))


@pytest.mark.parametrize(("read", "named"), [(9.7e6, True), (2e6, False)])
def test_a_cgroup_that_throttles_reads_is_named_where_they_reach_its_limit(
    read: float,
    named: bool,
) -> None:
    first = find(_held_back(read))[0]
    assert first.code == "fetch.io"
    assert ("cgroup throttles reads" in first.title) is named
    assert ("of the 9.5 MiB/s that a cgroup allows" in first.explanation) is named
    if named:
        assert first.evidence["read_limit_bytes_per_s"] == 1e7


@pytest.mark.parametrize(("shards", "advised"), [(None, 16), (12, 12), (2, None)])
def test_no_more_workers_are_advised_than_there_are_shards(
    shards: int | None, advised: int | None
) -> None:
    about = {"kind": "iterable", "shards": shards}
    first = find(evidence(Loader(fetch_io=0.02, rate=100), target_fields=about))[0]
    assert (first.code, first.fix is not None) == ("fetch.io", True)
    assert first.fix is not None
    assert first.fix.dataloader_kwargs.get("num_workers") == advised


@pytest.mark.parametrize(
    ("cpu", "io", "kind", "title"),
    [
        (0.008, 0.0, "iterable", "Each worker may read all samples"),
        (0.0, 0.008, "iterable", "Each worker may read all samples"),
        (0.0, 0.008, "map", "Workers wait for each other"),
    ],
)
def test_workers_of_an_iterable_that_take_as_many_times_as_long_may_each_read_all(
    cpu: float, io: float, kind: str, title: str
) -> None:
    """As by ``itertools.islice(samples, id, None, workers)``: no lock need be there."""
    alone = Loader(config=config(1), rate=480, fetch_cpu=cpu / 4, fetch_io=io / 4)
    loader = Loader(config=config(4), rate=450, fetch_cpu=cpu, fetch_io=io)
    seen = evidence(loader, cores=8, calibrations=[alone], target_fields={"kind": kind})
    first = find(seen)[0]
    assert (first.code, first.title) == ("lock", title)
    assert first.fix is not None
    assert ("self.shards[info.id" in first.fix.code) == (kind == "iterable")
    assert ("own file handle" in first.fix.text) == (kind == "map")


@pytest.mark.parametrize(
    ("io", "title"),
    [(0.04, "Each worker reads the same blocks"), (0.1, "Workers wait for each other")],
)
def test_a_batch_reads_two_more_blocks_at_most_where_several_workers_read_each(
    io: float, title: str
) -> None:
    """What takes longer than these, 30 ms each, is something that they share."""
    alone = Loader(config=config(1), rate=3.8 / io, fetch_io=io / 4)
    loader = Loader(config=config(4), rate=3.8 / io, fetch_io=io)
    weight = DatasetWeight(far_sample_s=0.03, next_sample_s=0.001)
    seen = evidence(loader, cores=8, calibrations=[alone], weight=weight)
    first = find(seen)[0]
    assert (first.code, first.title) == ("lock", title)
    assert first.fix is not None
    assert ("InBlocks(" in first.fix.code) == title.endswith("blocks")
    fix = find(dataclasses.replace(seen, ranks=2))[0].fix
    assert fix is not None
    assert "torch.randperm" not in fix.text  # each rank would load all samples: no code is shown


def test_what_is_not_seen_to_fetch_waits_for_no_other_process() -> None:
    """As of a loader that is measured as it is, whose batches its own threads make."""
    loader = Loader(config=config(0), collate_cpu=0.0, rate=100)
    assert "fetch.io" not in codes(find(evidence(loader)))


def test_waiting_for_storage_is_no_lock() -> None:
    loader = Loader(config=config(4), fetch_cpu=0.005, fetch_io=0.03, rate=110)
    alone = Loader(config=config(1), fetch_cpu=0.005, fetch_io=0.004, rate=110)
    usage = dataclasses.replace(QUIET, read_bytes_per_s=500e6)
    seen = evidence(
        loader, calibrations=[alone], usage=usage, target_fields={"batch_bytes": 1_000_000}
    )
    assert codes(find(seen))[0] == "fetch.io"


@pytest.mark.parametrize(
    ("on", "code", "title"),
    [
        ("disk", "fetch.io", "Blocking I/O in __getitem__"),
        ("network", "fetch.io", "Blocking I/O in __getitem__"),
        ("handover", "fetch.io", "__getitem__ waits for another process"),
        ("sleep", "lock", "Workers wait for each other"),
    ],
)
def test_what_workers_are_seen_to_wait_for_elsewhere_is_no_lock(
    on: str, code: str, title: str
) -> None:
    """As of a server at its rate: a file handle for each worker was the fix, and 3x its gain."""
    seen = _locked()
    usage = dataclasses.replace(QUIET, worker_waits={"running": 0.2, "queue": 0.1, on: 0.7})
    observations = tuple(
        dataclasses.replace(each, trial=dataclasses.replace(each.trial, usage=usage))
        for each in seen.observations
    )
    found = find(dataclasses.replace(seen, observations=observations))
    assert (found[0].code, found[0].title) == (code, title)
    assert found[0].fix is not None
    assert ("own file handle" in found[0].fix.text) is (code == "lock")
    assert ("workers seem to share a limit" in found[0].explanation) is (on in ("disk", "network"))
    # More of them would share it, too.
    assert not any(each.fix and each.fix.dataloader_kwargs for each in found)


def test_workers_that_have_shards_of_their_own_read_no_others() -> None:
    alone = Loader(config=config(1), rate=480, fetch_io=0.002)
    loader = Loader(config=config(4), rate=450, fetch_io=0.008)
    sharded = {"kind": "iterable", "shards": 8}
    first = find(evidence(loader, cores=8, calibrations=[alone], target_fields=sharded))[0]
    assert (first.code, first.title) == ("lock", "Workers wait for each other")
    assert "reads all samples" not in first.explanation


def test_a_sampler_comes_behind_workers_that_take_as_long() -> None:
    """While they make each batch main has time to draw the next: without it nothing is faster."""
    loader = Loader(config=config(4), fetch_cpu=0.04, dispatch=0.0045, rate=100, busy=0.97)
    usage = dataclasses.replace(QUIET, available_cpu_cores=8.0)
    found = find(evidence(loader, cores=8, usage=usage))
    assert codes(found)[0] == "too_few_workers"
    drawn = next(each for each in found if each.code == "main.sampler")
    assert drawn.predicted_gain is not None
    assert drawn.predicted_gain.value == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(("throttled", "first"), [(0.06, "fetch.io"), (0.3, "cpu.quota")])
def test_a_quota_that_holds_bursts_back_comes_behind_what_is_waited_for(
    throttled: float, first: str
) -> None:
    usage = dataclasses.replace(QUIET, throttled_fraction=throttled)
    limits = {"affinity_cpus": 8, "quota_cores": 2.0, "logical_cpus": 8}
    loader = Loader(fetch_cpu=0.002, fetch_io=0.05, rate=38)
    found = codes(find(evidence(loader, usage=usage, machine_fields=limits)))
    assert found[0] == first
    assert {"fetch.io", "cpu.quota"} <= {*found}


def test_waiting_that_scales_with_workers_is_no_lock() -> None:
    loader = Loader(config=config(4), fetch_io=0.03, rate=130)
    alone = Loader(config=config(1), fetch_io=0.03, rate=33)
    seen = evidence(loader, calibrations=[alone], variants={config(16): 3.5})
    found = find(seen)[0]
    assert found.code == "fetch.io"
    assert "num_workers=16 is 3.50x as fast" in found.explanation


def test_deeper_queues_that_do_more_than_giving_up_the_order() -> None:
    loader = Loader(config=config(4), fetch_io=0.04, hold_up=0.02, busy=0.55, rate=60)
    free, deep = config(4, in_order=False), config(4, prefetch_factor=8)
    found = codes(find(evidence(loader, variants={free: 1.15, deep: 1.6})))
    assert found[0] == "prefetch.shallow"
    assert "order.blocking" not in found


def test_a_remedy_that_was_tried_and_did_nothing_is_not_reported() -> None:
    loader = Loader(config=config(4), fetch_io=0.04, hold_up=0.02, busy=0.55, rate=60)
    free, deep = config(4, in_order=False), config(4, prefetch_factor=8)
    found = codes(find(evidence(loader, variants={free: 1.0, deep: 1.01})))
    assert not {"order.blocking", "prefetch.shallow"} & set(found)


def test_persistent_workers_start_once() -> None:
    kept = config(2, persistent_workers=True)
    seen = evidence(
        Loader(config=kept, fetch_cpu=0.005, busy=0.4, rate=200),
        target_fields={"batches_per_epoch": 10},
        trial_fields={"startup_s": 0.08},
    )
    assert "startup" not in codes(find(seen))


def test_a_slow_start_counts_where_workers_persist() -> None:
    kept = config(2, persistent_workers=True, start_method="spawn")
    seen = evidence(
        Loader(config=kept, fetch_cpu=0.01, rate=200),
        usage=FULL,
        target_fields={"batches_per_epoch": 200},
        trial_fields={"startup_s": 6.0},
    )
    found = find(seen)
    assert codes(found)[0] == "startup"
    assert found[0].fix is not None
    assert found[0].fix.dataloader_kwargs == {"multiprocessing_context": "fork"}


def test_the_dearest_transform_is_named() -> None:
    seen = _cpu_bound()
    chain = (TransformCost(name="1 Decode", mean_s=0.001, share=0.7),)
    first = find(with_explanation(seen, transforms=chain))[0]
    assert "1 Decode" in first.explanation
    assert first.fix is not None
    assert "1 Decode" in first.fix.text
    assert "once in each process" not in first.fix.text  # what opens files is no transform
    whole = find(seen)[0].fix
    assert whole is not None
    assert "once in each process" in whole.text


def test_without_an_explanation_there_are_findings_all_the_same() -> None:
    chosen = config(2)
    made = trial(chosen, 100.0, wait_fraction=0.01)
    assert codes(find(failing(chosen, made, has_step=True, step_s=0.01))) == ["consumer"]
    assert find(failing(chosen, trial(chosen, 100.0))) == ()


def test_nothing_at_all_is_no_finding() -> None:
    seen = _cpu_bound()
    assert find(dataclasses.replace(seen, observations=())) == ()


def test_fixes_name_only_what_changes() -> None:
    first = find(_few())[0]
    assert first.fix is not None
    assert first.fix.dataloader_kwargs == {"num_workers": 2}
    blocked = find(_blocked())[0]
    assert blocked.fix is not None
    assert blocked.fix.dataloader_kwargs == {"in_order": False}
    none, two = Config(), Config(num_workers=2, prefetch_factor=2)
    assert changed(none, two) == "num_workers=2"  # the rest is torch's default
    kept = dataclasses.replace(two, persistent_workers=True, prefetch_factor=4)
    assert changed(none, kept) == "num_workers=2, prefetch_factor=4, persistent_workers=True"
    assert changed(kept, two) == "prefetch_factor=2, persistent_workers=False"


def test_a_stated_target_length_bounds_the_workers() -> None:
    seen = evidence(
        Loader(fetch_io=0.5, rate=4), target_fields={"batches_per_epoch": 3, "length": 96}
    )
    found = find(dataclasses.replace(seen, target=target(batches_per_epoch=3)))
    kwargs = [finding.fix.dataloader_kwargs for finding in found if finding.fix is not None]
    assert 0 < max(each.get("num_workers", 0) for each in kwargs) <= 3


def test_configs_of_fixes_are_canonical() -> None:
    for makers in CASES.values():
        for make in makers:
            for finding in find(make()):
                kwargs = finding.fix.dataloader_kwargs if finding.fix else {}
                workers = kwargs.get("num_workers", 1)
                assert workers or not {"prefetch_factor", "persistent_workers"} & set(kwargs)
                known = {field.name for field in dataclasses.fields(Config)}
                assert set(kwargs) <= known | {"multiprocessing_context"}


def test_a_fix_that_the_target_does_not_take_names_no_arguments() -> None:
    seen = _shallow()
    free = next(each for each in find(seen) if each.code == "prefetch.shallow").fix
    target = dataclasses.replace(seen.target, fixed={"prefetch_factor": "make() takes none"})
    fixed = dataclasses.replace(seen, target=target)
    kept = next(each for each in find(fixed) if each.code == "prefetch.shallow").fix
    assert free is not None
    assert free.dataloader_kwargs == {"prefetch_factor": 8}
    assert kept is not None
    assert not kept.dataloader_kwargs
    assert "make() takes none" in kept.text


def test_ranks_that_are_bound_to_cores_of_their_own_are_not_pinned_to_too_few() -> None:
    """As srun binds them: each has its share of what all of them may use."""
    loader = Loader(fetch_cpu=0.01, starved=0.01, affinity=4, rate=400, config=config(6))
    usage = dataclasses.replace(QUIET, run_queue_wait_fraction=0.5)
    alone = evidence(loader, usage=usage, cores=16)
    assert codes(find(alone))[:1] == ["cpu.affinity"]
    ranks = dataclasses.replace(alone, machine=alone.machine.shared_by(4), ranks=4)
    assert "cpu.affinity" not in codes(find(ranks))


@pytest.mark.parametrize(
    ("present", "calibrations"),
    [
        (Loader(config=config(4), fetch_cpu=0.01, affinity=1, rate=380), []),  # each its own
        (Loader(config=config(1), fetch_cpu=0.01, receive=0.003, affinity=1, rate=95), []),
        (
            Loader(config=config(0), fetch_cpu=0.01, rate=95),
            [Loader(config=config(2), fetch_cpu=0.01, affinity=1)],
        ),
    ],
)
def test_workers_that_lack_no_cpu_are_not_pinned_to_too_few(
    present: Loader, calibrations: list[Loader]
) -> None:
    """As a worker_init_fn binds each to one; of one worker that is all that it can use."""
    seen = evidence(present, cores=16, calibrations=calibrations)
    assert "cpu.affinity" not in codes(find(seen))


def test_that_a_batch_is_copied_to_be_sent_is_said_where_it_costs_more_than_collating() -> None:
    """As seen of samples that collate_fn pads to the model's maximum."""
    loader = Loader(fetch_cpu=0.001, collate_cpu=0.024, put_cpu=0.044, rate=20)
    sizes: dict[str, Any] = {"trial_fields": {"batch_bytes": float(64 << 20)}}
    first = find(evidence(loader, usage=FULL, target_fields={"batch_tensors": 1}, **sizes))[0]
    assert first.title == "Collating batches of 64.0 MiB and sending them costs the most"
    assert first.explanation.endswith("torch copies it to shared memory: 44 ms.")
    assert first.fix is not None
    assert "pad to its longest sample" in first.fix.text
    assert "assumes that a batch has half as many" in first.fix.text
    assert first.predicted_gain is not None
    assert first.predicted_gain.value <= 2
    own = dataclasses.replace(loader, put_cpu=0.001)
    assert find(evidence(own, usage=FULL))[0].title == "Collating costs the most"


def _computing_in_a_crowd() -> Evidence:
    crowd = dataclasses.replace(
        QUIET,
        own_cpu_cores=0.3,
        available_cpu_cores=0.3,
        other_cpu_cores=1.7,
        other_runnable=8.0,
        run_queue_wait_fraction=0.87,
    )
    return evidence(Loader(fetch_cpu=0.048, starved=0.325, rate=5.0), usage=crowd)


def test_what_costs_the_cpu_time_is_named_beside_the_neighbors() -> None:
    """As seen of a read of gzipped chunks: it has a core for an eighth of the time."""
    found = find(_computing_in_a_crowd())
    assert codes(found)[:2] == ["cpu.neighbours", "fetch.cpu"]
    assert "of the time to make a batch with a core at hand" in found[1].explanation


def test_how_many_others_there_are_is_known_by_the_looks_of_all_trials() -> None:
    """One neighbor may be 1.6 threads in five looks, and takes half of two cores by itself."""
    crowd = Usage(
        own_cpu_cores=1.0, available_cpu_cores=1.0, other_cpu_cores=1.0,
        run_queue_wait_fraction=0.5, other_runnable=1.6,
    )  # fmt: skip
    loader = Loader(fetch_cpu=0.015, starved=0.025, rate=25.0)
    for others, first in ((1.0, "fetch.cpu"), (1.9, "cpu.neighbours")):
        tried = [Loader(config=config(n), fetch_cpu=0.015, starved=0.025) for n in (0, 1, 3, 4)]
        seen = evidence(loader, usage=crowd, calibrations=tried)
        later = dataclasses.replace(crowd, other_runnable=others)
        observed = [
            each
            if each.trial.config == seen.config
            else dataclasses.replace(each, trial=dataclasses.replace(each.trial, usage=later))
            for each in seen.observations
        ]
        assert find(dataclasses.replace(seen, observations=tuple(observed)))[0].code == first


def test_quiet_is_no_faster_than_its_cores_would_be_over_the_rate_that_is_shown() -> None:
    """As seen of 249 samples/s that a quiet machine would make 8.27 times, by a trial's 158."""
    seen = _computing_in_a_crowd()
    for shown in (5.0, 7.8, 60.0):
        found = find(dataclasses.replace(seen, shown_rate=shown))
        (gain,) = (each.predicted_gain for each in found if each.code == "cpu.neighbours")
        assert gain is not None
        assert gain.value <= 1.01 * max(1.0, 2 / 0.048 / shown)


def test_what_others_use_of_the_whole_machine_is_shared_by_its_ranks() -> None:
    """One core of 16 is no crowd, nor is it one for each of four ranks."""
    usage = Usage(
        own_cpu_cores=2.0,
        available_cpu_cores=3.0,
        other_cpu_cores=1.0,
        other_runnable=4.0,
        run_queue_wait_fraction=0.4,
    )
    one = evidence(Loader(fetch_cpu=0.019, starved=0.015, rate=35), usage=usage, cores=16)
    ranks = dataclasses.replace(one, machine=one.machine.shared_by(4), ranks=4)
    assert ranks.others / ranks.cores == one.others / one.cores == 1 / 16
    assert "cpu.neighbours" not in codes(find(ranks))
    crowd = dataclasses.replace(usage, own_cpu_cores=1.0, available_cpu_cores=1.5)
    crowd = dataclasses.replace(crowd, other_cpu_cores=10.0, other_runnable=16.0)
    one = evidence(Loader(fetch_cpu=0.019, starved=0.015, rate=35), usage=crowd, cores=16)
    ranks = dataclasses.replace(one, machine=one.machine.shared_by(4), ranks=4)
    (found,) = (each for each in find(ranks) if each.code == "cpu.neighbours")
    assert "kept 2.5 of 4 cores busy" in found.explanation
    assert (found.evidence["other_cpu_cores"], found.evidence["usable_cores"]) == (2.5, 4.0)


def test_ranks_that_together_fill_the_memory_are_warned() -> None:
    """A fifth of the machine is what each of five may have."""
    usage = dataclasses.replace(QUIET, pss_peak_bytes=12 << 30)
    one = evidence(Loader(fetch_cpu=0.01, rate=90), usage=usage)
    assert "memory.limit" not in codes(find(one))
    ranks = dataclasses.replace(one, machine=one.machine.shared_by(5), ranks=5)
    (found,) = (each for each in find(ranks) if each.code == "memory.limit")
    assert "It used 12.0 GiB. The limit is 12.8 GiB to each rank." in found.explanation


def test_a_quota_of_several_ranks_is_shared_by_them() -> None:
    """What one would gain without it is the cores that it would have then, not those of all."""
    one = _throttled()
    four = dataclasses.replace(
        one,
        machine=machine(4.0, affinity_cpus=8, quota_cores=4.0, logical_cpus=8).shared_by(4),
        ranks=4,
    )
    (alone, *_), (shared, *_) = find(one), find(four)
    assert shared.predicted_gain == alone.predicted_gain
    assert "allows 1 of 2 CPUs to each rank" in shared.explanation


def test_a_machine_is_shared_by_its_ranks() -> None:
    whole = machine(8, logical_cpus=64, quota_cores=16.0, read_limit_bytes_per_s=1e9)
    assert whole.shared_by(1, 64) == whole
    part = whole.shared_by(4)
    assert (part.affinity_cpus, part.usable_cores, part.quota_cores) == (2, 2.0, 4.0)
    assert (part.logical_cpus, part.read_limit_bytes_per_s) == (2, 2.5e8)
    assert (part.shm_available_bytes, part.memory_available_bytes) == (8 << 30, 12 << 30)
    bound = whole.shared_by(4, 64)  # to 8 of them
    assert (bound.logical_cpus, bound.affinity_cpus, bound.usable_cores) == (16, 8, 4.0)
    assert whole.shared_by(4, 4096).logical_cpus == 16  # many of which are offline


def test_without_workers_or_queues_nothing_is_to_be_had_of_fewer() -> None:
    lost = failed(config(0), failure=Failure(kind="out_of_memory", message="The kernel killed it."))
    (first, *_) = find(failing(config(0), lost))
    assert first.code == "memory.limit"
    assert first.fix is not None
    assert first.fix.text.startswith("Use smaller batches, or keep")


@pytest.mark.parametrize(
    ("cpu", "io", "code"), [(0.019, 0.001, "fetch.cpu"), (0.001, 0.019, "fetch.io")]
)
def test_a_random_order_over_blocks_is_named(cpu: float, io: float, code: str) -> None:
    """Each of 32 samples reads a row group of its own; those that follow each other share one."""
    weight = DatasetWeight(far_sample_s=0.01, next_sample_s=0.0005)
    seen = evidence(Loader(fetch_cpu=cpu, fetch_io=io, rate=100.0), usage=FULL, weight=weight)
    first = find(seen)[0]
    assert (first.code, first.title) == (code, "Random order reads a block for each sample")
    assert first.predicted_gain is not None
    assert first.predicted_gain.value > 5.0
    assert first.fix is not None
    assert "sampler=InBlocks(len(dataset), size, 32, 2)" in first.fix.code
    assert "a block that several share is read by each of them" in first.fix.text
    ast.parse(first.fix.code.partition("\n\nDataLoader")[0])
    assert first.evidence["far_sample_s"] == 0.01
    shared = find(dataclasses.replace(seen, ranks=2))[0].fix
    assert shared is not None
    assert shared.text == first.fix.text
    assert not shared.code  # each rank would load all samples


@pytest.mark.parametrize(
    ("far_s", "next_s"),
    [
        (None, None),
        (0.01, 0.006),  # they cost the same, give or take
        (0.03, 0.0005),  # in order, of which one in many reads a block
    ],
)
def test_samples_that_cost_the_same_in_any_order_raise_nothing(
    far_s: float | None, next_s: float | None
) -> None:
    weight = DatasetWeight(far_sample_s=far_s, next_sample_s=next_s)
    sound, seen = evidence(CPU, usage=FULL), evidence(CPU, usage=FULL, weight=weight)
    assert find(seen) == find(sound)


def test_blocks_come_to_one_worker_each() -> None:
    weight = DatasetWeight(far_sample_s=0.01, next_sample_s=0.0005)
    seen = evidence(Loader(fetch_cpu=0.019, rate=100.0), usage=FULL, weight=weight)
    fix = find(seen)[0].fix
    assert fix is not None
    names: dict[str, Any] = {"torch": torch}
    exec(fix.code.partition("\n\nloader")[0], names)
    drawn = list(names["InBlocks"](1000, 128, 32, 2))
    assert sorted(drawn) == list(range(1000))
    batches = [drawn[at : at + 32] for at in range(0, 768, 32)]  # of six blocks of seven
    assert all(len({sample // 128 for sample in batch}) == 1 for batch in batches)
    readers: dict[int, set[int]] = {}
    for number, batch in enumerate(batches):
        for sample in batch:
            readers.setdefault(sample // 128, set()).add(number % 2)
    assert len(readers) == 6
    assert all(len(workers) == 1 for workers in readers.values())
    # Row groups seldom hold whole batches: who keeps the last that it read reads few again.
    drawn, kept, reads = list(names["InBlocks"](100_000, 1000, 64, 4)), dict[int, int](), 0
    assert sorted(drawn) == list(range(100_000))
    for place, sample in enumerate(drawn):
        reads += kept.get(place // 64 % 4) != sample // 1000
        kept[place // 64 % 4] = sample // 1000
    assert reads <= 1.2 * 100


def test_others_bring_no_more_than_what_threads_waited_for() -> None:
    """A sampler that sleeps does so beside nobody, too."""
    usage = Usage(
        own_cpu_cores=0.24,
        available_cpu_cores=0.24,
        other_cpu_cores=1.76,
        run_queue_wait_fraction=0.53,
    )
    loader = Loader(fetch_cpu=0.0007, starved=0.0002, dispatch=0.04, step=0.0067, busy=0.1, rate=19)
    seen = evidence(
        loader, usage=usage, noisy=True, predict=modeled(lambda _chosen, cores: around(10 * cores))
    )
    found = next(each for each in find(seen) if each.code == "cpu.neighbours")
    assert found.predicted_gain is not None
    assert found.predicted_gain.ends[1] < 1.4
    free = dataclasses.replace(usage, run_queue_wait_fraction=0.9)  # more than one waited
    seen = evidence(
        loader, usage=free, noisy=True, predict=modeled(lambda _chosen, cores: around(10 * cores))
    )
    found = next(each for each in find(seen) if each.code == "cpu.neighbours")
    assert found.predicted_gain is not None
    assert found.predicted_gain.value > 4


def test_what_others_take_is_known_by_a_batch_where_a_trial_was_too_short_for_it() -> None:
    short = Usage(own_cpu_cores=0.0, available_cpu_cores=0.0, other_cpu_cores=2.0)
    loader = Loader(config=config(0), fetch_cpu=0.006, starved=0.009, rate=60)
    first, second = find(evidence(loader, usage=short, noisy=True))
    assert (first.code, second.code) == ("cpu.neighbours", "fetch.cpu")
    assert first.predicted_gain is not None
    assert second.predicted_gain is not None
    assert first.predicted_gain.value > second.predicted_gain.value > 1.1
    # No change of the loader brings it, so that it is no speed-up.
    assert str(first.evidence["gain_at"]).endswith("on a quiet machine")

    shown = dict(answer([first, second]))
    assert "Speed-up" not in shown
    assert "on a quiet machine" in str(shown["If quiet"])


def test_others_come_behind_what_pays_where_their_cores_bring_nothing() -> None:
    """It waits for cores, and its threads are hardly ever seen to."""
    usage = Usage(
        own_cpu_cores=0.05,
        available_cpu_cores=0.05,
        other_cpu_cores=1.95,
        run_queue_wait_fraction=0.5,
    )
    loader = Loader(config=config(0), fetch_cpu=0.006, starved=0.009, rate=60)
    found = find(evidence(loader, usage=usage, noisy=True))
    assert codes(found) == ["fetch.cpu", "cpu.neighbours"]


def test_no_workers_are_advised_where_a_batch_costs_far_less_without() -> None:
    """Small tensors by the dozen: workers take turns on the cores, and each batch costs more."""
    loader = Loader(
        fetch_cpu=0.03,
        starved=0.084,
        receive=0.031,
        hand_shake=0.01,
        put_cpu=0.01,
        rate=9,
        busy=0.7,
    )
    alone = Loader(config=config(0), fetch_cpu=0.015, put_cpu=0.0, receive=0.0, rate=60)
    fields = {"batch_tensors": 60}
    seen = evidence(loader, target_fields=fields, calibrations=[alone], noisy=True)
    first = find(seen)[0]
    assert first.code == "main.receive"
    assert first.fix is not None
    assert first.fix.dataloader_kwargs == {"num_workers": 0}
    assert first.predicted_gain is not None
    assert first.predicted_gain.value > 2
