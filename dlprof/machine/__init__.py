"""What the machine offers to a job, and who else uses it."""

from dlprof.machine.inspection import inspect_machine
from dlprof.machine.snapshot import Sampler, Snapshot, usage_between

__all__ = ["Sampler", "Snapshot", "inspect_machine", "usage_between"]
