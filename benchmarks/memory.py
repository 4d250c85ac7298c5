"""Does memory stay bounded? Ten million indices, an endless dataset, 10,000 trials in a file."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from common import DLPROF, Report, Table, parser, publish, run_command, surroundings
from hand_timed import PlainLoop
from made_runs import long_plan, made_header, made_trials, write_run
from made_targets import endless_target
from process_tree import Peaks, peaks_of, watching

from dlprof.store import read_run
from dlprof.units import format_bytes

MIB = 1 << 20
SLACK = 32 * MIB
"""What may differ between two runs of the same, such as pages that a worker happened to touch."""

WORKERS = 2
_DATA = "synthetic:tensors=1,shape=4,length={length}"
_PARTS = ("supervisor", "fork server", "observer", "trial")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What is measured.

    Attributes:
        lengths: A short dataset's and a long one's samples.
        plain_batches: Batches that the plain loop takes of each.
        trial_s: Length of a trial; for the endless set, a short and a long one.
        run_trials: Trials of a short run file and of a long one.
        most_bytes: What any command may take on the long run file.
    """

    lengths: tuple[int, int] = (100_000, 10_000_000)
    plain_batches: int = 2000
    trial_s: tuple[float, float] = (2.0, 20.0)
    run_trials: tuple[int, int] = (100, 10_000)
    most_bytes: int = 512 * MIB


FULL = Design()
QUICK = Design(lengths=(100_000, 1_000_000), trial_s=(0.3, 1.0), run_trials=(50, 500))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """Memory on something short and on something long.

    Attributes:
        what: What was run on both.
        short: Peaks on the short one.
        long: Peaks on the long one.
        allowed: Growth of the total that is allowed, in bytes.
        why: Where that comes from.
    """

    what: str
    short: Peaks
    long: Peaks
    allowed: int
    why: str

    @property
    def growth(self) -> int:
        """From the short one to the long one, all processes together."""
        return self.long.total - self.short.total


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One command on a run file.

    Attributes:
        what: What it does.
        trials: In the file.
        seconds: Its wall time; for a resumed sweep, until its first new trial.
        peak_bytes: Its own resident memory.
    """

    what: str
    trials: int
    seconds: float
    peak_bytes: int


def sweep_peaks(target: str, trial_s: float, flags: Sequence[str] = ()) -> Peaks:
    """Memory of a sweep of one trial with workers."""
    settings = {
        "--num-workers": str(WORKERS),
        "--prefetch-factor": "2",
        "--persistent-workers": "off",
        "--trial-time": f"{trial_s}s",
        "--repeats": "1",
        "--budget": "10m",
    }
    with tempfile.TemporaryDirectory(prefix="dlprof-benchmark-") as directory:
        output = ("-q", "-o", str(Path(directory) / "run.dlprof.jsonl"))
        options = [text for pair in settings.items() for text in pair]
        return peaks_of([*DLPROF, "sweep", target, *options, *flags, *output])


def plain_peaks(target: str, batches: int, *, shuffle: bool) -> Peaks:
    """Memory of the same loader in a loop by hand."""
    with (
        contextlib.closing(PlainLoop(target, shuffle=shuffle)) as plain,
        watching(plain.pid) as peaks,
    ):
        plain.samples_per_s(WORKERS, batches)
    return peaks


def long_dataset(design: Design, *, shuffle: bool) -> tuple[Grown, Grown]:
    """A sweep and the plain loop on a short and on a long dataset; returns both."""
    targets = [_DATA.format(length=length) for length in design.lengths]
    plain = [plain_peaks(target, design.plain_batches, shuffle=shuffle) for target in targets]
    flags = ("--shuffle",) if shuffle else ("--no-shuffle",)
    own = [sweep_peaks(target, design.trial_s[0], flags) for target in targets]
    order = "shuffled" if shuffle else "in sequence"
    what = f"{design.lengths[0]:,} and {design.lengths[1]:,} indices, {order}"
    by_hand = Grown(
        what=f"the same loader in a plain loop: {what}",
        short=plain[0],
        long=plain[1],
        allowed=sys.maxsize,
        why="torch's own",
    )
    measured = Grown(
        what=what,
        short=own[0],
        long=own[1],
        allowed=max(0, by_hand.growth) + SLACK,
        why="the plain loop's",
    )
    return measured, by_hand


def endless(design: Design) -> Grown:
    """An iterable dataset without an end, looked at for a short and for a long time."""
    with tempfile.TemporaryDirectory(prefix="dlprof-benchmark-") as directory:
        target = endless_target(Path(directory))
        short, long = (sweep_peaks(target, trial_s) for trial_s in design.trial_s)
    times = f"{design.trial_s[0]:g} s and {design.trial_s[1]:g} s"
    what = f"endless iterable, trials of {times}"
    return Grown(what=what, short=short, long=long, allowed=SLACK, why="none")


def reading(trials: int, directory: Path) -> list[Read]:
    """Reading, recommending from and resuming a run file of so many trials."""
    path = directory / f"{trials}.dlprof.jsonl"
    write_run(path, made_header(), made_trials(trials))
    load = "import sys, dlprof; dlprof.load_run(sys.argv[1])"
    commands: Mapping[str, tuple[str, ...]] = {
        "`dlprof.load_run`": (sys.executable, "-c", load, str(path)),
        "`dlprof recommend`": (*DLPROF, "recommend", str(path)),
    }
    found = []
    for what, command in commands.items():
        done = run_command(command)
        found.append(
            Read(what=what, trials=trials, seconds=done.wall_s, peak_bytes=done.peak_rss_bytes)
        )
    return [*found, resuming(trials, directory)]


def resuming(trials: int, directory: Path) -> Read:
    """Resuming a sweep that was cut off after so many trials, for a while.

    Raises:
        RuntimeError: It measured nothing more.
    """
    path = directory / f"{trials}-resumed.dlprof.jsonl"
    target = _DATA.format(length=100_000)
    first = ("--num-workers", "0", "--trial-time", "0.1s", "--budget", "30s")
    run_command([*DLPROF, "sweep", target, *first, "-q", "-o", str(path)])
    header = dataclasses.replace(read_run(path).header, plan=long_plan(trials))
    write_run(path, header, made_trials(trials))
    began_at = time.time()
    peaks = peaks_of([*DLPROF, "sweep", "--resume", "--budget", "60s", "-q", "-o", str(path)])
    new = read_run(path).trials[trials:]
    if not new:
        raise RuntimeError("the resumed sweep measured nothing")
    return Read(
        what="`dlprof sweep --resume`",
        trials=trials,
        seconds=datetime.fromisoformat(new[0].started_at).timestamp() - began_at,
        peak_bytes=peaks.parts["supervisor"],
    )


def report_on(grown: Sequence[Grown], read: Sequence[Read], design: Design) -> Report:
    """The tables of all cases."""
    bounded = all(each.growth <= each.allowed for each in grown)
    small = all(each.peak_bytes <= design.most_bytes for each in read)
    parts = ("sweep", "peak, short", "peak, long", *(f"{part}, long" for part in _PARTS))
    sweeps = Table(
        "Memory (PSS without files) of the whole process tree, and of its parts on the long one",
        (*parts, "growth", "allowed"),
        [_grown_row(each) for each in grown],
    )
    files = Table(
        "Run files",
        ("command", "trials in the file", "wall, s", "peak memory"),
        [
            (each.what, f"{each.trials:,}", f"{each.seconds:.2f}", format_bytes(each.peak_bytes))
            for each in read
        ],
    )
    return Report(
        name="memory",
        title="Memory stays bounded",
        goal=(
            f"nothing that dlprof itself holds grows with the dataset or the trial by more than "
            f"{format_bytes(SLACK)}; no command on {design.run_trials[1]:,} trials takes more "
            f"than {format_bytes(design.most_bytes)}"
        ),
        passed=bounded and small,
        tables=[sweeps, files],
        notes=[
            (
                f"One trial with num_workers={WORKERS}; memory sampled ten times a second; parts "
                "reach their peaks at different times."
            ),
            "The kernel counts this benchmark's own memory (27 MiB) as every command's least peak.",
            "What a plain loop over the same loader grows by is torch's own (its sampler's list).",
            (
                "For `--resume`, the time is that from the command's start to its first new trial, "
                "torch and target included, and the memory is the supervisor's."
            ),
        ],
        data={
            "grown": [dataclasses.asdict(each) for each in grown],
            "read": [dataclasses.asdict(each) for each in read],
        },
    )


def _grown_row(each: Grown) -> tuple[str, ...]:
    limited = each.allowed < sys.maxsize
    return (
        each.what,
        format_bytes(each.short.total),
        format_bytes(each.long.total),
        *(
            format_bytes(each.long.parts[part]) if part in each.long.parts else "-"
            for part in _PARTS
        ),
        f"{each.growth / MIB:+.0f} MiB",
        f"{each.allowed / MIB:.0f} MiB ({each.why} + {SLACK // MIB})" if limited else each.why,
    )


def main() -> None:
    """Measure and publish."""
    given = parser(__doc__).parse_args()
    design = QUICK if given.quick else FULL
    before = surroundings()
    grown = [
        *long_dataset(design, shuffle=False),
        *long_dataset(design, shuffle=True),
        endless(design),
    ]
    read = []
    with tempfile.TemporaryDirectory(prefix="dlprof-benchmark-") as directory:
        for trials in design.run_trials:
            read += reading(trials, Path(directory))
    publish(report_on(grown, read, design), before, quick=given.quick)


if __name__ == "__main__":
    main()
