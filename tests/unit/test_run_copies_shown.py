"""What is said of a script's own copies to the device: findings, and the loader's lines."""

from __future__ import annotations

import dataclasses

import builders
from test_run_diagnosis import CONFIG, LOADER, TRACED, durations, stage

from dlprof.integrations.diagnosis import diagnose_script
from dlprof.records import Copies, Diagnosis, WatchedLoader
from dlprof.report.script import summary_text

COPIES = Copies(
    device="cuda:0",
    batches=150,
    timed=150,
    bytes=8 << 20,
    copy_s=0.004,
    exposed_s=0.004,
    hidden_s=0.0,
    blocked_s=0.004,
    pinned_fraction=0.0,
)
FED = dataclasses.replace(
    LOADER, waited_s=0.03, wait_fraction=0.02, wait=durations(0.0002), copies=COPIES
)


def diagnosed(loader: WatchedLoader) -> Diagnosis | None:
    stages = tuple(each for each in TRACED.stages if each.name not in {"wait", "step"})
    shown = dataclasses.replace(
        TRACED,
        stages=(*stages, stage("wait", 0.0002), stage("copy", 0.004), stage("step", 0.006)),
        window_s=1.53,
        wait_fraction=0.02,
    )
    return diagnose_script([loader], [shown], builders.machine(8), builders.target(), wall_s=2.0)


def test_exposed_copies_of_a_loader_that_keeps_up_are_the_first_cause() -> None:
    found = diagnosed(FED)
    assert found is not None
    first = found.findings[0]
    assert first.code == "transfer.pageable"
    assert first.evidence["exposed_s"] == 0.004
    assert first.evidence["batch_bytes"] == 8 << 20
    assert first.fix is not None
    assert first.fix.dataloader_kwargs["pin_memory"] is True


def test_pinned_copies_and_none_at_all_are_no_such_cause() -> None:
    assert diagnosed(dataclasses.replace(FED, copies=None)) is None
    pinned = dataclasses.replace(COPIES, pinned_fraction=1.0)
    config = dataclasses.replace(CONFIG, pin_memory=True)
    found = diagnosed(dataclasses.replace(FED, config=config, copies=pinned))
    assert found is not None
    assert "transfer.pageable" not in {each.code for each in found.findings}


def test_a_loaders_lines_keep_copies_apart_from_the_rest_of_the_step() -> None:
    shown = " ".join(summary_text(FED).split())
    assert (
        "exposed copies to cuda:0: 4.0 ms of each step, the rest takes 6.0 ms; 8.0 MiB a batch, "
        "0% of it pinned" in shown
    )
    hidden = dataclasses.replace(COPIES, exposed_s=0.0, hidden_s=0.004)
    beside = summary_text(dataclasses.replace(FED, copies=hidden))
    assert "4.0 ms more overlap with it" in " ".join(beside.split())
