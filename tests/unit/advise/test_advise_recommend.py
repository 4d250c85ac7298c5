from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest
from builders import WAITING, blocks, config, failed, machine, run, target, trial
from golden import drawn
from hypothesis import given
from hypothesis import strategies as st
from predicted_runs import calibration

from dlprof.advise.recommend import recommend
from dlprof.errors import NothingMeasuredError, UsageError
from dlprof.records import (
    Config,
    Constraints,
    Cost,
    Diagnosis,
    Estimate,
    Failure,
    Recommendation,
    Run,
    RunEnd,
    Target,
    Trial,
    Usage,
)
from dlprof.records.run import EndReason
from dlprof.report.sweep import recommendation_report

W0, W1, W2, W4, W8 = (config(w) for w in (0, 1, 2, 4, 8))
RISING = {
    W0: [100, 101, 99],
    W2: [195, 198, 197],
    W4: [390, 385, 392],
    W8: [393, 390, 395],
}


def rising() -> list[Trial]:
    """Trials of a loader that waits: what differs is no noise."""
    return blocks(RISING, usage=WAITING)


def claims(answer: Recommendation) -> str:
    return "\n".join(reason.claim for reason in answer.reasons)


def relations(answer: Recommendation) -> dict[str, str]:
    return {other.config.key: other.relation for other in answer.alternatives}


@pytest.mark.parametrize(
    ("rates", "fields", "differs"),
    [
        ({W0: [90, 91], W2: [180, 181], W8: [7000, 6900]}, {"kind": "iterable"}, True),
        ({W0: [90, 91], W2: [180, 181], W8: [3000, 9000]}, {"kind": "iterable"}, True),
        ({W0: [90, 91], W2: [180, 181], W8: [1400, 1390]}, {"kind": "iterable"}, False),
        ({W0: [90, 91], W2: [1600, 1610], W8: [7000, 6900]}, {"kind": "iterable"}, False),
        ({W0: [90, 91], W2: [180, 181], W8: [7000, 6900]}, {"kind": "map"}, False),
        (
            {dataclasses.replace(W0, batch_size=1): [90, 91], W2: [1600, 1610], W8: [7000, 6900]},
            {"kind": "iterable"},
            False,
        ),
    ],
)
def test_workers_that_each_give_far_more_than_one_alone_saw_other_samples(
    rates: dict[Config, list[float]], fields: dict[str, Any], differs: bool
) -> None:
    """Where the first samples are slow, only many workers get past them within a trial."""
    seen = run(blocks(rates, usage=WAITING), target=target(**fields), machine=machine(64))
    answer = recommend(seen)
    assert answer.config == W8
    sign = r"each of 8 workers gave at least \S+x what fewer gave each: the first samples of an"
    assert (re.match(sign, answer.confidence_reason) is not None) is differs
    shown = drawn(recommendation_report(seen, answer), 200)
    assert (": fewer workers got to slower samples only" in shown) is differs
    if differs:  # nor does any reason claim a gain, or a longer sweep help
        claims = " ".join(each.claim for each in answer.reasons)
        assert not re.search("x as fast|faster than|slower than|at least", claims)
        assert "sweep again" not in re.sub(r"\s+", " ", shown).partition("Certainty")[0]


def test_the_cheapest_of_those_that_tie_with_the_best() -> None:
    answer = recommend(run(rising()))
    assert answer.config == W4
    assert answer.dataloader_kwargs == {
        "num_workers": 4,
        "prefetch_factor": 2,
        "persistent_workers": False,
        "pin_memory": False,
    }
    assert answer.confidence == "high"
    assert re.fullmatch(
        r"within [1-5]% of the best of the 4 measured settings \(95%\)", answer.confidence_reason
    )


def test_what_to_expect_comes_from_its_own_trials() -> None:
    expected = recommend(run(rising())).expected
    rate = expected.samples_per_s
    assert rate.value == pytest.approx(389, abs=1)
    assert rate.low is not None
    assert rate.high is not None
    assert rate.low < 385
    assert rate.high > 392
    assert expected.shm_bytes == 9 * 32 * 3 * 224 * 224 * 4
    unfilled = expected.shm_bytes - (50 << 20)  # when memory was read
    assert expected.pss_bytes == (500 << 20) + unfilled
    assert expected.startup_s == 0.05
    assert expected.wait_fraction is None


def test_reasons_name_the_gain_and_the_trials_that_prove_it() -> None:
    answer = recommend(run(rising()))
    gain = answer.reasons[0]
    assert gain.claim.startswith(
        "num_workers=4 is 3.89x as fast as num_workers=0, PyTorch's default (95% CI 3."
    )
    assert gain.evidence["trials"] == ["t0001", "t0003", "t0005", "t0007", "t0009", "t0011"]
    assert gain.evidence["ratio"]["low"] < 3.89 < gain.evidence["ratio"]["high"]
    assert "Fewer workers are slower: num_workers=2 is 0.51x as fast (95% CI 0." in claims(answer)
    assert "num_workers=8 is 1.01x as fast (95% CI " in claims(answer)
    json.dumps([dataclasses.asdict(reason) for reason in answer.reasons])


def test_alternatives_are_ordered_by_speed_and_say_what_they_are() -> None:
    answer = recommend(run(rising()))
    assert [other.config for other in answer.alternatives] == [W8, W2, W0]
    assert relations(answer) == {"w8-p2": "fastest", "w2-p2": "slower", "w0": "default"}
    assert answer.alternatives[-1].speed == pytest.approx(1 / 3.89, rel=0.01)


def owned(present: Config) -> Target:
    """A target whose own DataLoader is set so."""
    return target(own_config=present)


def test_the_gain_over_the_present_settings_is_reported_first() -> None:
    answer = recommend(run(rising(), target=owned(W2)))
    assert answer.config == W4
    assert "Fewer workers" not in claims(answer)  # which these are: it is said once
    gain = answer.reasons[0]
    assert gain.claim.startswith(
        "num_workers=4 is 1.98x as fast as the present settings, num_workers=2 (95% CI "
    )
    assert gain.evidence["ratio"]["value"] == pytest.approx(1.98, abs=0.01)
    assert "PyTorch's default" in answer.reasons[1].claim


def test_the_present_settings_are_the_first_alternative() -> None:
    answer = recommend(run(rising(), target=owned(W2)))
    assert [other.config for other in answer.alternatives] == [W2, W8, W0]
    assert relations(answer) == {"w2-p2": "present", "w8-p2": "fastest", "w0": "default"}


def test_present_settings_that_tie_are_as_good_as_any_and_the_cheapest_still_wins() -> None:
    same = {**RISING, W8: [386, 381, 388]}
    answer = recommend(run(blocks(same, usage=WAITING), target=owned(W8)))
    assert answer.config == W4
    assert answer.reasons[0].claim.startswith(
        "Your present settings, num_workers=8, are as good as any: num_workers=4 is cheaper and "
        "is 1.01x as fast (95% CI "
    )
    assert relations(answer)["w8-p2"] == "present"


def test_that_a_comparison_is_too_uncertain_is_said_once() -> None:
    """Not of the one with the other, and then of the other with the one."""
    noisy = blocks({W2: [100, 180], W4: [700, 1500]}, noisy=True, spread=0.3)
    said = claims(recommend(run(noisy, target=owned(W2))))
    assert "num_workers=4 is faster than num_workers=2, but by how much is too uncertain" in said
    assert said.count("too uncertain") == 1


def test_present_settings_stay_where_nothing_is_likely_faster_and_that_is_said() -> None:
    """Both trials of each were disturbed: a gain of 7 %, give or take 60."""
    noisy = blocks({W0: [100, 120], W4: [95, 145]}, noisy=True, spread=0.3)
    found = run(noisy, target=owned(W0))
    answer = recommend(found)
    assert answer.config == W0
    assert "How num_workers=4 compares with num_workers=0 is too uncertain" in claims(answer)
    text = " ".join(drawn(recommendation_report(found, answer), 200).split())
    assert "Speed-up none that is likely: your settings give 110 samples/s (95% CI " in text
    assert "); others are too noisy to compare (sweep again with --budget " in text
    clear = run(blocks({W0: [100, 101], W4: [108, 109]}, usage=WAITING), target=owned(W0))
    assert recommend(clear).config == W4


def test_what_may_be_faster_but_not_surely_enough_is_said_to_be_that() -> None:
    """More likely than not by over 3 %, and not likely enough to leave what the user has."""
    trials = blocks({W2: [97, 88, 108], W4: [100, 105, 100]})
    answer = recommend(run(trials, target=owned(W2)))
    assert answer.config == W2
    said = claims(answer)
    assert "No other settings are likely faster than your present ones, num_workers=2: n" in said
    assert "which is not sure enough to leave the present settings for it" in said
    assert "within 3%" not in said
    assert "as good as any" not in said


def test_present_settings_are_left_for_nothing_that_gave_less() -> None:
    answer = recommend(run(rising(), target=owned(W8)))
    assert answer.config == W8
    assert answer.reasons[0].claim.startswith(
        "Your present settings, num_workers=8, are as good as any: num_workers=4, the fastest "
        "of the others, is 0.99x as fast (95% CI "
    )
    assert relations(answer) == {"w4-p2": "tie", "w0": "default"}


def test_present_settings_may_be_the_recommended_ones() -> None:
    answer = recommend(run(rising(), target=owned(W4)))
    assert answer.config == W4
    assert answer.reasons[0].claim.startswith(
        "Your present settings, num_workers=4, are as good as any: num_workers=8, the fastest "
        "of the others, is 1.01x as fast (95% CI "
    )
    assert "present" not in relations(answer).values()
    alone = recommend(run(blocks({W4: [100, 101]}), target=owned(W4)))
    assert "present settings" not in claims(alone)


def test_present_settings_that_are_torch_s_default_are_reported_once() -> None:
    answer = recommend(run(rising(), target=owned(W0)))
    assert relations(answer)["w0"] == "present"
    assert "as fast as the present settings, num_workers=0" in answer.reasons[0].claim
    assert "PyTorch's default" not in claims(answer)


def test_present_settings_that_were_not_measured_are_not_spoken_of() -> None:
    for answer in (
        recommend(run(rising(), target=owned(config(3)))),
        recommend(run(rising(), target=owned(W8)), Constraints(max_workers=4)),
    ):
        assert "present settings" not in claims(answer)
        assert "present" not in relations(answer).values()


def test_present_settings_are_known_by_how_they_were_measured() -> None:
    """The start method was kept, and without an accelerator nothing was pinned."""
    own = config(2, pin_memory=True, start_method="spawn")
    answer = recommend(run(rising(), target=owned(own)))
    assert relations(answer)["w2-p2"] == "present"
    with_device = recommend(run(rising(), target=owned(own), accelerator="cuda"))
    assert "present" not in relations(with_device).values()


def test_a_sure_difference_of_little_is_called_little_and_no_doubt() -> None:
    """With so many repeats, 1.5% is no chance, but no training run shows it."""
    answer = recommend(run(blocks({W4: [1000.0] * 60, W8: [1015.0] * 60}, spread=0.001)))
    assert answer.config == W4
    assert (
        "num_workers=8 is 1.01x as fast (95% CI 1.01-1.02), and num_workers=4 is likely "
        "within 3% of it"
    ) in claims(answer)
    assert answer.confidence == "high"
    assert answer.confidence_reason.startswith("within ")


def test_far_fewer_workers_that_doubt_is_for_are_not_called_likely() -> None:
    answer = recommend(run(blocks({W2: [99, 90, 108], config(14): [100, 104, 98]})))
    assert answer.config == W2
    assert "num_workers=2 is more likely than not within 3% of it" in claims(answer)


def test_fewer_workers_that_are_not_ruled_out_are_not_called_slower() -> None:
    unsure = recommend(run(blocks({W2: [97, 88, 108], W4: [100, 105, 100]})))
    assert unsure.config == W4
    assert "num_workers=2 is cheaper and not ruled out: it is 0.96x as fast (95% CI " in claims(
        unsure
    )
    assert "Fewer workers" not in claims(unsure)
    assert "slower" not in relations(unsure).values()  # as the chart has it
    (two,) = (rate.ratio for rate in unsure.rates if rate.config == W2)
    assert two.value < 0.97
    assert two.ends[1] > 1


def test_fewer_workers_that_may_as_well_be_as_fast_are_not_called_slower() -> None:
    """They gave less than the present ones, and far less than more that may be no faster."""
    rates = {W2: [98.5, 98.6, 98.4, 98.5], W4: [100.0], W8: [106.7, 106.8, 106.6, 106.7]}
    answer = recommend(run(blocks(rates), target=owned(W4)))
    assert answer.config == W4
    assert "Fewer workers" not in claims(answer)
    surer = recommend(run(blocks({**rates, W4: [100.0] * 4}, usage=WAITING), target=owned(W4)))
    assert surer.config == W8


def test_no_workers_is_an_answer() -> None:
    answer = recommend(run(blocks({W0: [1000, 1010], W1: [300, 310], W4: [400, 400]})))
    assert answer.config == W0
    assert answer.dataloader_kwargs == {"num_workers": 0, "pin_memory": False}
    assert "num_workers=0 is enough: num_workers=4, the fastest with workers, is 0.40x as fast" in (
        claims(answer)
    )


def test_a_tie_prefers_fewer_workers_then_shallower_queues() -> None:
    deep, shallow, more = config(4, 8), config(4, 2), config(5, 2)
    answer = recommend(
        run(blocks({more: [102, 101], deep: [101, 102], shallow: [100, 101]}, usage=WAITING))
    )
    assert answer.config == shallow
    assert "num_workers=4, prefetch_factor=8 is 1.01x as fast (95% CI " in claims(answer)
    assert set(relations(answer).values()) <= {"tie", "fastest"}
    assert len(answer.alternatives) == 2


def test_a_lean_of_a_quarter_is_followed_however_unsure() -> None:
    answer = recommend(run(blocks({W0: [80], W4: [100]})))
    assert answer.config == W4
    # As the screen has it.
    assert "num_workers=4 is at most 25% slower than num_workers=0 (95%); how much" in claims(
        answer
    )
    assert answer.confidence != "high"
    assert answer.certificate is not None
    assert answer.certificate.epsilon > 0.05


def test_persistent_workers_pay_where_epochs_are_short() -> None:
    keep = config(4, persistent_workers=True)
    trials = [
        *blocks({W4: [1000, 1001, 999]}, epoch_turnover_s=1.0),
        *blocks({keep: [1000, 1000, 1000]}, epoch_turnover_s=0.002),
    ]
    short = recommend(run(trials, target=target(length=320, batches_per_epoch=10)))
    assert short.config == keep
    assert "persistent_workers=True is 3.92x as fast (95% CI " in claims(short)
    assert "epochs of 10 batches: starting workers again takes 1" in claims(short)
    long = recommend(run(trials, target=target(batches_per_epoch=10_000)))
    assert long.config == W4
    unknown = recommend(run(trials, target=target(length=None, batches_per_epoch=None)))
    assert unknown.config == W4


def test_long_restarts_that_persistent_workers_would_not_spare_are_a_reason() -> None:
    """They take the first batch, which workers that persist have to load as well."""
    keep = config(4, persistent_workers=True)
    trials = [
        *blocks({W4: [1000, 1001, 999]}, epoch_turnover_s=0.30),
        *blocks({keep: [1000, 1000, 1000]}, epoch_turnover_s=0.29),
    ]
    answer = recommend(run(trials, target=target(length=1280, batches_per_epoch=40)))
    assert answer.config == W4
    assert "persistent_workers=True is 1.01x as fast (95% CI " in claims(answer)
    assert "epochs of 40 batches: starting workers again takes 300 ms" in claims(answer)
    long = recommend(run(trials, target=target(batches_per_epoch=10_000)))
    assert "starting workers again takes" not in claims(long)


def test_noise_between_twins_is_no_reason_to_keep_workers() -> None:
    """They differ only in what happens between epochs, and epochs are long."""
    keep = config(4, persistent_workers=True)
    answer = recommend(run(blocks({W4: [100, 110, 90], keep: [140, 150, 130]})))
    assert answer.config == W4
    assert answer.expected.samples_per_s.value == pytest.approx(118, abs=2)


def test_failures_explain_themselves_and_are_never_recommended() -> None:
    trials = [*blocks({W0: [100, 100], W4: [400, 400]}), trial(W8, 900), failed(W8, repetition=1)]
    answer = recommend(run(trials))
    assert answer.config == W4
    assert "num_workers=8 failed: The worker was killed." in claims(answer)
    assert answer.reasons[-1].evidence == {"trials": ["t0006"]}


def test_many_failures_are_counted_after_the_first_few() -> None:
    trials = [trial(W0, 100), *(failed(config(w)) for w in range(1, 10))]
    reasons = recommend(run(trials)).reasons
    assert reasons[-1].claim == "4 more configurations failed"
    assert len(reasons[-1].evidence["trials"]) == 4


def skipped(chosen: Config, message: str = "Too little shared memory.", **rest: Any) -> Trial:
    failure = Failure(kind="shared_memory", message=message, hint="")
    return failed(chosen, outcome="skipped", failure=failure, **rest)


def test_what_was_skipped_is_not_called_failed() -> None:
    """Client 8: /dev/shm holds no worker's batches, and a lambda can't be spawned."""
    spawned = config(2, start_method="spawn")
    unstartable = Failure(kind="not_picklable", message="A lambda.", hint="")
    trials = [
        trial(W0, 100),
        failed(W8),
        *(skipped(config(workers)) for workers in range(1, 8)),
        failed(spawned, outcome="skipped", failure=unstartable),
    ]
    answer = recommend(run(trials))
    found = [reason.claim for reason in answer.reasons]
    assert found[-3:] == [
        "num_workers=8 failed: The worker was killed.",
        "num_workers=1 and 6 more were skipped: Too little shared memory.",
        "num_workers=2, start_method=spawn was skipped: A lambda.",
    ]
    assert len(answer.reasons[-2].evidence["trials"]) == 7
    rules = [rule.unavailable for rule in answer.rules_of_thumb if rule.unavailable]
    assert "num_workers=7 was skipped: Too little shared memory." in rules
    assert not any("7 failed" in text for text in rules)


def test_where_all_was_skipped_nothing_is_called_failed() -> None:
    with pytest.raises(
        NothingMeasuredError, match="only trial gave no rate; it was skipped: Too little"
    ):
        recommend(run([skipped(W4)]))


def test_where_everything_failed_once_the_rest_still_counts_with_low_confidence() -> None:
    trials = [trial(W4, 900), trial(W4, 900, repetition=1), failed(W4, repetition=2)]
    answer = recommend(run(trials))
    assert (answer.config, answer.confidence) == (W4, "low")
    assert answer.confidence_reason == "num_workers=4 also failed once"


@pytest.mark.parametrize(
    ("startup_s", "reason", "is_said"),
    [(1.4, "budget", True), (0.2, "budget", False), (1.4, "complete", False)],
)
def test_that_epochs_begin_slowly_is_said_where_a_budget_held_few_trials_for_it(
    startup_s: float, reason: EndReason, is_said: bool
) -> None:
    begun = {"startup_s": startup_s, "epoch_turnover_s": startup_s, "wall_s": 4.0}
    seen = run(blocks({W4: [500, 505], W8: [900, 910]}, **begun))
    cost = Cost(measured=4.0, overhead=12.0, total=16.0)
    ended = dataclasses.replace(seen, end=RunEnd(ended_at="", reason=reason, cost_s=cost))
    why = "the budget held 4 trials, as an epoch's first batch takes 1.4 s"
    assert recommend(ended).confidence_reason.endswith(why) is is_said


def test_nothing_measured() -> None:
    with pytest.raises(NothingMeasuredError, match="holds no trials"):
        recommend(run([]))
    ended = dataclasses.replace(
        run([]),
        end=RunEnd(
            ended_at="", reason="budget", cost_s=Cost(measured=0.0, overhead=1.0, total=1.0)
        ),
    )
    with pytest.raises(NothingMeasuredError, match="budget ended before the first trial"):
        recommend(ended)
    with pytest.raises(
        NothingMeasuredError, match=r"2 trials .* first failed: The worker"
    ) as found:
        recommend(run([failed(W4), failed(W8)]))
    assert found.value.hint == "Use fewer workers."
    with pytest.raises(NothingMeasuredError) as found:
        recommend(run([trial(W4, None)]))
    assert found.value.message == "The run's only trial gave no rate"
    assert "--budget" in found.value.hint


def test_what_was_skipped_is_not_why_others_have_no_rate() -> None:
    with pytest.raises(NothingMeasuredError, match="only trial gave no rate; it failed: The work"):
        recommend(run([skipped(W8), failed(W4)]))
    with pytest.raises(NothingMeasuredError, match="holds only traced trials"):
        recommend(run([skipped(W8), trial(W4, purpose="explain")]))
    cost = Cost(measured=0.0, overhead=1.0, total=1.0)
    ended = RunEnd(ended_at="", reason="budget", cost_s=cost)
    with pytest.raises(NothingMeasuredError, match="budget ended before the first trial"):
        recommend(dataclasses.replace(run([skipped(W8)]), end=ended))


def test_explained_trials_only() -> None:
    """``dlprof predict`` is named only where it has something to answer from."""
    explained = run([trial(W4, purpose="explain")])
    with pytest.raises(NothingMeasuredError, match="holds only traced trials") as found:
        recommend(explained)
    assert "dlprof predict" not in found.value.hint
    with pytest.raises(NothingMeasuredError, match="holds only traced trials") as found:
        recommend(dataclasses.replace(explained, calibration=calibration(cpu=0.01)))
    predicts = "Give this run file to dlprof predict, or give it more time with --budget."
    assert found.value.hint == predicts


def test_a_limit_on_workers_is_kept_and_reported() -> None:
    answer = recommend(run(rising()), Constraints(max_workers=2))
    assert answer.config == W2
    assert "max_workers=2 leaves out num_workers=4 and 1 more: num_workers=4 has 4" in (
        claims(answer)
    )
    assert answer.confidence == "high"


def test_what_breaks_a_limit_is_marked_wherever_its_rate_is_shown() -> None:
    measured = run(rising())
    answer = recommend(measured, Constraints(max_workers=2))
    beyond = {each.config: each.beyond for each in answer.rates}
    assert beyond == {each: "" for each in beyond if each.num_workers <= 2} | {
        W4: "max_workers=2: it has 4",
        W8: "max_workers=2: it has 8",
    }
    text = drawn(recommendation_report(measured, answer), 80)
    assert text.count("beyond max_workers=2") == 2
    needs = Usage(pss_peak_bytes=3 << 30)
    trials = [*blocks({W2: [200.0] * 2}), *blocks({W4: [400.0] * 2}, usage=needs)]
    bounded = recommend(run(trials), Constraints(max_ram_bytes=2 << 30))
    assert [each.beyond for each in bounded.rates] == ["max_ram (2.0 GiB): it needs 3.0 GiB", ""]


def test_nothing_within_limits_says_which_limit() -> None:
    with pytest.raises(UsageError, match=r"max_ram \(1.0 MiB\), and num_workers=0 needs 500"):
        recommend(run(rising()), Constraints(max_ram_bytes=1 << 20))


def test_pinning_is_judged_end_to_end() -> None:
    pinned = config(4, pin_memory=True)
    faster = blocks({W4: [100, 101, 100], pinned: [120, 121, 121]}, usage=WAITING)
    answer = recommend(run(faster))
    assert answer.config == pinned
    assert "pin_memory=True is 1.20x as fast as pin_memory=False (95% CI " in claims(answer)
    alike = blocks({W4: [100, 101, 100], pinned: [100, 100, 101]}, usage=WAITING)
    answer = recommend(run(alike))
    assert answer.config == W4
    assert "pin_memory=True is 1.00x as fast as pin_memory=False (95% CI " in claims(answer)


def test_what_is_surely_slower_by_nobody_knows_how_much_is_a_sentence() -> None:
    """Where a claim is about the figure alone, nothing of it is left."""
    pinned = config(4, pin_memory=True)
    noisy = blocks({W4: [700, 1500], pinned: [100, 180]}, noisy=True, spread=0.3)
    said = claims(recommend(run(noisy)))
    slower = "num_workers=4, pin_memory=True is slower than num_workers=4, but by how much"
    assert f"\n{slower} is too uncertain (at least " in f"\n{said}"
    assert "{" not in said


def test_drift_between_blocks_cancels() -> None:
    """The second block ran on a machine half as fast, and W8 was ruled out after the first."""
    answer = recommend(run(blocks({W0: [100, 50, 50], W4: [200, 100, 100], W8: [150]})))
    assert answer.config == W4
    default = next(other for other in answer.alternatives if other.config == W0)
    assert default.speed == pytest.approx(0.5, rel=0.001)


def test_busy_cores_and_neighbours_are_reported() -> None:
    usage = Usage(own_cpu_cores=5.8, available_cpu_cores=6.0, other_cpu_cores=2.0)
    answer = recommend(run(blocks({W4: [100, 101]}, usage=usage)))
    assert "Cores are the limit: it used 5.8 of the 6.0 available" in claims(answer)
    assert "Other processes kept 2.0 of 8 cores busy" in claims(answer)
    idle = Usage(own_cpu_cores=1.0, available_cpu_cores=8.0, other_cpu_cores=0.1)
    assert "ores" not in claims(recommend(run(blocks({W4: [100, 101]}, usage=idle))))


def test_a_share_that_more_workers_do_not_raise_is_the_cause() -> None:
    """Beside ten busy sessions own cores are below half of one, which said nothing."""
    usage = Usage(
        own_cpu_cores=0.32,
        available_cpu_cores=0.32,
        fair_cpu_cores=0.33,
        other_cpu_cores=7.6,
        run_queue_wait_fraction=0.85,
    )
    said = "sharing 8 with other sessions or containers leaves it 0.3, and more"
    found = claims(recommend(run(blocks({W2: [50, 51], W4: [50, 51]}, usage=usage))))
    assert f"Cores are the limit: {said} workers get no more of them (it used 0.3)" in found
    waits = dataclasses.replace(usage, own_cpu_cores=0.1, run_queue_wait_fraction=0.3)
    for other in (waits, dataclasses.replace(usage, fair_cpu_cores=7.9, own_cpu_cores=7.8)):
        found = claims(recommend(run(blocks({W2: [50, 51], W4: [50, 51]}, usage=other))))
        assert "other sessions" not in found


@pytest.mark.parametrize("ranks", [1, 4])
def test_ranks_that_use_the_whole_machine_are_limited_by_its_cores(ranks: int) -> None:
    usage = Usage(  # of one rank, and few threads wait for a core
        own_cpu_cores=7.8 / ranks, available_cpu_cores=8.0 / ranks, run_queue_wait_fraction=0.02
    )
    measured = run(blocks({W4: [100, 101]}, usage=usage), settings={"launch_ranks": [ranks]})
    assert "Cores are the limit" in claims(recommend(measured))
    larger = machine(64, hostname="larger", fingerprint="larger")
    assert "Cores are the limit" in claims(recommend(measured, machine=larger))


@pytest.mark.parametrize("busy", [30.0, 63.0])
def test_others_on_cores_that_a_quota_forbids_are_not_counted(busy: float) -> None:
    usage = Usage(own_cpu_cores=1.0, available_cpu_cores=2.0, other_cpu_cores=busy)
    container = machine(2.0, affinity_cpus=64, logical_cpus=64)
    found = claims(recommend(run(blocks({W0: [100], W4: [200]}, usage=usage), machine=container)))
    assert ("Other processes kept 63.0 of 64 cores busy" in found) is (busy > 62)
    assert ("Other processes" in found) is (busy > 62)


def test_another_machine_has_limits_and_cores_of_its_own() -> None:
    usage = Usage(own_cpu_cores=4.0, pss_peak_bytes=2 << 30)
    trials = [*blocks({W0: [100, 100]}), *blocks({W4: [400, 400], W8: [700, 700]}, usage=usage)]
    small = machine(2, hostname="small", fingerprint="small")
    answer = recommend(run(trials), machine=small)
    assert answer.extrapolated
    assert answer.confidence == "low"
    assert answer.confidence_reason == (
        "nothing was measured on small: only its cores and memory are known; "
        "not considered: more workers than 8 (a run of dlprof profile predicts them)"
    )
    assert not any(each.measured for each in answer.rates)
    assert "dlprof sweep" in answer.measure_there[0].command
    assert answer.constraints.machine == "small"
    assert answer.expected.samples_per_s.value == pytest.approx(350, rel=1e-3)
    tiny = machine(2, hostname="tiny", fingerprint="tiny", memory_bytes=1 << 30)
    answer = recommend(run(trials), machine=tiny)
    assert answer.config == W0
    assert "the memory of tiny (1.0 GiB) leaves out num_workers=4 and 1 more" in claims(answer)


def test_a_single_configuration_was_compared_with_none() -> None:
    answer = recommend(run(blocks({W4: [400.0, 401.0, 402.0]})))
    assert answer.confidence == "low"
    assert answer.confidence_reason.startswith("nothing else that may be chosen")


def test_a_step_of_nothing_is_no_step() -> None:
    measured = run(rising())
    assert recommend(measured, Constraints(step_s=0.0)) == recommend(measured)


def test_a_choice_by_disturbed_trials_alone_is_not_high_where_repeats_scatter() -> None:
    few, many = [1000.0, 1300.0, 800.0], [1100.0, 900.0, 1250.0]
    quiet, disturbed = (
        recommend(run(blocks({W0: [100.0] * 3, W4: few, W8: many}, noisy=noisy))).certificate
        for noisy in (False, True)
    )
    assert quiet is not None
    assert disturbed is not None
    assert disturbed.epsilon > max(0.15, quiet.epsilon)


def test_absurd_figures_give_finite_answers() -> None:
    wild = [trial(W0, 1e-300), trial(W4, 1e300), trial(W4, 1.0, repetition=1)]
    answer = recommend(run([*wild, trial(W0, 1e-5, repetition=1, spread=1e9)]))
    json.dumps(dataclasses.asdict(answer), allow_nan=False)


def test_the_same_machine_given_as_a_profile_is_no_extrapolation() -> None:
    answer = recommend(run(rising()), machine=machine())
    assert not answer.extrapolated
    assert answer.confidence == "high"


def test_ranks_share_the_cores_and_the_memory() -> None:
    two = Usage(own_cpu_cores=2.0, pss_peak_bytes=1 << 30)
    eight = Usage(own_cpu_cores=4.0, pss_peak_bytes=3 << 30)
    trials = [*blocks({W2: [200] * 8}, usage=two), *blocks({W8: [400] * 8}, usage=eight)]
    answer = recommend(run(trials), Constraints(ranks=4))
    assert answer.config == W2, "both are held to 200 by two cores for each rank"
    assert answer.confidence_reason == "estimated, as one loader was measured, not 4 at once"
    assert not any(each.measured for each in answer.rates)
    assert answer.measure_there[0].command.endswith("--launch-ranks 4")
    assert all(each.measured for each in recommend(run(trials)).rates)
    bounded = recommend(run(trials), Constraints(ranks=4, max_ram_bytes=8 << 30))
    assert "max_ram (8.0 GiB) leaves out num_workers=8: num_workers=8 needs 4 x 3.0 GiB" in (
        claims(bounded)
    )
    crowded = recommend(run(trials), Constraints(ranks=8))
    assert "8 cores limit 8 loaders to about 50% of the measured rate" in claims(crowded)


rates = st.lists(st.floats(1, 1e5), min_size=1, max_size=4)


@given(
    st.dictionaries(st.sampled_from([W0, W1, W2, W4, W8, config(4, 4)]), rates, min_size=1),
    st.none() | st.floats(1e-4, 1.0),
    st.integers(1, 4),
)
def test_any_run_gets_an_answer_that_it_measured(
    table: dict[Config, list[float]], step_s: float | None, ranks: int
) -> None:
    answer = recommend(run(blocks(table)), Constraints(step_s=step_s, ranks=ranks))
    assert answer.config in table
    assert answer.expected.samples_per_s.value > 0
    others = [other.config for other in answer.alternatives]
    assert answer.config not in others
    assert len(set(others)) == len(others)
    ends = [answer.expected.samples_per_s, *(o.expected.samples_per_s for o in answer.alternatives)]
    assert all(_is_ordered(each) for each in ends)


def _is_ordered(estimate: Estimate) -> bool:
    low, high = estimate.low, estimate.high
    return low is not None and high is not None and low <= estimate.value <= high


def test_trials_that_explain_or_lack_the_page_cache_are_compared_with_none() -> None:
    measured = blocks({W0: [100, 101], W2: [195, 198]})
    slowed = [trial(W2, rate, purpose=purpose) for rate, purpose in ((20, "explain"), (10, "cold"))]
    assert recommend(run([*measured, *slowed])) == recommend(run(measured))


@pytest.mark.parametrize(
    ("rates", "present", "pick"),
    [
        ([109.0, 160.0, 80.0], None, W2),  # more likely faster than not
        ([109.0, 160.0, 80.0], W0, W0),  # no reason to change what the user has
        *(([110.0, 111.0, 109.0], own, W2) for own in (None, W0)),
        *(([101.0, 102.0, 100.0], own, W0) for own in (None, W0)),  # not worth it
        # May be faster, but more likely not.
        *(([97.0, 140.0, 72.0], own, W0) for own in (None, W0)),
    ],
)
def test_the_default_is_left_for_what_is_likely_faster_and_for_nothing_else(
    rates: list[float], present: Config | None, pick: Config
) -> None:
    trials = blocks({W0: [100.0, 99.0, 101.0], W2: rates}, usage=WAITING)
    answer = recommend(run(trials, target=target(own_config=present)))
    assert answer.config == pick


@pytest.mark.slow
@given(
    st.dictionaries(st.sampled_from([W1, W2, W4, W8]), rates, min_size=1),
    rates,
    st.sampled_from([None, W4]),
)
def test_nothing_that_gave_less_is_recommended_over_what_costs_nothing_or_is_in_use(
    table: dict[Config, list[float]], plain: list[float], present: Config | None
) -> None:
    answer = recommend(run(blocks({**table, W0: plain}), target=target(own_config=present)))
    kept = [other for other in answer.alternatives if other.config in {W0, present}]
    assert all(other.speed <= 1 + 1e-9 for other in kept)


@pytest.mark.parametrize(
    ("usage", "most"),
    [(WAITING, 200.0), (Usage(own_cpu_cores=8.0, available_cpu_cores=8.0), 300.0)],
)
def test_one_trial_each_makes_nothing_certain(usage: Usage, most: float) -> None:
    """Where a sweep is cut off after its first block."""
    rates = {config(0): [100.0], config(2): [198.0], config(4): [most]}
    once = recommend(run(blocks(rates, usage=usage)))
    twice = recommend(run(blocks({each: 2 * row for each, row in rates.items()}, usage=usage)))
    assert (once.confidence, twice.confidence) == ("medium", "high")


def _threaded_alone(runnable: float | None = 2.0, cores: float = 2.0, **rest: Any) -> Run:
    """Without workers a batch takes ten times as much CPU time as in a worker of one thread."""
    alone = Usage(own_cpu_cores=cores, main_runnable=runnable)
    one = Usage(own_cpu_cores=1.0, main_runnable=0.1)
    tried = [trial(config(0), 200.0, usage=alone), trial(config(1), 1000.0, usage=one)]
    return run(tried, **rest)


def test_a_sweep_names_the_threads_that_make_loading_without_workers_slow() -> None:
    """And what fixes them, though it recommends workers: its gain over none rests on them."""
    found = recommend(_threaded_alone())
    assert found.config == config(1)
    (threads,) = found.findings
    assert threads.code == "cpu.threads"
    # Each of two threads gets a core, and one alone takes a tenth of their CPU time.
    assert threads.predicted_gain is not None
    assert threads.predicted_gain.value == pytest.approx(5.0)
    # Nor is it missed where pinning is swept.
    pinned = trial(config(0, pin_memory=True), 190.0, usage=_threaded_alone().trials[0].usage)
    assert recommend(run([*_threaded_alone().trials, pinned])).findings
    screen = drawn(recommendation_report(_threaded_alone(), found), 200)
    assert "Threads" in screen
    assert "torch.set_num_threads(1), or OMP_NUM_THREADS=1" in screen
    # What a profile found, perhaps in workers, its own screen says.
    of_workers = Diagnosis(config=config(1), findings=(threads,))
    profiled = dataclasses.replace(_threaded_alone(), diagnosis=of_workers)
    advice = recommend(profiled)
    assert advice.findings == (threads,)
    assert "Threads" not in drawn(recommendation_report(profiled, advice), 200)


@pytest.mark.parametrize(
    "quiet",
    [
        _threaded_alone(runnable=1.0),  # one thread
        _threaded_alone(runnable=None),  # nobody knows
        _threaded_alone(cores=0.4),  # each of two does half of the work
        run([trial(config(0), 200.0, usage=Usage(own_cpu_cores=2.0, main_runnable=2.0))]),
    ],
)
def test_threads_that_share_the_work_are_no_cause(quiet: Run) -> None:
    assert recommend(quiet).findings == ()
