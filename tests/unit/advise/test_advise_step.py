from __future__ import annotations

import pytest
from builders import WAITING, blocks, config, machine, run, trial

from dlprof.advise.recommend import recommend
from dlprof.errors import UsageError
from dlprof.records import Constraints, Recommendation, Trial, Usage

W0, W2, W4, W8 = (config(w) for w in (0, 2, 4, 8))
STEP_S = 0.010
"""100 batches, 3200 samples a second."""


def at_measured_step(usage: Usage = WAITING) -> list[Trial]:
    return [
        *blocks({W0: [1600, 1590, 1610]}, wait_fraction=0.5, usage=usage),
        *blocks({W2: [3150, 3140, 3160]}, wait_fraction=0.015, usage=usage),
        *blocks({W4: [3190, 3190, 3195]}, wait_fraction=0.002, usage=usage),
        *blocks({W8: [3195, 3195, 3195]}, wait_fraction=0.001, usage=usage),
    ]


def without_step(two: float = 3000) -> list[Trial]:
    rates = {W0: 2000.0, W2: two, W4: 8000.0, W8: 12_000.0}
    return blocks({each: [rate] * 3 for each, rate in rates.items()})


def over_epochs(rate: float, *, wait_s: float = 0.0, ranks: int = 1) -> float:
    """Of epochs of 1000 batches, between which 50 ms pass, the wait for the first among them."""
    samples = 32_000 / ranks
    return samples / (samples / rate + 0.05 - wait_s)


def first(answer: Recommendation) -> str:
    return answer.reasons[0].claim


def test_a_measured_step_is_fed_by_the_cheapest_that_waits_little() -> None:
    answer = recommend(run(at_measured_step(), settings={"step_s": STEP_S}))
    assert answer.config == W2
    assert answer.expected.wait_fraction == pytest.approx(0.015)
    assert answer.constraints.step_s == STEP_S
    assert answer.confidence == "high"
    assert first(answer) == (
        "The cheapest configuration that keeps a step of 10 ms fed: "
        "with num_workers=2 the step waits 1.5% of the time"
    )


def test_a_step_that_is_fed_by_computing_is_no_less_fed() -> None:
    """The step sets the rate, so that the speed of the cores that load for it is no doubt."""
    computes = Usage(own_cpu_cores=1.9, available_cpu_cores=8.0)
    answer = recommend(run(at_measured_step(computes), settings={"step_s": STEP_S}))
    assert answer.config == W2
    assert answer.confidence in {"high", "medium"}


def test_asking_for_the_step_that_was_measured_changes_nothing() -> None:
    measured = run(at_measured_step(), settings={"step_s": STEP_S})
    assert recommend(measured, Constraints(step_s=STEP_S)) == recommend(measured)


def test_without_a_calibration_no_step_is_not_the_step_that_was_measured() -> None:
    with pytest.raises(UsageError, match="for a shorter one") as caught:
        recommend(run(at_measured_step(), settings={"step_s": STEP_S}), Constraints(step_s=0.0))
    assert "Sweep again without a step" in str(caught.value)
    assert recommend(run(without_step()), Constraints(step_s=0.0)).config == W8


@pytest.mark.parametrize(
    ("step_s", "again"), [(5e-6, "with --step-time 0.005ms"), (0.0, "without a step")]
)
def test_a_step_that_is_a_function_is_as_long_as_its_trials_have_it(
    step_s: float, again: str
) -> None:
    measured = run(at_measured_step(), settings={"step_callable": "train:step"})
    with pytest.raises(UsageError, match="with a step of 10 ms, which predicts nothing") as caught:
        recommend(measured, Constraints(step_s=step_s))
    assert f"Sweep again {again}" in str(caught.value)
    assert recommend(measured, Constraints(step_s=1.0)).config == W0


def test_a_step_of_unknown_length_counts_by_its_wait() -> None:
    answer = recommend(run(at_measured_step(), settings={"step_callable": "train:step"}))
    assert answer.config == W2
    assert "keeps the step fed" in first(answer)
    assert answer.constraints.step_s is None


def test_repeats_that_reach_below_the_bound_count_as_fed() -> None:
    trials = [
        *blocks({W8: [3195] * 3}, wait_fraction=0.001, usage=WAITING),
        *(
            trial(W4, 3150, repetition=block, wait_fraction=wait, usage=WAITING)
            for block, wait in enumerate((0.005, 0.03, 0.04))
        ),
    ]
    assert recommend(run(trials, settings={"step_s": STEP_S})).config == W4


def test_where_nothing_feeds_the_step_the_best_is_taken() -> None:
    trials = [
        *blocks({W0: [800, 800, 800]}, wait_fraction=0.75),
        *blocks({W4: [1600, 1600, 1600]}, wait_fraction=0.5),
    ]
    answer = recommend(run(trials, settings={"step_s": STEP_S}))
    assert answer.config == W4
    assert first(answer).startswith(
        "No configuration keeps a step of 10 ms fed; with num_workers=4"
    )


def test_a_wait_that_nobody_saw_is_not_none_at_all() -> None:
    trials = [
        *blocks({W4: [1600, 1600, 1600]}, wait_fraction=0.5),
        *blocks({W2: [1000, 1000, 1000]}),
    ]
    answer = recommend(run(trials, settings={"step_s": STEP_S}))
    assert first(answer).startswith("No configuration keeps a step of 10 ms fed; with")


def test_a_step_that_was_not_measured_is_derived_and_marked() -> None:
    answer = recommend(run(without_step()), Constraints(step_s=STEP_S))
    assert answer.config == W4
    assert answer.expected.samples_per_s.value == pytest.approx(over_epochs(3200), rel=1e-3)
    assert answer.expected.wait_fraction == pytest.approx(0.0)
    assert "not measured with that step" in first(answer)


def test_a_derived_step_needs_a_margin() -> None:
    barely = without_step(two=3300)
    clearly = without_step(two=3700)
    assert recommend(run(barely), Constraints(step_s=STEP_S)).config == W4
    assert recommend(run(clearly), Constraints(step_s=STEP_S)).config == W2


def test_without_workers_loading_and_step_take_turns() -> None:
    """W=0 loads 62 batches a second: it could never keep up, nor hide its loading time."""
    answer = recommend(run(blocks({W0: [2000.0] * 3})), Constraints(step_s=STEP_S))
    assert answer.expected.samples_per_s.value == pytest.approx(
        over_epochs(32 / (0.010 + 32 / 2000), wait_s=32 / 2000), rel=1e-4
    )
    assert answer.expected.wait_fraction == pytest.approx(16 / 26)


def test_without_workers_is_enough_for_a_long_step() -> None:
    answer = recommend(run(without_step()), Constraints(step_s=2.0))
    assert answer.config == W0
    assert answer.expected.wait_fraction == pytest.approx(0.016 / 2.016)


def test_a_longer_step_than_the_measured_one_is_derived_from_it() -> None:
    measured = run(at_measured_step(), settings={"step_s": STEP_S})
    answer = recommend(measured, Constraints(step_s=1.0))
    assert answer.config == W0
    assert answer.expected.wait_fraction == pytest.approx(0.01 / 1.01, rel=0.02)


def test_ranks_starve_a_step_by_sharing_cores() -> None:
    trials = blocks({W4: [4000.0] * 3}, usage=Usage(own_cpu_cores=4.0))
    alone = recommend(run(trials), Constraints(step_s=STEP_S))
    shared = recommend(run(trials), Constraints(step_s=STEP_S, ranks=4))
    assert alone.expected.samples_per_s.value == pytest.approx(over_epochs(3200), rel=1e-3)
    assert shared.expected.samples_per_s.value == pytest.approx(
        over_epochs(2000, wait_s=0.012, ranks=4), rel=1e-3
    )
    assert first(shared).startswith("No configuration keeps")


def test_ranks_starve_a_step_that_was_measured_with_one() -> None:
    """Half as many batches a second come then, each before a step as long as it was."""
    usage = Usage(own_cpu_cores=4.0, available_cpu_cores=8.0)
    measured = run(at_measured_step(usage), settings={"step_s": STEP_S})
    assert "keeps a step of 10 ms fed" in first(recommend(measured))
    shared = recommend(measured, Constraints(step_s=STEP_S, ranks=4))
    assert first(shared).startswith("No configuration keeps a step of 10 ms fed")
    assert shared.expected.wait_fraction == pytest.approx(0.5, abs=0.01)


def test_fewer_workers_that_might_not_feed_a_derived_step_are_not_called_slower() -> None:
    """At the step both give 3200 samples a second, but two workers with too little to spare."""
    answer = recommend(run(without_step(two=3300)), Constraints(step_s=STEP_S))
    claims = [reason.claim for reason in answer.reasons]
    assert not any("are slower" in claim for claim in claims)
    assert any(
        claim.startswith("Fewer workers would not surely keep the step fed: num_workers=2 is 1.00")
        for claim in claims
    )
    relations = {other.config: other.relation for other in answer.alternatives}
    assert W2 not in relations
    assert "slower" not in relations.values()


def test_fewer_workers_that_starve_a_step_are_slower() -> None:
    answer = recommend(run(without_step(two=2800)), Constraints(step_s=STEP_S))
    assert any("Fewer workers are slower" in reason.claim for reason in answer.reasons)
    assert {o.config: o.relation for o in answer.alternatives}[W2] == "slower"


def test_fewer_workers_that_likely_starve_a_step_are_likely_slower() -> None:
    """Their interval has 1.00x in it, so the chart calls them perhaps as fast."""
    answer = recommend(run(without_step(two=3000)), Constraints(step_s=STEP_S))
    assert any("Fewer workers are likely slower" in reason.claim for reason in answer.reasons)
    assert W2 not in {other.config for other in answer.alternatives}


def crowded(*four: float) -> Recommendation:
    """Of a run in which others took one of two cores while four workers were tried."""
    alone = Usage(own_cpu_cores=0.95, available_cpu_cores=2.0)
    both = Usage(own_cpu_cores=1.95, available_cpu_cores=2.0)
    half = Usage(own_cpu_cores=1.0, available_cpu_cores=1.0, other_cpu_cores=1.0)
    tried = [
        trial(W4, rate, usage=half, wait_fraction=1 - rate / 1600, noisy=True, spread=0.3)
        for rate in four
    ]
    seen = [
        *blocks({W0: [200, 201]}, usage=alone, wait_fraction=0.87),
        *blocks({W2: [400, 390]}, usage=both, wait_fraction=0.75),
    ]
    return recommend(run([*seen, *tried], machine=machine(2.0), settings={"step_s": 0.02}))


def test_what_only_disturbed_trials_show_has_to_promise_more_than_what_was_seen() -> None:
    assert crowded(400).config == W2
    assert crowded(800).config == W4


def test_a_step_waits_as_long_as_the_rate_says_where_all_trials_were_disturbed() -> None:
    answer = crowded(600, 1000)
    assert answer.config == W4
    assert answer.expected.wait_fraction is not None
    fed = 1 - answer.expected.wait_fraction
    assert fed == pytest.approx(answer.expected.samples_per_s.value / 1600, rel=1e-3)


def test_a_disturbance_that_a_waiting_loader_hardly_feels_costs_no_workers() -> None:
    seen = blocks({W0: [200, 201], W4: [400, 398]}, usage=WAITING)
    for two, chosen in ((400, W2), (390, W4)):
        answer = recommend(run([*seen, trial(W2, two, noisy=True, usage=WAITING)]))
        assert answer.config == chosen
        assert not any("fed" in reason.claim for reason in answer.reasons)
