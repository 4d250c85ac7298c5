"""A whole sweep or profile, from the settings to what the run file ends with."""

from dlprof.engine.profile import run_profile as run_profile
from dlprof.engine.sweep import run_sweep as run_sweep
