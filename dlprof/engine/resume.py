"""Going on with a run that was cut off."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Mapping

from dlprof.errors import UsageError
from dlprof.records import Machine, Plan, Run, RunHeader, Target
from dlprof.settings import SweepSettings
from dlprof.targets.grammar import BUILTINS

RESUMABLE = frozenset({"budget_s", "repeats", "timeout_s"})
"""Settings that may be changed when a run is continued: they decide how much is measured."""

_NAMES_CODE = {"target": "TARGET", "arguments": "--arg", "step_callable": "--step"}
"""Settings by which a run file could have code run; nobody but the user may name it."""


def resumed_settings(
    stored: SweepSettings, settings: SweepSettings, given: Collection[str]
) -> SweepSettings:
    """The settings to continue a run with.

    ``given`` are the fields of ``settings`` that the user named.

    Raises:
        UsageError: The user named another value for a field that a run can't change, or did not
            repeat what names code: a run file from elsewhere must not choose what is run.
    """
    for name, option in _NAMES_CODE.items():
        if name not in given and _names_code(stored, name):
            raise UsageError(
                f"The run started with {option}: give it again to continue",
                hint=f"Name the {option} that you trust: the file says "
                f"{shlex.quote(str(getattr(stored, name)))}.",
            )
    for name in sorted(set(given) - RESUMABLE):
        asked, had = getattr(settings, name), getattr(stored, name)
        if asked != had:
            raise UsageError(
                f"The run started with {name}={had!r} and can't continue with {asked!r}",
                hint="Leave the option out, or start a new run in another file.",
            )
    changes = {name: getattr(settings, name) for name in RESUMABLE & set(given)}
    return dataclasses.replace(stored, **changes)


def same_run(
    before: Run,
    settings: SweepSettings,
    machine: Machine,
    target: Target,
    versions: Mapping[str, str],
    ranks: int,
) -> RunHeader:
    """The header of the run that is continued, if what is here now is what it was begun on."""
    stored = before.header
    at_once = max((max(1, len(trial.ranks)) for trial in before.completed), default=ranks)
    for what, had, has in (
        ("machine", stored.machine.fingerprint, machine.fingerprint),
        ("torch version", stored.torch_version, versions["torch"]),
        ("dataset", stored.target.dataset, target.dataset),
        ("dataset's length", stored.target.length, target.length),
        ("number of ranks", at_once, ranks),
    ):
        if had != has:
            raise UsageError(
                f"The run can't be continued: its {what} was {had}, and is now {has}",
                hint="Start a new run in another file.",
            )
    if settings.repeats is None:
        return stored
    plan = dataclasses.replace(
        plan_of(stored),
        min_repeats=settings.repeats,
        max_repeats=settings.repeats,
        planned_repeats=settings.repeats,
        take_turns=False,
    )
    return dataclasses.replace(stored, plan=plan)


def plan_of(header: RunHeader) -> Plan:
    """What a run set out to measure.

    Raises:
        UsageError: Its file doesn't say.
    """
    if header.plan is None:
        raise UsageError(
            "The run can't be continued: its file holds no plan",
            hint="Start a new run in another file.",
        )
    return header.plan


def _names_code(settings: SweepSettings, name: str) -> bool:
    """Whether a setting makes a sweep run code that is not dlprof's own."""
    if name == "target":
        name = settings.target.partition(":")[0]
        return name not in BUILTINS or name == "dlio"  # which may make files where it says
    if name == "arguments":
        return bool(settings.arguments) and _names_code(settings, "target")
    return settings.step_callable is not None
