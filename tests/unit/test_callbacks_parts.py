"""What callbacks say at the end of a training, and what they do to loaders of odd classes."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import dlprof
from dlprof.integrations import callbacks
from dlprof.integrations.callbacks import _DataWait, last_word, run_command
from dlprof.integrations.watch import watch_in_place
from dlprof.records import WatchedLoader


def _main(file: str | None = "train.py", module: str = "") -> types.ModuleType:
    main = types.ModuleType("__main__")
    if file is not None:
        main.__file__ = file
    main.__spec__ = ModuleSpec(module, None) if module else None
    return main


def _seen(waited_s: float) -> WatchedLoader:
    return WatchedLoader(
        name="train_dataloader",
        kind="DataLoader",
        dataset="",
        sampler="",
        config=None,
        batches=10,
        waited_s=waited_s,
        stepped_s=10.0 - waited_s,
        wait_fraction=waited_s / 10.0,
        unavailable={"config": "it is a test's"},
    )


@pytest.mark.parametrize(
    ("argv", "main", "environ", "command"),
    [
        (["train.py"], _main(), {}, "dlprof run train.py"),
        (["my train.py", "--token", "secret"], _main(), {}, "dlprof run 'my train.py' ARGS"),
        (["/x/pkg/t.py", "1"], _main(module="pkg.t"), {}, "dlprof run -m pkg.t ARGS"),
        (["/x/pkg/__main__.py"], _main(module="pkg.__main__"), {}, "dlprof run -m pkg"),
        (
            ["train.py"],
            _main(),
            {"TORCHELASTIC_RUN_ID": "1"},
            "torchrun -m dlprof run train.py",
        ),
        (["ipykernel"], _main(file=None), {}, ""),
    ],
)
def test_what_to_run_names_the_script_and_no_argument_of_it(
    argv: list[str], main: types.ModuleType, environ: dict[str, str], command: str
) -> None:
    assert run_command(argv, main, environ) == command


def test_the_last_word_names_a_command_only_where_there_is_something_to_find() -> None:
    assert last_word([_seen(4.0)], "dlprof run train.py").endswith("dlprof run train.py")
    assert "spends 40%" in last_word([_seen(4.0)], "dlprof run train.py")
    assert "dlprof run" not in last_word([_seen(0.1)], "dlprof run train.py")
    assert last_word([_seen(4.0)], "").count("\n") == 0


class _Slotted:
    __slots__ = ("numbers",)

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)


def test_objects_with_slots_are_watched_in_place_and_lists_are_not() -> None:
    slotted = _Slotted(1, 2)
    watched = dlprof.watch(slotted)
    undo = watch_in_place(slotted, watched)
    assert list(slotted) == [1, 2]
    undo()
    assert type(slotted) is _Slotted
    assert watched.summary().batches == 2
    with pytest.raises(TypeError):
        watch_in_place([1, 2], dlprof.watch([1, 2]))


def test_a_flush_logs_what_is_left_once() -> None:
    shown: list[dict[str, float]] = []
    watched = dlprof.watch([1, 2, 3], log=shown.append, every=2)
    assert list(watched) == [1, 2, 3]
    watched._dlprof_flush()
    watched._dlprof_flush()
    assert [each["dlprof/batches"] for each in shown] == [2.0, 3.0]
    assert list(watched) == [1, 2, 3]
    assert [each["dlprof/batches"] for each in shown] == [2.0, 3.0, 5.0]


def test_a_training_whose_folder_is_gone_comes_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, waits, loader = tmp_path / "gone", _DataWait(), _Slotted(1, 2)
    folder.mkdir()
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setitem(sys.modules, "__main__", _main())
    monkeypatch.chdir(folder)
    folder.rmdir()
    waits.watch(loader, every=1)
    assert list(loader) == [1, 2]
    waits.last_word()
    waits.undo()


def test_what_to_run_has_a_loader_that_tunes_itself_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(callbacks, "run_command", lambda: "dlprof run train.py")
    monkeypatch.setattr(callbacks, "is_harmless", lambda *_: False)
    for tune in (False, True):
        waits, loader = _DataWait(tune=tune), _Slotted(1, 2)
        waits.watch(loader, every=1)
        assert list(loader) == [1, 2]
        waits.last_word()
        waits.undo()
    said = [line.rpartition(": ")[2] for line in capsys.readouterr().err.splitlines()]
    assert said[1::2] == ["dlprof run train.py", "DLPROF_TUNE=off dlprof run train.py"]


@pytest.mark.parametrize("due", [False, True])
def test_what_a_trainer_is_about_to_log_itself_stays_due(*, due: bool) -> None:
    """Its loss: it takes that for logged whenever anything is."""
    logged, control = list[dict[str, float]](), types.SimpleNamespace(should_log=due)

    def log(values: dict[str, float]) -> None:
        logged.append(values)
        control.should_log = False

    callback = callbacks._Transformers(types.SimpleNamespace(log=log), None, tune=False)
    for event in (callback.on_step_end, callback.on_epoch_end):
        callback._waits._due = {"dlprof/wait_fraction": 0.5}
        event(None, None, control)
        assert control.should_log is due
    assert logged == [{"dlprof/wait_fraction": 0.5}] * 2


@pytest.mark.parametrize("every", [1, 0])
def test_lightnings_trainer_that_logs_no_steps_has_epochs_logged_alone(every: int) -> None:
    steps = list[int]()
    logger = types.SimpleNamespace(log_metrics=lambda _values, step: steps.append(step))
    trainer = types.SimpleNamespace(
        strategy=types.SimpleNamespace(process_dataloader=lambda loader: loader),
        training=True,
        log_every_n_steps=every,
        loggers=[logger],
    )
    callback = callbacks._Lightning(None, tune=False)
    callback.setup(trainer, None, "fit")
    loader = trainer.strategy.process_dataloader(_Slotted(*range(9)))
    for trainer.global_step, _ in enumerate(loader, 1):
        callback.on_train_batch_end(trainer)
    assert bool(steps) is bool(every)
    callback.on_train_epoch_end(trainer)
    assert steps[-1:] == [9]
    callback.teardown(trainer, None, "fit")


@pytest.mark.parametrize("strategy", ["steps", "epoch", "no"])
def test_hugging_faces_trainer_that_logs_no_steps_has_epochs_logged_alone(strategy: str) -> None:
    logged, control = list[dict[str, float]](), types.SimpleNamespace(should_log=False)
    trainer = types.SimpleNamespace(log=logged.append)
    callback = callbacks._Transformers(trainer, None, tune=False)
    given = types.SimpleNamespace(
        logging_steps=1, gradient_accumulation_steps=1, logging_strategy=strategy
    )
    loader = _Slotted(*range(9))
    callback.on_train_begin(given, given, None, train_dataloader=loader)
    for _ in loader:
        callback.on_step_end(given, given, control)
    assert bool(logged) is (strategy == "steps")
    callback.on_epoch_end(given, given, control)
    assert logged


def test_the_rest_of_an_epoch_after_a_checkpoint_is_watched_and_then_the_loader_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hugging Face's Trainer makes another loader for it, and gives that to no callback."""

    def skip(loader: _Slotted, count: int) -> _Slotted:
        return _Slotted(*loader.numbers[count:])

    module = types.SimpleNamespace(skip_first_batches=skip)
    monkeypatch.setitem(sys.modules, "transformers.trainer", module)
    logged, control = list[dict[str, float]](), types.SimpleNamespace(should_log=False)
    trainer = types.SimpleNamespace(log=logged.append, is_world_process_zero=False)
    callback = callbacks._Transformers(trainer, None, tune=False)
    given = types.SimpleNamespace(
        logging_steps=1, gradient_accumulation_steps=1, logging_strategy="steps"
    )
    loader, other = _Slotted(*range(5)), _Slotted(*range(5))
    callback.on_train_begin(given, given, None, train_dataloader=loader)
    callback.on_epoch_begin(given, given, None, train_dataloader=loader)
    left = module.skip_first_batches(loader, 3)
    assert list(left) == [3, 4]
    callback.on_epoch_begin(given, given, None, train_dataloader=loader)
    assert type(module.skip_first_batches(other, 3)) is _Slotted  # another training's
    assert list(loader) == [0, 1, 2, 3, 4]
    (watched,) = callback._waits._watched.values()
    assert watched.summary().batches == 7
    callback.on_train_end(given, trainer, control)
    assert module.skip_first_batches is skip
    assert type(loader) is type(left) is _Slotted


class _Row(list[int]):
    """A loader that can be watched going."""


def test_a_loader_that_is_made_again_for_each_epoch_is_let_go() -> None:
    """With a dataset that may be all of the memory."""
    waits, known = _DataWait(), list[weakref.ref[_Row]]()
    for _ in range(3):
        loader = _Row([1, 2])
        known.append(weakref.ref(loader))
        assert [*waits.watch(loader, every=1)] == [1, 2]
    assert [each() is None for each in known] == [True, True, False]
    assert waits.take()["dlprof/batches"] == 6.0
    waits.undo()
