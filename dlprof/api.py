"""The Python API, which ``import dlprof`` re-exports. Imports no torch; the heavy parts lazily."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import io
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypedDict, TypeVar, Unpack, overload

from dlprof.errors import FileError, UsageError, did_you_mean
from dlprof.units import quoted, spread_of

if TYPE_CHECKING:
    from dlprof.advise.compare import Comparison
    from dlprof.advise.forecast import Feed, Forecast
    from dlprof.machine.neighbours import Overview
    from dlprof.machine.profiles import MachineProfile
    from dlprof.records import Recommendation, Run
    from dlprof.records.gate import CheckReport
    from dlprof.records.transfer import Transfers
    from dlprof.settings import SweepSettings

_Path = str | os.PathLike[str]
_Ints = int | str | Sequence[int]
_Switch = bool | str | Sequence[bool]
_Format = Literal["text", "html", "markdown", "csv", "parquet", "json", "perfetto"]
_Parameters = ParamSpec("_Parameters")
_Answer = TypeVar("_Answer")


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
    make_load: str | Mapping[str, float | str]
    launch_ranks: _Ints
    step_barrier: bool
    au: float | str
    cold_cache: bool


class PlaceOptions(TypedDict, total=False):
    """Where settings are to be used, for :func:`recommend` and :func:`predict`.

    What isn't given is as it was in the run.
    """

    machine: _Path
    cores: float | str
    assume_background: float | str
    speed: float | str
    nodes: int
    ranks: int
    step_time: float | str


class RecommendOptions(PlaceOptions, total=False):
    """Options of :func:`recommend`; ``"none"`` lifts a limit of the sweep."""

    max_workers: int | str
    max_ram: int | str
    max_shm: int | str


class PredictOptions(PlaceOptions, total=False):
    """Options of :func:`predict`: the values to predict for, and where."""

    num_workers: _Ints
    prefetch_factor: _Ints
    pin_memory: _Switch
    in_order: _Switch
    sharing_strategy: str | Sequence[str]
    storage_limit: float | str
    au: float | str


class TransferOptions(TypedDict, total=False):
    """Options of :func:`transfer`; ``arg``, ``batch_size`` and ``shuffle`` belong to a target."""

    arg: Mapping[str, object]
    batch_size: int
    shuffle: bool
    device: str
    all_devices: bool
    budget: float | str
    timeout: float | str
    seed: int


def _spelled(
    *options: type,
) -> Callable[[Callable[_Parameters, _Answer]], Callable[_Parameters, _Answer]]:
    """Refuse keywords that neither a function nor its ``options`` have, and name the nearest."""

    def decorate(function: Callable[_Parameters, _Answer]) -> Callable[_Parameters, _Answer]:
        parameters = inspect.signature(function).parameters.values()
        known = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
        known += [key for table in options for key in inspect.get_annotations(table)]

        @functools.wraps(function)
        def spelled(*args: _Parameters.args, **given: _Parameters.kwargs) -> _Answer:
            for key in given:
                if key not in known:
                    raise UsageError(
                        f"dlprof.{function.__name__} has no option {quoted(key)}",
                        hint=did_you_mean(key, known) or f"Known: {', '.join(known)}.",
                    )
            return function(*args, **given)

        return spelled

    return decorate


@_spelled(SweepOptions)
def sweep(
    target: object = None,
    *,
    output: _Path | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
    **options: Unpack[SweepOptions],
) -> Run:
    """Measure which DataLoader settings are fast for a target, here.

    Where a launcher started several ranks, all of them have to call it: they load at once, the
    first measures, and each gets its run.

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

    settings, origins, pickled = _resolved(target, options)
    if output is None and resume:
        raise UsageError("resume needs the run file to continue", hint="Pass it as output.")
    measure = functools.partial(run_sweep, settings, origins=origins, resume=resume, force=force)
    return _by_ranks(measure, settings, pickled, _run_file(output, settings), progress=progress)


@_spelled(SweepOptions)
def profile(
    target: object = None,
    *,
    output: _Path | None = None,
    force: bool = False,
    progress: bool = True,
    **options: Unpack[SweepOptions],
) -> Run:
    """Explain one configuration: where its time goes, the bottleneck, the fix.

    Several ranks call it together, as for :func:`sweep`.

    Args:
        target: As for :func:`sweep`.
        output: The run file; named after the target and the time, in the working directory, by
            default.
        force: Replace ``output`` if it exists.
        progress: Whether to show progress on standard error.
        options: See :class:`SweepOptions`, without ``repeats`` and ``search``; each swept setting
            at one value. What is not given is as the target's own DataLoader has it, or PyTorch's
            default; ``budget`` is 30 s then.

    Returns:
        The run; ``run.diagnosis.findings`` holds the causes, the one to bet on first.

    Raises:
        DlprofError: An input can't be used, or nothing could be measured.
    """
    from dlprof.engine import run_profile
    from dlprof.engine.profile import for_one

    settings, origins, pickled = _resolved(target, options)
    settings = for_one(settings, origins)
    measure = functools.partial(run_profile, settings, origins=origins, force=force)
    return _by_ranks(measure, settings, pickled, _run_file(output, settings), progress=progress)


@_spelled(SweepOptions)
def check(
    target: str | None = None,
    *,
    against: str | None = None,
    baseline: _Path | None = None,
    fail_above: float | str | None = None,
    confidence: float | str | None = None,
    allow_regression: str = "",
    directory: _Path | None = None,
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
            as 0.05, or a text as on the command line, such as ``"5%"``, which is the default.
        confidence: How sure a failing check is, from 0.5 to 0.99999; likewise, by default 0.99.
        allow_regression: Why a failure may pass; it is kept in the report.
        directory: The working directory of the code; that of this process by default.
        progress: Whether to show progress on standard error.
        options: See :class:`SweepOptions`: each swept setting at one value, ``arg``,
            ``shuffle``, ``budget`` (60 s by default), ``seed`` and ``timeout``.

    Returns:
        The verdict in ``state``, and all that it follows from.

    Raises:
        DlprofError: An input can't be used, or nothing could be measured.
    """
    from dlprof.engine.check import run_check
    from dlprof.engine.checking.compared import for_check
    from dlprof.engine.checking.history import check_baseline
    from dlprof.report.live import open_listener
    from dlprof.settings import parse_option

    _refuse_live(target, "checked: the base's code doesn't have it")
    if against is not None and baseline is not None:
        raise UsageError("against and baseline exclude each other", hint="Leave one of them out.")
    folder = Path.cwd() if directory is None else Path(directory)
    settings, origins, _ = _resolved(target, options, folder)
    rule = {"fail_above": fail_above, "confidence": confidence}
    asked = dataclasses.replace(
        for_check(settings, origins),
        against=against,
        override=allow_regression,
        **{key: parse_option(key, raw, key) for key, raw in rule.items() if raw is not None},
    )
    with open_listener(quiet=not progress) as listener:
        if baseline is None:
            return run_check(asked, listener=listener, cwd=folder)
        advising = dataclasses.replace(asked, warn_only=True)
        return check_baseline(advising, Path(baseline), listener=listener, cwd=folder)


def _refuse_live(target: object, what: str) -> None:
    if not isinstance(target, str | None):
        hint = "Name what makes it, as in 'file.py:make_loader'."
        raise UsageError(f"A live object can't be {what}", hint=hint)


def _by_ranks(
    measure: Callable[..., Run],
    settings: SweepSettings,
    pickled: bytes | None,
    path: Path,
    *,
    progress: bool,
) -> Run:
    """Measure with all ranks that a launcher started; the later ones get the run of the first."""
    from dlprof.engine.ranks import gather_ranks
    from dlprof.report.live import open_listener

    before = _stamp(path)
    # The script's arguments are its own: some launchers give each rank others.
    with gather_ranks(os.environ, (), settings, pickled=pickled) as ranks:
        if ranks is not None:
            with open_listener(quiet=not progress) as listener:
                return measure(output=path, listener=listener, pickled=pickled, ranks=ranks)
    if _stamp(path) in {None, before}:
        raise FileError(
            f"Rank 0 has left no new run file {path} here",
            hint="See what rank 0 says. Several nodes need an output on a storage that they share.",
        )
    return load_run(path.absolute())  # as the first rank names it


def _stamp(path: Path) -> tuple[int, ...] | None:
    """What changes as a file does; ``None`` for none."""
    try:
        there = path.stat()
    except OSError:
        return None
    return there.st_ino, there.st_size, there.st_mtime_ns


def _run_file(output: _Path | None, settings: SweepSettings) -> Path:
    """Where the run goes: as named, else a new file of the target's name and the time.

    It is the same for all ranks: the first one makes it when all of them have their names.
    """
    from dlprof.files import is_there
    from dlprof.machine.launchers import job_moment, launcher_of
    from dlprof.store import run_file_name

    if output is not None:
        return Path(output)
    moment = job_moment(os.environ, launcher_of(os.getpid()))
    while is_there(path := Path(run_file_name(settings.target, moment))):
        moment += timedelta(seconds=1)  # a job's ranks have one moment for all that they call
    return path


def _resolved(
    target: object, options: SweepOptions, folder: Path | None = None
) -> tuple[SweepSettings, Mapping[str, str], bytes | None]:
    """The settings, where each came from, and a live object as bytes."""
    from dlprof.settings import by_key
    from dlprof.settings.resolve import resolve_settings

    named, pickled = _named(target)
    flags = {key: value for key, value in {**options, **named}.items() if value is not None}
    settings, origins = resolve_settings(
        flags, environ=os.environ, config_file=None, cwd=folder or Path.cwd()
    )
    if pickled is not None and origins["arg"] != by_key()["arg"].flag:
        settings = dataclasses.replace(settings, arguments={})  # a file's are its own target's
    return settings, origins, pickled


def _named(target: object) -> tuple[dict[str, str], bytes | None]:
    """The option that names the target, and a live object as bytes for another process.

    By cloudpickle where it is installed: it also takes what is defined in a notebook.
    """
    if target is None or isinstance(target, str):
        return {} if target is None else {"target": target}, None
    import pickle

    kind = target if isinstance(target, type) else type(target)
    name = getattr(target, "__qualname__", kind.__qualname__)
    hint = "Put it into a module and pass 'file.py:name', or install cloudpickle."

    class ByName(pickle.Pickler):
        def reducer_override(self, obj: object) -> Any:
            # By a name in __main__, which no child can import.
            if isinstance(obj, type | FunctionType) and obj.__module__ == "__main__":
                message = f"{obj.__qualname__} is defined in a script, not in a module"
                raise UsageError(message, hint=hint)
            return NotImplemented

    file = io.BytesIO()
    try:
        if importlib.util.find_spec("cloudpickle") is not None:
            file.write(importlib.import_module("cloudpickle").dumps(target))
        else:
            ByName(file).dump(target)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{name} can't be sent to another process: {error}", hint=hint) from error
    return {"target": f"<{name}>"}, file.getvalue()


def load_run(path: _Path) -> Run:
    """Read a run file.

    Args:
        path: The run file, of a sweep, a profile or ``dlprof run``.

    Returns:
        The run, as the function that measured it returned it.

    Raises:
        FileError: It can't be read, or is none.
        UsageError: It is no path.
    """
    from dlprof.store import read_run

    if not isinstance(path, str | os.PathLike):
        raise UsageError(
            f"{path!r:.60} is neither a run nor the path of its file",
            hint="Give a path, or what dlprof.sweep, profile or load_run has returned.",
        )
    return read_run(Path(path))


@_spelled(RecommendOptions)
def recommend(run: Run | _Path, **options: Unpack[RecommendOptions]) -> Recommendation:
    """The settings to use, within limits, from what a run measured.

    For machines, cores, ranks and steps that it didn't measure, from what its calibration predicts,
    if it holds one; ``basis`` says which.

    Args:
        run: A run, or the path of its file.
        options: See :class:`RecommendOptions`: limits, and where the settings are to be used.

    Returns:
        The settings in ``dataloader_kwargs``, what they should give in ``expected``, and why.

    Raises:
        DlprofError: The run can't be read, has no figures, or nothing is within the limits.
    """
    from dlprof.advise.recommend import recommend as choose

    measured = _loaded(run)
    return choose(measured, **_question(measured, options))


@overload
def predict(
    run: Run | _Path, *, feed: Literal[False] = False, **options: Unpack[PredictOptions]
) -> Forecast: ...


@overload
def predict(
    run: Run | _Path,
    *,
    feed: Literal[True],
    max_wait: float | str | None = None,
    **options: Unpack[PredictOptions],
) -> Feed: ...


@_spelled(PredictOptions)
def predict(
    run: Run | _Path,
    *,
    feed: bool = False,
    max_wait: float | str | None = None,
    **options: Unpack[PredictOptions],
) -> Forecast | Feed:
    """What settings, cores, ranks or a step that were not measured would give. Measures nothing.

    Args:
        run: A run that holds a calibration, as those of sweeps and profiles do, or its path.
        feed: Find the fewest workers and cores that keep the step fed instead.
        max_wait: With ``feed``, the share of time that a step which is fed may wait: a fraction or
            like ``"2%"``, which is the default.
        options: See :class:`PredictOptions`: the values to predict for, as for :func:`sweep`, and
            where, as for :func:`recommend`. ``storage_limit`` is what the storage gives to all
            ranks of all nodes together, in bytes a second or like ``"2GB/s"``. ``au`` asks how many
            emulated accelerators keep that utilization; the answer is in ``accelerators``.

    Returns:
        The predictions in ``rows``, in the order of what configurations cost; with ``feed`` what
        it takes.

    Raises:
        DlprofError: The run can't be read or holds no calibration, or a value can't be used.
    """
    asked = {**options, "max_wait": max_wait}
    found: Forecast | Feed = ask_prediction(_loaded(run), asked, feed=feed)
    return found


def ask_prediction(run: Run, given: Mapping[str, Any], *, feed: bool, prefix: str = "") -> Any:
    """What :func:`predict` answers; ``prefix`` is ``--`` where the command line names options.

    Raises:
        DlprofError: As for :func:`predict`.
    """
    from dlprof.advise.candidates import configs_of, wanted_configs
    from dlprof.advise.forecast import feed as fewest
    from dlprof.advise.forecast import feed_config, forecast
    from dlprof.advise.situation import Situation
    from dlprof.advise.thresholds import FED_WAIT_FRACTION
    from dlprof.settings.options import PREDICTED, fields_of

    def named(key: str) -> str:
        return prefix + key.replace("_", "-") if prefix else key

    axes = fields_of(given, *PREDICTED)
    wait = fields_of(given, "max_wait")
    if wait and not feed:
        asked = named("feed") if prefix else "feed=True"
        raise UsageError(
            f"{named('max_wait')} belongs to {named('feed')}",
            hint=f"Give {asked} too, or leave it out.",
        )
    storage, au = fields_of(given, "storage_limit"), fields_of(given, "au")
    situation = Situation.of(run, **_question(run, given), **storage)
    if not feed:
        profile = _profile(given)
        known = None if profile is None else profile.memory_gb_per_s
        configs = wanted_configs(situation, axes) if axes else None
        memory = known and 1e9 * known
        return forecast(situation, configs, named=tuple(axes), memory_bytes_per_s=memory, **au)
    if au:
        raise UsageError(
            f"{named('au')} and {named('feed')} are two questions", hint="Ask one of them."
        )
    for key in ("num_workers", "prefetch_factor"):
        if key in axes:
            raise UsageError(
                f"{named('feed')} finds {key} by itself", hint=f"Leave {named(key)} out."
            )
    base, *more = configs_of(feed_config(situation), axes)
    if more:
        raise UsageError(
            f"{named('feed')} takes one value of each setting",
            hint="Ask for each of them by itself.",
        )
    return fewest(situation, max_wait=wait.get("max_wait", FED_WAIT_FRACTION), base=base)


@_spelled()
def compare(
    a: Run | _Path, b: Run | _Path, *, num_workers: int | None = None, best: bool = False
) -> Comparison:
    """Why one run is faster than another: two machines, two commits, two settings.

    Args:
        a: The run that is compared with, or its path.
        b: The other; rates are B over A.
        num_workers: Compare only configurations of so many workers.
        best: Compare the fastest of each run, also where they share settings.

    Returns:
        The difference in ``ratio``, and the parts that add up to it in ``parts``.

    Raises:
        DlprofError: A run can't be read or has no rate, or the two can't be compared.
    """
    from dlprof.advise.compare import compare as split

    return split(_loaded(a), _loaded(b), num_workers=num_workers, best=best)


@_spelled(TransferOptions)
def transfer(
    target: str | None = None, *, progress: bool = True, **options: Unpack[TransferOptions]
) -> Transfers:
    """Measure how fast batches reach the device, and what pinned memory changes.

    Args:
        target: TARGET as on the command line, of which a batch is copied too.
        progress: Whether to show progress on standard error.
        options: See :class:`TransferOptions`. ``all_devices`` copies to all of them, one by one
            and at once, which slows down others who use them.

    Returns:
        Times and rates of each device in ``devices``, of the target's batch in ``batch``.

    Raises:
        DlprofError: The device is not there, the target can't be loaded, or nothing was measured.
    """
    from dlprof.engine.transfer import TransferSettings as Asked
    from dlprof.engine.transfer import run_transfer
    from dlprof.report.live import open_listener

    _refuse_live(target, "copied from here")
    asked = Asked.of({"target": target, **options})
    with open_listener(quiet=not progress) as listener:
        return run_transfer(asked, listener)


@overload
def machine(*, seconds: float = 1.0, save: _Path | None = None) -> Overview: ...


@overload
def machine(*, machine: _Path) -> MachineProfile: ...


@_spelled()
def machine(
    *, machine: _Path | None = None, seconds: float | None = None, save: _Path | None = None
) -> Overview | MachineProfile:
    """What this machine offers to a job, what limits it, and who else is using it.

    Args:
        machine: The name of a machine that dlprof knows, or the file of a machine profile, to
            read that instead of this one.
        seconds: How long to watch who uses it; a second by default.
        save: Write what was found as a machine profile (TOML); comments in the file stay.

    Returns:
        What the machine is and what others use of it; for ``machine`` its profile.

    Raises:
        DlprofError: The profile can't be read or written, or ``seconds`` is no time to watch for.
    """
    from dlprof.machine.neighbours import survey
    from dlprof.machine.profiles import MachineProfile, read_profile, save_profile

    if machine is not None:
        if seconds is not None or save is not None:
            raise UsageError(
                f"{'seconds' if save is None else 'save'} and machine don't go together",
                hint="A profile describes a machine that can't be watched from here.",
            )
        return read_profile(Path(machine))
    overview = survey(1.0 if seconds is None else seconds)
    if save is not None:
        save_profile(Path(save), MachineProfile.of(overview.machine, datetime.now(UTC).date()))
    return overview


@overload
def report(
    run: Run | _Path, output: None = None, *, format: _Format | None = None, force: bool = False
) -> str: ...


@overload
def report(
    run: Run | _Path, output: _Path, *, format: _Format | None = None, force: bool = False
) -> Path: ...


@_spelled()
def report(
    run: Run | _Path,
    output: _Path | None = None,
    *,
    format: _Format | None = None,  # noqa: A002 - as on the command line
    force: bool = False,
) -> str | Path:
    """A run for people and other programs: HTML, Markdown, CSV, Parquet, JSON or a trace.

    Args:
        run: A run, or the path of its file.
        output: Where to; ``None`` returns the text.
        format: How it is written; by default by the suffix of ``output``, else as text.
        force: Replace ``output`` if it exists.

    Returns:
        The text, or the path that was written.

    Raises:
        DlprofError: The run can't be read, or not be written so or there.
    """
    from dlprof.files import replace_file
    from dlprof.report.export.formats import format_for, refuse_existing, render_as

    file = None if output is None else Path(output)
    written_as = format_for(format, file)
    measured = _loaded(run)
    if file is None:
        return render_as(measured, written_as).decode()
    refuse_existing(file, Path(measured.path), force=force)
    replace_file(file, render_as(measured, written_as))
    return file


def _loaded(run: Run | _Path) -> Run:
    from dlprof.records import Run

    return run if isinstance(run, Run) else load_run(run)


def _question(run: Run, given: Mapping[str, Any]) -> dict[str, Any]:
    """What :class:`RecommendOptions` ask of a run, within the limits that its sweep was given."""
    from dlprof.advise.candidates import stored_limits
    from dlprof.settings.options import LIMITED, PLACE, fields_of

    asked = fields_of(given, *LIMITED, "step_time", *PLACE)
    if "step_s" in asked:
        asked["step_spread"] = spread_of(asked["step_s"]) or None
        asked["step_s"] = float(asked["step_s"] or 0.0)  # none was asked for, not: as measured
    question = {"constraints": dataclasses.replace(stored_limits(run.header.settings), **asked)}
    if (profile := _profile(given)) is None:
        return question
    return {**question, "machine": profile.to_machine()}


def _profile(given: Mapping[str, Any]) -> MachineProfile | None:
    """The machine that settings are wanted for, where it is another."""
    if (path := given.get("machine")) is None:
        return None
    from dlprof.machine.profiles import read_profile

    return read_profile(Path(path))
