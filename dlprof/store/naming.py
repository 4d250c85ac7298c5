"""What a run file is called where the user names none."""

from __future__ import annotations

import re
from datetime import datetime

SUFFIX = ".dlprof.jsonl"
_LONGEST_STEM = 60


def run_file_name(target: str, now: datetime) -> str:
    """A name that tells the target and the time: ``images-20260131-142501-7k2q.dlprof.jsonl``.

    The last four characters stand for the microseconds, so that sweeps which are started in the
    same second, as the ranks of a job are, don't take each other's file.

    Args:
        target: TARGET as the user wrote it; directories and parameters are left out.
        now: The local time.

    >>> run_file_name("data/set.py:make", datetime(2026, 1, 31, 14, 25, 1, 123456))
    'set-make-20260131-142501-2n9c.dlprof.jsonl'
    """
    place, _, attribute = target.replace("\\", "/").rpartition("/")[2].partition(":")
    words = [place.removesuffix(".py")]
    if "=" not in attribute:
        words.append(attribute)
    stem = re.sub(r"[^A-Za-z0-9_.]+", "-", "-".join(words)).strip("-.")[:_LONGEST_STEM]
    return f"{stem or 'run'}-{now:%Y%m%d-%H%M%S}-{_base_36(now.microsecond)}{SUFFIX}"


def _base_36(number: int) -> str:
    """Four digits, enough for any number of microseconds."""
    digits = ""
    for _ in range(4):
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits
