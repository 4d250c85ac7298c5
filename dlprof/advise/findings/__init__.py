"""Why a loader is slow: rules that turn what a profile measured into findings.

``evidence`` holds what was measured, ``costs`` and ``view`` work it out into the figures that rules
ask for, ``limit`` says who holds the others up, ``gains`` what a change would bring. The rules
stand in ``consumer``, ``content``, ``cores``, ``device``, ``main_side``, ``memory``, ``startup``,
``threads``, ``waiting`` and ``workers``; ``table`` lists them, one for each code, and ``order``
sorts what they find.
"""

from dlprof.advise.findings.evidence import Evidence, Experiment, Observation, Predict
from dlprof.advise.findings.order import find

__all__ = ["Evidence", "Experiment", "Observation", "Predict", "find"]
