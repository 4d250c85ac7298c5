"""A launcher and an observer that only say what a test has them say."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import IO, Any

from dlprof.trial.launch import LAUNCHER, Launcher
from dlprof.trial.protocol import Channel, Message, TrialRequest
from dlprof.trial.runtime import Inbox, Received
from dlprof.trial.supervisor import ObserverProcess

TRIAL = "trial-1"

USAGE: dict[str, Any] = {
    "own_cpu_cores": 1.5,
    "available_cpu_cores": 2.0,
    "other_cpu_cores": 0.0,
    "main_runnable": 0.5,
    "run_queue_wait_fraction": 0.1,
    "throttled_fraction": None,
    "cpu_pressure_fraction": 0.1,
    "io_pressure_fraction": 0.0,
    "memory_pressure_fraction": 0.0,
    "pss_peak_bytes": 1000,
    "shm_peak_bytes": 10,
    "read_bytes_per_s": 0.0,
    "cache_hit_fraction": 1.0,
    "observer_cpu_cores": 0.01,
    "gpu": [],
}

MEASURED: dict[str, Any] = {
    "startup_s": 0.05,
    "rate": {
        "batches_per_s": {"value": 10.0, "low": 9.0, "high": 11.0},
        "samples_per_s": {"value": 40.0, "low": 36.0, "high": 44.0},
        "spread": 0.1,
        "window_batches": 20,
        "window_samples": 80,
        "measured_s": 2.0,
        "whole_epochs": False,
    },
    "epoch_samples": None,
    "fed_workers": None,
    "transient_s": 0.0,
    "wait_fraction": 0.25,
    "epoch_turnover_s": 0.1,
    "warnings": [],
}

RESULT: Message = {
    "event": "result",
    "measured": MEASURED,
    "batch_bytes": 100,
    "no_turnover": "",
    "warnings": [],
}


class Clock:
    """Seconds that pass only where a test lets them."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class ImpatientInbox(Inbox):
    """Never blocks: what a test has to say is in it already, and time is the test's own.

    Args:
        clock: Goes on while nothing comes.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def get(self, timeout_s: float) -> Received | None:
        event = super().get(0.0)
        if event is None:
            self.clock.now_s += timeout_s
        return event


class FakeLauncher(Launcher):
    """Puts a script of events into the inbox when a trial is launched, and another when killed."""

    def __init__(
        self,
        inbox: Inbox,
        script: Sequence[Received],
        *,
        on_kill: Sequence[Received] = (),
        number: str = "",
    ) -> None:
        self.source = LAUNCHER + number
        self._trial_source = TRIAL + number
        self._inbox = inbox
        self._script = script
        self._on_kill = on_kill
        self.written = io.BytesIO()
        self.kills = 0
        self.given_up = self.stopped = False
        self.looks = 0
        self.launches = 0
        self.printed = b"what the user's code printed\n"

    def launch(self, request: TrialRequest, log: IO[bytes]) -> tuple[Channel, str]:
        self.launches += 1
        log.write(self.printed)
        log.flush()
        for event in self._script:
            self._inbox.put(event)
        return Channel(io.BytesIO(), self.written), self._trial_source

    def kill(self) -> None:
        self.kills += 1
        for event in self._on_kill:
            self._inbox.put(event)

    def give_up(self) -> None:
        self.given_up = True
        if self.stopped:
            self._inbox.put(Received(self.source, None))

    def is_stopped(self) -> bool:
        return self.stopped

    def look(self) -> None:
        self.looks += 1


class FakeWatcher(ObserverProcess):
    """Answers ``memory`` as an observer does, or not at all; the trial goes on after that."""

    def __init__(self, inbox: Inbox, *, answers: bool, afterwards: Sequence[Received]) -> None:
        super().__init__(inbox)
        self._box = inbox
        self._answers = answers
        self._afterwards = afterwards
        self.orders: list[str] = []
        self.pid = 0

    def watch(self, pid: int, *beside: int, memory_bytes: int | None, reserve_bytes: int) -> None:
        del memory_bytes, reserve_bytes
        self.pid = pid
        self.orders.append(" ".join(["watch", *map(str, (pid, *beside))]))

    def order(self, verb: str, **details: int | tuple[int, ...] | None) -> None:
        self.orders.append(verb)
        if verb == "memory" and self._answers:
            unavailable = {"throttled_fraction": "no controller"}
            message = {"event": "usage", "usage": USAGE, "unavailable": unavailable}
            self._box.put(Received(self.source, {"pid": self.pid, **message}))
        if verb == "memory":
            for event in self._afterwards:
                self._box.put(event)


def from_trial(event: str, number: str = "", **details: object) -> Received:
    return Received(TRIAL + number, {"event": event, **details})


def exited(status: int, number: str = "") -> Received:
    return Received(LAUNCHER + number, {"event": "exited", "status": status})
