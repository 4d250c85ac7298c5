"""Loaders drawn at random: dlprof counts and times what a loop by hand counts and times.

In small what ``benchmarks/differential.py`` does. Counts are exact; rates are compared for samples
that wait, and only where no start of a process is in them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dlprof.records import Config, Trial
from dlprof.targets.grammar import parse_target
from dlprof.trial.protocol import BuildRequest, TrialRequest
from dlprof.trial.runner import TrialRunner
from dlprof.trial.state import TrialLimits

pytestmark = pytest.mark.slow

SHORT_S = 0.15  # an epoch in the main process: some of them end in each trial
NEAR, MOST_PAIRS = 0.15, 5
few = settings(
    max_examples=2,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # an example takes seconds: none is made smaller
)
linux = pytest.mark.skipif(sys.platform != "linux", reason="trials are forked on Linux only")


@dataclasses.dataclass(frozen=True, slots=True)
class Sides:
    """A loader as dlprof has it, and as a loop by hand has it."""

    bench: TrialRunner
    loop: Any

    def trial(self, workers: int, prefetch: int, trial_s: float) -> Trial:
        config = Config(num_workers=workers, prefetch_factor=prefetch).canonical()
        request = TrialRequest(config=config, trial_s=trial_s)
        trial = self.bench.explain(request, trial_id="t", repetition=0)[0]
        assert trial.outcome == "completed", trial.failure
        return trial

    def by_hand(self, workers: int, prefetch: int, seconds: float) -> dict[str, Any]:
        chosen = {"num_workers": workers} | ({"prefetch_factor": prefetch} if workers else {})
        found: dict[str, Any] = self.loop.ask(chosen, seconds)
        return found


@contextlib.contextmanager
def written(drawn: Any) -> Iterator[Sides]:
    """Write a drawn loader's module, as a user would, and build it on both sides."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drawn.py"
        path.write_text(import_module("drawn_loaders").module_text(drawn))
        request = BuildRequest(target=parse_target(f"{path}:make_loader"))
        with (
            contextlib.closing(TrialRunner(request, directory=Path(folder))) as bench,
            contextlib.closing(
                import_module("differential").ByHand(path, "make_loader", {})
            ) as loop,
        ):
            bench.build(TrialLimits(wall_s=60.0, stall_s=30.0, usable_cores=2.0))
            bench.probe(TrialRequest(config=Config(), probe=True))
            yield Sides(bench, loop)


@linux
@pytest.mark.parametrize("kind", ["map", "iterable", "endless", "batching"])
@given(rng=st.randoms(use_true_random=False))
@few
def test_samples_are_counted_as_a_loop_by_hand_counts_them(kind: str, rng: random.Random) -> None:
    drawn = import_module("drawn_loaders").draw(rng, kind=kind, longest_s=SHORT_S)
    with written(drawn) as sides:
        for workers in (0, drawn.workers):
            trial = sides.trial(workers, drawn.prefetch, 6 * SHORT_S)
            by_hand = sides.by_hand(workers, drawn.prefetch, 6 * SHORT_S)
            check_counts(drawn, trial, by_hand, workers)


def check_counts(drawn: Any, trial: Trial, by_hand: dict[str, Any], workers: int) -> None:
    """Whole epochs to a sample, and the samples of a batch wherever those of all are known."""
    assert trial.samples_per_s is not None, (drawn, trial.unavailable)
    assert trial.batches_per_s is not None
    in_batch = trial.samples_per_s.value / trial.batches_per_s.value
    if drawn.kind == "endless":
        assert trial.epoch_samples is None
        assert in_batch == pytest.approx(drawn.batch_size, rel=1e-6)
        return
    if not workers:
        assert by_hand["epoch_samples"] == drawn.epoch_samples
    assert trial.epoch_samples == by_hand["epoch_samples"], drawn
    if trial.whole_epochs:
        by_hand_in_batch = by_hand["epoch_samples"] / by_hand["epoch_batches"]
        assert in_batch == pytest.approx(by_hand_in_batch, rel=1e-6), drawn


@linux
@pytest.mark.parametrize("kind", ["map", "batching"])
@given(rng=st.randoms(use_true_random=False))
@few
def test_rates_are_those_of_a_loop_by_hand(kind: str, rng: random.Random) -> None:
    drawn = dataclasses.replace(
        import_module("drawn_loaders").draw(rng, kind=kind),
        sample_s=0.004,
        rounds=0,
        tail=0,
        batch_size=8,
        sizes=(8, 1, 11) if kind == "batching" else (),
        length=40_000,
        features=8,
    )
    with written(drawn) as sides:
        for workers in (0, drawn.workers):
            # A busy machine delays one side or the other: what is wrong is wrong every time.
            ratios: list[float] = []
            while len(ratios) < MOST_PAIRS and not any(abs(each - 1) <= NEAR for each in ratios):
                trial = sides.trial(workers, drawn.prefetch, 0.6)
                assert trial.samples_per_s is not None
                assert not trial.whole_epochs
                by_hand = sides.by_hand(workers, drawn.prefetch, 0.6)
                ratios.append(trial.samples_per_s.value / by_hand["steady"])
            assert any(abs(each - 1) <= NEAR for each in ratios), (ratios, drawn)
