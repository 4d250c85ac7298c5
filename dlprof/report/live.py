"""What a measurement shows on stderr while it runs: a live display, plain lines, or nothing.

A terminal that goes away, or a pipe that nobody reads any more, silences it; it never ends the
measurement.
"""

from __future__ import annotations

import dataclasses
import errno
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dlprof.advise.recommend import ConfigSummary, summarize
from dlprof.records import Calibration, Config, Run, RunHeader, SweepPrediction, Trial, Usage
from dlprof.report.labels import cores_text, percent_text, purpose_text, rate_text
from dlprof.report.text import clean, shortened
from dlprof.units import counted, format_bytes, format_duration

if TYPE_CHECKING:
    from dlprof.gate.verdict import NextLook
    from dlprof.records.gate import Series

_LABEL_WIDTH = len("machine ")


def trial_line(trial: Trial) -> str:
    """One ended trial in one line."""
    settings = clean(trial.config.text)
    if trial.failure is not None:
        return f"{trial.id} {settings}: {trial.outcome}: {clean(trial.failure.message)}"
    words = [] if trial.purpose == "measure" else [purpose_text(trial)]
    unit = "samples/s" if trial.samples_per_s else "batches/s"  # whose samples can't be counted
    rate = rate_text(trial.samples_per_s or trial.batches_per_s, unit)
    words += ["noisy"] if trial.noisy and "(noisy" not in rate else []
    about = f" ({', '.join(words)})" if words else ""
    each = f", each of {len(trial.ranks)} ranks" if trial.ranks else ""
    return f"{trial.id} {settings}: {rate}{each}{about}"


def usage_text(usage: Usage) -> str:
    """What the machine is doing: the trial's cores, those of others, idle ones, memory."""
    idle = None
    if usage.available_cpu_cores is not None and usage.own_cpu_cores is not None:
        idle = max(0.0, usage.available_cpu_cores - usage.own_cpu_cores)
    cores = {"own": usage.own_cpu_cores, "others": usage.other_cpu_cores, "idle": idle}
    known = [f"{name} {cores_text(count)}" for name, count in cores.items() if count is not None]
    parts = [f"cores: {', '.join(known)}"] if known else []
    sizes = {"memory": usage.pss_peak_bytes, "shared memory": usage.shm_peak_bytes}
    parts += [f"{name} {format_bytes(size)}" for name, size in sizes.items() if size is not None]
    shares = {gpu.index: gpu.kernel_active_fraction for gpu in usage.gpu}
    cards = {n: percent_text(share) for n, share in shares.items() if share is not None}
    gpus = [f"GPU {number} {text}" for number, text in cards.items()]
    if len(cards) > 2:  # a line has no room for each one's name
        gpus = [f"GPUs {', '.join(text.removesuffix('%') for text in cards.values())}%"]
    return "; ".join([*parts, *gpus]) or "nothing known"


def _preparing(what: str, done: int, total: int) -> str:
    """How far something that is being made is; a ``total`` of 0 can't be counted."""
    return f"{clean(what)}: {done:,} of {total:,}" if total else clean(what)


def _short(config: Config, room: int) -> str:
    """The configuration in torch's names if they fit, else its key."""
    text = clean(config.text)
    return text if len(text) <= room else clean(config.key)


def _whole(seconds: float) -> str:
    """A time in whole seconds: tenths would only flicker."""
    return f"{seconds:.0f} s" if seconds < 59.5 else format_duration(round(seconds))


def _bar_line(done: float, total: float, text: str, options: ConsoleOptions) -> RenderableType:
    """A progress bar with its text behind it; the bar takes what room the text leaves."""
    room = options.max_width - len(text) - 1
    if room < 8 or total <= 0:
        return Text(text, no_wrap=True, overflow="crop")
    width = min(40, room)
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=width)
    grid.add_column(no_wrap=True)
    grid.add_row(ProgressBar(total=total, completed=done, width=width), Text(text))
    return grid


@dataclasses.dataclass(eq=False, kw_only=True)
class QuietListener:
    """Keeps what the events of a sweep say, and shows nothing of it.

    Rich draws what it knows at one moment; times are seconds.
    """

    verbose: bool = False
    clock: Callable[[], float] = time.monotonic
    header: RunHeader | None = None  # set once the sweep is planned
    goal: str = ""  # what it sets out to measure, in words; of a check, how far it is
    trials: list[Trial] = dataclasses.field(default_factory=list)
    prediction: SweepPrediction | None = None
    calibration: Calibration | None = None  # what that rests on
    current: Config | None = None
    repetition: int = 0
    elapsed_s: float = 0.0  # time since the sweep's start, at ``heard_at``
    expected_s: float = 0.0  # length of the whole sweep, as far as it is known
    heard_at: float = 0.0
    reached: float = 0.0  # how much of the sweep was over by then, 0 to 1, as it was shown
    usage: Usage | None = None
    # What is being made, how much of it is done, and of how much (0: not known).
    making: tuple[str, int, int] | None = None
    # The best after so many trials: computing it takes a core that the next one may need.
    best: tuple[int, ConfigSummary | None] = (0, None)
    _said_s: float = dataclasses.field(default=0.0, init=False)
    _drawn_at: float = dataclasses.field(default=-math.inf, init=False)
    _gone: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self) -> None:
        """Begin to count the time."""
        self.heard_at = self.heard_at or self.clock()

    def expect(self, elapsed_s: float, expected_s: float) -> None:
        """Set the clock right; a sweep that takes longer than it seemed goes on slower from here.

        It never goes back, nor stands still.
        """
        now = self.clock()
        self.reached = self.fraction_at(now)
        self.elapsed_s, self.expected_s, self.heard_at = elapsed_s, expected_s, now

    def elapsed_at(self, now: float) -> float:
        """Seconds since the sweep's start."""
        return self.elapsed_s + max(0.0, now - self.heard_at)

    def fraction_at(self, now: float) -> float:
        """How much of the sweep is over, 0 to 1."""
        if self.expected_s <= 0:
            return self.reached
        begun = max(self.reached, self.elapsed_s / self.expected_s)
        if begun >= 1:
            return 1.0
        # As if as much were left as then, since only a trial that ends says whether less is; where
        # more was said to be over before, after as long as that share takes.
        left_s = self.expected_s - self.elapsed_s
        gone_s = left_s * begun / (1 - begun) + self.elapsed_at(now) - self.elapsed_s
        return gone_s / (gone_s + left_s)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.making is not None:
            what, done, total = self.making
            text = _preparing(what, done, total)
            text += "" if total else f", {_whole(self.elapsed_at(self.clock()))}"
            yield _bar_line(done, total, text, options)
            return
        now = self.clock()
        fraction, elapsed_s = self.fraction_at(now), self.elapsed_at(now)
        if self.header is None:  # of a check, or not yet
            yield _bar_line(fraction, 1.0, self._so_far(_whole(elapsed_s)), options)
            return
        times = f"after {_whole(elapsed_s)}"
        if self.expected_s > 0:  # from the first trial on
            left_s = max(0.0, self.expected_s - elapsed_s)
            times = f"{percent_text(fraction)} {times}, {_whole(left_s)} left"
        yield _bar_line(fraction, 1.0, times, options)
        for name, text in self._rows(self.header, options.max_width - _LABEL_WIDTH):
            line = Text(f"{name:<{_LABEL_WIDTH}}", style="bold", no_wrap=True, overflow="crop")
            yield line.append(text, style="not bold")

    def _so_far(self, elapsed: str) -> str:
        """What is done by now, in a line; of a check, also how long it may take."""
        most = f" of at most {format_duration(self.expected_s)}" if self.expected_s > 0 else ""
        return f"{self.goal or 'Getting ready'}, {elapsed}{most}"

    def _rows(self, header: RunHeader, room: int) -> Iterator[tuple[str, str]]:
        done = f"{self.goal}, {counted(len(self.trials), 'trial')} done"
        left = max(12, room - len(done) - 2)  # a long path gives way to how far it is
        yield "run", f"{shortened(clean(header.target.spec), left, cell_len)}: {done}"
        if self.best[0] != len(self.trials):
            run = Run(
                path="",
                header=header,
                trials=tuple(self.trials),
                prediction=self.prediction,
                calibration=self.calibration,
            )
            self.best = len(self.trials), next(iter(summarize(run)), None)
        if (best := self.best[1]) is not None and best.rate is not None:
            yield "best", rate_text(best.rate)
            yield "", _short(best.config, room)
        if self.current is not None:
            again = f" (repeat {self.repetition + 1})" if self.repetition else ""
            yield "now", f"{_short(self.current, room - len(again))}{again}"
        if self.usage is not None:
            parts = usage_text(self.usage).split("; ")
            while len(parts) > 1 and len("; ".join(parts)) > room:  # no part is shown in part
                parts.pop()
            yield "machine", "; ".join(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Take back what is on the screen."""

    def planned(self, header: RunHeader, configs: Sequence[Config], repeats: int | None) -> None:
        """The sweep knows what it will measure."""
        self.header, self.making, plan = header, None, header.plan
        self.goal = counted(len(configs), "configuration") + (f" x {repeats}" * bool(repeats))
        if plan is not None and plan.search == "model":
            self.goal = f"up to {counted(len(plan.cells), 'configuration')} to predict"
        self._show(f"{clean(header.target.spec)}: {self.goal}")

    def predicted(
        self, prediction: SweepPrediction, calibration: Calibration | None = None
    ) -> None:
        """A model has predicted what could gain, starts soon enough and fits."""
        plan = None if self.header is None else self.header.plan
        planned, predicted = len(plan.cells) if plan else 0, len(prediction.cells)
        left = planned - predicted
        text = f"{predicted} of {planned}" if left > 0 else counted(predicted, "configuration")
        self.prediction, self.calibration = prediction, calibration
        self.goal = f"{text} predicted, {len(prediction.race)} to measure"
        others = f"other {left} have" if left > 1 else "other one has"
        why = f"; the {others} more workers than help, or than machine and budget allow"
        self._show(self.goal + (why if left > 0 else ""))

    def trial_started(
        self, config: Config, repetition: int, elapsed_s: float, expected_total_s: float
    ) -> None:
        """A trial begins."""
        self.current, self.repetition, self.making = config, repetition, None
        self.expect(elapsed_s, expected_total_s)
        self._show()

    def trial_ended(self, trial: Trial) -> None:
        """A trial has ended, with figures or without."""
        self.trials.append(trial)
        self._show(trial_line(trial), lasts=self.verbose or trial.failure is not None)

    def quads(
        self, done: Mapping[Series, int], look: NextLook | None, elapsed_s: float, budget_s: float
    ) -> None:
        """A check has measured so many blocks, none at first; plain lines say so now and then."""
        parts = [counted(done["load"], "ABBA block")] if done["load"] else []
        if done["start"]:
            parts.append(f"{counted(done['start'], 'start')} of each side")
        if look is not None and look.verdict.quads.get("load"):
            parts.append("still undecided")
        self.goal, self.making = ", ".join(parts), None
        self.expect(elapsed_s, budget_s)
        if not any(done.values()):  # a self-test's second check begins again
            self.reached = self._said_s = 0.0
        is_due = elapsed_s >= self._said_s + 10.0
        self._said_s = elapsed_s if is_due else self._said_s
        self._show(self._so_far(format_duration(elapsed_s)) if is_due else "")

    def message(self, text: str) -> None:
        """Something that the user should know."""
        self._show(clean(text), lasts=True)

    def preparing(self, what: str, done: int, total: int) -> None:
        """Data is being made."""
        self.making = (what, done, total) if done < total or not total else None
        self._show()

    def pulse(self, usage: Usage | None) -> None:
        """Time goes on; of a trial also what the machine does."""
        self.usage = usage or self.usage
        # Where nothing else is shown, seconds are.
        if usage is not None or self.clock() >= self._drawn_at + 1.0:
            self._drawn_at = self.clock()
            self._show()

    def _show(self, line: str = "", *, lasts: bool = False) -> None:
        """Bring the display up to date; a line is what is new, and may have to stay."""

    def _try(self, action: Callable[[], object]) -> None:
        """Draw or write, as long as there is somebody to see it."""
        if self._gone:
            return
        try:
            action()
        except (OSError, ValueError):
            self._gone = True


@dataclasses.dataclass(eq=False)
class PlainListener(QuietListener):
    """One line for each event, for logs and terminals that can only print."""

    stream: TextIO
    _made: tuple[str, int] = dataclasses.field(default=("", -1), init=False)

    def trial_ended(self, trial: Trial) -> None:
        """Say what came out of it, and how far the sweep was."""
        self._show(f"{100 * self.fraction_at(self.clock()):3.0f}%  {trial_line(trial)}")
        if self.verbose:
            self._show(f"       {usage_text(trial.usage)}")

    def preparing(self, what: str, done: int, total: int) -> None:
        """Say it at the start, at the end, and a few times between."""
        made = (what, done * 4 // max(1, total))
        if self._made != made:
            self._made = made
            self._show(_preparing(what, done, total))

    def _show(self, line: str = "", *, lasts: bool = False) -> None:
        del lasts  # all do
        if line:
            self._try(lambda: (self.stream.write(line + "\n"), self.stream.flush()))


@dataclasses.dataclass(eq=False)
class LiveListener(QuietListener):
    """The live display: redrawn at each event, by the caller's thread.

    No thread of its own: a thread in a process that forks can deadlock the child.
    """

    console: Console

    def __post_init__(self) -> None:
        """Make the display, which is there once this is entered."""
        super().__post_init__()
        self._live = Live(
            console=self.console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            get_renderable=lambda: self,
        )

    def __enter__(self) -> Self:
        self._try(self._live.start)
        return self

    def __exit__(self, *_: object) -> None:
        """Wipe the display and give the cursor back."""
        self._try(self._live.stop)

    def _show(self, line: str = "", *, lasts: bool = False) -> None:
        if lasts:  # above the display
            self._try(lambda: self.console.print(Text(line)))
        self._try(self._live.refresh)


class _TerminalConsole(Console):
    """Rich's own answer to a closed pipe is to end the program with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "nobody reads stderr any more")


def open_listener(*, quiet: bool, verbose: bool = False) -> QuietListener:
    """The listener that suits stderr as it is, whose display is there while it is entered."""
    if quiet or sys.stderr is None:  # as under Windows' pythonw, where nobody would see it
        return QuietListener()
    console = _TerminalConsole(file=sys.stderr, markup=False, highlight=False, emoji=False)
    if not console.width:  # as where COLUMNS is 0, at which Rich shows nothing
        console.width = 80
    # Rich takes FORCE_COLOR for a terminal, which moves the cursor in a log file.
    if sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal:
        return LiveListener(console, verbose=verbose)
    return PlainListener(sys.stderr, verbose=verbose)
