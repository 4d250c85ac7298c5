"""Where the system starts no further process or thread."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from dlprof.errors import NothingMeasuredError
from dlprof.trial import remedies


class NoRoomError(NothingMeasuredError):
    """The system starts no further process or thread."""


def remedy(number: int | None) -> str:
    """What to do about a process that can't be started, by the ``errno`` of the attempt."""
    return remedies.FREE_MEMORY if number == errno.ENOMEM else remedies.MORE_PROCESSES


@contextlib.contextmanager
def room_for(what: str) -> Iterator[None]:
    """Say plainly that there is no room for what is started within.

    Args:
        what: It, for people: ``the process that builds the target``.

    Raises:
        NoRoomError: It can't be started.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.ENOMEM):
            raise
        reason = error.strerror or str(error)
        raise NoRoomError(
            f"The system does not start {what}: {reason}.", hint=remedy(error.errno)
        ) from error
    except RuntimeError as error:  # threading's own words
        if "can't start new thread" not in str(error):
            raise
        raise NoRoomError(
            f"The system does not start {what}: {error}.", hint=remedies.MORE_PROCESSES
        ) from error
