"""What a dataset does in a worker costs one trial, named for what it is."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from fault_bench import STALL_AGAIN_S, STALL_S, FaultBench, config

from dlprof.records import Config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="trials are forked on Linux only"),
]

FORK, SPAWN, FORKSERVER = "fork", "spawn", "forkserver"
_QUIET_S = 5.0  # after which torch notices a worker that ended without an error
_START_S = 8.0  # an interpreter that imports torch, in each of two epochs, on a busy machine
_SPAWN_S = 4.0  # what a trial's limit without progress grows by for such a worker: see TrialRunner

EXCEPTION, SIGNAL, EXIT = "worker_exception", "worker_signal", "worker_exit"
UNSENDABLE = "batch_not_picklable"

# fault, kind, a word of the hint, a word of the message, the limit that it meets in seconds
CASES = [
    ("raise", EXCEPTION, "traceback", "LookupError", 1.0),
    ("raise_two_arguments", EXCEPTION, "traceback", "TwoArgumentsError", 1.0),
    ("raise_unpicklable", EXCEPTION, "traceback", "HoldsALockError", 1.0),
    ("raise_index", EXCEPTION, "__len__", "IndexError", 1.0),
    ("raise_in_collate", EXCEPTION, "collate_fn", "LookupError", 1.0),
    ("raise_in_init", EXCEPTION, "traceback", "LookupError", 1.0),
    ("raise_in_sampler", EXCEPTION, "traceback", "main process", 1.0),
    ("raise_in_batch_sampler", EXCEPTION, "traceback", "main process", 1.0),
    ("print_endlessly", EXCEPTION, "traceback", "cut off", 1.0),
    ("raise_stop", "truncated", "StopIteration", "ended early", 1.0),
    ("ragged", "inconsistent_batches", "collate_fn", "size", 1.0),
    ("ragged_lists", "inconsistent_batches", "collate_fn", "size", 1.0),
    ("other_keys", "inconsistent_batches", "keys", "KeyError", 1.0),
    ("some_missing", "inconsistent_batches", "collate_fn", "NoneType", 1.0),
    ("exit_system", EXIT, "ended its own process", "exit", _QUIET_S),
    ("interrupt", EXIT, "ended its own process", "exit", _QUIET_S),
    ("segfault", SIGNAL, "faulthandler", "by", 1.0),
    ("abort", SIGNAL, "faulthandler", "by", 1.0),
    ("bus", SIGNAL, "/dev/shm", "by", 1.0),
    ("kill", SIGNAL, "killed", "by", 1.0),
    ("alarm", SIGNAL, "alarm", "by", 1.0),
    ("terminate", SIGNAL, "Another program", "by", 1.0),
    ("cpu_limit", SIGNAL, "ulimit -t", "by", 2.0),
    ("exit_3", EXIT, "ended its own process", "exit code 3", _QUIET_S),
    ("exit_0", EXIT, "ended its own process", "exit", _QUIET_S),
    ("exit_in_init", EXIT, "ended its own process", "exit code 4", _QUIET_S),
    ("batch_file", UNSENDABLE, "open file", "TextIOWrapper", 2.0),
    ("batch_lambda", UNSENDABLE, "lambda", "", 2.0),
    ("batch_lock", UNSENDABLE, "lock", "lock", 2.0),
    ("batch_generator", UNSENDABLE, "generator", "generator", 2.0),
    ("batch_grad", UNSENDABLE, "gradient", "grad", 2.0),
    ("batch_local_class", UNSENDABLE, "top level", "", 2.0),
    ("sleep", "deadlock", "server", "fault_targets.py", STALL_S + 1.0),
    ("sleep_in_init", "deadlock", "server", "__call__", STALL_S + 1.0),
    ("sleep_in_sampler", "deadlock", "server", "__iter__", STALL_S + 1.0),
    ("spin", "timeout", "--timeout", "_spin", STALL_S + 1.0),
    ("hang_deaf", "deadlock", "server", "_hang_deaf", STALL_S + 1.0),
    ("hang_mute", "deadlock", "server", "No batch", STALL_S + 1.0),
    ("stop", "deadlock", "stopped", "stopped", STALL_S + 1.0),
    ("close_all", EXIT, "ended its own process", "", _QUIET_S),
    ("parent", SIGNAL, "killed", "SIGKILL", 1.0),
    ("grow", "out_of_memory", "fewer workers", "limit of", 5.0),
    ("huge", "out_of_memory", "batch_size", "limit of", 5.0),
    ("lock", "deadlock", "spawn", "_wait_for_the_lock", STALL_S + 1.0),
]

HANGS = ("deadlock", "timeout")
"""What is found out only by waiting."""

Make = Callable[..., FaultBench]

# Those that differ where the worker is a new interpreter.
ELSEWHERE = [
    *((SPAWN, fault) for fault in ("raise", "raise_stop", "segfault", "exit_3", "batch_grad")),
    *((SPAWN, fault) for fault in ("sleep", "parent")),
    *((SPAWN, fault) for fault in ("other_keys", "kill", "batch_file")),
    *((FORKSERVER, fault) for fault in ("raise_two_arguments", "kill", "batch_file", "sleep")),
    *((FORKSERVER, fault) for fault in ("raise_stop", "segfault", "exit_3", "ragged")),
]


@pytest.mark.parametrize(("fault", "kind", "hint", "message", "limit_s"), CASES)
@pytest.mark.usefixtures("clean")
def test_a_forked_worker(
    make_bench: Make,
    fault: str,
    kind: str,
    hint: str,
    message: str,
    limit_s: float,
) -> None:
    bench = make_bench(stall_s=STALL_S) if kind in HANGS else make_bench()

    failure = bench.fails(fault, config(2, FORK), limit_s=limit_s)

    assert failure.kind == kind, failure
    assert hint in failure.hint, failure
    assert message.lower() in failure.message.lower(), failure


@pytest.mark.parametrize(("start", "fault"), ELSEWHERE)
@pytest.mark.usefixtures("clean")
def test_a_worker_that_is_a_new_interpreter(make_bench: Make, start: str, fault: str) -> None:
    _, kind, hint, message, limit_s = next(case for case in CASES if case[0] == fault)
    bench = make_bench(stall_s=STALL_AGAIN_S) if kind in HANGS else make_bench()
    grown_s = STALL_AGAIN_S + _SPAWN_S if kind in HANGS else 0.0

    failure = bench.fails(fault, config(1, start), limit_s=limit_s + grown_s + _START_S)

    assert failure.kind == kind, failure
    assert hint in failure.hint, failure
    assert message.lower() in failure.message.lower(), failure


@pytest.mark.usefixtures("clean")
def test_the_forkserver_is_killed(bench: FaultBench) -> None:
    """The parent of its workers, which end with it; how, nobody is left to say."""
    failure = bench.fails("parent", config(1, FORKSERVER), limit_s=_QUIET_S + _START_S)

    assert failure.kind in (EXIT, SIGNAL), failure


KEPT = [
    *("raise", "raise_two_arguments", "raise_stop", "ragged", "other_keys", "segfault", "kill"),
    *("exit_3", "exit_system", "batch_file", "batch_grad", "sleep", "lock", "grow"),
]


@pytest.mark.parametrize("fault", KEPT)
@pytest.mark.usefixtures("clean")
def test_a_persistent_worker(make_bench: Make, fault: str) -> None:
    case = next(case for case in CASES if case[0] == fault)
    bench = make_bench(stall_s=STALL_S) if case[1] in HANGS else make_bench()
    persistent = config(1, FORK, persistent=True)

    failure = bench.fails(fault, persistent, limit_s=case[4])

    assert failure.kind == case[1], failure


@pytest.mark.usefixtures("clean")
def test_an_exception_in_the_second_epoch_only_persistent_workers_see(
    bench: FaultBench,
) -> None:
    failure = bench.fails("raise_second", config(1, FORK, persistent=True), limit_s=1.0)

    assert failure.kind == "worker_exception"
    assert bench.run("raise_second", config(1, FORK)).outcome == "completed"


@pytest.mark.parametrize("start", [SPAWN, FORKSERVER])
@pytest.mark.parametrize("fault", ["raise", "exit_3"])
@pytest.mark.usefixtures("clean")
def test_a_persistent_worker_that_is_a_new_interpreter(
    bench: FaultBench, start: str, fault: str
) -> None:
    case = next(case for case in CASES if case[0] == fault)
    persistent = config(1, start, persistent=True)

    failure = bench.fails(fault, persistent, limit_s=case[4] + _START_S)

    assert failure.kind == case[1], failure


@pytest.mark.parametrize("start", [SPAWN, FORKSERVER])
@pytest.mark.usefixtures("clean")
def test_a_lock_held_while_building_stops_only_forked_workers(
    bench: FaultBench, start: str
) -> None:
    trial = bench.run("lock", config(1, start))

    assert trial.outcome == "completed", trial.failure


@pytest.mark.parametrize(
    ("fault", "tried"),
    [
        ("grandchild", config(1, FORK)),
        ("grandchild", config(1, SPAWN)),
        ("grandchild", config(1, FORKSERVER)),
        ("daemon", config(1, FORK)),
        ("daemon", config(1, FORK, persistent=True)),
        ("shout", config(1, FORK)),
        ("own_queue", config(2, FORK)),
        ("close_output", config(1, FORK)),
        ("talk", config(2, FORK)),
        ("move", config(2, FORK)),
        ("handlers", config(2, FORK)),
        ("handlers", config(1, SPAWN)),
        ("settings", config(2, FORK)),
        ("thread", config(1, FORK)),
        ("atexit", config(1, FORK)),
        ("atexit", config(1, FORK, persistent=True)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.start_method}",
)
@pytest.mark.usefixtures("clean")
def test_bad_manners_are_no_fault(bench: FaultBench, fault: str, tried: Config) -> None:
    trial = bench.run(fault, tried)

    assert trial.outcome == "completed", trial.failure
    bench.check_healthy()
