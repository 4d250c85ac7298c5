"""A run as one JSON document."""

from __future__ import annotations

import json

from dlprof.records import Run
from dlprof.store.codec import to_json


def render_json(run: Run) -> str:
    """Everything that the run file holds, in one object; keys as in the run file's reference.

    Characters beyond ASCII and control characters leave as escapes.

    Args:
        run: What was measured.
    """
    document = {"schema_version": run.header.schema_version, **to_json(run)}
    return json.dumps(document, allow_nan=False) + "\n"
