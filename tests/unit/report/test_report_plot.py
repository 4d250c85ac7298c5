from __future__ import annotations

from builders import blocks, config, run
from example_runs import example_run
from golden import drawn

from dlprof.report.plot import Bar, ThroughputPlot, bars
from dlprof.report.summary import summarise


def test_each_bar_is_the_best_of_its_num_workers() -> None:
    found = bars(summarise(example_run()))
    assert [bar.num_workers for bar in found] == [0, 2, 4, 8]
    assert [bar.picked for bar in found] == [False, False, True, False]
    assert round(found[2].rate) == max(round(bar.rate) for bar in found)


def test_a_long_range_keeps_its_ends_and_its_best() -> None:
    measured = run(blocks({config(n): (1000.0 - abs(n - 41),) for n in range(100)}))
    found = bars(summarise(measured))
    workers = [bar.num_workers for bar in found]
    assert len(workers) <= 20
    assert {0, 41, 99} <= set(workers)


def test_the_longest_bar_fills_the_room_and_eighths_are_drawn() -> None:
    shown = [
        Bar(num_workers=0, rate=10.0, picked=False),
        Bar(num_workers=1, rate=80.0, picked=True),
    ]
    lines = drawn(ThroughputPlot(shown), 22).splitlines()[-2:]
    assert lines == ["0 ▊      10.0", "1 ██████ 80.0 <- pick"]


def test_ascii_where_the_encoding_has_no_blocks() -> None:
    shown = [Bar(num_workers=2, rate=10.0, picked=False)]
    text = drawn(ThroughputPlot(shown), 40, "ascii")
    assert "####" in text


def test_nothing_measured_draws_nothing() -> None:
    assert drawn(ThroughputPlot(bars(())), 40) == ""
