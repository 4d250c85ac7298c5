"""Heavy datasets, workers without data, threads for slow storage, and what memory grows by."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import pytest
from builders import around, config
from finding_cases import QUIET, Loader, codes, evidence, modeled

from dlprof.advise.findings.diagnosis import find
from dlprof.advise.findings.evidence import Evidence
from dlprof.advise.findings.loader import fetched_in_threads
from dlprof.advise.wrong_data import beginning_alone
from dlprof.records import AttributeWeight, DatasetWeight, Finding, StartPhase, WorkerStart
from dlprof.records.stages import FREED


def _weight(**changes: Any) -> DatasetWeight:
    first = AttributeWeight(
        name="samples",
        type="list of 1,000,000 dict",
        pickled_bytes=4e8,
        pickle_s=2.0,
        unpickle_s=2.0,
        object_bytes=8e8,
        objects=4e6,
        how="sampled",
    )
    phases = (
        StartPhase(name="create", wall_s=2.0, cpu_s=2.0),
        StartPhase(name="imports", wall_s=1.0, cpu_s=1.0),
        StartPhase(name="unpickle", wall_s=2.0, cpu_s=2.0),
    )
    start = WorkerStart(method="forkserver", phases=phases, sent_bytes=4e8)
    weight = DatasetWeight(
        attributes=(first,),
        pickled_bytes=4e8,
        pickle_s=2.0,
        unpickle_s=2.0,
        object_bytes=8e8,
        how="sampled",
        starts=(start,),
    )
    return dataclasses.replace(weight, **changes)


def _heavy(method: str | None, weight: DatasetWeight | None = None) -> Evidence:
    seen = evidence(
        Loader(config=config(2, start_method=method), fetch_cpu=0.01, rate=100),
        target_fields={"batches_per_epoch": 100},
        trial_fields={"epoch_turnover_s": 10.0, "startup_s": 10.0},
    )
    return dataclasses.replace(seen, weight=weight or _weight())


def _finding(seen: Evidence, code: str) -> Finding:
    return next(each for each in find(seen) if each.code == code)


def test_a_heavy_dataset_comes_before_the_slow_start_that_it_makes() -> None:
    found = find(_heavy("forkserver"))
    assert codes(found)[0] == "dataset.heavy"
    assert "startup" in codes(found)
    first = found[0]
    assert first.title == "The dataset is heavy: samples"
    assert first.evidence["attribute"] == "samples"
    assert first.evidence["first_batch_s"]["forkserver"]["32"] == pytest.approx(160.0)
    assert first.fix is not None
    assert "torch tensors" in first.fix.text
    assert first.predicted_gain is not None
    assert first.predicted_gain.value > 1.5


def test_a_memory_map_that_is_sent_whole_is_mapped_in_each_worker() -> None:
    (held,) = _weight().attributes
    tokens = dataclasses.replace(held, name="tokens", type="memmap of 536,870,912 uint16")
    fix = _finding(_heavy("spawn", _weight(attributes=(tokens,))), "dataset.heavy").fix
    assert fix is not None
    assert fix.text.startswith("Map the file of tokens in each worker, at its first sample")


@pytest.mark.parametrize("kind", ["DataFrame", "ImageIndex", "Table"])
def test_what_is_no_array_is_not_to_be_mapped_as_one(kind: str) -> None:
    (held,) = _weight().attributes
    rows = dataclasses.replace(held, name="rows", type=kind)
    fix = _finding(_heavy("spawn", _weight(attributes=(rows,))), "dataset.heavy").fix
    assert fix is not None
    assert fix.text.startswith("Keep rows in torch tensors or numpy arrays")
    assert "np.load" not in fix.code


def test_forked_workers_are_warned_of_the_next_python() -> None:
    found = _finding(_heavy("fork"), "dataset.heavy")
    assert found.severity == "info"
    assert "Python 3.14" in found.explanation
    assert found.predicted_gain is None


def test_a_light_dataset_is_not_mentioned() -> None:
    light = _weight(pickle_s=0.01, unpickle_s=0.01, object_bytes=1e5, pickled_bytes=1e5)
    assert "dataset.heavy" not in codes(find(_heavy("forkserver", light)))
    assert "dataset.heavy" not in codes(find(dataclasses.replace(_heavy("spawn"), weight=None)))


def test_what_computes_when_it_is_pickled_is_to_be_made_in_the_worker() -> None:
    slow = AttributeWeight(name="model", type="Model", pickle_s=5.0, how="at_least")
    found = _finding(_heavy("spawn", _weight(attributes=(slow,), pickle_s=5.0)), "dataset.heavy")
    assert found.fix is not None
    assert found.fix.text.startswith("Make model in the worker")


def _starving(starved: int, workers: int, **fields: Any) -> Evidence:
    loader = Loader(config=config(workers), fetch_io=0.02, busy=0.9, rate=50, idle_workers=starved)
    return evidence(loader, target_fields={"kind": "iterable", "length": None, **fields})


def test_workers_without_data_are_named_first() -> None:
    seen = dataclasses.replace(_starving(2, 4), weight=DatasetWeight(shards=2))
    found = find(seen)
    assert codes(found)[0] == "workers.unfed"
    assert "too_many_workers" not in codes(found)
    first = found[0]
    assert first.title == "2 of 4 workers get no data"
    assert "Workers 0 and 1 gave none" in first.explanation
    assert "2 shards for 4 workers" in first.explanation
    assert first.evidence["starved_workers"] == [0, 1]
    assert first.predicted_gain is not None
    assert first.predicted_gain.value == pytest.approx(2.0, rel=0.1)
    # A script's dataset, which nobody weighs, says it as well.
    unweighed = find(_starving(2, 4, shards=2))[0]
    assert "2 shards for 4 workers" in unweighed.explanation
    assert unweighed.fix is not None
    assert "worker w" not in unweighed.fix.text


@pytest.mark.parametrize(("fed", "named"), [(2, True), (4, False), (3, False), (None, False)])
def test_workers_that_torch_went_past_are_named_in_a_short_window(
    fed: int | None, *, named: bool
) -> None:
    """Batches that take long leave two of each worker in it, though no other ever gave one."""
    seen = _starving(2, 4)
    short = [
        dataclasses.replace(
            each,
            trial=dataclasses.replace(each.trial, fed_workers=fed),
            explanation=each.explanation
            and dataclasses.replace(
                each.explanation,
                workers=tuple(
                    dataclasses.replace(worker, batches=min(2, worker.batches))
                    for worker in each.explanation.workers
                ),
            ),
        )
        for each in seen.observations
    ]
    found = find(dataclasses.replace(seen, observations=tuple(short)))
    assert (codes(found)[:1] == ["workers.unfed"]) is named
    assert ("workers.unfed" in codes(found)) is named


def test_no_text_has_parentheses_within_parentheses() -> None:
    """What more shards bring is said in words where it is too noisy, and these have their own."""
    widths = {4: 0.02, 2: 0.8}  # of what is surer, less cancels
    model = modeled(lambda chosen, _: around(12.5 * chosen.num_workers, widths[chosen.num_workers]))
    first = find(dataclasses.replace(_starving(2, 4), predict=model))[0]
    assert first.fix is not None
    assert "too noisy to say" in first.fix.text
    assert not re.search(r"\([^)]*\(", f"{first.fix.text} {first.explanation}")


@pytest.mark.parametrize(("rate", "does"), [(1.0, True), (0.6, False)])
def test_workers_that_are_fed_do_as_well_alone_unless_that_was_tried_in_vain(
    rate: float, *, does: bool
) -> None:
    stream = {"kind": "iterable", "length": None}
    loader = Loader(config=config(4), fetch_io=0.02, busy=0.9, rate=50, idle_workers=2)
    first = find(evidence(loader, target_fields=stream, variants={config(2): rate}))[0]
    assert first.code == "workers.unfed"
    assert first.fix is not None
    assert ("Or set num_workers=2" in first.fix.text) is does


def test_shards_are_shared_by_all_workers_of_all_ranks() -> None:
    seen = dataclasses.replace(
        _starving(2, 4, dataset="datasets.iterable_dataset.IterableDataset"),
        weight=DatasetWeight(shards=8),
        ranks=4,
    )
    first = find(seen)[0]
    assert "8 shards for 4 ranks of 4 workers" in first.explanation
    assert first.explanation.startswith("On the slowest of 4 ranks: Workers 0 and 1 gave none")
    assert first.fix is not None
    assert "num_shards=16" in first.fix.code


def test_a_split_that_starves_is_distinguished_from_too_few_shards() -> None:
    seen = dataclasses.replace(_starving(1, 4), weight=DatasetWeight(shards=8))
    assert "its split leaves these workers without" in find(seen)[0].explanation


@pytest.mark.parametrize(
    ("starved", "title", "why"),
    [
        (1, "1 of 3 workers ends before the others", "its share is smaller"),
        (2, "2 of 4 workers end before the others", "their shares are smaller"),
    ],
)
def test_workers_that_gave_batches_at_first_have_ended(starved: int, title: str, why: str) -> None:
    workers = int(title.split()[2])
    loader = Loader(config=config(workers), fetch_io=0.02, busy=0.9, rate=50, idle_workers=starved)
    stream = {"kind": "iterable", "length": None}
    seen = evidence(loader, target_fields=stream, trial_fields={"fed_workers": workers})
    first = _finding(seen, "workers.unfed")
    assert first.title == title
    assert why in first.explanation
    assert first.fix is not None
    assert "Or set num_workers" not in first.fix.text
    assert not first.fix.code
    fewer = dataclasses.replace(seen, weight=DatasetWeight(shards=2))
    assert _finding(fewer, "workers.unfed").title == title


@pytest.mark.parametrize("starved", [0, 1])
def test_no_depth_feeds_workers_that_have_no_data(starved: int) -> None:
    loader = Loader(config=config(3), fetch_io=0.02, busy=0.5, rate=50, idle_workers=starved)
    stream = {"kind": "iterable", "length": None}
    seen = evidence(loader, target_fields=stream, variants={config(3, prefetch_factor=8): 1.5})
    assert ("prefetch.shallow" in codes(find(seen))) is (starved == 0)


@pytest.mark.parametrize(("starved", "kind"), [(0, "iterable"), (2, "map")])
def test_fed_workers_are_left_alone(starved: int, kind: str) -> None:
    assert "workers.unfed" not in codes(find(_starving(starved, 4, kind=kind)))


def test_threads_bring_what_the_blocked_time_allows() -> None:
    view = evidence(Loader(config=config(2), fetch_cpu=0.002, fetch_io=0.03, rate=60))
    costs, shown = view.costs, view.explained
    assert costs is not None
    assert shown is not None
    assert shown.samples is not None
    many = dataclasses.replace(
        shown, samples=dataclasses.replace(shown.samples, count=32 * shown.batches)
    )
    observations = (
        each if each.explanation is None else dataclasses.replace(each, explanation=many)
        for each in view.observations
    )
    gains = fetched_in_threads(dataclasses.replace(view, observations=tuple(observations)), costs)
    assert list(gains) == [2, 4, 8, 16, 32]
    whole = costs.fetch.own_s + costs.collate.own_s
    assert gains[2].value == pytest.approx(whole / (whole - costs.fetch.own_s / 2), rel=0.1)
    assert gains[32].value <= whole / costs.fetch.cpu_s
    assert not fetched_in_threads(view, costs)


def _growing(loader: Loader, sizes: Mapping[str, float], batches: int = 400) -> Evidence:
    """What is seen of a loader whose workers hold what grows by so many bytes a batch."""
    seen = evidence(loader)
    shown = next(each.explanation for each in seen.observations if each.explanation is not None)
    workers = tuple(dataclasses.replace(each, growing=sizes) for each in shown.workers)
    grown = dataclasses.replace(shown, workers=workers, batches=batches)
    return dataclasses.replace(
        seen,
        observations=tuple(
            dataclasses.replace(each, explanation=grown if each.explanation is shown else None)
            for each in seen.observations
        ),
    )


def test_the_container_that_grows_is_named() -> None:
    loader = Loader(fetch_cpu=0.019, rate=100.0, growth=800_000.0)
    found = _finding(_growing(loader, {"kept": 780_000.0, "names": 10.0}), "memory.growth")
    assert found.title == "Memory of the workers grows: kept"
    assert found.fix is not None
    assert "kept" in found.fix.text
    unknown = _finding(evidence(loader), "memory.growth")
    assert "No attribute of the dataset" in unknown.explanation


def test_a_container_that_grows_shows_in_few_batches_unless_it_may_be_a_cache() -> None:
    """480 KB a sample in 18 traced batches: memory as a whole showed nothing yet."""
    loader = Loader(fetch_cpu=0.019, rate=100.0)
    leak = _growing(loader, {"ld._keep": 15e6}, batches=18)
    assert _finding(leak, "memory.growth").title == "Memory of the workers grows: ld._keep"
    for name in ("cache (dict)", "Rows.seen (set)", "load (lru_cache)", FREED):
        assert "memory.growth" not in codes(find(_growing(loader, {name: 15e6}, batches=18)))
    assert "memory.growth" not in codes(find(_growing(loader, {"ld._keep": 15e4}, batches=18)))
    beside = _growing(loader, {"log": 15e6, "cache (dict)": 14e6}, batches=18)
    assert "memory.growth" not in codes(find(beside))  # it may hold what the cache does
    cached = dataclasses.replace(leak.target, first_sample_s=0.01, kept_sample_s=0.0001)
    assert "memory.growth" not in codes(find(dataclasses.replace(leak, target=cached)))


@pytest.mark.parametrize(("held", "grows"), [(300 << 20, False), (3000 << 20, True)])
def test_a_container_that_is_full_in_a_longer_trial_does_not_grow(
    held: int, *, grows: bool
) -> None:
    leak = _growing(Loader(fetch_cpu=0.019, rate=100.0), {"ld._keep": 15e6}, batches=18)
    usage = dataclasses.replace(QUIET, pss_peak_bytes=held)
    longer = tuple(
        dataclasses.replace(
            each, trial=dataclasses.replace(each.trial, usage=usage, window_batches=200)
        )
        for each in leak.observations
    )
    view = dataclasses.replace(leak, observations=longer)
    assert ("memory.growth" in codes(find(view))) is grows


def test_freed_memory_that_malloc_keeps_is_no_fault_of_the_dataset() -> None:
    loader = Loader(fetch_cpu=0.019, rate=100.0, growth=800_000.0)
    found = _finding(_growing(loader, {FREED: 700_000.0}), "memory.growth")
    assert "No container grows" in found.explanation
    assert found.fix is not None
    assert "MALLOC_MMAP_THRESHOLD_" in found.fix.text
    assert found.fix.code is not None
    assert found.fix.code.startswith("MALLOC_MMAP_THRESHOLD_=")
    both = _finding(_growing(loader, {FREED: 700_000.0, "kept": 300_000.0}), "memory.growth")
    assert both.title == "Memory of the workers grows: kept"


def test_freed_memory_that_malloc_may_still_fill_up_with_is_no_growth() -> None:
    loader = Loader(fetch_cpu=0.019, rate=100.0, growth=2.4e6)
    assert "memory.growth" not in codes(find(_growing(loader, {FREED: 2.3e6}, batches=70)))
    assert "memory.growth" in codes(find(_growing(loader, {"kept": 2.3e6}, batches=70)))
    more = Loader(fetch_cpu=0.019, rate=100.0, growth=24e6)  # in no time more than fills up
    assert "memory.growth" in codes(find(_growing(more, {FREED: 23e6}, batches=70)))


@pytest.mark.parametrize(
    ("about", "trials", "said"),
    [
        ({"kind": "iterable"}, {}, True),
        ({}, {}, False),
        ({"kind": "iterable", "repeats_shards": True}, {}, False),
        ({"kind": "iterable"}, {"epoch_samples": 320}, False),
    ],
)
def test_what_comes_later_in_an_iterable_than_trials_went_is_not_known(
    about: dict[str, Any], trials: dict[str, Any], *, said: bool
) -> None:
    seen = evidence(Loader(fetch_cpu=0.01), target_fields=about, trial_fields=trials)
    assert (
        beginning_alone(seen.target, seen.trials()).startswith(
            "Trials load the beginning of an epoch"
        )
        is said
    )


def test_a_few_pieces_of_data_are_no_matter_of_the_split() -> None:
    """Two workers, that were tried, had all: four need more pieces, and two do as well."""
    stream = {"kind": "iterable", "length": None}
    loader = Loader(config=config(4), fetch_io=0.02, busy=0.9, rate=50, idle_workers=2)
    alone = Loader(config=config(2), fetch_io=0.02, busy=0.9, rate=50)
    seen = evidence(loader, target_fields=stream, calibrations=[alone], noisy=True)
    first = find(seen)[0]
    assert first.fix is not None
    assert "give worker w of n shards" in first.fix.text
    assert "Or set num_workers=2, which may do as well as 4 now." in first.fix.text
    fed = tuple(
        dataclasses.replace(each, trial=dataclasses.replace(each.trial, fed_workers=2))
        for each in seen.observations
    )
    first = find(dataclasses.replace(seen, observations=fed))[0]
    assert first.code == "workers.unfed"
    assert "no more than 2 pieces" in first.explanation
    assert first.fix is not None
    assert first.fix.text.startswith("Cut the data into more shards")
    assert "worker w" not in first.fix.text
    assert not first.fix.code
    assert "Or set num_workers=2, which does as well as 4 now." in first.fix.text


@pytest.mark.parametrize(("advised", "named"), [(1.9, True), (1.0, False)])
def test_a_dataset_is_heavy_for_the_workers_that_are_advised(
    advised: float, *, named: bool
) -> None:
    seen = evidence(
        Loader(config=config(0), fetch_cpu=0.02, rate=50),
        calibrations=[Loader(config=config(2), fetch_cpu=0.02)],
        variants={config(2): advised},
    )
    found = find(dataclasses.replace(seen, weight=_weight()))
    heavy = [each for each in found if each.code == "dataset.heavy"]
    assert bool(heavy) is named
    if named:
        assert found[0].code == "too_few_workers"
        assert "for the advised 2 workers" in heavy[0].explanation
