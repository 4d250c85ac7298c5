"""Faults and their names, by the texts that torch and the system use."""

from __future__ import annotations

import errno
import os
import threading
import types
from collections.abc import Callable
from multiprocessing.connection import Client
from typing import Any, cast

import pytest
from torch._utils import ExceptionWrapper

from dlprof.errors import TargetError
from dlprof.trial import child
from dlprof.trial.failures import (
    COLLATABLE,
    NOT_NONE,
    ResourceLimitError,
    blame_log,
    classify,
    died,
    ended,
    last_lines,
    outcome_of,
    resource_limits,
)
from dlprof.trial.measure import EmptyLoaderError
from dlprof.trial.protocol import Channel
from dlprof.trial.runtime import Inbox
from dlprof.trial.supervisor import ObserverProcess


def outer(cause: BaseException) -> RuntimeError:
    """As torch raises it: the outer message says little, the cause says what happened."""
    error = RuntimeError("DataLoader worker (pid(s) 77) exited unexpectedly")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (outer(RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")), "signal"),
        (
            outer(
                RuntimeError(
                    "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that "
                    "dataloader's workers are out of shared memory. insufficient shared memory"
                )
            ),
            "shared_memory",
        ),
        (
            RuntimeError("unable to write to file </torch_7_1_0>: No space left on device (28)"),
            "shared_memory",
        ),
        (
            outer(RuntimeError("DataLoader worker (pid 7) exited unexpectedly with exit code 3.")),
            "exit",
        ),
        (OSError(24, "Too many open files"), "file_descriptors"),
        (RuntimeError("received 0 items of ancdata"), "file_descriptors"),
        (RuntimeError("Cannot re-initialize CUDA in forked subprocess."), "cuda_fork"),
        (AttributeError("Can't get local object 'make.<locals>.Data'"), "not_picklable"),
        (TypeError("cannot pickle '_io.BufferedReader' object"), "not_picklable"),
        (RuntimeError("DataLoader timed out after 5.0 seconds"), "timeout"),
        (KeyError("sample 7"), "worker_exception"),
        (EmptyLoaderError(), "empty"),
        (TargetError("No such step.", hint="Name one."), "target_error"),
    ],
)
def test_every_fault_has_its_name_and_a_remedy(error: Exception, kind: str) -> None:
    failure = classify(error)

    assert failure.kind in {kind, f"worker_{kind}"}
    assert failure.message
    assert failure.hint


def test_an_exception_names_where_it_was_raised() -> None:
    passed_on = ValueError("Caught ValueError in DataLoader worker process 0.\nValueError: bad")

    assert classify(passed_on).message == "ValueError in a worker process: bad"
    assert classify(KeyError("x")).message == "KeyError in the main process: 'x'"
    shown = classify(ValueError("bad 37\nsecond line")).message
    assert shown == "ValueError in the main process: bad 37"


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise LookupError("nothing can be said")


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (UnreadableError(), "UnreadableError in a worker process: <exception str() failed>"),
        (
            ExceptionGroup("two at once", [KeyError(1), KeyError(2)]),
            "ExceptionGroup in a worker process: two at once (2 sub-exceptions)",
        ),
        (ValueError("one\ntwo"), "ValueError in a worker process: one"),
        (ValueError("\r boom"), "ValueError in a worker process: boom"),
    ],
)
def test_what_torch_cannot_raise_again_is_still_reported(raised: Exception, message: str) -> None:
    """It makes an exception of the same type of one message, and some don't let it."""
    wrapper: Any = ExceptionWrapper
    try:
        raise raised
    except type(raised):
        wrapped = wrapper(where="in DataLoader worker process 0")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - what comes out is the question
        wrapped.reraise()
    failure = classify(caught.value)

    assert failure.kind == "worker_exception"
    assert failure.message == message
    assert "test_trial_failures.py" in failure.stderr_tail


def test_an_exception_that_says_nothing_is_named() -> None:
    assert classify(ValueError()).message == "ValueError in the main process."


def broken_link() -> OSError:
    try:
        Client("/nowhere", "AF_UNIX")
    except OSError as error:
        return error
    raise AssertionError("there is nothing to connect to")


@pytest.mark.parametrize(
    ("codes", "kind", "shown"),
    [
        ((-9, 0), "worker_signal", "SIGKILL"),
        ((2,), "worker_exit", "exit code 2"),
        ((), "worker_exit", "FileNotFoundError"),
    ],
)
def test_a_worker_that_is_gone_when_its_batch_is_fetched(
    codes: tuple[int, ...], kind: str, shown: str
) -> None:
    failure = classify(broken_link(), codes)

    assert failure.kind == kind
    assert shown in failure.message


def test_a_worker_that_had_no_more_to_load_is_not_to_blame() -> None:
    """As that of an iterable dataset's last shard, of which torch asks nothing more."""
    sentinels, others = zip(*(os.pipe() for _ in range(3)), strict=True)
    for each in others[:2]:  # the third worker lives
        os.close(each)
    codes: list[int | None] = [0, None, None]

    def worker(number: int) -> Any:
        def join(_timeout: float) -> None:  # it has quite ended when that returns
            codes[number] = -9

        kind = type("Worker", (), {"exitcode": property(lambda _self: codes[number])})
        made: Any = kind()
        made.sentinel, made.join = sentinels[number], join
        return made

    session = child.Session(Channel.of_descriptors(*os.pipe()))
    session.loop = cast("Any", types.SimpleNamespace(workers=[*map(worker, range(3))]))
    assert session._exit_codes() == (-9, 0)
    for each in (*sentinels, others[2]):
        os.close(each)


def test_a_crash_is_known_by_what_torch_wrote_of_it() -> None:
    lost = classify(broken_link(), [255])
    log = "ERROR: Unexpected segmentation fault encountered in worker.\n"

    assert blame_log(lost, "").kind == "worker_exit"
    assert blame_log(lost, log).kind == "worker_signal"
    assert "segmentation fault" in blame_log(lost, log).message


def test_want_of_descriptors_is_not_taken_for_want_of_shared_memory() -> None:
    text = "unable to open shared memory object </torch_7_1_0> in read-write mode: "

    assert classify(RuntimeError(f"{text}Too many open files (24)")).kind == "file_descriptors"


def test_causes_that_go_in_a_circle_end() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one

    assert classify(one).kind == "worker_exception"


def test_the_status_of_a_dead_process_is_spelt_out() -> None:
    assert "SIGSEGV" in died(-11, "").message
    assert "signal 99" in died(-99, "").message
    assert "exit code 3" in died(3, "").message


def test_outcomes() -> None:
    assert outcome_of(classify(RuntimeError("DataLoader timed out after 1"))) == "timed_out"
    assert outcome_of(classify(KeyError("x"))) == "crashed"


def test_a_long_log_is_cut_to_its_end() -> None:
    cut = last_lines("".join(f"line {number}\n" for number in range(10_000)))

    assert cut.endswith("line 9999")
    assert len(cut.splitlines()) == 30


class _Verbatim(str):
    """As torch passes a KeyError's message on, whose ``str`` would else be its ``repr``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


_WORKERS = (
    "Caught {name} in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
    "  File \"{file}\", line 190, in <dictcomp>\n    [d[key] for d in batch]\n{name}: 'label'\n"
)
_COLLATE = "/lib/torch/utils/data/_utils/collate.py"


@pytest.mark.parametrize(
    ("error", "file", "kind"),
    [
        (KeyError, _COLLATE, "inconsistent_batches"),
        (TypeError, _COLLATE, "inconsistent_batches"),
        (KeyError, "/home/me/collate.py", "worker_exception"),
        (LookupError, _COLLATE, "worker_exception"),
    ],
)
def test_samples_that_are_not_alike(error: type[Exception], file: str, kind: str) -> None:
    failure = classify(error(_Verbatim(_WORKERS.format(name=error.__name__, file=file))))
    assert failure.kind == kind
    if kind == "inconsistent_batches":
        assert "collate_fn" in failure.hint
        assert "keys" in failure.hint


@pytest.mark.parametrize(
    "error",
    [
        TypeError("expected Tensor as element 3 in argument 0, but got NoneType"),
        AttributeError(
            _Verbatim(
                f"{_WORKERS.format(name='AttributeError', file=_COLLATE)}\n"
                "AttributeError: 'NoneType' object has no attribute 'numel'"
            )
        ),
    ],
)
def test_a_sample_that_is_none_is_what_the_remedy_is_about(error: Exception) -> None:
    failure = classify(error)
    assert (failure.kind, failure.hint) == ("inconsistent_batches", NOT_NONE)


def test_a_type_that_torch_can_not_collate_has_a_remedy_of_its_own() -> None:
    text = "default_collate: batch must contain tensors, ...; found <class 'object'>"
    failure = classify(TypeError(text))
    assert (failure.kind, failure.hint) == ("worker_exception", COLLATABLE)
    # What torch says of the first sample, where a later one is as above.
    assert classify(TypeError(text.replace("object", "NoneType"))).hint == NOT_NONE


def test_what_a_new_worker_could_not_unpickle_is_named_from_the_log() -> None:
    log = (
        "Traceback (most recent call last):\n"
        '  File "<string>", line 1, in <module>\n'
        '  File "/lib/multiprocessing/spawn.py", line 122, in spawn_main\n'
        "    exitcode = _main(fd, parent_sentinel)\n"
        "               ^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        '  File "/lib/multiprocessing/spawn.py", line 132, in _main\n'
        "    self = reduction.pickle.load(from_parent)\n"
        "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        '  File "data.py", line 7, in __setstate__\n'
        "FileNotFoundError: no such index\n"
    )
    lost = classify(RuntimeError("DataLoader worker (pid 7) exited unexpectedly"), [1])
    named = blame_log(lost, log)
    assert named.kind == "not_picklable"
    assert "FileNotFoundError: no such index" in named.message
    assert "--start-method fork" in named.hint
    assert blame_log(lost, "FileNotFoundError: no such index\n") == lost


@pytest.mark.parametrize(
    ("status", "text"),
    [(-9, "was ended by SIGKILL"), (0, "ended with exit code 0"), (-77, "was ended by signal 77")],
)
def test_how_a_process_ended(status: int, text: str) -> None:
    assert ended(status) == text


def raised_here(error: Exception) -> Exception:
    """As it comes out of the user's own code in the main process."""
    try:
        raise error
    except type(error) as raised:
        return raised


def passed_on(error: Exception) -> Exception:
    """As it comes out of the user's own code in a worker, through torch."""
    wrapper: Any = ExceptionWrapper
    try:
        raise error
    except type(error):
        wrapped = wrapper(where="in DataLoader worker process 0")
    try:
        wrapped.reraise()
    except Exception as again:  # torch makes it again, mostly of the same type
        return again
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("comes", [raised_here, passed_on])
@pytest.mark.parametrize(
    "error",
    [
        BlockingIOError(11, "unable to lock file: Resource temporarily unavailable"),
        OSError(28, "No space left on device", "/data/cache/7.pt"),
        OSError(12, "Cannot allocate memory"),
        TypeError("cannot pickle '_thread.lock' object"),
        RuntimeError("ffmpeg was killed by signal 9"),
        RuntimeError("the decoder exited unexpectedly on 7.mp4"),
    ],
    ids=str,
)
def test_the_users_own_errors_are_not_taken_for_those_of_loading(
    error: Exception, comes: Callable[[Exception], Exception]
) -> None:
    failure = classify(comes(error))

    assert failure.kind == "worker_exception", failure
    assert type(error).__name__ in failure.message
    assert "traceback" in failure.hint


_SAID_BY_LOADING = (
    "Caught {error} in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
    '  File "/home/me/data.py", line 7, in __getitem__\n    start()\n'
    '  File "{file}", line 66, in _launch\n    os.fork()\n{error}: {text}\n'
)


@pytest.mark.parametrize(
    ("file", "text", "kind"),
    [
        ("/lib/multiprocessing/popen_fork.py", "Resource temporarily unavailable", "start_failed"),
        ("/lib/subprocess.py", "Resource temporarily unavailable", "start_failed"),
        ("/lib/multiprocessing/synchronize.py", "No space left on device", "shared_memory"),
        ("/lib/torch/storage.py", "No space left on device", "shared_memory"),
    ],
)
def test_what_loading_itself_says_in_a_worker_counts(file: str, text: str, kind: str) -> None:
    said = _SAID_BY_LOADING.format(error="OSError", file=file, text=text)

    assert classify(OSError(said)).kind == kind


def refused(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (refused(errno.EAGAIN), "ulimit -u"),
        (refused(errno.ENOMEM), "ulimit -v"),
        (refused(errno.ENOSPC), "TMPDIR"),
        (refused(errno.EMFILE), "ulimit -n"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
    ],
)
def test_want_of_room_is_named(error: Exception, remedy: str) -> None:
    with (
        pytest.raises(ResourceLimitError, match="does not start the observer") as caught,
        resource_limits("the observer"),
    ):
        raise error

    assert remedy in caught.value.hint


@pytest.mark.parametrize("error", [refused(errno.ENOENT), RuntimeError("dictionary changed")])
def test_other_errors_are_not(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error).rpartition("] ")[2]), resource_limits("it"):
        raise error


def test_an_inbox_without_a_thread_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(ResourceLimitError):
        Inbox().listen("trial-1", lambda: None)


def test_a_trial_goes_on_without_an_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    def popen(*_words: object, **_details: object) -> None:
        raise refused(errno.EAGAIN)

    monkeypatch.setattr("dlprof.trial.runtime.subprocess.Popen", popen)
    watcher = ObserverProcess(Inbox())
    watcher.watch(1, memory_bytes=None, reserve_bytes=0)
    watcher.order("start")
    watcher.close()
