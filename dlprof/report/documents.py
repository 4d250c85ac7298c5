"""The JSON documents that ``--json`` prints; keys of the contract, units in their names.

Non-ASCII and control characters leave as JSON escapes, so a terminal has nothing to act on.
"""

from __future__ import annotations

import dataclasses
import json

from dlprof.errors import DlprofError
from dlprof.records import SCHEMA_VERSION, BatchCosts, Cost, Recommendation, Run
from dlprof.store.codec import to_json


def sweep_document(run: Run) -> str:
    """What ``dlprof sweep --json`` prints.

    Args:
        run: The finished run; of one that did not end, the cost is that of its trials.
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "run_file": run.path,
        "run_id": run.header.run_id,
        "machine": run.header.machine,
        "target": run.header.target,
        "trials": run.trials,
        "left_out": run.header.left_out,
        "prediction": run.prediction,
        "recommendation": run.recommendation,
        "ended": run.end.reason if run.end is not None else None,
        "cost_s": run.end.cost_s if run.end is not None else _cost_of_trials(run),
    }
    return json.dumps(to_json(document), allow_nan=False, indent=2)


def profile_document(run: Run, fault: DlprofError | None = None) -> str:
    """What ``dlprof profile --json`` prints; what each single batch cost stays in the run file.

    Args:
        run: The finished profile.
        fault: Why nothing could be measured, where that is so.
    """
    diagnosis = run.diagnosis
    explanations = [dataclasses.replace(each, costs=BatchCosts()) for each in run.explanations]
    document = {
        "schema_version": SCHEMA_VERSION,
        "run_file": run.path,
        "run_id": run.header.run_id,
        "machine": run.header.machine,
        "target": run.header.target,
        "config": diagnosis.config if diagnosis is not None else None,
        "findings": diagnosis.findings if diagnosis is not None else (),
        "stalls": diagnosis.stalls if diagnosis is not None else None,
        "notes": diagnosis.notes if diagnosis is not None else (),
        "explanations": explanations,
        "trials": run.trials,
        "ended": run.end.reason if run.end is not None else None,
        "cost_s": run.end.cost_s if run.end is not None else _cost_of_trials(run),
    }
    if fault is not None:
        document["error"] = fault.document
    return json.dumps(to_json(document), allow_nan=False, indent=2)


def _cost_of_trials(run: Run) -> Cost:
    measured = sum(trial.measured_s for trial in run.trials)
    total = sum(trial.wall_s for trial in run.trials)
    return Cost(measured=measured, overhead=total - measured, total=total)


def recommend_document(run: Run, recommendation: Recommendation) -> str:
    """What ``dlprof recommend --json`` prints.

    Args:
        run: What it was drawn from.
        recommendation: The answer.
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "run_file": run.path,
        **to_json(recommendation),
    }
    return json.dumps(document, allow_nan=False, indent=2)
