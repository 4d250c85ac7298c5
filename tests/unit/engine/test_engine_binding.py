"""When a sweep tries ranks bound to NUMA nodes, how often, and what it makes of that."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import machine
from led_sweeps import CORES, PretendedBench, Traced, led_header, led_plan, swept

from dlprof.engine import ranks as of_engine
from dlprof.engine.ranks import launched, numa_cpus
from dlprof.records import GpuInfo, LeftOut, RankFigures, Run, Trial
from dlprof.trial.launch import LocalRank
from dlprof.trial.nodes import Link, Nodes, Ranks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are launched on Linux only")

binds = pytest.mark.skipif(
    importlib.util.find_spec("torch.numa") is None, reason="torchrun binds ranks since torch 2.9"
)

CPUS = ((0, 1), (2, 3))
NODES = dict(enumerate(CPUS))


def cards(*nodes: int | None) -> tuple[GpuInfo, ...]:
    return tuple(
        GpuInfo(index=n, name="X", uuid=str(n), numa_node=node, cuda_index=n)
        for n, node in enumerate(nodes)
    )


def local_ranks(*cpus: set[int]) -> tuple[LocalRank, ...]:
    each = zip(launched(len(cpus), {}), cpus, strict=True)
    return tuple(dataclasses.replace(rank, cpus=frozenset(own)) for rank, own in each)


FREE = {0, 1, 2, 3}


@binds
@pytest.mark.parametrize(
    ("own", "nodes", "found"),
    [
        ([FREE, FREE], (0, 1), CPUS),
        ([FREE, FREE], (1, 0), CPUS[::-1]),
        ([{1, 2, 3}, {1, 2, 3}], (0, 1), ((1,), (2, 3))),
        ([FREE, FREE], (1, 1), ((2, 3), (2, 3))),
        ([FREE, {2, 3}], (0, 1), CPUS),  # one of them is bound as it is
        ([FREE], (0,), ()),  # a rank by itself
    ],
)
def test_a_rank_is_bound_to_the_cpus_of_its_gpus_node_that_it_may_use(
    monkeypatch: pytest.MonkeyPatch, own: list[set[int]], nodes: tuple[int, ...], found: Any
) -> None:
    monkeypatch.setattr(of_engine, "node_cpus", lambda: NODES)
    assert numa_cpus(Ranks(local=local_ranks(*own)), machine(gpus=cards(*nodes))) == found


@binds
@pytest.mark.parametrize(
    ("own", "gpus", "why"),
    [
        ([FREE, FREE], (), "goes by the NUMA node of each rank's GPU, and there is none"),
        ([FREE, FREE], cards(0), "and that of rank 1 is not known"),
        ([FREE, FREE], cards(0, None), "and that of rank 1 is not known"),
        ([{0, 1}, {0, 1}], cards(0, 1), "rank 1 may use no CPU of node 1, where its GPU is"),
        ([{0, 1}, {2, 3}], cards(0, 1), "each rank may only use CPUs of its GPU's node as it is"),
    ],
)
def test_where_torchrun_can_not_bind_or_changes_nothing_that_is_said(
    monkeypatch: pytest.MonkeyPatch, own: list[set[int]], gpus: tuple[GpuInfo, ...], why: str
) -> None:
    monkeypatch.setattr(of_engine, "node_cpus", lambda: NODES)
    found = numa_cpus(Ranks(local=local_ranks(*own)), machine(gpus=gpus))
    assert isinstance(found, LeftOut)
    assert found.setting == "--numa-binding=node"
    assert why in found.reason


def test_nothing_is_said_of_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_engine, "node_cpus", lambda: {0: (0, 1, 2, 3)})
    assert numa_cpus(Ranks(local=local_ranks(FREE, FREE)), machine(gpus=cards(0, 0))) == ()


@binds
def test_it_is_left_out_of_a_job_of_several_machines_and_by_a_torch_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(of_engine, "node_cpus", lambda: NODES)
    local, there = local_ranks(FREE, FREE), machine(gpus=cards(0, 1))
    with contextlib.closing(Nodes(4, [Link("b", [2, 3])], leads=False)) as nodes:
        found = numa_cpus(Ranks(local=local, nodes=nodes), there)
    assert isinstance(found, LeftOut)
    assert found.reason == "it is tried with ranks of one machine only"
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    found = numa_cpus(Ranks(local=local), there)
    assert isinstance(found, LeftOut)
    assert "torch 2.9" in found.reason


@dataclasses.dataclass
class BoundBench(PretendedBench):
    """Two ranks, which give so many times as much where they are bound; or fail there."""

    gain: float | None = 1.0
    ranks: int = 2
    asked: list[tuple[tuple[int, ...], ...]] = dataclasses.field(default_factory=list)

    def explain(self, request: Any, **about: Any) -> Traced:
        """As the other bench, and faster by the gain."""
        self.asked.append(request.cpus)
        whole = self.rates
        if request.cpus:
            gain = self.gain
            self.rates = lambda chosen: None if gain is None else gain * (whole(chosen) or 0.0)
        try:
            trial, shown = super().explain(request, **about)
        finally:
            self.rates = whole
        # As even as of a loader that waits.
        steady = dataclasses.replace(trial.usage, own_cpu_cores=0.05)
        count = about.get("ranks") or 1
        ranks = tuple(RankFigures(rank=n, host="box") for n in range(count)) if count > 1 else ()
        return dataclasses.replace(trial, usage=steady, ranks=ranks), shown


ABOUT = led_header(
    machine=machine(CORES, numa_nodes=2, gpus=cards(0, 1)),
    settings={"launch_ranks": [2], "ranks": 2},
    plan=led_plan(),
)


def bound(path: Path, bench: BoundBench, **rest: Any) -> Run:
    return swept(path, bench, about=ABOUT, numa_cpus=CPUS, **rest)


def tried(run: Run) -> list[Trial]:
    return [trial for trial in run.trials if trial.purpose == "binding"]


@pytest.mark.parametrize(
    ("gain", "pays"),
    [(1.3, True), (1.02, False), pytest.param(0.7, False, marks=pytest.mark.slow)],
)
def test_the_recommended_settings_are_tried_with_binding_interleaved(
    tmp_path: Path, gain: float, pays: bool
) -> None:
    bench = BoundBench(gain=gain)
    run = bound(tmp_path / "run", bench)
    assert run.recommendation is not None
    found, trials = run.recommendation.numa_binding, tried(run)
    assert found is not None
    assert found.gain is not None
    assert found.gain.value == pytest.approx(gain, rel=0.01)
    assert found.pays is pays
    assert found.unavailable == ""
    assert {trial.config for trial in trials} == {run.recommendation.config}
    assert [trial.numa_binding for trial in trials[:4]] == [None, "node", "node", None]
    # A gain is measured to the end; that there is none worth a word ends it.
    assert len(trials) == (16 if gain > 1.05 else 4)
    assert {cpus for cpus in bench.asked if cpus} == {CPUS}


@pytest.mark.slow
def test_it_ends_within_the_budget_by_whole_pairs(tmp_path: Path) -> None:
    bench = BoundBench(gain=1.3)
    whole = bound(tmp_path / "whole", BoundBench(gain=1.3))
    assert whole.end is not None
    budget_s = math.floor(whole.end.cost_s.total - 5 * bench.lasts_s)
    run = bound(tmp_path / "run", bench, budget_s=budget_s)
    assert bench.now_s <= budget_s
    assert len(tried(run)) % 2 == 0
    assert 2 <= len(tried(run)) < 16


def test_a_search_that_the_budget_ends_leaves_time_for_ranks(tmp_path: Path) -> None:
    bench = BoundBench(gain=1.3)
    run = bound(tmp_path / "run", bench, budget_s=24.0)
    assert run.end is not None
    assert run.end.reason == "budget"
    purposes = collections.Counter(trial.purpose for trial in run.trials)
    assert purposes["scaling"] == 4
    assert purposes["binding"] == 4
    assert purposes["measure"] > 3
    assert bench.now_s <= 24.0


def test_a_sweep_that_goes_on_tries_no_more_than_is_missing(tmp_path: Path) -> None:
    first = bound(tmp_path / "run", BoundBench(gain=1.3))
    again = bound(tmp_path / "run", BoundBench(gain=1.3))
    assert len(tried(again)) == len(tried(first)) == 16
    scaling = [[t for t in run.trials if t.purpose == "scaling"] for run in (first, again)]
    assert len(scaling[0]) == len(scaling[1]) > 0


def test_ranks_that_fail_at_once_are_not_tried_again_by_a_sweep_that_goes_on(
    tmp_path: Path,
) -> None:
    class Fails(BoundBench):
        """Where two load at once."""

        def explain(self, request: Any, **about: Any) -> Traced:
            whole = self.rates
            if about.get("ranks") == 2:
                self.rates = lambda _: None
            try:
                return super().explain(request, **about)
            finally:
                self.rates = whole

    first, again = (bound(tmp_path / "run", Fails(gain=1.0)) for _ in range(2))
    scaling = [[t for t in run.trials if t.purpose == "scaling"] for run in (first, again)]
    assert any(trial.failure is not None for trial in scaling[0])
    assert scaling[0] == scaling[1]


def test_ranks_that_fail_where_they_are_bound_are_tried_once(tmp_path: Path) -> None:
    run = bound(tmp_path / "run", BoundBench(gain=None))
    assert run.recommendation is not None
    found = run.recommendation.numa_binding
    assert found is not None
    assert found.gain is None
    assert found.unavailable == "The worker was killed."
    assert len(tried(run)) == 2
    again = bound(tmp_path / "run", BoundBench(gain=None))
    assert len(tried(again)) == 2


def test_without_nodes_nothing_is_tried_or_said(tmp_path: Path) -> None:
    run = swept(tmp_path / "run", PretendedBench())
    assert not tried(run)
    assert run.recommendation is not None
    assert run.recommendation.numa_binding is None
