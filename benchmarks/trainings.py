"""Do whole trainings become as fast as ``dlprof run`` promises?

Each training of ``training_scripts.py`` runs under ``dlprof run``. The settings that its first
finding asks for are applied, and the script, without dlprof, is timed from its start to its end,
before and after, in turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.machinery
import json
import math
import os
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
from training_scripts import PACKAGES, SETTINGS, TRAININGS

NAME = "trainings"
SCRIPT = Path(__file__).with_name("training_scripts.py")
NEAR = (0.8, 1.25)
_FAR = 1.5
_LEAST, _SHARE = 7, 0.8
ROUNDS, MOST_ROUNDS = 3, 5
_SURE = 0.05
"""Standard error of the mean of the rounds' logarithms at which no further round is needed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What ``dlprof run`` says of a training.

    Attributes:
        code: Of the first finding; empty where there is none.
        high: Whether the finding calls itself ``high``, in severity or in confidence.
        data: Class of the dataset of the loader whose cause it is.
        settings: Arguments of DataLoader that its fix sets.
        value: The promised gain; ``None`` where none is promised.
        low: Lower end of its interval.
        high_end: Upper end.
        of_script: Whether it is one of the whole script, and not of the loader's throughput.
    """

    code: str
    high: bool = False
    data: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    value: float | None = None
    low: float | None = None
    high_end: float | None = None
    of_script: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One training.

    Attributes:
        training: Its name.
        promise: What was said of it.
        before_s: How long it took as it stands, by rounds.
        after_s: How long with the fix, by rounds; empty where nothing can be applied.
        error: Why something is missing.
    """

    training: str
    promise: Promise
    before_s: tuple[float, ...] = ()
    after_s: tuple[float, ...] = ()
    error: str = ""

    @property
    def gain(self) -> float | None:
        """How many times as fast the script became: the geometric mean over the rounds."""
        return math.exp(statistics.fmean(self.logs)) if self.logs else None

    @property
    def logs(self) -> list[float]:
        """The logarithm of each round's gain."""
        return [math.log(b / a) for b, a in zip(self.before_s, self.after_s, strict=True)]

    @property
    def over(self) -> float | None:
        """Promised over true."""
        if self.gain is None or self.promise.value is None:
            return None
        return self.promise.value / self.gain


def promise_of(found: Mapping[str, Any]) -> Promise:
    """The first finding of a run's JSON, and what it promises.

    A gain of the script stands beside the findings, in the diagnosis or in the finding itself; in
    its absence the finding's own gain counts, which is one of the loader's throughput.
    """
    findings = found.get("findings") or (found.get("diagnosis") or {}).get("findings") or []
    if not findings:
        return Promise(code="")
    first = findings[0]
    places = (first, found, found.get("diagnosis") or {}, found.get("script") or {})
    of_script = next(filter(None, (place.get("script_gain") for place in places)), None)
    gain = of_script or first.get("predicted_gain") or {}
    return Promise(
        code=first["code"],
        high="high" in (first.get("severity"), first.get("confidence")),
        data=_data_of(first, found["loaders"]),
        settings=dict((first.get("fix") or {}).get("dataloader_kwargs") or {}),
        value=gain.get("value"),
        low=gain.get("low"),
        high_end=gain.get("high"),
        of_script=of_script is not None,
    )


def _data_of(finding: Mapping[str, Any], loaders: Sequence[Mapping[str, Any]]) -> str:
    """The class of the dataset of the loader that a finding speaks of."""
    trials = (finding.get("evidence") or {}).get("trials") or ()
    named = [loader for loader in loaders if loader["name"] in trials]
    costly = sorted(loaders, key=lambda loader: loader["waited_s"], reverse=True)
    return str((named or costly)[0]["dataset"]).rpartition(".")[2]


def is_there(package: str, site: Path | None) -> bool:
    """Whether a package can be imported, from its own place or from here."""
    paths = [*([str(site)] if site is not None else []), *sys.path]
    return importlib.machinery.PathFinder.find_spec(package, paths) is not None


def surroundings_of(site: Path | None) -> dict[str, str]:
    """The environment in which packages of ``site`` are found, and look for nothing outside."""
    paths = [*([str(site)] if site is not None else []), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1"}


def diagnosed(training: str, site: Path | None) -> Promise:
    """What ``dlprof run`` says of a training.

    Raises:
        CommandError: It failed.
    """
    with tempfile.TemporaryDirectory(prefix="dlprof-benchmark-") as folder:
        kept = Path(folder) / "run.json"
        flags = ("-q", "--json", str(kept), "-o", f"{folder}/run.dlprof.jsonl")
        command = [*DLPROF, "run", *flags, str(SCRIPT), training]
        run_command(command, environ=surroundings_of(site))
        return promise_of(json.loads(kept.read_text()))


def timed_s(training: str, promise: Promise | None, site: Path | None) -> float:
    """Seconds that a training takes without dlprof, with a fix where one is given.

    Raises:
        CommandError: It failed.
    """
    given = {promise.data: dict(promise.settings)} if promise else {}
    environ = {**surroundings_of(site), SETTINGS: json.dumps(given)}
    return run_command([sys.executable, str(SCRIPT), training], environ=environ).wall_s


def measured(training: str, rounds: int, most: int, site: Path | None) -> Outcome:
    """Diagnose a training, apply the fix, and time both in turns."""
    try:
        promise = diagnosed(training, site)
    except CommandError as error:
        return Outcome(training=training, promise=Promise(code=""), error=str(error)[-500:])
    made = Outcome(training=training, promise=promise)
    if not promise.settings:
        return made
    for turn in range(most):
        if turn >= rounds and is_sure(made.logs):
            break
        took_s: dict[bool, float] = {}
        try:
            for fixed in (False, True) if turn % 2 else (True, False):
                took_s[fixed] = timed_s(training, promise if fixed else None, site)
        except CommandError as error:
            return dataclasses.replace(made, error=str(error)[-500:])
        made = dataclasses.replace(
            made,
            before_s=(*made.before_s, took_s[False]),
            after_s=(*made.after_s, took_s[True]),
        )
    return made


def is_sure(logs: Sequence[float]) -> bool:
    """Whether the rounds agree so far that their mean is known."""
    return len(logs) > 1 and statistics.stdev(logs) / math.sqrt(len(logs)) <= _SURE


def passed(found: Iterable[Outcome]) -> bool:
    """Whether the goals are reached."""
    shown = [each for each in found if each.over is not None]
    scripts = [each.over for each in shown if each.promise.of_script and each.over is not None]
    near = [over for over in scripts if NEAR[0] <= over <= NEAR[1]]
    enough = len(scripts) >= _LEAST and len(near) >= _SHARE * len(scripts)
    return enough and not any(is_far(each) for each in shown)


def is_far(outcome: Outcome) -> bool:
    """Whether it was called ``high`` and promised far more than came."""
    return outcome.promise.high and outcome.over is not None and outcome.over > _FAR


def report(found: Sequence[Outcome], left_out: Mapping[str, str]) -> Report:
    """The table of all trainings."""
    shown = [each for each in found if each.over is not None]
    scripts = [each for each in shown if each.promise.of_script]
    near = sum(NEAR[0] <= (each.over or 0) <= NEAR[1] for each in scripts)
    columns = (
        *("training", "first finding", "high", "fix", "promised", "of", "before", "after"),
        *("true", "promised / true"),
    )
    return Report(
        name=NAME,
        title="Whole trainings become as fast as promised",
        goal=(
            f"at least {_LEAST} of 10 or more promise the script's gain, {_SHARE:.0%} of them "
            f"within {NEAR[0]:g}-{NEAR[1]:g} of the true one; no finding called high promises more "
            f"than {_FAR:g} times what comes"
        ),
        passed=passed(found),
        tables=[Table("", columns, [_row(each) for each in found])],
        notes=[
            (
                f"{len(scripts)} of {len(found)} trainings have a promise for the script; {near} "
                f"of them within {NEAR[0]:g}-{NEAR[1]:g}; {sum(map(is_far, shown))} called high "
                f"and promised more than {_FAR:g} times what came."
            ),
            (
                "Gains of the loader are those of its throughput, and no promise for the script: "
                "they don't count for the share."
            ),
            (
                f"Scripts are timed from their start to their end, imports included, without "
                f"dlprof, in {ROUNDS} to {MOST_ROUNDS} rounds of both sides; times are medians, "
                "the true gain is the geometric mean over rounds, with the least and the most of "
                "them."
            ),
            *(f"{name} was left out: {why}." for name, why in left_out.items()),
            *(f"{each.training}: {each.error.strip()}" for each in found if each.error),
        ],
        data={"outcomes": [dataclasses.asdict(each) for each in found]},
    )


def _row(outcome: Outcome) -> tuple[str, ...]:
    promise, gain = outcome.promise, outcome.gain
    promised = "none"
    if promise.value is not None:
        ends = "" if promise.low is None else f" ({promise.low:.2f}-{promise.high_end:.2f})"
        promised = f"{promise.value:.2f}{ends}"
    fix = ", ".join(f"{name}={value}" for name, value in promise.settings.items())
    true = "-"
    if gain is not None:
        least, most = (math.exp(end(outcome.logs)) for end in (min, max))
        true = f"{gain:.2f} ({least:.2f}-{most:.2f})"
    return (
        outcome.training,
        promise.code or "none",
        "yes" if promise.high else "no",
        fix or "none by settings",
        promised,
        "script" if promise.of_script else "loader" if promise.value is not None else "-",
        *(
            f"{statistics.median(s):.1f} s" if s else "-"
            for s in (outcome.before_s, outcome.after_s)
        ),
        true,
        "-" if outcome.over is None else f"{outcome.over:.2f}",
    )


def earlier(path: Path) -> list[Outcome]:
    """What an earlier run kept."""
    if not path.exists():
        return []
    kept = json.loads(path.read_text())["data"]["outcomes"]
    return [outcome_of(each) for each in kept]


def outcome_of(kept: Mapping[str, Any]) -> Outcome:
    """An outcome as it was kept."""
    times = {name: tuple(kept[name]) for name in ("before_s", "after_s")}
    return Outcome(**{**kept, **times, "promise": Promise(**kept["promise"])})


def main() -> None:
    """Measure and publish."""
    options: argparse.ArgumentParser = parser(__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", help="trainings, or beginnings")
    options.add_argument("--more", action="store_true", help="only what was not measured yet")
    options.add_argument("--minutes", type=float, default=30.0, help="none is begun after them")
    options.add_argument(
        "--site",
        type=Path,
        help="where transformers, lightning and accelerate were put by `pip install --target SITE`",
    )
    given = options.parse_args()
    names = [name for name in TRAININGS if name.startswith(tuple(given.names) or "")]
    if given.quick and not given.names:
        names = ["slow_samples", "fed"]
    needed = {name: PACKAGES[name] for name in names if name in PACKAGES}
    left_out = {
        name: f"{package} is not installed"
        for name, package in needed.items()
        if not is_there(package, given.site)
    }
    quick = given.quick or (bool(given.names) and not given.more)
    known = {each.training: each for each in earlier(RESULTS / f"{NAME}.json")}
    found = known if given.more else {}
    before, began_s = surroundings(), time.monotonic()
    rounds, most = (1, 1) if given.quick else (ROUNDS, MOST_ROUNDS)
    for name in names:
        if name in left_out or name in found:
            continue
        if time.monotonic() - began_s > 60 * given.minutes:
            left_out[name] = "no time was left"
            continue
        found[name] = measured(name, rounds, most, given.site)
        print(" | ".join(_row(found[name])), found[name].error, file=sys.stderr, flush=True)
        keep(report(_ordered(found), left_out), before, quick=quick)
    publish(report(_ordered(found), left_out), before, quick=quick)


def _ordered(found: Mapping[str, Outcome]) -> list[Outcome]:
    return [found[name] for name in TRAININGS if name in found]


if __name__ == "__main__":
    main()
