"""The types that flow through dlprof: configurations, trials, machines, recommendations, runs.

Plain frozen dataclasses of JSON-like values. Units are in the names (``_s`` seconds, ``_bytes``,
``_cores`` busy cores, fractions 0 to 1). A figure that is not available is ``None``, and the
record's ``unavailable`` maps the field's name to the reason; a figure is never 0 for "unknown".

Here are those of a run file. Those of ``dlprof check`` and ``dlprof transfer`` are imported from
``gate`` and ``transfer``, so that commands that only read runs don't load them.
"""

from dlprof.records.advice import USELESS as USELESS
from dlprof.records.advice import Alternative as Alternative
from dlprof.records.advice import Certificate as Certificate
from dlprof.records.advice import Confidence as Confidence
from dlprof.records.advice import ConfigRate as ConfigRate
from dlprof.records.advice import Constraints as Constraints
from dlprof.records.advice import Expected as Expected
from dlprof.records.advice import LeastLoss as LeastLoss
from dlprof.records.advice import NumaBinding as NumaBinding
from dlprof.records.advice import PredictedCase as PredictedCase
from dlprof.records.advice import Reason as Reason
from dlprof.records.advice import Recommendation as Recommendation
from dlprof.records.advice import RuleOfThumb as RuleOfThumb
from dlprof.records.calibration import Calibration as Calibration
from dlprof.records.calibration import PredictedCell as PredictedCell
from dlprof.records.calibration import Prediction as Prediction
from dlprof.records.calibration import SweepPrediction as SweepPrediction
from dlprof.records.config import BY_COPY as BY_COPY
from dlprof.records.config import START_METHODS as START_METHODS
from dlprof.records.config import Config as Config
from dlprof.records.config import Estimate as Estimate
from dlprof.records.findings import PIPE_BYTES as PIPE_BYTES
from dlprof.records.findings import WHILE_MEASURED as WHILE_MEASURED
from dlprof.records.findings import AttributeWeight as AttributeWeight
from dlprof.records.findings import DatasetWeight as DatasetWeight
from dlprof.records.findings import Diagnosis as Diagnosis
from dlprof.records.findings import Finding as Finding
from dlprof.records.findings import FindingCode as FindingCode
from dlprof.records.findings import Fix as Fix
from dlprof.records.findings import Stalls as Stalls
from dlprof.records.findings import StartPhase as StartPhase
from dlprof.records.findings import WithoutPart as WithoutPart
from dlprof.records.findings import WorkerStart as WorkerStart
from dlprof.records.integrity import DATA_FAULTS as DATA_FAULTS
from dlprof.records.integrity import DUPLICATED_SIGN as DUPLICATED_SIGN
from dlprof.records.integrity import LENGTH_SIGN as LENGTH_SIGN
from dlprof.records.integrity import ONCE as ONCE
from dlprof.records.integrity import RAISED as RAISED
from dlprof.records.integrity import SHARED_SIGN as SHARED_SIGN
from dlprof.records.integrity import SOME_SHARED as SOME_SHARED
from dlprof.records.integrity import UNSHARED_SIGN as UNSHARED_SIGN
from dlprof.records.integrity import VARIED_SIGN as VARIED_SIGN
from dlprof.records.integrity import WHOLE_EPOCHS as WHOLE_EPOCHS
from dlprof.records.integrity import Integrity as Integrity
from dlprof.records.integrity import broken_sample as broken_sample
from dlprof.records.integrity import checked as checked
from dlprof.records.integrity import raised_by_data as raised_by_data
from dlprof.records.integrity import shared_position as shared_position
from dlprof.records.machine import CoreSpeeds as CoreSpeeds
from dlprof.records.machine import GpuInfo as GpuInfo
from dlprof.records.machine import Machine as Machine
from dlprof.records.run import SCHEMA_VERSION as SCHEMA_VERSION
from dlprof.records.run import Cost as Cost
from dlprof.records.run import LeftOut as LeftOut
from dlprof.records.run import Plan as Plan
from dlprof.records.run import Run as Run
from dlprof.records.run import RunEnd as RunEnd
from dlprof.records.run import RunHeader as RunHeader
from dlprof.records.run import Timeline as Timeline
from dlprof.records.run import TrialCost as TrialCost
from dlprof.records.stages import DRAWING as DRAWING
from dlprof.records.stages import RECEIVING as RECEIVING
from dlprof.records.stages import BatchCosts as BatchCosts
from dlprof.records.stages import Explanation as Explanation
from dlprof.records.stages import PageFaults as PageFaults
from dlprof.records.stages import SampleCosts as SampleCosts
from dlprof.records.stages import Stage as Stage
from dlprof.records.stages import StageName as StageName
from dlprof.records.stages import TransformCost as TransformCost
from dlprof.records.stages import WorkerCosts as WorkerCosts
from dlprof.records.target import COPIED_SIGN as COPIED_SIGN
from dlprof.records.target import EPOCH_SIGN as EPOCH_SIGN
from dlprof.records.target import NO_DATA_SIGN as NO_DATA_SIGN
from dlprof.records.target import PARTIAL_SIGN as PARTIAL_SIGN
from dlprof.records.target import SPREAD_SIGN as SPREAD_SIGN
from dlprof.records.target import LoaderCall as LoaderCall
from dlprof.records.target import Target as Target
from dlprof.records.trial import CUT_SHORT_SIGN as CUT_SHORT_SIGN
from dlprof.records.trial import UNEVEN_SIGN as UNEVEN_SIGN
from dlprof.records.trial import Copies as Copies
from dlprof.records.trial import Failure as Failure
from dlprof.records.trial import FailureKind as FailureKind
from dlprof.records.trial import GpuUsage as GpuUsage
from dlprof.records.trial import PinCosts as PinCosts
from dlprof.records.trial import Purpose as Purpose
from dlprof.records.trial import RankFigures as RankFigures
from dlprof.records.trial import Trial as Trial
from dlprof.records.trial import Usage as Usage
from dlprof.records.trial import UsageSample as UsageSample
from dlprof.records.trial import undisturbed as undisturbed
from dlprof.records.watched import SCRIPT_SPEC as SCRIPT_SPEC
from dlprof.records.watched import Durations as Durations
from dlprof.records.watched import Headroom as Headroom
from dlprof.records.watched import StepTimes as StepTimes
from dlprof.records.watched import TriedSetting as TriedSetting
from dlprof.records.watched import WatchedLoader as WatchedLoader
from dlprof.records.watched import WatchedScript as WatchedScript
from dlprof.records.watched import own_s as own_s
