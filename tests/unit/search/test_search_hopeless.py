"""When a sweep gives up: where the target's own code raises whatever the settings."""

from __future__ import annotations

import pytest
from builders import config, failed, trial

from dlprof.records import Config, Failure, Trial
from dlprof.records.trial import FailureKind
from dlprof.search.space import fails_everywhere


def raised(chosen: Config, kind: FailureKind = "worker_exception") -> Trial:
    return failed(chosen, failure=Failure(kind=kind, message="KeyError: 7"))


MAIN, ONE, TWO = (raised(config(workers)) for workers in (0, 1, 2))
SKIPPED = failed(config(4), outcome="skipped")


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        ([MAIN, ONE, TWO], True),
        ([SKIPPED, MAIN, ONE, TWO], True),
        ([raised(config(0), "target_error"), ONE, TWO], True),
        ([], False),
        ([MAIN, ONE], False),
        ([ONE, ONE, TWO], False),
        ([MAIN, MAIN, MAIN], False),
        ([MAIN, ONE, TWO, trial(config(3))], False),
        ([MAIN, ONE, failed(config(2))], False),
    ],
    ids=range(9),
)
def test_a_few_that_all_raise_without_workers_and_with_show_enough(
    trials: list[Trial], *, expected: bool
) -> None:
    assert fails_everywhere(trials, (config(0), config(4))) is expected


def test_batches_of_another_size_may_work() -> None:
    planned = (config(0), config(0, batch_size=64))
    assert not fails_everywhere([MAIN, ONE, TWO], planned)
