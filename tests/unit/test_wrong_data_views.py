"""Settings whose data is wrong are never the answer, and every view says so before all else."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal

import pytest
from builders import blocks, config, failed, run, target, trial
from finding_cases import Loader, codes, evidence, explanation
from golden import drawn
from predicted_runs import asked, calibrated, elsewhere
from test_records_integrity import OLD_DUPLICATED, raising, wrong

from dlprof.advise.findings.diagnosis import find, remedies
from dlprof.advise.forecast import feed, forecast
from dlprof.advise.recommend import recommend, with_recommendation
from dlprof.advise.wrong_data import data_findings, said_first
from dlprof.errors import NothingMeasuredError
from dlprof.records import (
    NO_DATA_SIGN,
    PARTIAL_SIGN,
    SPREAD_SIGN,
    UNEVEN_SIGN,
    UNSHARED_SIGN,
    Constraints,
    Diagnosis,
    Run,
    Trial,
    checked,
)
from dlprof.report.documents import brief_document, json_document
from dlprof.report.export.formats import render_as, render_html
from dlprof.report.export.rows import render_csv
from dlprof.report.predict import feed_report, forecast_report, predict_document
from dlprof.report.profile import profile_report
from dlprof.report.snippets import render_lightning, render_python, render_toml
from dlprof.report.sweep import if_needed, recommendation_report, sweep_report

SAME = "Workers yield the same samples."
YOURS = "Your settings (num_workers=2) are wrong: workers yield the same samples."


def doubled(present: int | None = 2) -> Run:
    """A run of which two workers seem twice as fast, and give everything twice."""
    trials = blocks({config(0): [1000, 1010], config(1): [1005, 995]})
    trials += [trial(config(2), 2000.0, warnings=(OLD_DUPLICATED,)), trial(config(4), 4000.0)]
    own = None if present is None else config(present)
    return checked(run(trials, target=target(kind="iterable", own_config=own)))


def with_calibration(trials: list[Trial], **about: Any) -> Run:
    fields = {"kind": "iterable", "length": None, "batches_per_epoch": None} | about
    return checked(calibrated(trials=trials, target=target(**fields)))


def test_wrong_data_is_never_recommended() -> None:
    advice = recommend(doubled())
    assert advice.config == config(0)
    assert [each.code for each in advice.findings] == ["data.duplicated"]
    assert advice.findings[0].severity == "high"
    assert advice.reasons[0].claim == YOURS
    assert all(other.config.num_workers < 2 for other in advice.alternatives)
    rules = {rule.config.num_workers: rule for rule in advice.rules_of_thumb}
    assert rules[8].expected_samples_per_s is None
    assert "num_workers=8 each comes up to 8 times" in rules[8].unavailable


@pytest.mark.parametrize(
    ("kind", "whole", "shards", "says"),
    [
        ("iterable", False, None, "its shards feed all workers alike"),
        ("iterable", False, 4, "its shards feed all workers alike"),
        ("iterable", False, 3, "its 3 shards are alike"),
        ("iterable", True, 3, ""),
        ("map", False, None, ""),
    ],
)
def test_a_recommendation_says_what_unequal_shards_may_take_of_it(
    kind: Literal["map", "iterable"], *, whole: bool, shards: int | None, says: str
) -> None:
    trials = [
        dataclasses.replace(each, whole_epochs=whole)
        for each in blocks({config(1): [1000, 1010], config(2): [1900, 1910]})
    ]
    found = run(trials, target=target(kind=kind, own_config=config(1), shards=shards))
    advice = recommend(found)
    text = " ".join(drawn(recommendation_report(found, advice), 120).split())
    assert "over your settings" in text
    assert (", if its " in text) is bool(says)
    assert says in text
    document = json_document(advice)
    for shown in (document, brief_document(document)):
        needs = json.loads(shown)["expected"]["gain_if"]
        assert needs == says
    assert not any(each.expected.gain_if for each in advice.alternatives)  # of one worker


@pytest.mark.parametrize(
    ("gains", "says"),
    [
        ("2x over your settings", True),
        ("not known over your settings: measured once, and disturbed", False),
        ("not known over your settings: measured once, and disturbed, 3x over all", True),
    ],
)
def test_a_gain_that_is_not_known_has_no_condition(gains: str, *, says: bool) -> None:
    assert if_needed("shards are even", config(2), config(1), gains) == (
        ", if shards are even" if says else ""
    )


@pytest.mark.slow
def test_workers_of_an_iterable_that_are_only_predicted_say_so_too() -> None:
    trials = [
        dataclasses.replace(each, whole_epochs=True)
        for each in blocks({config(1): [100, 101], config(2): [190, 191]})
    ]
    found = with_calibration(trials, own_config=config(1))
    advice = recommend(found, Constraints(cores=16))
    assert advice.config.num_workers > 2
    there = asked(found, cores=16)
    rows = {row.config.num_workers: row.gain_if for row in forecast(there, None).rows}
    assert rows[advice.config.num_workers] == advice.expected.gain_if != ""
    assert rows[1] == ""
    for shown in (
        recommendation_report(found, advice),
        forecast_report(forecast(there, None)),
    ):
        text = " ".join(drawn(shown, 120).split())
        speed_up = text.partition("Speed-up ")[2].partition(" Certainty")[0]
        assert "over your settings" in speed_up
        assert ", if its shards feed all workers alike" in speed_up


def test_what_could_not_be_checked_is_said_and_nothing_is_taken_back() -> None:
    trials = blocks({config(0): [1000, 1010]})
    trials += [trial(config(2), 2000.0, warnings=(UNSHARED_SIGN,)), trial(config(2), 1990.0)]
    found = run(trials, target=target(kind="iterable", own_config=config(0)))
    advice = recommend(found)
    assert advice.config == config(2)
    assert advice.confidence == "low"
    assert advice.confidence_reason.startswith("the iterable dataset never asks which worker")
    assert [(each.code, each.severity) for each in advice.findings] == [("data.unshared", "info")]
    assert said_first(found)[0].startswith("Workers may yield the same samples. The iterable")
    screen = drawn(sweep_report(dataclasses.replace(found, recommendation=advice)), 120)
    assert screen.lstrip().startswith("Workers may yield the same samples.")


def test_screens_say_it_before_all_else() -> None:
    found = doubled()
    advice = recommend(found)
    found = dataclasses.replace(found, recommendation=advice)
    for screen in (recommendation_report(found, advice), sweep_report(found)):
        lines = drawn(screen, 120).splitlines()
        assert lines[0] == f"  {YOURS}"
        assert lines[1].startswith(f"  {SAME}")
    whole = drawn(sweep_report(found), 120, verbose=True)
    assert whole.count(YOURS) == 2  # first, and among the reasons


@pytest.mark.parametrize("render", [render_python, render_toml, render_lightning])
def test_snippets_begin_with_it_as_a_comment(render: Any) -> None:
    found = doubled()
    text: str = render(found, recommend(found))
    assert text.startswith(f"# {YOURS}\n# {SAME}")


def test_documents_hold_it_first() -> None:
    found = doubled()
    assert json.loads(json_document(recommend(found), run_file=found.path))["findings"][0][
        "code"
    ] == ("data.duplicated")
    page, text = render_html(found), render_as(found, "markdown").decode()
    assert page.index("are wrong") < page.index(">Recommended<")
    assert text.index("are wrong") < text.index("**Recommended**")
    assert ",2000" not in render_csv(found)
    assert render_csv(found).count("duplicated") == 2


def test_settings_that_are_right_are_not_called_wrong() -> None:
    assert said_first(doubled(0))[0].startswith(SAME)
    assert said_first(doubled(None))[0].startswith(SAME)
    assert recommend(doubled(0)).findings[0].severity == "info"
    assert not said_first(run(blocks({config(0): [1000], config(2): [1900]})))


def test_fewer_workers_than_those_that_are_wrong_are_in_doubt_until_an_epoch_was_seen() -> None:
    trials = blocks({config(0): [500, 505], config(2): [1000, 1010]})
    trials.append(wrong(config(4), "duplicated"))
    found = checked(run(trials, target=target(kind="iterable")))
    advice = recommend(found)
    assert (advice.config, advice.confidence) == (config(2), "low")
    assert "yield the same samples with num_workers=4" in advice.confidence_reason
    assert "split them between so many workers" in said_first(found)[0]
    seen = [dataclasses.replace(t, epoch_samples=96, samples_per_batch=8.0) for t in trials[:-1]]
    sure = recommend(checked(run([*seen, trials[-1]], target=target(kind="iterable"))))
    assert (sure.config, sure.confidence == "low") == (config(2), False)


def test_where_all_is_wrong_one_sentence_says_so() -> None:
    found = checked(run([trial(config(2), 2000.0, warnings=(OLD_DUPLICATED,)), trial(config(4))]))
    with pytest.raises(NothingMeasuredError, match="No settings give the right data") as raised:
        recommend(found)
    assert "get_worker_info" in raised.value.hint
    assert drawn(sweep_report(found), 120).lstrip().startswith(SAME)


def test_present_settings_that_fail_are_said_first_whatever_the_failure() -> None:
    own = target(own_config=config(4))
    found = run([*blocks({config(0): [1000, 1010]}), failed(config(4))], target=own)
    assert said_first(found) == ["Your settings (num_workers=4) fail: The worker was killed."]
    assert recommend(found).reasons[0].evidence["trials"] == ["t0003"]
    once = run([*blocks({config(4): [1000, 1010]}), failed(config(4))], target=own)
    assert not said_first(once)
    skipped = run([trial(config(0)), failed(config(4), outcome="skipped")], target=own)
    assert said_first(skipped)[0].startswith("Your settings (num_workers=4) can't work here:")


def test_truncated_settings_are_named_with_what_came() -> None:
    short = wrong(config(2), "truncated", "An epoch gave 20 batches where __len__ promises 157.")
    found = run([trial(config(0)), short], target=target(kind="iterable", own_config=config(2)))
    first, second = said_first(found)
    assert first == (
        "Your settings (num_workers=2) are wrong: an epoch gave 20 batches where __len__ promises "
        "157."
    )
    assert "with num_workers=2" in second
    advice = recommend(found)
    assert (advice.config, advice.confidence) == (config(0), "low")
    assert advice.confidence_reason == (
        "epochs end early with num_workers=2, and no whole epoch was measured with num_workers=0"
    )
    whole = blocks({config(0): [1000, 1000], config(1): [600, 600]}, epoch_samples=5024)
    sure = recommend(run([*whole, short], target=found.header.target))
    assert (sure.config, sure.confidence) == (config(0), "high")


def test_idle_workers_are_said_of_a_sweep() -> None:
    loader = Loader(config=config(8), idle_workers=6)
    trials = blocks({config(2): [1000, 1000], config(8): [990, 1000]})
    found = dataclasses.replace(
        run(trials, target=target(kind="iterable", own_config=config(8))),
        explanations=(explanation(loader, "t0009"),),
    )
    advice = recommend(found)
    assert advice.config == config(2)
    assert advice.findings[0].code == "workers.unfed"
    assert said_first(found)[0].startswith(
        "6 of 8 workers get no data. num_workers=2 does as well:"
    )
    assert "Fix:" not in said_first(found)[0]  # what is recommended keeps to it


def test_no_machine_cores_or_ranks_are_predicted_wrong_data() -> None:
    found = with_calibration([wrong(config(2), "duplicated")], own_config=config(2))
    for limits in (Constraints(cores=16.0), Constraints(ranks=2)):
        advice = recommend(found, limits)
        assert advice.basis == "predicted"
        assert advice.config.num_workers < 2
        assert all(case.best.num_workers < 2 for case in advice.cases)
        assert all(other.config.num_workers < 2 for other in advice.alternatives)
        assert advice.findings[0].code == "data.duplicated"
        assert advice.reasons[0].claim == YOURS
    there = recommend(found, machine=elsewhere())
    assert there.config.num_workers < 2
    assert [each.code for each in there.findings] == ["data.duplicated"]
    # Without the fault, many workers are predicted to pay.
    assert recommend(with_calibration([]), Constraints(cores=16.0)).config.num_workers > 2


def test_predictions_leave_wrong_data_out() -> None:
    found = with_calibration([wrong(config(2), "duplicated")], own_config=config(2))
    answer = forecast(asked(found), None)
    assert {row.config.num_workers for row in answer.rows} == {0, 1}
    assert drawn(forecast_report(answer), 120).lstrip().startswith(YOURS)
    assert json.loads(predict_document(answer))["findings"][0]["code"] == "data.duplicated"
    with pytest.raises(NothingMeasuredError, match="data is wrong: Workers yield") as raised:
        forecast(asked(found), [config(4)])
    assert raised.value.hint == "Fix it."
    some = forecast(asked(found), [config(1), config(4)])
    assert len(some.rows) == 1
    assert some.speedup is not None  # over num_workers=0, which was not named


def test_a_default_whose_data_is_wrong_is_compared_with_nothing() -> None:
    found = with_calibration([wrong(config(0), "truncated")])
    answer = forecast(asked(found), [config(1)])
    assert answer.speedup is None
    assert answer.unavailable["speedup"] == "num_workers=0 is neither measured nor predicted"


def test_a_step_is_not_fed_by_wrong_data() -> None:
    found = with_calibration([wrong(config(2), "duplicated")])
    answer = feed(asked(found, step_s=0.01))
    assert answer.config.num_workers < 2
    assert not answer.reached
    assert drawn(feed_report(answer), 120).lstrip().startswith(SAME)
    assert json.loads(predict_document(answer))["findings"][0]["code"] == "data.duplicated"
    whole = with_calibration([])
    assert feed(asked(whole, step_s=0.01)).config.num_workers > 2


def test_more_workers_than_an_iterable_takes_are_not_predicted_either() -> None:
    found = with_calibration([trial(config(2)), raising(config(4))])
    answer = forecast(asked(found), None)
    assert max(row.config.num_workers for row in answer.rows) <= 3
    with pytest.raises(NothingMeasuredError, match="settings that fail: No samples"):
        forecast(asked(found), [config(8)])


def test_a_profile_promises_nothing_of_more_workers_by_wrong_data() -> None:
    loader = Loader(config=config(0), fetch_io=0.02, rate=49)
    seen = evidence(loader, variants={config(16): 6.0}, target_fields={"kind": "iterable"})
    assert "too_few_workers" in codes(find(seen))
    assert list(remedies(seen))
    kept = []
    for each in seen.observations:
        if seen.role(each.trial) != "variant":
            kept.append(each)
        else:
            kept.append(dataclasses.replace(each, trial=wrong(config(16), "duplicated")))
    seen = dataclasses.replace(seen, observations=tuple(kept))
    found = find(seen)
    assert found[0].code == "data.duplicated"
    assert "too_few_workers" not in codes(found)
    assert not any(f.fix and f.fix.dataloader_kwargs.get("num_workers", 0) > 1 for f in found)
    assert all(config.num_workers < 2 for config in remedies(seen))


def test_of_workers_that_are_right_a_profile_says_why_they_wait() -> None:
    """That sixteen would repeat samples is no cause of what two wait for, and hides none."""
    loader = Loader(config=config(2), fetch_io=0.02, rate=98)
    seen = evidence(loader, variants={config(16): 6.0}, target_fields={"kind": "iterable"})
    tried = [seen.role(each.trial) == "variant" for each in seen.observations]
    assert any(tried)
    wrong_ones = (
        dataclasses.replace(
            each, trial=dataclasses.replace(wrong(config(16), "duplicated"), id=each.trial.id)
        )
        if is_variant
        else each
        for each, is_variant in zip(seen.observations, tried, strict=True)
    )
    found = find(dataclasses.replace(seen, observations=tuple(wrong_ones)))
    assert found[0].code == "fetch.io"
    (said,) = (each for each in found if each.code == "data.duplicated")
    assert said.severity == "info"
    assert said.title == "Workers yield the same samples with num_workers=16"


def test_few_workers_may_repeat_samples_where_only_many_were_seen_to() -> None:
    silent = trial(config(2), warnings=(UNSHARED_SIGN,))
    trials = [trial(config(0)), silent, wrong(config(16), "duplicated")]
    found = data_findings(run(trials, target=target(kind="iterable", own_config=config(2))))
    assert found[0].title == "Workers may yield the same samples"
    assert "nothing shows that they don't with 2. Each sample" in found[0].explanation


def test_a_profile_of_wrong_data_shows_what_is_wrong() -> None:
    found = checked(run([trial(config(2), warnings=(OLD_DUPLICATED,))]))
    seen = evidence(Loader())
    only = dataclasses.replace(seen.observations[0], trial=found.trials[0])
    reported = find(dataclasses.replace(seen, observations=(only,)))
    assert codes(reported) == ["data.duplicated"]
    profile = dataclasses.replace(found, diagnosis=Diagnosis(config=config(2), findings=reported))
    assert "Workers yield the same samples" in drawn(profile_report(profile), 120)


def test_a_profile_says_what_may_be_wrong_before_its_tables() -> None:
    loader = Loader(config=config(2))
    silent = trial(config(2), 2000.0, warnings=(UNSHARED_SIGN,))
    found = dataclasses.replace(
        run([silent], target=target(kind="iterable")),
        explanations=(explanation(loader, silent.id),),
        diagnosis=Diagnosis(config=config(2)),
    )
    assert (
        drawn(profile_report(found), 120).lstrip().startswith("Workers may yield the same samples.")
    )


def test_a_recommendation_of_before_rates_were_kept_is_drawn_again_within_its_limits() -> None:
    trials = blocks({config(0): [1000, 1010], config(2): [1990, 2010], config(4): [3990, 4010]})
    found = run(trials)
    settings = {**found.header.settings, "max_workers": 2}
    found = dataclasses.replace(found, header=dataclasses.replace(found.header, settings=settings))
    before = dataclasses.replace(recommend(found), config=config(4), rates=())
    shown = with_recommendation(dataclasses.replace(found, recommendation=before)).recommendation
    assert shown is not None
    assert shown.config == config(2)
    kept = dataclasses.replace(found, recommendation=recommend(found, Constraints(max_workers=2)))
    assert with_recommendation(kept).recommendation is kept.recommendation


def test_more_workers_than_get_data_are_not_recommended_though_they_seem_faster() -> None:
    two, eight = config(2), config(8)
    trials = blocks({two: [1000, 1010], eight: [1200, 1190]})
    idle = [dataclasses.replace(t, fed_workers=2) if t.config == eight else t for t in trials]
    assert recommend(run(idle, target=target(kind="iterable"))).config == two
    assert recommend(run(trials, target=target(kind="iterable"))).config == eight


def test_that_shares_were_not_compared_is_said() -> None:
    trials = blocks({config(0): [500, 500], config(2): [1000, 1010]})
    claims = [each.claim for each in recommend(run(trials, target=target(kind="iterable"))).reasons]
    said = "Not verified: that 2 workers yield each sample once."
    assert any(claim.startswith(said) for claim in claims)
    whole = [dataclasses.replace(each, epoch_samples=4000) for each in trials]
    claims = [each.claim for each in recommend(run(whole, target=target(kind="iterable"))).reasons]
    assert not any(claim.startswith(said) for claim in claims)


def test_idle_workers_that_nobody_asked_for_are_not_said_first() -> None:
    trials = blocks({config(2): [1000, 1000], config(8): [990, 1000]})
    found = dataclasses.replace(
        run(trials, target=target(kind="iterable", own_config=config(2))),
        explanations=(explanation(Loader(config=config(8), idle_workers=6), "t0009"),),
    )
    assert recommend(found).findings[0].code == "workers.unfed"
    assert not said_first(found)


@pytest.mark.parametrize(
    "note",
    [
        f"{NO_DATA_SIGN}: does collate_fn return it?",
        f"An epoch is one batch of 5 samples, {PARTIAL_SIGN} of 8.",
        f"A sample at the beginning of an epoch takes 1 ms: {SPREAD_SIGN}.",
    ],
)
def test_what_batches_lack_is_said_first_on_every_screen(note: str) -> None:
    trials = blocks({config(0): [100.0] * 3, config(1): [150.0] * 3})
    found = run(trials, target=target(notes=("Loaded as it is.", note)))
    assert said_first(found) == [note]
    answer = with_recommendation(found)
    assert note in drawn(sweep_report(answer), 500)
    diagnosed = dataclasses.replace(answer, diagnosis=Diagnosis(config=config(0)))
    assert note in drawn(profile_report(diagnosed), 500)  # though no batch was traced


@pytest.mark.parametrize(("ended", "said"), [(False, True), (True, False)])
def test_a_sweep_says_that_no_trial_came_to_the_end_of_an_iterable(
    *, ended: bool, said: bool
) -> None:
    trials = [trial(config(count), 100.0 + count, whole_epochs=ended) for count in (0, 1)]
    answer = with_recommendation(run(trials, target=target(kind="iterable")))
    whole = drawn(sweep_report(answer), 500, verbose=True)
    assert (f"{SPREAD_SIGN} take as long isn't known" in whole) is said


def test_ranks_of_uneven_epochs_are_named_on_every_screen() -> None:
    """A training would hang, and an iterable dataset has no length by which to see it before."""
    uneven = f"an epoch has 30 batches on one rank and 15 on another: {UNEVEN_SIGN} (Join)"
    seen = blocks({config(0): [100.0] * 3, config(1): [150.0] * 3})
    seen[-1] = dataclasses.replace(seen[-1], warnings=("noisy", uneven))
    found = run(seen, target=target(kind="iterable"))
    said = f"An{uneven[2:]}."
    assert said_first(found) == [said]
    answer = with_recommendation(found)
    assert said in drawn(sweep_report(answer), 500)
    assert said in drawn(recommendation_report(found, recommend(found)), 500)
