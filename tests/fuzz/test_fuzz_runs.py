"""Run files from anywhere: an answer or a sentence, and nothing of them acts."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzz_program import HOSTILE, cuts, flips, fuzz, program
from hypothesis import given
from hypothesis import strategies as st

GOLDEN = Path(__file__).parents[1] / "data" / "runs" / "golden.dlprof.jsonl"
CONTENT = GOLDEN.read_bytes()
RECORDS = [json.loads(line) for line in CONTENT.splitlines()]
FORMATS = ("text", "python", "toml", "json", "lightning")
_DEEP = "[" * 100_000
_SAFE_STATEMENTS = (ast.ImportFrom, ast.Import, ast.Assign, ast.ClassDef, ast.FunctionDef, ast.Expr)

Path_ = tuple[str | int, ...]


def paths(value: Any, so_far: Path_ = ()) -> Iterator[Path_]:
    """The way to every value inside."""
    yield so_far
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths(item, (*so_far, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from paths(item, (*so_far, number))


def at(value: Any, path: Path_) -> Any:
    for step in path:
        value = value[step]
    return value


def replaced(value: Any, path: Path_, new: Any) -> Any:
    """A copy with another value at the end of the path."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


def encoded(records: list[Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


ALL_PATHS = [path for path in paths(RECORDS) if len(path) > 1]
TEXT_PATHS = [path for path in ALL_PATHS if isinstance(at(RECORDS, path), str)]
STRANGE: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, False, "", "0", "nan", HOSTILE, [], {}, [[]], [None], {"": None}, {"a": {}}),
        *(0, -1, 1, 0.5, -0.0, 1e-320, 1e308, -1e308, 10**15, -(10**18), 10**30, 10**400),
        *(2**31, 2**63, 2**64, 1e16, float("nan"), float("inf"), -float("inf")),
    ]
) | st.text(max_size=8)


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run.dlprof.jsonl"


def recommend(run_file: Path, content: bytes, written_as: str = "text") -> str:
    run_file.write_bytes(content)
    ended = program(["recommend", run_file.name, "--format", written_as])
    if ended.code:
        return ""
    if written_as == "json":
        json.loads(ended.out)
    elif written_as == "toml":
        assert set(tomllib.loads(ended.out)) <= {"dataloader", "worker"}
    elif written_as != "text":
        _assert_only_a_loader(ended.out)
    return ended.out


def _assert_only_a_loader(source: str) -> None:
    """The snippet imports torch or Lightning, and calls nothing but what sets a loader up."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} == {"torch"}
        elif isinstance(node, ast.ImportFrom):
            assert node.module in {"torch.utils.data", "lightning.pytorch"}
        elif isinstance(node, ast.stmt):
            assert isinstance(node, (*_SAFE_STATEMENTS, ast.Return))
        elif isinstance(node, ast.Call):
            assert ast.unparse(node.func) in {
                *("DataLoader", "super", "super().__init__"),
                *("torch.set_num_threads", "torch.multiprocessing.set_sharing_strategy"),
            }


def test_a_file_cut_anywhere(run_file: Path) -> None:
    for content in cuts(CONTENT, 41):
        recommend(run_file, content, "json")


@pytest.mark.slow
def test_a_file_with_a_flipped_bit(run_file: Path) -> None:
    for number, content in enumerate(flips(CONTENT, 300)):
        recommend(run_file, content, FORMATS[number % len(FORMATS)])


@pytest.mark.slow
@fuzz(400)
@given(
    path=st.sampled_from(ALL_PATHS),
    value=STRANGE,
    written_as=st.sampled_from(FORMATS),
    data=st.data(),
)
def test_any_value_anywhere(
    run_file: Path, path: Path_, value: Any, written_as: str, data: st.DataObject
) -> None:
    records = replaced(RECORDS, path, value)
    if data.draw(st.booleans()):  # a second one, which may undo what refuses the first
        other = data.draw(st.sampled_from(ALL_PATHS))
        if other[: len(path)] != path:
            records = replaced(records, other, data.draw(STRANGE))
    recommend(run_file, encoded(records), written_as)


@fuzz(60)
@given(path=st.sampled_from(ALL_PATHS))
def test_a_missing_value(run_file: Path, path: Path_) -> None:
    inside = at(RECORDS, path[:-1])
    if isinstance(inside, dict):
        less = {key: item for key, item in inside.items() if key != path[-1]}
        recommend(run_file, encoded(replaced(RECORDS, path[:-1], less)))


@pytest.mark.parametrize(
    "written_as",
    [FORMATS[0], *(pytest.param(each, marks=pytest.mark.slow) for each in FORMATS[1:])],
)
def test_nothing_in_a_text_acts(run_file: Path, written_as: str) -> None:
    for path in TEXT_PATHS:
        recommend(run_file, encoded(replaced(RECORDS, path, HOSTILE)), written_as)


@pytest.mark.parametrize("written_as", FORMATS)
@pytest.mark.parametrize("field", ["start_method", "sharing_strategy"])
def test_a_name_that_torch_does_not_know_is_never_recommended(
    run_file: Path, written_as: str, field: str
) -> None:
    for path in ALL_PATHS:
        if path[-1] == field:
            assert not recommend(run_file, encoded(replaced(RECORDS, path, HOSTILE)), written_as)


@pytest.mark.parametrize(
    "written_as",
    [FORMATS[0], *(pytest.param(each, marks=pytest.mark.slow) for each in FORMATS[1:])],
)
def test_nothing_in_all_texts_together_acts(run_file: Path, written_as: str) -> None:
    """All texts that may be anything: those that must be one of a few are refused alone."""
    records = RECORDS
    for path in TEXT_PATHS:
        changed = replaced(records, path, HOSTILE)
        if recommend(run_file, encoded(changed), written_as):
            records = changed
    assert json.dumps(records).count("MARK") >= 15


@pytest.mark.slow
@fuzz(100)
@given(st.permutations(RECORDS), st.integers(0, 5), st.sampled_from(["json", "text"]))
def test_records_in_any_order(
    run_file: Path, records: list[Any], count: int, written_as: str
) -> None:
    recommend(run_file, encoded([RECORDS[0], *records[:count]]), written_as)


@pytest.mark.parametrize(
    "content",
    [
        _DEEP.encode(),
        CONTENT + b'{"record": "trial", "x": ' + _DEEP.encode() + b"\n" + CONTENT,
        CONTENT.replace(b'"value": 310.5', b'"value": 1e999'),
        CONTENT.replace(b'"value": 310.5', b'"value": ' + b"9" * 10_000),
        CONTENT.replace(b'"num_workers": 8', b'"num_workers": ' + b"9" * 5_000),
        CONTENT.replace(b'"num_workers": 8', b'"num_workers": 999999999999'),
        CONTENT.replace(b'"logical_cpus": 16', b'"logical_cpus": -16'),
        CONTENT.replace(b'"usable_cores": 16.0', b'"usable_cores": 0'),
        CONTENT.replace(b'"schema_version": 1', b'"schema_version": true'),
        CONTENT.replace(b'"schema_version": 1', b'"schema_version": 0'),
        CONTENT.replace(b'"schema_version": 1', b'"schema_version": 1' + b"0" * 4_000),
        b"\xef\xbb\xbf" + CONTENT,
        CONTENT.decode().encode("utf-16"),
        CONTENT.replace(b"\n", b"\r\n"),
        CONTENT.replace(b"\n", b"\n\n \n"),
        b"\0" * 1000,
        b"PK\x03\x04" + bytes(range(256)),
        b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94",
        b'{"record": "run"}\n' * 3,
        CONTENT.splitlines()[0] + b"\n" + CONTENT.splitlines()[1] * 2,
    ],
)
def test_files_of_other_kinds(run_file: Path, content: bytes) -> None:
    recommend(run_file, content, "json")
    recommend(run_file, content)
