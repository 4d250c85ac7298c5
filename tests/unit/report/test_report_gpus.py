"""GPUs in words and tables."""

from __future__ import annotations

import dataclasses
from typing import Any

from builders import config, trial
from sample_run import RUN

from dlprof.records import GpuUsage, Trial, Usage
from dlprof.report.export.formats import render_html
from dlprof.report.labels import gpu_text
from dlprof.report.live import usage_text
from dlprof.report.pictures import gpus_table


def _card(index: int = 0, **figures: Any) -> GpuUsage:
    return GpuUsage(index=index, name="Card", uuid=f"u{index}", **figures)


def _trial(*cards: GpuUsage) -> Trial:
    return trial(config(2), 100.0, usage=Usage(gpu=cards))


def test_a_card_shows_what_is_known_of_it() -> None:
    card = _card(
        kernel_active_fraction=0.4,
        memory_used_bytes=1 << 30,
        pcie_rx_bytes_per_s=2 << 20,
        throttled_fraction=0.5,
        throttle_reasons=("power cap",),
        other_processes=1,
        other_memory_bytes=1 << 20,
    )
    assert gpu_text(card) == (
        "kernels 40% of the time, 1.0 GiB in use, 2.0 MiB/s received, clocks held down 50% by "
        "power cap, 1 process of others (1.0 MiB)"
    )


def test_a_silent_card_shows_why() -> None:
    reasons = {"kernel_active_fraction": "the driver \x1b[31mmay hang"}
    assert gpu_text(_card(unavailable=reasons)) == "the driver may hang"
    assert gpu_text(_card()) == "-"


def test_a_row_for_each_card_over_all_trials() -> None:
    busy = [_card(kernel_active_fraction=share, memory_used_bytes=1 << 20) for share in (0.2, 0.4)]
    other = _card(1, pcie_generation=4, pcie_width=16, sm_clock_hz=1.5e9, power_w=80.0)
    table = gpus_table([_trial(busy[0], other), _trial(busy[1])])
    assert table is not None
    first, second = zip(*(column.cells for column in table.columns), strict=True)
    assert first[:4] == ("0 Card", "30%", "-", "1.0 MiB")
    assert second[5:8] == ("gen 4 x16", "1.50 GHz", "80 W")
    assert gpus_table([_trial()]) is None


def test_a_report_has_cards_only_where_there_are_any() -> None:
    bare = dataclasses.replace(
        RUN, trials=tuple(dataclasses.replace(each, usage=Usage()) for each in RUN.trials)
    )
    assert "<h2>GPUs</h2>" not in render_html(bare)
    seen = dataclasses.replace(RUN, trials=(_trial(_card(power_w=50.0)),))
    assert "<h2>GPUs</h2>" in render_html(seen)


def test_progress_names_a_few_cards_and_lines_up_many() -> None:
    cards = [_card(index, kernel_active_fraction=index / 10) for index in range(4)]
    assert usage_text(Usage(gpu=tuple(cards[:2]))) == "GPU 0 0%; GPU 1 10%"
    assert usage_text(Usage(gpu=tuple(cards))) == "GPUs 0, 10, 20, 30%"
    assert usage_text(Usage(gpu=(_card(),))) == "nothing known"
