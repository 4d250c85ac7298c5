"""Live objects that the Python API is given: what other processes can load, and what they can't."""

from __future__ import annotations

import builtins
import collections
import os
import pickle
import sys
from pathlib import Path

import pytest

from dlprof import api
from dlprof.errors import UsageError


class Texts(list[str]):
    """A dataset of texts, some of which are Python code."""


@pytest.fixture(autouse=True)
def without_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)


def test_data_that_holds_the_name_of_the_main_module_is_only_data() -> None:
    target = Texts(['if __name__ == "__main__":', "__main__", "main"])
    named, pickled = api._named(target)
    assert named == {"target": "<Texts>"}
    assert pickled is not None
    assert b"__main__" in pickled
    assert pickle.loads(pickled) == target


def test_what_a_script_defines_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Texts, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Texts", Texts, raising=False)
    for target in (Texts(), Texts, collections.UserList([Texts()])):
        with pytest.raises(UsageError, match="Texts is defined in a script") as caught:
            api._named(target)
        assert "cloudpickle" in caught.value.hint


def test_a_function_of_a_script_within_an_object_is_refused() -> None:
    def collate(batch: object) -> object:
        return batch

    collate.__module__ = "__main__"
    with pytest.raises(UsageError, match="collate is defined in a script"):
        api._named(collections.UserDict(collate_fn=collate))


def test_what_cannot_be_pickled_is_said(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(UsageError, match="can't be sent"):
        api._named(collections.UserList([file]))


@pytest.mark.parametrize("target", [os.path.join, builtins.len, Texts])
def test_what_a_module_defines_goes_by_name(target: object) -> None:
    pickled = api._named(target)[1]
    assert pickled is not None
    assert pickle.loads(pickled) is target


def test_arguments_that_a_file_gives_are_not_for_a_live_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They belong to the target beside them, and most live objects take none."""
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text("[tool.dlprof]\narg = {root = 'data'}\n")
    assert api._resolved("data.py:make", {})[0].arguments == {"root": "data"}
    assert api._resolved(Texts(), {})[0].arguments == {}
    assert api._resolved(Texts(), {"arg": {"n": 4}})[0].arguments == {"n": "4"}
