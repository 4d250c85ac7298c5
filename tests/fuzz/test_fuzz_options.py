"""Every option, given any text: by flag, by variable, by TARGET."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from fuzz_program import TEXTS, fuzz, program
from hypothesis import given
from hypothesis import strategies as st

from dlprof.errors import NothingMeasuredError
from dlprof.settings import OPTIONS
from dlprof.targets.grammar import parse_target

BY_SWITCH = {"shuffle", "cold_cache"}
FLAGS = [option.flag for option in OPTIONS if option.key not in {*BY_SWITCH, "target"}]
VARIABLES = [option.environment for option in OPTIONS]
LIMITS = ("--max-workers", "--max-ram", "--max-shm", "--ranks", "--step-time", "--format")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without configuration, and no sweep that measures anything."""

    def run_sweep(settings: Any, **details: Any) -> None:
        parse_target(settings.target)
        raise NothingMeasuredError("Nothing is measured here.")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dlprof.engine.run_sweep", run_sweep)


@pytest.mark.slow
@fuzz(300)
@given(flag=st.sampled_from(FLAGS), text=TEXTS, more=st.sampled_from(["--print-config", "--json"]))
def test_any_text_for_a_flag(flag: str, text: str, more: str) -> None:
    assert program(["sweep", flag, text, more]).code in {0, 2, 6}


@pytest.mark.slow
@fuzz(150)
@given(st.dictionaries(st.sampled_from(FLAGS), TEXTS, min_size=2, max_size=4))
def test_any_texts_for_several_flags(given_: dict[str, str]) -> None:
    words = [f"{flag}={text}" for flag, text in given_.items()]
    program(["sweep", *words, "-q"])


@pytest.mark.slow
@fuzz(200)
@given(variable=st.sampled_from(VARIABLES), text=TEXTS)
def test_any_text_in_a_variable(variable: str, text: str) -> None:
    program(["sweep", "--print-config"], {variable: text})


@pytest.mark.slow
@fuzz(250)
@given(text=TEXTS, as_json=st.booleans())
def test_any_text_as_target(text: str, *, as_json: bool) -> None:
    program(["sweep", *(["--json"] if as_json else []), "-q", "--", text])


@fuzz(200)
@given(st.lists(TEXTS, max_size=4))
def test_any_command_line(words: list[str]) -> None:
    program(words)


@fuzz(100)
@given(
    command=st.sampled_from(["sweep", "recommend", "machine"]), words=st.lists(TEXTS, max_size=2)
)
def test_any_words_after_a_command_give_one_document(command: str, words: list[str]) -> None:
    if not {"--help", "--version"} & {*words}:
        program([command, "--json", "--no-such-option", *words])


@pytest.mark.slow
@fuzz(150)
@given(flag=st.sampled_from(LIMITS), text=TEXTS)
def test_any_text_for_a_limit_of_recommend(flag: str, text: str) -> None:
    golden = Path(__file__).parents[1] / "data" / "runs" / "golden.dlprof.jsonl"
    program(["recommend", str(golden), flag, text, "--json"])


def test_no_option_is_left_out() -> None:
    assert {field.name for field in dataclasses.fields(OPTIONS[0])} >= {"key", "kind"}
    assert len(FLAGS) + len(BY_SWITCH) + 1 == len(OPTIONS)
