"""Importing what a target names, and saying which part is wrong."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlprof.errors import TargetError
from dlprof.targets.build import build_target, import_object, module_name, place_of
from dlprof.targets.grammar import parse_target
from dlprof.trial.measure import make_consumer


@pytest.fixture(autouse=True)
def restored_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def load(directory: Path, text: str) -> object:
    return import_object(parse_target(text), directory=directory)


def fault(directory: Path, text: str) -> TargetError:
    with pytest.raises(TargetError) as caught:
        load(directory, text)
    assert caught.value.hint
    return caught.value


def write(path: Path, code: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code, encoding="utf-8")


def test_a_file_is_imported_under_its_own_name_and_pickles(tmp_path: Path) -> None:
    write(tmp_path / "dlp_data.py", "import dlp_sibling\nclass Data: n = dlp_sibling.N\n")
    write(tmp_path / "dlp_sibling.py", "N = 4\n")
    found = load(tmp_path, "dlp_data.py:Data")
    assert isinstance(found, type)
    assert found.__module__ == "dlp_data"
    assert sys.path[0] == str(tmp_path)
    assert isinstance(pickle.loads(pickle.dumps(found())), found)


def test_a_target_that_changes_the_directory_is_found_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os\nos.chdir(os.sep)\n\n\ndef make(): pass\n\n\ndata = [1, 2]\n"
    write(tmp_path / "dlp_moves.py", code)
    monkeypatch.chdir(tmp_path)
    load(tmp_path, "dlp_moves.py:make")
    assert Path.cwd() != tmp_path
    file = str((tmp_path / "dlp_moves.py").resolve())
    assert place_of(parse_target("dlp_moves.py:make"), tmp_path) == (file, 5)
    assert place_of(parse_target("dlp_moves.py:data"), tmp_path) == (file, None)


@pytest.mark.parametrize("step", ["dlp_step.py:step", "dlp_step:step"])
def test_a_step_is_found_where_the_target_was_before_it_changed_the_directory(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os\nfrom torch.utils.data import TensorDataset\nimport torch\n"
    code += "os.chdir(os.sep)\ndata = TensorDataset(torch.zeros(64))\n"
    write(tmp_path / "somewhere" / "dlp_leaves.py", code)
    write(tmp_path / "dlp_step.py", "def step(batch): return 7\n")
    monkeypatch.chdir(tmp_path)
    built = build_target(parse_target("somewhere/dlp_leaves.py:data"))
    assert Path.cwd() != tmp_path
    consume = make_consumer(0.0, step, directory=built.directory)
    assert consume("batch") == 7


def test_a_file_in_a_package_gets_its_dotted_name(tmp_path: Path) -> None:
    write(tmp_path / "dlp_top" / "__init__.py", "")
    write(tmp_path / "dlp_top" / "sub" / "__init__.py", "X = 1\n")
    write(tmp_path / "dlp_top" / "sub" / "mod.py", "from . import X\nclass A:\n    b = X\n")
    assert module_name(tmp_path / "dlp_top/sub/mod.py") == (tmp_path, "dlp_top.sub.mod")
    assert module_name(tmp_path / "dlp_top/sub/__init__.py") == (tmp_path, "dlp_top.sub")
    assert load(tmp_path, "dlp_top/sub/mod.py:A.b") == 1
    assert load(tmp_path, "dlp_top/sub/__init__.py:X") == 1
    assert load(tmp_path, "dlp_top.sub.mod:A.b") == 1


def test_the_same_file_twice_is_the_same_object(tmp_path: Path) -> None:
    write(tmp_path / "dlp_twice.py", "x = object()\n")
    assert load(tmp_path, "dlp_twice.py:x") is load(tmp_path, "./dlp_twice.py:x")


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    (tmp_path / "dir.py").mkdir()
    (tmp_path / "loop.py").symlink_to("loop.py")
    for name in ("gone.py", "loop.py", f"{300 * 'a'}.py"):
        assert f"There is no file {name!r}" in fault(tmp_path, f"{name}:x").message
    assert "not a file" in fault(tmp_path, "dir.py:x").message


def test_a_missing_module_and_a_missing_submodule(tmp_path: Path) -> None:
    write(tmp_path / "dlp_pkg" / "__init__.py", "")
    assert "no module 'dlp_gone'" in fault(tmp_path, "dlp_gone.data:x").message
    assert "no module 'dlp_pkg.gone'" in fault(tmp_path, "dlp_pkg.gone:x").message


def test_a_module_in_a_src_folder_is_found_with_the_path_that_the_hint_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "src" / "dlp_laid" / "data.py", "x = 1\n")
    monkeypatch.chdir(tmp_path)
    assert "PYTHONPATH=src" in fault(tmp_path, "dlp_laid.data:x").hint
    monkeypatch.syspath_prepend("src")
    assert load(tmp_path, "dlp_laid.data:x") == 1


def test_a_relative_import_in_a_folder_that_is_no_package_says_what_to_do(tmp_path: Path) -> None:
    write(tmp_path / "dlp_top" / "mod.py", "from .other import X\n")
    assert "__init__.py" in fault(tmp_path, "dlp_top/mod.py:X").hint


def test_a_missing_dependency_is_not_a_missing_module(tmp_path: Path) -> None:
    write(tmp_path / "dlp_dep.py", "import dlp_not_installed.part\nx = 1\n")
    for text in ("dlp_dep.py:x", "dlp_dep:x"):
        error = fault(tmp_path, text)
        assert "was found, but importing it failed" in error.message
        assert "'dlp_not_installed'" in error.hint
        assert "dlp_dep.py" in error.traceback
        assert "importlib" not in error.traceback
        assert "dlprof/targets" not in error.traceback


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("def f(:\n", "SyntaxError"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("raise RuntimeError\n", "RuntimeError"),
    ],
)
def test_an_import_that_raises(tmp_path: Path, code: str, part: str) -> None:
    write(tmp_path / "dlp_bad.py", code)
    error = fault(tmp_path, "dlp_bad.py:x")
    assert part in error.message
    assert "dlp_bad.py" in error.traceback


def test_a_script_without_a_main_guard(tmp_path: Path) -> None:
    write(tmp_path / "dlp_script.py", "import sys\nsys.exit(1)\n")
    error = fault(tmp_path, "dlp_script.py:x")
    assert "ended the program" in error.message
    assert "__main__" in error.hint


def test_a_name_that_another_module_has(tmp_path: Path) -> None:
    for name in ("json", "sys"):  # from a file, built in
        write(tmp_path / f"{name}.py", "x = 1\n")
        error = fault(tmp_path, f"{name}.py:x")
        assert f"the name '{name}' belongs to" in error.message
        assert "Rename" in error.hint


def test_a_file_name_with_a_dot(tmp_path: Path) -> None:
    write(tmp_path / "data.v2.py", "x = 1\n")
    assert "holds a dot" in fault(tmp_path, "data.v2.py:x").message


def test_missing_attributes_come_with_close_ones(tmp_path: Path) -> None:
    write(tmp_path / "dlp_attr.py", "def make_dataset(): ...\nclass A:\n    inner = 1\n")
    error = fault(tmp_path, "dlp_attr.py:make_datset")
    assert "has no attribute 'make_datset'" in error.message
    assert "Did you mean make_dataset" in error.hint
    assert (
        "'dlp_attr.py:A' has no attribute 'outer'" in fault(tmp_path, "dlp_attr.py:A.outer").message
    )
    assert "It has: A, make_dataset." in fault(tmp_path, "dlp_attr:zzz").hint


def test_an_attribute_that_raises(tmp_path: Path) -> None:
    write(tmp_path / "dlp_lazy.py", "def __getattr__(name):\n    raise OSError('no disk')\n")
    assert "Reading 'x'" in fault(tmp_path, "dlp_lazy.py:x").message
