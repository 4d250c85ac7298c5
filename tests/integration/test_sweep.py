"""Whole sweeps through the command line, as a user runs them."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from programs import python, started
from schemas import conforms, run_file_conforms
from waiting import has_trials, until

from dlprof.records import Run
from dlprof.store import read_run

TARGETS = Path(__file__).parent / "faulty_targets.py"
SMALL = ("--num-workers", "0,1", "--prefetch-factor", "2", "--persistent-workers", "off")
SHORT = (*SMALL, "--trial-time", "0.1s", "--repeats", "2", "--budget", "60s")


def dlprof(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    cache = str(place.parent / "cache")
    return python(place, "-m", "dlprof", *arguments, timeout_s=120, DLPROF_CACHE_DIR=cache)


def wait_for_trials(run_file: Path, count: int) -> None:
    """Until so many trials are in the run file."""
    assert until(lambda: has_trials(run_file, count))


def all_gone(processes: list[psutil.Process]) -> bool:
    gone, alive = psutil.wait_procs(processes, timeout=10.0)
    del gone
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [
        "images:count=16,size=64",
        "shards:count=32,shards=2,size=64",
        "voc:count=16,size=64",
        "text:lines=2000",
        "synthetic:wait_ms=1",
        "synthetic:iterable=true",
    ],
)
def test_every_built_in_is_swept(tmp_path: Path, target: str) -> None:
    done = dlprof(tmp_path, "sweep", target, *SHORT, "--json", "-o", "run.dlprof.jsonl")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)

    conforms("sweep", document)
    run_file_conforms(tmp_path / "run.dlprof.jsonl")
    assert {trial["outcome"] for trial in document["trials"]} == {"completed"}
    assert len(document["trials"]) >= 3  # the slower one may be ruled out after its first
    assert all(trial["samples_per_s"]["value"] > 0 for trial in document["trials"])
    kwargs = document["recommendation"]["dataloader_kwargs"]
    assert kwargs["num_workers"] in {0, 1}
    cost = document["cost_s"]
    assert cost["total"] == pytest.approx(cost["measured"] + cost["overhead"])


@dataclasses.dataclass(frozen=True)
class Swept:
    """A sweep that Ctrl-C ended and another command resumed, in a folder of its own."""

    place: Path
    code: int
    screen: str
    errors: str
    interrupted: Run
    processes: list[psutil.Process]
    resumed: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    place = tmp_path_factory.mktemp("swept")
    run_file = place / "run.dlprof.jsonl"
    words = ("sweep", f"{TARGETS}:plain", *SHORT, "-o", run_file.name)
    process = started(place, "-m", "dlprof", *words)
    wait_for_trials(run_file, 1)
    processes = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    screen, errors = process.communicate(timeout=60)
    interrupted = read_run(run_file)
    resumed = dlprof(place, "sweep", f"{TARGETS}:plain", "--resume", "-o", run_file.name)
    return Swept(place, process.returncode, screen, errors, interrupted, processes, resumed)


def test_ctrl_c_keeps_what_was_measured_and_resume_goes_on(swept: Swept) -> None:
    interrupted, whole = swept.interrupted, read_run(swept.place / "run.dlprof.jsonl")

    assert swept.code == 130, swept.errors
    assert "--resume" in swept.screen
    assert (swept.screen + swept.errors).count("was interrupted") == 1
    assert "What it measured is kept: " in swept.errors
    assert interrupted.end is not None
    assert interrupted.end.reason == "interrupted"
    assert swept.resumed.returncode == 0, swept.resumed.stderr
    assert whole.trials[: len(interrupted.trials)] == interrupted.trials
    assert [trial.id for trial in whole.trials] == [
        f"t{number:04d}" for number in range(1, len(whole.trials) + 1)
    ]
    assert {("w0", 0), ("w1-p2", 0)} <= {
        (trial.config.key, trial.repetition) for trial in whole.trials
    }
    assert all_gone(swept.processes)


def test_a_saved_run_recommends_without_measuring(swept: Swept) -> None:
    text = dlprof(swept.place, "recommend", "run.dlprof.jsonl")
    saved = dlprof(swept.place, "recommend", "run.dlprof.jsonl", "--save", "dlprof.toml")
    used = python(swept.place, "-c", "import dlprof; print(dlprof.kwargs_for('dlprof.toml'))")

    assert "num_workers" in swept.resumed.stdout
    assert text.returncode == saved.returncode == 0, text.stderr + saved.stderr
    assert "num_workers" in text.stdout
    recommendation = read_run(swept.place / "run.dlprof.jsonl").recommendation
    assert recommendation is not None
    assert used.stdout.strip() == str(dict(recommendation.dataloader_kwargs))


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run.dlprof.jsonl").write_text("precious")
    done = dlprof(tmp_path, "sweep", f"{TARGETS}:plain", "-o", "run.dlprof.jsonl")

    assert done.returncode == 2
    assert "--force" in done.stderr
    assert (tmp_path / "run.dlprof.jsonl").read_text() == "precious"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["no_such_module_here:attr"], "no_such_module_here"),
        ([f"{TARGETS}:cannot_be_built"], "the disk is not mounted"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ([f"{TARGETS}:plain", "--batch-size", "5000"], "4096"),
                ([f"{TARGETS}:nothing_there"], "nothing_there"),
                ([f"{TARGETS}:plain", "--arg", "x=1"], "--arg"),
                ([f"{TARGETS}:plain", "--step", "no_such_module_here:step"], "no_such_module_here"),
            )
        ),
    ],
)
def test_a_wrong_target_is_one_sentence(tmp_path: Path, arguments: list[str], word: str) -> None:
    done = dlprof(tmp_path, "sweep", *arguments, *SHORT, "-o", "run.dlprof.jsonl")

    assert done.returncode == 2, done.stderr
    assert word in done.stderr
    assert "dlprof/" not in done.stderr
    assert not (tmp_path / "run.dlprof.jsonl").exists()


@pytest.mark.slow
def test_the_present_settings_are_measured_too(tmp_path: Path) -> None:
    arguments = ["--max-workers", "1", "--trial-time", "0.1s", "--repeats", "1", "--json"]
    done = dlprof(tmp_path, "sweep", f"{TARGETS}:as_loader", *arguments, "-o", "run.dlprof.jsonl")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    tried = [trial["config"] for trial in document["trials"]]

    assert document["target"]["own_config"]["prefetch_factor"] == 3
    assert any(config["prefetch_factor"] == 3 for config in tried)
    assert not any(config["in_order"] for config in tried if config["num_workers"])


@pytest.mark.slow
def test_failing_settings_cost_their_trials_only(tmp_path: Path) -> None:
    target = f"{TARGETS}:dies"
    arguments = ["--arg", "how=exit", *SHORT, "--json", "-o", "run.dlprof.jsonl"]
    done = dlprof(tmp_path, "sweep", target, *arguments)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    by_workers = {trial["config"]["num_workers"]: trial for trial in document["trials"]}

    assert by_workers[0]["outcome"] == "completed"
    assert by_workers[1]["outcome"] == "crashed"
    assert by_workers[1]["failure"]["kind"] == "worker_exit"
    assert document["recommendation"]["config"]["num_workers"] == 0
    assert any("failed" in reason["claim"] for reason in document["recommendation"]["reasons"])


@pytest.mark.slow
def test_a_killed_sweep_leaves_no_process_and_resumes(tmp_path: Path) -> None:
    run_file = tmp_path / "run.dlprof.jsonl"
    words = ("sweep", f"{TARGETS}:plain", *SHORT, "-o", run_file.name)
    process = started(tmp_path, "-m", "dlprof", *words)
    wait_for_trials(run_file, 1)
    processes = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=60)
    resumed = dlprof(tmp_path, "sweep", f"{TARGETS}:plain", "--resume", "-o", run_file.name)

    assert all_gone(processes)
    assert resumed.returncode == 0, resumed.stderr
    assert {trial.config.key for trial in read_run(run_file).completed} == {"w0", "w1-p2"}


@pytest.mark.slow
def test_a_run_is_not_continued_with_other_settings(swept: Swept) -> None:
    again = ["sweep", f"{TARGETS}:plain", "--resume", "-o", "run.dlprof.jsonl"]
    other = dlprof(swept.place, *again, "--num-workers", "7")
    unnamed = dlprof(swept.place, "sweep", "--resume", "-o", "run.dlprof.jsonl")

    assert (other.returncode, unnamed.returncode) == (2, 2)
    assert "num_workers" in other.stderr
    assert "TARGET" in unnamed.stderr  # a run file must not choose what code is run


@pytest.mark.slow
def test_the_python_api_takes_a_live_object(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(TARGETS.parent)!r})\n"
        "import dlprof, faulty_targets\n"
        "run = dlprof.sweep(faulty_targets.Plain(256), num_workers=(0, 1), prefetch_factor=2,\n"
        "    persistent_workers=False, trial_time=0.1, repeats=2, budget=60, progress=False,\n"
        "    output='run.dlprof.jsonl')\n"
        "workers = run.recommendation.dataloader_kwargs['num_workers']\n"
        "print(len(run.completed) >= 3, workers in (0, 1))\n"
        "print(dlprof.recommend('run.dlprof.jsonl', max_workers=0).config.num_workers)\n"
    )
    done = python(tmp_path, script.name, timeout_s=120, PYTHONPATH=str(TARGETS.parent))

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True True", "0"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere shared memory has no folder")
def test_shared_memory_that_a_dataset_keeps_is_removed_at_the_end(tmp_path: Path) -> None:
    name = f"dlprof-test-{os.getpid()}"
    (tmp_path / "kept.py").write_text(
        f"""
import atexit
from multiprocessing.shared_memory import SharedMemory

import torch


class Kept(torch.utils.data.Dataset):
    def __init__(self):
        self.held = SharedMemory(create=True, size=64, name={name!r})
        atexit.register(self.held.unlink)

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return torch.zeros(4)
"""
    )
    words = ("--num-workers", "0,1", "--repeats", "1", "--trial-time", "100ms")
    done = dlprof(tmp_path, "sweep", "kept.py:Kept", *words)
    assert done.returncode == 0, done.stderr
    assert not Path("/dev/shm", name).exists()


def test_a_dataset_that_needs_a_worker_is_swept_with_workers(tmp_path: Path) -> None:
    arguments = ["--num-workers", "0,1", "--prefetch-factor", "2", "--repeats", "1"]
    arguments += ["--trial-time", "0.1s", "--persistent-workers", "off", "--budget", "60s"]
    arguments += ["--json", "-o", "run.dlprof.jsonl"]
    done = dlprof(tmp_path, "sweep", f"{TARGETS}:needs_a_worker", *arguments)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    conforms("sweep", document)
    by_workers = {each["config"]["num_workers"]: each for each in document["trials"]}
    assert by_workers[0]["outcome"] == "skipped"
    assert "works with one: AttributeError" in by_workers[0]["failure"]["message"]
    assert document["recommendation"]["config"]["num_workers"] == 1
    run_file_conforms(tmp_path / "run.dlprof.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("drawn", [False, True])
def test_a_sample_that_always_raises_ends_a_sweep(tmp_path: Path, *, drawn: bool) -> None:
    arguments = ["--num-workers", "1,2,3", "--prefetch-factor", "2", "--persistent-workers", "off"]
    arguments += ["--trial-time", "1s", "--budget", "60s", "--json", "-o", "run.dlprof.jsonl"]
    arguments += ["--arg", "shuffle=True"] if drawn else []
    done = dlprof(tmp_path, "sweep", f"{TARGETS}:breaks_at_a_sample", *arguments)
    assert done.returncode == 2, done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "target"
    assert drawn or "after 4 batches" in error["message"]
    assert "sample 35 is broken" in error["message"]
    assert len(read_run(tmp_path / "run.dlprof.jsonl").trials) <= 2 + drawn


KEEPING = '''
import functools, pathlib, time

class Private:
    """Each process loads a sample once; 0.8 s an epoch without workers."""
    def __init__(self):
        self.kept = {}
    def __len__(self):
        return 160
    def __getitem__(self, index):
        if index not in self.kept:
            time.sleep(0.005)
            self.kept[index] = float(index)
        return self.kept[index]

class Shared(Private):
    """What one process has loaded, all find."""
    def __getitem__(self, index):
        place = pathlib.Path(f"{index}.kept")
        if not place.exists():
            time.sleep(0.005)
            place.touch()
        return float(index)

class Bounded(Private):
    @functools.lru_cache(16)
    def __getitem__(self, index):
        time.sleep(0.005)
        return float(index)
'''


@pytest.mark.slow
def test_trials_of_what_each_process_keeps_end_with_their_first_epoch(tmp_path: Path) -> None:
    (tmp_path / "kept.py").write_text(KEEPING)
    options = ["--num-workers", "0,2", "--prefetch-factor", "2", "--batch-size", "8"]
    options += ("--trial-time", "2s", "--repeats", "1", "--budget", "60s", "--json")
    done = dlprof(tmp_path, "sweep", "kept.py:Private", *options, "-o", "run.dlprof.jsonl")
    assert done.returncode == 0, done.stderr
    found = read_run(tmp_path / "run.dlprof.jsonl")
    assert found.header.target.keeps_samples
    assert {t.config.persistent_workers for t in found.trials if t.config.num_workers} == {True}
    for trial in found.completed:
        assert trial.samples_per_s is not None
        # As fast as it sleeps, but for the samples of which two workers find a few.
        assert trial.samples_per_s.value <= 1.1 * max(1, trial.config.num_workers) / 0.005
    reason = json.loads(done.stdout)["recommendation"]["confidence_reason"]
    assert "trials show the first of 10 epochs" in reason


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["Shared", "Bounded"])
def test_what_is_kept_for_all_makes_rates_uncertain_and_for_a_few_samples_is_no_matter(
    tmp_path: Path, dataset: str
) -> None:
    """Of a cache on disk 2 workers were at least ten times as fast as none, which came first."""
    (tmp_path / "kept.py").write_text(KEEPING)
    done = dlprof(
        tmp_path, "sweep", f"kept.py:{dataset}", *SHORT, "--batch-size", "8", "-o", "run.jsonl"
    )
    assert done.returncode == 0, done.stderr
    found = read_run(tmp_path / "run.jsonl")
    assert not found.header.target.keeps_samples
    assert found.header.target.stores_samples is (dataset == "Shared")
    assert ("once any process had it" in done.stdout) is (dataset == "Shared")
    if dataset == "Shared":
        rates = [trial.samples_per_s for trial in found.completed if not trial.whole_epochs]
        assert all(rate is not None and rate.is_wide for rate in rates)


ALONG = """
import time
from torch.utils.data import DataLoader

class Slower:
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(1e-5 * index)  # 20 ms on average, and less than 2 ms in the first 200
        return float(index)
"""


@pytest.mark.slow
def test_an_epoch_that_becomes_slower_is_not_judged_by_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "along.py").write_text(ALONG)
    options = ["--num-workers", "0", "--batch-size", "4", "--repeats", "1", "-o", "run.jsonl"]
    done = dlprof(tmp_path, "sweep", "along.py:Slower", *options)
    assert done.returncode == 0, done.stderr
    found = read_run(tmp_path / "run.jsonl")
    assert found.header.target.is_spread
    for trial in found.completed:
        assert trial.samples_per_s is not None
        assert trial.samples_per_s.value < 100  # the first 200 samples would give 500 and more
    assert "from all over an epoch, not in its order" in " ".join(done.stdout.split())


MIDDLE = """
import os, signal, time

class Grows:
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        if 1600 < index < 3200:
            self.middle()
        time.sleep(0.001 if index < 400 else 0.01)
        return float(index)

class Ends(Grows):
    def middle(self):
        os._exit(9)

class Hangs(Grows):
    def middle(self):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        time.sleep(3600)

class Seeks(Grows):
    at = -1
    def middle(self):
        pass
    def __getitem__(self, index):
        time.sleep(0.1 if not 0 <= index - self.at < 100 else 0)
        self.at = index
        return super().__getitem__(index)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Ends", "Hangs", "Seeks"])
def test_of_an_epoch_whose_middle_can_t_be_asked_the_beginning_is_measured(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "middle.py").write_text(MIDDLE)
    options = ["--num-workers", "0", "--batch-size", "4", "--budget", "40s", "-o", "run.jsonl"]
    done = dlprof(tmp_path, "sweep", f"middle.py:{name}", *options)
    assert done.returncode == 0, done.stderr
    found = read_run(tmp_path / "run.jsonl")
    assert not found.header.target.is_spread
    assert found.completed
    said = " ".join(done.stdout.split())
    assert ("but trials load its beginning" in said) == (name == "Seeks")
    assert ("isn't known" in said) == (name != "Seeks")  # whatever they would take


SORTED = """
import time
from torch.utils.data import DataLoader

class Texts:
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(1e-5 * (index * 7 % 4000))  # in no order
        return float(index)

class ByLength:
    def __len__(self):
        return 1000
    def __iter__(self):
        order = sorted(range(4000), key=lambda index: index * 7 % 4000)
        return (order[at : at + 4] for at in range(0, 4000, 4))

def make():
    return DataLoader(Texts(), batch_sampler=ByLength())
"""


@pytest.mark.slow
def test_a_batch_sampler_that_sorts_is_not_judged_by_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "texts.py").write_text(SORTED)
    options = ["--num-workers", "0", "--repeats", "1", "-o", "run.jsonl"]
    done = dlprof(tmp_path, "sweep", "texts.py:make", *options)
    assert done.returncode == 0, done.stderr
    for trial in read_run(tmp_path / "run.jsonl").completed:
        assert trial.samples_per_s is not None
        assert trial.samples_per_s.value < 100  # the first 200 samples would give 500 and more
    assert "from all over an epoch, not in its order" in " ".join(done.stdout.split())
