"""Settings per machine: saving them in a file, and finding them again in a training script.

A file's values go into ``DataLoader(...)``, so it is read strictly: only known keys with values of
the right type pass. It is written for people.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlprof.errors import FileError, UsageError, refuse_newer
from dlprof.files import folder_lock, is_there, replace_file, write_fault
from dlprof.records import START_METHODS, Machine, Recommendation
from dlprof.tomlfile import (
    SWITCH,
    TABLE,
    TEXT,
    Rule,
    check_table,
    number_rule,
    read_toml,
    read_toml_text,
    toml_key,
    whole_rule,
)

VERSION = 1  # of the file's format

_NEW = f"""\
# Settings for torch.utils.data.DataLoader, one entry for each machine and target.
# Written by: dlprof recommend RUN --save FILE
# Used by:    DataLoader(dataset, **dlprof.kwargs_for("FILE"))

version = {VERSION}
"""


_NUMBER = number_rule()
_COUNT = whole_rule(1, 1_000_000_000)

KWARGS: Mapping[str, Rule] = {
    "num_workers": whole_rule(0, 4096),
    "prefetch_factor": _COUNT,
    "pin_memory": SWITCH,
    "persistent_workers": SWITCH,
    "in_order": SWITCH,
    "batch_size": _COUNT,
    "multiprocessing_context": Rule(
        " or ".join(START_METHODS), lambda value: value in START_METHODS
    ),
}
_OF_WORKERS = ("prefetch_factor", "multiprocessing_context", "persistent_workers")
_ABOUT_ENTRY: Mapping[str, Rule] = {
    "saved_at": TEXT,
    "confidence": TEXT,
    "ranks": _COUNT,
    "sharing_strategy": TEXT,
    "worker_threads": _COUNT,
    "expected": Rule(
        "a table of numbers",
        lambda value: isinstance(value, Mapping) and all(map(_NUMBER.holds, value.values())),
    ),
}
_ABOUT_MACHINE: Mapping[str, Rule] = {"hostname": TEXT, "cpu": TEXT, "usable_cores": _NUMBER}


def read_document(path: Path) -> dict[str, dict[str, Any]]:
    """The machines of a settings file, under their fingerprints.

    Each is a table as it is written: what says to people which machine it is, and in ``target`` the
    tables of its targets, under TARGET as the user wrote it.
    """
    content = read_toml(path)
    check = functools.partial(
        check_table,
        place=str(path),
        hint="Correct the file, or remove it and save the settings again.",
    )
    version = content.pop("version", VERSION)
    check({"version": version}, {"version": _COUNT})
    refuse_newer(path, version, VERSION)
    check(content, {"machine": TABLE})
    machines: dict[str, dict[str, Any]] = content.get("machine", {})
    check(machines, dict.fromkeys(machines, TABLE), within="machine")
    for fingerprint, table in machines.items():
        where = f"machine.{toml_key(fingerprint)}"
        check(table, {**_ABOUT_MACHINE, "target": TABLE}, within=where)
        targets = table.get("target", {})
        check(targets, dict.fromkeys(targets, TABLE), within=f"{where}.target")
        for spec, entry in targets.items():
            place = f"{where}.target.{toml_key(spec)}"
            check(entry, {**KWARGS, **_ABOUT_ENTRY}, within=place, needed=("num_workers",))
            idle = [name for name in _OF_WORKERS if entry["num_workers"] == 0 and entry.get(name)]
            if idle:
                raise FileError(
                    f"{path}: {place}.{idle[0]} needs a num_workers above 0",
                    hint="Remove it, or raise num_workers.",
                )
    return machines


def kwargs_in(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``DataLoader`` in a target's table."""
    return {key: value for key, value in entry.items() if key in KWARGS}


def save_settings(
    path: Path,
    machine: Machine,
    recommendation: Recommendation,
    target_spec: str,
    *,
    when: str,
    notes: Sequence[str] = (),
) -> None:
    """Keep a recommendation under a machine's fingerprint; all else in the file stays.

    Two processes may save at once. The file, made where there is none, is replaced in one step, so
    that a script which reads it at the same time sees the old file or the new one. A machine keeps
    one entry for each TARGET; ``when`` it was measured is ISO 8601, and ``notes`` on the settings
    are comments at their head.
    """
    _write(path, machine, target_spec, _entry(recommendation, when), notes)


def save_kwargs(
    path: Path, machine: Machine, target_spec: str, kwargs: Mapping[str, Any], *, when: str
) -> None:
    """Keep arguments of ``DataLoader`` that no run recommends; as :func:`save_settings`."""
    _write(path, machine, target_spec, {**kwargs, "saved_at": when}, ())


def saved_kwargs(path: Path, machine: Machine, target_spec: str) -> dict[str, Any]:
    """The arguments that were saved for a target on a machine; empty where there are none."""
    machines = read_document(path) if is_there(path) else {}
    targets = machines.get(machine.fingerprint, {}).get("target", {})
    return kwargs_in(targets.get(target_spec, {}))


def _write(
    path: Path, machine: Machine, spec: str, entry: Mapping[str, Any], notes: Sequence[str]
) -> None:
    # It takes longer to load than all that training scripts need of this module.
    from dlprof.tomledit import revised_toml

    # Through a symbolic link to the file that it names.
    path = Path(os.path.realpath(path))
    try:
        with folder_lock(path.parent):
            machines = read_document(path) if path.exists() else {}
            known = machines.get(machine.fingerprint, {})
            machines[machine.fingerprint] = {
                "hostname": machine.hostname,
                "cpu": machine.cpu_model,
                "usable_cores": float(machine.usable_cores),
                "target": {**known.get("target", {}), spec: entry},
            }
            place = ("machine", machine.fingerprint, "target", spec)
            try:
                revised = revised_toml(
                    read_toml_text(path) if path.exists() else _NEW,
                    {"version": VERSION, "machine": machines},
                    {place: notes},
                )
            except ValueError:
                raise FileError(
                    f"{path} is laid out in a way that dlprof can't add to without losing some of "
                    "it",
                    hint="Give each table its own [header] once, or save to another file.",
                ) from None
            replace_file(path, revised.encode())
    except OSError as error:
        raise write_fault(path, error) from None


def _entry(recommendation: Recommendation, when: str) -> dict[str, Any]:
    kwargs = dict(recommendation.dataloader_kwargs)
    for key, value in kwargs.items():
        if key not in KWARGS or not KWARGS[key].holds(value):
            raise UsageError(
                f"The recommendation's {key} = {value!r} can't be saved",
                hint="Make the recommendation again from the run file.",
            )
    expected = recommendation.expected
    figures: dict[str, float | None] = {"samples_per_s": expected.samples_per_s.value}
    for name in ("wait_fraction", "startup_s", "pss_bytes", "shm_bytes"):
        figures[name] = getattr(expected, name)
    about = {
        "saved_at": when,
        "confidence": recommendation.confidence,
        "ranks": recommendation.constraints.ranks,
        "sharing_strategy": recommendation.config.sharing_strategy,
        "worker_threads": recommendation.config.worker_threads,
        "expected": {  # in as many digits as people compare
            name: figure if isinstance(figure, int) else float(f"{figure:.4g}")
            for name, figure in figures.items()
            if figure is not None
        },
    }
    return kwargs | {key: value for key, value in about.items() if value is not None}


def kwargs_for(
    path: Path | str,
    *,
    machine: Machine | None = None,
    target: str | None = None,
    warn: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """The DataLoader arguments that were saved for this machine.

    Use it as ``DataLoader(dataset, **dlprof.kwargs_for("dlprof.toml"))``: one file serves all
    machines. Where nothing was saved for this machine and target, a warning says so and the
    result is a safe default: 4 workers, fewer on fewer cores (of several ranks, on each one's share
    of them), and 0 on a single core or where shared memory is too small for workers, as in a Docker
    container without ``--shm-size``.

    Args:
        path: The settings file.
        machine: Whose settings; ``None`` is this machine.
        target: TARGET as it was given to ``dlprof sweep``; ``None`` takes the machine's only
            entry, and where there are several, the one that was measured last, with a warning.
        warn: Takes the warning; ``None`` is ``warnings.warn``.

    Returns:
        Arguments for ``torch.utils.data.DataLoader``, a new dict on each call.

    Raises:
        FileError: If the file can't be read or is no settings file.
    """
    machines = read_document(Path(path))
    if machine is None:
        # A script that gives the machine itself need not load what looks at it.
        from dlprof.machine import inspect_machine

        machine = inspect_machine()
    targets = machines.get(machine.fingerprint, {}).get("target", {})
    targets = targets or _of_all_ranks(machines, machine)
    kwargs, warning = _choose(targets, machine, target, path)
    if warning and warn is not None:
        warn(warning)
    elif warning:
        warnings.warn(warning, stacklevel=2)
    return kwargs


def _of_all_ranks(machines: Mapping[str, Any], machine: Machine) -> Mapping[str, Any]:
    """What was measured by several ranks on the cores of all, where this is one on its share.

    So srun binds a job's tasks, and what it gives to one of them has a fingerprint of its own.
    """
    from dlprof.machine.inspection import fingerprint

    for key, table in machines.items():
        cores = table.get("usable_cores", 0.0)
        shared = {
            spec: entry
            for spec, entry in table.get("target", {}).items()
            if entry.get("ranks", 1) > 1 and entry["ranks"] * machine.usable_cores == cores
        }
        if shared and key == fingerprint(
            cpu_model=machine.cpu_model,
            usable_cores=cores,
            logical_cpus=machine.logical_cpus,
            memory_bytes=machine.memory_size_bytes,
            gpus=machine.gpus,
        ):
            return shared
    return {}


def _choose(
    targets: Mapping[str, Any], machine: Machine, target: str | None, path: Path | str
) -> tuple[dict[str, Any], str]:
    """The arguments, and what to warn of; an empty text for nothing."""
    if not targets:
        return _default(machine, f"{path} has no settings for this machine ({machine.hostname})")
    if target is not None and target not in targets:
        return _default(machine, f"{path} has no settings for {target!r} on this machine")
    if target is not None:
        return kwargs_in(targets[target]), ""
    latest = max(targets, key=lambda spec: (targets[spec].get("saved_at", ""), spec))
    warning = (
        f"{path} has settings for {len(targets)} targets on this machine; taking those of "
        f"{latest!r}, measured last. Say which with target=."
    )
    return kwargs_in(targets[latest]), warning if len(targets) > 1 else ""


def _default(machine: Machine, fault: str) -> tuple[dict[str, Any], str]:
    from dlprof.machine.inspection import USUAL_SHM_BYTES, cpus_of_job
    from dlprof.machine.launchers import launched_as

    ranks = launched_as(os.environ)["LOCAL_WORLD_SIZE"] or 1
    if ranks > 1:
        machine = machine.shared_by(ranks, cpus_of_job(os.getpid()))
    workers = min(4, int(machine.usable_cores))
    small = machine.shm_bytes is not None and machine.shm_bytes < USUAL_SHM_BYTES
    if workers < 2 or small:
        workers = 0
    return {"num_workers": workers}, (
        f"{fault}; using num_workers={workers}. Run dlprof sweep here, then "
        "dlprof recommend RUN --save FILE."
    )
