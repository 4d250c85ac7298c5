"""Is what ``dlprof run --headroom`` says true?

Each training of ``headroom_scripts.py`` runs under ``dlprof run --headroom``. Its epochs alternate
with stretches from memory that dlprof knows nothing of: what a step takes there is the truth for
the replayed one. The same script runs without dlprof too, where epochs in which workers and step
are kept on cores of their own show by how much loading slows the step; so do batches from memory
after the same waits, which know of no cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import (
    DLPROF,
    RESULTS,
    CommandError,
    Report,
    Table,
    keep,
    parser,
    publish,
    run_command,
    surroundings,
)
from headroom_scripts import TRAININGS

NAME = "headroom"
SCRIPT = Path(__file__).with_name("headroom_scripts.py")
NEAR, NEAR_SLOWED = 0.02, 0.02
"""How far off a replayed step may be, and the share by which loading slows it: of the period."""

_QUIET = {"PYTHONWARNINGS": "ignore"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run of a training under dlprof, and one without.

    Attributes:
        training: Its name.
        shown: The loader's ``headroom``; ``None`` where there is none.
        why_not: Then the reason.
        fed_s: A step from memory, in the process that dlprof watched.
        plain: Wait and step without dlprof: ``live``, ``fed``, ``rested`` and ``apart``.
        error: What went wrong.
    """

    training: str
    reported: Mapping[str, Any] | None = None
    why_not: str = ""
    fed_s: float | None = None
    plain: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    error: str = ""

    @property
    def off(self) -> float | None:
        """The replayed step less the true one, as a share of the period."""
        if self.reported is None or self.fed_s is None:
            return None
        return float((self.reported["step_s"] - self.fed_s) / self.reported["period_s"])

    @property
    def sure(self) -> bool:
        """Whether the interval of the share that a fed step takes is within the goal."""
        reported = self.reported
        if reported is None or reported["speedup"]["low"] is None:
            return False
        ends = [1 / max(1e-9, reported["speedup"][end]) for end in ("low", "high")]
        return bool(abs(ends[0] - ends[1]) / 2 <= NEAR)

    @property
    def true_speedup(self) -> float | None:
        """Period over step from memory, without dlprof."""
        if not self.plain:
            return None
        return sum(self.plain["live"]) / self.plain["fed"][1]

    def slowed(self, control: str) -> float | None:
        """The true share by which loading slows the step, by a control: a key of ``plain``."""
        if control not in self.plain:
            return None
        live = self.plain["live"]
        return (live[1] - self.plain[control][1]) / sum(live)


def measured(name: str) -> Outcome:
    """Run a training under dlprof, and without."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        script = [str(SCRIPT), name]
        files = ["--json", str(here / "run.json"), "-o", str(here / "run.dlprof.jsonl"), "-q"]
        try:
            run_command(
                [*DLPROF, "run", "--headroom", *files, *script, str(here / "fed.json")],
                environ=_QUIET,
            )
            run_command(
                [sys.executable, *script, str(here / "plain.json"), "apart"], environ=_QUIET
            )
        except CommandError as error:
            return Outcome(training=name, error=str(error)[-400:])
        loaders = json.loads((here / "run.json").read_text())["loaders"]
        trained = [each for each in loaders if each["batches"] > 2 * each["epochs"]]
        loader = max(trained, key=lambda each: each["stepped_s"])
        return Outcome(
            training=name,
            reported=loader["headroom"],
            why_not=loader["unavailable"].get("headroom", ""),
            fed_s=json.loads((here / "fed.json").read_text())["fed"][1],
            plain=json.loads((here / "plain.json").read_text()),
        )


def report(found: Sequence[Outcome], left_out: Mapping[str, str]) -> Report:
    """The table of all trainings; of several rounds each line is the middle one."""
    by_name: dict[str, list[Outcome]] = {}
    for each in found:
        by_name.setdefault(each.training, []).append(each)
    offs = {name: _middle(each.off for each in runs) for name, runs in by_name.items()}
    known = [abs(off) for off in offs.values() if off is not None]
    near = sum(off <= NEAR for off in known)
    slowed = {name: _slowed_off(runs, "apart") for name, runs in by_name.items()}
    slowed_known = [abs(each) for each in slowed.values() if each is not None]
    slowed_near = sum(each <= NEAR_SLOWED for each in slowed_known)
    rested = [_slowed_off(runs, "rested") for runs in by_name.values()]
    rested_near = [abs(each) <= NEAR_SLOWED for each in rested if each is not None]
    singles = [abs(each.off) for each in found if each.off is not None]
    columns = (
        *("training", "runs", "perfect loader", "true", "waiting", "slowed", "cores apart"),
        *("same waits", "step replayed", "step from memory", "off, of the period"),
    )
    return Report(
        name=NAME,
        title="What a perfect loader would bring",
        goal=(
            f"the replayed step within {NEAR:.0%} of the period of one from memory, and the share "
            f"by which loading slows it within {NEAR_SLOWED:.0%} of a control with cores apart, in "
            "20 trainings"
        ),
        passed=len(known) >= 20 and near == len(known) and slowed_near == len(slowed_known),
        tables=[Table("", columns, [_row(name, runs) for name, runs in by_name.items()])],
        notes=[
            (
                f"The replayed step was within {NEAR:.0%} of the period in {near} of {len(known)} "
                f"trainings (middle run of each), in {sum(each <= NEAR for each in singles)} of "
                f"{len(singles)} single runs; off by {statistics.median(singles or [0]):.1%} in "
                f"the middle, {max(singles, default=0):.1%} at most."
            ),
            (
                f"Slowed: within {NEAR_SLOWED:.0%} of the control with cores apart in "
                f"{slowed_near} of {len(slowed_known)} trainings, of that with the same waits in "
                f"{sum(rested_near)} of {len(rested_near)}."
            ),
            (
                "'true' is the period over the step from memory without dlprof, 'cores apart' and "
                "'same waits' (batches from memory after the waits of live ones) the slowed share "
                "by these two controls there: another process than the one that dlprof watched. "
                "The controls hold where nobody else uses the cores. With cores apart the workers "
                "have one core, so waits are longer and the step after them colder; and receiving "
                "a batch still slows the step."
            ),
            *(f"{name} was left out: {why}." for name, why in left_out.items()),
            *(
                f"{each.training}: {each.why_not or each.error}"
                for each in found
                if not each.reported
            ),
        ],
        data={"outcomes": [dataclasses.asdict(each) for each in found]},
    )


def _middle(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return statistics.median(known) if known else None


def _reported(runs: Sequence[Outcome], name: str) -> float | None:
    return _middle(None if each.reported is None else each.reported[name]["value"] for each in runs)


def _slowed_off(runs: Sequence[Outcome], control: str) -> float | None:
    reported, true = (
        _reported(runs, "slowed_fraction"),
        _middle(each.slowed(control) for each in runs),
    )
    return None if reported is None or true is None else reported - true


def _row(name: str, runs: Sequence[Outcome]) -> tuple[str, ...]:
    def percent(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    def milliseconds(value: float | None) -> str:
        return "-" if value is None else f"{value * 1e3:.2f} ms"

    def times(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}x"

    return (
        name,
        str(len(runs)),
        times(_reported(runs, "speedup")),
        times(_middle(each.true_speedup for each in runs)),
        percent(_reported(runs, "waiting_fraction")),
        percent(_reported(runs, "slowed_fraction")),
        percent(_middle(each.slowed("apart") for each in runs)),
        percent(_middle(each.slowed("rested") for each in runs)),
        milliseconds(_middle(None if e.reported is None else e.reported["step_s"] for e in runs)),
        milliseconds(_middle(each.fed_s for each in runs)),
        percent(_middle(each.off for each in runs)),
    )


def earlier(path: Path) -> list[Outcome]:
    """What an earlier run kept, without what failed: that is tried again."""
    if not path.exists():
        return []
    kept = [Outcome(**each) for each in json.loads(path.read_text())["data"]["outcomes"]]
    return [each for each in kept if not each.error]


def main() -> None:
    """Measure and publish."""
    options: argparse.ArgumentParser = parser(__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", help="trainings, or beginnings")
    options.add_argument("--more", action="store_true", help="add to what was measured before")
    options.add_argument("--rounds", type=int, default=3, help="runs of each training")
    options.add_argument("--minutes", type=float, default=60.0, help="none is begun after them")
    given = options.parse_args()
    names = [name for name in TRAININGS if name.startswith(tuple(given.names) or "")]
    names = names[:2] if given.quick and not given.names else names
    quick = given.quick or (bool(given.names) and not given.more)
    found = earlier(RESULTS / f"{NAME}.json") if given.more else []
    left_out: dict[str, str] = {}
    before, began_s = surroundings(), time.monotonic()
    for number in range(1 if given.quick else given.rounds):
        for name in names:
            if sum(each.training == name for each in found) > number:
                continue
            if time.monotonic() - began_s > 60 * given.minutes:
                left_out[name] = f"no time was left for round {number + 1}"
                continue
            found.append(measured(name))
            print(" | ".join(_row(name, found[-1:])), found[-1].error or found[-1].why_not,
                  file=sys.stderr, flush=True)  # fmt: skip
            keep(report(found, left_out), before, quick=quick)
    publish(report(found, left_out), before, quick=quick)


if __name__ == "__main__":
    main()
