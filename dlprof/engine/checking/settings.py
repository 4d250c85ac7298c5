"""What a check is to do, and who hears what it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from dlprof.engine.preparation import ProgressListener
from dlprof.engine.profile import for_one
from dlprof.gate.plan import CONFIDENCE, THRESHOLD
from dlprof.gate.verdict import NextLook
from dlprof.records import Target
from dlprof.records.gate import Series
from dlprof.search.space import single_config
from dlprof.settings import SweepSettings, by_key
from dlprof.targets.grammar import parse_target


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """A check's options as resolved."""

    # TARGET, its arguments, at most one value of each swept setting, ``budget_s``, ``timeout_s``,
    # ``seed``, ``shuffle``.
    sweep: SweepSettings
    # A git ref or a directory; ``None`` for the merge base with the upstream's default branch,
    # unless ``against_python`` is given.
    against: str | None = None
    against_python: str | None = None  # the interpreter of the environment that is compared with
    fail_above: float = THRESHOLD  # what counts as slower, as a fraction of the base
    confidence: float = CONFIDENCE  # that code which isn't slower doesn't fail
    pin: bool = True  # whether both sides are held to the same cores
    # Length of a block of loading, in seconds. Cores change their speed after a second or so: four
    # blocks of 0.15 s mostly see a change, four of 0.05 s seldom do (simulated: a verdict on equal
    # code after 2.6 s of loading instead of 11; benchmarks, gate_rule).
    block_s: float = 0.05
    override: str = ""  # why a regression may pass; empty where none may
    warn_only: bool = False  # whether a failure is only reported

    @property
    def source(self) -> Path | None:
        """The file that TARGET names, if it names one.

        Raises:
            UsageError: TARGET can't be read.
        """
        spec = parse_target(self.sweep.target)
        return Path(spec.source) if spec.kind == "file" else None


def for_check(settings: SweepSettings, origins: Mapping[str, str]) -> CheckSettings:
    """A check's settings from those of a sweep, which share files and variables.

    Raises:
        UsageError: A setting is given several values.
    """
    one = for_one(settings, origins)
    # What two values are wrong for is any target; so that is said before one is built.
    single_config(one, Target(spec="", kind="map", dataset=""), has_accelerator=False)
    if origins["budget"] != by_key()["budget"].flag:
        one = dataclasses.replace(one, budget_s=60.0)
    return CheckSettings(sweep=one)


def patience(settings: CheckSettings) -> tuple[float, str]:
    """How long one answer may take, in seconds, and the option that makes it no longer."""
    timeout_s = settings.sweep.timeout_s
    # Importing torch on a slow machine takes as long.
    budget_s = max(settings.sweep.budget_s, 30.0)
    return (timeout_s, "--timeout") if timeout_s <= budget_s else (budget_s, "--budget")


class CheckListener(ProgressListener, Protocol):
    """Hears what a check does, as it does it."""

    def quads(
        self, done: Mapping[Series, int], look: NextLook | None, elapsed_s: float, budget_s: float
    ) -> None:
        """Another quad was measured; ``look`` is what the last look at all of them gave."""
