"""Runs ``plain_loop.py`` and asks it for figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

PREFETCH_FACTOR = 2
"""What the plain loop sets where there are workers; torch's own default."""

_PROGRAM = Path(__file__).with_name("plain_loop.py")


class PlainLoop:
    """A loop timed by hand, beside dlprof.

    Args:
        target: TARGET.
        fresh: Whether each figure is taken in an interpreter of its own.
        shuffle: Whether a bare dataset is shuffled.
    """

    def __init__(self, target: str, *, fresh: bool = False, shuffle: bool = False) -> None:
        self._command = [
            sys.executable,
            "-W",
            "ignore",
            str(_PROGRAM),
            target,
            *(["--shuffle"] * shuffle),
        ]
        self._fresh = fresh
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The process under which the loops run; starts it."""
        return self._running().pid

    def samples_per_s(self, num_workers: int, batches: int) -> float:
        """The rate of one configuration over so many batches.

        They are those that dlprof's window begins with: others of the same dataset may take longer.

        Raises:
            RuntimeError: The loop failed; it has said why on standard error.
        """
        process = self._running()
        stdin, stdout = cast(Any, process.stdin), cast(Any, process.stdout)
        request = {
            "num_workers": num_workers,
            "warm_up": num_workers * PREFETCH_FACTOR + num_workers + 1,
            "batches": batches,
        }
        print(json.dumps(request), file=stdin, flush=True)
        answer = stdout.readline()
        if not answer:
            raise RuntimeError("the plain loop failed")
        if self._fresh:
            self.close()
        return float(json.loads(answer)["samples_per_s"])

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        return self._process

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.communicate()
            self._process = None
