"""What is advised where starting workers is slow though they start once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from builders import around, config
from finding_cases import Loader, evidence, modeled

from dlprof.advise.findings.diagnosis import find, remedies
from dlprof.advise.findings.evidence import Evidence
from dlprof.records import EPOCH_SIGN, Config, Finding
from dlprof.report.findings import answer


def _slow_start(
    start_method: str | None,
    own: str | None = None,
    *,
    fork_safe: bool = True,
    platform: str = "Linux 6.1",
) -> Finding:
    chosen = config(2, persistent_workers=True, start_method=start_method)
    fields = {"startup_s": 3.0, "epoch_turnover_s": 0.001}
    about = {"batches_per_epoch": 100, "own_config": dataclasses.replace(chosen, start_method=own)}
    about |= {"fork_safe": fork_safe}
    seen = evidence(
        Loader(config=chosen, fetch_cpu=0.019),
        trial_fields=fields,
        target_fields=about,
        machine_fields={"platform": platform},
    )
    return next(each for each in find(seen) if each.code == "startup")


@pytest.mark.parametrize(("start_method", "own"), [("fork", None), (None, "fork"), (None, None)])
def test_forked_workers_are_not_asked_to_fork(start_method: str | None, own: str | None) -> None:
    """Nor those that are forked though nothing says so."""
    found = _slow_start(start_method, own)
    assert found.fix is not None
    assert "worker_init_fn" in found.fix.text
    assert not found.fix.dataloader_kwargs
    assert found.predicted_gain is None


@pytest.mark.parametrize(
    ("start_method", "own"), [("spawn", None), ("forkserver", "fork"), (None, "spawn")]
)
def test_others_are(start_method: str | None, own: str | None) -> None:
    found = _slow_start(start_method, own)
    assert found.fix is not None
    assert "by fork" in found.fix.text
    assert found.fix.dataloader_kwargs == {"multiprocessing_context": "fork"}
    assert found.predicted_gain is not None


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_target_that_does_not_survive_a_fork_is_not_asked_to(start_method: str) -> None:
    found = _slow_start(start_method, fork_safe=False)
    assert found.fix is not None
    assert found.fix.text.startswith("Start workers by forkserver with set_forkserver_preload")
    assert "by fork," not in found.fix.text
    assert not found.fix.dataloader_kwargs
    assert found.predicted_gain is None


@pytest.mark.parametrize(
    ("platform", "begins"),
    [("Darwin 24.1", "Start workers by forkserver with set"), ("Windows 11", "Do less in worker")],
)
def test_where_no_process_should_fork_none_is_asked_to(platform: str, begins: str) -> None:
    """A script's own target says nothing of that; Windows has no fork server, either."""
    found = _slow_start("spawn", platform=platform)
    assert found.fix is not None
    assert found.fix.text.startswith(begins)
    assert not found.fix.dataloader_kwargs


def test_batches_of_one_round_come_at_once_from_workers_that_persist() -> None:
    """In 12 samples of 10 ms that is 9.9x as fast, and 4.13x (3.3-5.3) was estimated."""
    whole_s, turn_s = 0.5, 0.42  # of three batches: 80 ms for two that were begun later
    loader = Loader(config=config(4), fetch_cpu=0.001, fetch_io=0.04, rate=3 / whole_s, wait=0.1)
    seen = evidence(
        loader,
        trial_fields={"epoch_turnover_s": turn_s, "startup_s": turn_s, "whole_epochs": True},
        target_fields={"batches_per_epoch": 3},
    )
    found = next(each for each in find(seen) if each.code == "startup")
    assert found.fix is not None
    assert found.fix.dataloader_kwargs == {"persistent_workers": True}
    assert found.predicted_gain is not None
    assert found.predicted_gain.value == pytest.approx(whole_s / 0.045, rel=0.05)


@pytest.mark.parametrize("start_method", ["spawn", "fork"])
def test_workers_that_are_not_to_outlive_an_epoch_start_by_fork(start_method: str) -> None:
    note = f"Mixed has set_epoch: {EPOCH_SIGN} what that changes."
    chosen = config(2, start_method=start_method)
    seen = evidence(
        Loader(config=chosen, fetch_cpu=0.019),
        trial_fields={"startup_s": 3.0, "epoch_turnover_s": 3.0},
        target_fields={"batches_per_epoch": 100, "notes": (note,)},
    )
    found = next(each for each in find(seen) if each.code == "startup")
    assert found.fix is not None
    assert "persistent_workers=True is not advised, as Mixed has set_epoch" in found.fix.text
    assert "at every epoch" in found.explanation
    assert not any(each.persistent_workers for each in remedies(seen))
    if start_method == "fork":
        assert "worker_init_fn" in found.fix.text
        assert not found.fix.dataloader_kwargs
        assert found.predicted_gain is None
    else:
        assert found.fix.dataloader_kwargs == {"multiprocessing_context": "fork"}
        assert found.predicted_gain is not None
        assert found.predicted_gain.value == pytest.approx(4.0 / 1.05, rel=0.02)


def test_the_fix_of_short_epochs_is_the_best_that_was_measured() -> None:
    """Without workers nothing is started: one finding, with the remedy that is faster."""
    seen = evidence(
        Loader(fetch_cpu=0.0003, busy=0.05, rate=2000),
        trial_fields={"epoch_turnover_s": 0.1, "startup_s": 0.1},
        target_fields={"batches_per_epoch": 10},
        variants={config(0): 40.0, config(1): 1.5},
    )
    first, *rest = find(seen)
    assert first.code == "startup"
    assert first.fix is not None
    assert first.fix.dataloader_kwargs == {"num_workers": 0}
    assert first.predicted_gain is not None
    assert first.predicted_gain.value == pytest.approx(40.0, rel=0.05)
    assert "too_many_workers" not in [each.code for each in rest]


@pytest.mark.parametrize(
    ("alone", "settings"),
    [(300.0, {"num_workers": 0}), (14.6, {"num_workers": 0}), (12.0, {"persistent_workers": True})],
)
def test_workers_are_kept_only_where_that_beats_none(
    alone: float, settings: dict[str, object]
) -> None:
    kept = config(2, persistent_workers=True, start_method="spawn")
    seen = evidence(
        Loader(config=config(2, start_method="spawn"), fetch_cpu=0.0003, busy=0.05, rate=60),
        trial_fields={"epoch_turnover_s": 2.0, "startup_s": 2.0, "whole_epochs": True},
        target_fields={"batches_per_epoch": 100},
        variants={kept: 14.5, config(0): alone},
    )
    first = find(seen)[0]
    assert first.code == "startup"
    assert first.fix is not None
    assert first.fix.dataloader_kwargs == settings
    leaves_out = "Leave out multiprocessing_context" in first.fix.text
    assert leaves_out is ("num_workers" in settings)


def _buffered(
    first_s: float | None = 2.2,
    kind: str = "iterable",
    *,
    persists: bool = False,
    busy: float = 0.95,
    turns: dict[Config, float] | None = None,
) -> Evidence:
    """2.3 s at each epoch's start, of 8.2 s in all; ``turns`` with other settings, as tried."""
    chosen = config(2, persistent_workers=persists)
    seen = evidence(
        Loader(config=chosen, fetch_cpu=0.004, fetch_io=0.11, rate=17, busy=busy),
        trial_fields={"startup_s": 2.3, "epoch_turnover_s": 2.3},
        target_fields={"batches_per_epoch": 100, "kind": kind},
        variants=dict.fromkeys(turns or {}, 1.0),
    )
    observations = tuple(
        dataclasses.replace(
            each,
            trial=dataclasses.replace(
                each.trial,
                epoch_turnover_s=(turns or {}).get(each.trial.config, each.trial.epoch_turnover_s),
            ),
            explanation=each.explanation
            and dataclasses.replace(each.explanation, first_fetch_s=first_s),
        )
        for each in seen.observations
    )
    return dataclasses.replace(seen, observations=observations)


def _startup(seen: Evidence) -> Finding:
    return next(each for each in find(seen) if each.code == "startup")


KEPT = config(2, persistent_workers=True)


@pytest.mark.parametrize("persists", [False, True])
def test_what_an_iterable_fetches_before_it_yields_is_no_start(*, persists: bool) -> None:
    """A shuffle buffer fills for 2.1 s, whatever the workers; 0.2 s are theirs."""
    found = _startup(_buffered(persists=persists))
    assert found.title == "Epochs begin with a wait for the dataset"
    assert "For 2.1 s of it __iter__ fetches before it yields" in found.explanation
    # What a worker imports once would be no buffer, and nobody tried to keep workers.
    assert ("imports and opens what it needs once" in found.explanation) is not persists
    assert found.fix is not None
    assert found.fix.text.startswith("Try persistent_workers=True") is not persists
    assert "no more than the other 214 ms" in found.explanation
    assert found.fix is not None
    assert "a smaller shuffle buffer" in found.fix.text
    assert not found.fix.dataloader_kwargs
    assert found.evidence["first_fetch_s"] == 2.2


@pytest.mark.parametrize(("busy", "least", "most"), [(0.95, 1.0, 1.1), (0.3, 1.3, 1.4)])
def test_a_buffer_that_is_gone_leaves_its_samples_to_be_read(
    busy: float, least: float, most: float
) -> None:
    """Workers that are busy all the time gain next to nothing by it; those that idle, all of it."""
    gain = _startup(_buffered(busy=busy)).predicted_gain
    assert gain is not None
    assert least < gain.value < most
    assert 1.0 <= gain.ends[0] <= gain.value <= gain.ends[1] < 8.2 / 6.0


@pytest.mark.parametrize(
    "seen",
    [
        _buffered(None),
        _buffered(0.5),  # most of it is the processes'
        _buffered(kind="map"),  # it opens files, which such workers keep
        _buffered(turns={KEPT: 0.1}),  # so does this one, as was tried
    ],
)
def test_what_workers_keep_is_a_start(seen: Evidence) -> None:
    found = _startup(seen)
    assert found.title == "Starting workers takes much of the time"
    assert found.fix is not None
    assert found.fix.dataloader_kwargs == {"persistent_workers": True}


def test_a_buffer_that_fills_again_though_workers_were_kept_is_none() -> None:
    found = _startup(_buffered(turns={KEPT: 2.2}))
    assert found.title == "Epochs begin with a wait for the dataset"
    assert "imports" not in found.explanation
    assert found.fix is not None
    assert "persistent_workers=True doesn't help" in found.fix.text


def _keeping(chosen: Config, sampler: str = "RandomSampler", **about: object) -> Evidence:
    fields = {"first_sample_s": 0.02, "kept_sample_s": 1e-9, "sampler": sampler, **about}
    variants = {config(16, persistent_workers=True): 7.5}
    return evidence(
        Loader(config=chosen, fetch_io=0.1, rate=20, busy=0.95),
        trial_fields={"epoch_turnover_s": 0.01},
        target_fields={"batches_per_epoch": 1000, **fields},
        variants=variants,
    )


@pytest.mark.parametrize(
    ("sampler", "loaded"), [("RandomSampler", 2 * (1 - 2**-10)), ("SequentialSampler", 1.0)]
)
def test_workers_that_lose_what_they_keep_are_to_persist(sampler: str, loaded: float) -> None:
    """Of ten epochs: each sample then comes to the worker that has it in one case of two."""
    found = {each.code: each for each in find(_keeping(config(2), sampler))}
    lost = found["startup"]
    assert lost.fix is not None
    assert lost.predicted_gain is not None
    assert lost.title == "Workers lose the samples that they keep"
    assert lost.fix.dataloader_kwargs == {"persistent_workers": True}
    assert lost.predicted_gain.value == pytest.approx(10 / loaded, rel=1e-6)
    assert lost.evidence["gain_if"] == "a training has 10 epochs"
    more = found["fetch.io"]
    assert more.fix is not None
    assert more.fix.dataloader_kwargs == {"num_workers": 16, "persistent_workers": True}
    assert "as in a first epoch" in more.evidence["gain_if"]


def test_what_cheaper_code_brings_where_samples_are_kept_is_of_a_first_epoch() -> None:
    fields = {"first_sample_s": 0.02, "kept_sample_s": 1e-9, "sampler": "RandomSampler"}
    seen = evidence(
        Loader(config=config(2, persistent_workers=True), fetch_cpu=0.1, rate=18, busy=0.95),
        target_fields={"batches_per_epoch": 1000, **fields},
    )
    found = {each.code: each for each in find(seen)}["fetch.cpu"]
    assert found.predicted_gain is not None
    assert "as in a first epoch" in found.evidence["gain_if"]


@pytest.mark.parametrize("keeps", [False, True])
def test_more_workers_on_a_quiet_machine_load_more_of_ten_epochs(*, keeps: bool) -> None:
    """Four times the workers have four times the caches: of 10 epochs they load twice as much."""
    own, more = (config(count, persistent_workers=True) for count in (4, 16))
    fields = {"first_sample_s": 0.02, "kept_sample_s": 1e-9} if keeps else {}
    seen = evidence(
        Loader(config=own, fetch_io=0.1, rate=40, busy=0.95),
        trial_fields={"epoch_turnover_s": 0.01},
        target_fields={"batches_per_epoch": 1000, "sampler": "RandomSampler", **fields},
        noisy=True,
        variants={more: 1.02},
        predict=modeled(lambda chosen, _cores: around(10.0 * chosen.num_workers)),
    )
    seen = dataclasses.replace(seen, gain=lambda _config: around(1.02, 0.3))
    found = next(each for each in find(seen) if each.code == "too_few_workers")
    assert found.predicted_gain is not None
    assert str(found.evidence["gain_at"]).endswith("on a quiet machine")
    at_step = {**found.evidence, "gain_at": "at a step of 12 ms on a quiet machine"}
    shown = dict(answer([dataclasses.replace(found, evidence=at_step)]))
    assert "on a quiet machine, " in str(shown["Speed-up"])  # and no step, which another line has
    assert "at a step" not in str(shown["Speed-up"])
    loaded = [count * (1 - (1 - 1 / count) ** 10) if keeps else 10 for count in (4, 16)]
    assert found.predicted_gain.value == pytest.approx(4 * loaded[0] / loaded[1], rel=0.01)
    assert ("a training has 10 epochs" in found.evidence.get("gain_if", "")) is keeps


def test_those_that_persist_or_are_not_to_lose_nothing_by_that() -> None:
    assert "startup" not in {e.code for e in find(_keeping(config(2, persistent_workers=True)))}
    assert "startup" not in {e.code for e in find(_keeping(config(0)))}
    note = f"Mixed has set_epoch: {EPOCH_SIGN} what that changes."
    seen = _keeping(config(2), notes=(note,))
    found = next(each for each in find(seen) if each.code == "startup")
    assert found.predicted_gain is None
    assert found.fix is not None
    assert not found.fix.dataloader_kwargs


def test_whole_epochs_of_another_remedy_are_none_of_workers_that_persist() -> None:
    """In the middle of an epoch nothing shows of what they gain between two."""
    kept = config(2, persistent_workers=True)
    seen = evidence(
        Loader(fetch_io=0.1, rate=20, busy=0.95),
        trial_fields={"epoch_turnover_s": 2.0, "startup_s": 2.0},
        target_fields={"batches_per_epoch": 100},
        variants={kept: 1.0, config(16): 1.3},
    )
    differ: dict[Config, dict[str, Any]] = {
        kept: {"epoch_turnover_s": 0.0},
        config(16): {"whole_epochs": True},
    }
    whole = tuple(
        dataclasses.replace(
            each, trial=dataclasses.replace(each.trial, **differ.get(each.trial.config, {}))
        )
        for each in seen.observations
    )
    found = find(dataclasses.replace(seen, observations=whole))
    starting = next(each for each in found if each.code == "startup")
    assert starting.predicted_gain is not None
    assert starting.predicted_gain.value == pytest.approx(7 / 5, rel=0.03)


@pytest.mark.parametrize(("starting_s", "first"), [(0.25, "fetch.io"), (2.0, "startup")])
def test_a_first_batch_that_takes_long_is_no_start(starting_s: float, first: str) -> None:
    """Of epochs of three batches of 650 ms each, by two workers: they wait in the second round."""
    loader = Loader(fetch_io=0.65, rate=2 / 0.65, busy=0.7)
    fields = {"epoch_turnover_s": 0.65 + starting_s, "startup_s": 0.65 + starting_s}
    seen = evidence(loader, trial_fields=fields, target_fields={"batches_per_epoch": 3})
    assert find(seen)[0].code == first
