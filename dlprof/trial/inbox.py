"""One queue for everything that other processes say to the supervisor."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable

from dlprof.trial.failures import resource_limits
from dlprof.trial.protocol import Message


@dataclasses.dataclass(frozen=True, slots=True)
class Received:
    """One message and who sent it; a message of ``None`` is the end of that sender's stream."""

    source: str
    message: Message | None


class Inbox:
    """Collects messages from several streams, each read by a thread of its own.

    Threads and not ``select``, because pipes can't be selected on everywhere; the supervisor
    never forks, so its threads harm nobody.
    """

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Received] = queue.SimpleQueue()

    def listen(self, source: str, receive: Callable[[], Message | None]) -> None:
        """Read a stream to its end in the background.

        Raises:
            ResourceLimitError: The system starts no thread for that.
        """

        def read() -> None:
            message: Message | None = {}
            while message is not None:
                message = receive()
                self._events.put(Received(source, message))

        with resource_limits("a thread that listens"):
            threading.Thread(target=read, name=f"dlprof-{source}", daemon=True).start()

    def put(self, event: Received) -> None:
        """Add an event of the supervisor's own."""
        self._events.put(event)

    def get(self, timeout_s: float) -> Received | None:
        """The next event, or ``None`` if none comes in time."""
        try:
            return self._events.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None
