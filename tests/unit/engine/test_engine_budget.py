"""A sweep ends in time for what follows its last trial."""

from __future__ import annotations

from pathlib import Path

import pytest
from led_sweeps import PretendedBench, led_header, led_plan, swept

from dlprof.engine.sweeping import trials_end_s

BUDGET_S = 12.0
PROMISED = 1.1


@pytest.mark.parametrize("ending_s", [0.7, 1.5, 3.0])
@pytest.mark.parametrize("lasts_s", [1.0, 1.2, 1.9, 2.6, 3.3])
def test_what_follows_the_last_trial_fits_into_what_is_promised(
    tmp_path: Path, ending_s: float, lasts_s: float
) -> None:
    bench = PretendedBench(lasts_s=lasts_s)
    about = led_header(plan=led_plan(search="grid"))
    swept(tmp_path / "run", bench, budget_s=BUDGET_S, about=about, ending_s=ending_s)
    assert bench.now_s + ending_s <= PROMISED * BUDGET_S + 1e-9
    assert bench.now_s > 0.6 * BUDGET_S  # and no less is done than there is time for


@pytest.mark.parametrize(
    ("budget_s", "ending_s", "overrun", "end_s"),
    [
        (90.0, 0.7, 0.0, 90.0),
        (90.0, 0.7, 0.05, 94.5),
        (12.0, 0.7, 0.05, 12.5),
        (12.0, 3.0, 0.05, 10.2),
        (4.0, 0.7, 0.0, 3.7),
    ],
)
def test_trials_end_when_the_rest_still_fits(
    budget_s: float, ending_s: float, overrun: float, end_s: float
) -> None:
    assert trials_end_s(budget_s, ending_s, overrun=overrun) == pytest.approx(end_s)
