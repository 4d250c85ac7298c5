"""Where the system has no room for a further process, thread, file or descriptor."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from dlprof.errors import NothingMeasuredError
from dlprof.trial import remedies

_REMEDIES = {
    errno.EAGAIN: remedies.MORE_PROCESSES,
    errno.ENOMEM: remedies.FREE_MEMORY,
    errno.ENOSPC: remedies.FREE_DISK,
    errno.EDQUOT: remedies.FREE_DISK,
    errno.EMFILE: remedies.MORE_FILES_HERE,
    errno.ENFILE: remedies.MORE_FILES_HERE,
}


class NoRoomError(NothingMeasuredError):
    """The system has no room for what is to be started."""


def remedy(number: int) -> str:
    """What to do about what can't be started, by the ``errno`` of the attempt."""
    return _REMEDIES.get(number, remedies.MORE_PROCESSES)


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
        if error.errno not in _REMEDIES:
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
