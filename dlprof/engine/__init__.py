"""A whole sweep, from the settings to the recommendation in the run file."""

from dlprof.engine.listener import SweepListener
from dlprof.engine.resume import resume_command
from dlprof.engine.sweep import constraints_of, run_sweep

__all__ = ["SweepListener", "constraints_of", "resume_command", "run_sweep"]
