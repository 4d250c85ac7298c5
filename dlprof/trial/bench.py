"""Where trials are run: the target's process, the observer and the supervisor, set up together."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

from dlprof.errors import NothingMeasuredError
from dlprof.records import Target, Trial, Usage
from dlprof.trial.inbox import Inbox
from dlprof.trial.launch import Launcher, Nursery, make_launcher
from dlprof.trial.protocol import BuildRequest, Message, TrialRequest
from dlprof.trial.supervisor import Limits, ProbeTimeoutError, Supervisor
from dlprof.trial.watch import Watcher

_REBUILT = "each trial builds the target for itself, because {reason}"
_HANGS = "a process forked after building it hangs, or takes very long to load two batches"


class Bench:
    """Runs trials of one target.

    Starts importing torch at once, in the background. ``build`` comes first.

    Args:
        request: How to build the target.
        directory: For logs and temporary files; the caller removes it after ``close``.
        pulse: Called with what the machine is doing, a few times a second.
        first_probe_s: How long the first probe may take before a fork is taken for broken.

    Attributes:
        fork_safe: Whether trials are forked from the process that built the target.
        notes: What people should know of the way trials are started.
        versions: ``torch`` and ``python``, once built.
    """

    def __init__(
        self,
        request: BuildRequest,
        *,
        directory: Path,
        pulse: Callable[[Usage], object] = lambda _usage: None,
        first_probe_s: float = 15.0,
    ) -> None:
        self.fork_safe = True
        self.notes: tuple[str, ...] = ()
        self.versions: dict[str, str] = {}
        self._request = request
        self._directory = directory
        self._pulse = pulse
        self._first_probe_s = first_probe_s
        self._inbox = Inbox()
        self._launcher: Launcher = make_launcher(self._inbox, directory)
        self._watcher = Watcher(self._inbox)
        self._limits = Limits(wall_s=float("inf"), usable_cores=1.0)

    def build(self, *, timeout_s: float, usable_cores: float) -> Target:
        """Build the target.

        Args:
            timeout_s: Wall limit of each trial.
            usable_cores: Cores that trials may use.

        Raises:
            DlprofError: It can't be built; says which part is wrong.
        """
        self._limits = Limits(wall_s=timeout_s, usable_cores=usable_cores)
        built = self._launcher.build(self._request)
        self.versions = built.versions
        if not isinstance(self._launcher, Nursery):
            self.fork_safe = False
        elif built.fork_hazard:
            self._build_in_each_trial(built.fork_hazard)
        return built.target

    def probe(self, request: TrialRequest) -> Message:
        """Load two batches in a disposable process; see ``Supervisor.probe``.

        A target whose constructor ran torch operations leaves thread pools that a fork breaks;
        the probe then hangs, and from then on each trial builds the target for itself.
        """
        if self.fork_safe:
            impatient = dataclasses.replace(
                self._limits, wall_s=min(self._first_probe_s, self._limits.wall_s)
            )
            with contextlib.suppress(ProbeTimeoutError):
                return self._supervisor(impatient).probe(request)
            self._build_in_each_trial(_HANGS)
        return self._supervisor(self._limits).probe(request)

    def run(
        self,
        request: TrialRequest,
        *,
        trial_id: str,
        repetition: int,
        wall_s: float | None = None,
    ) -> Trial:
        """Measure one configuration once; see ``Supervisor.run``.

        Args:
            request: What to measure.
            trial_id: Of the record.
            repetition: Of the record.
            wall_s: A tighter wall limit for this trial.
        """
        limits = self._limits
        if wall_s is not None:
            limits = dataclasses.replace(limits, wall_s=min(wall_s, limits.wall_s))
        return self._supervisor(limits).run(request, trial_id=trial_id, repetition=repetition)

    def close(self) -> None:
        """End every process."""
        with contextlib.suppress(NothingMeasuredError):
            self._launcher.close()
        self._watcher.close()

    def _supervisor(self, limits: Limits) -> Supervisor:
        return Supervisor(
            launcher=self._launcher,
            watcher=self._watcher,
            inbox=self._inbox,
            directory=self._directory,
            limits=limits,
            pulse=self._pulse,
        )

    def _build_in_each_trial(self, reason: str) -> None:
        self.close()
        self.fork_safe = False
        self.notes = (*self.notes, _REBUILT.format(reason=reason))
        self._inbox = Inbox()  # the old one still hears of the old nursery's end
        nursery = Nursery(self._inbox, self._directory)
        nursery.preload(self._request)
        self._launcher = nursery
        self._watcher = Watcher(self._inbox)
