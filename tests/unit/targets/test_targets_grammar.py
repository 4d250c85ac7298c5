"""The text of TARGET and ``--arg``."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.errors import UsageError
from dlprof.targets.grammar import BUILTINS, TargetSpec, parse_target


@pytest.mark.parametrize("name", BUILTINS)
def test_a_built_in_is_known_by_its_name(name: str) -> None:
    assert parse_target(name) == TargetSpec(text=name, kind="builtin", source=name)


def test_parameters_stand_after_the_colon() -> None:
    spec = parse_target("synthetic:cpu_ms=2, wait_ms=5,shape=3x224x224,tail=0.01x50")
    assert spec.kind == "builtin"
    assert spec.parameters == {
        "cpu_ms": "2",
        "wait_ms": "5",
        "shape": "3x224x224",
        "tail": "0.01x50",
    }


@pytest.mark.parametrize(
    ("text", "kind", "source", "attr"),
    [
        ("pkg.data:make", "module", "pkg.data", "make"),
        ("data:Loaders.train", "module", "data", "Loaders.train"),
        ("data.py:make", "file", "data.py", "make"),
        ("dir/data.py:make", "file", "dir/data.py", "make"),
        ("images.py:make", "file", "images.py", "make"),
        ("/a:b/data.py:make", "file", "/a:b/data.py", "make"),
        ("C:\\x\\y.py:attr", "file", "C:\\x\\y.py", "attr"),
        ("  data:make\n", "module", "data", "make"),
        ("größe:märz", "module", "größe", "märz"),
    ],
)
def test_module_and_file_targets(text: str, kind: str, source: str, attr: str) -> None:
    spec = parse_target(text)
    assert (spec.kind, spec.source, spec.attr) == (kind, source, attr)
    assert spec.text == text.strip()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("a\0b:c", "null"),
        ("imagse", "not a built-in"),
        ("images-20260131.dlprof.jsonl", "is a run file, not a target"),
        ("runs/a.DLPROF.jsonl", "is a run file, not a target"),
        ("dir/loading.jsonl", "looks like a run file, not a target"),
        ("pkg.data", "names no attribute"),
        ("pkg.data:", "names no attribute"),
        (":make", "names no attribute"),
        ("data.py", "does not say what to take"),
        ("data.py:", "does not say what to take"),
        ("C:\\x\\y.py", "does not say what to take"),
        ("data:2make", "not the name of an attribute"),
        ("dir/data.txt:make", "does not end with .py"),
        (".data:make", "neither a module nor"),
        ("my data:make", "neither a module nor"),
        ("synthetic:cpu_ms", "key=value"),
        ("synthetic:cpu_ms=1,cpu_ms=2", "twice"),
        ("images:make_dataset", "key=value"),
    ],
)
def test_a_wrong_target_says_what_is_wrong(text: str, part: str) -> None:
    with pytest.raises(UsageError, match=part) as caught:
        parse_target(text)
    assert caught.value.hint


def test_a_run_file_is_shown_what_to_do_with_it() -> None:
    with pytest.raises(UsageError) as caught:
        parse_target("my run.dlprof.jsonl")
    assert caught.value.hint.startswith("Use dlprof recommend 'my run.dlprof.jsonl', or dlprof rep")


def test_a_script_is_shown_dlprof_run() -> None:
    with pytest.raises(UsageError) as caught:
        parse_target("my train.py")
    assert "dlprof run 'my train.py'" in caught.value.hint


def test_a_misspelt_built_in_is_guessed() -> None:
    with pytest.raises(UsageError) as caught:
        parse_target("imagse")
    assert caught.value.hint == "Did you mean images?"


@pytest.mark.parametrize("text", ["data/images", "C:\\data\\images", "s3://bucket/images"])
def test_where_the_data_lies_is_no_built_in(text: str) -> None:
    with pytest.raises(UsageError, match="not a built-in") as caught:
        parse_target(text)
    assert "path/to/file.py:name" in caught.value.hint


@given(st.text())
def test_any_text_is_a_target_or_a_usage_error(text: str) -> None:
    try:
        spec = parse_target(text)
    except UsageError as error:
        assert error.message  # noqa: PT017 - either outcome is right
    else:
        assert spec.text == text.strip()
        assert bool(spec.attr) == (spec.kind != "builtin")


def test_reading_a_target_and_its_parameters_needs_no_torch() -> None:
    code = (
        "import sys; from dlprof.targets import grammar, files, counting, builtin; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
