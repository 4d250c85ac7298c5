"""A check against stored history: one side alone, held against earlier runs on such a machine."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dlprof.engine.checking.compared import CheckListener, CheckSettings, SidePlan, working_tree
from dlprof.engine.checking.git import find_git, remove_abandoned
from dlprof.engine.checking.sides import Sides, open_sides
from dlprof.engine.trials import now
from dlprof.errors import NothingMeasuredError
from dlprof.files import folder_lock, read_text, replace_file, write_fault
from dlprof.gate.baseline import (
    add_entry,
    baseline_key,
    comparable,
    figures_of,
    parse_baseline,
    shortage,
)
from dlprof.gate.plan import make_plan
from dlprof.gate.verdict import checked_baseline, make_check
from dlprof.records import Target
from dlprof.records.gate import (
    BaselineEntry,
    BaselineKey,
    BaselineRule,
    Block,
    CheckReport,
    Compared,
)
from dlprof.units import counted

_MOST_BYTES = 16 * 1024 * 1024  # no baseline is longer: tens of thousands of entries


def read_baseline(path: Path) -> list[BaselineEntry]:
    """The entries of a baseline; none of a file that isn't there yet."""
    return parse_baseline(_text(path), str(path))


def record_entry(path: Path, entry: BaselineEntry) -> int:
    """Add a run to a baseline, which is created where it doesn't exist.

    Two that record at the same time wait for each other, so that neither loses its run.

    Returns:
        How many runs of the file, this one among them, later runs like it are compared with.
    """
    path = path.resolve()
    try:
        with folder_lock(path.parent):
            text = add_entry(_text(path), entry, str(path))
            replace_file(path, text.encode())
    except OSError as error:
        raise write_fault(path, error) from None
    return len(comparable(parse_baseline(text, str(path)), entry.key))


def _text(path: Path) -> str:
    """What the file holds; nothing where there is none."""
    hint = "Give the path of a baseline that dlprof baseline update wrote."
    return read_text(path, "a baseline", most=_MOST_BYTES, hint=hint, missing="")


LOAD_BLOCKS = 40  # blocks of loading in a run: their median spreads by far less than runs do


def check_baseline(
    settings: CheckSettings,
    path: Path,
    *,
    listener: CheckListener,
    cwd: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> CheckReport:
    """Check the working directory against the history in a file."""
    began_s, history = clock(), read_baseline(path)
    if not path.exists():
        listener.message(f"there is no baseline {path} yet, so nothing to compare this run with")
    rule = BaselineRule(threshold=settings.fail_above, confidence=settings.confidence)

    def built(key: BaselineKey) -> None:  # before the budget is spent: not after it
        if path.exists() and (why := shortage(history, key, rule)):
            listener.message(f"{why}; this run can't be judged, only recorded")

    entry, measured = measure_run(settings, listener=listener, cwd=cwd, clock=clock, built=built)
    target = checked_baseline(settings.sweep.target, entry, history, rule)
    runs = counted(len(comparable(history, entry.key)), "comparable run")
    base = Compared(name=str(path), note=runs if path.exists() else "there is no such file")
    return make_check(
        dataclasses.replace(target, measured_s=clock() - began_s),
        base=base,
        override=settings.override,
        warn_only=settings.warn_only,
        **measured,
    )


def measure_run(
    settings: CheckSettings,
    *,
    listener: CheckListener,
    cwd: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
    built: Callable[[BaselineKey], None] = lambda _: None,
) -> tuple[BaselineEntry, dict[str, Any]]:
    """Measure the working directory alone; ``built`` is called before it is, with the run's key.

    Returns:
        The run as a baseline keeps it; what was measured, when, by what and on what, as fields of
        a check's record.
    """
    began_s, started_at = clock(), now()
    plan = lone_side(settings, (cwd or Path.cwd()).resolve())
    with open_sides([plan], settings, listener) as sides:
        built(_key(sides))
        figures = _figures(sides, lambda: clock() - began_s)
    entry = recordable(plan, sides, started_at=started_at, figures=figures)
    return entry, {"change": plan.compared, **sides.provenance(started_at)}


def recordable(
    plan: SidePlan, sides: Sides, *, started_at: str, figures: Mapping[str, float]
) -> BaselineEntry:
    """The change as a baseline keeps it, whatever else was measured beside it."""
    return BaselineEntry(
        key=_key(sides),
        recorded_at=started_at,
        commit="" if plan.compared.note else plan.compared.commit,
        figures=dict(figures),
    )


def _key(sides: Sides) -> BaselineKey:
    """What the change's run can be compared with."""
    built, asked = sides.built["change"], sides.settings.sweep
    # TARGET with its arguments, in one order.
    arguments = (f"{key}={value}" for key, value in sorted(asked.arguments.items()))
    return baseline_key(
        sides.machine,
        target=" ".join((asked.target, *arguments)),
        python=built.versions["python"],
        torch=built.versions["torch"],
        config=sides.configs["change"],
        data=data_fingerprint(built.target, sides.epochs),
    )


def lone_side(settings: CheckSettings, cwd: Path) -> SidePlan:
    """The working directory as the one side that is measured, in a git repository or not."""
    remove_abandoned(cwd)
    return working_tree(settings.sweep, cwd, find_git(cwd))


def data_fingerprint(target: Target, epochs: int = 1) -> str:
    """What must be the same of the data for figures to be comparable, as eight characters.

    Kind, class and size of the dataset and of its batches: the samples themselves would have to
    be read to know more. And in how many epochs a block loads them, where they are more than one.
    """
    parts: tuple[object, ...] = (target.kind, target.dataset, target.length, target.batch_size)
    parts += (epochs,) if epochs > 1 else ()
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


def _figures(sides: Sides, elapsed_s: Callable[[], float]) -> dict[str, float]:
    """The figures of a run: starts first, then as many blocks as there is time for."""
    budget_s = sides.settings.sweep.budget_s
    blocks: list[Block] = []
    # Of the budget: starts that take more are left out, since nothing is judged by them.
    starts = 3
    if starts * sides.start_s <= 0.2 * (budget_s - elapsed_s()):
        blocks += sides.blocks("B" * starts, "start")
    loaded = 0
    while loaded < LOAD_BLOCKS and (loaded < 5 or elapsed_s() + sides.block_s <= budget_s):
        sides.refuse_failing()
        blocks += sides.blocks("B", "load")
        loaded += 1
    sides.refuse_failing()
    figures = figures_of(make_plan(), blocks)
    if "service.mean" not in figures:
        raise too_quick()
    return figures


def too_quick() -> NothingMeasuredError:
    """What to say of a target whose blocks have no length."""
    return NothingMeasuredError(
        "The blocks took less time than the clock can resolve",
        hint="Choose a target that does more.",
    )
