"""Listeners that show a running sweep on stderr: a live display, plain lines, or nothing.

A terminal that goes away, or a pipe that nobody reads any more, silences them; it never ends the
sweep.
"""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from dlprof.records import Config, Run, RunHeader, SweepPrediction, Trial, Usage
from dlprof.report.progress import (
    ProgressView,
    SweepState,
    planned_text,
    predicted_text,
    preparing_text,
    trial_line,
    usage_text,
)
from dlprof.report.text import clean

_PREPARING_STEPS = 4  # lines about made data, where there is no terminal


class QuietListener:
    """Says nothing. The base of the others, so that each shows only what it has to show."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Take back what is on the screen."""

    def planned(self, header: RunHeader, configs: Sequence[Config], repeats: int | None) -> None:
        """The sweep knows what it will measure."""

    def predicted(self, prediction: SweepPrediction) -> None:
        """A model has predicted what all configurations would give."""

    def trial_started(
        self, config: Config, repetition: int, elapsed_s: float, expected_total_s: float
    ) -> None:
        """A trial begins."""

    def trial_ended(self, trial: Trial) -> None:
        """A trial has ended, with figures or without."""

    def message(self, text: str) -> None:
        """Something that the user should know."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Data is being made."""

    def pulse(self, usage: Usage) -> None:
        """A look at the machine during a trial."""

    def ended(self, run: Run) -> None:
        """The sweep is over."""


class PlainListener(QuietListener):
    """One line for each event, for logs and terminals that can only print."""

    def __init__(self, stream: TextIO, *, verbose: bool = False) -> None:
        """Make the listener.

        Args:
            stream: Where the lines go.
            verbose: Whether to say what the machine did in each trial.
        """
        self._stream: TextIO | None = stream
        self._verbose = verbose
        self._header: RunHeader | None = None
        self._percent = 0
        self._shown: tuple[str, int] | None = None

    def planned(self, header: RunHeader, configs: Sequence[Config], repeats: int | None) -> None:
        """Say how much there is to measure."""
        self._header = header
        self._say(f"{clean(header.target.spec)}: {planned_text(header, configs, repeats)}")

    def predicted(self, prediction: SweepPrediction) -> None:
        """Say how many were, and how many of them will be measured."""
        self._say(predicted_text(prediction, self._header))

    def trial_started(
        self, config: Config, repetition: int, elapsed_s: float, expected_total_s: float
    ) -> None:
        """Remember how far the sweep is."""
        del config, repetition  # the line comes when the trial ends
        if expected_total_s > 0:
            percent = round(100 * min(1.0, elapsed_s / expected_total_s))
            self._percent = max(self._percent, percent)  # never back

    def trial_ended(self, trial: Trial) -> None:
        """Say what came out of it."""
        self._say(f"{self._percent:3d}%  {trial_line(trial)}")
        if self._verbose:
            self._say(f"       {usage_text(trial.usage)}")

    def message(self, text: str) -> None:
        """Pass it on."""
        self._say(clean(text))

    def preparing(self, what: str, done: int, total: int) -> None:
        """Say it at the start, at the end, and a few times between."""
        step = done * _PREPARING_STEPS // max(1, total)
        if self._shown != (what, step):
            self._shown = (what, step)
            self._say(preparing_text(what, done, total))

    def _say(self, line: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None


class LiveListener(QuietListener):
    """The live display: redrawn at each event, by the caller's thread.

    No thread of its own: a thread in a process that forks can deadlock the child.
    """

    def __init__(
        self,
        console: Console,
        *,
        verbose: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make the listener; it draws once it is entered.

        Args:
            console: A terminal.
            verbose: Whether to leave a line for each trial.
            clock: Seconds, monotonic.
        """
        self._console = console
        self._verbose = verbose
        self._clock = clock
        self._state = SweepState(heard_at=clock())
        self._gone = False
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            get_renderable=lambda: ProgressView(self._state, self._clock()),
        )

    def __enter__(self) -> Self:
        self._draw(self._live.start)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wipe the display and give the cursor back."""
        self._draw(self._live.stop)

    def planned(self, header: RunHeader, configs: Sequence[Config], repeats: int | None) -> None:
        """Show the sweep."""
        self._state.header = header
        self._state.planned = planned_text(header, configs, repeats)
        self._state.preparing = None
        self._draw(self._live.refresh)

    def predicted(self, prediction: SweepPrediction) -> None:
        """Show that it goes on with few."""
        self._state.planned = predicted_text(prediction, self._state.header)
        self._draw(self._live.refresh)

    def trial_started(
        self, config: Config, repetition: int, elapsed_s: float, expected_total_s: float
    ) -> None:
        """Show the trial and set the clock right."""
        state = self._state
        state.current, state.repetition = config, repetition
        state.expect(elapsed_s, expected_total_s, self._clock())
        state.preparing = None
        self._draw(self._live.refresh)

    def trial_ended(self, trial: Trial) -> None:
        """Show the best so far; failed trials leave a line."""
        self._state.trials.append(trial)
        if self._verbose or trial.failure is not None:
            self.message(trial_line(trial))
        self._draw(self._live.refresh)

    def message(self, text: str) -> None:
        """Leave a line above the display."""
        self._draw(lambda: self._console.print(Text(clean(text))))

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show how far the data is."""
        self._state.preparing = (what, done, total) if done < total or not total else None
        self._draw(self._live.refresh)

    def pulse(self, usage: Usage) -> None:
        """Show what the machine is doing."""
        self._state.usage = usage
        self._draw(self._live.refresh)

    def _draw(self, action: Callable[[], None]) -> None:
        if self._gone:
            return
        try:
            action()
        except (OSError, ValueError):
            self._gone = True


class _TerminalConsole(Console):
    """Rich's own answer to a closed pipe is to end the program with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "nobody reads stderr any more")


def open_listener(*, quiet: bool, verbose: bool) -> QuietListener:
    """The listener that suits stderr as it is.

    Args:
        quiet: Show nothing.
        verbose: Show more.

    Returns:
        A context manager; the display is there while it is entered.
    """
    if quiet:
        return QuietListener()
    console = _TerminalConsole(file=sys.stderr, markup=False, highlight=False, emoji=False)
    # Rich takes FORCE_COLOR for a terminal, which moves the cursor in a log file.
    if sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal:
        return LiveListener(console, verbose=verbose)
    return PlainListener(sys.stderr, verbose=verbose)
