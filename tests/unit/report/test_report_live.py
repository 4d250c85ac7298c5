from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Iterable

import pytest
from builders import around, config, header, plan, trial
from example_runs import example_run
from golden import check_golden, drawn
from rich.console import Console

from dlprof.advise.recommend import summarize
from dlprof.records import Estimate, PredictedCell, SweepPrediction, Usage
from dlprof.report.labels import percent_text, rate_text, ratio_text
from dlprof.report.live import (
    LiveListener,
    PlainListener,
    QuietListener,
    open_listener,
    usage_text,
)


class BrokenStream(io.StringIO):
    """A terminal that has gone away."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


def play(listener: QuietListener) -> None:
    """A whole sweep's events."""
    run = example_run()
    with listener:
        for done in range(0, 101, 10):
            listener.preparing("Making images", done, 100)
        configs = {trial.config: None for trial in run.trials}
        listener.planned(run.header, list(configs), 3)
        for number, trial in enumerate(run.trials):
            listener.trial_started(trial.config, trial.repetition, number * 3.0, 60.0)
            listener.pulse(trial.usage)
            listener.trial_ended(trial)
        listener.message("A \x1b[31mwarning[/]")


def state_in_the_middle(now: float = 102.0) -> QuietListener:
    run = example_run()
    return QuietListener(
        clock=lambda: now,
        header=run.header,
        goal="7 configurations x 3",
        trials=list(run.trials[:9]),
        current=run.trials[9].config,
        repetition=1,
        elapsed_s=30.0,
        expected_s=60.0,
        heard_at=100.0,
        usage=run.trials[3].usage,
    )


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_view_of_a_moment(width: int) -> None:
    text = drawn(state_in_the_middle(), width)
    check_golden(f"progress-{width}.txt", text)


def test_the_view_where_only_ascii_can_be_written() -> None:
    text = drawn(state_in_the_middle(), 80, "ascii")
    assert text.isascii()


@pytest.mark.parametrize("width", range(12, 90, 3))
def test_the_view_keeps_its_height_at_any_width(width: int) -> None:
    text = drawn(state_in_the_middle(), width)
    assert len(text.splitlines()) == 6
    assert all(len(line) <= width for line in text.splitlines())


def test_of_a_long_target_the_end_is_shown_and_how_far_it_is() -> None:
    state = state_in_the_middle()
    assert state.header is not None
    spec = f"{'a/' * 50}my_data.py:make"
    target = dataclasses.replace(state.header.target, spec=spec)
    state.header = dataclasses.replace(state.header, target=target)
    assert "/my_data.py:make: 7 configurations x 3, 9 trials done\n" in drawn(state, 80)


def test_time_goes_on_between_events_and_stops_at_the_end() -> None:
    state = state_in_the_middle()
    assert state.fraction_at(100.0) == 0.5
    assert state.fraction_at(115.0) == 0.6  # half a minute may be left yet
    assert 0.95 < state.fraction_at(900.0) < 1.0  # nobody has said that it is over
    assert "0 s left" in drawn(state_in_the_middle(now=900.0), 80)


def test_making_data_and_getting_ready_are_shown() -> None:
    assert "Getting ready" in drawn(QuietListener(), 60)
    making = QuietListener(making=("Making images", 120, 1500))
    assert "Making images: 120 of 1,500" in drawn(making, 60)
    counted = QuietListener(making=("Counting", 0, 0))
    assert drawn(counted, 60) == "Counting, 0 s\n"


def test_a_check_shows_how_far_it_is() -> None:
    stream = io.StringIO()
    with LiveListener(terminal(stream), clock=lambda: 0.0) as listener:
        listener.quads({"load": 1, "start": 0}, None, 1.0, 60.0)
    assert "1 ABBA block, 1 s of at most 1 min" in stream.getvalue()


def test_the_best_so_far_has_the_one_rate_that_all_views_have() -> None:
    run = example_run()
    state = QuietListener(header=run.header, trials=[*run.trials], prediction=run.prediction)
    first = summarize(dataclasses.replace(run, recommendation=None))[0]
    lines = drawn(state, 80).splitlines()
    assert f"best    {rate_text(first.rate)}" in lines
    assert f"        {first.config.text}" in lines


@pytest.mark.parametrize("rates", [(100, 1000), (100, 1000, 120), (0, 0, 0), ()])
def test_no_interval_of_a_rate_goes_below_zero(rates: tuple[float, ...]) -> None:
    trials = [trial(config(2), rate) for rate in rates]
    shown = drawn(QuietListener(header=header(), trials=trials), 80)
    assert ("best " in shown) is any(rates)
    assert "CI -" not in shown


def test_progress_never_runs_back() -> None:
    uptime_s = iter((0.0, 9.0, 10.0, 11.0, 90.0))
    state = QuietListener(clock=lambda: next(uptime_s))
    shown = []
    for elapsed_s, expected_s in ((9.0, 20.0), (10.0, 24.0), (11.0, 100.0), (90.0, 100.0)):
        state.expect(elapsed_s, expected_s)
        shown += [state.fraction_at(elapsed_s), state.fraction_at(elapsed_s + 0.5)]
    assert shown == sorted(set(shown))  # nor does it stand still until time has caught up with it
    assert (shown[0], shown[-1] > 0.9) == (0.45, True)
    assert shown[-1] < 1

    stream, run = io.StringIO(), example_run()
    listener = PlainListener(stream)
    for expected_s in (20.0, 100.0):
        listener.trial_started(run.trials[0].config, 0, 9.0, expected_s)
        listener.trial_ended(run.trials[0])
    assert [line[:4] for line in stream.getvalue().splitlines()] == [" 45%", " 45%"]


def test_each_trial_of_a_sweep_that_takes_longer_than_it_seemed_is_further() -> None:
    now_s, stream, run = [0.0], io.StringIO(), example_run()
    listener = PlainListener(stream, clock=lambda: now_s[0])
    for number in range(1, 13):  # each time as much is left as before
        listener.trial_started(run.trials[0].config, 0, 10.0 * number, 10.0 * number + 12.0)
        now_s[0] += 10.0
        listener.trial_ended(run.trials[0])
    shares = [float(line[:3]) for line in stream.getvalue().splitlines()]
    assert shares == sorted({*shares})
    assert shares[-1] < 100


def test_what_was_planned_and_what_was_predicted_agree() -> None:
    cells = tuple(config(workers) for workers in range(8))
    about = header(plan=plan(cells, search="model", cells=cells, calibration=()))
    stream = io.StringIO()
    listener = PlainListener(stream)
    listener.planned(about, cells, None)
    for count in (3, 7, 8):
        rate = around(100.0)
        predicted = tuple(
            PredictedCell(config=cell, samples_per_s=rate, speed=1.0) for cell in cells[:count]
        )
        race = tuple(cells[:2])
        listener.predicted(SweepPrediction(cells=predicted, race=race, pick=cells[0], cores=4.0))
    first, fewer, most, every = stream.getvalue().splitlines()
    assert first.endswith(": up to 8 configurations to predict")
    assert fewer == (
        "3 of 8 predicted, 2 to measure; the other 5 have more workers than help, or than machine "
        "and budget allow"
    )
    assert most.partition("; ")[2].startswith("the other one has more workers than help, ")
    assert every == "8 configurations predicted, 2 to measure"


def test_usage_that_is_not_known_is_not_shown_as_zero() -> None:
    assert usage_text(Usage()) == "nothing known"
    assert usage_text(Usage(own_cpu_cores=1.0)) == "cores: own 1.0"


def test_without_a_terminal_each_trial_is_one_line() -> None:
    stream = io.StringIO()
    play(PlainListener(stream))
    check_golden("plain.txt", stream.getvalue())
    assert "\x1b" not in stream.getvalue()


def test_verbose_lines_show_what_the_machine_did() -> None:
    stream = io.StringIO()
    play(PlainListener(stream, verbose=True))
    assert stream.getvalue().count("cores: own 3.9") == 18


def terminal(stream: io.StringIO) -> Console:
    return Console(
        file=stream, force_terminal=True, width=80, height=24, legacy_windows=False, no_color=True
    )


def test_the_live_display_is_wiped_and_gives_the_cursor_back() -> None:
    stream = io.StringIO()
    play(LiveListener(terminal(stream), clock=_ticks()))
    text = stream.getvalue()
    assert "samples/s" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert "num_workers=16: crashed" in text
    assert "A warning[/]" in text
    assert "\x1b[31m" not in text


def test_the_first_frame_counts_from_the_beginning_and_promises_no_end() -> None:
    stream = io.StringIO()
    uptime_s = iter(float(second) for second in range(28_000, 29_000))
    with LiveListener(terminal(stream), clock=lambda: next(uptime_s)) as listener:
        listener.planned(example_run().header, (config(0),), None)
    text = stream.getvalue()
    assert re.search(r"after \d s", text)
    assert " left" not in text
    assert " h " not in text


def _ticks() -> _Ticks:
    return _Ticks()


class _Ticks:
    """A clock that goes on by a second at each look."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += 1.0
        return self._now


@pytest.mark.parametrize(
    "listener",
    [
        pytest.param(PlainListener(BrokenStream()), id="plain"),
        pytest.param(LiveListener(terminal(BrokenStream())), id="live"),
    ],
)
def test_a_terminal_that_goes_away_ends_nothing(listener: QuietListener) -> None:
    play(listener)


class _Stderr(io.StringIO):
    def __init__(self, *, tty: bool) -> None:
        super().__init__()
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty


@pytest.mark.parametrize(
    ("tty", "variables", "quiet", "kind"),
    [
        (True, {"TERM": "xterm"}, False, LiveListener),
        (True, {"TERM": "dumb"}, False, PlainListener),
        (False, {"TERM": "xterm"}, False, PlainListener),
        (False, {"TERM": "xterm", "FORCE_COLOR": "1"}, False, PlainListener),
        (True, {"TERM": "xterm"}, True, QuietListener),
    ],
)
def test_the_listener_suits_stderr(
    monkeypatch: pytest.MonkeyPatch,
    *,
    tty: bool,
    variables: dict[str, str],
    quiet: bool,
    kind: type[QuietListener],
) -> None:
    for name in ("TERM", "FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stderr", _Stderr(tty=tty))
    assert type(open_listener(quiet=quiet, verbose=False)) is kind


def test_the_live_display_has_room_where_columns_are_0(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "0")
    screen = _Stderr(tty=True)
    monkeypatch.setattr("sys.stderr", screen)
    with open_listener(quiet=False) as listener:
        listener.pulse(None)
    assert "Getting ready" in screen.getvalue()


def test_without_a_stream_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)  # as under Windows' pythonw
    with open_listener(quiet=False) as listener:
        listener.message("nobody sees this")


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    play(QuietListener())
    captured: Iterable[str] = capsys.readouterr()
    assert list(captured) == ["", ""]


def test_a_small_ratio_is_no_0() -> None:
    assert [*map(ratio_text, (None, 0.0, 0.004, 0.5))] == ["-", "0.00x", "<0.01x", "0.50x"]
    assert [*map(percent_text, (0.0, 0.001, 0.005, 0.006))] == ["0%", "<1%", "<1%", "1%"]


def test_an_interval_whose_ends_are_far_apart_is_unknown() -> None:
    wide = Estimate(value=2310.0, low=2.01, high=2_652_921.0)
    assert rate_text(wide) == "about 2,310 samples/s (noisy: 95% CI unknown)"
    assert rate_text(dataclasses.replace(wide, low=23.0, high=23_000.0)).endswith("23.0-23,000)")


def test_seconds_go_on_while_a_target_is_built_and_only_on_a_terminal() -> None:
    now = 100.0
    screen, log = io.StringIO(), io.StringIO()
    with LiveListener(terminal(screen), clock=lambda: now) as live:
        plain = PlainListener(log, clock=lambda: now)
        for moment in (100.2, 100.4, 107.0, 107.2):
            now = moment
            live.pulse(None)
            plain.pulse(None)
    shown = re.findall(r"Getting ready, (\d+) s", screen.getvalue())
    assert shown[-1] == "7"
    assert shown.count("7") == 1 + shown.count("0")  # once, and once as it is wiped
    assert log.getvalue() == ""


def test_the_second_check_of_a_self_test_begins_again() -> None:
    stream = io.StringIO()
    listener = PlainListener(stream, clock=lambda: 0.0)
    for elapsed_s in (0.0, 11.0):
        listener.quads({"load": int(elapsed_s), "start": 0}, None, elapsed_s, 60.0)
    listener.quads({"load": 0, "start": 0}, None, 0.0, 60.0)
    assert listener.fraction_at(0.0) == 0.0
    listener.quads({"load": 9, "start": 0}, None, 10.0, 60.0)
    assert stream.getvalue().splitlines() == [
        "11 ABBA blocks, 11 s of at most 1 min",
        "9 ABBA blocks, 10 s of at most 1 min",
    ]
