"""The types that flow through dlprof: configurations, trials, machines, recommendations, runs.

Plain frozen dataclasses of JSON-like values. Units are in the names (``_s`` seconds, ``_bytes``,
``_cores`` busy cores, fractions 0 to 1). A figure that is not available is ``None``, and the
record's ``unavailable`` maps the field's name to the reason; a figure is never 0 for "unknown".

Here are those of a run file. Those of ``dlprof check`` and ``dlprof transfer`` are imported from
``gate``, ``self_test`` and ``transfer``, so that commands that only read runs don't load them.
"""

from dlprof.records.advice import (
    USELESS,
    Alternative,
    Certificate,
    Confidence,
    ConfigRate,
    Constraints,
    Expected,
    PredictedCase,
    Reason,
    Recommendation,
    RuleOfThumb,
    ToMeasure,
)
from dlprof.records.calibration import (
    Calibration,
    PredictedCell,
    Prediction,
    SweepPrediction,
)
from dlprof.records.config import Config, Estimate
from dlprof.records.copies import Copies, PinCosts, PinGain
from dlprof.records.findings import Diagnosis, Finding, FindingCode, Fix, Severity, Stalls
from dlprof.records.integrity import (
    DATA_FAULTS,
    DUPLICATED_SIGN,
    LENGTH_SIGN,
    NEVER_ASKED,
    ONE_BATCH_SIGN,
    SHARE_OUT,
    SHARED_SIGN,
    SOME_SHARED,
    UNSHARED_SIGN,
    VARIED_SIGN,
    WHOLE_EPOCHS,
    Integrity,
    checked,
    doubled,
    is_guessed,
)
from dlprof.records.machine import CoreSpeeds, GpuInfo, Machine
from dlprof.records.plan import LeftOut, Plan, TrialCost
from dlprof.records.run import SCHEMA_VERSION, Cost, Run, RunEnd, RunHeader
from dlprof.records.stages import (
    AGE_STAGES,
    BatchCosts,
    Explanation,
    SampleCosts,
    Stage,
    StageName,
    TransformCost,
    WorkerCosts,
)
from dlprof.records.target import LoaderCall, Target
from dlprof.records.timeline import Timeline
from dlprof.records.trial import (
    CUT_SHORT_SIGN,
    Failure,
    FailureKind,
    GpuUsage,
    Outcome,
    Purpose,
    Trial,
    Usage,
    UsageSample,
)
from dlprof.records.watched import (
    SCRIPT_SPEC,
    Durations,
    ScriptEnding,
    WatchedLoader,
    WatchedScript,
)

__all__ = [
    "AGE_STAGES",
    "CUT_SHORT_SIGN",
    "DATA_FAULTS",
    "DUPLICATED_SIGN",
    "LENGTH_SIGN",
    "NEVER_ASKED",
    "ONE_BATCH_SIGN",
    "SCHEMA_VERSION",
    "SCRIPT_SPEC",
    "SHARED_SIGN",
    "SHARE_OUT",
    "SOME_SHARED",
    "UNSHARED_SIGN",
    "USELESS",
    "VARIED_SIGN",
    "WHOLE_EPOCHS",
    "Alternative",
    "BatchCosts",
    "Calibration",
    "Certificate",
    "Confidence",
    "Config",
    "ConfigRate",
    "Constraints",
    "Copies",
    "CoreSpeeds",
    "Cost",
    "Diagnosis",
    "Durations",
    "Estimate",
    "Expected",
    "Explanation",
    "Failure",
    "FailureKind",
    "Finding",
    "FindingCode",
    "Fix",
    "GpuInfo",
    "GpuUsage",
    "Integrity",
    "LeftOut",
    "LoaderCall",
    "Machine",
    "Outcome",
    "PinCosts",
    "PinGain",
    "Plan",
    "PredictedCase",
    "PredictedCell",
    "Prediction",
    "Purpose",
    "Reason",
    "Recommendation",
    "RuleOfThumb",
    "Run",
    "RunEnd",
    "RunHeader",
    "SampleCosts",
    "ScriptEnding",
    "Severity",
    "Stage",
    "StageName",
    "Stalls",
    "SweepPrediction",
    "Target",
    "Timeline",
    "ToMeasure",
    "TransformCost",
    "Trial",
    "TrialCost",
    "Usage",
    "UsageSample",
    "WatchedLoader",
    "WatchedScript",
    "WorkerCosts",
    "checked",
    "doubled",
    "is_guessed",
]
