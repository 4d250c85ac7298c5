"""``dlprof run --headroom`` over real loaders and processes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import python, started
from schemas import conforms, run_file_conforms

from dlprof.store import read_run

HERE = Path(__file__).parent
SCRIPT = HERE / "headroom_script.py"
DLPROF = ["-m", "dlprof", "run", "--headroom"]
FILES = ["--force", "-o", "run.dlprof.jsonl", "--json", "run.json"]
QUIET = {"PYTHONWARNINGS": "ignore"}
LONGER = "(train for more epochs, or longer ones)"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked")


def ran(words: list[str], folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return python(folder, *words, timeout_s=300, **QUIET, **environ)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("headroom")
    shutil.copy(SCRIPT, made / "train.py")
    return made


Measured = tuple[subprocess.CompletedProcess[str], dict[str, Any]]


@pytest.fixture(scope="module")
def plain(folder: Path) -> list[list[str]]:
    """What the script prints alone."""
    done = ran(["train.py"], folder)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def measured(folder: Path) -> Measured:
    done = ran([*DLPROF, *FILES, "train.py"], folder)
    assert done.returncode == 0, done.stderr
    return done, json.loads((folder / "run.json").read_text())


@pytest.mark.slow
def test_every_loop_is_trained_on_the_same_batches_in_the_same_order(
    plain: list[list[str]], measured: Measured
) -> None:
    lines = [line.split() for line in measured[0].stdout.splitlines()]
    assert [line[:3] for line in lines] == [line[:3] for line in plain]
    more = {line[0]: int(line[3]) - int(then[3]) for line, then in zip(lines, plain, strict=True)}
    assert all(more[name] > 0 for name in ("workers", "none", "stream", "persistent"))
    assert not any(more[name] for name in ("short", "untrained", "locked", "aside", "pairs"))


@pytest.mark.slow
def test_each_loop_has_an_answer_or_a_reason(measured: Measured) -> None:
    _, document = measured
    conforms("run", document)
    loaders = document["loaders"]
    reported, unreported = loaders[:4], loaders[4:]
    assert [each["batches"] for each in reported] == [400, 200, 200, 200]
    for each in reported:
        found = each["headroom"]
        assert found["rounds"] >= 3
        assert found["step_s"] > 0.006
        assert found["extra_steps"] == found["replayed_batches"] + 2 * found["rounds"]
        parts = found["waiting_fraction"]["value"] + found["slowed_fraction"]["value"]
        assert parts == pytest.approx(1 - 1 / found["speedup"]["value"])
        assert found["period_s"] / found["step_s"] == pytest.approx(found["speedup"]["value"])
    assert reported[1]["headroom"]["waiting_fraction"]["value"] > 0.15  # 4 ms of 10
    whys = [each["unavailable"]["headroom"] for each in unreported]
    assert [each["headroom"] for each in unreported] == [None] * 6
    assert whys == [
        "0 of 3 rounds fitted in: each takes some 20 batches of one epoch " + LONGER,
        "its batches are not trained on: gradients are off",
        "its batches can't be copied (TypeError: locked)",
        "its batches are taken in a background thread",
        *["its steps take batches of another loader as well"] * 2,
    ]


@pytest.mark.slow
def test_the_screen_says_what_a_perfect_loader_would_bring(
    measured: Measured, folder: Path
) -> None:
    done, _ = measured
    assert "with a perfect loader" in " ".join(done.stderr.split())
    run_file_conforms(folder / "run.dlprof.jsonl")
    run = read_run(folder / "run.dlprof.jsonl")
    assert [each.headroom is not None for each in run.watched] == [True] * 4 + [False] * 6
    shown = ran(["-m", "dlprof", "report", "-v", "run.dlprof.jsonl"], folder)
    assert " batches as they came and " in " ".join(shown.stdout.split())


@pytest.mark.slow
def test_without_the_option_nothing_is_given_again(plain: list[list[str]], folder: Path) -> None:
    words = [each for each in DLPROF if each != "--headroom"]
    done = ran([*words, *FILES, "train.py"], folder)
    assert [line.split() for line in done.stdout.splitlines()] == plain
    loaders = json.loads((folder / "run.json").read_text())["loaders"]
    assert not any(each["headroom"] or "headroom" in each["unavailable"] for each in loaders)


@pytest.mark.slow
def test_a_step_that_fails(folder: Path) -> None:
    done = ran([*DLPROF, *FILES, "train.py", "fail"], folder)
    assert done.returncode == 1
    assert "ValueError: nan" in done.stderr
    assert "headroom.py" not in done.stderr.replace("headroom_script.py", "")
    (loader,) = json.loads((folder / "run.json").read_text())["loaders"]
    assert loader["headroom"] or "rounds fitted in" in loader["unavailable"]["headroom"]


@pytest.mark.slow
def test_an_interrupt(folder: Path) -> None:
    with started(folder, *DLPROF, *FILES, "train.py", "wait", **QUIET) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT
    document = json.loads((folder / "run.json").read_text())
    assert document["script"]["ending"] == "interrupted"
    assert document["loaders"][0]["headroom"] or document["loaders"][0]["unavailable"]["headroom"]


@pytest.mark.slow
def test_a_script_without_a_loader(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('no data')")
    done = ran([*DLPROF, *FILES, "train.py"], tmp_path)
    assert (done.returncode, done.stdout) == (0, "no data\n")
    assert "Headroom" not in done.stderr


def test_one_of_several_ranks(folder: Path) -> None:
    done = ran([*DLPROF, *FILES, "train.py"], folder, RANK="0", WORLD_SIZE="2")
    assert done.returncode == 2
    assert "--headroom measures a training of one process" in done.stderr


DEVICE = f"""
import sys, time
sys.path.insert(0, {str(HERE)!r})
import accelerated_target as stand_in
import torch
from torch.utils.data import DataLoader

synchronized = []
torch.accelerator.synchronize = lambda *_: synchronized.append(
    time.sleep(max(0.0, stand_in._streams[0].until_s - time.perf_counter()))
)
for batch in DataLoader(stand_in.Numbers(), batch_size=16, num_workers=1):
    batch.to("meta")  # 4 ms of the device, which nothing waits for
    time.sleep(1e-3)
print(len(synchronized))
"""


@pytest.mark.slow
def test_a_step_that_a_device_goes_on_with(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DEVICE)
    done = ran([*DLPROF, *FILES, "train.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    (loader,) = json.loads((tmp_path / "run.json").read_text())["loaders"]
    found = loader["headroom"]
    assert found is not None, loader["unavailable"]
    assert int(done.stdout) >= 4 * found["rounds"]  # both ends of both stretches
    assert found["step_s"] >= 0.0035  # the device's, where the host's took 1 ms
    assert found["slowed_fraction"]["value"] >= -1e-9 or found["speedup"]["value"] < 1.02
