"""What the supervisor makes of what it is given, without processes."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_processes import (
    RESULT,
    TRIAL,
    USAGE,
    Clock,
    FakeLauncher,
    FakeWatcher,
    ImpatientInbox,
    exited,
    from_trial,
)

from dlprof.errors import NothingMeasuredError, TargetError
from dlprof.records import Config, Trial, Usage
from dlprof.trial.failures import ResourceLimitError
from dlprof.trial.launch import LAUNCHER
from dlprof.trial.protocol import TrialRequest
from dlprof.trial.runtime import MOST_BYTES, Received
from dlprof.trial.state import TrialLimits, TrialState
from dlprof.trial.supervisor import (
    LauncherDiedError,
    ProbeKilledError,
    ProbeTimeoutError,
    Supervisor,
)

PID = 99_999_999  # nobody's: a trial that hangs is looked up
REQUEST = TrialRequest(config=Config(num_workers=2, prefetch_factor=2))
FILLED = from_trial("filled")
WHOLE = (
    from_trial("born", pid=PID),
    from_trial("window_start"),
    from_trial("beat"),
    from_trial("window_end"),
    FILLED,
    Received(TRIAL, RESULT),
    exited(0),
)
FAILURE = {"kind": "worker_exception", "message": "ValueError", "hint": "fix it"}


class Supervised:
    """A supervisor among fakes."""

    def __init__(
        self,
        directory: Path,
        script: Sequence[Received],
        *,
        on_kill: Sequence[Received] = (),
        answers: bool = True,
        inbox: ImpatientInbox | None = None,
    ) -> None:
        inbox = inbox or ImpatientInbox(Clock())
        filled = 1 + next((n for n, event in enumerate(script) if event == FILLED), len(script))
        self.launcher = FakeLauncher(inbox, script[:filled], on_kill=on_kill)
        self.watcher = FakeWatcher(inbox, answers=answers, afterwards=script[filled:])
        self.supervisor = Supervisor(
            launchers=[self.launcher],
            watcher=self.watcher,
            inbox=inbox,
            directory=directory,
            limits=TrialLimits(wall_s=30.0, stall_s=20.0, usable_cores=2.0),
            clock=inbox.clock,
        )

    def run(self, request: TrialRequest = REQUEST) -> Trial:
        blank = Trial(id="t0001", config=request.config, repetition=0, outcome="completed")
        return self.supervisor.run(request, blank)[0]


def test_a_trial_that_goes_well(tmp_path: Path) -> None:
    bench = Supervised(tmp_path, WHOLE)
    trial = bench.run()

    assert trial.outcome == "completed"
    assert trial.samples_per_s is not None
    assert (trial.samples_per_s.value, trial.samples_per_s.low) == (40.0, 36.0)
    assert trial.bytes_per_s is not None
    assert trial.bytes_per_s.value == 1000.0
    assert trial.usage.own_cpu_cores == 1.5
    assert bench.watcher.orders == [f"watch {PID}", "start", "end", "memory", "unwatch"]
    assert list(tmp_path.iterdir()) == []


def test_what_it_uses_is_kept_over_time(tmp_path: Path) -> None:
    bench = Supervised(tmp_path, WHOLE)
    pulses = [
        Received(
            bench.watcher.source,
            {"event": "pulse", "pid": PID, "usage": {**USAGE, "own_cpu_cores": cores}},
        )
        for cores in (0.5, 1.25)
    ]
    trial = Supervised(tmp_path, [*WHOLE[:3], *pulses, *WHOLE[3:]]).run()
    assert [each.own_cpu_cores for each in trial.usage_over_time] == [0.5, 1.25]
    assert all(each.at_s >= 0 for each in trial.usage_over_time)


@pytest.mark.parametrize(("pid", "outcome"), [(PID, "out_of_memory"), (PID - 1, "completed")])
def test_memory_is_held_against_the_trial_that_took_it(
    tmp_path: Path, pid: int, outcome: str
) -> None:
    """And not against the next, where the one that took it ended at the same moment."""
    said = {"event": "memory", "pid": pid, "reason": "The trial held too much"}
    script = [WHOLE[0], Received("observer-0", said), *WHOLE[1:]]

    assert Supervised(tmp_path, script, on_kill=[exited(-9)]).run().outcome == outcome


def test_a_long_trial_keeps_as_many_samples_as_a_chart_shows() -> None:
    state = TrialState(heard_s=0.0, began_s=100.0, deadline_s=1000.0)
    for second in range(1000):
        state.used(Usage(own_cpu_cores=float(second)), 100.0 + second)
        assert state.busy_cores == second
        assert len(state.samples) <= 60
    at = [each.at_s for each in state.samples]
    assert at == sorted(at)
    assert at[0] < 20
    assert [each.own_cpu_cores for each in state.samples] == at


def test_missing_figures_have_reasons(tmp_path: Path) -> None:
    trial = Supervised(tmp_path, WHOLE).run()

    assert trial.wait_fraction is None
    assert "no step" in trial.unavailable["wait_fraction"]
    assert trial.usage.throttled_fraction is None
    assert trial.unavailable["usage.throttled_fraction"] == "no controller"


def test_a_stated_step_has_a_wait_fraction(tmp_path: Path) -> None:
    request = TrialRequest(config=REQUEST.config, step_s=0.01)

    assert Supervised(tmp_path, WHOLE).run(request).wait_fraction == 0.25


def test_a_silent_observer_costs_figures_not_the_trial(tmp_path: Path) -> None:
    trial = Supervised(tmp_path, WHOLE, answers=False).run()

    assert trial.outcome == "completed"
    assert trial.usage.own_cpu_cores is None
    assert "observer" in trial.unavailable["usage.own_cpu_cores"]


@pytest.mark.parametrize(
    ("workers", "wall_s", "waits_s"), [(2, 60.0, 4.0), (40, 60.0, 23.0), (40, 10.0, 7.0)]
)
def test_an_observer_has_as_long_as_reading_many_workers_takes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    wall_s: float,
    waits_s: float,
) -> None:
    """And no longer than leaves the trial time to end."""
    bench = Supervised(tmp_path, WHOLE[:5], on_kill=[exited(-9)], answers=False)
    bench.supervisor.limits = dataclasses.replace(bench.supervisor.limits, wall_s=wall_s)
    clock, waited = bench.supervisor.clock, list[float]()
    began_s = clock()
    monkeypatch.setattr(bench.watcher, "give_up", lambda: waited.append(clock() - began_s))
    bench.run(dataclasses.replace(REQUEST, config=Config(num_workers=workers).canonical()))

    assert waited == [pytest.approx(waits_s, abs=0.5)]


def test_a_dead_observer_lets_the_trial_go_on(tmp_path: Path) -> None:
    script = list(WHOLE)
    script.insert(5, Received("observer-0", None))
    bench = Supervised(tmp_path, script, answers=False)

    assert bench.run().outcome == "completed"
    assert bench.launcher.written.closed or b"go" in bench.launcher.written.getvalue()


def test_an_exception_is_named(tmp_path: Path) -> None:
    bench = Supervised(tmp_path, [WHOLE[0], from_trial("failed", failure=FAILURE), exited(0)])
    trial = bench.run()

    assert trial.outcome == "crashed"
    assert trial.failure is not None
    assert trial.failure.kind == "worker_exception"
    assert "user's code printed" in trial.failure.stderr_tail


@pytest.mark.parametrize(
    ("status", "kind", "word"),
    [(-11, "worker_signal", "SIGSEGV"), (3, "worker_exit", "exit code 3")],
)
def test_a_sudden_death_is_named(tmp_path: Path, status: int, kind: str, word: str) -> None:
    trial = Supervised(tmp_path, [WHOLE[0], WHOLE[1], exited(status)]).run()

    assert trial.failure is not None
    assert trial.failure.kind == kind
    assert word in trial.failure.message


def test_a_trial_without_end_is_ended(tmp_path: Path) -> None:
    bench = Supervised(tmp_path, WHOLE[:2], on_kill=[exited(-9)])
    trial = bench.run()

    assert bench.launcher.kills == 1
    assert trial.outcome == "timed_out"
    assert trial.failure is not None
    assert trial.failure.kind == "timeout"
    assert "--step-time" not in trial.failure.hint


def test_a_trial_that_stood_still_to_its_end_is_said_to(tmp_path: Path) -> None:
    """A --timeout that is shorter than the silence that is waited for hides no hang."""
    bench = Supervised(tmp_path, WHOLE[:2], on_kill=[exited(-9)])
    limits = dataclasses.replace(bench.supervisor.limits, wall_s=15.0, stall_s=15.0)
    bench.supervisor.limits = limits
    failure = bench.run().failure
    assert failure is not None
    assert failure.message.startswith("No batch came for 1"), failure.message


def test_steps_that_are_too_long_for_a_trial_are_to_blame_for_its_end(tmp_path: Path) -> None:
    """``--step-time 12`` is 12 s."""
    slow = dataclasses.replace(REQUEST, step_s=12.0)
    trial = Supervised(tmp_path, WHOLE[:2], on_kill=[exited(-9)]).run(slow)
    assert trial.failure is not None
    assert "Each step takes 12 s, as --step-time has it; a number without" in trial.failure.hint


@pytest.mark.parametrize("begun", [False, True])
def test_a_stopped_fork_server_is_given_up_before_its_trial_begins(
    tmp_path: Path, *, begun: bool
) -> None:
    """Later it harms nothing until the end, at which the result counts."""
    bench = Supervised(tmp_path, WHOLE[:-1] if begun else ())
    bench.launcher.stopped = True
    began_s = bench.supervisor.clock()
    if begun:
        assert bench.run().outcome == "completed"
        assert bench.launcher.kills == 0  # which it would not hear
        return
    with pytest.raises(LauncherDiedError):
        bench.run()
    assert bench.supervisor.clock() - began_s < 5.0


def test_a_result_counts_even_if_the_end_takes_too_long(tmp_path: Path) -> None:
    bench = Supervised(tmp_path, WHOLE[:-1], on_kill=[exited(-9)])

    assert bench.run().outcome == "completed"
    assert bench.launcher.kills == 1


@pytest.mark.parametrize(
    "late",
    [from_trial("failed", failure=FAILURE), Received(TRIAL, RESULT)],
    ids=["failed", "result"],
)
def test_what_a_trial_is_ended_for_stands(tmp_path: Path, late: Received) -> None:
    """Whatever it says while it is being ended, such as that SIGTERM has ended its workers."""
    bench = Supervised(tmp_path, WHOLE[:2], on_kill=[late, exited(0)])
    trial = bench.run()

    assert trial.failure is not None
    assert trial.failure.kind == "timeout"


class Interrupting(ImpatientInbox):
    """Ctrl-C, while a trial runs."""

    def get(self, timeout_s: float) -> Received | None:
        event = super().get(timeout_s)
        if event is not None and event.source == TRIAL:
            raise KeyboardInterrupt
        return event


def test_an_interrupted_trial_has_ended_before_it_is_cleared_up_after(tmp_path: Path) -> None:
    inbox = Interrupting(Clock())
    bench = Supervised(tmp_path, WHOLE[:1], on_kill=[exited(-15)], inbox=inbox)
    with pytest.raises(KeyboardInterrupt):
        bench.run()

    assert bench.launcher.kills == 1
    assert inbox.get(0.0) is None  # its end was waited for


def test_an_interrupted_trial_that_nobody_ends_is_not_heard_of_later(tmp_path: Path) -> None:
    bench = Supervised(tmp_path, WHOLE[:1], inbox=Interrupting(Clock()))
    with pytest.raises(KeyboardInterrupt):
        bench.run()

    assert (bench.launcher.kills, bench.launcher.given_up) == (1, True)


def test_a_dead_launcher_ends_the_sweep(tmp_path: Path) -> None:
    with pytest.raises(NothingMeasuredError):
        Supervised(tmp_path, [Received(LAUNCHER, None)]).run()


def test_events_of_an_earlier_trial_are_ignored(tmp_path: Path) -> None:
    late = Received("trial-0", {"event": "failed", "failure": FAILURE})

    assert (
        Supervised(tmp_path, [late, Received("trial-0", None), *WHOLE]).run().outcome == "completed"
    )


def test_a_probe_describes_a_batch(tmp_path: Path) -> None:
    script = [WHOLE[0], from_trial("result", probe={"batch_bytes": 5}), exited(0)]

    assert Supervised(tmp_path, script).supervisor.probe(REQUEST) == {"batch_bytes": 5}


def test_a_probe_that_fails_is_an_error_of_the_target(tmp_path: Path) -> None:
    script = [WHOLE[0], from_trial("failed", failure={**FAILURE, "stderr_tail": "Traceback"})]
    with pytest.raises(TargetError, match="ValueError") as caught:
        Supervised(tmp_path, [*script, exited(0)]).supervisor.probe(REQUEST)

    # It may have given batches before.
    assert caught.value.message == "Loading fails, even without workers: ValueError"
    assert caught.value.traceback == "Traceback"


def test_a_target_that_ends_its_process_is_at_fault_itself(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="exit code 0"):
        Supervised(tmp_path, [*WHOLE[:1], exited(0)]).supervisor.probe(REQUEST)


def test_a_probe_that_is_killed_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ProbeKilledError, match="SIGKILL"):
        Supervised(tmp_path, [WHOLE[0], exited(-9)]).supervisor.probe(REQUEST)


def test_a_probe_that_hangs_is_told_apart(tmp_path: Path) -> None:
    bench = Supervised(tmp_path, WHOLE[:1], on_kill=[exited(-9)])
    with pytest.raises(ProbeTimeoutError):
        bench.supervisor.probe(REQUEST)


class Stopped(ImpatientInbox):
    """This process is stopped at each of the first looks for an hour, as by Ctrl-Z.

    Args:
        times: How often.
        before: The event before which that is.
    """

    def __init__(self, times: int, before: str) -> None:
        super().__init__(Clock())
        self.times = times
        self.before = before

    def get(self, timeout_s: float) -> Received | None:
        event = super().get(timeout_s)
        message = None if event is None else event.message
        if self.times and message is not None and message["event"] == self.before:
            self.times -= 1
            self.clock.now_s += 3600.0
        return event


@pytest.mark.parametrize("before", ["born", "window_start", "filled", "usage", "result", "exited"])
def test_time_does_not_count_in_which_this_process_is_stopped(tmp_path: Path, before: str) -> None:
    """The trial is run again, because what was seen of it is not what it did."""
    bench = Supervised(tmp_path, WHOLE, inbox=Stopped(1, before))
    trial = bench.run()

    assert trial.outcome == "completed", trial.failure
    assert not trial.noisy
    assert bench.launcher.kills == 0
    assert bench.launcher.launches == 2


def test_time_does_not_count_in_which_the_terminal_takes_nothing(tmp_path: Path) -> None:
    """As by Ctrl-S, or by a connection that stands still: to draw there waits."""
    inbox, waits_s = ImpatientInbox(Clock()), [3600.0]
    said = {"event": "pulse", "pid": PID, "usage": USAGE}
    script = [*WHOLE[:3], Received("observer-0", said), *WHOLE[3:]]
    bench = Supervised(tmp_path, script, inbox=inbox)

    def draw(_usage: Usage) -> None:
        inbox.clock.now_s += waits_s.pop() if waits_s else 0.0

    bench.supervisor.pulse = draw
    trial = bench.run()

    assert trial.outcome == "completed", trial.failure
    assert not trial.noisy
    assert bench.launcher.kills == 0
    assert bench.launcher.launches == 2


def test_a_trial_that_is_always_disturbed_says_so(tmp_path: Path) -> None:
    bench = Supervised(tmp_path, WHOLE, inbox=Stopped(99, "window_start"))
    trial = bench.run()

    assert trial.outcome == "completed", trial.failure
    assert trial.noisy
    assert any("was stopped for 1 h" in warning for warning in trial.warnings), trial.warnings
    assert bench.launcher.launches == 3


def test_all_attempts_together_have_the_time_of_a_trial(tmp_path: Path) -> None:
    inbox = Stopped(99, "window_start")
    bench = Supervised(tmp_path, WHOLE[:2], on_kill=[exited(-9)], inbox=inbox)

    assert bench.run().outcome == "timed_out"
    assert bench.launcher.launches == 1
    assert inbox.clock.now_s < 100.0 + 3600.0 + 30.0 + 2.0


def test_a_hang_is_found_after_a_stop(tmp_path: Path) -> None:
    inbox = Stopped(1, "window_start")
    trial = Supervised(tmp_path, WHOLE[:2], on_kill=[exited(-9)], inbox=inbox).run()

    assert trial.failure is not None
    assert trial.failure.kind == "timeout"
    assert inbox.clock.now_s < 100.0 + 3600.0 + 2 * 25.0


def test_a_trial_for_which_there_is_no_process(tmp_path: Path) -> None:
    message = {"event": "not_started", "errno": errno.EAGAIN, "error": os.strerror(errno.EAGAIN)}
    bench = Supervised(tmp_path, [Received(LAUNCHER, message)])
    trial = bench.run()

    assert trial.failure is not None
    assert trial.failure.kind == "start_failed"
    assert "ulimit -u" in trial.failure.hint
    assert bench.launcher.kills == 0


def test_a_loud_trial_is_looked_at_more_often(tmp_path: Path) -> None:
    inbox = ImpatientInbox(Clock())
    bench = Supervised(tmp_path, WHOLE[:2], on_kill=[exited(-9)], inbox=inbox)
    bench.launcher.printed = b"x" * (MOST_BYTES + 1)
    trial = bench.run()

    assert bench.launcher.looks > 80
    assert trial.failure is not None
    assert trial.failure.stderr_tail


def test_a_full_disk_under_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_words: object, **_details: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    bench = Supervised(tmp_path, WHOLE)
    with monkeypatch.context() as patch:
        patch.setattr("dlprof.trial.supervisor.tempfile.mkdtemp", full)
        with pytest.raises(ResourceLimitError, match="No space left on device") as caught:
            bench.run()

    assert "TMPDIR" in caught.value.hint
    assert bench.run().outcome == "completed"
