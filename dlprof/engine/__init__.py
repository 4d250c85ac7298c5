"""A whole sweep or profile, from the settings to what the run file ends with."""

from dlprof.engine.preparation import SweepListener
from dlprof.engine.profile import run_profile
from dlprof.engine.sweep import run_sweep

__all__ = ["SweepListener", "run_profile", "run_sweep"]
