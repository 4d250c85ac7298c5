"""A script under ``dlprof run`` does what it does under ``python``: output, code, way of ending."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dlprof.store import read_run

FACTS = """
import json, sys
print(json.dumps({
    "file": __file__, "argv": sys.argv, "path": sys.path[0], "name": __name__,
    "package": __package__, "spec": __spec__ and __spec__.name, "globals": sorted(globals()),
    "main": sys.modules["__main__"].__dict__ is globals(), "torch": "torch" in sys.modules,
    "errors": [sys.stdout.errors, sys.stderr.errors], "stdin": sys.stdin.read(),
}))
"""
SCRIPTS = {
    "last line": "print('done')",
    "exit": "import sys; sys.exit()",
    "exit 3": "import sys; print('x'); sys.exit(3)",
    "exit text": "import sys; sys.exit('bad luck')",
    "exit -1": "import sys; sys.exit(-1)",
    "exit object": "import sys; sys.exit([1])",
    "exception": "def f():\n  try: 1/0\n  except Exception as e: raise ValueError('x') from e\nf()",
    "group": "raise ExceptionGroup('g', [ValueError(1), KeyError(2)])",
    "hook": "import sys; sys.excepthook = lambda *a: print('hook', a[0]); 1/0",
    "hook that ends": "import sys; sys.excepthook = lambda *_: sys.exit(7); 1/0",
    "hook that fails": "import sys\ndef f(*_): raise ValueError('hook')\nsys.excepthook = f\n1/0",
    "last words": "import atexit, sys\natexit.register(lambda: print(repr(sys.last_value),"
    " sys.last_type, sys.last_traceback.tb_lineno, hasattr(sys, 'last_exc')))\n1/0",
    "loop": "from torch.utils.data import DataLoader\n"
    "for batch in DataLoader(range(8), num_workers=1): 1/0",
    "interrupt": "class Held:\n  def __del__(self): print('let go')\nheld = Held()\n"
    "raise KeyboardInterrupt",
    "os._exit": "import os; print('x', flush=True); os._exit(5)",
    "SIGTERM": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "SIGKILL": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "fork": "import os\nif not os.fork():\n  print('child', flush=True); raise SystemExit(4)\n"
    "print(os.waitstatus_to_exitcode(os.wait()[1]))",
    "thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(.2), print('late'))).start(); print('main')",
    "atexit": "import atexit; atexit.register(print, 'bye')",
    "closed stdout": "import sys; sys.stdout.close()",
    "surrogate": "print('\\udc80')",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)",
    "source": "import inspect\ndef f(): return 1\nprint(inspect.getsource(f))",
    "spawn": "import multiprocessing as mp\nclass A: x = 1\ndef work(a): print(a.x, flush=True)\n"
    "if __name__ == '__main__':\n"
    "  p = mp.get_context('spawn').Process(target=work, args=(A(),)); p.start(); p.join()",
}
TELLING = ("exception", "SIGKILL", "spawn")
"""Run with every change; the others by turns."""

DLPROF = [sys.executable, "-m", "dlprof", "run"]


def ran(words: list[str], folder: Path, **environ: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        words,
        input=b"from stdin\n",
        capture_output=True,
        cwd=folder,
        env={**os.environ, **environ},
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in TELLING else pytest.mark.slow)
        for name in sorted(SCRIPTS)
    ],
)
def test_output_and_exit_code_are_pythons(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPTS[name])
    plain = ran([sys.executable, "train.py"], tmp_path)
    watched = ran([*DLPROF, "-q", "train.py"], tmp_path)
    assert watched.returncode == plain.returncode
    assert watched.stdout == plain.stdout
    assert watched.stderr == plain.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["train.py", "a", "--force", "-o", "x", "--", "-m", "y"],
        pytest.param(["./train.py"], marks=pytest.mark.slow),
        pytest.param(["link.py", "-h"], marks=pytest.mark.slow),
        ["-m", "package.part", "--lr", "3", "-q"],
        pytest.param(["-m", "package"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_a_script_finds_what_python_gives_it(words: list[str], tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    for path in (tmp_path / "train.py", package / "part.py", package / "__main__.py"):
        path.write_text(FACTS)
    (package / "__init__.py").write_text("import sys; print(sys.argv)")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "real.py").write_text(FACTS)
    (tmp_path / "link.py").symlink_to(Path("elsewhere") / "real.py")
    plain = ran([sys.executable, *words], tmp_path)
    watched = ran([*DLPROF, "-q", *words], tmp_path)
    assert plain.returncode == 0
    assert watched.stdout == plain.stdout


def test_a_script_without_loaders_is_reported_as_such(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hi'); import os; os.chdir('/')")
    done = ran([*DLPROF, "-o", "run.dlprof.jsonl", "train.py"], tmp_path)
    assert done.stdout == b"hi\n"
    assert b"did not import torch.utils.data" in done.stderr
    assert b"dlprof report run.dlprof.jsonl -v" in done.stderr  # as the user's shell finds it
    run = read_run(tmp_path / "run.dlprof.jsonl")
    assert run.watched == ()
    assert run.script is not None
    assert (run.script.ending, run.script.exit_code) == ("returned", 0)
    assert run.header.target.spec == "run:train.py"


def test_each_rank_writes_its_file_and_the_first_shows_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    shown = {}
    for rank in ("0", "1"):
        command = [*DLPROF, "-o", "run.dlprof.jsonl", "--json", "run.json", "train.py"]
        done = ran(command, tmp_path, RANK=rank, WORLD_SIZE="2", LOCAL_RANK=rank)
        assert done.returncode == 0
        shown[rank] = done.stderr
    assert b"rank 0 of 2" in shown["0"]
    assert shown["1"] == b""
    for rank in ("0", "1"):
        run = read_run(tmp_path / f"run.rank{rank}.dlprof.jsonl")
        assert run.script is not None
        assert (run.script.rank, run.script.world_size) == (int(rank), 2)
        assert (tmp_path / f"run.rank{rank}.json").exists()


@pytest.mark.slow
def test_ranks_that_torchrun_starts_have_files_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    job = {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}
    for rank in ("0", "1"):
        assert ran([*DLPROF, "train.py"], tmp_path, RANK=rank, **job).returncode == 0
    stems = {path.name.partition(".rank")[0] for path in tmp_path.glob("*.jsonl")}
    assert len(stems) == 1
    assert len(list(tmp_path.glob("*.jsonl"))) == 2


@pytest.mark.slow
def test_each_machines_first_rank_merges_the_files_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch.utils.data.dataloader")
    command = [*DLPROF, "-o", "run.dlprof.jsonl", "train.py"]
    found = {}
    for rank in (1, 3, 2):  # those that are waited for have ended before
        job = {"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
        assert ran(command, tmp_path, **job).returncode == 0
        script = read_run(tmp_path / f"run.rank{rank}.dlprof.jsonl").script
        assert script is not None
        found[rank] = [each.rank for each in script.ranks]
        assert script.usage is not None
    assert found == {1: [1], 3: [3], 2: [2, 3]}


def test_a_default_file_that_cannot_be_written_is_no_reason_not_to_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('ran')")
    done = ran([*DLPROF, str(script)], Path("/proc/self"))
    assert done.stdout == b"ran\n"
    assert b"No run file is written" in done.stderr


def test_nor_is_a_disk_too_full_to_say_so(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('ran'); raise SystemExit(3)")
    words = ["sh", "-c", '"$@" 2>/dev/full', "sh", *DLPROF, str(script)]
    done = ran(words, Path("/proc/self"))
    assert (done.returncode, done.stdout) == (3, b"ran\n")


def test_a_script_that_only_prints_its_help_leaves_no_run_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import argparse, torch.utils.data\nargparse.ArgumentParser().parse_args()"
    )
    done = ran([*DLPROF, "train.py", "--help"], tmp_path)
    assert done.returncode == 0
    assert b"No DataLoader of torch's was iterated" in done.stderr
    assert b"dlprof report" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    asked = ran([*DLPROF, "-o", "it.dlprof.jsonl", "train.py", "--help"], tmp_path)
    assert asked.returncode == 0
    assert not read_run(tmp_path / "it.dlprof.jsonl").watched


def test_a_script_without_a_dataloader_is_told_how_its_loader_is_watched(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch.utils.data\nfor batch in range(3): pass")
    done = ran([*DLPROF, "train.py"], tmp_path)
    assert done.returncode == 0
    assert b"for batch in dlprof.watch(loader)" in done.stderr


def test_a_loader_that_comes_late_is_watched_as_one_that_comes_first(tmp_path: Path) -> None:
    """Torch isn't imported before, and the share that waits is that of the loop alone."""
    (tmp_path / "train.py").write_text(
        "import os, time\ntime.sleep(1)\nos.chdir('/')\n"
        "def train():\n"
        "    from torch.utils.data import DataLoader\n"
        "    for batch in DataLoader(range(256), batch_size=4, num_workers=1): pass\n"
        "train()\n"
    )
    assert ran([*DLPROF, "-q", "-o", "run.dlprof.jsonl", "train.py"], tmp_path).returncode == 0
    run = read_run(tmp_path / "run.dlprof.jsonl")
    assert run.script is not None
    (loader,) = run.watched
    assert (loader.place, loader.batches, loader.epochs_completed) == ("train.py:6", 64, 1)
    assert loader.first_s is not None
    assert loader.wait_fraction is not None
    assert run.script.wait_fraction is not None
    assert loader.first_s > 1
    assert loader.waited_s + (loader.stepped_s or 0.0) < run.script.wall_s - 1
    assert loader.wait_fraction > run.script.wait_fraction


def test_ctrl_c_ends_the_installed_program_as_python_ends(tmp_path: Path) -> None:
    """What pip installs is a file, of whose end Python takes note in another way."""
    (tmp_path / "train.py").write_text(SCRIPTS["interrupt"])
    (tmp_path / "tool").write_text("import sys\nfrom dlprof.cli import main\nsys.exit(main())\n")
    plain = ran([sys.executable, "train.py"], tmp_path)
    watched = ran([sys.executable, "tool", "run", "-q", "train.py"], tmp_path)
    assert plain.returncode == -signal.SIGINT
    assert (watched.returncode, watched.stdout) == (plain.returncode, plain.stdout)
    assert watched.stderr == plain.stderr


def test_ctrl_c_reaches_the_script_and_the_report_follows(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import signal, sys, time\n"
        # A shell that puts the tests in the background has it ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try: print('ready', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt: print('saved', flush=True); raise"
    )
    command = [*DLPROF, "-o", "run.dlprof.jsonl", "train.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert out == b"saved\n"
    assert re.search(rb"KeyboardInterrupt\n[\s\S]*interrupted", err)
    assert b"dlprof/integrations" not in err
    run = read_run(tmp_path / "run.dlprof.jsonl")
    assert run.script is not None
    assert run.script.ending == "interrupted"
    assert run.end is not None
    assert run.end.reason == "interrupted"


@pytest.mark.slow
def test_a_package_that_fails_on_import_fails_as_in_python(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import no_such_module_here\n")
    (tmp_path / "package" / "part.py").touch()
    done = ran([*DLPROF, "-q", "-m", "package.part"], tmp_path)
    assert done.returncode == 1
    assert b"No module named 'no_such_module_here'" in done.stderr
    assert b"Traceback" in done.stderr
    assert b"integrations" not in done.stderr


@pytest.mark.slow
def test_two_runs_of_one_second_have_two_files(tmp_path: Path) -> None:
    script = "from torch.utils.data import DataLoader\nlist(DataLoader([1, 2]))\n"
    (tmp_path / "train.py").write_text(script)
    for _ in range(2):
        assert ran([*DLPROF, "-q", "train.py"], tmp_path).returncode == 0
    assert len(list(tmp_path.glob("train-*.dlprof.jsonl"))) == 2


@pytest.mark.slow
def test_iterators_that_outlive_the_script_end_without_a_word(tmp_path: Path) -> None:
    script = tmp_path / "half.py"
    script.write_text(
        "from torch.utils.data import DataLoader\n"
        "begun = [iter(DataLoader(range(8), num_workers=workers)) for workers in (0, 1)]\n"
        "print([next(each) for each in begun])\n"
    )
    result = ran([*DLPROF, "--quiet", "half.py"], tmp_path)
    assert result.returncode == 0
    assert b"Exception ignored" not in result.stderr


@pytest.mark.slow
def test_torchrun_starts_it_once_for_each_rank(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys\n"
        "assert sys.argv == ['train.py', '--lr', '3']\n"
        # One write: unbuffered, print makes one of each argument, and ranks come in between.
        "print(f\"rank {os.environ['RANK']} {os.environ['OMP_NUM_THREADS']}\\n\", end='')\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = ["-m", "dlprof", "run", "-o", "run.dlprof.jsonl", "train.py", "--lr", "3"]
    done = ran([*torchrun, *words], tmp_path)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [b"rank 0 1", b"rank 1 1"]
    assert done.stderr.count(b"  Script  ") == 1
    for rank in (0, 1):
        run = read_run(tmp_path / f"run.rank{rank}.dlprof.jsonl")
        assert run.script is not None
        assert (run.script.rank, run.script.world_size, run.script.ending) == (rank, 2, "returned")
