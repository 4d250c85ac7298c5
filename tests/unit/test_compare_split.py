from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from builders import around, config, header, run, target, trial
from compare_runs import Costs, made_run
from hypothesis import given, settings
from hypothesis import strategies as st

from dlprof.advise.compare import Comparison, compare, shares
from dlprof.errors import NothingMeasuredError, UsageError
from dlprof.records import SPREAD_SIGN, Run, Trial, Usage, WatchedScript
from dlprof.stats.intervals import t_quantile

_FRACTIONS = st.none() | st.floats(0, 1)
_FIGURES = st.none() | st.floats(0, 1e6)


def _sum(comparison: Comparison) -> float:
    return math.fsum(part.log_ratio.value for part in comparison.parts)


def _parts(comparison: Comparison) -> dict[str, float]:
    return {part.code: part.log_ratio.value for part in comparison.parts}


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"cpu_s": 0.02}, "cpu"),
        ({"affinity": 4}, "cores"),
        ({"quota": 4.0, "throttled": 0.5}, "quota"),
        ({"taken": 12.0}, "neighbours"),
        ({"io_s": 0.03}, "storage"),
    ],
)
def test_a_single_cause_is_the_whole_difference(
    changed: dict[str, Any], cause: str, ranks: int
) -> None:
    known = Costs(ranks=ranks)
    found = compare(made_run(known), made_run(dataclasses.replace(known, **changed)))
    total = math.log(found.ratio.value)
    assert total < math.log(0.7)
    assert found.parts[0].code == cause
    assert found.parts[0].explanation[0].isupper()  # behind a sentence
    assert found.parts[0].log_ratio.value == pytest.approx(total, rel=0.02)
    assert found.findings[0].predicted_gain is not None
    assert found.findings[0].predicted_gain.value == pytest.approx(1 / found.ratio.value, rel=0.05)


@pytest.mark.parametrize("ranks", [1, 4])
def test_parts_of_several_causes_add_up_and_multiply(ranks: int) -> None:
    slower = Costs(cpu_s=0.012, affinity=4, taken=2.0, ranks=ranks)
    found = compare(made_run(Costs(ranks=ranks)), made_run(slower))
    assert _sum(found) == pytest.approx(math.log(found.ratio.value), abs=1e-9)
    assert math.prod(part.factor.value for part in found.parts) == pytest.approx(found.ratio.value)
    assert {"cpu", "cores", "neighbours"} <= set(_parts(found))
    assert abs(_parts(found)["remainder"]) < 0.01
    (crowd,) = (each for each in found.findings if each.code == "cpu.neighbours")
    assert crowd.explanation.startswith("A could use 16.0 of 16 cores")
    assert " B could use 2.0 of 4 cores" in crowd.explanation


def test_a_comparison_the_other_way_round_is_the_mirror() -> None:
    one, two = made_run(Costs()), made_run(Costs(cpu_s=0.012, affinity=8, io_s=0.005))
    there, back = _parts(compare(one, two)), _parts(compare(two, one))
    assert there == pytest.approx({code: -value for code, value in back.items()})


def test_cores_that_a_loader_does_not_want_explain_nothing() -> None:
    found = compare(made_run(Costs(workers=(0, 1))), made_run(Costs(workers=(0, 1), affinity=4)))
    assert abs(_parts(found).get("cores", 0.0)) < 1e-6
    assert "No measurable difference" in found.verdict
    assert found.findings == ()


def test_the_same_settings_are_compared_where_both_have_them() -> None:
    a, b = made_run(Costs(workers=(0, 2, 8))), made_run(Costs(workers=(0, 2, 4)))
    assert compare(a, b).a.config == compare(a, b).b.config == config(2)
    assert compare(a, b, num_workers=0).a.config == config(0)
    best = compare(a, b, best=True)
    assert (best.a.config, best.b.config) == (config(8), config(4))
    with pytest.raises(UsageError, match="num_workers=8"):
        compare(a, b, num_workers=8)


def test_settings_are_reported_by_what_was_measured_of_both() -> None:
    a = made_run(Costs(workers=(2, 8)))
    b = made_run(Costs(workers=(2,), cpu_s=0.02))
    found = compare(a, b, best=True)
    assert _parts(found)["settings"] == pytest.approx(math.log(2 / 8), abs=0.01)
    assert found.findings[0].code == "too_few_workers"
    assert found.findings[0].fix is not None
    assert found.findings[0].fix.dataloader_kwargs["num_workers"] == 8
    assert found.findings[0].predicted_gain is not None
    assert found.findings[0].predicted_gain.value == pytest.approx(4, rel=0.02)
    assert _parts(found)["cpu"] == pytest.approx(math.log(0.5), abs=0.01)
    assert _sum(found) == pytest.approx(math.log(found.ratio.value))


def test_settings_that_nobody_measured_on_one_side_are_reckoned() -> None:
    a, b = made_run(Costs(workers=(0, 8))), made_run(Costs(workers=(4,)))
    found = compare(a, b, best=True)
    assert found.parts[0].code == "settings"
    assert any("their part is an estimate" in doubt for doubt in found.doubts)
    assert "blocked on storage" in found.unknown


def test_without_usage_everything_is_the_remainder() -> None:
    bare = run([trial(config(2), 500.0, repetition=block, usage=Usage()) for block in range(2)])
    found = compare(made_run(Costs(workers=(0, 2))), bare)
    assert [part.code for part in found.parts] == ["remainder"]
    assert "CPU time per sample" in found.unknown
    assert "profile" in found.verdict


def test_a_single_trial_is_known_to_what_trials_differ_by_elsewhere() -> None:
    found = compare(made_run(Costs(), repeats=1), made_run(Costs(cpu_s=0.02), repeats=1))
    assert found.ratio.low is not None
    assert found.ratio.high is not None
    assert found.ratio.high > 1.5 * found.ratio.low
    assert all(part.log_ratio.low is None for part in found.parts)
    assert any("only once" in doubt for doubt in found.doubts)


def test_a_single_trial_within_what_the_other_sides_allow_for_is_no_difference() -> None:
    rates = (300.0, 600.0, 1000.0)
    some = run([trial(config(2), rate, repetition=n) for n, rate in enumerate(rates)])
    one, other = (run([trial(config(2), rate)]) for rate in (580.0, 60_000.0))
    for found in (compare(some, one), compare(one, some)):
        assert "No measurable difference" in found.verdict
        assert found.findings == ()
    assert "No measurable difference" not in compare(some, other).verdict


def test_parts_are_as_sure_as_the_side_that_spreads_most() -> None:
    """Ten trials that agree make two that don't no surer."""
    some = run([trial(config(2), 1000.0 + n % 2, repetition=n) for n in range(10)])
    two = run([trial(config(2), rate, repetition=n) for n, rate in enumerate((400.0, 500.0))])
    for found in (compare(some, two), compare(two, some)):
        (left,) = (part.log_ratio for part in found.parts)
        error = math.log(500 / 400) / 2
        assert left.high is not None
        assert left.high - left.value == pytest.approx(t_quantile(0.975, 1) * error, rel=0.01)


def test_what_a_part_would_bring_has_the_interval_of_the_part() -> None:
    slow = made_run(Costs(cpu_s=0.02))
    trials = [
        dataclasses.replace(each, samples_per_s=each.samples_per_s.times(1 + each.repetition / 50))
        for each in slow.trials
        if each.samples_per_s is not None
    ]
    found = compare(made_run(Costs()), dataclasses.replace(slow, trials=tuple(trials)))
    gain = found.findings[0].predicted_gain
    assert gain is not None
    assert gain.ends[0] < gain.value < gain.ends[1]


def test_a_single_trial_may_lie_as_far_off_as_single_trials_do() -> None:
    """Ten trials show their mean to a third of what each of them may be off."""
    some = run([trial(config(2), 1000.0 + 50.0 * (n % 3 - 1), repetition=n) for n in range(9)])
    near, far = (run([trial(config(2), rate)]) for rate in (945.0, 500.0))
    assert "No measurable difference" in compare(some, near).verdict
    assert "No measurable difference" not in compare(some, far).verdict


def test_different_data_is_refused_and_a_different_batch_size_is_doubted() -> None:
    other = target(spec="other.py:make", dataset="other.Texts")
    with pytest.raises(UsageError, match="different data"):
        compare(made_run(Costs()), made_run(Costs(), target=other))
    larger = made_run(Costs(), target=target(batch_size=64))
    found = compare(made_run(Costs()), larger)
    assert any("batch sizes differ" in doubt for doubt in found.doubts)


def test_rates_over_ten_epochs_are_said_beside_parts_of_the_first() -> None:
    """Of two profiles that differ in their step "unexplained 0.79x: profile both" said nothing."""
    about = {"first_sample_s": 0.02, "kept_sample_s": 1e-9, "sampler": "RandomSampler"}
    for kept, said in ((target(**about), True), (target(), False)):
        found = compare(made_run(Costs()), made_run(Costs(cpu_s=0.02), target=kept))
        assert any("rate is over 10 epochs" in doubt for doubt in found.doubts) is said


def test_batches_from_all_over_an_epoch_are_no_fault_and_compare_with_such() -> None:
    note = f"A sample at the beginning of an epoch takes 1 ms: trials took {SPREAD_SIGN}."
    spread, plain = made_run(Costs(), target=target(notes=(note,))), made_run(Costs())
    for a, b, said in ((spread, spread, False), (spread, plain, True), (plain, spread, True)):
        found = compare(a, b)
        assert SPREAD_SIGN not in found.verdict
        assert any(SPREAD_SIGN in doubt for doubt in found.doubts) is said


def test_a_script_and_a_sweep_are_refused_for_what_they_are() -> None:
    """And not for loading different data, which nobody knows."""
    script = WatchedScript(wall_s=1.0, ending="returned")
    watched = Run(path="script", header=header(target=target(spec="run:a.py", dataset="")))
    watched = dataclasses.replace(watched, script=script)
    for pair in ((made_run(Costs()), watched), (watched, made_run(Costs()))):
        with pytest.raises(NothingMeasuredError, match="script is of a training script"):
            compare(*pair)


def test_a_run_without_a_rate_is_refused() -> None:
    with pytest.raises(NothingMeasuredError):
        compare(made_run(Costs()), Run(path="empty", header=header()))


@st.composite
def _trials(draw: st.DrawFn) -> Trial:
    usage = Usage(
        own_cpu_cores=draw(_FIGURES),
        available_cpu_cores=draw(_FIGURES),
        other_cpu_cores=draw(_FIGURES),
        run_queue_wait_fraction=draw(_FRACTIONS),
        throttled_fraction=draw(_FRACTIONS),
        cache_hit_fraction=draw(_FRACTIONS),
        read_bytes_per_s=draw(_FIGURES),
    )
    rate = draw(st.floats(1e-3, 1e7))
    wait = draw(_FRACTIONS)
    return trial(config(draw(st.sampled_from([0, 1, 4]))), rate, usage=usage, wait_fraction=wait)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(_trials(), min_size=1, max_size=5), st.lists(_trials(), min_size=1, max_size=5))
def test_parts_add_up_whatever_the_figures(one: list[Trial], two: list[Trial]) -> None:
    for best in (False, True):
        found = compare(run(one), run(two), best=best)
        total = math.log(found.b.samples_per_s.value / found.a.samples_per_s.value)
        assert _sum(found) == pytest.approx(total, abs=1e-6)


def test_figures_below_zero_say_nothing() -> None:
    """As only a damaged file holds them: the share held back would leave no time at all."""
    bad = Usage(
        own_cpu_cores=1.0,
        other_cpu_cores=-1e60,
        run_queue_wait_fraction=0.5,
        throttled_fraction=-1.0,
    )
    found = compare(made_run(Costs()), run([trial(config(8), 100.0, usage=bad)]))
    assert _sum(found) == pytest.approx(math.log(found.ratio.value))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.floats(0.1, 3))
def test_shares_are_fair_and_whole(sizes: list[float], knee: float) -> None:
    causes = list(range(len(sizes)))

    def value(exchanged: frozenset[int]) -> float:
        return min(knee, sum(sizes[each] for each in exchanged))

    found = shares(causes, value)
    whole = value(frozenset(causes)) - value(frozenset())
    assert math.fsum(found.values()) == pytest.approx(whole, abs=1e-9)
    backwards = shares(causes[::-1], value)
    assert found == pytest.approx(backwards, abs=1e-9)
    for one in causes:
        for two in causes:
            if sizes[one] == sizes[two]:
                assert found[one] == pytest.approx(found[two], abs=1e-9)


def test_rates_of_explaining_passes_are_not_compared() -> None:
    plain = made_run(Costs(workers=(2,)))
    slowed = [
        dataclasses.replace(each, id=f"e{each.id}", purpose="explain", samples_per_s=around(1.0))
        for each in plain.trials
    ]
    mixed = dataclasses.replace(plain, trials=(*plain.trials, *slowed))
    assert compare(plain, mixed).ratio.value == pytest.approx(1.0)
    with pytest.raises(NothingMeasuredError):
        compare(mixed, dataclasses.replace(plain, trials=tuple(slowed)))


def test_waiting_on_storage_beside_neighbours_is_distinguished_from_them() -> None:
    """Neighbours take what a loader that waits leaves: that is not what slows it."""
    quick = made_run(Costs(cpu_s=0.001, affinity=2, taken=0.0, workers=(0, 2)))
    waiting = made_run(Costs(cpu_s=0.001, io_s=0.004, affinity=2, taken=0.0, workers=(0, 2)))
    beside = [
        dataclasses.replace(each, usage=dataclasses.replace(each.usage, other_cpu_cores=1.6))
        for each in waiting.trials
    ]
    found = compare(quick, dataclasses.replace(waiting, trials=tuple(beside)))
    assert found.parts[0].code == "storage"
    assert abs(_parts(found).get("neighbours", 0.0)) < 0.01


@pytest.mark.parametrize("slower", [Costs(affinity=4), Costs(quota=4.0), Costs(taken=12.0)])
def test_cores_are_reported_without_a_run_queue_too(slower: Costs) -> None:
    def blind(made: Run) -> Run:
        trials = [
            dataclasses.replace(
                each, usage=dataclasses.replace(each.usage, run_queue_wait_fraction=None)
            )
            for each in made.trials
        ]
        return dataclasses.replace(made, trials=tuple(trials))

    found = compare(blind(made_run(Costs())), blind(made_run(slower)))
    assert found.parts[0].code in {"cores", "quota", "neighbours"}
    assert abs(_parts(found)["remainder"]) < 0.02


def test_several_ranks_beside_one_loader_are_a_doubt() -> None:
    alone, two = made_run(Costs()), made_run(Costs(), settings={"launch_ranks": [2]})
    (said,) = (each for each in compare(two, alone).doubts if "at once" in each)
    assert said == "Rates are of one loader each: A loaded 2 of them at once, B 1."
    assert not any("at once" in each for each in compare(two, two).doubts)
