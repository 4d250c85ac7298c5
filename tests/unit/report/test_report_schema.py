"""The JSON Schemas of the package: as the records have it, and true of what commands print."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from check_fakes import Opened
from compare_runs import Costs, made_run
from example_runs import example_run, hostile_run
from gate_samples import baseline_check, entries, failing_check, hostile_check
from predicted_runs import calibrated
from profiled_runs import hostile_profile, profiled_run
from sample_run import GOLDEN, OLDER_GOLDEN, write
from schemas import FOLDER, conforms, faults, run_file_conforms, schema

from dlprof.cli.entry import run as dlprof
from dlprof.engine.checking.history import record_entry
from dlprof.errors import NothingMeasuredError
from dlprof.records import Run
from dlprof.report.check import check_document
from dlprof.report.documents import (
    brief_document,
    json_document,
    profile_document,
    sweep_document,
)
from dlprof.store import RunWriter

ROOT = Path(__file__).parents[3]
NAMES = sorted(each.name.removesuffix(".json") for each in FOLDER.iterdir())
EXAMPLES = sorted((ROOT / "examples").glob("*.dlprof.jsonl"))


def _saved(path: Path, made: Run) -> str:
    with RunWriter.create(path, made.header) as writer:
        for record in (*made.trials, made.calibration):
            if record is not None:
                writer.append(record)
    return str(path)


def test_the_schemas_are_as_the_code_has_them() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "schema.py", "--check"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_that_prints_json_has_a_schema() -> None:
    listed = (ROOT / "tests" / "data" / "report" / "options.txt").read_text(encoding="utf-8")
    commands = re.findall(r"^dlprof (.+) --json", listed, flags=re.MULTILINE)
    assert {"sweep", "attach", "top", "baseline update"} <= set(commands)
    assert {each.replace(" ", "-") for each in commands} <= set(NAMES)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in {"sweep", "check"} else pytest.mark.slow)
        for name in NAMES
    ],
)
def test_a_schema_is_one_itself(name: str) -> None:
    found = schema(name)
    jsonschema.Draft202012Validator.check_schema(found)
    assert found["description"]
    fields = [each["properties"].items() for each in found.get("$defs", {}).values()]
    assert not [name for each in fields for name, field in each if not field["description"]]


@pytest.mark.parametrize("path", [GOLDEN, OLDER_GOLDEN, *EXAMPLES], ids=lambda path: path.name)
def test_run_files_conform(path: Path) -> None:
    run_file_conforms(path, ours=path == GOLDEN)


@pytest.mark.parametrize("made", [example_run(), hostile_run(), profiled_run(), hostile_profile()])
def test_what_is_printed_of_a_run_conforms(made: Run, tmp_path: Path) -> None:
    conforms("sweep", json.loads(sweep_document(made)))
    conforms("profile", json.loads(profile_document(made)))
    conforms("brief", json.loads(brief_document(sweep_document(made))))
    conforms("brief", json.loads(brief_document(profile_document(made))))
    if made.recommendation is not None:
        conforms("recommend", json.loads(json_document(made.recommendation, run_file=made.path)))
    run_file_conforms(write(tmp_path / "run.dlprof.jsonl", made))


def test_a_profile_that_failed_conforms() -> None:
    fault = NothingMeasuredError("Nothing was measured", failures=[("timeout", "It hangs.")] * 2)
    document = json.loads(profile_document(profiled_run(), fault))
    assert document["error"]["failures"]
    conforms("profile", document)


@pytest.mark.parametrize("check", [failing_check(), hostile_check(), baseline_check(slower=0.2)])
def test_a_check_conforms(check: Any) -> None:
    conforms("check", json.loads(check_document(check)))
    conforms("brief", json.loads(brief_document(check_document(check))))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("recommend", ["recommend", "RUN"]),
        ("recommend", ["recommend", "CALIBRATED", "--ranks", "4", "--step-time", "10ms"]),
        ("report", ["report", "RUN"]),
        ("predict", ["predict", "CALIBRATED", "--cores", "4"]),
        ("predict-feed", ["predict", "CALIBRATED", "--feed", "--step-time", "20ms"]),
        ("compare", ["compare", "RUN", "SLOWER"]),
        ("machine", ["machine", "--seconds", "0.05"]),
        ("machine-profile", ["machine", "--machine", "2080ti-box"]),
        ("machine-list", ["machine", "--list"]),
        ("doctor", ["doctor"]),
        ("top", ["top", "--seconds", "0.5"]),
        ("explain", ["explain", "fetch.io"]),
        ("explain-list", ["explain"]),
        ("brief", ["recommend", "RUN", "--brief"]),
        ("brief", ["check", "data.py:make", "--baseline", "HISTORY", "--brief", "-q"]),
        ("check", ["check", "data.py:make", "--baseline", "HISTORY", "-q"]),
        ("check-self-test", ["check", "data.py:make", "--self-test", "-q"]),
        ("baseline-update", ["baseline", "update", "HISTORY", "data.py:make", "-q"]),
        ("baseline-show", ["baseline", "show", "KEPT"]),
        ("error", ["recommend", "nowhere.dlprof.jsonl"]),
        ("error", ["predict", "RUN", "--cores", "many"]),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_a_command_prints_conforms(
    name: str,
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for side in ("checking.history", "check"):  # nothing is loaded
        monkeypatch.setattr(f"dlprof.engine.{side}.open_sides", Opened())
    kept = tmp_path / "kept.jsonl"
    for entry in entries([0.010, 0.011]):
        record_entry(kept, entry)
    files = {
        "RUN": _saved(tmp_path / "run.dlprof.jsonl", made_run(Costs())),
        "SLOWER": _saved(tmp_path / "slower.dlprof.jsonl", made_run(Costs(affinity=4))),
        "CALIBRATED": _saved(tmp_path / "calibrated.dlprof.jsonl", calibrated()),
        "HISTORY": str(tmp_path / "loading.jsonl"),
        "KEPT": str(kept),
    }
    dlprof([*(files.get(word, word) for word in words), "--json"], {})
    document = json.loads(capsys.readouterr().out)
    assert ("error" in document) == (name == "error")
    conforms(name, document)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema_version",), 2),
        (("machine", "usable_cores"), "16"),
        (("trials", 0, "outcome"), "finished"),
        (("trials", 0, "config", "num_workers"), None),
        (("trials", 0, "samples_per_s"), {"low": 1.0}),
        (("recommendation", "confidence"), None),
        (("left_out",), {}),
    ],
)
def test_what_is_not_as_the_schema_says_is_refused(path: tuple[Any, ...], value: object) -> None:
    document = json.loads(sweep_document(example_run()))
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    assert list(faults(schema("sweep"), document))


def test_a_key_that_no_schema_names_is_noticed() -> None:
    document = json.loads(sweep_document(example_run()))
    document["trials"][0]["more"] = 1
    assert not list(faults(schema("sweep"), document))  # a later version may add it
    with pytest.raises(AssertionError, match="more"):
        conforms("sweep", document)
