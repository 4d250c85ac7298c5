"""``dlprof run``: an unmodified script, its loaders watched, its file written, its way out kept."""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import importlib.abc
import importlib.metadata
import importlib.util
import math
import os
import platform
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from dlprof.errors import DlprofError
from dlprof.integrations.diagnosis import UNTRACED, diagnose_script
from dlprof.integrations.ranks import (
    Rank,
    merged,
    of_straggler,
    of_this_process,
    read_others,
    with_figures,
    with_ranks,
)
from dlprof.integrations.recorder import DATALOADER_MODULE, LoaderRecorder
from dlprof.integrations.script import Ending, Program, as_main, execute, show_fault
from dlprof.integrations.wait_statistics import NEVER_NS, Clock
from dlprof.internals import came_by_signal, iterator_maker, set_iterator_maker
from dlprof.machine import Sampler, Snapshot, inspect_machine, usage_between
from dlprof.machine.inspection import cpus_of_job
from dlprof.machine.sharing import GroupShares
from dlprof.records import (
    SCHEMA_VERSION,
    SCRIPT_SPEC,
    Cost,
    Diagnosis,
    Explanation,
    Run,
    RunEnd,
    RunHeader,
    Target,
    Usage,
    WatchedLoader,
    WatchedScript,
    own_s,
)
from dlprof.store import RunWriter
from dlprof.targets.adapters import ITERATED
from dlprof.targets.faults import refuse_old_torch
from dlprof.targets.workers import start_method_of
from dlprof.tuning import tune, tuning_of
from dlprof.units import NS
from dlprof.version import __version__

_FIRST_PAUSE_NS = NS


def new_header(name: str) -> RunHeader:
    """The first record of the run file of a script."""
    try:
        torch_version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch_version = ""
    refuse_old_torch(torch_version)
    return RunHeader(
        schema_version=SCHEMA_VERSION,
        run_id=secrets.token_hex(8),
        started_at=_now(),
        dlprof_version=__version__,
        torch_version=torch_version,
        python_version=platform.python_version(),
        machine=inspect_machine(),
        target=Target(spec=f"{SCRIPT_SPEC}{name}", kind="map", dataset=""),
        settings={},
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclasses.dataclass(kw_only=True)
class ScriptRun:
    """One run of a script, its loaders watched: what writes its file now and then, its last words.

    The report comes when the interpreter ends, after the script's own threads and exit functions.
    """

    header: RunHeader
    rank: Rank | None  # of this process; ``None`` where it is the only one
    show: Callable[[Run], None]  # called once, at the very end, with what was seen
    clock: Clock
    follow: bool = True  # whether the first batches of each loader are followed through its workers
    # Whether batches are given again to see what a perfect loader would bring.
    headroom: bool = False
    tune: bool = False  # whether the loaders tune themselves

    def __post_init__(self) -> None:
        """Begin to count the time."""
        self._writer: RunWriter | None = None
        self._recorder = LoaderRecorder(
            clock=self.clock,
            folder=str(Path.cwd()),
            due=self._keep,
            follow=self.follow,
            headroom=self.headroom,
            ranked=self.rank is not None,
        )
        self._recorder.pace.due_ns = self.clock() + _FIRST_PAUSE_NS
        self._usage: Callable[[], Usage | None] = lambda: None
        self._finders = [
            AfterImport(DATALOADER_MODULE, self._imported),
            *(AfterImport(name, self._recorder.attach_iterators) for name in ITERATED),
        ]
        self._written: dict[str, WatchedLoader] = {}
        self._reported: dict[str, Explanation] = {}
        self._process = os.getpid()
        self.ending = Ending(kind="running", exit_code=0)
        self._pause_ns = _FIRST_PAUSE_NS
        self._overhead_ns = 0
        self._over = False
        self._is_loading = True

    def run(
        self, load: Callable[[], Program], open_writer: Callable[[], RunWriter | None]
    ) -> Ending:
        """Run what ``load`` makes ready to its end; the caller ends the process with its exit code.

        ``open_writer`` is called once there is a script: what doesn't run replaces no earlier file.
        """
        self._attach()
        program: Program | Ending
        try:
            try:
                program = load()
            except DlprofError:
                raise
            except BaseException as error:  # raised by a package around the module
                program = show_fault(error)
            self._writer, self._is_loading = open_writer(), False
        except DlprofError:  # there is nothing to watch after all: say nothing
            self._over = True
            for finder in self._finders:
                finder.remove()
            raise
        # Threads and exit functions of the script's may still run after this.
        self.ending = program if isinstance(program, Ending) else execute(program, as_main(program))
        return self.ending

    def _attach(self) -> None:
        """Watch from here on, to the end of the process."""
        for finder in self._finders:
            finder.install()
        atexit.register(self._finish)
        leave = os._exit

        def leave_with_last_words(status: int) -> NoReturn:
            with contextlib.suppress(BaseException):
                self.ending = Ending(kind="os._exit", exit_code=status)
                self._finish()
            leave(status)

        os._exit = leave_with_last_words

    def _imported(self, module: ModuleType) -> None:
        self._recorder.attach(module, threads=threading.Thread)
        if self.tune:
            tune_all(module.DataLoader, self._recorder.name_of)
        self._usage = usage_from_now()

    def _keep(self) -> None:
        """Write what was seen so far, so that no end of the process can take all of it."""
        if os.getpid() != self._process:  # a process that the script forked
            self._recorder.pace.due_ns = NEVER_NS
            return
        if self._is_loading:  # a package around the module iterates loaders: there is no file yet
            self._recorder.pace.due_ns = self.clock() + _FIRST_PAUSE_NS
            return
        began_ns = self.clock()
        records = self._recorder.records()
        fresh = (dataclasses.replace(each, step_times=None) for each in records)
        self._write(*self._explanations(over=True), *self._changed(fresh), self._script(records))
        now_ns = self.clock()
        self._overhead_ns += now_ns - began_ns
        self._recorder.pace.due_ns = now_ns + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, 120 * NS)

    def _finish(self) -> None:
        """The last words, once, and only of the process that was started."""
        if self._over or os.getpid() != self._process:
            return
        self._over = True
        if self.rank is not None and self.ending.kind == "interrupted":
            # A launcher passes on what the terminal has sent to all ranks already.
            with contextlib.suppress(ValueError):  # in another thread than the main one
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._recorder.pace.due_ns = NEVER_NS
        records = self._recorder.records()
        script = dataclasses.replace(self._script(records), usage=self._usage())
        self._write(*self._explanations(over=False), *self._changed(records))
        run = Run(
            path="" if self._writer is None else str(self._writer.path),
            header=self.header,
            explanations=tuple(self._reported.values()),
            watched=records,
            script=script,
            diagnosis=self._diagnosis(records, script),
        )
        if self.rank is not None:
            run = self._together(run, self.rank)
        diagnosis = run.diagnosis
        script = dataclasses.replace(run.script or script, notes=self._notes(records))
        run = dataclasses.replace(run, script=script)
        end = RunEnd(
            ended_at=_now(),
            reason="interrupted" if script.ending == "interrupted" else "complete",
            cost_s=Cost(
                measured=script.wall_s - script.overhead_s,
                overhead=script.overhead_s,
                total=script.wall_s,
            ),
        )
        self._write(*([diagnosis] if diagnosis else []), script, end)
        if self._writer is None:
            run = dataclasses.replace(run, path="")
        else:
            self._writer.close()
        self.show(run)
        if self.ending.kind == "interrupted":
            _end_as_interrupted()

    def _changed(self, records: Iterable[WatchedLoader]) -> list[WatchedLoader]:
        fresh = [each for each in records if self._written.get(each.name) != each]
        self._written.update((each.name, each) for each in fresh)
        return fresh

    def _explanations(self, *, over: bool) -> list[object]:
        """What followed batches showed that the file doesn't have yet."""
        fresh = self._recorder.followed(over=over, but=self._reported)
        self._reported.update((name, explanation) for name, (explanation, _) in fresh.items())
        return [record for found in fresh.values() for record in found]

    def _diagnosis(
        self, loaders: Sequence[WatchedLoader], script: WatchedScript
    ) -> Diagnosis | None:
        rank, refused = self.rank, self._recorder.refusals()
        if not self.follow:
            why = f"{UNTRACED} (leave out {'--tune' if self.tune else '--no-follow'})"
            refused = {each.name: why for each in loaders}
        with self._recorder.guarded("no cause could be found"):
            return diagnose_script(
                loaders,
                tuple(self._reported.values()),
                self.header.machine,
                self.header.target,
                wall_s=script.wall_s,
                cut_short=script.is_cut_short,
                refused=refused,
                # Ranks would take each other for background load.
                usage=script.usage if rank is None else None,
                local_ranks=1 if rank is None else rank.local_size,
                local_cpus=cpus_of_job(os.getpid()),
                start_method=start_method_of(),
            )
        return None

    def _together(self, run: Run, rank: Rank) -> Run:
        """The run of one of several ranks; of a machine's first, with what its others show."""
        with self._recorder.guarded("the other ranks could not be looked at"):
            own = with_figures(run, of_this_process(rank, self.header.machine.hostname))
            runs = {rank.rank: own}
            if rank.local_rank == 0 and run.path:
                # A launcher may end it while it waits, as another rank failed.
                self._write(*([run.diagnosis] if run.diagnosis else []), own.script)
                # Others hang in a collective call until the launcher sees that this one ended.
                patient = own.script is not None and not _failed(own.script)
                runs |= read_others(rank, Path(run.path), self.header, patient=patient)
            run = with_figures(own, *merged(runs))
            found = of_straggler(run.diagnosis, {**runs, rank.rank: run})
            # What data each of them gets, rank 0 says.
            others = {} if rank.rank else {n: each.watched for n, each in runs.items() if n}
            failed = [n for n, each in runs.items() if each.script is None or _failed(each.script)]
            found = with_ranks(found, run.watched, others, failed=failed)
            return dataclasses.replace(run, diagnosis=found)
        return run

    def _write(self, *records: object) -> None:
        if self._writer is None:
            return
        try:
            for record in records:
                self._writer.append(record)
        except DlprofError as error:
            cause = error.__context__
            # A TimeoutError is an OSError, also that of an alarm that the script has set.
            if isinstance(cause, Exception) and came_by_signal(cause) and not self._over:
                self._written.clear()
                raise cause from None
            self._recorder.faults.append(f"the run file is not complete: {error.message}")
            self._writer.close()
            self._writer = None
        except BaseException:  # of a signal's handler: what it cut off is written at the end
            self._written.clear()
            raise

    def _script(self, loaders: Sequence[WatchedLoader]) -> WatchedScript:
        wall_s = (self.clock() - self._recorder.began_ns) / NS
        waited_s = self._recorder.waited_s()
        without_s = own_s(wall_s, loaders)
        rank, ending = self.rank, self.ending
        by_signal = ending.kind in {"running", "interrupted"}
        return WatchedScript(
            wall_s=wall_s,
            ending=ending.kind,
            exit_code=None if by_signal else ending.exit_code,
            waited_s=waited_s,
            wait_fraction=min(1.0, waited_s / without_s) if without_s else None,
            overhead_s=self._overhead_ns / NS,
            rank=None if rank is None else rank.rank,
            world_size=None if rank is None else rank.world_size,
            loaders=len(loaders),
            tried=tuple(each for tuning in list(self._recorder.tunings) for each in tuning.tried()),
            notes=self._notes(loaders),
        )

    def _notes(self, loaders: Sequence[WatchedLoader]) -> tuple[str, ...]:
        notes = [f"dlprof has a fault of its own: {fault}" for fault in self._recorder.faults]
        if not loaders:
            why = "The script did not import torch.utils.data in this process."
            if DATALOADER_MODULE in sys.modules:
                why = (
                    "No DataLoader of torch's was iterated in this process. Another loader's waits "
                    "are shown by iterating it so: for batch in dlprof.watch(loader)."
                )
            notes.append(why)
        # A loader that is made again in each epoch says the same each time.
        several = len(loaders) > 1
        tuned = list(self._recorder.tunings.items())  # other threads may come with more
        said = collections.Counter(
            # Where there are several, each is named behind who says it.
            each.summary().replace(": ", f": {name}: ", 1) if name and several else each.summary()
            for each, name in tuned
        )
        notes += [f"{text} ({n} loaders)" if n > 1 else text for text, n in said.items()]
        return tuple(notes)


def _failed(script: WatchedScript) -> bool:
    """Whether it did not come to an end of its own."""
    return script.ending in {"running", "interrupted", "exception"} or bool(script.exit_code)


def _end_as_interrupted() -> None:
    """Have Python end as where nothing catches Ctrl-C: by the signal, which shells look for.

    It does so at the very end, when files are closed and child processes have ended, if the last
    text that ``exec`` was given ended so: imports for the report give it others. Of a script, as
    the command ``dlprof`` is one, only if that ends so as well: ``cli.main`` has it do so.
    """
    with contextlib.suppress(KeyboardInterrupt):
        exec("raise KeyboardInterrupt")  # noqa: S102 - that is the task


def usage_from_now(
    *,
    begin: Callable[[], Callable[[], Snapshot]] = lambda: Sampler(os.getpid()).take,
    load: Callable[[], float] = lambda: os.getloadavg()[0],
) -> Callable[[], Usage | None]:
    """What was used of the machine since now, when it is asked for.

    What can't be read is no fault of the script's: the answer is ``None`` then. Nobody looks at who
    wants cores while the script runs; the load average of the last minute has it.
    """
    first = None
    with contextlib.suppress(Exception):  # a training must not end by being watched
        take = begin()
        first, shares = take(), GroupShares(os.getpid())

    def usage() -> Usage | None:
        found: Usage | None = None
        with contextlib.suppress(Exception):  # as above
            last = take()
            if first is not None:
                found, _ = usage_between(first, last)
                fair = shares.fair_cores(last.allowed_cpus, found)
                found = dataclasses.replace(found, fair_cpu_cores=fair)
        with contextlib.suppress(Exception):  # as above: some systems have no load average
            passed_s = 0.0 if first is None else (last.time_ns - first.time_ns) / NS
            return None if found is None else _with_waiting(found, load(), passed_s, last)
        return found

    return usage


def _with_waiting(usage: Usage, load: float, passed_s: float, last: Snapshot) -> Usage:
    """The usage with the threads of others that wanted cores, by the load average.

    That counts all that ran or waited, the older the less: of the script's own as much as a minute
    keeps of the time for which it ran. Of CPUs that the script may not use it has no part.
    """
    own = usage.runnable(usage.own_cpu_cores) * (1.0 - math.exp(-passed_s / 60))
    mine = min(1.0, (last.allowed_cpus or 1e9) / (os.cpu_count() or 1))
    others = max(usage.other_cpu_cores or 0.0, mine * (load - own))
    return dataclasses.replace(usage, other_runnable=others)


def tune_all(kind: Any, name_of: Callable[[Any], str]) -> None:
    """Have every loader of a class tune itself from its first iterator on.

    Of loaders that are alike by ``name_of``, and can't be tuned, only the first is asked why: some
    scripts make one for each step. So may a dataset for each sample, in a worker, where none is.
    """
    make: Any = iterator_maker(kind)
    refused = set[tuple[Any, ...]]()

    def get_iterator(loader: Any) -> Any:
        from torch.utils.data import get_worker_info

        if hasattr(loader, "tuning") or get_worker_info() is not None:
            return make(loader)
        alike = name_of(loader), type(loader), getattr(loader, "num_workers", 0)
        if alike in refused:
            return make(loader)
        tuning = tuning_of(tune(loader))
        if tuning is not None and not tuning.off:
            tuned: Any = iterator_maker(type(loader))
            return tuned(loader)
        refused.add(alike)
        return make(loader)

    set_iterator_maker(kind, get_iterator)


class AfterImport(importlib.abc.MetaPathFinder):
    """Stands first in ``sys.meta_path`` until one module has been imported, and acts on that."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._act = act

    def install(self) -> None:
        """Wait for the import; where it has happened already, act at once."""
        module = sys.modules.get(self._name)
        if module is None:
            sys.meta_path.insert(0, self)
        else:
            self._act(module)

    def remove(self) -> None:
        """Wait no longer."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module as others find it, whose loader, made for it alone, acts afterwards."""
        del path, target
        if fullname != self._name:
            return None
        self.remove()  # those behind it in the list are asked, and later imports are theirs
        spec = importlib.util.find_spec(fullname)
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return spec
        plain = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # what stood before is the class's own
            plain(module)
            self._act(module)

        with contextlib.suppress(AttributeError):  # a loader that refuses: nothing is watched
            loader.exec_module = exec_module
        return spec
