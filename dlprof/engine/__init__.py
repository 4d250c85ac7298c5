"""A whole sweep, from the settings to the recommendation in the run file."""

from dlprof.engine.listener import SweepListener
from dlprof.engine.resume import resume_command
from dlprof.engine.sweep import run_sweep

__all__ = ["SweepListener", "resume_command", "run_sweep"]
