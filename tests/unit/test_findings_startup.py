"""What is advised where starting workers is slow though they start once."""

from __future__ import annotations

import pytest
from builders import config
from finding_cases import Loader, evidence

from dlprof.advise.findings import find
from dlprof.records import Finding


def _slow_start(start_method: str) -> Finding:
    loader = Loader(
        config=config(2, persistent_workers=True, start_method=start_method), fetch_cpu=0.019
    )
    fields = {"startup_s": 3.0, "epoch_turnover_s": 0.001}
    seen = evidence(loader, trial_fields=fields, target_fields={"batches_per_epoch": 100})
    return next(each for each in find(seen) if each.code == "startup")


def test_forked_workers_are_not_told_to_fork() -> None:
    found = _slow_start("fork")
    assert found.fix is not None
    assert "worker_init_fn" in found.fix.text
    assert not found.fix.dataloader_kwargs
    assert found.predicted_gain is None


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_others_are(start_method: str) -> None:
    found = _slow_start(start_method)
    assert found.fix is not None
    assert "by fork" in found.fix.text
    assert found.fix.dataloader_kwargs == {"multiprocessing_context": "fork"}
    assert found.predicted_gain is not None


def test_short_epochs_are_told_before_the_workers_that_make_them_dear() -> None:
    """Without workers nothing is started; but starting is the cause, and has a better remedy."""
    seen = evidence(
        Loader(fetch_cpu=0.0003, busy=0.05, rate=2000),
        trial_fields={"epoch_turnover_s": 0.1, "startup_s": 0.1},
        target_fields={"batches_per_epoch": 10},
        variants={config(0): 40.0, config(1): 1.5},
    )
    codes = [each.code for each in find(seen)]
    assert codes[0] == "startup"
    assert "too_many_workers" in codes
