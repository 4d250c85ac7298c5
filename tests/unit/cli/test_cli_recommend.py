from __future__ import annotations

import ast
import json
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from builders import blocks, config, header, numbered

from dlprof.cli.entry import run
from dlprof.store import RunWriter


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A saved run in which four workers are best."""
    monkeypatch.chdir(tmp_path)
    rates = {
        config(0): (400.0, 410.0, 405.0),
        config(2): (790.0, 800.0, 780.0),
        config(4): (1500.0, 1520.0, 1490.0),
    }
    with RunWriter.create(tmp_path / "run.dlprof.jsonl", header()) as writer:
        for trial in numbered(blocks(rates)):
            writer.append(trial)
    return "run.dlprof.jsonl"


def test_the_answer_is_there_to_paste(run_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recommend", run_file], {}) == 0
    out, err = capsys.readouterr()
    assert "DataLoader(" in out
    assert "num_workers=4)" in out
    assert err == ""


def test_limits_are_kept(run_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recommend", run_file, "--max-workers", "2", "--json"], {}) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["config"]["num_workers"] <= 2
    assert document["constraints"]["max_workers"] == 2


def test_every_format_is_what_it_says(run_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recommend", run_file, "--format", "python"], {}) == 0
    ast.parse(capsys.readouterr().out)
    assert run(["recommend", run_file, "--format", "lightning"], {}) == 0
    ast.parse(capsys.readouterr().out)
    assert run(["recommend", run_file, "--format", "toml"], {}) == 0
    assert tomllib.loads(capsys.readouterr().out)["dataloader"]["num_workers"] == 4
    assert run(["recommend", run_file, "--format", "json"], {}) == 0
    assert json.loads(capsys.readouterr().out)["schema_version"] == 1


@pytest.mark.parametrize("given", ["torchrun", "sbatch", "kubernetes"])
def test_the_start_of_a_job_is_there_to_paste(
    run_file: str, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    asked = ["recommend", run_file, "--ranks", "2", "--nodes", "3", "--format", given]
    assert run(asked, {}) == 0
    out, err = capsys.readouterr()
    assert "--nnodes=3" in out
    assert "nproc-per-node=2" in out
    assert err == ""


@pytest.mark.parametrize("given", ["text", "python", "toml", "lightning"])
def test_json_and_another_format_exclude_each_other(
    run_file: str, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    assert run(["recommend", run_file, "--json", "--format", given], {}) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["message"] == f"--json and --format {given} exclude each other."


def test_json_may_be_asked_for_twice(run_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recommend", run_file, "--json", "--format", "json"], {}) == 0
    assert json.loads(capsys.readouterr().out)["schema_version"] == 1


@pytest.mark.parametrize("asked", [["--json"], ["--format", "json"], ["--format=json"]])
def test_a_fault_is_a_document_however_one_was_asked_for(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["recommend", "missing.dlprof.jsonl", *asked], {}) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["kind"] == "file"
    assert err == ""


def test_saving_says_how_to_use_it(
    run_file: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["recommend", run_file, "--save", "dlprof.toml"], {}) == 0
    out, err = capsys.readouterr()
    assert "kwargs_for('dlprof.toml')" in err
    assert "--save" not in out
    assert (tmp_path / "dlprof.toml").exists()


def test_saved_settings_carry_what_is_wrong_with_the_data(
    run_file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = "Workers yield the same samples."
    monkeypatch.setattr("dlprof.advise.wrong_data.said_first", lambda _: [said])
    assert run(["recommend", run_file, "--save", "dlprof.toml", "-q"], {}) == 0
    lines = (tmp_path / "dlprof.toml").read_text().splitlines()
    assert ".target." in lines[lines.index(f"# dlprof: {said}") - 1]


def test_next_steps_give_the_same_answer(run_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--ranks", "1", "--max-workers", "2", "--max-ram", "8 GiB"]
    assert run(["recommend", run_file, "-v", *limits], {}) == 0
    following = [
        shlex.split(line)
        for line in capsys.readouterr().out.replace("\\\n", "").splitlines()
        if line.strip().startswith("dlprof recommend")
    ]
    assert [words[-2] for words in following] == ["--format", "--save"]
    for words in following:
        assert run(words[1:], {}) == 0
        assert "num_workers=2" in capsys.readouterr().out


@pytest.mark.parametrize("elsewhere", ["--cores", "--speed", "--machine"])
def test_what_is_meant_for_another_machine_is_not_saved_as_this_one_s(
    run_file: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, elsewhere: str
) -> None:
    assert run(["recommend", run_file, "--save", "dlprof.toml", elsewhere, "3"], {}) == 2
    assert f"{elsewhere} is another" in capsys.readouterr().err
    assert not (tmp_path / "dlprof.toml").exists()


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--max-ram", "a lot"),
        ("--max-workers", "-1"),
        ("--ranks", "0"),
        ("--step-time", "soon"),
        ("--max-shm", "nan"),
    ],
)
def test_a_bad_limit_is_named(
    run_file: str, capsys: pytest.CaptureFixture[str], flag: str, text: str
) -> None:
    assert run(["recommend", run_file, flag, text], {}) == 2
    assert flag in capsys.readouterr().err


def test_it_loads_neither_torch_nor_pydantic(run_file: str) -> None:
    program = (
        "import sys; from dlprof.cli.entry import run; "
        f"code = run(['recommend', {run_file!r}], {{}}); "
        "heavy = {'torch', 'pydantic', 'psutil', 'pynvml', 'PIL', 'pygments'} & set(sys.modules); "
        "sys.exit(code or (str(heavy) if heavy else 0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_an_answer_does_not_wait_for_what_reads_the_metadata_of_packages(run_file: str) -> None:
    """With email and zipfile it is a tenth of the time that an answer takes."""
    command = (sys.executable, "-X", "importtime", "-m", "dlprof", "recommend", run_file)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "dlprof.report.findings" in done.stderr
    assert "importlib.metadata" not in done.stderr
