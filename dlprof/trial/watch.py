"""The supervisor's side of the observer: keeps one running and survives its death."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import BinaryIO, cast

from dlprof.records import GpuUsage, Usage
from dlprof.trial.inbox import Inbox
from dlprof.trial.protocol import Channel, Message
from dlprof.trial.room import NoRoomError, room_for

_QUIT_S = 2.0


class Watcher:
    """Passes orders to an observer process, starting it anew if it has died.

    Args:
        inbox: Where its answers go, under ``source``.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._starts = 0
        self._silent = False

    @property
    def source(self) -> str:
        """The name under which the running observer's answers come in."""
        return f"observer-{self._starts}"

    def watch(self, pid: int, *, memory_bytes: int | None, reserve_bytes: int) -> None:
        """Observe the process tree under ``pid`` from now on.

        Args:
            pid: The trial's first process.
            memory_bytes: Most memory of its own before a ``memory`` message comes.
            reserve_bytes: Memory to be left to others before one comes.
        """
        if self._silent or self._process is None or self._process.poll() is not None:
            self.close()
            with contextlib.suppress(NoRoomError):  # the trial goes on unobserved
                self._start()
        self.order("watch", pid=pid, memory_bytes=memory_bytes, reserve_bytes=reserve_bytes)

    def order(self, verb: str, **details: int | None) -> None:
        """Send one order; to a dead observer it is lost, and no answer comes."""
        if self._channel is not None:
            self._channel.send({"order": verb, **details})

    def give_up(self) -> None:
        """Take the observer for dead, because it gives no answer: the next is a new one."""
        self._silent = True

    def close(self) -> None:
        """End the observer."""
        if self._process is None or self._channel is None:
            return
        self._channel.close_writing()
        try:
            self._process.wait(0.0 if self._silent else _QUIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._bury(self._process)
        self._process = self._channel = None

    @staticmethod
    def _bury(process: subprocess.Popen[bytes]) -> None:
        """Wait for one that was killed; not for long: a GPU's driver may hold it in the kernel."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_QUIT_S)

    def _start(self) -> None:
        with room_for("the observer"):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dlprof.trial.observer"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        reader = cast(BinaryIO, self._process.stdout)
        self._channel = Channel(reader, cast(BinaryIO, self._process.stdin))
        self._starts += 1
        self._silent = False
        self._inbox.listen(self.source, self._channel.hear)


def usage_of(message: Message) -> Usage:
    """Read a ``Usage`` back from an observer's answer."""
    fields = dict(message["usage"])
    fields["gpu"] = tuple(
        GpuUsage(**{**gpu, "throttle_reasons": tuple(gpu["throttle_reasons"])})
        for gpu in fields["gpu"]
    )
    return Usage(**fields)
