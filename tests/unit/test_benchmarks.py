"""The benchmarks' own arithmetic and tables; what they measure is not run here."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import json
import runpy
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import builders
import pytest

from dlprof.machine import inspect_machine
from dlprof.records import Config
from dlprof.search.space import build_space
from dlprof.settings.resolve import resolve_settings
from dlprof.store import read_run

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = (
    *("truth", "startup", "overhead", "observer", "watching", "memory", "budget", "estimator"),
    *("tracing", "faults", "kill_campaign", "gate_rule", "gate_campaign"),
    *("emulated", "emulated_speed", "real_data", "real_data_beside", "picks", "picks_beside"),
    *("planted", "planted_beside", "beside", "heavy", "shard_faults", "shared_files"),
    *("head_to_head", "attached"),
    *("differential", "trainings", "tuning", "dlio", "gpu", "mutation"),
)
WHERE: dict[str, Any] = {
    "taken_at": "2026-01-01T00:00:00+00:00",
    "cpu_model": "Example CPU",
    "logical_cpus": 8,
    "usable_cores": 4.0,
    "memory_bytes": 1 << 34,
    "memory_limit_bytes": None,
    "gpus": [],
    "platform": "Linux 6.1",
    "python": "3.11.0",
    "torch": "2.13.0",
    "dlprof": "0.1.0",
    "load_before": [0.1, 0.2, 0.3],
}


@pytest.fixture
def common() -> Any:
    return importlib.import_module("common")


@pytest.fixture
def runner() -> dict[str, Any]:
    return runpy.run_path(str(BENCHMARKS / "__main__.py"))


def document(common: Any, *, quick: bool = False, passed: bool | None = True) -> dict[str, Any]:
    report = common.Report(
        name="truth",
        title="It is true",
        goal="within 5 %",
        passed=passed,
        tables=[common.Table("", ("a", "b"), [("x", "1")])],
        notes=["One note."],
    )
    made: dict[str, Any] = common.document(report, WHERE, quick=quick)
    return made


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_benchmark_is_in_the_runner_and_the_readme(name: str, runner: dict[str, Any]) -> None:
    assert name in runner["NAMES"]
    assert f"`{name}.py`" in (BENCHMARKS / "README.md").read_text()
    assert callable(importlib.import_module(name).main)


def test_a_report_names_its_goal_its_verdict_and_its_machine(common: Any) -> None:
    text = common.markdown(document(common))
    assert "Goal: within 5 %. **Reached.**" in text
    assert "| a | b |\n| --- | ---: |\n| x | 1 |" in text
    assert "- One note." in text
    assert "4 usable of 8 logical CPUs, 16.0 GiB, no GPU" in text
    assert "load 0.10 before" in text


def test_a_quick_run_has_no_verdict(common: Any) -> None:
    text = common.markdown(document(common, quick=True))
    assert "Reached" not in text
    assert "mean nothing" in text


def test_a_goal_that_is_missed_is_said_so(common: Any) -> None:
    assert "**Not reached.**" in common.markdown(document(common, passed=False))


def test_surroundings_are_json(common: Any) -> None:
    here = common.surroundings()
    assert set(WHERE) == set(here)
    json.dumps(here)


def test_tables_replace_the_earlier_ones_and_nothing_else(
    common: Any, runner: dict[str, Any]
) -> None:
    text = (BENCHMARKS / "README.md").read_text()
    once = runner["with_tables"](text, [document(common)])
    assert "### It is true" in once
    assert runner["with_tables"](once, [document(common)]) == once
    assert once.partition(runner["BEGIN"])[0] == text.partition(runner["BEGIN"])[0]


def test_a_readme_without_marks_is_not_touched(runner: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="marks"):
        runner["with_tables"]("# Benchmarks", [])


def test_quick_results_are_not_collected(
    common: Any, runner: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "truth.quick.json").write_text("{}")
    assert runner["collect"](tmp_path) == []
    for name in ("differential_ecosystem", "truth"):
        (tmp_path / f"{name}.json").write_text(json.dumps({**document(common), "name": name}))
    found = [each["name"] for each in runner["collect"](tmp_path)]
    assert found == ["truth", "differential_ecosystem"]


def test_a_failed_command_is_an_error_with_what_it_wrote(common: Any) -> None:
    with pytest.raises(common.CommandError, match="ended with 3:\nalas"):
        common.run_command(["sh", "-c", "echo alas >&2; exit 3"])


def test_a_command_is_timed_and_its_output_kept(common: Any) -> None:
    done = common.run_command(["sh", "-c", "echo $WORD"], environ={"WORD": "yes"})
    assert done.stdout == "yes\n"
    assert done.wall_s >= 0
    assert done.peak_rss_bytes > 0


@pytest.mark.parametrize(
    ("values", "expected"), [([1.0], (1.0, 1.0)), ([1.0, 2.0, 3.0, 4.0, 5.0], (2.0, 4.0))]
)
def test_quartiles(common: Any, values: list[float], expected: tuple[float, float]) -> None:
    assert common.quartiles(values) == expected


def test_the_plain_loop_times_whole_batches_after_its_warm_up() -> None:
    plain_loop = importlib.import_module("plain_loop")
    moments = iter([10.0, 14.0])  # the clock is read twice only
    seconds = plain_loop.time_batches(
        iter(range(100)), warm_up=3, batches=8, clock=lambda: next(moments)
    )
    assert seconds == 4.0


def test_the_plain_loop_refuses_an_epoch_that_ends() -> None:
    plain_loop = importlib.import_module("plain_loop")
    with pytest.raises(ValueError, match="ended"):
        plain_loop.time_batches(range(5), warm_up=2, batches=4)


def test_the_plain_loop_shares_no_measuring_code() -> None:
    tree = ast.parse((BENCHMARKS / "plain_loop.py").read_text())
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in modules if name.startswith(("dlprof.trial", "dlprof.stats"))]


def test_a_cell_is_true_within_five_percent() -> None:
    truth = importlib.import_module("truth")
    cell = truth.Cell("images", 2, 100)
    for dlprof, plain in ((103.0, 100.0), (90.0, 100.0), (104.0, 100.0)):
        cell.add(builders.trial(Config(), dlprof), plain)
    assert cell.reached
    cell.pairs[1] = truth.Pair(120.0, 100.0)
    assert cell.reached
    cell.pairs[0] = truth.Pair(120.0, 100.0)
    assert not cell.reached
    report = truth.report_on([cell], truth.QUICK)
    assert report.passed is False


def test_the_interval_of_a_median_is_that_of_order_statistics() -> None:
    common = importlib.import_module("common")
    values = [float(value) for value in range(1, 11)]
    assert common.median_interval(values) == (2.0, 9.0)  # 11/1024 below the second of ten
    assert common.median_interval(values[:3]) == (1.0, 3.0)
    assert common.median_interval(4 * values) == (4.0, 7.0)  # the 14th from either end


def test_pairs_are_added_while_the_median_may_be_on_either_side_of_the_goal() -> None:
    truth = importlib.import_module("truth")
    cell = truth.Cell("images", 2, 100)
    cell.pairs = [truth.Pair(100.0 + 0.1 * turn, 100.0) for turn in range(10)]
    assert cell.is_decided
    cell.pairs[:4] = [truth.Pair(120.0, 100.0)] * 4
    assert not cell.is_decided


def test_the_overhead_sweep_has_its_32_configurations() -> None:
    overhead = importlib.import_module("overhead")
    given = {flag[2:].replace("-", "_"): value for flag, value in overhead.SETTINGS.items()}
    settings, _ = resolve_settings(given, environ={}, config_file=None, cwd=Path("/"))
    space = build_space(settings, builders.target(), builders.machine(), has_accelerator=False)
    assert len(space.configs) == overhead.TRIALS


def test_a_breakdown_adds_up_to_the_wall_time() -> None:
    overhead = importlib.import_module("overhead")
    trials = [
        builders.trial(
            Config(),
            started_at=datetime.fromtimestamp(start, UTC).isoformat(),
            measured_s=1.0,
            wall_s=1.5,
            startup_s=0.1,
            epoch_turnover_s=0.2,
        )
        for start in (1005.0, 1007.0)
    ]
    run = builders.run(trials, target=builders.target(import_s=3.0))
    parts = overhead.break_down(run, began_at=1000.0, wall_s=10.0)
    assert parts.before_s == pytest.approx(5.0)
    assert parts.between_s == pytest.approx(0.5)
    assert parts.after_s == pytest.approx(1.5)
    assert parts.rest_s == pytest.approx(0.4)
    assert parts.outside == pytest.approx(0.8)
    sums = ("windows_s", "before_s", "startup_s", "turnover_s", "rest_s", "between_s", "after_s")
    assert sum(getattr(parts, name) for name in sums) == pytest.approx(parts.wall_s)
    report = overhead.report_on({"case": (parts, run)}, 2.0)
    assert report.passed is False


def test_made_runs_read_back(tmp_path: Path) -> None:
    made_runs = importlib.import_module("made_runs")
    path = tmp_path / "made.dlprof.jsonl"
    trials = made_runs.made_trials(60)
    made_runs.write_run(path, made_runs.made_header(), trials)
    run = read_run(path)
    assert run.trials == tuple(trials)
    assert run.trials[-1].repetition == 2
    assert run.header.machine.fingerprint == inspect_machine().fingerprint
    assert len(set(made_runs.configurations())) == 25
    assert made_runs.long_plan(60).max_repeats > run.trials[-1].repetition


@pytest.mark.parametrize("name", ["slow_target", "endless_target"])
def test_made_targets_are_python(name: str, tmp_path: Path) -> None:
    made_targets = importlib.import_module("made_targets")
    kinds = (("sleep",), ("burn",)) if name == "slow_target" else ((),)
    for arguments in kinds:
        path, _, attribute = getattr(made_targets, name)(tmp_path, *arguments).rpartition(":")
        tree = ast.parse(Path(path).read_text())
        assert attribute in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}


@pytest.mark.parametrize(
    ("command", "depth", "part"),
    [
        (["python", "-m", "dlprof", "sweep"], 0, "supervisor"),
        (["python", "-m", "dlprof.trial.fork_server", "3"], 1, "fork server"),
        (["python", "-m", "dlprof.trial.fork_server", "3"], 2, "trial"),
        (["python", "-m", "dlprof.trial.observer"], 1, "observer"),
        (["python", "-m", "dlprof.trial.child"], 1, "trial"),
    ],
)
def test_parts_of_a_process_tree(command: list[str], depth: int, part: str) -> None:
    process_tree = importlib.import_module("process_tree")
    assert process_tree.part_of(command, depth=depth) == part


def test_peaks_keep_the_highest_of_each_part_and_of_the_sum() -> None:
    peaks = importlib.import_module("process_tree").Peaks()
    peaks.take({"supervisor": 10, "trial": 5})
    peaks.take({"supervisor": 4, "trial": 9})
    assert (peaks.total, peaks.parts) == (15, {"supervisor": 10, "trial": 9})


def test_growth_is_held_against_the_plain_loops() -> None:
    memory = importlib.import_module("memory")
    tree = importlib.import_module("process_tree")
    grown = memory.Grown(
        what="indices",
        short=tree.Peaks(100, {"trial": 100}),
        long=tree.Peaks(180, {"trial": 180}),
        allowed=90,
        why="the plain loop's",
    )
    assert grown.growth == 80
    assert memory.report_on([grown], [], memory.FULL).passed is True
    too_much = dataclasses.replace(grown, allowed=70)
    assert memory.report_on([too_much], [], memory.FULL).passed is False


def test_every_trial_is_held_against_the_observers_goal() -> None:
    observer = importlib.import_module("observer")
    cheap = observer.Cost(
        target="waiting", num_workers=0, stated_cores=0.01, kernel_cores=0.02, kernel_cpu_s=0.05
    )
    costly = dataclasses.replace(cheap, stated_cores=0.03)
    unknown = dataclasses.replace(cheap, stated_cores=None)
    assert observer.report_on([cheap, cheap], 5.0).passed is True
    assert observer.report_on([cheap, costly], 5.0).passed is False
    assert observer.report_on([cheap, unknown], 5.0).passed is False


def test_cpu_time_is_that_of_all_threads(tmp_path: Path) -> None:
    observer = importlib.import_module("observer")
    for thread, text in (("7", "1500000000 4 2"), ("8", "500000000 1 1")):
        folder = tmp_path / "7" / "task" / thread
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(text)
    assert observer.cpu_s(tmp_path, 7) == 2.0


def test_a_budget_may_be_left_over_but_not_overdrawn() -> None:
    budget = importlib.import_module("budget")
    kept = budget.Spent(
        target="images", budget_s=30.0, wall_s=20.0, reason="decided", trials=9, configs=4
    )
    assert budget.report_on([kept, dataclasses.replace(kept, wall_s=32.9)]).passed is True
    assert budget.report_on([kept, dataclasses.replace(kept, wall_s=33.1)]).passed is False


def test_simple_ways_of_timing_are_off_where_batches_come_in_bursts() -> None:
    estimator = importlib.import_module("estimator")
    # Eight workers of one batch a second each, all in step: eight batches at each full second.
    steady_s = [float(1 + number // 8) for number in range(400)]
    # A rest until the 16 batches in flight are there: they come at once, the others in step.
    paused_s = [1.0, *([1.0 + estimator.PAUSE_S] * 16), *([2.0 + estimator.PAUSE_S] * 8)]
    found = estimator.ways(estimator.Passed(0.0, steady_s), estimator.Passed(0.0, paused_s))
    slow, fast, worst, _, own = (found[way] for way in estimator.WAYS)
    assert slow < 1 < fast
    assert abs(worst - 1) > 0.1
    assert own == pytest.approx(1.0)


def test_gaps_are_alike_a_round_apart() -> None:
    estimator = importlib.import_module("estimator")
    gaps = [1.0 if number % 8 == 0 else 0.0 for number in range(400)]
    assert estimator.autocorrelation(gaps, 8) == pytest.approx(1.0)
    assert estimator.autocorrelation(gaps, 3) < 0


@pytest.mark.parametrize(
    ("command_line", "parents", "depth", "part"),
    [
        ("python -m dlprof sweep", "sh", 0, "supervisor"),
        ("python -m dlprof.trial.observer", "python -m dlprof sweep", 1, "observer"),
        ("python -m dlprof.trial.fork_server 5", "python -m dlprof sweep", 1, "fork server"),
        (
            "python -m dlprof.trial.fork_server 5",
            "python -m dlprof.trial.fork_server 5",
            2,
            "trial",
        ),
        (
            "python -m dlprof.trial.fork_server 5",
            "python -m dlprof.trial.fork_server 5",
            3,
            "worker",
        ),
        ("python -c from multiprocessing.spawn import x", "python", 3, "worker"),
        ("python -c from multiprocessing.resource_tracker import x", "y", 3, "resource tracker"),
        ("python -c from multiprocessing.forkserver import x", "python", 3, "forkserver"),
        (
            "python -c from multiprocessing.forkserver import x",
            "multiprocessing.forkserver",
            4,
            "worker",
        ),
    ],
)
def test_the_campaign_knows_whom_it_kills(
    command_line: str, parents: str, depth: int, part: str
) -> None:
    assert (
        importlib.import_module("kill_victims").part_of(command_line, parents, depth=depth) == part
    )


def test_the_campaign_notes_who_imports_torchs_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    exec(importlib.import_module("kill_campaign").TARGET, {})
    for name in ("torch._dynamo", "torch.fx"):
        assert sys.meta_path[0].find_spec(name, None) is None
    noted = (tmp_path / "imports.txt").read_text()
    assert noted.count("in test_the_campaign_notes_who_imports_torchs_compiler") == 1


@pytest.mark.parametrize(
    ("now", "count"),
    [(b"a\nb\n", 0), (b"a\nb\nc\n", 0), (b"a\n", 1), (b"", 2), (b"b\na\n", 2), (b"a\nx\n", 1)],
)
def test_the_campaign_counts_lost_trials(now: bytes, count: int) -> None:
    assert importlib.import_module("kill_campaign").lost(b"a\nb\n", now) == count


MUTATED = b"""\
A: int | None = 2
def share(of, count=1, *, sure: bool = True):
    \"\"\"Not 1 of these + 2.\"\"\"
    for each in of:
        if not each or each <= (count) - 1 and sure:  # a + b
            continue
    while count != 3:
        count += 1
    return f"{1 + 1}"
"""


def test_mutants_change_what_runs_and_nothing_else() -> None:
    mutation = importlib.import_module("mutation")
    found = mutation.mutants_of("dlprof/stats/made.py", MUTATED)
    assert [(each.line, each.after) for each in found] == [
        (1, "A: int | None = 3"),
        (2, "def share(of, count=2, *, sure: bool = True):"),
        (2, "def share(of, count=1, *, sure: bool = False):"),
        (4, "for each in []:"),
        (5, "if each or each <= (count) - 1 and sure:  # a + b"),
        (5, "if not (not each or each <= (count) - 1 and sure):  # a + b"),
        (5, "if not each and each <= (count) - 1 and sure:  # a + b"),
        (5, "if not each or each < (count) - 1 and sure:  # a + b"),
        (5, "if not each or each <= (count) + 1 and sure:  # a + b"),
        (5, "if not each or each <= (count) - 2 and sure:  # a + b"),
        (5, "if not each or each <= (count) - 1 or sure:  # a + b"),
        (6, "break"),
        (7, "while count == 3:"),
        (7, "while count != 4:"),
        (8, "count -= 1"),
        (8, "count += 2"),
        (9, "return None"),
    ]
    sound = ast.dump(ast.parse(MUTATED))
    assert all(ast.dump(ast.parse(each.applied(MUTATED))) != sound for each in found)
    assert {each.room for each in found} == {"stats"}


@pytest.mark.slow
def test_a_mutant_is_asked_of_the_tests_that_import_its_room() -> None:
    mutation = importlib.import_module("mutation")
    first, then, others = mutation.tests_of(BENCHMARKS.parent, "dlprof/gate/rule.py")
    assert "tests/unit/test_gate_rule.py" in first
    assert "tests/unit/test_api_check.py" in then  # by a helper
    assert "tests/unit/test_stats.py" in others
