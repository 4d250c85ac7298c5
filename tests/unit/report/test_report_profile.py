"""The profile's screen at several widths, its findings as JSON, and texts that try to act."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from builders import config, failed, run, target, trial
from finding_cases import Loader, evidence, explanation
from golden import check_golden, drawn
from profiled_runs import profiled_run

from dlprof.advise.findings.diagnosis import find
from dlprof.records import (
    Diagnosis,
    Estimate,
    Explanation,
    Failure,
    Finding,
    Fix,
    RankFigures,
    SampleCosts,
    Stalls,
    TransformCost,
    Trial,
    Usage,
    WithoutPart,
    WorkerCosts,
)
from dlprof.records.codec import to_json
from dlprof.report.document import Document
from dlprof.report.findings import cards, evidence_text, known_gain
from dlprof.report.labels import gain_text, rate_text
from dlprof.report.profile import profile_report

HOSTILE = "\x1b[31mred\x1b]0;title\x07[bold]loud[/bold]\u202e"
PRESENT = config(4)
LOADER = Loader(config=PRESENT, fetch_io=0.04, hold_up=0.09, busy=0.6, rate=60)
USAGE = Usage(
    own_cpu_cores=0.1, available_cpu_cores=1.9, other_cpu_cores=0.1, cache_hit_fraction=0.02
)


def _explanation() -> Explanation:
    """Of batches of 32 samples, one of which takes as long as 70 others; nothing else is slow."""
    found = explanation(LOADER)
    return dataclasses.replace(
        found,
        samples=SampleCosts(
            count=3200,
            mean_s=0.00125,
            median_s=0.0011,
            p95_s=0.002,
            p99_s=0.01,
            max_s=0.08,
            slowest={"17": 0.08},
        ),
        workers=tuple(dataclasses.replace(each, cpu_cores=0.02) for each in found.workers),
        transforms=(
            TransformCost(name="0 Decode", mean_s=0.0009, share=0.7),
            TransformCost(name="1 RandomResizedCrop", mean_s=0.00025, share=0.2),
        ),
        waiting_batches={
            "pick_up": 0.1,
            "fetch": 2.4,
            "collate": 0.01,
            "queue": 0.1,
            "rebuild": 0.02,
            "hold_up": 5.4,
        },
        unavailable={"copy": "nothing is copied to a device"},
    )


def _diagnosis() -> Diagnosis:
    free, deep = config(4, in_order=False), config(4, prefetch_factor=8)
    found = find(evidence(LOADER, variants={free: 1.5, deep: 1.3}, usage=USAGE))
    return Diagnosis(
        config=PRESENT,
        findings=found,
        stalls=Stalls(
            resident_s=0.0, warm_s=0.0006, cold_s=0.0167, prep_fraction=0.04, fetch_fraction=0.96
        ),
        without=(
            WithoutPart(
                part="storage", gain=Estimate(value=8.0, low=6.2, high=10.4), source="model"
            ),
            WithoutPart(
                part="host_cpu", gain=Estimate(value=1.0, low=0.8, high=1.3), source="model"
            ),
        ),
        trials=("t0001",),
        notes=("Not tried within the budget: num_workers=16.",),
    )


def _trial() -> Trial:
    return trial(PRESENT, 1920.0, usage=USAGE, wait_fraction=1.0)


def shown(
    diagnosis: Diagnosis, traced: Explanation | None = None, plain: Trial | None = None
) -> Document:
    """A profile's document."""
    explanations = () if traced is None else (dataclasses.replace(traced, config=PRESENT),)
    trials = () if plain is None else (plain,)
    made = run(trials)
    return profile_report(dataclasses.replace(made, diagnosis=diagnosis, explanations=explanations))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_screen_at_a_width(width: int) -> None:
    document = shown(_diagnosis(), _explanation(), _trial())
    text = drawn(document, width, verbose=True)
    check_golden(f"profile_{width}.txt", text)
    pasted = ("DataLoader(", "    def ", "    loader =")
    assert all(
        len(line) <= width for line in text.splitlines() if not any(p in line for p in pasted)
    )


def test_where_no_part_is_the_limit_that_is_said() -> None:
    free = WithoutPart(part="storage", gain=Estimate(value=1.01, low=0.8, high=1.3), source="model")
    made = dataclasses.replace(_diagnosis(), without=(free,))
    assert "No part of loading is the limit" in drawn(shown(made, plain=_trial()), 80, verbose=True)
    text = drawn(shown(_diagnosis(), plain=_trial()), 80, verbose=True)
    assert "No part of loading is the limit" not in text
    assert "Without one part" not in drawn(shown(_diagnosis()), 80, verbose=True)  # of no rate


def test_of_ranks_the_cores_are_those_of_the_machine_as_others_use_it() -> None:
    share = dataclasses.replace(USAGE, own_cpu_cores=0.6, available_cpu_cores=0.95)
    ranks = tuple(RankFigures(rank=n, host="box") for n in range(2))
    made = dataclasses.replace(_trial(), usage=share, ranks=ranks)
    text = drawn(shown(_diagnosis(), plain=made), 120, verbose=True)
    said = "cores, all ranks of a machine  1.2 used, 1.9 available (0.1 used by other processes)"
    assert said in text


def test_the_answer_fits_into_14_lines() -> None:
    text = drawn(shown(_diagnosis(), _explanation(), _trial()), 80)
    assert len(text.splitlines()) <= 14
    assert text.splitlines()[1].startswith("  Bottleneck  Slow samples hold back finished batches")


def test_the_screen_in_ascii() -> None:
    text = drawn(shown(_diagnosis(), _explanation()), 60, encoding="ascii", verbose=True)
    assert text.isascii()
    assert "####" in text
    assert "piles up" in text


def test_a_profile_that_could_not_be_traced() -> None:
    text = drawn(shown(Diagnosis(config=PRESENT), None, _trial()), 80, verbose=True)
    assert "no batch could be traced" in text
    assert "none found" not in text
    assert "Stages" not in text
    ended = Diagnosis(
        config=PRESENT, notes=("The budget ended before a batch was traced. Give --budget 60s.",)
    )
    text = " ".join(drawn(shown(ended, None, _trial()), 80).split())
    assert (
        "Bottleneck not known: the budget ended before a batch was traced. Give --budget 60s."
        in text
    )


def test_a_traced_profile_without_findings_says_that_nothing_is_wrong() -> None:
    found = Diagnosis(config=PRESENT)
    assert "none found that is worth fixing" in drawn(shown(found, _explanation()), 80)
    waited = dataclasses.replace(_explanation(), hooked=False)
    assert "no batch could be traced" in drawn(shown(found, waited), 80)


def test_a_noisy_rate_has_its_interval_and_what_was_measured_beside_it() -> None:
    diagnosis = dataclasses.replace(_diagnosis(), config=config(0))
    both = [trial(config(0), rate, noisy=True, spread=0.5) for rate in (100.0, 300.0)]
    for trials, says in ((both, "; measured: 100-300"), (both[:1], "95% CI 30.6-325)")):
        document = profile_report(dataclasses.replace(run(trials), diagnosis=diagnosis))
        (line,) = (each for each in drawn(document, 200).splitlines() if "Profiled" in each)
        assert "samples/s (noisy: 95% CI " in line
        assert line.endswith(says)
    assert "measured:" not in drawn(shown(_diagnosis(), plain=_trial()), 200)


def test_findings_are_the_contract_s() -> None:
    documents = json.loads(json.dumps(to_json(_diagnosis().findings)))
    keys = {"code", "severity", "title", "explanation", "evidence", "fix", "predicted_gain"}
    assert documents[0]["code"] == "order.blocking"
    for document in documents:
        assert keys <= set(document)
    assert documents[0]["fix"]["dataloader_kwargs"] == {"in_order": False}
    assert set(documents[0]["predicted_gain"]) == {"value", "low", "high"}


def _hostile() -> Finding:
    return Finding(
        code="fetch.cpu",
        severity="high",
        title=HOSTILE,
        explanation=HOSTILE,
        evidence={HOSTILE: HOSTILE, "trials": [HOSTILE]},
        fix=Fix(text=HOSTILE, dataloader_kwargs={HOSTILE: HOSTILE}, code=f"{HOSTILE}\nline"),
        predicted_gain=Estimate(value=1.5),
        doubtful=HOSTILE,
    )


def test_workers_that_are_not_shown_are_counted() -> None:
    many = tuple(WorkerCosts(worker=number, batches=1, busy_fraction=0.5) for number in range(65))
    explained = dataclasses.replace(_explanation(), workers=many)
    text = drawn(shown(Diagnosis(config=PRESENT), explained), 80, verbose=True)
    assert "1 more worker\n" in text


def test_nothing_in_a_text_acts_on_the_terminal() -> None:
    explained = dataclasses.replace(
        _explanation(),
        transforms=(TransformCost(name=HOSTILE, mean_s=0.1, share=0.5),),
        unavailable={HOSTILE: HOSTILE},
    )
    diagnosis = Diagnosis(config=PRESENT, findings=(_hostile(),), notes=(HOSTILE,))
    text = drawn(shown(diagnosis, explained), 80, verbose=True)
    assert not any(mark in text for mark in ("\x1b", "\x07", "\u202e"))
    assert "[bold]loud[/bold]" in text


def test_a_finding_without_anything_else_still_reads() -> None:
    bare = Finding(code="consumer", severity="info", title="The step", explanation="Fed.")
    text = drawn(Document(title="", answer=tuple(cards((bare,)))), 80)
    assert text == ("  1. The step  consumer  info\n    Fed.\n    more  dlprof explain consumer\n")


@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        ({"fetch_s": 0.012}, "fetch 12 ms"),
        ({"share_of_wait": 0.5}, "share of wait 50%"),
        ({"growth_bytes_per_s": 2048.0}, "growth bytes per s 2.0 KiB/s"),
        ({"own_cpu_cores": 1.94, "missing": None}, "own cpu cores 1.9"),
        ({"run_queue_wait_fraction": 0.4}, "run-queue delay fraction 40%"),
        ({"starved_fraction": 0.4}, "run-queue delay fraction 40%"),
        ({"idle_while_waiting_fraction": 0.4}, "idle workers during data wait 40%"),
        ({"fetch_run_queue_s": 0.012}, "fetch run-queue delay 12 ms"),
        ({"num_workers": 1000, "trials": ["t1", "t2"]}, "num workers 1,000 [t1, t2]"),
        ({"trials": ["t1"]}, "[t1]"),
        ({"gain_from": "model", "gain_trials": []}, ""),
    ],
)
def test_evidence_reads(evidence: dict[str, Any], text: str) -> None:
    assert evidence_text(evidence) == text


def test_gains_say_how_they_are_known() -> None:
    found = dataclasses.replace(
        _hostile(),
        evidence={
            "gain_from": "measured",
            "gain_trials": ["t3"],
            "gain_at": "with no training step",
        },
        predicted_gain=Estimate(value=1.5, low=1.4, high=1.6),
    )
    sure = "1.50x (95% CI 1.40-1.60) with no training step"
    assert known_gain(found) == f"{sure}, measured [t3]"
    bare = dataclasses.replace(found, evidence={}, predicted_gain=Estimate(value=2.0))
    assert known_gain(bare) == "2.00x"
    assert known_gain(dataclasses.replace(found, predicted_gain=None)) == ""


def _other(low: float, high: float | None, **fix: Any) -> Finding:
    return dataclasses.replace(
        _hostile(),
        title="Too few workers",
        evidence={"gain_from": "model"},
        fix=Fix(text="Set them.", dataloader_kwargs=fix) if fix else None,
        predicted_gain=Estimate(value=(low + (high or low)) / 2, low=low, high=high),
        doubtful="",
    )


def test_what_a_second_finding_surely_brings_is_beside_the_first() -> None:
    first = dataclasses.replace(_hostile(), title="First", predicted_gain=None)
    more = (_other(0.9, 1.3), _other(1.2, 1.4), _other(1.4, 1.8, num_workers=8))
    text = drawn(shown(Diagnosis(config=PRESENT, findings=(first, *more)), _explanation()), 100)
    assert "Also        Too few workers  fetch.cpu: num_workers=8, 1.60x (95% CI" in text
    alone = "1.60x (95% CI 1.40-1.80), predicted, by itself; dlprof sweep measures it"
    assert alone in " ".join(text.split())
    assert "(2 more findings)" in text
    none = Diagnosis(config=PRESENT, findings=(first, more[0]))
    text = drawn(shown(none, _explanation()), 100)
    assert "  Also " not in text
    assert "(1 more finding without a sure gain)" in text


def test_of_two_values_of_one_setting_only_one_can_be_set() -> None:
    one = dataclasses.replace(_other(1.1, 1.3, num_workers=4), title="First")
    two = _other(1.4, 1.8, num_workers=8)
    text = drawn(shown(Diagnosis(config=PRESENT, findings=(one, two)), _explanation()), 200)
    other = "num_workers=8, 1.60x (95% CI 1.40-1.80), predicted; dlprof sweep measures it"
    assert f"  Fix         num_workers=4 (or {other})\n" in text
    assert "  Also " not in text
    text = drawn(shown(Diagnosis(config=PRESENT, findings=(two, one)), _explanation()), 200)
    assert "  Fix         num_workers=8\n" in text
    assert "(or num_workers" not in text
    assert "(1 more finding)" in text


@pytest.mark.parametrize(("low", "label"), [(0.92, "Tried"), (1.02, "Fix  ")])
def test_what_a_trial_could_not_confirm_is_no_fix(low: float, label: str) -> None:
    one = _other(low, 1.29, num_workers=8)
    one = dataclasses.replace(one, evidence={"gain_from": "measured"})
    text = drawn(shown(Diagnosis(config=PRESENT, findings=(one,)), _explanation()), 100)
    assert f"  {label}       num_workers=8\n" in text
    assert ("no measurable gain" in text) is (low < 1)


def test_nothing_waits_for_data_without_a_training_step() -> None:
    """All the time is waiting then, which is no figure of the loader."""
    found = dataclasses.replace(profiled_run(), explanations=())
    header = found.header
    assert "  Data wait   " in drawn(profile_report(found), 80)
    found = dataclasses.replace(found, header=dataclasses.replace(header, settings={}))
    assert "Data wait" not in drawn(profile_report(found), 80)


def test_without_a_training_step_a_batch_is_freed_in_its_place() -> None:
    """That takes long where batches are huge."""
    traced = _explanation()
    step = dataclasses.replace(traced.stages[0], name="step", mean_s=0.168)
    traced = dataclasses.replace(traced, stages=(*traced.stages, step))
    found = Diagnosis(config=PRESENT, findings=())
    idle = dataclasses.replace(run(()), diagnosis=found, explanations=(traced,))
    stated = {"step_callable": "train.py:step"}
    trained = dataclasses.replace(idle, header=dataclasses.replace(idle.header, settings=stated))
    for made, there, not_there in (trained, "step", "free batch"), (idle, "free batch", "step"):
        text = drawn(profile_report(made), 100, verbose=True)
        stages = text[text.index("Stages, per batch") : text.index("Single samples")]
        assert f"\n  {there} " in stages
        assert f"\n  {not_there} " not in stages
        assert f" {there} ▏" in text


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (0.9, 1.2, "no measurable gain over yours (1.05x, 95% CI 0.90-1.20)"),
        (1.1, 1.2, "1.15x over yours (95% CI 1.10-1.20)"),
        (0.7, 0.9, "20% slower than yours (0.80x, 95% CI 0.70-0.90)"),
        (0.2, 0.6, "at least 40% slower than yours (95%)"),
        (1.1, 4.0, "at least 1.10x over yours (95%)"),
        (0.5, 4.0, "not known over yours: too noisy to say (95% CI 0.50-4.0)"),
    ],
)
def test_a_gain_that_may_be_none_or_is_too_noisy_is_not_promised(
    low: float, high: float, says: str
) -> None:
    gain = Estimate(value=round((low + high) / 2, 3), low=low, high=high)
    assert gain_text(gain, "yours") == says


def test_an_interval_that_says_little_is_called_noisy() -> None:
    rates = [Estimate(value=277.0, low=low, high=2 * 277.0) for low in (0.354, 139.0)]
    assert [rate_text(rate) for rate in rates] == [
        "about 277 samples/s (noisy: 95% CI 0.354-554)",
        "277 samples/s (95% CI 139-554)",
    ]


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (0.0, "not slower than yours (95%); how much faster, if at all, is too noisy to say"),
        (0.1, "at most 10% slower than yours (95%); how much faster, if at all, is too"),
        (0.2, "not known over yours: too noisy to say (95% CI 0.85-6.1)"),
    ],
)
def test_a_certificate_that_knows_more_of_a_loss_than_the_interval_is_said(
    loss: float, says: str
) -> None:
    text = gain_text(Estimate(value=2.28, low=0.85, high=6.1), "yours", loss=loss)
    assert text.startswith(says)


@pytest.mark.parametrize("with_rates", [True, False])
def test_trials_that_failed_are_said(*, with_rates: bool) -> None:
    fault = Failure(kind="worker_exception", message="ValueError: broken record 911")
    trials = [failed(config(count), failure=fault) for count in (0, 1)]
    made = run([*([_trial()] if with_rates else []), *trials])
    made = dataclasses.replace(made, diagnosis=Diagnosis(config=PRESENT))
    text = " ".join(drawn(profile_report(made), 100).split())
    assert "Failed num_workers=0 (and 1 more): ValueError: broken record 911" in text


def test_of_a_dataset_that_keeps_samples_rate_wait_and_bound_are_of_ten_epochs() -> None:
    """Beside 369 samples/s the 97 % of a first epoch promised 31x, where a step allows 4.3x."""
    kept = target(first_sample_s=0.02, kept_sample_s=1e-9, sampler="RandomSampler")
    plain = trial(config(0), 47.0, wait_fraction=0.97, samples_per_batch=8.0)
    finding = Finding(
        code="fetch.io",
        severity="medium",
        title="Blocking I/O",
        explanation="",
        fix=Fix(text="Read less often."),
    )
    made = run([plain], target=kept, settings={"step_s": 0.005})
    found = Diagnosis(config=config(0), findings=(finding,))
    text = drawn(profile_report(dataclasses.replace(made, diagnosis=found)), 100)
    assert "over 10 epochs: trials show the first" in text
    rate = float(text.partition("num_workers=0: ")[2].partition(" ")[0])
    share, most = 0.005 * rate / 8, 8 / 0.005 / rate
    assert f"Data wait   {100 * (1 - share):.0f}% of the time (step 5.0 ms" in text
    assert f"at most {most:.3g}x, without any wait" in text
