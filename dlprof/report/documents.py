"""The JSON documents that ``--json`` prints; keys of the contract, units in their names.

Non-ASCII and control characters leave as JSON escapes, so a terminal has nothing to act on.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from dlprof.advise.scaling import scales, scaling_law
from dlprof.errors import DlprofError
from dlprof.records import SCHEMA_VERSION, BatchCosts, Cost, Run
from dlprof.records.codec import to_json


def json_document(found: object = None, /, **fields: object) -> str:
    """A document: the version, some fields, and behind them those of a record."""
    whole = {"schema_version": SCHEMA_VERSION, **to_json(fields)}
    whole |= {} if found is None else to_json(found)
    return json.dumps(whole, allow_nan=False, indent=2)


def line_by_line(fields: Mapping[str, Any]) -> str:
    """A document with one key a line, so that long values don't fill the screen."""
    pairs = ((json.dumps(key), json.dumps(fields[key], allow_nan=False)) for key in fields)
    return "{\n" + ",\n".join(f"  {key}: {value}" for key, value in pairs) + "\n}"


def sweep_document(run: Run) -> str:
    """What ``dlprof sweep --json`` prints."""
    from dlprof.advise.recommend import asked_accelerators  # other documents do without

    found = asked_accelerators(run)
    return json_document(
        **_about(run),
        trials=run.trials,
        left_out=run.header.left_out,
        prediction=run.prediction,
        recommendation=run.recommendation,
        scaling=scales(run),
        scaling_law=scaling_law(run),
        accelerators=None if isinstance(found, str) else found,
        unavailable={"accelerators": found} if isinstance(found, str) else {},
        **_end(run),
    )


def profile_document(run: Run, fault: DlprofError | None = None) -> str:
    """What ``dlprof profile --json`` prints; what each single batch cost stays in the run file."""
    none = {"config": None, "findings": (), "stalls": None, "without": (), "notes": ()}
    return json_document(
        **_about(run),
        **{name: getattr(run.diagnosis, name, without) for name, without in none.items()},
        explanations=[dataclasses.replace(each, costs=BatchCosts()) for each in run.explanations],
        trials=run.trials,
        **_end(run),
        **({} if fault is None else {"error": fault.document}),
    )


def _about(run: Run) -> dict[str, object]:
    header = run.header
    target, machine = header.target, header.machine
    return {"run_file": run.path, "run_id": header.run_id, "machine": machine, "target": target}


def _end(run: Run) -> dict[str, object]:
    """Why a run ended and what it cost; of one that did not end, the cost is that of its trials."""
    if run.end is not None:
        return {"ended": run.end.reason, "cost_s": run.end.cost_s}
    measured = sum(trial.measured_s for trial in run.trials)
    total = sum(trial.wall_s for trial in run.trials)
    return {
        "ended": None,
        "cost_s": Cost(measured=measured, overhead=total - measured, total=total),
    }


_MOST = 3  # findings, reasons and failures that a brief document keeps


def brief_document(text: str) -> str:
    """The answer of a document, one line a key, for programs that pay for what they read."""
    whole: dict[str, Any] = json.loads(text)
    whole |= whole.get("recommendation") or {}
    kept = (key for key in (*_HEAD, *_BRIEF) if whole.get(key) not in (None, [], {}, ""))
    cuts = {key: _BRIEF.get(key) for key in kept}
    return line_by_line({key: cut(whole[key]) if cut else whole[key] for key, cut in cuts.items()})


def _finding(finding: Mapping[str, Any]) -> dict[str, Any]:
    fix = finding["fix"] or {}
    kept = {key: finding[key] for key in ("code", "severity", "title", "predicted_gain")}
    shown = finding["evidence"]
    kept |= {key: shown[key] for key in ("gain_if", "tried") if key in shown}
    return kept | {"fix": fix.get("text"), "dataloader_kwargs": fix.get("dataloader_kwargs")}


def _target(target: Mapping[str, Any]) -> dict[str, Any]:
    gates = [gate for gate in target["verdict"]["gates"] if gate["state"] != "pass"]
    return {
        "target": target["target"],
        "state": target["verdict"]["state"],
        "not_passed": [gate["explanation"] for gate in gates],
    }


_HEAD = ("schema_version", "error", "run_file", "ended", "state", "trusted", "explanation")
_BRIEF: Mapping[str, Callable[[Any], Any] | None] = {
    "targets": lambda targets: list(map(_target, targets)),
    "dataloader_kwargs": None,
    "expected": None,
    "confidence": None,
    "confidence_reason": None,
    "certificate": None,
    "numa_binding": None,
    "accelerators": None,
    "unavailable": None,
    "reasons": lambda reasons: [each["claim"] for each in reasons[:_MOST]],
    "findings": lambda findings: [_finding(each) for each in findings[:_MOST]],
    "stalls": None,
    "cost_s": lambda cost: cost["total"],
}
"""The keys that are kept behind those of ``_HEAD``, and how each is cut, where it is."""
