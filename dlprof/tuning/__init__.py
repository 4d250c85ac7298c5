"""A DataLoader that tunes itself while training runs."""

from __future__ import annotations

from dlprof.tuning.loader import Tuning, tune

__all__ = ["Tuning", "tune"]
