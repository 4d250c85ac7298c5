"""The Python API, which ``import dlprof`` re-exports. Imports no torch; the heavy parts lazily."""

from __future__ import annotations

import dataclasses
import importlib
import io
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from dlprof.errors import UsageError

if TYPE_CHECKING:
    from dlprof.records import Recommendation, Run
    from dlprof.records.gate import CheckReport
    from dlprof.settings import SweepSettings

_Ints = int | str | Sequence[int]
_Switch = bool | str | Sequence[bool]


class SweepOptions(TypedDict, total=False):
    """Options of :func:`sweep` and :func:`profile`: those of the command line, in snake_case.

    Texts are read as on the command line (``"0:16:2"``, ``"both"``, ``"60s"``); numbers of
    seconds and bytes, booleans and sequences are taken as they are.
    """

    arg: Mapping[str, object]
    num_workers: _Ints
    prefetch_factor: _Ints
    pin_memory: _Switch
    persistent_workers: _Switch
    batch_size: _Ints
    in_order: _Switch
    start_method: str | Sequence[str]
    sharing_strategy: str | Sequence[str]
    worker_threads: _Ints
    shuffle: bool
    step_time: float | str
    step: str
    device: str
    copy_ahead: bool
    step_on: str
    budget: float | str
    trial_time: float | str
    repeats: int
    search: str
    seed: int
    timeout: float | str
    max_workers: int
    max_ram: int | str
    max_shm: int | str
    ranks: int
    cold_cache: bool


def sweep(
    target: object = None,
    *,
    output: str | os.PathLike[str] | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
    **options: Unpack[SweepOptions],
) -> Run:
    """Measure which DataLoader settings are fast for a target, here.

    Args:
        target: TARGET as on the command line, or a live Dataset, DataLoader or callable that can
            be pickled (what is defined in a notebook needs the package cloudpickle); ``None`` for
            the built-in images, or with ``resume`` for the built-in dataset that the run file
            names. A target of one's own has to be given again to resume.
        output: The run file; named after the target and the time, in the working directory, by
            default.
        resume: Continue the run in ``output``.
        force: Replace ``output`` if it exists.
        progress: Whether to show progress on standard error.
        options: See :class:`SweepOptions`. The environment and configuration files count too.

    Returns:
        The run; ``run.recommendation`` holds the settings to use.

    Raises:
        DlprofError: An input can't be used, or nothing could be measured.
    """
    from dlprof.engine import run_sweep
    from dlprof.report.live import open_listener
    from dlprof.settings import by_key
    from dlprof.store.naming import run_file_name

    settings, _, flags, pickled = _resolved(target, options)
    if output is None:
        if resume:
            raise UsageError("resume needs the run file to continue", hint="Pass it as output.")
        output = run_file_name(settings.target, datetime.now().astimezone())
    given = {by_key()[key].field for key in flags}
    with open_listener(quiet=not progress, verbose=False) as listener:
        return run_sweep(
            settings,
            output=Path(output),
            listener=listener,
            resume=resume,
            force=force,
            given=given,
            pickled=pickled,
        )


def profile(
    target: object = None,
    *,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: bool = True,
    **options: Unpack[SweepOptions],
) -> Run:
    """Explain one configuration: where its time goes, the bottleneck, the fix.

    Args:
        target: As for :func:`sweep`.
        output: The run file; named after the target and the time, in the working directory, by
            default.
        force: Replace ``output`` if it exists.
        progress: Whether to show progress on standard error.
        options: See :class:`SweepOptions`; each swept setting at one value. What is not given is
            as the target's own DataLoader has it, or PyTorch's default.

    Returns:
        The run; ``run.diagnosis.findings`` holds the causes, the one to bet on first.

    Raises:
        DlprofError: An input can't be used, or nothing could be measured.
    """
    from dlprof.engine import run_profile
    from dlprof.engine.profile import for_one
    from dlprof.report.live import open_listener
    from dlprof.store.naming import run_file_name

    settings, origins, _, pickled = _resolved(target, options)
    settings = for_one(settings, origins)
    if output is None:
        output = run_file_name(settings.target, datetime.now().astimezone())
    with open_listener(quiet=not progress, verbose=False) as listener:
        return run_profile(
            settings, output=Path(output), listener=listener, force=force, pickled=pickled
        )


def check(
    target: str | None = None,
    *,
    against: str | None = None,
    baseline: str | os.PathLike[str] | None = None,
    fail_above: float | str = 0.05,
    confidence: float | str = 0.99,
    allow_regression: str = "",
    directory: str | os.PathLike[str] | None = None,
    progress: bool = True,
    **options: Unpack[SweepOptions],
) -> CheckReport:
    """Say whether data loading got slower than in another version of the code, or than it was.

    Args:
        target: TARGET as on the command line; ``None`` for the built-in images.
        against: A git ref or a directory; by default the merge base with the branch that this one
            goes to.
        baseline: A stored history to compare with instead; it only advises, so that the report's
            ``warn_only`` is true.
        fail_above: How much slower loading may get, from 0.1% to 1000%: a fraction below 1, such
            as 0.05, or a text as on the command line, such as ``"5%"``.
        confidence: How sure a failing check is, from 0.5 to 0.99999; likewise.
        allow_regression: Why a failure may pass; it is kept in the report.
        directory: The working directory of the code; that of this process by default.
        progress: Whether to show progress on standard error.
        options: See :class:`SweepOptions`; each swept setting at one value.

    Returns:
        The verdict in ``state``, and all that it follows from.

    Raises:
        DlprofError: An input can't be used, or nothing could be measured.
    """
    from dlprof.engine.check import run_check
    from dlprof.engine.checking.history import check_baseline
    from dlprof.engine.checking.settings import for_check
    from dlprof.report.gate.live import open_check_listener

    if not isinstance(target, str | None):
        raise UsageError(
            "A live object can't be checked: the base's code doesn't have it",
            hint="Name what makes it, as in 'file.py:make_loader'.",
        )
    from dlprof.settings.percent import confidence_of, fail_above_of

    limit = fail_above_of(fail_above, "fail_above")
    sure = confidence_of(confidence, "confidence")
    if against is not None and baseline is not None:
        raise UsageError("against and baseline exclude each other", hint="Leave one of them out.")
    folder = Path.cwd() if directory is None else Path(directory)
    settings, origins, _, _ = _resolved(target, options, folder)
    settings_of_check = for_check(
        settings,
        origins,
        against=against,
        fail_above=limit,
        confidence=sure,
        override=allow_regression,
    )
    with open_check_listener(quiet=not progress) as listener:
        if baseline is None:
            return run_check(settings_of_check, listener=listener, cwd=folder)
        advising = dataclasses.replace(settings_of_check, warn_only=True)
        return check_baseline(advising, Path(baseline), listener=listener, cwd=folder)


def _resolved(
    target: object, options: SweepOptions, folder: Path | None = None
) -> tuple[SweepSettings, Mapping[str, str], Mapping[str, object], bytes | None]:
    """The settings, where each came from, what was given, and a live object as bytes."""
    from dlprof.settings import resolve_settings

    named, pickled = _named(target)
    flags = {key: value for key, value in {**options, **named}.items() if value is not None}
    settings, origins = resolve_settings(
        flags, environ=os.environ, config_file=None, cwd=folder or Path.cwd()
    )
    return settings, origins, flags, pickled


def _named(target: object) -> tuple[dict[str, str], bytes | None]:
    """The option that names the target, and a live object as bytes for another process."""
    if target is None:
        return {}, None
    if isinstance(target, str):
        return {"target": target}, None
    kind = target if isinstance(target, type) else type(target)
    name = getattr(target, "__qualname__", kind.__qualname__)
    hint = "Put it into a module and pass 'file.py:name', or install cloudpickle."
    try:
        return {"target": f"<{name}>"}, _pickled(target)
    except _InScriptError as error:
        message = f"{error} is defined in a script, not in a module"
        raise UsageError(message, hint=hint) from None
    except Exception as error:
        raise UsageError(f"{name} can't be sent to another process: {error}", hint=hint) from error


def _pickled(target: object) -> bytes:
    """By cloudpickle where it is installed: it also takes what is defined in a notebook."""
    try:
        dumps: Callable[[object], bytes] = importlib.import_module("cloudpickle").dumps
    except ImportError:
        file = io.BytesIO()
        _ByName(file).dump(target)
        return file.getvalue()
    return dumps(target)


class _InScriptError(Exception):
    """What a script defines is pickled by a name in ``__main__``, which no child can import."""


class _ByName(pickle.Pickler):
    """A pickler that refuses classes and functions of ``__main__``, and them alone."""

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, type | FunctionType) and obj.__module__ == "__main__":
            raise _InScriptError(obj.__qualname__)
        return NotImplemented


def load_run(path: str | os.PathLike[str]) -> Run:
    """Read a run file.

    Raises:
        FileError: It can't be read, or is none.
    """
    from dlprof.store import read_run

    return read_run(Path(path))


def recommend(
    run: Run | str | os.PathLike[str],
    *,
    max_workers: int | str | None = None,
    max_ram: int | str | None = None,
    max_shm: int | str | None = None,
    ranks: int | None = None,
    step_time: float | str | None = None,
) -> Recommendation:
    """The settings to use, within limits, from what a run measured.

    For ranks and steps that it didn't measure, from what its calibration predicts, if it holds one;
    ``basis`` says which. What isn't given is taken from the sweep that measured; ``"none"`` lifts a
    limit.

    Args:
        run: A run, or the path of its file.
        max_workers: Most workers of one rank's loader.
        max_ram: Most memory of all ranks' process trees together, in bytes or like ``"16GiB"``.
        max_shm: Most shared memory of all ranks together.
        ranks: Training processes that share the machine.
        step_time: Length of the training step to keep fed, in seconds or like ``"12ms"``.

    Raises:
        DlprofError: The run can't be read, has no figures, or nothing is within the limits.
    """
    from dlprof.advise.limits import stored_limits
    from dlprof.advise.recommend import recommend as choose
    from dlprof.records import Run
    from dlprof.settings import asked_limits

    measured = run if isinstance(run, Run) else load_run(run)
    asked = {
        "max_workers": max_workers,
        "max_ram": max_ram,
        "max_shm": max_shm,
        "ranks": ranks,
        "step_time": step_time,
    }
    limits = stored_limits(measured.header.settings)
    return choose(measured, dataclasses.replace(limits, **asked_limits(asked)))
