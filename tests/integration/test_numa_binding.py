"""Ranks bound to NUMA nodes, as torchrun does it, on a machine whose CPUs pass for two nodes.

Memory is as near to one as to the other there: what a node changes, the target pretends.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import dlprof
from dlprof.engine.ranks import launched, numa_cpus
from dlprof.machine import inspect_machine
from dlprof.records import GpuInfo, Machine, NumaBinding, Run, Trial, Usage
from dlprof.report.documents import brief_document, sweep_document
from dlprof.report.snippets import render_torchrun
from dlprof.report.sweep import sweep_report
from dlprof.report.terminal import plain_text
from dlprof.store import read_run
from dlprof.trial.nodes import Ranks
from dlprof.trial.protocol import Message
from dlprof.trial.runner import TrialRunner

CPUS = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
NODES = {node: (cpu,) for node, cpu in enumerate((*CPUS[-1:], *CPUS[:1]))}
"""Two CPUs, each of them a node; numbered from behind, so that none is where it would be anyway."""

pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="two CPUs pass for two nodes")

TARGET = f"{Path(__file__).parent / 'rank_targets.py'}:placed"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """This machine with a GPU on each of the two nodes, and with nobody else on it.

    What other tests take of it is left out of the records: it must not decide how sure they are.
    """
    cards = tuple(
        GpuInfo(index=node, name="Pretended", uuid=f"GPU-{node}", numa_node=node, cuda_index=node)
        for node in NODES
    )
    found = dataclasses.replace(inspect_machine(), numa_nodes=2, gpus=cards)
    monkeypatch.setattr("dlprof.engine.sweep.inspect_machine", lambda: found)
    monkeypatch.setattr("dlprof.engine.ranks.node_cpus", lambda: NODES)
    explain = TrialRunner.explain

    def alone(*asked: Any, **more: Any) -> tuple[Trial, Message]:
        trial, sent = explain(*asked, **more)
        usage = Usage(own_cpu_cores=0.1, available_cpu_cores=2.0)
        return dataclasses.replace(trial, usage=usage, noisy=False), sent

    monkeypatch.setattr(TrialRunner, "explain", alone)
    return found


def swept(place: Path, slow: str) -> Run:
    (place / "seen").mkdir()
    return dlprof.sweep(
        TARGET,
        arg={"folder": str(place / "seen"), "slow": slow},
        output=place / "run.dlprof.jsonl",
        launch_ranks=2,
        num_workers=(1, 2),
        prefetch_factor=2,
        persistent_workers=False,
        trial_time=0.3,
        repeats=2,
        budget=90,
        progress=False,
    )


def binding(run: Run) -> NumaBinding:
    assert run.recommendation is not None
    assert run.recommendation.numa_binding is not None
    return run.recommendation.numa_binding


@pytest.mark.slow
def test_binding_that_pays_is_recommended_with_the_command_that_does_it(
    tmp_path: Path, machine: Machine
) -> None:
    run = swept(tmp_path, "free")
    found, tried = binding(run), [each for each in run.trials if each.purpose == "binding"]

    assert [each.numa_binding for each in tried] == [None, "node", "node", None]
    assert {len(each.ranks) for each in tried} == {2}
    assert found.trials == tuple(each.id for each in tried)
    assert found.gain is not None
    assert found.gain.value > 1  # by how much depends on what else runs
    assert found.pays
    assert run.header.machine == machine
    for rank, (cpu,) in NODES.items():
        for worker in range(2):
            seen = (tmp_path / "seen" / f"rank{rank}-worker{worker}").read_text().split()
            assert {*seen} == {str(cpu), ",".join(map(str, CPUS))}
    # What is compared with other settings, and how ranks scale, has no bound trials in it.
    assert not any(each.numa_binding for each in run.completed)
    assert {each.purpose for each in run.trials if each.numa_binding} == {"binding"}

    again = read_run(tmp_path / "run.dlprof.jsonl")
    assert again.recommendation == run.recommendation
    assert again.recommendation is not None
    assert "--nproc-per-node=2 --numa-binding=node --standalone" in render_torchrun(
        again, again.recommendation
    )
    screen = " ".join(plain_text(sweep_report(again), width=100).split())
    assert "NUMA binding torchrun --numa-binding=node: " in screen
    assert screen.count("use it") == 1
    whole = json.loads(sweep_document(again))
    assert whole["recommendation"]["numa_binding"]["pays"] is True
    assert json.loads(brief_document(json.dumps(whole)))["numa_binding"]["pays"] is True


@pytest.mark.slow
@pytest.mark.usefixtures("machine")
def test_binding_that_costs_is_not_recommended(tmp_path: Path) -> None:
    run = swept(tmp_path, "bound")
    found = binding(run)
    assert not found.pays
    assert found.gain is not None
    assert found.gain.value < 1 / 3
    assert run.recommendation is not None
    assert "--numa-binding" not in render_torchrun(run, run.recommendation)
    screen = " ".join(plain_text(sweep_report(run), width=100).split())
    assert "slower than unbound ranks" in screen
    assert "not worth it" in screen


def test_ranks_are_bound_to_what_torch_binds_them_to(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's own function, which would ask CUDA for the nodes of GPUs, on the same topology."""
    torch = pytest.importorskip("torch.numa.binding")
    answers: dict[str, Any] = {
        "_get_numa_node_index_for_gpu_index": lambda *, gpu_index: gpu_index,
        "_get_cpu_indices_for_numa_node_MAYBE_NOT_ALLOWED": lambda *, numa_node_index: {
            *NODES[numa_node_index],
            4096,  # which this process may not use
        },
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch, name, answer)
    options = torch.NumaOptions(affinity_mode=torch.AffinityMode(NumaBinding().mode))
    found = numa_cpus(Ranks(local=launched(2, {})), machine)
    assert isinstance(found, tuple)
    for rank, cpus in enumerate(found):
        assert {*cpus} == torch._get_logical_cpus_to_bind_to(gpu_index=rank, numa_options=options)
