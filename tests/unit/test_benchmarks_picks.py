"""The benchmarks of picks and of predictions on real data: their arithmetic, rivals and data."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import itertools
import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlprof.records import (
    BatchCosts,
    Calibration,
    Config,
    Estimate,
    Explanation,
    RankFigures,
    Trial,
    Usage,
)
from dlprof.records.codec import from_json
from dlprof.trial.protocol import TrialRequest
from dlprof.trial.runner import TrialRunner

NONE, ONE, TWO, SIX = (Config(num_workers=n).canonical() for n in (0, 1, 2, 6))


@pytest.fixture
def rivals() -> Any:
    return importlib.import_module("rivals")


@pytest.fixture
def shown() -> Any:
    return importlib.import_module("picks_report")


def block(rates: Mapping[Config, float], cost_s: float = 1.0) -> dict[Config, Any]:
    shot = importlib.import_module("rivals").Shot
    return {config: shot(rate=rate, cost_s=cost_s) for config, rate in rates.items()}


RATES = {NONE: 10.0, ONE: 11.0, TWO: 20.0, SIX: 30.0}


def test_a_grid_takes_the_fastest_and_pays_for_all(rivals: Any) -> None:
    found = rivals.whole_grid([block(RATES)], 0)
    assert (found.config, found.cost_s) == (SIX, 4.0)


def test_dpt_looks_at_no_more_workers_than_cores(rivals: Any) -> None:
    found = rivals.dpt(2)([block(RATES)], 0)
    assert (found.config, found.cost_s) == (TWO, 2.0)


def test_halving_pays_for_each_round_and_uses_other_turns(rivals: Any) -> None:
    lucky = block(RATES | {ONE: 40.0})
    found = rivals.halving([lucky, block(RATES)], 0)
    assert found.config == SIX  # by the mean of what was measured: 30 against 25.5
    assert found.cost_s == 6.0
    assert rivals.whole_grid([lucky], 0).config == ONE


@pytest.mark.parametrize(("loss", "pick"), [(0.0, SIX), (1 / 3, TWO), (2 / 3, NONE)])
def test_a_regret_is_what_is_lost_against_the_best(rivals: Any, loss: float, pick: Config) -> None:
    found = rivals.regrets([block(RATES)] * 4, list(RATES))
    assert found[pick] == pytest.approx(loss)


def test_the_luckiest_of_equals_leaves_no_regret_on_average(rivals: Any) -> None:
    rng = random.Random(3)
    equals = [Config(num_workers=n).canonical() for n in range(12)]
    means = []
    for _ in range(100):
        turns = [block({c: math.exp(rng.gauss(0, 0.1)) for c in equals}) for _ in range(4)]
        means.append(rivals.regrets(turns, equals[:1])[equals[0]])
    assert abs(sum(means) / len(means)) < 0.02  # against the luckiest itself it would be 0.08


def test_what_failed_is_nobodys_best(rivals: Any) -> None:
    found = rivals.regrets([block(RATES | {SIX: 0.0})] * 2, list(RATES))
    assert found[TWO] == 0.0
    assert found[SIX] > 0.99


def test_noise_is_the_spread_of_repeats(rivals: Any) -> None:
    assert rivals.noise([block(RATES)]) is None
    assert rivals.noise([block(RATES)] * 3) == 0.0
    assert rivals.noise([block({NONE: 9.0}), block({NONE: 11.0})]) == pytest.approx(
        0.1414, abs=1e-4
    )


@pytest.mark.parametrize(
    ("words", "config"),
    [
        ("[loadtune] best overall: workers=2, persistent — 1.73x baseline\n", TWO),
        (
            "best overall: workers=1, prefetch=4, persistent, threads=1 — 2.00x baseline",
            dataclasses.replace(ONE, prefetch_factor=4),
        ),
        ("[loadtune] no better config found in this round.", NONE),
        ("[loadtune] brain proposed no trials — baseline looks fine.", NONE),
    ],
)
def test_loadtunes_last_words(words: str, config: Config) -> None:
    assert importlib.import_module("peers").loadtune_choice(words) == config


def test_other_words_of_loadtune_are_a_failure() -> None:
    peers = importlib.import_module("peers")
    with pytest.raises(peers.PeerError, match="baseline failed"):
        peers.loadtune_choice("[loadtune] baseline failed:\n")


def outcome(shown: Any, picks: Mapping[str, Config | None], **fields: Any) -> Any:
    chosen = [
        shown.Chosen(who=who, config=None if c is None else c.key, cost_s=20.0)
        for who, c in picks.items()
    ]
    regrets = {SIX.key: 0.0, TWO.key: 0.02, NONE.key: 0.5, ONE.key: 0.6}
    made = {"world": "x", "chosen": chosen, "regrets": regrets, "finals": [], "noise": None}
    return shown.Outcome(**made | fields)


def test_scores_count_failures_and_what_is_slower_than_the_default(shown: Any) -> None:
    found = [
        outcome(shown, {"a": TWO}),
        outcome(shown, {"a": ONE}),
        outcome(shown, {"a": None}),
        outcome(shown, {"b": ONE}),
    ]
    one = shown.score(found, "a", 4)
    assert (one.worse, one.failed, one.regrets) == (1, 1, [0.02, 0.6])
    assert found[0].gain(SIX.key) == 2.0


@pytest.mark.parametrize(
    ("own", "grid", "beside", "passed"),
    [
        (SIX, NONE, False, True),
        (NONE, NONE, False, False),
        (SIX, NONE, True, True),
        (ONE, SIX, True, False),
        (None, SIX, False, None),
    ],
)
def test_goals(shown: Any, own: Config | None, grid: Config, *, beside: bool, passed: Any) -> None:
    turns = [{SIX.key: 30.0, TWO.key: 29.8, NONE.key: 15.0, ONE.key: 12.0}] * 4
    found = [outcome(shown, {shown.DLPROF: own, shown.GRID: grid}, finals=turns)]
    assert shown.reached(found, 4, beside=beside) is passed
    assert shown.report(found, ["n"], {}, cells=4, beside=beside).passed is None  # one dataset
    report = shown.report(found * 13, ["n"], {}, cells=4, beside=beside)
    assert report.passed is passed
    assert report.name == ("picks_beside" if beside else "picks")
    assert all(len(row) == len(table.columns) for table in report.tables for row in table.rows)


def test_what_was_found_is_read_again_as_it_was(shown: Any, tmp_path: Path) -> None:
    found = [outcome(shown, {"a": TWO, "b": None}, finals=[{"w0": 1.5}], noise=0.1)]
    report = shown.report(found, [], {}, cells=4, beside=False)
    path = tmp_path / "picks.json"
    assert shown.earlier(path) == []
    path.write_text(json.dumps({"data": report.data}))
    assert shown.earlier(path) == found
    kept = json.loads(path.read_text())
    for each in kept["data"]["worlds"][0]["chosen"]:
        del each["epsilon_measured"]
    path.write_text(json.dumps(kept))  # of a version that kept one certificate alone
    assert shown.earlier(path) == found


@pytest.mark.parametrize(
    ("measured", "said"), [(None, "15"), (0.04, "15 (4)"), (0.2, "15 (20)")], ids=str
)
def test_a_certificate_is_shown_over_all_settings_and_over_those_measured(
    shown: Any, measured: float | None, said: str
) -> None:
    pick = shown.Chosen(who=shown.DLPROF, config=TWO.key, epsilon=0.15, epsilon_measured=measured)
    for rate, broken in ((30.0, ""), (10.0, " broken")):
        turns = [{SIX.key: 30.0, TWO.key: rate}] * 4
        found = outcome(shown, {}, chosen=[pick], finals=turns)
        report = shown.report([found], [], {}, cells=4, beside=True)
        (row,), columns = report.tables[1].rows, report.tables[1].columns
        assert row[columns.index("certificate (of the measured), %")] == f"{said}{broken}"


def test_more_measures_what_is_missing_and_again_what_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nine datasets beside others; each that was measured is kept before the next."""
    picks = importlib.import_module("picks")
    asked, kept = list[str](), list[list[str]]()
    names = [world.name for world in importlib.import_module("worlds").real_worlds()]

    def play(world: Any, *_: Any, beside: bool) -> Any:
        assert beside
        asked.append(world.name)
        turns = [{SIX.key: 30.0, TWO.key: 30.0}] * 4
        shown = importlib.import_module("picks_report")
        return outcome(shown, {shown.DLPROF: TWO}, world=world.name, finals=turns)

    def keep(report: Any, *_: Any, quick: bool) -> None:
        assert not quick
        kept.append([each["world"] for each in report.data["worlds"]])
        (tmp_path / "picks_beside.json").write_text(json.dumps({"data": report.data}))
        assert report.passed is (True if len(names) == len(kept[-1]) else None)
        assert {"surely near, %", "surely far, %", "can't tell, %"} < {*report.tables[0].columns}

    monkeypatch.setattr(picks, "RESULTS", tmp_path)
    monkeypatch.setattr(picks, "play", play)
    monkeypatch.setattr(picks, "keep", keep)
    monkeypatch.setattr(picks, "publish", lambda *_, **__: None)
    monkeypatch.setattr(picks, "surroundings", dict)
    for arguments in ([*names[:2], "--more"], ["--more"], [names[1], "--more"]):
        monkeypatch.setattr("sys.argv", ["picks_beside.py", *arguments])
        importlib.import_module("picks_beside").main()
    assert asked == [*names, names[1]]
    assert sorted(kept[-1]) == sorted(names)


def test_a_whole_grid_costs_what_its_cells_cost(shown: Any) -> None:
    found = outcome(shown, {shown.GRID: SIX, shown.DLPROF: SIX})
    assert found.whole_grid_s(4) == pytest.approx(5 * 257)
    assert shown.score([found], shown.DLPROF, 4).shares == [pytest.approx(20 / (5 * 257))]


def test_how_sure_a_regret_is_follows_from_its_turns(shown: Any) -> None:
    steady = [{SIX.key: 30.0, TWO.key: 20.0}] * 4
    assert outcome(shown, {"a": TWO}, finals=steady).error(TWO.key) == pytest.approx(0)
    turns = [{SIX.key: 30.0, TWO.key: rate} for rate in (20.0, 22.0, 20.0, 22.0)]
    expected = math.log(1.1) / math.sqrt(3) / math.sqrt(4)
    assert outcome(shown, {"a": TWO}, finals=turns).error(TWO.key) == pytest.approx(expected)
    # The best is as sure as what it has over the next one.
    assert outcome(shown, {"a": SIX}, finals=turns).error(SIX.key) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        ((28.0, 32.0, 30.0, 30.2), "can't tell"),
        ((29.9, 30.1, 30.0, 30.0), "surely near"),
        ((27.0, 28.0, 27.5, 27.2), "surely far"),
    ],
)
def test_a_pick_is_near_or_far_by_two_errors(
    shown: Any, rates: tuple[float, ...], verdict: str
) -> None:
    turns = [{SIX.key: 30.0, TWO.key: rate, ONE.key: 5.0} for rate in rates]
    found = outcome(shown, {shown.DLPROF: TWO}, finals=turns)
    assert found.verdict(f"{TWO.key}-persistent") == verdict
    assert shown.score([found], shown.DLPROF, 4).share(verdict) == 1.0


def test_rates_are_compared_at_the_usual_speed_of_the_cores(shown: Any, rivals: Any) -> None:
    """One is measured on fast cores by chance, and is no faster for it."""
    rng = random.Random(5)
    speeds = [(1.0, 1.8) if rng.random() < 0.5 else (1.8, 1.8) for _ in range(12)]
    turns = [
        {
            ONE: rivals.Shot(rate=10.0 * one, cost_s=1.0, speed=one),
            TWO: rivals.Shot(rate=10.0 * two, cost_s=1.0, speed=two),
        }
        for one, two in speeds
    ]
    for turn in shown.at_usual_speed(turns):
        assert turn[ONE] == pytest.approx(turn[TWO])
    unseen = [{ONE: rivals.Shot(rate=10.0, cost_s=1.0)}]
    assert shown.at_usual_speed(unseen) == [{ONE: 10.0}]


def test_judging_goes_on_until_a_pick_is_known_and_leaves_out_what_has_no_hope() -> None:
    picks, rivals = (importlib.import_module(name) for name in ("picks", "rivals"))
    rng, asked = random.Random(2), list[Config]()

    def measure(config: Config, _s: float) -> Any:
        asked.append(config)
        return rivals.Shot(rate=RATES[config] * math.exp(rng.gauss(0, 0.06)), cost_s=1.0)

    rates = RATES | {TWO: 29.5}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RATES, TWO, 29.5)
        chosen = [picks.Choice(who=picks.DLPROF, pick=rivals.Pick(config=TWO, cost_s=3.0))]
        design = picks.Design(minutes=1.0, finals=30)
        turns = picks.judge(measure, chosen, [block(rates)], design)
    assert len(turns) == 30
    assert asked.count(NONE) == design.least_finals
    assert asked.count(TWO) == asked.count(SIX) == 30
    steady = picks.judge(lambda c, _s: block(RATES)[c], chosen, [block(RATES)], design)
    assert len(steady) == design.least_finals


def test_a_pick_loses_what_its_steady_settings_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    picks, rivals = (importlib.import_module(name) for name in ("picks", "rivals"))
    persistent = dataclasses.replace(TWO, persistent_workers=True)
    world = SimpleNamespace(
        name="x",
        opened=lambda _machine: contextlib.nullcontext(
            lambda config, _s: rivals.Shot(rate=RATES.get(config, 1.0), cost_s=1.0)
        ),
    )
    choices = [
        picks.Choice(who="a", pick=rivals.Pick(config=persistent, cost_s=3.0)),
        picks.Choice(who="b", pick=None, error="why"),
    ]
    monkeypatch.setattr(picks, "ruled", lambda _world: choices)
    for name in ("replayed", "live"):
        monkeypatch.setattr(picks, name, lambda *_: ())
    found = picks.play(world, picks.QUICK, None, beside=False)
    assert found.best == TWO.key
    assert found.regrets[persistent.key] == found.regrets[TWO.key] == pytest.approx(0)
    assert found.picks("a") == [(persistent.key, 3.0)]
    assert found.picks("b") == []


def test_the_grid_is_of_distinct_legal_settings() -> None:
    picks = importlib.import_module("picks")
    cells = picks.grid((0, 1, 4))
    assert len(cells) == len(set(cells)) == 7
    assert all(cell == cell.canonical() for cell in cells)


def test_rules_of_thumb_speak_of_the_emulated_machine() -> None:
    worlds = importlib.import_module("worlds")
    emulated = worlds.emulated_worlds()
    assert emulated[0].rules["num_workers = cores"].num_workers == 4
    assert all(world.target is None for world in emulated)
    names = [world.name for world in (*worlds.real_worlds(), *emulated)]
    assert len(names) == len(set(names)) == 13


def test_a_run_on_emulated_cores_is_reported_as_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = importlib.import_module("emulated_bench")
    cores = importlib.import_module("emulated_cores")
    ran = cores.Ran(
        rate=10.0,
        span_s=2.0,
        cpu_s=(0.1,) * 20,
        io_s=(0.0,) * 20,
        queued_s=(0.0,) * 20,
        late_s=0.0,
        receive_s=(0.001,) * 20,
    )
    asked: list[Any] = []

    def run(setup: Any) -> list[Any]:
        asked.append(setup)
        return [ran]

    monkeypatch.setattr(bench, "run", run)
    made = bench.EmulatedBench(load=cores.Load(cpu_s=0.05), cores=4, seed=2)
    for explain in (False, True):
        request = TrialRequest(config=TWO, trial_s=0.8, step_s=0.01, explain=explain)
        given = {"trial_id": "t0001", "repetition": 1, "wall_s": 9.0, "ranks": None}
        trial, shown = made.explain(request, **given)
        assert bool(shown) is explain
    assert (trial.id, trial.repetition, trial.batches_per_s.value) == ("t0001", 1, 10.0)
    assert trial.usage.own_cpu_cores == pytest.approx(1.0)
    assert trial.usage.available_cpu_cores == 4.0
    assert from_json(Explanation, shown["explanation"]).batches == 20
    assert [setup.seed for setup in asked] == [2000, 2001]
    assert (asked[0].cores, asked[0].step_s, asked[0].window_s) == (4, 0.01, 0.8)
    own, runner = (inspect.signature(each.explain) for each in (made, TrialRunner))
    assert {*own.parameters} == {*runner.parameters} - {"self"}  # a sweep gives both the same


@pytest.mark.parametrize(
    "name", ["computed", "remote", "laned", "tiny", "large", "tailed", "shards"]
)
def test_datasets_give_batches(name: str) -> None:
    loader = getattr(importlib.import_module("real_targets"), name)()
    assert len(list(itertools.islice(iter(loader), 2))) == 2


def real_cell(**fields: Any) -> Any:
    made = {
        "data": "text",
        "config": TWO,
        "step_s": 0.0,
        "rates": (90.0, 110.0),
        "cores": 1.5,
        "alone": {"maxplus": 120.0},
        "given": {"maxplus": 100.0},
        "interval": (90.0, 110.0),
        "drift": 0.01,
        "standard_error": 0.02,
    }
    return importlib.import_module("real_data").Compared(**made | fields)


def test_errors_are_reported_for_all_cores_and_for_those_available() -> None:
    real_data = importlib.import_module("real_data")
    one = real_cell(rates=(100.0, 100.0))
    assert one.error(given=False) == pytest.approx(0.2)
    assert one.error(given=True) == pytest.approx(0.0)
    assert one.covered
    assert not real_cell(interval=(None, None)).covered
    assert real_cell().repeat == pytest.approx(math.log(110 / 90) / 2)
    assert real_data.reached([one], real_data.BESIDE) is True
    assert real_data.reached([one], real_data.WITHOUT) is False
    assert real_data.reached([], real_data.WITHOUT) is None
    report = real_data.report([one], real_data.WITHOUT)
    assert all(len(row) == len(table.columns) for table in report.tables for row in table.rows)


def test_quiet_cells_repeat_and_were_calibrated_without_drift() -> None:
    assert real_cell(rates=(98.0, 102.0)).is_quiet
    assert real_cell(rates=(98.0, 102.0), drift=None).is_quiet
    assert not real_cell(rates=(98.0, 102.0), drift=0.1).is_quiet
    assert not real_cell().is_quiet


@pytest.mark.parametrize(("error", "longer_s"), [(None, 0.0), (0.03, 0.0), (0.06, 2.4), (0.5, 6.0)])
def test_a_calibration_grows_with_the_square_of_its_error(
    error: float | None, longer_s: float
) -> None:
    real_data = importlib.import_module("real_data")
    known = Calibration(standard_error=error)
    assert real_data.longer_s(known, 0.8) == pytest.approx(longer_s)


def of_ranks(*rates: float) -> Trial:
    """A trial of ranks that shared the cores unevenly; its rate is that of the slowest."""
    each = [
        RankFigures(rank=rank, host="here", batches_per_s=Estimate(value=rate))
        for rank, rate in enumerate(rates)
    ]
    return Trial(
        id="t0001",
        config=TWO,
        repetition=0,
        outcome="completed",
        batches_per_s=Estimate(value=min(rates)),
        usage=Usage(available_cpu_cores=2.0 / len(rates)),
        ranks=tuple(each),
    )


def test_ranks_are_judged_by_what_all_give_together_and_at_a_barrier() -> None:
    """In a second, four ranks on two cores gave 7 to 53 batches/s, and 30 at a barrier."""
    real_data = importlib.import_module("real_data")
    asked = list[bool]()

    def measure(_config: Config, _trial_s: float, _step_s: float, *, barrier: bool) -> Trial:
        asked.append(barrier)
        return of_ranks(30.0, 30.0, 30.0, 30.0) if barrier else of_ranks(53.0, 21.0, 7.0, 43.0)

    costs = BatchCosts(cpu_s=(0.015,) * 20)
    known = Calibration(in_main=costs, in_workers=costs)
    source: Any = SimpleNamespace(measure=measure, usable_cores=2.0)
    design = dataclasses.replace(real_data.QUICK, cells=2)
    found = real_data.compare("Python", source, known, design, random.Random(1), 4)
    assert sorted(asked) == [False] * 4 + [True] * 4
    free = [each for each in found if not each.barrier]
    assert [each.rates for each in free] == [(31.0, 31.0)] * 2
    assert [each.slowest for each in free] == [(7.0, 7.0)] * 2
    rows = {row[0]: row for row in real_data.report(found, real_data.OF_RANKS).tables[0].rows}
    assert [rows[name][1] for name in ("all", "4 ranks, a barrier each step")] == ["2", "2"]
    assert float(rows["the slowest of 4, by itself"][2]) > 100
    assert real_data.reached(found, real_data.OF_RANKS) is True  # 33 for 31
    assert real_data.reached([each for each in found if each.barrier], real_data.OF_RANKS) is None


def test_cells_of_real_data_are_distinct() -> None:
    real_data = importlib.import_module("real_data")
    found = real_data.cells(20, random.Random(1))
    assert len(set(found)) == 20
