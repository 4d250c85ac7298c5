"""Which configurations give wrong data, from made runs: failures, counts, and old warnings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from builders import around, config, failed, plan, run, target, trial
from finding_cases import Loader, explanation
from predicted_runs import calibration

from dlprof.advise.recommend import recommend
from dlprof.advise.wrong_data import data_findings, present_failure, said_first
from dlprof.errors import TargetError
from dlprof.records import (
    COPIED_SIGN,
    DUPLICATED_SIGN,
    SHARED_SIGN,
    SOME_SHARED,
    UNSHARED_SIGN,
    VARIED_SIGN,
    Config,
    Diagnosis,
    Expected,
    Failure,
    FailureKind,
    Finding,
    Fix,
    Integrity,
    PredictedCell,
    Recommendation,
    Run,
    SweepPrediction,
    Trial,
    broken_sample,
    checked,
    shared_position,
)
from dlprof.report.export.formats import render_as, render_html
from dlprof.search.space import still_useful
from dlprof.store import RunWriter, read_run

OLD_DUPLICATED = (
    "two workers gave the same first batch: an iterable dataset must share its samples among "
    "workers by torch.utils.data.get_worker_info(), or each comes once per worker"
)
OLD_LENGTH = (
    "an epoch gave {} batches where __len__ promises {}: what counts steps by len(loader), such "
    "as a learning rate schedule, goes wrong"
)


def wrong(chosen: Config, kind: FailureKind, message: str = "It is wrong.") -> Trial:
    return failed(chosen, failure=Failure(kind=kind, message=message, hint="Fix it."))


def raising(chosen: Config) -> Trial:
    return wrong(chosen, "worker_exception", "No samples found.")


def faulty(found: Run, *workers: int) -> list[int]:
    """Those ``num_workers`` whose data is wrong."""
    known = Integrity.of(found)
    return [count for count in workers if known.fault(config(count)) is not None]


def iterable(trials: list[Trial], **rest: Any) -> Run:
    return run(trials, target=target(kind="iterable", **rest))


def test_one_duplicated_trial_says_it_of_every_several_workers() -> None:
    found = iterable([trial(config(0)), wrong(config(2), "duplicated"), trial(config(4))])
    assert faulty(found, 0, 1, 2, 4, 64) == [2, 4, 64]
    fault = Integrity.of(found).fault(config(4))
    assert fault is not None
    assert fault.kind == "duplicated"
    assert "num_workers=4 each comes up to 4 times" in fault.message
    assert fault.hint == "Fix it."
    assert Integrity.of(found).most_workers(config(2)) == 1


SHARED = ("file (zipfile.ZipFile of a.zip)",)


def test_files_that_forked_workers_share_are_wrong_with_several_of_them() -> None:
    found = run([trial(config(0)), trial(config(1))], target=target(shared_files=SHARED))
    known = Integrity.of(found)
    assert faulty(found, 0, 1, 2, 16) == [2, 16]
    assert known.fault(config(4, start_method="fork")) == known.shared
    assert known.most_workers(config(2)) == 1
    (said,) = said_first(found)
    assert "move one read position of file (zipfile.ZipFile of a.zip), which was open" in said


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"own_config": config(2, start_method="spawn")},
        {"notes": (f"Workers start by spawn here {COPIED_SIGN}.",)},
    ],
)
def test_workers_that_are_sent_the_dataset_share_no_file(about: dict[str, Any]) -> None:
    """As it may be made to be pickled without its file, and to open that again."""
    spawned = config(4, start_method="spawn") if not about else config(4)
    found = run([trial(config(0))], target=target(shared_files=SHARED, **about))
    known = Integrity.of(found)
    assert known.fault(spawned) is None
    assert not known.is_useless(spawned)
    assert known.most_workers(spawned) is None
    assert known.is_useless(config(4, start_method="fork"))


def test_a_shared_file_costs_nothing_where_workers_are_not_forked() -> None:
    kept = config(2, start_method="spawn")
    found = run([trial(config(2))], target=target(shared_files=SHARED, own_config=kept))
    assert [each.cost for each in data_findings(found)] == [0.0]
    assert not [*present_failure(found)]


def test_a_rate_of_several_workers_that_share_a_file_is_none() -> None:
    found = run([trial(config(0)), trial(config(4))], target=target(shared_files=SHARED))
    alone, four = checked(found).trials
    assert alone.samples_per_s is not None
    assert (four.outcome, four.samples_per_s) == ("crashed", None)
    assert four.failure is not None
    assert four.failure.kind == "shared_file"


def test_many_shared_files_are_not_all_named() -> None:
    failure = shared_position([f"files[{number}] (a.bin)" for number in range(5)])
    assert failure is not None
    assert "files[2] (a.bin) and 2 more, which were open" in failure.message
    assert "files[3]" not in failure.message


def test_a_truncated_trial_says_it_of_as_many_workers_only() -> None:
    found = iterable([trial(config(0)), wrong(config(4), "truncated"), trial(config(4, 4))])
    assert faulty(found, 0, 1, 2, 4, 8) == [4]
    assert Integrity.of(found).fault(config(4, 8, persistent_workers=True)) is not None
    assert Integrity.of(found).most_workers(config(2)) is None


@pytest.mark.parametrize(
    ("samples", "kind"),
    [
        (1600, None),
        (3200, "duplicated"),
        (2500, "duplicated"),
        (2300, None),  # more, and not as many times: nobody knows why
        (1510, None),  # a batch of each worker, and 2 % beside
        (1400, "truncated"),
        (800, "truncated"),
    ],
)
def test_samples_of_whole_epochs_are_compared(samples: int, kind: str | None) -> None:
    plain = trial(config(0), epoch_samples=1600)
    two = trial(config(2), epoch_samples=samples, warnings=(SHARED_SIGN,))
    found = Integrity.of(iterable([plain, two]))
    fault = found.fault(config(2))
    assert (fault.kind if fault is not None else None) == kind
    assert found.fault(config(0)) is None


def test_an_epoch_that_grows_with_its_workers_is_wrong_though_no_sample_was_the_same() -> None:
    """As of a dataset that augments at random; that it draws its samples so can't be known."""
    asked = trial(config(2), epoch_samples=3200)
    plain, two = (
        trial(config(0), epoch_samples=1600),
        dataclasses.replace(asked, warnings=(UNSHARED_SIGN,)),
    )
    longer = iterable([plain, two])
    assert faulty(longer, 0, 1, 2, 4) == [2, 4]
    said = "An epoch has 3,200 samples with num_workers=2, and 1,600 with fewer workers"
    shown = said_first(checked(longer))[0]
    assert shown.startswith(f"Workers may yield the same samples. {said}. Each sample comes")
    seen = trial(config(4), epoch_samples=6400, warnings=(SHARED_SIGN,))
    assert said_first(checked(iterable([plain, two, seen])))[0].startswith("Workers yield")
    random = dataclasses.replace(two, warnings=(VARIED_SIGN,))
    assert not faulty(iterable([plain, random]), 2)
    less = dataclasses.replace(two, epoch_samples=2000)
    assert not faulty(iterable([plain, two, less]), 2)
    # Each worker may have an epoch of its own, of the shards that are its share.
    found = Integrity.of(iterable([plain, asked]))
    assert found.fault(config(2)) is None
    assert list(found.unshared.values()) == [said]


MORE = "an epoch gave 1,040 batches where __len__ promises 1,020"


def test_workers_that_give_more_than_is_promised_give_the_same() -> None:
    found = iterable([trial(config(0)), trial(config(2), warnings=(MORE,))])
    assert faulty(found, 0, 1, 2, 4) == [2, 4]
    shown = said_first(checked(found))[0]
    assert shown.startswith(
        "Workers may yield the same samples. An epoch gave 1,040 batches where __len__ promises "
        "1,020. Each sample comes several times"
    )
    same = iterable([trial(config(0)), trial(config(2), warnings=(MORE, SHARED_SIGN))])
    shown = said_first(checked(same))[0]
    assert (
        "not split them between workers. An epoch gave 1,040 batches where __len__ promises 1,020."
        in shown
    )
    both = [trial(config(0), warnings=(MORE,)), trial(config(2), warnings=(MORE,))]
    assert not faulty(iterable(both), 0, 1, 2, 4)  # the promise is broken by one worker alone


@pytest.mark.parametrize(
    ("plain", "several", "warnings", "wrong"),
    [
        ([147], [141], (), False),  # half of 300 samples, kept at random
        ([147], [100], (), False),
        ([147], [80], (), True),
        ([1600, 1600], [1400, 1400], (), True),
        ([1600, 1500], [1400, 1410], (), False),
        ([1600], [1400, 1590], (), False),
        ([1600], [800], (VARIED_SIGN,), False),
    ],
)
def test_epochs_whose_length_varies_are_not_truncated(
    plain: list[int], several: list[int], warnings: tuple[str, ...], *, wrong: bool
) -> None:
    trials = [trial(config(0), epoch_samples=n, samples_per_batch=1.0) for n in plain]
    trials += [
        trial(config(2), epoch_samples=n, samples_per_batch=1.0, warnings=warnings) for n in several
    ]
    assert (faulty(iterable(trials), 2) == [2]) is wrong


def test_epochs_that_were_seen_to_be_as_long_again_leave_nothing_to_chance() -> None:
    """Five shards of 32, of which two workers take two each."""
    plain = trial(config(0), epoch_samples=160, samples_per_batch=8.0)
    two = trial(config(2), epoch_samples=128, samples_per_batch=5.0)
    assert not faulty(iterable([plain, two]), 2)
    again = dataclasses.replace(plain, window_samples=320)
    assert faulty(iterable([again, two]), 2) == [2]
    assert faulty(iterable([plain, plain, two]), 2) == [2]


def test_a_map_style_dataset_that_ends_early_does_so_with_any_number_of_workers() -> None:
    trials = [trial(config(0)), wrong(config(2), "truncated")]
    assert faulty(run(trials), 0, 1, 2, 4) == [0, 1, 2, 4]
    seen_whole = [trial(config(0), epoch_samples=4000), trials[1]]
    assert faulty(run(seen_whole), 0, 1, 2, 4) == [1, 2, 4]


def test_workers_that_never_ask_for_their_share_are_reported_where_no_whole_epoch_shows() -> None:
    silent = trial(config(2), warnings=(UNSHARED_SIGN,))
    assert len(Integrity.of(iterable([trial(config(0)), silent])).unshared) == 1
    whole = [trial(config(0), epoch_samples=320), dataclasses.replace(silent, epoch_samples=320)]
    assert not Integrity.of(iterable(whole)).unshared
    assert not Integrity.of(iterable([silent, wrong(config(4), "duplicated")])).unshared
    assert not faulty(iterable([silent]), 0, 1, 2, 4)


def test_what_was_seen_of_many_workers_vouches_for_no_others() -> None:
    """Shares by ``id % 2``: two workers are right, three give half of the samples twice."""
    plain = trial(config(0), epoch_samples=96, samples_per_batch=8.0)
    three = trial(config(3), epoch_samples=144, samples_per_batch=8.0)
    eight = wrong(config(8), "duplicated")
    found = iterable([plain, three, eight])
    assert faulty(found, 0, 1, 2, 3, 4, 8) == [2, 3, 4, 8]
    untried = Integrity.of(found).fault(config(2))
    assert untried is not None
    assert untried.message == (
        "Workers yield the same samples with num_workers=8, and nothing shows that they don't "
        "with 2."
    )
    two = trial(config(2), epoch_samples=96, samples_per_batch=8.0)
    assert faulty(iterable([plain, two, three, eight]), 0, 1, 2, 3, 4, 8) == [3, 4, 8]


def test_one_worker_may_lack_what_none_has() -> None:
    """As a list of files of which each worker takes the one of its number."""
    none, one, two = (
        trial(config(n), epoch_samples=samples, samples_per_batch=4.0, window_samples=200)
        for n, samples in enumerate((96, 48, 96))
    )
    found = iterable([none, one, two])
    assert faulty(found, 0, 1, 2) == [1]
    assert not Integrity.of(found).unshared


def test_equal_samples_of_shares_as_long_as_they_should_be_are_no_fault() -> None:
    """As videos that begin with the same frames."""
    same = f"workers yield the same samples: {DUPLICATED_SIGN}"
    plain, two, four = (
        trial(config(n), epoch_samples=320, samples_per_batch=4.0, warnings=(same,) if n else ())
        for n in (0, 2, 4)
    )
    assert not faulty(iterable([plain, two, four]), 0, 1, 2, 4)
    unseen = dataclasses.replace(four, epoch_samples=None)
    assert faulty(iterable([plain, unseen]), 0, 1, 2, 4) == [2, 4]


def test_what_is_checked_again_stays_as_it_is() -> None:
    """As while a sweep goes on: what was guessed of untried workers is no proof."""
    plain = trial(config(0), epoch_samples=96, samples_per_batch=8.0)
    three = trial(config(3), epoch_samples=144, samples_per_batch=8.0)
    once = checked(iterable([plain, three, wrong(config(8), "duplicated")]))
    assert checked(once) == once
    assert Integrity.of(once).fewest == 8


def test_epochs_as_long_as_they_should_be_are_right_above_wrong_ones() -> None:
    plain, two, four = (
        trial(config(n), epoch_samples=96, samples_per_batch=8.0) for n in (0, 2, 4)
    )
    found = iterable([plain, two, wrong(config(3), "duplicated"), four])
    assert faulty(found, 0, 1, 2, 3, 4, 5) == [3, 5]
    assert Integrity.of(found).most_workers(config(2)) == 4


def test_epochs_far_longer_or_shorter_acquit_nobody() -> None:
    plain = trial(config(0), epoch_samples=40, samples_per_batch=20.0)
    same = f"workers yield the same samples: {DUPLICATED_SIGN}"
    twice = trial(config(2), epoch_samples=80, samples_per_batch=20.0, warnings=(same,))
    assert faulty(iterable([plain, twice]), 0, 1, 2) == [2]
    half = trial(config(4), epoch_samples=480, samples_per_batch=8.0)
    most = trial(config(0), epoch_samples=960, samples_per_batch=8.0)
    assert not Integrity.of(iterable([most, most, half])).shared_out


@pytest.mark.parametrize(
    ("plain", "several", "sign"),
    [
        (None, None, SOME_SHARED),
        (320, None, SOME_SHARED),
        (320, 320, ""),
        (120, 168, "An epoch has 168 samples with num_workers=2, and 120 with fewer workers"),
        (120, 130, ""),  # a batch of each worker, and 2 %
    ],
)
def test_some_of_the_same_samples_are_a_doubt(
    plain: int | None, several: int | None, sign: str
) -> None:
    none = trial(config(0), epoch_samples=plain, samples_per_batch=4.0)
    two = trial(config(2), epoch_samples=several, samples_per_batch=4.0, warnings=(SHARED_SIGN,))
    found = iterable([none, none, two, two])
    assert Integrity.of(found).doubt(2) == sign
    assert Integrity.of(found).doubt(1) == ""
    assert not faulty(found, 0, 1, 2, 4)


def test_epochs_are_compared_at_one_batch_size_and_where_they_were_counted() -> None:
    big = trial(config(2, batch_size=64), epoch_samples=3200)
    unseen = trial(config(0, batch_size=64))
    assert not faulty(iterable([trial(config(0), epoch_samples=1600), big, unseen]), 2)


@pytest.mark.parametrize(
    ("warning", "workers", "kind"),
    [
        (OLD_DUPLICATED, 2, "duplicated"),
        (OLD_LENGTH.format(20, 157), 1, "truncated"),
        (OLD_LENGTH.format(200, 157), 1, None),
        ("other processes kept 2.0 of the usable cores busy", 2, None),
    ],
)
def test_warnings_of_earlier_versions_count(warning: str, workers: int, kind: str | None) -> None:
    found = Integrity.of(iterable([trial(config(workers), warnings=(warning,))]))
    fault = found.fault(config(workers))
    assert (fault.kind if fault is not None else None) == kind


def test_an_iterable_that_raises_with_more_workers_sets_a_ceiling() -> None:
    trials = [trial(config(0)), trial(config(2)), raising(config(8)), raising(config(4))]
    found = Integrity.of(iterable(trials))
    assert found.most_workers(config(2)) == 3
    assert found.fault(config(3)) is None
    assert found.fault(config(5)) is not None
    assert (
        Integrity.of(run(trials)).most_workers(config(2)) is None
    )  # a sampler knows of all workers
    assert Integrity.of(iterable([*trials, trial(config(16))])).most_workers(config(2)) is None
    assert (
        Integrity.of(iterable([raising(config(0)), raising(config(2))])).most_workers(config(2))
        is None
    )


def test_idle_workers_set_a_ceiling_and_are_no_fault() -> None:
    loader = Loader(config=config(8), idle_workers=6)
    found = dataclasses.replace(
        iterable([trial(config(8), purpose="explain")]),
        explanations=(explanation(loader, "t0001"),),
    )
    known = Integrity.of(found)
    assert (known.fed, known.unfed_of, known.most_workers(config(2))) == (2, 8, 2)
    assert known.fault(config(8)) is None
    assert known.is_useless(config(4))
    assert not known.is_useless(config(2))
    plain = iterable([trial(config(2), fed_workers=2), trial(config(8), fed_workers=2)])
    assert Integrity.of(plain) == known
    # Ten shards cut by ceil(10 / num_workers): eight workers leave three without one.
    uneven = [trial(config(8), fed_workers=5), trial(config(10), fed_workers=10)]
    assert Integrity.of(iterable(uneven)).fed is None
    assert Integrity.of(iterable([*uneven, trial(config(16), fed_workers=10)])).fed == 10


def test_what_is_useless_is_planned_no_more_but_the_present_while_it_works() -> None:
    counts = tuple(map(config, (0, 1, 2, 4, 8)))
    planned = plan(counts, cells=counts, calibration=counts[:3], present=config(8))
    unfed = still_useful(planned, Integrity(fed=2, unfed_of=8))
    assert unfed.configs == (*counts[:3], config(8))
    assert unfed.cells == counts[:3]
    doubled = Integrity(duplicated=Failure(kind="duplicated", message="It is wrong."))
    left = still_useful(planned, doubled)
    assert left.configs == left.cells == left.calibration == counts[:2]
    assert left.present is None


def prediction(pick: Config) -> SweepPrediction:
    configs = (config(0), config(1), config(2))
    cells = tuple(PredictedCell(config=c, samples_per_s=around(100.0), speed=1.0) for c in configs)
    return SweepPrediction(cells=cells, race=configs, pick=pick, cores=8.0)


def advice(pick: Config) -> Recommendation:
    return Recommendation(
        config=pick,
        dataloader_kwargs=pick.dataloader_kwargs(),
        expected=Expected(samples_per_s=around(100.0)),
        confidence="high",
        confidence_reason="Measured.",
    )


def old(**rest: Any) -> Run:
    """A run of yesterday, whose second trial duplicates with a rate."""
    trials = [trial(config(1)), trial(config(2), 2000.0, warnings=(OLD_DUPLICATED,))]
    return dataclasses.replace(iterable(trials), **rest)


def test_a_checked_run_has_no_rate_of_wrong_data() -> None:
    found = checked(old())
    assert [each.outcome for each in found.trials] == ["completed", "crashed"]
    gone = found.trials[1]
    assert gone.failure is not None
    assert gone.failure.kind == "duplicated"
    figures = (gone.samples_per_s, gone.batches_per_s, gone.startup_s, gone.epoch_turnover_s)
    assert figures == (None,) * 4
    assert checked(found) == found


def test_what_was_drawn_from_wrong_data_goes() -> None:
    by_both = dataclasses.replace(calibration(), trials=("t0001", "t0002"))
    by_one = dataclasses.replace(calibration(), trials=("t0001",))
    found = checked(old(calibration=by_both, prediction=prediction(config(0))))
    assert found.calibration is None
    assert found.prediction is None
    found = checked(old(calibration=by_one, prediction=prediction(config(0))))
    assert found.calibration == by_one
    assert found.prediction is not None
    assert [cell.config for cell in found.prediction.cells] == [config(0), config(1)]
    assert found.prediction.race == (config(0), config(1))
    assert checked(old(calibration=by_one, prediction=prediction(config(2)))).prediction is None
    shown = (explanation(Loader(), "t0002"), explanation(Loader(), "t0001"))
    assert [each.trial_id for each in checked(old(explanations=shown)).explanations] == ["t0001"]


def test_a_recommendation_that_knew_nothing_of_it_goes() -> None:
    assert checked(old(recommendation=advice(config(2)))).recommendation is None
    assert checked(old(recommendation=advice(config(1)))).recommendation is None
    finding = Finding(code="data.duplicated", severity="info", title="", explanation="")
    knew = dataclasses.replace(advice(config(1)), findings=(finding,))
    assert checked(old(recommendation=knew)).recommendation == knew
    right = dataclasses.replace(iterable([trial(config(2))]), recommendation=advice(config(2)))
    assert checked(right) == right


def test_findings_of_an_old_profile_promise_nothing_by_wrong_data() -> None:
    finding = Finding(code="data.duplicated", severity="info", title="", explanation="")
    more = dataclasses.replace(
        finding,
        code="too_few_workers",
        predicted_gain=around(7.57),
        fix=Fix(text="Set it.", dataloader_kwargs={"num_workers": 16}),
    )
    other = dataclasses.replace(finding, code="collate", predicted_gain=around(1.2))
    shown = (finding, more, other)
    plain = checked(old(diagnosis=Diagnosis(config=config(0), findings=shown)))
    assert plain.findings == (finding, other)
    assert checked(old(diagnosis=Diagnosis(config=config(2), findings=shown))).findings == (
        finding,
    )


def test_a_file_is_checked_as_it_is_read(tmp_path: Path) -> None:
    written = old()
    with RunWriter.create(tmp_path / "run", written.header) as writer:
        for each in written.trials:
            writer.append(each)
        writer.append(advice(config(2)))
    found = read_run(tmp_path / "run")
    assert found.recommendation is None
    assert found.trials == checked(written).trials


def test_workers_that_were_seen_to_give_the_right_data_stay_right() -> None:
    found = Integrity.of(iterable([trial(config(2)), wrong(config(4), "duplicated")]))
    assert found.fault(config(2)) is None
    assert found.most_workers(config(2)) == 2
    assert "same samples with num_workers=4" in found.doubt(2)  # as long as no whole epoch is seen
    plain, two = (trial(config(n), epoch_samples=96, samples_per_batch=8.0) for n in (0, 2))
    found = Integrity.of(iterable([plain, two, wrong(config(4), "duplicated")]))
    assert found.doubt(2) == ""
    assert found.fault(config(3)) is not None


def test_where_workers_fail_half_of_what_is_unknown_is_advised_until_a_trial_shows_more() -> None:
    def advised(*trials: Trial) -> int | None:
        return Integrity.of(iterable([*trials])).most_to_advise(config(2))

    assert advised(trial(config(2))) is None
    assert advised(trial(config(2)), raising(config(16))) == 9
    assert advised(trial(config(2)), raising(config(16)), raising(config(9))) == 5
    assert advised(trial(config(5)), raising(config(9))) == 7
    assert advised(trial(config(8)), raising(config(9))) == 8


def test_more_workers_than_worked_are_tried_and_not_answered_with_once_more_raise() -> None:
    found = Integrity.of(iterable([trial(config(2)), raising(config(8))]))
    assert [found.is_unproven(config(w)) for w in (0, 2, 3)] == [False, False, True]
    assert not found.is_useless(config(7))


def test_all_views_of_a_run_ask_for_what_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[object] = []
    compute = Integrity.of_trials

    def count(*asked: Any) -> Integrity:
        computed.append(asked)
        return compute(*asked)

    monkeypatch.setattr(Integrity, "of_trials", count)
    found = read_run(Path(__file__).parents[2] / "examples" / "single-box.dlprof.jsonl")
    assert len(computed) == 1  # as it was written
    found = dataclasses.replace(found, recommendation=None)
    for render in (render_html, lambda shown: render_as(shown, "markdown")):
        assert render(found)
        assert len(computed) == 2  # as it is checked
    Integrity.of(dataclasses.replace(found, trials=found.trials[:1]))
    assert len(computed) == 3


def test_what_needs_a_worker_is_neither_predicted_nor_advised_without_one() -> None:
    none = Failure(kind="worker_exception", message="It takes a worker.", hint="Use one.")
    found = run([trial(config(1)), trial(config(2))], target=target(main_failure=none))
    assert faulty(found, 0, 1, 2) == [0]
    advice = recommend(found)
    default = next(each for each in advice.rules_of_thumb if not each.config.num_workers)
    assert default.unavailable == none.message
    assert advice.config.num_workers


def broken(
    workers: int,
    batches: int | None = 43,
    said: str = "sample 700",
    *,
    frame: str = 'File "data.py", line 7, in __getitem__',
    **rest: Any,
) -> Trial:
    where = "a worker process" if workers else "the main process"
    message, tail = f"ValueError in {where}: {said}", f'File "torch/fetch.py", line 54\n  {frame}'
    fault = Failure(kind="worker_exception", message=message, batches=batches, stderr_tail=tail)
    return failed(config(workers, **rest), failure=fault)


SHORT_OF_IT = trial(config(0), window_batches=20)


@pytest.mark.parametrize(
    ("trials", "is_broken"),
    [
        ([SHORT_OF_IT, broken(1), broken(2)], True),
        ([broken(0), broken(2)], True),
        ([SHORT_OF_IT, broken(2), broken(2)], False),  # only these may raise
        ([SHORT_OF_IT, broken(1), broken(2, said="sample 701")], False),
        ([SHORT_OF_IT, broken(1), broken(2, 44)], False),
        ([SHORT_OF_IT, broken(1, None), broken(2, None)], False),
        ([trial(config(0), window_batches=44), broken(1), broken(2)], False),  # came further
        ([trial(config(0), epoch_samples=1000), broken(1), broken(2)], False),
        ([broken(1), broken(2), trial(config(1)), trial(config(2))], False),  # fixed since
    ],
    ids=range(9),
)
def test_a_sample_that_raises_whatever_the_settings(
    trials: list[Trial], *, is_broken: bool
) -> None:
    assert (broken_sample(run(trials)) is not None) is is_broken


CAME_BY = trial(config(0), purpose="explain", window_batches=44)


@pytest.mark.parametrize(
    ("trials", "is_broken"),
    [
        ([CAME_BY, broken(2), broken(0)], True),
        ([trial(config(2), window_batches=44), CAME_BY, broken(2), broken(0)], True),
        ([trial(config(4), window_batches=44), broken(2), broken(0)], False),  # but for workers
        ([trial(config(2), window_batches=44), broken(2), broken(1)], False),
        ([CAME_BY, trial(config(2), epoch_samples=1000), broken(2), broken(0)], False),
        ([CAME_BY, broken(2), broken(0, 44)], False),
        ([CAME_BY, broken(2), broken(0), CAME_BY], False),  # fixed since
    ],
    ids=range(7),
)
def test_who_came_by_in_another_order_does_not_speak_for_a_sample(
    trials: list[Trial], *, is_broken: bool
) -> None:
    assert (broken_sample(run(trials)) is not None) is is_broken


@pytest.mark.parametrize("is_data", [True, False])
def test_that_most_configurations_raise_what_the_data_does_is_doubted(*, is_data: bool) -> None:
    traced = trial(config(2 if is_data else 1), 300.0, purpose="explain", window_batches=44)
    found = recommend(run([traced, broken(2, 12), broken(4, 12), broken(8, 12), trial(config(1))]))
    assert ("follows from the data" in found.confidence_reason) is is_data
    assert found.confidence == "low" or not is_data


@pytest.mark.parametrize(
    ("worked", "is_broken"),
    [
        (trial(config(0, batch_size=16), epoch_samples=1000), False),  # large batches raise
        (trial(config(0, batch_size=16), window_batches=88), False),
        (trial(config(0, batch_size=16), window_batches=87), True),
        (trial(config(1, start_method="fork"), window_batches=5), False),  # workers by spawn raise
    ],
    ids=range(4),
)
def test_what_raises_with_some_settings_leaves_others(worked: Trial, *, is_broken: bool) -> None:
    some = [
        dataclasses.replace(
            each,
            config=dataclasses.replace(each.config, batch_size=32, start_method="spawn"),
        )
        for each in (broken(1), broken(2))
    ]
    assert (broken_sample(run([worked, *some])) is not None) is is_broken


DRAWN = [broken(0, 43), broken(1, 12), broken(2, 30)]


@pytest.mark.parametrize(
    ("trials", "is_broken"),
    [
        (DRAWN, True),
        (DRAWN[1:], False),
        ([trial(config(4), window_batches=12), *DRAWN], True),  # that it is not drawn so soon
        ([trial(config(4), window_batches=13), *DRAWN], False),
        ([failed(config(4)), *DRAWN], False),
        ([*DRAWN[:2], broken(2, 30, said="sample 701")], False),
        ([*DRAWN[:2], broken(2, 30, frame='File "data.py", line 9, in load')], False),
        ([broken(1, 12), broken(2, 30), broken(4, 9)], False),  # the main process may work
        ([broken(0, None), broken(1, 0), broken(2, 12)], True),
        ([broken(0, None), broken(1, 0), broken(2, 0)], False),  # none of its samples works
        ([broken(1, 12), broken(1, 30), broken(1, 9)], False),
    ],
    ids=range(11),
)
def test_a_sample_that_raises_wherever_it_is_drawn(trials: list[Trial], *, is_broken: bool) -> None:
    planned = plan([config(workers) for workers in (0, 1, 2, 4, 8)])
    found = broken_sample(run(trials, plan=planned))
    assert (found is not None) is is_broken
    assert found is None or found.batches is None


@pytest.mark.parametrize(
    ("planned", "trials", "is_broken"),
    [
        ([config(n) for n in (1, 2, 4)], [broken(1, 12), broken(2, 30), broken(4, 9)], True),
        ([config(1), config(2)], [broken(1, 12), broken(2, 30)], True),  # all there are
        ([config(0, batch_size=8), config(0)], DRAWN, False),
        (
            [config(0, batch_size=8), config(0)],
            [broken(0, 43, batch_size=8), broken(0, 7), broken(1, 5)],
            True,
        ),
        (
            [config(1, start_method="spawn"), config(1, start_method="fork")],
            [broken(n, 12 + n, start_method="fork") for n in (1, 2, 4)],
            False,
        ),
        (
            [config(0), config(1, start_method="spawn"), config(1, start_method="fork")],
            [broken(0), *(broken(n, 12 + n, start_method="fork") for n in (1, 2))],
            True,  # which the main process says
        ),
    ],
    ids=range(6),
)
def test_what_raises_anywhere_raises_with_all_that_is_planned(
    planned: list[Config], trials: list[Trial], *, is_broken: bool
) -> None:
    assert (broken_sample(run(trials, plan=plan(planned))) is not None) is is_broken


def test_what_raised_before_a_sweep_was_gone_on_with_may_have_been_fixed() -> None:
    ended = [SHORT_OF_IT, broken(1), broken(2)]
    worked, other = trial(config(4), window_batches=20), broken(4, 30, said="another")
    skipped = failed(config(8), outcome="skipped")
    assert broken_sample(run([*ended, skipped, broken(4)])) is not None
    assert broken_sample(run([*ended, worked])) is None
    assert broken_sample(run([*ended, other])) is None
    again = broken_sample(run([*ended, other, broken(2, 30, said="another")]))
    assert again is not None
    assert "another" in again.message


def test_what_was_fixed_since_is_recommended_without_a_word() -> None:
    ended = [trial(config(0), 100.0), broken(1), broken(2)]
    found = recommend(run([*ended, trial(config(1), 180.0), trial(config(2), 350.0)]))
    assert found.config == config(2)
    assert "failed" not in str(found.reasons)


def test_nothing_is_recommended_where_each_trial_raised_somewhere() -> None:
    with pytest.raises(TargetError, match=r"in every configuration that was tried: .*: sample 700"):
        recommend(run(DRAWN))


def test_nothing_is_recommended_where_trials_only_ended_before_a_broken_sample() -> None:
    with pytest.raises(TargetError, match=r"after 43 batches: ValueError in .*: sample 700"):
        recommend(run([SHORT_OF_IT, broken(1), broken(2)]))
