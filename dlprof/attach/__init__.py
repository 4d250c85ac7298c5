"""Why a training that runs waits for its data, seen from outside: nothing of it is changed.

``trainings`` finds the processes, ``watching`` looks at them, ``diagnosis`` says what it means, and
``session`` does all of that for one process or for all.
"""

from dlprof.attach.diagnosis import Attached, diagnose_training
from dlprof.attach.session import Board, attach

__all__ = ["Attached", "Board", "attach", "diagnose_training"]
