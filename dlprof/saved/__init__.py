"""Settings per machine: one file that serves every machine a training script runs on."""

from __future__ import annotations

from dlprof.saved.document import kwargs_for, save_settings

__all__ = ["kwargs_for", "save_settings"]
