"""What is said where the system starts nothing more."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from dlprof.trial.failures import NoRoomError, room_for
from dlprof.trial.inbox import Inbox
from dlprof.trial.supervisor import Watcher


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
        pytest.raises(NoRoomError, match="does not start the observer") as caught,
        room_for("the observer"),
    ):
        raise error

    assert remedy in caught.value.hint


@pytest.mark.parametrize("error", [refused(errno.ENOENT), RuntimeError("dictionary changed")])
def test_other_errors_are_not(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error).rpartition("] ")[2]), room_for("it"):
        raise error


def test_an_inbox_without_a_thread_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(NoRoomError):
        Inbox().listen("trial-1", lambda: None)


def test_a_trial_goes_on_without_an_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    def popen(*_words: object, **_details: object) -> None:
        raise refused(errno.EAGAIN)

    monkeypatch.setattr("dlprof.trial.supervisor.subprocess.Popen", popen)
    watcher = Watcher(Inbox())
    watcher.watch(1, memory_bytes=None, reserve_bytes=0)
    watcher.order("start")
    watcher.close()
