"""Stored history: the K-run rule, what is comparable, and a file that git can merge."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import random
import statistics
from typing import Any

import pytest
from builders import machine
from gate_samples import KEY, entries, gate, load_quads, start_quads
from hypothesis import given
from hypothesis import strategies as st

from dlprof.errors import FileError
from dlprof.gate.baseline import (
    add_entry,
    baseline_key,
    comparable,
    figures_of,
    judge_baseline,
    key_difference,
    parse_baseline,
    render_entry,
)
from dlprof.gate.plan import make_plan
from dlprof.records import Config
from dlprof.records.gate import BaselineEntry, BaselineKey, BaselineRule
from dlprof.stats.intervals import t_quantile

STEADY = (0.0100, 0.0101, 0.0100, 0.0099, 0.0100, 0.0101, 0.0099, 0.0100, 0.0100, 0.0101)


def judged(figures: tuple[float, ...], now: float) -> Any:
    *history, entry = entries([*figures, now])
    return judge_baseline(entry, history)


@pytest.mark.parametrize(
    ("now", "state"),
    [(0.0100, "pass"), (0.0080, "pass"), (0.0104, "pass"), (0.0107, "fail"), (0.0200, "fail")],
)
def test_a_run_is_held_against_the_median_of_the_last(now: float, state: str) -> None:
    verdict = judged(STEADY, now)
    assert verdict.state == state
    assert gate(verdict, "service").views[0].quads == 10


def test_the_limit_is_the_prediction_bound_of_students_t() -> None:
    figures = (0.0100, 0.0103, 0.0098, 0.0101, 0.0097, 0.0102)
    logs = [math.log(each) for each in figures]
    bound = t_quantile(0.99, 5) * statistics.stdev(logs) * math.sqrt(1 + 1 / 6)
    limit = gate(judged(figures, 0.0100), "service").views[0].limit
    assert limit == pytest.approx(math.expm1(max(math.log(1.05), bound)))


def test_equal_runs_do_not_prove_that_none_differs() -> None:
    figures = gate(judged((0.01,) * 5, 0.01), "service").views[0]
    bound = t_quantile(0.99, 4) * 0.01 * math.sqrt(1.2)
    assert figures.high == pytest.approx(math.expm1(bound))


def test_a_history_that_spreads_cannot_pass_a_run_but_can_fail_one() -> None:
    wild = (0.010, 0.013, 0.008, 0.011, 0.009, 0.012)
    verdict = judged(wild, 0.0100)
    assert (verdict.state, gate(verdict, "service").reason) == ("inconclusive", "spread")
    assert "earlier runs vary" in verdict.explanation
    assert judged(wild, 0.04).state == "fail"


def test_only_the_last_ten_runs_count() -> None:
    assert judged((0.005,) * 20 + STEADY, 0.0101).state == "pass"


def test_fewer_than_five_runs_are_no_baseline() -> None:
    verdict = judged(STEADY[:4], 0.02)
    assert (verdict.state, gate(verdict, "service").reason) == ("no_baseline", "too_few_runs")
    assert "4 comparable runs stored, 5 are needed" in verdict.explanation
    assert judge_baseline(entries([0.01])[0], []).explanation.endswith("the baseline is empty.")


def test_another_machine_is_no_baseline_and_it_is_said_what_differs() -> None:
    other = dataclasses.replace(KEY, cpu_model="Other CPU", torch="2.12.0")
    near = dataclasses.replace(KEY, torch="2.12.0")
    history = [*entries(STEADY, other), *entries(STEADY, near)]
    verdict = judge_baseline(entries([0.01])[0], history)
    assert verdict.state == "no_baseline"
    assert verdict.explanation.endswith("differs in torch 2.12.0 instead of 2.13.0.")
    assert comparable(history, near) == entries(STEADY, near)


def test_settings_that_differ_are_named_as_torch_names_them() -> None:
    kept = Config(num_workers=4, prefetch_factor=2, persistent_workers=True)
    difference = key_difference(entries([1.0], dataclasses.replace(KEY, config=kept.key)), KEY)
    assert difference == f"settings {kept.text} instead of num_workers=2"
    every = Config(
        num_workers=8,
        prefetch_factor=4,
        pin_memory=True,
        persistent_workers=True,
        batch_size=16,
        in_order=False,
        start_method="forkserver",
        sharing_strategy="file_system",
        worker_threads=2,
    )
    for config in (every, kept, Config(), Config(pin_memory=True, batch_size=4)):
        assert Config.text_of(config.key) == config.text
    assert Config.text_of("w2-of-another-time") == "w2-of-another-time"
    said = key_difference(entries([1.0], dataclasses.replace(KEY, data="0")), KEY)
    assert said == f"the dataset's class, length or batch size, fingerprint 0 instead of {KEY.data}"


def test_another_target_is_named_last() -> None:
    target = dataclasses.replace(KEY, target="other.py:make")
    python = dataclasses.replace(KEY, python="3.12", os="Linux 6.6")
    difference = key_difference([*entries([1.0], target), *entries([1.0], python)], KEY)
    assert difference == "OS Linux 6.6 instead of Linux 6.1, python 3.12 instead of 3.11"
    assert key_difference([], KEY) == ""


def test_a_key_leaves_out_what_updates_change() -> None:
    here = machine(platform="Linux 6.1.99-5-cloud", cpu_model="Example CPU")
    key = baseline_key(
        here,
        target="data.py:make",
        python="3.11.7",
        torch="2.13.0",
        config=Config(num_workers=2),
        data="1a2b3c4d",
    )
    assert key == KEY


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_figures_that_are_none_are_not_judged(bad: float) -> None:
    verdict = judged(STEADY, bad)
    assert (verdict.state, gate(verdict, "service").reason) == ("inconclusive", "not_measured")
    assert judged((bad,) * 10, 0.01).state == "inconclusive"


def test_false_alarms_and_misses_are_as_rare_as_they_should_be() -> None:
    """Runs that spread by 1.5 %: 79 of 79 quiet in the field notes, 85-95 % of 10 % caught."""
    coin = random.Random(1)
    rounds, alarms, caught = 400, 0, 0
    for _ in range(rounds):
        history = tuple(0.01 * math.exp(coin.gauss(0, 0.015)) for _ in range(10))
        now = 0.01 * math.exp(coin.gauss(0, 0.015))
        alarms += judged(history, now).state == "fail"
        caught += judged(history, 1.1 * now).state == "fail"
    assert alarms <= 0.01 * rounds
    assert caught >= 0.85 * rounds


def test_the_figures_of_a_run_are_the_changes() -> None:
    quads = [*load_quads(11, 0.5, noise=0.0), *start_quads(11, 0.5, 1.0)]
    blocks = [block for quad in quads for block in quad.blocks if block.side == "change"]
    figures = figures_of(make_plan(), blocks)
    assert figures["service.mean"] == pytest.approx(0.015 / 4)
    assert figures["startup.value"] == pytest.approx(1.5, abs=0.05)
    assert figures["memory.value"] == 500 * (1 << 20)
    assert figures_of(make_plan(), []) == {}


# The file


def test_an_entry_is_one_line_of_ascii() -> None:
    line = render_entry(entries([0.01])[0])
    assert line.isascii()
    assert "\n" not in line
    assert parse_baseline(f"{line}\n", "b.jsonl") == entries([0.01])


def test_a_new_entry_adds_a_line_and_changes_none() -> None:
    other = dataclasses.replace(KEY, cpu_model="A CPU")
    text = ""
    for entry in [*entries(STEADY), *entries(STEADY, other)]:
        before = text.splitlines()
        text = add_entry(text, entry, "b.jsonl")
        lines = text.splitlines()
        assert [line for line in lines if line in before] == before
        assert len(lines) == len(before) + 1
    parsed = parse_baseline(text, "b.jsonl")
    assert parsed == [*entries(STEADY, other), *entries(STEADY)]


def test_the_oldest_of_a_key_goes_where_there_are_too_many() -> None:
    text = ""
    others = entries(STEADY[:2], dataclasses.replace(KEY, data="other"))
    for entry in [*others, *entries(STEADY)]:
        text = add_entry(text, entry, "b.jsonl", most_entries=3)
    assert comparable(parse_baseline(text, "b"), KEY) == entries(STEADY)[-3:]
    assert comparable(parse_baseline(text, "b"), others[0].key) == others


def test_recording_the_same_run_again_replaces_it() -> None:
    (entry,) = entries([0.01])
    text = add_entry(add_entry("", entry, "b"), entry, "b")
    assert len(text.splitlines()) == 1


def test_branches_merge_by_keeping_all_lines() -> None:
    first, second, third = entries(STEADY[:3])
    trunk = add_entry("", first, "b")
    one, two = add_entry(trunk, second, "b"), add_entry(trunk, third, "b")
    merged = f"{two}\n{one}"
    assert parse_baseline(merged, "b") == [first, third, second]
    assert len(add_entry(merged, third, "b").splitlines()) == 3


def line_with(**changes: Any) -> str:
    """A line of which fields are set, or taken out with ``None``."""
    data = json.loads(render_entry(entries([0.01])[0])) | changes
    return json.dumps({key: value for key, value in data.items() if value is not None})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not an entry of a baseline"),
        ("{}", "is not an entry of a baseline"),
        (line_with(dlprof_baseline=2), "newer dlprof"),
        ("<<<<<<< HEAD", "merge conflict"),
        (line_with(key=None), "key is missing"),
        (line_with(key=[]), "key is not an object"),
        (line_with(key={}), "key.target is missing"),
        (line_with(commit=1), "commit is not a text"),
        (line_with(figures={"a": "b"}), "figures is not a number"),
        (line_with(figures={"a": True}), "figures is not a number"),
        (line_with().replace("0.01", "NaN"), "not a finite number"),
        (line_with().replace("0.01", "1e999"), "not a finite number"),
        (line_with(figures={"service.mean": 0.0}), "service.mean is not above 0"),
        (line_with(figures={"service.low_quartile": -1.0}), "service.low_quartile is not above 0"),
        (line_with(figures=3), "figures is not an object"),
        (line_with(figures=[]), "figures is not an object"),
        (line_with(figures="ab"), "figures is not an object"),
    ],
)
def test_a_bad_line_is_named(line: str, message: str) -> None:
    with pytest.raises(FileError) as caught:
        parse_baseline(f"{line_with()}\n\n{line}\n", "ci/b.jsonl")
    assert caught.value.message.startswith("ci/b.jsonl, line 3")
    assert message in caught.value.message
    assert caught.value.hint


def test_fields_of_later_versions_are_kept_as_they_stand() -> None:
    line = line_with(weather="sunny")
    text = add_entry(line, entries([0.01, 0.02])[1], "b")
    assert line in text.splitlines()


def test_figures_that_json_cannot_hold_are_refused() -> None:
    entry = dataclasses.replace(entries([0.01])[0], figures={"service.mean": math.nan})
    with pytest.raises(ValueError, match="not JSON compliant"):
        add_entry("", entry, "b")


TEXTS = st.text(max_size=20)
KEYS = st.builds(
    BaselineKey,
    target=TEXTS,
    cpu_model=TEXTS,
    available_cores=st.integers(0, 10**6).map(lambda hundredths: hundredths / 100),
    os=TEXTS,
    python=TEXTS,
    torch=TEXTS,
    config=TEXTS,
    data=TEXTS,
)
ENTRIES = st.builds(
    BaselineEntry,
    key=KEYS,
    recorded_at=TEXTS,
    commit=TEXTS,
    figures=st.dictionaries(
        TEXTS,
        # As any record holds them (``codec.number_fault``).
        st.floats(-1e60, 1e60).map(lambda figure: figure if abs(figure) >= 1e-60 else 0.0),
    ),
)


@given(st.lists(ENTRIES, max_size=5))
def test_whatever_is_kept_is_read_again(stored: list[BaselineEntry]) -> None:
    text = ""
    for entry in stored:
        text = add_entry(text, entry, "b")
    read = parse_baseline(text, "b")
    assert all(entry in read for entry in stored[-1:])
    assert {entry.key for entry in read} == {entry.key for entry in stored}
    assert "".join(f"{render_entry(entry)}\n" for entry in read) == text


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(FileError):
        assert parse_baseline(text, "b") == []


@pytest.mark.slow
@given(st.lists(ENTRIES, max_size=8), ENTRIES, st.integers(2, 10))
def test_any_history_gives_a_verdict(
    stored: list[BaselineEntry], entry: BaselineEntry, runs: int
) -> None:
    verdict = judge_baseline(entry, stored, BaselineRule(runs=runs, least_runs=2))
    assert verdict.state in {"pass", "fail", "inconclusive", "no_baseline"}
