"""Targets that are wrong from the start, or wrong as a whole."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable

import pytest
from fault_bench import MARGIN_S, STALL_S, FaultBench, config

from dlprof.errors import DlprofError, TargetError
from dlprof.records import DUPLICATED_SIGN, Config, Integrity, Target

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="trials are forked on Linux only"),
]

_START_S = 8.0  # an interpreter that imports torch, on a busy machine
Make = Callable[..., FaultBench]


@pytest.mark.parametrize("attr", ["unpicklable", "unpicklable_collate", "cannot_be_unpickled"])
@pytest.mark.parametrize("start", ["spawn", "forkserver"])
@pytest.mark.usefixtures("clean")
def test_what_must_be_pickled_and_can_not_be(make_bench: Make, attr: str, start: str) -> None:
    """It is known before a trial is spent on it, and named if one is."""
    bench = make_bench(attr)

    known = bench.bench.try_workers(config(1, start))
    failure = bench.fails("none", config(1, start), limit_s=_START_S)

    assert known is not None
    assert known.kind == "not_picklable"
    assert "--start-method fork" in known.hint

    assert failure.kind == "not_picklable", failure
    assert "--start-method fork" in failure.hint
    assert bench.run("none", config(1, "fork")).outcome == "completed"


@pytest.mark.usefixtures("clean")
def test_a_dataset_that_takes_minutes_to_be_pickled(make_bench: Make) -> None:
    """No trial of it would come to an end, and half of the budget is enough to see that."""
    bench = make_bench("pickled_in_an_hour")

    began_s = time.monotonic()
    known = bench.bench.try_workers(config(1, "spawn"), left_s=10.0)

    assert time.monotonic() - began_s < 5.0 + MARGIN_S
    assert known is not None
    assert known.kind == "timeout"
    assert known.message.startswith("A worker that is started by spawn isn't there after 5 s")
    assert "give a larger --budget" in known.hint
    assert known.hint.endswith("s more are enough.")
    assert bench.run("none", config(1, "fork")).outcome == "completed"


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
@pytest.mark.usefixtures("clean")
def test_workers_that_can_be_started_are_known_too(make_bench: Make, start: str) -> None:
    bench = make_bench()

    assert bench.bench.try_workers(config(1, start)) is None
    bench.check_healthy()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.usefixtures("clean")
def test_a_batch_that_no_worker_can_send(make_bench: Make, *, persistent: bool) -> None:
    """It is known before, where the main process makes the same; and its trial does not hang."""
    bench = make_bench("unsendable")
    assert bench.probe["batch_failure"]["kind"] == "batch_not_picklable"

    trial = bench.run("none", config(1, "fork", persistent=persistent))

    assert trial.failure is not None
    assert trial.failure.kind == "batch_not_picklable", trial.failure
    assert bench.run("none", config(0)).outcome == "completed"


@pytest.mark.parametrize(
    ("fault", "kind", "hint"),
    [
        ("raise", "worker_exception", "traceback"),
        ("empty", "empty", "sampler"),
    ],
)
@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.usefixtures("clean")
def test_an_iterable_that_fails(
    make_bench: Make, fault: str, kind: str, hint: str, start: str
) -> None:
    limit_s = 1.0 if start == "fork" else _START_S

    failure = make_bench("stream").fails(fault, config(1, start), limit_s=limit_s)

    assert failure.kind == kind, failure
    assert hint in failure.hint


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.usefixtures("clean")
def test_an_iterable_that_every_worker_gives_whole(make_bench: Make, *, persistent: bool) -> None:
    bench = make_bench("stream")

    trial = bench.run("unsharded", config(2, "fork", persistent=persistent))
    sharded = bench.run("none", config(2, "fork", persistent=persistent))

    assert trial.failure is not None
    assert trial.failure.kind == "duplicated"
    assert "get_worker_info" in trial.failure.hint
    assert trial.samples_per_s is None
    assert sharded.outcome == "completed", sharded.failure


@pytest.mark.usefixtures("clean")
def test_an_iterable_whose_workers_ask_in_vain(make_bench: Make) -> None:
    """Shares may begin alike: other trials' epochs show it, and without any it is wrong data."""
    trial = make_bench("stream").run("asks_in_vain", config(2, "fork"))

    assert trial.outcome == "completed", trial.failure
    assert any(DUPLICATED_SIGN in warning for warning in trial.warnings), trial.warnings
    found = Integrity.of_trials([trial], [], Target(spec="x", kind="iterable", dataset="X"))
    assert found.fault(trial.config) is not None


@pytest.mark.usefixtures("clean")
def test_an_iterable_that_gives_more_than_it_promises(make_bench: Make) -> None:
    trial = make_bench("stream").run("says_too_few", config(1, "fork"), trial_s=0.3)

    assert trial.outcome == "completed", trial.failure
    assert any("__len__" in warning for warning in trial.warnings), trial.warnings


@pytest.mark.usefixtures("clean")
def test_an_iterable_that_gives_less_than_it_promises(make_bench: Make) -> None:
    trial = make_bench("stream").run("ends_early", config(1, "fork"), trial_s=0.3)

    assert trial.failure is not None
    assert trial.failure.kind == "truncated"
    assert "__len__" in trial.failure.message
    assert trial.samples_per_s is None


@pytest.mark.usefixtures("clean")
def test_a_length_that_promises_too_much(make_bench: Make) -> None:
    bench = make_bench("too_long")

    trial = bench.run("none", config(1, "fork"))

    assert trial.failure is not None
    assert trial.failure.kind == "worker_exception"
    assert "__len__" in trial.failure.hint


@pytest.mark.usefixtures("clean")
def test_the_loaders_own_timeout(make_bench: Make) -> None:
    failure = make_bench("impatient").fails("sleep", config(1, "fork"), limit_s=1.0 + 5.0)

    assert failure.kind == "timeout", failure
    assert "own timeout" in failure.hint


@pytest.mark.usefixtures("clean")
def test_a_slow_first_batch_is_no_hang(make_bench: Make) -> None:
    """Twenty times what a batch took in the probe is waited beyond the limit."""
    trial = make_bench("slow", stall_s=2.0).run("none", config(1, "fork"))

    assert trial.outcome == "completed", trial.failure


@pytest.mark.usefixtures("clean")
def test_openmp_in_the_constructor(make_bench: Make) -> None:
    bench = make_bench("computes_while_building")

    bench.check_healthy(config(0))

    assert bench.bench.fork_safe  # on one thread it starts no pool that a fork would break


@pytest.mark.usefixtures("clean")
def test_a_builder_that_meddles_with_its_process(make_bench: Make) -> None:
    bench = make_bench("meddles")

    time.sleep(max(0.0, 3.5 - (bench.target.import_s or 0.0)))  # until its alarm has rung
    bench.check_healthy()
    failure = bench.fails("segfault", config(1, "fork"), limit_s=STALL_S)

    assert failure.kind in ("worker_signal", "worker_exit"), failure


@pytest.mark.parametrize(
    ("attr", "shown"),
    [
        ("build_exits", "ended with exit code 0"),
        ("build_segfaults", "was ended by SIGSEGV"),
        ("build_is_killed", "was ended by SIGKILL"),
        ("build_sys_exits", "the following arguments are required: --data"),
        ("build_raises", "TwoArgumentsError"),
        ("length_raises", "LookupError"),
        ("drops_all", "no batch"),
    ],
)
@pytest.mark.usefixtures("clean")
def test_a_target_that_can_not_be_used(attr: str, shown: str) -> None:
    with pytest.raises(DlprofError) as caught:
        FaultBench(attr)

    error = caught.value
    assert isinstance(error, TargetError)
    assert shown in f"{error.message} {error.traceback}"
    assert "\n" not in error.message
    assert error.hint


@pytest.mark.usefixtures("clean")
def test_a_builder_that_is_killed_once_is_tried_again(make_bench: Make) -> None:
    make_bench("build_is_killed_once").check_healthy(config(1, "fork"))


@pytest.mark.usefixtures("clean")
def test_a_builder_that_hangs() -> None:
    began_s = time.monotonic()
    with pytest.raises(TargetError) as caught:
        FaultBench("build_hangs", wall_s=20.0)  # long after torch has been imported

    assert time.monotonic() - began_s < 20.0 + MARGIN_S
    assert "20 s" in caught.value.message
    assert "--timeout" in caught.value.hint
    assert "build_hangs" in caught.value.traceback


@pytest.mark.parametrize("sharing", ["file_descriptor", "file_system"])
@pytest.mark.usefixtures("clean")
def test_a_killed_worker_leaves_no_file(make_bench: Make, sharing: str) -> None:
    tried: Config = config(1, "fork", sharing=sharing)
    failure = make_bench().fails("kill", tried, limit_s=1.0)

    assert failure.kind == "worker_signal", failure


@pytest.mark.parametrize(
    "attr", ["uses_files", "uses_files_and_a_process", "uses_files_and_a_thread"]
)
@pytest.mark.usefixtures("clean")
def test_what_a_target_keeps_in_files_goes_with_it(attr: str) -> None:
    """Its folder, and the socket of its manager's process."""
    with contextlib.closing(FaultBench(attr)) as bench:
        assert bench.bench.fork_safe is (attr == "uses_files")
        bench.check_healthy()
        bench.check_healthy(config(0))
