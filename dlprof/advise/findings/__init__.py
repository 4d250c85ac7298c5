"""Why a loader is slow: rules that turn what a profile measured into findings.

``evidence`` holds what was measured, worked out into the figures that rules ask for; ``claims``
what a rule answers with, and what a change brings. The rules are in ``machine``, ``loader`` and
``dataset``; ``diagnosis`` lists them, one for each code, and makes what they find a diagnosis.
"""

from dlprof.advise.findings.diagnosis import WRONG_DATA as WRONG_DATA
from dlprof.advise.findings.diagnosis import diagnose as diagnose
from dlprof.advise.findings.diagnosis import find as find
from dlprof.advise.findings.evidence import Evidence as Evidence
from dlprof.advise.findings.evidence import ModelAtStep as ModelAtStep
from dlprof.advise.findings.evidence import Observation as Observation
from dlprof.advise.findings.evidence import Script as Script
