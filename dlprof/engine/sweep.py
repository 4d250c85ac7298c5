"""The order of a sweep: prepare, build, probe, plan, measure trial after trial, recommend."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path

from dlprof.engine.deadline import Deadline
from dlprof.engine.listener import SweepListener
from dlprof.engine.opening import opened_bench
from dlprof.engine.preparation import look_at, new_header, plan_sweep
from dlprof.engine.resume import plan_of, refuse_force, resumed_settings, same_run
from dlprof.engine.sweeping import Sweep
from dlprof.engine.workplace import check_folder
from dlprof.machine import inspect_machine
from dlprof.records import Run
from dlprof.search.space import refuse_budget
from dlprof.settings import SweepSettings, settings_from_json
from dlprof.store import RunWriter, check_output, read_run

_NO_ROOM = "The budget is too short for the model, so configurations are measured directly"


def run_sweep(
    settings: SweepSettings,
    *,
    output: Path,
    listener: SweepListener,
    resume: bool = False,
    force: bool = False,
    given: Collection[str] = (),
    pickled: bytes | None = None,
    began_s: float | None = None,
) -> Run:
    """Measure what the settings ask for and recommend from it.

    Args:
        settings: What to measure.
        output: The run file.
        listener: Told of the progress.
        resume: Continue the run in ``output`` under the settings that it was begun with.
        force: Replace ``output`` if it exists.
        given: Fields of ``settings`` that the user named; matters for ``resume`` only.
        pickled: A live object to load instead of ``settings.target`` (Python API).
        began_s: When the program began whose budget this is, by ``time.monotonic``; ``None`` for
            now.

    Returns:
        The run as it stands in the file. ``end.reason`` is ``interrupted`` after Ctrl-C.

    Raises:
        DlprofError: Nothing could be measured, or an input can't be used.
    """
    deadline = Deadline.since(began_s, settings.budget_s)
    before: Run | None = None
    if resume:
        refuse_force(force=force)
        before = read_run(output)
        settings = resumed_settings(settings_from_json(before.header.settings), settings, given)
    else:
        check_output(output, force=force)
        check_folder(output.parent)
        refuse_budget(settings)
    deadline = dataclasses.replace(deadline, budget_s=settings.budget_s)
    with opened_bench(settings, listener, pickled=pickled) as bench:
        machine = inspect_machine()
        outlook = look_at(bench, settings, machine, deadline)
        if before is None:
            gone_s = settings.budget_s - deadline.left_s
            plan, no_room = plan_sweep(settings, machine, outlook, bench, gone_s)
            left_out = (*outlook.space.left_out, *no_room)
            header = new_header(settings, machine, outlook, bench, plan=plan, left_out=left_out)
            writer = RunWriter.create(output, header, force=force)
        else:
            header = same_run(before.header, settings, machine, outlook.target, bench.versions)
            writer = RunWriter.resume(output)
        with writer:
            plan = plan_of(header)
            wanted = bool(outlook.cells) or settings.search == "model"
            if wanted and plan.search != "model":
                listener.message(_NO_ROOM)
            listener.planned(header, plan.configs, settings.repeats)
            sweep = Sweep(
                header=header,
                settings=settings,
                plan=plan,
                bench=bench,
                writer=writer,
                listener=listener,
                deadline=deadline,
                before=before,
                earlier_s=_spent_s(before),
                faults=outlook.faults,
            )
            run = sweep.run()
    listener.ended(run)
    return run


def _spent_s(before: Run | None) -> float:
    """What earlier sessions of a run have taken, as far as its file tells."""
    if before is None:
        return 0.0
    in_trials = sum(trial.wall_s for trial in before.trials)
    return in_trials if before.end is None else max(in_trials, before.end.cost_s.total)
