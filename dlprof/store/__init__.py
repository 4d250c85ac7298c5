"""Run files (``*.dlprof.jsonl``): append-only lines, one record each, the only truth of a run."""

from __future__ import annotations

from dlprof.records.codec import MismatchError, from_json, to_json
from dlprof.store.reading import read_run
from dlprof.store.writing import RunWriter, check_output, is_being_written

__all__ = [
    "MismatchError",
    "RunWriter",
    "check_output",
    "from_json",
    "is_being_written",
    "read_run",
    "to_json",
]
