"""What is advised where starting workers is slow though they start once."""

from __future__ import annotations

import dataclasses

import pytest
from builders import config
from finding_cases import Loader, evidence

from dlprof.advise.findings.diagnosis import find, remedies
from dlprof.records import EPOCH_SIGN, Finding


def _slow_start(
    start_method: str | None, own: str | None = None, *, fork_safe: bool = True
) -> Finding:
    chosen = config(2, persistent_workers=True, start_method=start_method)
    fields = {"startup_s": 3.0, "epoch_turnover_s": 0.001}
    about = {"batches_per_epoch": 100, "own_config": dataclasses.replace(chosen, start_method=own)}
    about |= {"fork_safe": fork_safe}
    seen = evidence(
        Loader(config=chosen, fetch_cpu=0.019), trial_fields=fields, target_fields=about
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
