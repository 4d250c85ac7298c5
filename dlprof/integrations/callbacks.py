"""Callbacks for trainers: how long training waits for its loader, in the trainer's own log.

A framework is imported when its function is called, and not before.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlprof.integrations.watch import Watched, watch, watch_in_place
from dlprof.records import WatchedLoader
from dlprof.report.script import is_harmless, verdict
from dlprof.tuning import tune as tune_loader

_NAME = "train_dataloader"
_PREFIX = "dlprof/"


def lightning(*, every: int | None = None, tune: bool = False) -> Any:
    """A callback for Lightning's ``Trainer(callbacks=[…])``.

    Logs what ``dlprof.watch`` logs to the trainer's loggers, and says on stderr at the end how long
    training waited and what to run.

    Args:
        every: Batches between two logs; ``None`` for the trainer's ``log_every_n_steps``. An epoch
            that ends logs, too.
        tune: Whether the training loaders tune themselves, as by ``dlprof.tune``.
    """
    older = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
    module = "pytorch_lightning" if older else "lightning.pytorch"
    base = importlib.import_module(module).Callback
    return type("DataWait", (_Lightning, base), {})(every, tune=tune)


def transformers(trainer: Any, *, every: int | None = None, tune: bool = False) -> Any:
    """A callback for ``trainer.add_callback(…)`` of the Hugging Face Trainer.

    Logs the wait through ``trainer.log``, so wherever ``report_to`` says, and says on stderr at the
    end how long training waited and what to run.

    Args:
        trainer: The one that it will be added to.
        every: Batches between two logs; ``None`` for those of the trainer's ``logging_steps``. An
            epoch's end logs, too.
        tune: Whether the training loader tunes itself, as by ``dlprof.tune``.
    """
    base = importlib.import_module("transformers").TrainerCallback
    return type("DataWait", (_Transformers, base), {})(trainer, every, tune=tune)


class _DataWait:
    """What both have: the loaders that are watched, and what is due to be logged."""

    def __init__(self, *, tune: bool = False) -> None:
        self._tune = tune
        self._watched: dict[int, Watched[Any]] = {}
        self._undo: dict[int, Callable[[], None]] = {}
        self._due: dict[str, float] = {}

    def watch(self, loader: Any, every: int, place: int = 0) -> Any:
        """Watch one of the loaders of a training; what is to be iterated in its place.

        A loader that takes another's ``place``, its number among them, counts with that.
        """
        prefix = f"{_PREFIX}{place}/" if place else _PREFIX
        if self._tune:
            tune_loader(loader)

        def log(values: dict[str, float]) -> None:
            self._due |= {f"{prefix}{key.removeprefix(_PREFIX)}": values[key] for key in values}

        if place not in self._watched:
            name = f"{_NAME} {place}" if place else _NAME
            self._watched[place] = watch(loader, log=log, every=every, name=name)
        watched = self._watched[place]
        watched._dlprof_over(loader)  # the last one may go, with its dataset and its workers
        self._undo.pop(place, lambda: None)()  # it may be the same loader, for another epoch
        try:
            self._undo[place] = watch_in_place(loader, watched)
        except TypeError:  # a list, for one
            return watched
        return loader

    def take(self) -> dict[str, float]:
        """What is due to be logged; nothing is due afterwards."""
        taken, self._due = self._due, {}
        return taken

    def flush(self) -> None:
        """Make due what is not yet so; between two batches."""
        for each in self._watched.values():
            each._dlprof_flush()

    def undo(self) -> None:
        while self._undo:  # one loader may be in two places
            self._undo.popitem()[1]()

    def last_word(self) -> None:
        """Say on stderr how long training waited, and what to run."""
        with contextlib.suppress(Exception):  # the user's code that follows keeps what was trained
            seen = [watched.summary() for watched in self._watched.values()]
            fed = [each for each in seen if each.batches]
            command = run_command()
            if command and self._tune:  # of what changes meanwhile no cause can be found
                command = f"DLPROF_TUNE=off {command}"
            if fed:
                sys.stderr.write(f"{last_word(fed, command)}\n")


class _Lightning:
    def __init__(self, every: int | None, *, tune: bool) -> None:
        super().__init__()
        self._every, self._tune = every, tune
        self._waits, self._undo = _DataWait(), contextlib.ExitStack()

    def __reduce__(self) -> Any:
        # Its class has no name to be found by.
        return functools.partial(lightning, every=self._every, tune=self._tune), ()

    def setup(self, trainer: Any, _module: Any, stage: str) -> None:
        """Have each loader watched that the trainer is about to train with.

        The strategy is asked for each loader, after the trainer's samplers are in and before the
        first iterator is made.
        """
        if stage != "fit":
            return
        self._undo.close()
        self._waits = _DataWait(tune=self._tune)
        self._place = 0
        strategy = trainer.strategy
        plain = strategy.process_dataloader

        def process_dataloader(loader: Any) -> Any:
            processed = plain(loader)
            if not trainer.training:
                return processed
            every = self._every or trainer.log_every_n_steps or sys.maxsize  # 0 logs no steps
            self._place += 1
            return self._waits.watch(processed, every, self._place - 1)

        strategy.process_dataloader = process_dataloader
        self._undo.callback(self._waits.undo)
        self._undo.callback(vars(strategy).pop, "process_dataloader", None)

    def on_train_batch_end(self, trainer: Any, *_rest: Any) -> None:
        self._log(trainer)

    def on_train_epoch_end(self, trainer: Any, *_rest: Any) -> None:
        """Log the rest of the epoch; loaders may be made again for the next."""
        self._place = 0
        self._waits.flush()
        self._log(trainer)

    def on_train_end(self, trainer: Any, _module: Any) -> None:
        """Say what to run."""
        if trainer.is_global_zero:
            self._waits.last_word()

    def teardown(self, _trainer: Any, _module: Any, stage: str) -> None:
        """Leave strategy and loaders as they were."""
        if stage == "fit":
            self._undo.close()

    def on_exception(self, _trainer: Any, _module: Any, _error: BaseException) -> None:
        self._undo.close()

    def _log(self, trainer: Any) -> None:
        values = self._waits.take()
        for logger in trainer.loggers if values else ():
            logger.log_metrics(values, step=trainer.global_step)


class _Transformers:
    def __init__(self, trainer: Any, every: int | None, *, tune: bool) -> None:
        super().__init__()
        self._trainer = trainer
        self._every, self._tune = every, tune
        self._waits, self._undo = _DataWait(), contextlib.ExitStack()
        self._each, self._loader = 1, None

    def on_train_begin(self, args: Any, state: Any, _control: Any, **given: Any) -> None:
        """Watch the loader that the trainer is about to iterate."""
        self._undo.close()
        self._waits = _DataWait(tune=self._tune)
        self._undo.callback(self._waits.undo)
        steps = max(1, int(getattr(state, "logging_steps", None) or args.logging_steps))
        logs_steps = args.logging_strategy == "steps"
        every = steps * args.gradient_accumulation_steps if logs_steps else sys.maxsize
        self._each, self._loader = self._every or every, None
        self._watch(given.get("train_dataloader"))
        self._follow_rest()

    def on_epoch_begin(self, _args: Any, _state: Any, _control: Any, **given: Any) -> None:
        """Watch it again, after the rest of an epoch in which a checkpoint was made."""
        self._watch(given.get("train_dataloader"))

    def on_step_end(self, _args: Any, _state: Any, control: Any, **_more: Any) -> None:
        self._log(control)

    def on_epoch_end(self, _args: Any, _state: Any, control: Any, **_more: Any) -> None:
        self._waits.flush()
        self._log(control)

    def on_train_end(self, _args: Any, state: Any, _control: Any, **_more: Any) -> None:
        """Leave the loader as it was, and say what to run."""
        self._undo.close()
        if state.is_world_process_zero:
            self._waits.last_word()

    def _watch(self, loader: Any) -> None:
        if loader is not None and loader is not self._loader:
            self._loader = loader
            self._waits.watch(loader, self._each)

    def _follow_rest(self) -> None:
        """Have the loader watched that a training goes on with from within an epoch.

        It is another one, of the batches that are left, and no callback is given it.
        """
        module: Any = sys.modules.get("transformers.trainer")
        skip = getattr(module, "skip_first_batches", None)
        if skip is None:
            return

        def skip_first_batches(loader: Any, *given: Any, **more: Any) -> Any:
            left, own = skip(loader, *given, **more), self._loader
            if loader is own:  # and not that of another training
                self._watch(left)
            return left

        module.skip_first_batches = skip_first_batches
        self._undo.callback(setattr, module, "skip_first_batches", skip)

    def _log(self, control: Any) -> None:
        values = self._waits.take()
        if values:
            # Not all: the trainer also prints what it logs.
            kept = ("wait_fraction", "wait_p95_s", "step_mean_s", "batches_per_s", "num_workers")
            names = [f"{_PREFIX}{key}" for key in kept]
            due = control.should_log  # its own, with the loss: it takes that for logged then
            self._trainer.log({name: values[name] for name in names if name in values})
            control.should_log = due


def last_word(seen: Sequence[WatchedLoader], command: str) -> str:
    """What a training's end says: how long it waited, and the command, if any, that says why."""
    said = f"dlprof: {verdict(seen)}"
    if is_harmless(seen, None) or not command:
        return said
    return f"{said}\n  What it waits for, and the fix: {command}"


def run_command(
    argv: Sequence[str] | None = None, main: Any = None, environ: Mapping[str, str] = os.environ
) -> str:
    """The ``dlprof run`` of this training; empty where it is no script: in a notebook.

    Its arguments are left out, as they may be secret.
    """
    argv = sys.argv if argv is None else argv
    main = sys.modules.get("__main__") if main is None else main
    if not argv or not getattr(main, "__file__", None):
        return ""
    spec = getattr(main, "__spec__", None)
    if spec is None:
        path, here = Path(argv[0]), Path.cwd()
        script = shlex.quote(str(path.relative_to(here)) if path.is_relative_to(here) else argv[0])
    else:
        script = f"-m {spec.name.removesuffix('.__main__')}"
    words = "torchrun -m dlprof run" if "TORCHELASTIC_RUN_ID" in environ else "dlprof run"
    return f"{words} {script}" + (" ARGS" if len(argv) > 1 else "")
