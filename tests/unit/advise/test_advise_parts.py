from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from builders import WAITING, blocks, config, failed, machine, run, target, trial

from dlprof.advise.choice import choose, gather, rates_of, speeds_of
from dlprof.advise.reasons import certainty_of
from dlprof.advise.recommend import recommend
from dlprof.advise.situation import Situation, usable_calibration
from dlprof.advise.thresholds import HIGH
from dlprof.errors import UsageError
from dlprof.records import (
    Certificate,
    Constraints,
    GpuInfo,
    Machine,
    RuleOfThumb,
    Run,
    Trial,
    Usage,
)
from dlprof.stats.intervals import turnovers
from dlprof.units import format_bytes

W0, W2, W4, W8 = (config(w) for w in (0, 2, 4, 8))


def rule(name: str, measured: Run, **rest: Any) -> RuleOfThumb:
    answer = recommend(measured, **rest)
    return next(each for each in answer.rules_of_thumb if name in each.name)


# --- effective rates

ALONE = Situation.of(run([]))


def epoch_factor(of: Trial) -> float:
    turns = turnovers([of])
    rates = rates_of(of, ALONE, turns.get(of.config.turnover_group))
    return rates.epoch_factor


def loading_s(of: Trial) -> float:
    batches = ALONE.epoch_batches(of.config)
    assert batches is not None
    assert of.batches_per_s is not None
    return batches / of.batches_per_s.value


def test_the_turnover_is_spread_over_the_epoch() -> None:
    of = trial(W4, 3200, epoch_turnover_s=0.5)
    first_s = 4 / 100  # the first batches of all workers are loaded in the turnover
    assert epoch_factor(of) == pytest.approx(loading_s(of) / (loading_s(of) + 0.5 - first_s))


def test_an_epoch_is_as_long_as_the_targets_loader_says() -> None:
    """As with drop_last; at another batch size its samples say, or as many as its batches hold."""
    for length in (32_000, None):
        short = target(batches_per_epoch=999, length=length)
        asked = Situation.of(run([], target=short))
        assert asked.epoch_batches(config(2)) == 999
        assert asked.epoch_batches(config(2, batch_size=32)) == 999
        assert asked.epoch_batches(config(2, batch_size=64)) == 500


def test_the_last_round_of_an_epoch_leaves_workers_idle() -> None:
    of = trial(config(3), 3200, epoch_turnover_s=0.5)  # 1,000 batches are 333 rounds and one more
    whole_s = loading_s(of) + 0.5 - 3 / 100 + 2 / 100
    assert epoch_factor(of) == pytest.approx(loading_s(of) / whole_s)


def test_start_up_stands_for_a_turnover_that_was_not_seen() -> None:
    fresh = trial(W4, 3200, epoch_turnover_s=None, startup_s=1.0)
    kept = trial(config(4, persistent_workers=True), 3200, epoch_turnover_s=None, startup_s=1.0)
    assert epoch_factor(fresh) == pytest.approx(loading_s(fresh) / (loading_s(fresh) + 0.96))
    assert epoch_factor(kept) == 1.0


def test_rates_over_whole_epochs_hold_the_turnover_already() -> None:
    assert epoch_factor(trial(W4, 3200, epoch_turnover_s=0.5, whole_epochs=True)) == 1.0


def test_the_length_of_an_epoch_is_that_which_any_trial_saw() -> None:
    endless = target(kind="iterable", length=None, batches_per_epoch=None)
    explained = trial(W0, 1000, purpose="explain", epoch_samples=640, samples_per_batch=32.0)
    assert Situation.of(run([explained, trial(W4)], target=endless)).target.batches_per_epoch == 20
    assert Situation.of(run([trial(W4)], target=endless)).target.batches_per_epoch is None


def test_deeper_queues_share_a_turnover() -> None:
    timed = trial(W4, 3200, epoch_turnover_s=0.5)
    untimed = trial(config(4, prefetch_factor=8), 3200, epoch_turnover_s=None, startup_s=9.0)
    kept = trial(config(4, persistent_workers=True), 3200, epoch_turnover_s=0.1)
    turns = turnovers([timed, untimed, kept])
    assert turns[untimed.config.turnover_group] == 0.5
    assert turns[kept.config.turnover_group] == 0.1


def test_a_turnover_that_took_no_time_is_no_start() -> None:
    timed = trial(W0, 3200, epoch_turnover_s=0.0, startup_s=0.4)
    assert turnovers([timed]) == {timed.config.turnover_group: 0.0}


def test_turnovers_and_starts_are_those_of_undisturbed_trials() -> None:
    times = {"disturbed": [0.9, 0.8], "quiet": [0.1, 0.12, 0.11]}
    trials = {
        how: [trial(W4, 3200, noisy=how != "quiet", startup_s=s, epoch_turnover_s=s) for s in each]
        for how, each in times.items()
    }
    both = [*trials["disturbed"], *trials["quiet"]]
    (found,) = gather(run(both))
    assert (found.startup_s, found.epoch_turnover_s) == (0.11, 0.11)
    (found,) = gather(run(trials["disturbed"]))
    assert found.startup_s == found.epoch_turnover_s == pytest.approx(0.85)


# --- names


def test_names_leave_defaults_out() -> None:
    assert config(4).text == "num_workers=4"
    assert W0.text == "num_workers=0"
    assert (
        config(2, 8, pin_memory=True, batch_size=64, in_order=False).text
        == "num_workers=2, prefetch_factor=8, pin_memory=True, batch_size=64, in_order=False"
    )


def test_names_show_the_depth_of_queues_where_depths_differ() -> None:
    alike = gather(run(blocks({W0: [100], W4: [200]})))
    assert [each.name for each in alike] == ["num_workers=0", "num_workers=4"]
    deep = gather(run(blocks({W0: [100], W4: [200], config(4, 8): [200]})))
    assert [each.name for each in deep] == [
        "num_workers=0",
        "num_workers=4, prefetch_factor=2",
        "num_workers=4, prefetch_factor=8",
    ]


# --- limits


def test_shared_memory_counts_what_full_queues_hold() -> None:
    """8 x 2 + 1 batches of 18.4 MiB are 312 MiB, whatever the observer caught."""
    measured = run(blocks({W2: [100, 100], W8: [300, 300]}))
    answer = recommend(measured, Constraints(max_shm_bytes=200 << 20))
    assert answer.config == W2
    assert any("max_shm (200 MiB) leaves out num_workers=8" in r.claim for r in answer.reasons)


def test_dev_shm_of_the_machine_is_a_limit() -> None:
    docker = machine(shm_bytes=64 << 20)
    with pytest.raises(UsageError, match="the /dev/shm of box"):
        recommend(run(blocks({W8: [300, 300]}), machine=docker))


def test_open_files_limit_another_machine_only() -> None:
    deep = config(64, 4)
    measured = run(blocks({W2: [100, 100], deep: [900, 900]}))
    strict = machine(64, open_files_limit=256, fingerprint="other", hostname="other")
    assert recommend(measured, machine=strict).config == W2
    with pytest.raises(UsageError, match="needs 772 beside about 64 others"):
        recommend(run(blocks({deep: [900, 900]})), machine=strict)
    by_name = config(64, 4, sharing_strategy="file_system")
    measured = run(blocks({W2: [100, 100], by_name: [900, 900]}))
    assert recommend(measured, machine=strict).config == by_name


def test_the_tighter_of_cgroup_limit_and_machine_memory_counts() -> None:
    usage = Usage(pss_peak_bytes=3 << 30)
    trials = [*blocks({W2: [100, 100]}), *blocks({W8: [300, 300]}, usage=usage)]
    box = machine(memory_limit_bytes=2 << 30)
    assert recommend(run(trials, machine=box)).config == W2
    loose = machine(memory_bytes=2 << 30, memory_limit_bytes=64 << 30)
    assert recommend(run(trials, machine=loose)).config == W2


# --- confidence


def confidence(measured: Run, constraints: Constraints | None = None) -> tuple[str, str]:
    answer = recommend(measured, constraints)
    return answer.confidence, answer.confidence_reason


def certificate(measured: Run) -> Certificate:
    found = recommend(measured).certificate
    assert found is not None
    return found


def test_what_is_clearly_the_best_is_sure() -> None:
    measured = run(blocks({W2: [100] * 3, W8: [400] * 3}))
    assert confidence(measured) == (
        "high",
        "within 1% of the best of the 2 measured settings (95%)",
    )
    assert confidence(measured, Constraints(max_workers=8))[0] == "high"


def test_equals_are_sure_too_once_repeats_show_them_to_be_that() -> None:
    found = [recommend(run(blocks({W2: [100] * n, W4: [100] * n}))) for n in (1, 2, 4, 8, 40)]
    epsilons = [each.certificate.epsilon for each in found if each.certificate is not None]
    assert all(each.config == W2 for each in found)
    assert epsilons == sorted(epsilons, reverse=True)
    assert (found[0].confidence, found[-1].confidence) == ("low", "high")
    assert found[-1].confidence_reason.startswith("within ")
    assert confidence(run(blocks({W2: [100] * 3, W4: [101] * 3}, usage=WAITING)))[0] == "high"


@pytest.mark.parametrize(
    ("epsilon", "level"), [(0.0, "high"), (HIGH, "high"), (0.1, "medium"), (0.3, "low")]
)
def test_the_certificate_makes_the_confidence(epsilon: float, level: str) -> None:
    measured = run(blocks({W2: [100] * 3, W4: [100] * 3}))
    situation = Situation.of(measured)
    choice = choose(gather(measured), situation, speeds_of(situation))
    shown = dataclasses.replace(
        certificate(measured), epsilon=epsilon, epsilon_measured=min(epsilon, 0.02)
    )
    assert certainty_of(choice, shown) == (level, shown.text)


@pytest.mark.parametrize(
    ("epsilon", "of_measured", "text"),
    [
        (0.0, 0.0, "within 1% of the best of 75 settings (95%), 6 measured"),
        (0.031, 0.01, "within 4% of the best of 75 settings (95%), 6 measured"),
        (
            0.7,
            0.04,
            (
                "within 4% of the best of the 6 measured settings (95%); the others are too "
                "uncertain"
            ),
        ),
        (0.7, 0.6, "too little was measured to say how near the best it is"),
    ],
)
def test_certificates_in_words(epsilon: float, of_measured: float, text: str) -> None:
    found = Certificate(
        epsilon=epsilon,
        epsilon_measured=of_measured,
        probability=0.95,
        configurations=75,
        measured=6,
    )
    assert found.text == text


def test_the_only_one_that_was_measured_is_the_best_of_itself_and_of_nothing_else() -> None:
    one = Certificate(
        epsilon=0.7, epsilon_measured=0.0, probability=0.95, configurations=75, measured=1
    )
    assert one.shown == 0.7
    assert one.text == "too little was measured to say how near the best it is"


def test_disturbed_trials_say_less() -> None:
    epsilons = [
        certificate(
            run(
                trial(chosen, 100, repetition=block, noisy=block < noisy)
                for chosen in (W2, W4)
                for block in range(3)
            )
        ).epsilon
        for noisy in range(4)
    ]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] < epsilons[-1] / 1.5


@pytest.mark.parametrize(
    ("noisy", "level", "said"),
    [(1, "high", ""), (2, "medium", "; its trials: 2 of 3 disturbed by a CPU quota or drift")],
)
def test_a_choice_whose_trials_were_mostly_disturbed_is_not_high(
    noisy: int, level: str, said: str
) -> None:
    """However clear: on the machine without what disturbed them others may be faster."""
    trials = [
        trial(chosen, rate, repetition=block, usage=WAITING, noisy=chosen == W8 and block < noisy)
        for chosen, rate in ((W2, 100), (W8, 400))
        for block in range(3)
    ]
    found, reason = confidence(run(trials, settings={"num_workers": [2, 8]}))
    assert found == level
    assert reason.endswith(f"the best of the 2 measured settings (95%){said}")


def test_a_cheaper_one_that_may_be_as_fast_is_said() -> None:
    """Its trials are so vague that their interval reaches what is chosen."""
    vague = [trial(W2, 250, repetition=block, usage=WAITING, spread=0.7) for block in range(2)]
    sure = [trial(W8, 400, repetition=block, usage=WAITING) for block in range(4)]
    found, reason = confidence(run([*vague, *sure]))
    assert found != "low"
    assert reason.endswith("measured settings (95%); a cheaper one may be as fast")


def test_windows_that_show_little_are_a_doubt() -> None:
    """By their own intervals, as short ones have."""
    reported, vague = (
        confidence(run(blocks({W4: [100] * 3, W8: [100] * 3}, usage=WAITING, spread=spread)))[0]
        for spread in (0.01, 0.4)
    )
    assert (reported, vague) == ("high", "low")


def test_repeats_that_differ_are_a_doubt_where_they_differ_from_each_other() -> None:
    """Not where all change alike from block to block, which says nothing of the choice."""
    apart = run(blocks({W4: [100, 60, 140], W8: [98, 110, 64]}, usage=WAITING))
    assert confidence(apart)[0] == "low"
    alike = run(blocks({W4: [100, 60, 140], W8: [20, 12, 28]}, usage=WAITING))
    assert confidence(alike)[0] == "high"


def test_a_rate_that_is_hardly_known_is_reported_as_that() -> None:
    """Two trials twenty times apart: their mean is a rate that was never seen."""
    answer = recommend(run(blocks({W4: [6428, 320]}, usage=WAITING)))
    rate = answer.expected.samples_per_s
    assert rate.low is not None
    assert rate.high is not None
    assert rate.low < 400
    assert rate.high > 5000
    assert answer.confidence == "low"


# --- rules of thumb


def server() -> Machine:
    gpus = tuple(GpuInfo(index=i, name="GPU", uuid=str(i)) for i in range(8))
    return machine(48, logical_cpus=96, gpus=gpus)


def test_rules_for_a_shared_server() -> None:
    measured = run(blocks({W0: [100, 100], W8: [300, 300]}), machine=server())
    answer = recommend(measured, Constraints(ranks=8))
    workers = {each.name.split(":")[0]: each.config.num_workers for each in answer.rules_of_thumb}
    assert workers == {
        "PyTorch's default": 0,
        "num_workers = cores": 96,
        "4 x GPUs": 32,
        "Lightning": 5,
        "YOLOv5": 8,
        "torch's suggested maximum": 48,
    }


def test_rules_show_what_was_measured_and_why_not() -> None:
    measured = run([*blocks({W0: [100, 100], W8: [300, 300]}), failed(config(96))])
    assert rule("default", measured).expected_samples_per_s == pytest.approx(100, rel=1e-3)
    assert rule("torch's", measured).expected_samples_per_s == pytest.approx(300, rel=1e-3)
    lightning = rule("Lightning", measured)
    assert lightning.expected_samples_per_s is None
    assert lightning.unavailable == "num_workers=7 was not measured"
    assert rule("GPUs", measured).unavailable.startswith("this machine has no GPU")
    big = rule("= cores", run(measured.trials, machine=server()))
    assert big.unavailable == "num_workers=96 failed: The worker was killed."


def test_a_rule_takes_the_plainest_of_as_many_workers() -> None:
    exact, deep = config(8), config(8, 4)
    both = run(blocks({deep: [500, 500], exact: [300, 300]}))
    assert rule("= cores", both).expected_samples_per_s == pytest.approx(300, rel=1e-3)
    assert rule("= cores", both).config == exact
    other = run(blocks({deep: [500, 500]}))
    assert rule("= cores", other).expected_samples_per_s == pytest.approx(500, rel=1e-3)
    assert rule("= cores", other).config == deep  # whose rate it is in every view


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (4, 4), (None, 8)])
def test_the_yolo_rule_looks_at_the_batch(batch_size: int | None, workers: int) -> None:
    measured = run(blocks({W0: [100, 100]}), target=target(batch_size=batch_size))
    assert rule("YOLO", measured).config.num_workers == workers


def test_an_epoch_that_trials_saw_has_a_length_where_the_target_does_not_say() -> None:
    seen = [trial(config(0), trial_id="t1", epoch_samples=600, samples_per_batch=30.0)]
    endless = dataclasses.replace(
        run(seen).header.target, kind="iterable", length=None, batches_per_epoch=None
    )
    found = run(seen)
    found = dataclasses.replace(found, header=dataclasses.replace(found.header, target=endless))
    situation = Situation.of(found)
    assert (situation.target.length, situation.target.batches_per_epoch) == (600, 20)


def test_what_it_takes_to_become_steady_is_said_where_it_is_long() -> None:
    slow = [
        trial(config(2), trial_id="t1", transient_s=2.25),
        trial(config(0), trial_id="t2", rate=1.0),
    ]
    claims = [reason.claim for reason in recommend(run(slow)).reasons]
    assert any("costs a training run 2.2 s once" in claim for claim in claims)
    brief = [dataclasses.replace(each, transient_s=0.5) for each in slow]
    claims = [reason.claim for reason in recommend(run(brief)).reasons]
    assert not any("once" in claim for claim in claims)
    cut = "the warm-up was cut short at 5 of 96 batches, because they are slow"
    warned = [dataclasses.replace(each, warnings=(cut,)) for each in brief]
    claims = [reason.claim for reason in recommend(run(warned)).reasons]
    assert f"Its rate may include warm-up: {cut}" in claims


def test_a_scripts_run_predicts_nothing() -> None:
    """Which is said of it, and not that a larger budget would help."""
    script = run([], target=target(spec="run:train.py"))
    with pytest.raises(UsageError, match="This is a script's run") as caught:
        usable_calibration(script)
    assert "budget" not in caught.value.hint
    with pytest.raises(UsageError, match="no calibration"):
        usable_calibration(run([], target=target()))
    module_named_run = run([], target=target(spec="run:f"), settings={"seed": 0})
    with pytest.raises(UsageError, match="no calibration"):
        usable_calibration(module_named_run)


def test_of_a_dataset_that_keeps_samples_ten_epochs_are_compared() -> None:
    """Each of eight workers has an eighth of the samples again, then some more, …"""
    kept, present = config(8, persistent_workers=True), config(8)
    about = {"first_sample_s": 0.01, "kept_sample_s": 1e-9, "sampler": "RandomSampler"}
    trials = blocks({W0: [100] * 3, present: [780] * 3, kept: [780] * 3}, usage=WAITING)
    keeping = target(kept_sample_bytes=200_000, **about)
    answer = recommend(run(trials, target=keeping))
    loaded, rates = 8 * (1 - 0.875**10), {each.config: each for each in answer.rates}
    assert answer.config == kept
    assert answer.expected.samples_per_s.value == pytest.approx(7800 / loaded, rel=0.001)
    assert rates[W0].samples_per_s.value == pytest.approx(1000, rel=0.001)
    assert rates[present].samples_per_s.value < 780  # restarts as well
    assert answer.confidence == "medium"
    assert "trials show the first of 10 epochs" in answer.confidence_reason
    assert answer.expected.gain_if == "a training has 10 epochs"
    full = 8 * keeping.length * 200_000 if keeping.length else 0
    assert answer.expected.pss_bytes == pytest.approx(full, rel=0.02)
    claim = next(each for each in answer.reasons if "keeps samples" in each.claim)
    assert claim.evidence["epochs_loaded"] == pytest.approx(loaded)
    assert "full caches take 47.7 GiB" in claim.claim
    # Of 1.9 GiB for each process eight are more than the machine has.
    held = recommend(run(trials, target=target(kept_sample_bytes=300_000, **about)))
    assert held.config == W0
    assert any("leaves out num_workers=8" in each.claim for each in held.reasons)
    assert any("A first epoch" not in each.claim for each in held.reasons)
    # What holds no more than some of its samples, as few were asked for, leaves no setting out.
    some = recommend(run(trials, target=target(kept_sample_bytes=100_000_000, **about)))
    assert some.config == kept
    assert some.expected.pss_bytes is not None
    assert some.expected.pss_bytes < 64 << 30


@pytest.mark.parametrize("known", [True, False])
def test_what_a_limit_below_one_full_cache_needs_is_said(known: bool) -> None:
    """No number of workers keeps it, and none is recommended as if it did: the cache has to."""
    kept = config(8, persistent_workers=True)
    about = {"first_sample_s": 0.01, "kept_sample_s": 1e-9, "sampler": "RandomSampler"}
    usage = WAITING if known else dataclasses.replace(WAITING, pss_peak_bytes=None)
    keeping = target(kept_sample_bytes=200_000, **about)
    one = keeping.full_caches(W0)
    trials = blocks({W0: [100] * 3, kept: [780] * 3}, usage=usage)
    for alone in (False, True):
        some = [each for each in trials if not alone or each.config == kept]
        with pytest.raises(UsageError, match="No configuration") as shown:
            recommend(run(some, target=keeping), Constraints(max_ram_bytes=one // 2))
        takes = format_bytes(8 * one if alone else one)
        less = f", {format_bytes(one)} with num_workers=0" if alone else ""
        assert f"take {takes} of it in the end{less}: have its cache hold" in shown.value.hint
    fits = recommend(run(trials, target=keeping), Constraints(max_ram_bytes=2 * one))
    assert fits.config == W0


def test_caches_that_several_processes_fill_are_as_many_as_load_a_sample() -> None:
    """By ``in_order=False`` another worker may load a sample in the next epoch, even in order."""
    keeping = target(
        first_sample_s=0.01,
        kept_sample_s=1e-9,
        kept_sample_bytes=1000,
        sampler="SequentialSampler",
    )
    kept = config(4, persistent_workers=True)
    anyhow = dataclasses.replace(kept, in_order=False)
    assert keeping.epochs_loaded(kept) == 1
    assert keeping.epochs_loaded(anyhow) > 3
    assert keeping.full_caches(anyhow) == 4 * keeping.full_caches(kept) > 0


@pytest.mark.parametrize("step_s", [None, 0.04])
def test_workers_that_gain_a_first_epoch_alone_are_left(step_s: float | None) -> None:
    """Four of them load 3.8 of ten epochs; where a step sets the pace all epochs take as long."""
    kept, wait = config(4, persistent_workers=True), None if step_s is None else 0.0
    about = {"first_sample_s": 0.01, "kept_sample_s": 1e-9, "sampler": "RandomSampler"}
    slow = trial(W0, 100, wait_fraction=None if step_s is None else 0.9, usage=WAITING)
    fast = trial(kept, 300 if step_s is None else 780, wait_fraction=wait, usage=WAITING)
    trials = [slow, fast] * 3
    found = run(trials, target=target(**about), settings={"step_s": step_s} if step_s else {})
    answer = recommend(found)
    assert answer.config == (W0 if step_s is None else kept)
    if step_s is None:
        claim = next(each for each in answer.reasons if "keeps samples" in each.claim)
        assert "A first epoch alone is faster with num_workers=4" in claim.claim
    else:
        assert answer.expected.samples_per_s.value == pytest.approx(780, rel=0.01)
    plain = recommend(run(blocks({W0: [100] * 3, kept: [390] * 3}, usage=WAITING)))
    assert "epoch" not in plain.confidence_reason + plain.expected.gain_if
