"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# The machine may be busy: how long an example takes says nothing about the code.
settings.register_profile("dlprof", deadline=None)
settings.load_profile("dlprof")
