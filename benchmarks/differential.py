"""Are the figures and the promises of ``dlprof sweep`` those of a loop by hand, on any loader?

Loaders of many kinds, some written down (``differential_targets.py``), some drawn at random
(``drawn_loaders.py``), are swept by the command that users run. ``differential_loop.py``, which
knows nothing of dlprof, times the same settings before the sweep and after it, and whether the
recommended ones bring there what the recommendation says. With ``--ecosystem`` the loaders are
those of real packages (``tests/ecosystem/loaders.py``), each set as its framework's users set it,
and the gain that ``dlprof profile`` promises is judged, too.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import differential_targets
import drawn_loaders
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
from trainings import is_there, surroundings_of

NAME, ECOSYSTEM_NAME = "differential", "differential_ecosystem"
ECOSYSTEM = Path(__file__).parents[1] / "tests" / "ecosystem" / "loaders.py"
PACKAGES = {
    "web_loader": "webdataset",
    "hf_map": "datasets",
    "hf_iterable": "datasets",
    "stateful": "torchdata",
    "nodes": "torchdata",
    "data_module": "lightning",
    "trainer": "transformers",
    "prepared": "accelerate",
    "monai_loader": "monai",
    "monai_threads": "monai",
    "graphs": "torch_geometric",
    "neighbors": "torch_geometric",
    "timm_loader": "timm",
    "lit": "litdata",
    "mosaic": "streaming",
    "speech": "lhotse",
    "nodes_made": "torchdata",
    "spdl_loader": "spdl",
    "ray_batches": "ray",
}
"""Loaders of real packages, by what has to be installed."""
AS_THEY_ARE = ("nodes_made", "spdl_loader", "ray_batches")
"""Those of which nothing can be set: none is advised either."""
DRAWN = 30
"""Loaders that are drawn at random."""
GOAL, WORST = 0.05, 0.15
SURE = 0.02
"""Standard error of the loop by hand, as a share of its rate, from which a cell counts."""
_HELD, _NARROW, _NARROW_RATIO = 0.9, 0.8, 1.5
_NEAR_GAIN = (0.8, 1.25)
_LIMIT_S = 60.0
_PROGRAM = Path(__file__).with_name("differential_loop.py")
_SAID = ("PyTorch's default", "present settings", "num_workers=0 is enough", "Too little is known")
_PICK_FIRST = re.compile(r" as fast as num_workers=0, | as fast as the present | is cheaper and ")

Settings = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """How long it all takes.

    Attributes:
        budget_s: Of each sweep, beside what its imports take.
        seconds: Of each loop by hand.
        rounds: Loops of each configuration at least.
        most: At most, where they don't agree.
        sweeps: At most, where the first are not near the loop by hand: cores that change their
            speed can hold one state for a whole sweep, so all of them count, by the median.
        whole: Whether each loop goes over whole epochs, as packages' loaders have short ones.
    """

    budget_s: float = 8.0
    seconds: float = 0.8
    rounds: int = 3
    most: int = 8
    sweeps: int = 3
    whole: bool = False


OF_PACKAGES = Design(budget_s=6.0, seconds=0.7, rounds=2, most=10, sweeps=1, whole=True)
QUICK = Design(budget_s=5.0, seconds=0.3, rounds=2, most=2, sweeps=1)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """What is measured.

    Attributes:
        name: In the table.
        kind: ``written``, ``drawn`` or ``ecosystem``.
        function: In its file.
        workers: That are tried beside none; 0 where the loader is taken as it is.
        prefetch: Batches sent ahead to each.
        text: Of its file; empty for those of ``differential_targets.py``.
        wrong: Whether its data is wrong with workers, so that there is no rate.
    """

    name: str
    kind: str
    function: str
    workers: int = 2
    prefetch: int = 2
    text: str = ""
    wrong: bool = False


@dataclasses.dataclass(slots=True, kw_only=True)
class Cell:
    """One configuration of a loader.

    Attributes:
        settings: Arguments of DataLoader.
        dlprof: Samples per second of dlprof's trials, at the steady rate.
        over_epochs: Of those that cover whole epochs.
        answers: Of the loop by hand.
    """

    settings: Settings
    dlprof: list[float] = dataclasses.field(default_factory=list)
    over_epochs: list[float] = dataclasses.field(default_factory=list)
    answers: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def plain(self, *, whole: bool) -> list[float]:
        """Rates of the loop by hand, of whole epochs or of steady stretches."""
        rates = (answer.get("whole" if whole else "steady") for answer in self.answers)
        return [rate for rate in rates if rate is not None]

    @property
    def whole(self) -> bool:
        """Whether all that dlprof measured covers whole epochs."""
        return bool(self.over_epochs) and not self.dlprof

    @property
    def ratio(self) -> float | None:
        """The median of dlprof over that by hand; ``None`` where that isn't known well enough."""
        found = []
        for whole, rates in ((False, self.dlprof), (True, self.over_epochs)):
            plain = self.plain(whole=whole)
            if rates and plain and standard_error(plain) <= SURE:
                found += [rate / statistics.median(plain) for rate in rates]
        return statistics.median(found) if found else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a recommendation says of two configurations.

    Attributes:
        one: The settings that are so many times as fast.
        two: As these.
        value: How many times.
        low: Lower end of its interval.
        high: Upper end.
        steady: Whether it is one of steady rates, not of whole epochs.
    """

    one: Settings
    two: Settings
    value: float
    low: float | None
    high: float | None
    steady: bool = False

    @property
    def narrow(self) -> bool:
        """Whether the interval says something."""
        return bool(self.low and self.high and self.high / self.low <= _NARROW_RATIO)


@dataclasses.dataclass(slots=True, kw_only=True)
class Outcome:
    """One loader.

    Attributes:
        loader: Its name.
        kind: Its kind.
        cells: Its configurations.
        promise: Of the recommendation; ``None`` where it compares nothing.
        profiled: Of a profile's first finding that settings fix; ``None`` where none does.
        pick: The recommended settings.
        wrong: Whether settings with which its data is wrong have a rate or are recommended.
        error: What failed.
        took_s: Seconds for all of it.
        sweeps: How many of them there were.
        epsilon: What the pick may lose against the best, as the first sweep certifies it.
    """

    loader: str
    kind: str
    cells: list[Cell] = dataclasses.field(default_factory=list)
    promise: Promise | None = None
    profiled: Promise | None = None
    pick: Settings | None = None
    wrong: bool = False
    error: str = ""
    took_s: float = 0.0
    sweeps: int = 1
    epsilon: float | None = None

    @property
    def ratios(self) -> list[float]:
        """Of the cells that show it."""
        return [cell.ratio for cell in self.cells if cell.ratio is not None]

    @property
    def near(self) -> bool:
        """Whether they agree with the loop by hand, as far as they show it."""
        return not self.ratios or abs(statistics.median(self.ratios) - 1) <= GOAL

    @property
    def far(self) -> bool:
        """Whether one of them is far from it."""
        return any(abs(ratio - 1) > WORST for ratio in self.ratios)

    @property
    def promises(self) -> list[Promise]:
        """All that was promised."""
        return [each for each in (self.promise, self.profiled) if each is not None]

    @property
    def true(self) -> tuple[float, float] | None:
        """The gain that the recommendation promises as the loop by hand has it."""
        return None if self.promise is None else self.true_of(self.promise)

    def true_of(self, promise: Promise) -> tuple[float, float] | None:
        """A promised gain as the loop by hand has it, with its standard error."""
        one, two = (self.cell(each) for each in (promise.one, promise.two))
        # Recommendations weigh whole epochs wherever epochs end.
        whole = bool(one.plain(whole=True) and two.plain(whole=True))
        if promise.steady and one.plain(whole=False) and two.plain(whole=False):
            whole = False
        elif not whole and any(each.get("ends") for each in [*one.answers, *two.answers]):
            return None  # epochs take longer than a loop by hand
        sides = [cell.plain(whole=whole) for cell in (one, two)]
        errors = [standard_error(side) for side in sides]
        if not all(sides) or max(errors) > SURE:
            return None
        return statistics.median(sides[0]) / statistics.median(sides[1]), math.hypot(*errors)

    @property
    def held(self) -> bool | None:
        """Whether the true gain lies in the promised interval, by what is known of it."""
        true, promise = self.true, self.promise
        if true is None or promise is None or not promise.low or not promise.high:
            return None
        gain, error = true
        return promise.low * (1 - 2 * error) <= gain <= promise.high * (1 + 2 * error)

    @property
    def certified(self) -> bool | None:
        """Whether the pick loses no more than was certified, by what is known of it."""
        if self.epsilon is None or self.pick is None:
            return None
        pick, others = self.cell(self.pick), [c for c in self.cells if c.settings != self.pick]
        found = []
        for whole in (True, False):
            mine = pick.plain(whole=whole)
            for sides in ((each.plain(whole=whole), mine) for each in others):
                error = math.hypot(*(standard_error(side) for side in sides))
                if error <= 2 * SURE:
                    lead = statistics.median(sides[0]) / statistics.median(mine)
                    found.append(1 - 1 / lead - 2 * error <= self.epsilon)
            if found:  # recommendations weigh whole epochs wherever epochs end
                break
        return all(found) if found else None

    def cell(self, settings: Settings) -> Cell:
        """The cell of some settings; makes one where there is none."""
        for cell in self.cells:
            if cell.settings == settings:
                return cell
        self.cells.append(Cell(settings=settings))
        return self.cells[-1]


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean over the mean; infinite of fewer than two values."""
    if len(values) < 2:
        return math.inf
    return statistics.stdev(values) / math.sqrt(len(values)) / statistics.fmean(values)


def settings_of(config: Mapping[str, Any]) -> Settings:
    """The arguments of DataLoader that a person would write down for a configuration.

    The start method is the loader's own, which the loop by hand has from the loader itself.
    """
    workers = config["num_workers"]
    settings: Settings = {"num_workers": workers}
    if workers:
        settings["prefetch_factor"] = config["prefetch_factor"] or 2
        if config["persistent_workers"]:
            settings["persistent_workers"] = True
        if not config["in_order"]:
            settings["in_order"] = False
    return settings


def promise_of(found: Mapping[str, Any]) -> Promise | None:
    """What a sweep's JSON promises over the present settings, or over PyTorch's default."""
    recommendation = found.get("recommendation")
    if recommendation is None:
        return None
    pick = settings_of(recommendation["config"])
    configs = {trial["id"]: settings_of(trial["config"]) for trial in found["trials"]}
    for reason in recommendation["reasons"]:
        ratio = reason["evidence"].get("ratio")
        if ratio is None or not any(words in reason["claim"] for words in _SAID):
            continue
        sides = [configs[name] for name in reason["evidence"]["trials"] if name in configs]
        other = next((each for each in sides if each != pick), None)
        if other is None or pick not in sides:
            continue
        first = _PICK_FIRST.search(reason["claim"]) is not None
        one, two = (pick, other) if first else (other, pick)
        return Promise(one=one, two=two, **{end: ratio[end] for end in ("value", "low", "high")})
    return None


def promise_of_profile(found: Mapping[str, Any]) -> Promise | None:
    """What the first finding that settings of the loader fix promises, in a profile's JSON."""
    config = found["config"]
    whole = {trial["id"] for trial in found["trials"] if trial["whole_epochs"]}
    for finding in found["findings"]:
        changed = (finding["fix"] or {}).get("dataloader_kwargs") or {}
        gain, tried = finding["predicted_gain"], finding["evidence"].get("gain_trials") or ()
        one, two = settings_of({**config, **changed}), settings_of(config)
        if gain is not None and one != two:
            ends = {end: gain[end] for end in ("value", "low", "high")}
            return Promise(one=one, two=two, **ends, steady=whole.isdisjoint(tried))
    return None


class ByHand:
    """The loop by hand over one loader.

    Args:
        path: Its file.
        function: In that file.
        environ: Added to the environment.
    """

    def __init__(self, path: Path, function: str, environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(_PROGRAM), str(path), function],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **environ},
            start_new_session=True,
        )

    def ask(self, settings: Settings, seconds: float, *, whole: bool = False) -> dict[str, Any]:
        """One loop, over whole epochs only if asked for.

        Raises:
            CommandError: It failed, or did not end.
        """
        stdin, stdout = cast(Any, self._process.stdin), cast(Any, self._process.stdout)
        timer = threading.Timer(_LIMIT_S, self.kill)
        timer.start()
        try:
            request = {"settings": settings, "seconds": seconds, "whole": whole}
            print(json.dumps(request), file=stdin, flush=True)
            line = stdout.readline()
        finally:
            timer.cancel()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "it gave no answer"}
        if "error" in answer:
            raise CommandError(f"the loop by hand with {settings}: {answer['error']}")
        return answer

    def kill(self) -> None:
        """End it and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)

    def close(self) -> None:
        """Let it end by itself, which it does at once."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=5)
        self.kill()
        self._process.wait()


def said(
    command: str,
    loader: Loader,
    path: Path,
    environ: Mapping[str, str],
    budget_s: float,
) -> Any:
    """What ``dlprof sweep`` or ``dlprof profile`` says of a loader, as JSON.

    Raises:
        CommandError: It failed.
    """
    tried = ("--num-workers", f"0,{loader.workers}", "--prefetch-factor", str(loader.prefetch))
    with tempfile.TemporaryDirectory(prefix="dlprof-benchmark-") as folder:
        flags = [
            *(tried if loader.workers and command == "sweep" else ()),
            *("--budget", f"{budget_s:g}s", "-o", f"{folder}/run.dlprof.jsonl", "--json", "-q"),
        ]
        target = f"{path}:{loader.function}"
        done = run_command([*DLPROF, command, target, *flags], environ=environ)
    return json.loads(done.stdout)


def measure(
    loader: Loader,
    path: Path,
    environ: Mapping[str, str],
    design: Design,
    before: Outcome | None = None,
) -> Outcome:
    """One loader: by hand, by dlprof, and by hand until that is known.

    Args:
        loader: Which.
        path: Its file.
        environ: Added to the environment.
        design: How long it takes.
        before: What was measured of it already, to which this is added.
    """
    outcome, began_s = before or Outcome(loader=loader.name, kind=loader.kind), time.monotonic()
    rng = random.Random(loader.name)
    with contextlib.closing(ByHand(path, loader.function, environ)) as by_hand:
        try:
            outcome.cell({"num_workers": 0})
            outcome.sweeps += before is not None
            if loader.workers and not loader.wrong:
                outcome.cell({"num_workers": loader.workers, "prefetch_factor": loader.prefetch})
            by_hand.ask(outcome.cells[0].settings, 0.0)
            import_s = time.monotonic() - began_s
            _round(outcome.cells, by_hand, design, rng)
            # A sweep's budget counts its imports, and some packages take seconds.
            budget_s = design.budget_s + 3 * import_s
            add_sweep(outcome, loader, said("sweep", loader, path, environ, budget_s))
            if loader.kind == "ecosystem" and loader.workers:
                profile = said("profile", loader, path, environ, 4 * design.budget_s + 3 * import_s)
                outcome.profiled = promise_of_profile(profile)
                for promise in outcome.promises:
                    outcome.cell(promise.one)
                    outcome.cell(promise.two)
            _until_known(outcome, by_hand, design, rng)
            while outcome.sweeps < design.sweeps and (outcome.far or not outcome.near):
                outcome.sweeps += 1
                add_sweep(outcome, loader, said("sweep", loader, path, environ, budget_s))
                _round(outcome.cells, by_hand, design, rng)
                _until_known(outcome, by_hand, design, rng)
            _promised(outcome, by_hand, design)
        except CommandError as error:
            outcome.error = str(error)[-300:]
    outcome.took_s += time.monotonic() - began_s
    return outcome


def _promised(outcome: Outcome, by_hand: ByHand, design: Design) -> None:
    """Loop over whole epochs of what the promises compare, where no loop has seen such.

    An endless loader is left after one.
    """
    cells = [outcome.cell(each) for made in outcome.promises for each in (made.one, made.two)]
    for _ in range(design.rounds):
        for cell in cells:
            if len(cell.plain(whole=True)) < design.rounds:
                answer = by_hand.ask(cell.settings, design.seconds, whole=True)
                if answer["whole"] is None:
                    return
                cell.answers.append({**answer, "steady": None})


def _until_known(outcome: Outcome, by_hand: ByHand, design: Design, rng: random.Random) -> None:
    """Loop until all cells are known, or as often as may be."""
    for _ in range(1, design.most):
        unsure = [each for each in outcome.cells if not is_known(each, design.rounds)]
        if not unsure:
            break
        _round(unsure, by_hand, design, rng)


def _round(cells: Sequence[Cell], by_hand: ByHand, design: Design, rng: random.Random) -> None:
    for cell in rng.sample(list(cells), len(cells)):
        cell.answers.append(by_hand.ask(cell.settings, design.seconds, whole=design.whole))


def is_known(cell: Cell, rounds: int) -> bool:
    """Whether a cell was looped over often enough."""
    both = [cell.plain(whole=whole) for whole in (cell.whole, True)]
    errors = [standard_error(rates) for rates in both if rates]
    return len(cell.answers) >= rounds and bool(errors) and max(errors) <= SURE


def add_sweep(outcome: Outcome, loader: Loader, found: Mapping[str, Any]) -> None:
    """Add what a sweep measured of the cells, and of what it recommends and compares that with.

    The first recommendation is the one that is judged.
    """
    recommendation, promise = found.get("recommendation"), outcome.promise or promise_of(found)
    if recommendation is not None and outcome.pick is None:
        outcome.pick = settings_of(recommendation["config"])
        outcome.epsilon = (recommendation["certificate"] or {}).get("epsilon")
    rated = [
        (settings_of(trial["config"]), trial)
        for trial in found["trials"]
        if trial["purpose"] == "measure" and trial["samples_per_s"] is not None
    ]
    if loader.wrong:
        outcome.wrong = any(settings["num_workers"] > 1 for settings, _ in rated)
        rated = [each for each in rated if not each[0]["num_workers"]]
        promise = None
    outcome.promise = promise
    asked = [cell.settings for cell in outcome.cells]
    asked += [promise.one, promise.two] if promise is not None else []
    asked += [outcome.pick] if outcome.pick is not None and not loader.wrong else []
    for settings, trial in rated:
        if settings in asked:
            cell = outcome.cell(settings)
            rates = cell.over_epochs if trial["whole_epochs"] else cell.dlprof
            rates.append(trial["samples_per_s"]["value"])


def loaders(drawn: int) -> list[Loader]:
    """All of them, written and drawn ones by turns."""
    written = [
        Loader(
            name=name,
            kind="written",
            function=name,
            wrong=name in differential_targets.WRONG_WITH_WORKERS,
        )
        for name in differential_targets.LOADERS
    ]
    made = [_drawn(seed) for seed in range(drawn)]
    every = max(1, len(written) // max(1, len(made)))
    mixed: list[Loader] = []
    while written or made:
        mixed += [*written[:every], *made[:1]]
        del written[:every], made[:1]
    return mixed


def _drawn(seed: int) -> Loader:
    drawn = drawn_loaders.draw(random.Random(seed))
    cost = "computes" if drawn.computes else f"{1000 * drawn.sample_s:g} ms"
    details = [drawn.kind, cost, f"{drawn.length:,} by {drawn.batch_size}"]
    details += [each for each in (drawn.sampler, drawn.collate) if each not in ("order", "default")]
    return Loader(
        name=f"drawn {seed}: {', '.join(details)}",
        kind="drawn",
        function="make_loader",
        workers=drawn.workers,
        prefetch=drawn.prefetch,
        text=drawn_loaders.module_text(drawn),
    )


@contextlib.contextmanager
def files(made: Sequence[Loader]) -> Iterator[dict[str, Path]]:
    """The loaders' files, and the data that they read, under ``DIFFERENTIAL_DATA``."""
    with tempfile.TemporaryDirectory(prefix="dlprof-benchmark-") as folder:
        os.environ[differential_targets.FILES] = folder
        os.environ["ECOSYSTEM_DATA"] = folder
        differential_targets.write_shards(Path(folder))
        paths = {}
        for number, loader in enumerate(made):
            own = ECOSYSTEM if loader.kind == "ecosystem" else Path(differential_targets.__file__)
            paths[loader.name] = own
            if loader.text:
                paths[loader.name] = Path(folder) / f"drawn_{number}.py"
                paths[loader.name].write_text(loader.text)
        yield paths


def ecosystem() -> list[Loader]:
    """Those of real packages, whose samples wait: four workers are worth trying on any machine."""
    workers = {name: 0 if name in AS_THEY_ARE else 4 for name in PACKAGES}
    return [
        Loader(name=name, kind="ecosystem", function=name, workers=count)
        for name, count in workers.items()
    ]


def report_of_packages(found: Sequence[Outcome], left_out: Mapping[str, str]) -> Report:
    """The table of real packages: a row for what a sweep advises, one for what a profile does."""
    rows, missing = [], []
    gains: list[float] = []
    for outcome in found:
        for command, promise in (("sweep", outcome.promise), ("profile", outcome.profiled)):
            true = outcome.true_of(promise) if promise else None
            over = promise.value / true[0] if promise and true else None
            gains += [over] if over else []
            settable = outcome.loader not in AS_THEY_ARE
            if settable and over is None:
                missing.append(f"{outcome.loader} ({command})")
            if settable or command == "sweep":
                rows.append(_row_of_package(outcome, command, promise, true, over))
    near = [_NEAR_GAIN[0] <= over <= _NEAR_GAIN[1] for over in gains]
    failed, far = [each for each in found if each.error], [each for each in found if each.far]
    close = [each for each in found if each.near and each.ratios]
    columns = ("loader", "package", "by", "advice", "promised", "true", "promised / true")
    return Report(
        name=ECOSYSTEM_NAME,
        title="The advice brings what was promised, in the loaders of real packages",
        goal=(
            "promised over true gain within "
            f"{_NEAR_GAIN[0]:g}-{_NEAR_GAIN[1]:g} for every loader that takes settings"
        ),
        passed=all(near) and not (missing or failed or left_out),
        tables=[Table("", columns, rows)],
        notes=[
            (
                f"{len(found)} loaders of {len({PACKAGES[each.loader] for each in found})} "
                f"packages. Of {len(near)} promised gains {sum(near)} are within "
                f"{_NEAR_GAIN[0]:g}-{_NEAR_GAIN[1]:g} of the true one."
            ),
            (
                f"Samples per second of the sweeps are within {GOAL:.0%} of the loop by hand in "
                f"the median for {len(close)} loaders, and beyond {WORST:.0%} in a setting of "
                f"{len(far)}."
            ),
            (
                "The true gain is that of differential_loop.py, which shares no code with dlprof: "
                "both settings by turns, set as the package's users set them; medians."
            ),
            *([f"Not known: {', '.join(missing)}."] if missing else []),
            *(f"{each.loader}: {each.error.strip()}" for each in failed),
            *(f"{name} was left out: {why}." for name, why in left_out.items()),
        ],
        data={"outcomes": [dataclasses.asdict(each) for each in found]},
    )


def _row_of_package(
    outcome: Outcome,
    command: str,
    promise: Promise | None,
    true: tuple[float, float] | None,
    over: float | None,
) -> tuple[str, ...]:
    name = outcome.loader
    nothing = "nothing can be set" if name in AS_THEY_ARE else "none by settings"
    return (
        name,
        PACKAGES[name],
        command,
        f"{_said(promise.one)}, not {_said(promise.two)}" if promise else nothing,
        _said_gain(promise),
        "-" if promise is None else "?" if true is None else f"{true[0]:.2f}",
        "-" if over is None else f"{over:.2f}",
    )


def report(found: Sequence[Outcome], left_out: Mapping[str, str]) -> Report:
    """The tables."""
    shown = [each for each in found if each.ratios]
    near = [each for each in shown if each.near]
    far = [each for each in shown if each.far]
    judged = [each for each in found if each.held is not None]
    held, narrow = (
        _share(each.held for each in judged),
        _share(each.promise is not None and each.promise.narrow for each in judged),
    )
    certified = [each.certified for each in found if each.certified is not None]
    known = [(each.promise.value, each.true[0]) for each in found if each.promise and each.true]
    gains = [_NEAR_GAIN[0] <= promised / true <= _NEAR_GAIN[1] for promised, true in known]
    wrong = [each for each in found if each.wrong]
    failed = [each for each in found if each.error]
    columns = ("loader", "settings", "dlprof / by hand", "promised", "true", "holds")
    return Report(
        name=NAME,
        title="The figure and the promise are true, on any loader",
        goal=(
            f"the median ratio of each loader within {GOAL:.0%} of 1 and none beyond {WORST:.0%}; "
            f"the recommended gain within its interval in {_HELD:.0%}, where high/low <= "
            f"{_NARROW_RATIO:g} in {_NARROW:.0%}; no rate where the data is wrong"
        ),
        passed=(
            len(near) == len(shown)
            and not (far or wrong or failed)
            and held >= _HELD
            and narrow >= _NARROW
        ),
        tables=[Table("", columns, [_row(each) for each in found])],
        notes=[
            (
                f"{len(found)} loaders, {sum(each.kind == 'drawn' for each in found)} of them "
                f"drawn. {len(shown)} can be judged: {len(near)} within {GOAL:.0%} in the median, "
                f"{len(far)} with a ratio beyond {WORST:.0%}. In {len(found) - len(shown)} nothing "
                f"could be compared; cells whose loops by hand have a standard error above "
                f"{SURE:.0%} say nothing (?)."
            ),
            (
                f"Of {len(judged)} promised gains that can be judged {held:.0%} hold, by twice "
                f"the standard error of the loops by hand, and {narrow:.0%} have high/low <= "
                f"{_NARROW_RATIO:g}."
            ),
            (
                f"Of {len(gains)} promised gains whose true one is known {_share(gains):.0%} are "
                f"within {_NEAR_GAIN[0]:g}-{_NEAR_GAIN[1]:g} of it."
            ),
            (
                f"Of {len(certified)} certificates over two or three settings that can be judged "
                f"{_share(certified):.0%} hold."
            ),
            (
                f"{len(wrong)} loaders have a rate with settings that make their data wrong, "
                f"{len(failed)} failed."
            ),
            *(f"{each.loader}: {each.error.strip()}" for each in failed),
            *(f"{name} was left out: {why}." for name, why in left_out.items()),
        ],
        data={"outcomes": [dataclasses.asdict(each) for each in found]},
    )


def _share(values: Any) -> float:
    known = [bool(value) for value in values]
    return sum(known) / len(known) if known else 0.0


def _row(outcome: Outcome) -> tuple[str, ...]:
    cells = [cell for cell in outcome.cells if cell.dlprof or cell.over_epochs]
    ratios = ["?" if cell.ratio is None else f"{cell.ratio:.3f}" for cell in cells]
    promise, true = outcome.promise, outcome.true
    return (
        outcome.loader,
        ", ".join(_short(cell.settings) + (" whole" if cell.whole else "") for cell in cells),
        ", ".join(ratios) or "-",
        _said_gain(promise),
        "?" if true is None and promise else "-" if true is None else f"{true[0]:.2f}",
        "**wrong data**" if outcome.wrong else {None: "-", True: "yes"}.get(outcome.held, "**no**"),
    )


def _said_gain(promise: Promise | None) -> str:
    if promise is None:
        return "-"
    ends = f" ({promise.low:.2f}-{promise.high:.2f})" if promise.low else ""
    return f"{promise.value:.2f}{ends}"


def _said(settings: Settings) -> str:
    """Settings as a text, without those that are PyTorch's default."""
    usual = {"prefetch_factor": 2}
    return ", ".join(f"{key}={val}" for key, val in settings.items() if usual.get(key) != val)


def _short(settings: Settings) -> str:
    rest = "p" if settings.get("persistent_workers") else ""
    return f"{settings['num_workers']}{rest}"


def earlier(path: Path) -> list[Outcome]:
    """What an earlier run kept."""
    if not path.exists():
        return []
    return [outcome_of(kept) for kept in json.loads(path.read_text())["data"]["outcomes"]]


def outcome_of(kept: Mapping[str, Any]) -> Outcome:
    """An outcome as it was kept."""
    made = {name: kept.get(name) and Promise(**kept[name]) for name in ("promise", "profiled")}
    return Outcome(**{**kept, "cells": [Cell(**cell) for cell in kept["cells"]], **made})


def main() -> None:
    """Measure and publish."""
    options: argparse.ArgumentParser = parser(__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", help="loaders, or beginnings")
    options.add_argument("--more", action="store_true", help="only what was not measured yet")
    options.add_argument("--minutes", type=float, default=45.0, help="none is begun after them")
    options.add_argument("--ecosystem", action="store_true", help="only those of real packages")
    options.add_argument("--drawn", type=int, default=DRAWN, help="loaders drawn at random")
    options.add_argument(
        "--site", type=Path, help="where the packages were put by `pip install --target SITE`"
    )
    given = options.parse_args()
    known = ecosystem() if given.ecosystem else loaders(given.drawn)
    made = [each for each in known if each.name.startswith(tuple(given.names) or "")]
    if given.quick and not given.names and not given.ecosystem:
        made = [each for each in made if each.name in ("waits", "partial_batches", "short")]
    packages = {**differential_targets.PACKAGES, **PACKAGES}
    left_out = {
        each.name: f"{packages[each.name]} is not installed"
        for each in made
        if each.name in packages and not is_there(packages[each.name], given.site)
    }
    quick = given.quick or (bool(given.names) and not given.more)
    name, made_of = (ECOSYSTEM_NAME, report_of_packages) if given.ecosystem else (NAME, report)
    before_this = earlier(RESULTS / f"{name}.json") if given.more else []
    found = {each.loader: each for each in before_this if not each.error}
    design = OF_PACKAGES if given.ecosystem else QUICK if given.quick else Design()
    before, began_s = surroundings(), time.monotonic()
    with files(made) as paths:
        for loader in made:
            kept = found.get(loader.name)
            again = kept is not None and kept.sweeps < design.sweeps and (kept.far or not kept.near)
            if loader.name in left_out or (kept is not None and not again):
                continue
            if time.monotonic() - began_s > 60 * given.minutes:
                left_out[loader.name] = "no time was left"
                continue
            path, environ = paths[loader.name], surroundings_of(given.site)
            found[loader.name] = outcome = measure(loader, path, environ, design, kept)
            took = f"{outcome.took_s:.0f} s"
            print(" | ".join(_row(outcome)), took, outcome.error, file=sys.stderr, flush=True)
            keep(made_of(list(found.values()), left_out), before, quick=quick)
    publish(made_of(list(found.values()), left_out), before, quick=quick)


if __name__ == "__main__":
    main()
