"""The Python API over saved runs: the same questions, names and answers as on the command line."""

from __future__ import annotations

import importlib
import inspect
import json
import pickle
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from builders import machine
from compare_runs import Costs, made_run
from predicted_runs import calibrated

import dlprof
from dlprof import api
from dlprof.cli.entry import run as command
from dlprof.engine.transfer import TransferSettings
from dlprof.errors import DlprofError, FileError, UsageError
from dlprof.records import Run
from dlprof.records.codec import to_json
from dlprof.records.transfer import Transfers
from dlprof.settings import OPTIONS
from dlprof.store import RunWriter

FUNCTIONS = ("check", "compare", "machine", "predict", "profile", "recommend", "report", "sweep")
PROFILE = "2080ti-box"
Print = Callable[..., dict[str, Any]]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Print:
    """What a command prints with ``--json``."""

    def run(*words: object) -> dict[str, Any]:
        assert command([*map(str, words), "--json"], {}) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return run


@pytest.fixture
def swept(tmp_path: Path) -> Path:
    return _saved(tmp_path / "run.dlprof.jsonl", made_run(Costs()))


@pytest.fixture
def slower(tmp_path: Path) -> Path:
    return _saved(tmp_path / "slower.dlprof.jsonl", made_run(Costs(affinity=4)))


@pytest.fixture
def known(tmp_path: Path) -> Path:
    """A run that holds a calibration."""
    return _saved(tmp_path / "known.dlprof.jsonl", calibrated())


def _saved(path: Path, made: Run) -> Path:
    with RunWriter.create(path, made.header) as writer:
        for record in (*made.trials, made.calibration):
            if record is not None:
                writer.append(record)
    return path


def _as_json(record: object) -> Any:
    """A record as a document has it."""
    return json.loads(json.dumps(to_json(record)))


def test_predictions_are_those_of_the_command(known: Path, printed: Print) -> None:
    found = dlprof.predict(
        known,
        num_workers=[2, 4],
        cores=6.5,
        assume_background=1,
        speed=0.8,
        ranks=2,
        step_time=0.01,
        storage_limit=2e9,
    )
    words = ("--num-workers", "2,4", "--cores", "6.5", "--assume-background", "1", "--speed", "0.8")
    document = printed(
        "predict", known, *words, "--ranks", "2", "--step-time", "10ms", "--storage-limit", "2GB/s"
    )
    assert found.rows
    assert _as_json(found) == {key: document[key] for key in _as_json(found)}


def test_feeding_is_that_of_the_command(known: Path, printed: Print) -> None:
    found = dlprof.predict(
        dlprof.load_run(known), feed=True, max_wait="5%", step_time="20ms", machine=PROFILE
    )
    document = printed(
        *("predict", known, "--feed", "--max-wait", "0.05", "--step-time", "0.02"),
        *("--machine", PROFILE),
    )
    assert found.workers.value > 0
    assert _as_json(found) == {key: document[key] for key in _as_json(found)}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"max_wait": 0.1}, "max_wait belongs to feed. Give feed=True too, or leave it out."),
        ({"feed": True, "num_workers": 4, "step_time": 0.02}, "feed finds num_workers by itself"),
        ({"feed": True, "in_order": "both", "step_time": 0.02}, "feed takes one value of each"),
        ({"cores": 0}, "0 is not a number from 0.01 to 100000. cores takes a number from"),
        ({"cores": True}, "True is not a number"),
        ({"storage_limit": "2 apples"}, "is not a size"),
        ({"machine": "2080-box"}, "Did you mean 2080ti-box?"),
    ],
)
def test_questions_that_have_no_answer_are_refused(
    known: Path, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(DlprofError) as caught:
        dlprof.predict(known, **asked)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"ranks": 4, "step_time": "none"}, ["--ranks", "4", "--step-time", "none"]),
        ({"cores": "4", "max_workers": 2}, ["--cores", "4", "--max-workers", "2"]),
        ({"machine": PROFILE, "speed": 2}, ["--machine", PROFILE, "--speed", "2"]),
        ({"assume_background": 3}, ["--assume-background", "3"]),
    ],
)
def test_recommendations_are_those_of_the_command(
    known: Path, printed: Print, asked: dict[str, Any], words: list[str]
) -> None:
    found = dlprof.recommend(known, **asked)
    document = printed("recommend", known, *words)
    assert _as_json(found) == {key: document[key] for key in _as_json(found)}


def test_comparisons_are_those_of_the_command(swept: Path, slower: Path, printed: Print) -> None:
    found = dlprof.compare(swept, dlprof.load_run(slower), num_workers=8)
    assert found.ratio.value < 1
    document = printed("compare", swept, slower, "--num-workers", "8")
    assert _as_json(found) == {key: document[key] for key in _as_json(found)}


def test_what_is_no_run_is_refused_in_words(swept: Path) -> None:
    wrong: Any = 3
    asked: list[Callable[[], object]] = [
        lambda: dlprof.load_run(wrong),
        lambda: dlprof.compare(swept, wrong),
        lambda: dlprof.recommend(wrong),
        lambda: dlprof.predict(wrong),
    ]
    for each in asked:
        with pytest.raises(UsageError, match="3 is neither a run nor the path of its file"):
            each()


def test_a_machine_is_described_or_watched(tmp_path: Path, printed: Print) -> None:
    described = dlprof.machine(machine=PROFILE)
    assert _as_json(described) == printed("machine", "--machine", PROFILE)["profile"]
    file = tmp_path / "here.toml"
    watched = dlprof.machine(seconds=0.05, save=file)
    assert watched.neighbours.watched_s > 0
    assert dlprof.machine(machine=file).logical_cpus == max(1, int(watched.machine.usable_cores))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"machine": PROFILE, "seconds": 1.0}, "seconds and machine don't go together. A profile"),
        ({"machine": PROFILE, "save": "x.toml"}, "save and machine don't go together"),
        ({"seconds": 0}, "is not a time to watch for"),
    ],
)
def test_a_machine_that_can_not_be_watched_is_said(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        dlprof.machine(**asked)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["report.html", "report.md", "trials.csv", "run.json"])
def test_a_report_is_that_of_the_command(
    swept: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    there, file = tmp_path / f"command-{name}", tmp_path / name
    assert command(["report", str(swept), "-o", str(there), "-q"], {}) == 0
    assert dlprof.report(dlprof.load_run(swept), file) == file
    assert file.read_bytes() == there.read_bytes()
    assert capsys.readouterr().out == ""


def test_a_report_is_a_text_where_no_file_is_named(swept: Path) -> None:
    assert dlprof.report(swept, format="markdown").startswith("# dlprof: ")
    assert "data.py:make" in dlprof.report(swept)


@pytest.mark.parametrize(
    ("output", "asked", "message"),
    [
        ("run.dlprof.jsonl", {"format": "json", "force": True}, "output names the run file itself"),
        ("there.md", {}, "already exists. Give another path, or force=True."),
        ("report.xyz", {}, "names no format. Give format, or one of"),
        (None, {"format": "pdf"}, "format: 'pdf' is no format. Give one of text, html,"),
        (None, {"format": "parquet"}, "Parquet goes into a file: it is not text. Give output,"),
    ],
)
def test_what_can_not_be_written_is_refused(
    swept: Path, tmp_path: Path, output: str | None, asked: dict[str, Any], message: str
) -> None:
    (tmp_path / "there.md").write_text("mine", encoding="utf-8")
    before = swept.read_bytes()
    path: Any = None if output is None else tmp_path / output
    with pytest.raises(UsageError) as caught:
        dlprof.report(swept, path, **asked)
    assert message in str(caught.value)
    assert swept.read_bytes() == before
    assert (tmp_path / "there.md").read_text(encoding="utf-8") == "mine"
    assert dlprof.report(swept, tmp_path / "there.md", force=True).read_text() != "mine"


def test_copies_are_asked_for_as_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TransferSettings] = []

    def run_transfer(options: TransferSettings, listener: object) -> Transfers:
        asked.append(options)
        return Transfers(machine=machine(), torch_version="", devices=(), accelerator=None)

    monkeypatch.setattr("dlprof.engine.transfer.run_transfer", run_transfer)
    dlprof.transfer("data.py:make", arg={"size": 2}, batch_size=8, budget="2s", progress=False)
    words = ["--target", "data.py:make", "--arg", "size=2", "--batch-size", "8", "--budget", "2s"]
    command(["transfer", *words, "-q"], {})
    dlprof.transfer(progress=False)
    one, two, plain = asked
    assert one == two
    assert (one.target, dict(one.arguments), one.batch_size, one.budget_s) == (
        *("data.py:make", {"size": "2"}, 8, 2.0),
    )
    assert plain == TransferSettings()


@pytest.mark.parametrize(
    ("target", "asked", "message"),
    [
        (None, {"batch_size": 8}, "batch_size belongs to target. Give target too"),
        (None, {"all_devices": True, "device": "cpu"}, "device and all_devices don't go together"),
        ("data.py:make", {"batch_size": [1, 2]}, "batch_size takes one value here"),
        ([1, 2], {}, "A live object can't be copied from here"),
    ],
)
def test_copies_that_make_no_sense_are_refused(
    target: Any, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        dlprof.transfer(target, **asked)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", [*FUNCTIONS, "transfer"])
def test_an_option_that_is_none_is_refused_with_the_nearest(name: str) -> None:
    function = getattr(dlprof, name)
    options = [each for each in _options(function) if len(each) > 3]
    for option in options:
        wrong = option[:-1] + option[-1] * 2
        with pytest.raises(UsageError) as caught:
            function(**{wrong: 1})
        assert caught.value.message == f"dlprof.{name} has no option {wrong!r}"
        assert caught.value.hint == f"Did you mean {option}?"
    with pytest.raises(UsageError, match=f"Known: .*{options[-1]}"):
        function(xyzzy=1)


def _options(function: Any) -> list[str]:
    """The names of what a function takes, those of its typed options included."""
    found = [each.name for each in inspect.signature(function).parameters.values()]
    for name in ("SweepOptions", "RecommendOptions", "PredictOptions", "TransferSettings"):
        rest = inspect.signature(function).parameters.get("options")
        if rest is not None and name in str(rest.annotation):
            found += typing.get_type_hints(getattr(api, name))
    return [name for name in found if name != "options"]


@pytest.mark.parametrize("measure", [dlprof.sweep, dlprof.profile])
def test_a_later_rank_gets_the_run_of_the_first(
    measure: Callable[..., Run], swept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def measured(*_: object, **__: object) -> Iterator[None]:
        swept.touch()
        yield

    monkeypatch.setattr("dlprof.engine.ranks.gather_ranks", measured)
    found = measure("images", output=swept)
    assert found == api.load_run(swept.absolute())
    with pytest.raises(FileError, match="Rank 0 has left no new run file") as refused:
        measure("images", output=swept.with_name("elsewhere.dlprof.jsonl"))
    assert "a storage that they share" in refused.value.hint
    # The first rank failed, and what it would have replaced is an earlier run.
    monkeypatch.setattr("dlprof.engine.ranks.gather_ranks", lambda *_, **__: nullcontext())
    with pytest.raises(FileError, match="Rank 0 has left no new run file"):
        measure("images", output=swept)


def test_calls_of_one_job_have_a_file_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    settings = api._resolved("images", {})[0]
    first = api._run_file(None, settings)
    assert api._run_file(None, settings) == first  # another rank's
    first.touch()
    assert api._run_file(None, settings) != first


def test_a_sweep_takes_all_options_of_the_table() -> None:
    assert [*inspect.get_annotations(dlprof.SweepOptions)] == [
        option.key for option in OPTIONS if option.key != "target"
    ]


def test_rooms_that_share_a_name_with_a_function_are_both() -> None:
    for name in ("machine", "report", "transfer"):
        room = importlib.import_module(f"dlprof.{name}")
        assert getattr(dlprof, name) is room
        assert inspect.signature(room) == inspect.signature(getattr(api, name))


@pytest.mark.parametrize(
    "first",
    [
        "dlprof.machine.neighbours",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("dlprof.report.labels", "dlprof")
        ),
    ],
)
def test_functions_are_found_whatever_was_imported_before(first: str) -> None:
    program = (
        f"import {first}, dlprof, sys; from dlprof import machine, report, transfer; "
        "print(all(map(callable, (machine, report, transfer, dlprof.machine))), "
        "'torch' in sys.modules); print(machine(seconds=0.01).machine.usable_cores > 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["True", "False", "True"]


def test_an_error_says_what_to_do() -> None:
    error = UsageError("It is blue", hint="Paint it.")
    assert str(error) == "It is blue. Paint it."
    assert str(UsageError("It is blue!", hint="Paint it.")) == "It is blue! Paint it."
    assert str(UsageError("It is blue")) == "It is blue"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.message, again.hint) == (str(error), "It is blue", "Paint it.")
