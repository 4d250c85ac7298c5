"""Why a training that runs waits for its data, seen from outside: nothing of it is changed.

``trainings`` finds the processes, ``watching`` looks at them, ``diagnosis`` says what it means, and
``session`` does all of that for one process or for all.
"""

from dlprof.attach.diagnosis import Attached as Attached
from dlprof.attach.session import Board as Board
from dlprof.attach.session import attach as attach
