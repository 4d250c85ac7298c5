"""Why a loader is slow: rules that turn what a profile measured into findings.

``evidence`` holds what was measured, ``costs`` and ``view`` work it out into the figures that rules
ask for and say who holds the others up; ``gains`` says what a change would bring, ``script`` what
to a whole script. The rules are in ``cores``, ``device``, ``main_side``, ``memory``, ``slowed``,
``startup``, ``waiting`` and ``workers``; ``table`` lists them, one for each code, and ``order``
makes what they find a diagnosis.
"""

from dlprof.advise.findings.evidence import Evidence, Experiment, Foresight, Observation, Script
from dlprof.advise.findings.order import WRONG_DATA, diagnose, find

__all__ = [
    "WRONG_DATA",
    "Evidence",
    "Experiment",
    "Foresight",
    "Observation",
    "Script",
    "diagnose",
    "find",
]
