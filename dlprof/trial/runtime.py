"""Processes of dlprof's own, seen from outside: started, talked to, timed, ended, cleaned up after.

What they run is a module of dlprof's: the fork server, a trial's child, the observer, a side of a
check, the process that copies. Inside, ``dlprof.trial.protocol`` serves what is ordered here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from dlprof.trial.failures import resource_limits
from dlprof.trial.processes import end_group
from dlprof.trial.protocol import Channel, Message

GRACE_S = 1.0  # how long processes may take to end after they were asked, before they are forced

_SHOWN_BYTES = 1 << 16
_HEAD_BYTES = _SHOWN_BYTES // 4
"""Of what is shown, from the beginning: what went wrong first stands there."""

MOST_BYTES = 16 * _SHOWN_BYTES  # a log is cut where it is found to be longer


@dataclasses.dataclass(frozen=True, slots=True)
class Received:
    """One message and who sent it; a message of ``None`` is the end of that sender's stream."""

    source: str
    message: Message | None


class Inbox:
    """Collects messages from several streams, each read by a thread of its own.

    Threads and not ``select``, because pipes can't be selected on everywhere; the supervisor
    never forks, so its threads harm nobody.

    Args:
        pulse: Called now and then while nothing comes.
    """

    def __init__(self, pulse: Callable[[], object] = lambda: None) -> None:
        self._messages: queue.SimpleQueue[Received] = queue.SimpleQueue()
        self._pulse = pulse

    def listen(self, source: str, receive: Callable[[], Message | None]) -> None:
        """Read a stream to its end in the background."""

        def read() -> None:
            message: Message | None = {}
            while message is not None:
                message = receive()
                self._messages.put(Received(source, message))

        with resource_limits("a thread that listens"):
            threading.Thread(target=read, name=f"dlprof-{source}", daemon=True).start()

    def put(self, received: Received) -> None:
        """Add a message of the supervisor's own."""
        self._messages.put(received)

    def get(self, timeout_s: float) -> Received | None:
        """The next message, or ``None`` if none comes in time."""
        left_s = max(0.0, timeout_s)
        while True:
            with contextlib.suppress(queue.Empty):
                return self._messages.get(timeout=min(left_s, 0.5))
            self._pulse()
            left_s -= 0.5
            if left_s <= 0:
                return None


class ModuleProcess:
    """A process that runs a module of dlprof's, takes orders and answers by messages.

    It is the first of a session of its own, so that all that it starts is ended with it.
    """

    def __init__(
        self,
        command: Sequence[str],  # the interpreter, ``-m``, the module and its arguments
        *,
        what: str,  # it, for people, where the system doesn't start it: ``the observer``
        inbox: Inbox,  # where what it says goes, under ``source``
        source: str,  # a name of its own in the inbox
        log: IO[bytes] | None = None,  # what it prints goes there; nowhere without one
        cwd: Path | None = None,  # its working directory; this process's without one
        env: Mapping[str, str] | None = None,  # its environment; this process's without one
        # Whether it talks over a socket, whose descriptor is its last argument, and not over its
        # standard streams.
        over_socket: bool = False,
    ) -> None:
        self.source = source
        self.log = None if log is None else TrialLog(log)
        self.link: socket.socket | None = None
        self._inbox = inbox
        self._is_gone = False
        words, prints = list(command), subprocess.DEVNULL if log is None else log
        streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with contextlib.ExitStack() as theirs, resource_limits(what):
            if over_socket:
                self.link, other = socket.socketpair()
                given = theirs.enter_context(other).fileno()
                words.append(str(given))
                streams = {"stdin": subprocess.DEVNULL, "stdout": prints, "pass_fds": [given]}
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                words, stderr=prints, cwd=cwd, env=env, start_new_session=True, **streams
            )
        self.pid = self._process.pid  # its group's as well
        if self.link is not None:
            self.channel = Channel.of_socket(self.link)
        else:
            reader, writer = self._process.stdout, self._process.stdin
            self.channel = Channel(cast(BinaryIO, reader), cast(BinaryIO, writer))
        try:
            inbox.listen(source, self.channel.hear)
        except BaseException:
            self.end()
            raise

    def order(self, name: str, **details: Any) -> None:
        """Order something; a process that has ended doesn't hear of it."""
        self.channel.send({"order": name, **details})

    def answer(self, patience_s: float) -> Received | None:
        """What it says next, its end too; ``None`` where nothing comes in time.

        Counted in looks and not by a clock, which runs on while this process is stopped. What it
        has started may hold its streams open beyond its end.
        """
        left_s, others = patience_s, list[Received]()
        while True:
            had_ended = self.has_ended()
            received = self._inbox.get(min(left_s, 0.25))
            if received is None and had_ended:
                received = Received(self.source, None)
            if self.log is not None:
                self.log.trim()
            if received is not None and received.source != self.source:
                others.append(received)
                continue
            left_s -= 0.25
            if received is not None or left_s <= 0:
                for other in others:  # whoever waits for those comes next
                    self._inbox.put(other)
                return received

    def has_ended(self) -> bool:
        """Whether it runs no more."""
        return self._process.poll() is not None

    def status(self, patience_s: float | None = None) -> int:
        """Its exit status, as soon as it has ended; 0 if it doesn't in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        return self._process.returncode or 0

    def pause(self) -> None:
        """Stop it and all of its group until ``resume``, where there are process groups."""
        self._signal("SIGSTOP")

    def resume(self) -> None:
        """Let it go on, if it was stopped."""
        self._signal("SIGCONT")

    def _signal(self, name: str) -> None:
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, getattr(signal, name))

    def kill(self, linger_s: float = 0.0) -> None:
        """End it and all that it started by force, unless all ends by itself in time.

        Once it is gone nothing more is done: its number may be another's by then.
        """
        if not self._is_gone:
            end_group(self.pid, linger_s=linger_s, grace_s=GRACE_S, reap=self._process.poll)
            self._is_gone = self.has_ended()

    def end(self, patience_s: float = 0.0) -> None:
        """Say that nothing more comes; what then hasn't ended in time is ended by force."""
        self.channel.close_writing()
        if self.link is not None:
            with contextlib.suppress(OSError):
                self.link.shutdown(socket.SHUT_RDWR)
            self.channel.close()
            self.link.close()
        self.status(patience_s)
        self.kill()
        self.status(GRACE_S)  # not for ever: a GPU's driver may hold it in the kernel


def open_log(path: Path) -> IO[bytes]:
    """A new file for a log, to which each process appends, whatever another has cut off.

    Raises:
        OSError: It can't be created.
    """
    return path.open("a+b")


class TrialLog:
    """Reads a log, from ``open_log``, that other processes append to, and keeps it from growing."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self._head = b""
        self._cut_bytes = 0  # cut off since, of which the end is in ``_last``
        self._last = b""

    def size(self) -> int:
        """Bytes written so far, those included that were cut off."""
        return self._cut_bytes + self._kept_bytes()

    def trim(self) -> bool:
        """Cut the log off where it has become too long; its beginning and its end are remembered.

        True where it had: somebody writes a lot.
        """
        kept = self._kept_bytes()
        if kept <= MOST_BYTES:
            return False
        if not self._cut_bytes:
            self._head = self._read(0, _HEAD_BYTES)
        self._last = self._read(kept - _SHOWN_BYTES, _SHOWN_BYTES)
        with contextlib.suppress(OSError):
            os.ftruncate(self.file.fileno(), 0)
            self._cut_bytes += kept
        return True

    def text(self, since: int = 0) -> str:
        """What was written after ``since``: at most 64 KiB of it, the beginning and the end."""
        kept = self._kept_bytes()
        size = self._cut_bytes + kept
        # The last bytes that are still there.
        written = self._read(max(0, kept - _SHOWN_BYTES), _SHOWN_BYTES)
        ends = (self._last + written)[-_SHOWN_BYTES:]
        wanted = max(0, size - since)
        if wanted <= min(_SHOWN_BYTES, len(ends)):
            return ends[len(ends) - wanted :].decode(errors="replace")
        head = b"" if since else self._head or self._read(0, _HEAD_BYTES)
        tail = ends[len(head) - _SHOWN_BYTES :]
        note = f"\n[... {wanted - len(head) - len(tail):,} bytes are left out here ...]\n"
        return head.decode(errors="replace") + note + tail.decode(errors="replace")

    def _kept_bytes(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    def _read(self, start: int, count: int) -> bytes:
        with contextlib.suppress(OSError), Path(self.file.name).open("rb") as reader:
            # A file of its own, because the position of the other belongs to those who write.
            reader.seek(start)
            return reader.read(count)
        return b""
