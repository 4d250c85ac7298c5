"""Does anything get lost or left behind when any process of a sweep is killed at any moment?"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from common import DLPROF, Report, Table, parser, publish, surroundings
from kill_victims import HOW, PARTS, kill_one, wait_until_gone

from dlprof.errors import DlprofError
from dlprof.store import read_run

SWEEPS, QUICK_SWEEPS = 200, 5
ORPHAN_PATIENCE_S = 10.0
_SWEEP_PATIENCE_S = 300.0
_POLL_S = 0.01
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - it is looked at, nothing is put there
_SHARE_FROM_START = 0.25
"""Of the kills, those timed from the start; the others are timed from the first record."""

TARGET = """
import sys, traceback
from torch.utils.data import Dataset

class Watch:
    def find_spec(name, path=None, target=None):
        if name in ("torch._dynamo", "torch._inductor"):
            with open("imports.txt", "a") as file:
                traceback.print_stack(file=file)

sys.meta_path.insert(0, Watch)

class Numbers(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return index

def data():
    return Numbers()
"""
"""It also notes who imports torch's compiler, which makes a folder among the temporary files."""

FLAGS = ("--pin-memory", "off", "--trial-time", "0.1s", "--repeats", "1", "--budget", "20m")
VARIANTS: Mapping[str, Sequence[str]] = {
    "fork": (
        *("--num-workers", "0,1,2", "--prefetch-factor", "2", "--persistent-workers", "both"),
        *("--start-method", "fork"),
    ),
    "spawn": (
        *("--num-workers", "0,1", "--prefetch-factor", "2", "--persistent-workers", "both"),
        *("--start-method", "spawn"),
    ),
    "forkserver": (
        *("--num-workers", "0,1", "--prefetch-factor", "2", "--persistent-workers", "both"),
        *("--start-method", "forkserver"),
    ),
}
RANKS_SWEEPS = 50
NAMED_S = 10.0
_SECOND_LOOK_S = 2.0
_NAMED = re.compile(r"Rank \d+ of \d+ on \S+: ")
TURNS = ("fork", "fork", "fork", "fork", "spawn", "fork", "fork", "fork", "fork", "forkserver")
"""Sweeps with spawn and forkserver take five times as long."""

_EXPECTED_CODES = {0, 2, 6}
"""Done; the target's process died while it was built; nothing could be measured."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Undisturbed:
    """What a sweep does when nobody disturbs it.

    Attributes:
        trials: Configuration and repetition of each, sorted.
        header_s: When its file was there.
        wall_s: When it ended.
    """

    trials: tuple[tuple[str, int], ...]
    header_s: float
    wall_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """What came of one sweep of which one process was killed.

    Attributes:
        variant: How its workers are started.
        part: What the killed process was.
        killed_s: When, from the start.
        went_on: Whether the sweep itself went on to its end.
        code: What the sweep ended with.
        restarted: Whether there was no run to continue, so that it had to be begun again.
        lost: Trials that stood in the file at the kill and no longer stand there as they were.
        orphans: Processes left 10 s after the sweep had ended.
        gone_s: How long after its end its last process ended.
        leaked: Files left in the temporary directory and in /dev/shm after all.
        named_s: How long after the kill it was said what failed, in the run file or on the screen;
            ``None`` where nothing did.
        unnamed: What failed of several ranks and named none of them.
        same: Whether exactly the trials of an undisturbed sweep were in the file in the end.
    """

    variant: str
    part: str
    killed_s: float
    went_on: bool
    code: int
    restarted: bool
    lost: int
    orphans: int
    gone_s: float
    leaked: tuple[str, ...]
    same: bool
    named_s: float | None = None
    unnamed: str = ""

    @property
    def good(self) -> bool:
        """Whether nothing was lost, left behind, unnamed or ended with a fault of dlprof's own."""
        fine = self.code in _EXPECTED_CODES or self.part.startswith("supervisor")
        soon = (self.named_s or 0.0) <= NAMED_S and not self.unnamed
        return fine and soon and self.same and not (self.lost or self.orphans or self.leaked)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where one sweep runs: its run file, its log and a directory for its temporary files."""

    folder: Path
    ranks: int = 1

    @property
    def run_file(self) -> Path:
        """The run file."""
        return self.folder / "run.dlprof.jsonl"

    @property
    def temporary(self) -> Path:
        """For its temporary files."""
        return self.folder / "tmp"

    @property
    def marker(self) -> str:
        """By which its processes are known."""
        return f"TMPDIR={self.temporary}"

    def start(self, variant: str, *more: str) -> subprocess.Popen[bytes]:
        """Start a sweep."""
        self.temporary.mkdir(parents=True, exist_ok=True)
        environ = {key: text for key, text in os.environ.items() if not key.startswith("DLPROF_")}
        with (self.folder / "log.txt").open("ab") as log:
            return subprocess.Popen(
                [
                    *(*DLPROF, "sweep", f"{self.folder.parent / 'target.py'}:data"),
                    *(*VARIANTS[variant], *FLAGS, *more, "-o", str(self.run_file)),
                    *(("--launch-ranks", str(self.ranks)) if self.ranks > 1 else ()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**environ, "TMPDIR": str(self.temporary)},
                start_new_session=True,
            )

    def records(self) -> bytes:
        """The complete lines of the run file."""
        content = self.run_file.read_bytes() if self.run_file.exists() else b""
        return content[: content.rfind(b"\n") + 1]

    def failures(self, seen: bytes) -> list[str]:
        """What failed since, of several ranks: as in the run file, and what cost no trial."""
        lines = map(json.loads, self.records()[len(seen) :].splitlines())
        trials = [line for line in lines if line["record"] == "trial" and line.get("failure")]
        shared = [trial for trial in trials if trial["purpose"] != "scaling"]  # some by one rank
        return [str(trial["failure"]["message"]) for trial in shared]

    def said(self) -> str:
        """What was on the screen."""
        return (self.folder / "log.txt").read_text(errors="replace")

    def trials(self) -> tuple[tuple[str, int], ...]:
        """Configuration and repetition of each trial, sorted; none if there is no run.

        Those by fewer ranks follow from what is recommended, which chance may change.
        """
        try:
            run = read_run(self.run_file)
        except DlprofError:
            return ()
        tried = [trial for trial in run.trials if trial.purpose != "scaling"]
        return tuple(sorted((trial.config.key, trial.repetition) for trial in tried))


def undisturbed(place: Place, variant: str) -> Undisturbed:
    """Run a sweep to its end."""
    began_s = time.monotonic()
    process = place.start(variant)
    header_s = wait_for_header(place, process)
    if process.wait(_SWEEP_PATIENCE_S) != 0:
        sys.exit(f"an undisturbed sweep failed: {(place.folder / 'log.txt').read_text()}")
    wall_s = time.monotonic() - began_s
    return Undisturbed(trials=place.trials(), header_s=header_s, wall_s=wall_s)


def wait_for_header(place: Place, process: subprocess.Popen[bytes]) -> float:
    """Seconds until a sweep has begun its file, or ended."""
    began_s = time.monotonic()
    while process.poll() is None and not place.records():
        time.sleep(_POLL_S)
    return time.monotonic() - began_s


def disturb(place: Place, variant: str, usual: Undisturbed, chance: random.Random) -> Killed:
    """Run a sweep, kill one of its processes, and see what becomes of it."""
    shared = shared_memory()
    began_s = time.monotonic()
    process = place.start(variant)
    if chance.random() < _SHARE_FROM_START:
        wait_s = chance.uniform(0.0, usual.wall_s)
    else:
        wait_for_header(place, process)
        wait_s = chance.uniform(0.0, usual.wall_s - usual.header_s)
    part, seen, said = None, b"", ""
    while part is None:
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            seen, said = place.records(), place.said()
            signals = tuple(HOW) if place.ranks > 1 else (signal.SIGKILL,)
            part = kill_one(process.pid, place.marker, chance, signals)
        else:  # quicker than usual: once more, from the start
            place.run_file.unlink()
            began_s, process, wait_s = time.monotonic(), place.start(variant), wait_s / 2
    killed_s = time.monotonic() - began_s
    named_s = wait_until_named(place, process, seen, said)
    code = process.wait(_SWEEP_PATIENCE_S)
    failed = place.failures(seen) if place.ranks > 1 else []
    gone_s, orphans = wait_until_gone(place.marker, ORPHAN_PATIENCE_S)
    kept, restarted = place.records(), not place.records()
    if code != 0:
        again = place.start(variant, "--force" if restarted else "--resume")
        again.wait(_SWEEP_PATIENCE_S)
        orphans += wait_until_gone(place.marker, ORPHAN_PATIENCE_S)[1]
    left = shared_memory() - shared
    if left:  # what others make and remove just now is gone by then
        time.sleep(_SECOND_LOOK_S)
        left &= shared_memory()
    return Killed(
        variant=variant,
        part=part,
        killed_s=killed_s,
        went_on=code == 0,
        code=code,
        restarted=code != 0 and restarted,
        lost=max(lost(seen, kept), lost(seen, place.records())),
        orphans=orphans,
        gone_s=gone_s,
        leaked=tuple(sorted({each.name for each in place.temporary.iterdir()}))
        + tuple(sorted(left)),
        same=place.trials() == usual.trials,
        named_s=named_s,
        unnamed=next((each for each in failed if not _NAMED.match(each)), ""),
    )


def wait_until_named(
    place: Place, process: subprocess.Popen[bytes], seen: bytes, said: str
) -> float | None:
    """Seconds until it is said what failed; ``None`` where the sweep ends, and nothing did."""
    began_s = time.monotonic()
    while process.poll() is None and time.monotonic() < began_s + _SWEEP_PATIENCE_S:
        time.sleep(5 * _POLL_S)
        if place.failures(seen) or _NAMED.search(place.said()[len(said) :]):
            return time.monotonic() - began_s
    return None


def lost(seen: bytes, now: bytes) -> int:
    """How many lines of what was seen are no longer there, byte for byte and in their order."""
    there = now.splitlines()[: len(seen.splitlines())]
    kept = sum(before == after for before, after in zip(seen.splitlines(), there, strict=False))
    return len(seen.splitlines()) - kept


def shared_memory() -> set[str]:
    """Names in /dev/shm of what no living process has mapped: others may use the machine."""
    found = {each.name for each in _SHARED_MEMORY.iterdir()} if _SHARED_MEMORY.is_dir() else set()
    for maps in Path("/proc").glob("[0-9]*/maps") if found else ():
        with contextlib.suppress(OSError):
            mapped = {Path(line.split()[-1]).name for line in maps.read_text().splitlines()}
            found -= mapped
    return found


def report_on(results: Sequence[Killed], seed: int, ranks: int) -> Report:
    """The table of what became of the sweeps, by the part that was killed."""
    columns = (
        *("killed", "sweeps", "went on", "resumed", "started again", "same trials"),
        *("trials lost", "orphans", "files leaked", "last process gone after, s"),
        *("named", "after, s"),
    )
    goal, names = SWEEPS, [f"{part}{how}" for part in PARTS for how in HOW.values()]
    parts = [part for part in names if any(each.part == part for each in results)]
    rows = [_row(part, [each for each in results if each.part == part]) for part in parts]
    starts = collections.Counter(each.variant for each in results)
    suffix, at_once, how = "", "", "SIGKILL"
    if ranks > 1:
        goal, suffix, at_once = RANKS_SWEEPS, "_ranks", f" of {ranks} ranks at once"
        how = "SIGKILL, SIGSTOP (of the sweep's first process for 5 s) or SIGINT"
    return Report(
        name=f"kill_campaign{suffix}",
        title=f"Any process of a sweep{at_once} may be killed at any moment",
        goal=f"of {goal} sweeps: no finished trial lost, no process left after "
        f"{ORPHAN_PATIENCE_S:g} s, no file leaked, all brought to the same trials in the end; what "
        f"fails of several ranks is named with host and rank within {NAMED_S:g} s",
        passed=len(results) >= goal and all(each.good for each in results),
        tables=[Table("", columns, [*rows, _row("all", results)])],
        notes=[
            (
                f"{how} to one process, of a part drawn from those that lived at a random moment; "
                f"seed {seed}. Workers started by "
                f"{', '.join(f'{name} ({count})' for name, count in starts.items())}."
            ),
            (
                "`went on`: the sweep itself ended as if nothing had been. `started again`: it was "
                "killed before its file had a header, so that there was nothing to resume. `same "
                "trials`: the configurations and repetitions of an undisturbed sweep, where one "
                "that was itself killed counts as tried: it is in the file as crashed."
            ),
            (
                "Files are counted after the sweep was resumed, which clears away what a killed "
                "supervisor could not; in /dev/shm those that nobody has mapped. `named`: a trial "
                "failed for it, or it was said that what was killed was started again."
            ),
        ],
        data={"killed": [dataclasses.asdict(each) for each in results]},
    )


def _row(name: str, results: Sequence[Killed]) -> tuple[str, ...]:
    return (
        name,
        str(len(results)),
        str(sum(each.went_on for each in results)),
        str(sum(not (each.went_on or each.restarted) for each in results)),
        str(sum(each.restarted for each in results)),
        str(sum(each.same for each in results)),
        str(sum(each.lost for each in results)),
        str(sum(each.orphans for each in results)),
        str(sum(len(each.leaked) for each in results)),
        f"{max(each.gone_s for each in results):.1f}",
        str(sum(each.named_s is not None for each in results)),
        f"{max(each.named_s or 0.0 for each in results):.1f}",
    )


def main() -> None:
    """Run the campaign and publish."""
    arguments = parser(__doc__)
    arguments.add_argument("--sweeps", type=int, help=f"how many (default {SWEEPS})")
    arguments.add_argument("--first", type=int, default=0, help="number of the first (default 0)")
    arguments.add_argument("--launch-ranks", type=int, default=1, help="how many load at once")
    arguments.add_argument("--seed", type=int, default=0, help="of the kills (default 0)")
    given = arguments.parse_args()
    ranks: int = given.launch_ranks
    turns, usually = (TURNS, SWEEPS) if ranks == 1 else (TURNS[:1], RANKS_SWEEPS)
    count = given.sweeps or (QUICK_SWEEPS if given.quick else usually)
    before = surroundings()
    results: list[Killed] = []
    with tempfile.TemporaryDirectory(prefix="kill-") as name:
        folder = Path(name)
        (folder / "target.py").write_text(TARGET)
        usual = {each: undisturbed(Place(folder / each, ranks), each) for each in {*turns}}
        for number in range(given.first, given.first + count):
            variant, chance = turns[number % len(turns)], random.Random(f"{given.seed}-{number}")
            place = Place(folder / f"{number:03d}", ranks)
            results.append(disturb(place, variant, usual[variant], chance))
            print(f"{number} of {count}: {results[-1]}", file=sys.stderr, flush=True)
            if not results[-1].good:
                for each in (place.folder / name for name in ("log.txt", "imports.txt")):
                    print(each.read_text() if each.exists() else "", file=sys.stderr, flush=True)
    publish(report_on(results, given.seed, ranks), before, quick=given.quick)


if __name__ == "__main__":
    main()
