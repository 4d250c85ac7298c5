"""Faults and their names, by the texts that torch and the system use."""

from __future__ import annotations

from multiprocessing.connection import Client

import pytest

from dlprof.errors import TargetError
from dlprof.trial.failures import blame_log, classify, died, last_lines, outcome_of
from dlprof.trial.measure import EmptyLoaderError


def outer(cause: BaseException) -> RuntimeError:
    """As torch raises it: the outer message says little, the cause says what happened."""
    error = RuntimeError("DataLoader worker (pid(s) 77) exited unexpectedly")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (outer(RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")), "signal"),
        (
            outer(
                RuntimeError(
                    "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that "
                    "dataloader's workers are out of shared memory. insufficient shared memory"
                )
            ),
            "shared_memory",
        ),
        (
            RuntimeError("unable to write to file </torch_7_1_0>: No space left on device (28)"),
            "shared_memory",
        ),
        (
            outer(RuntimeError("DataLoader worker (pid 7) exited unexpectedly with exit code 3.")),
            "exit",
        ),
        (OSError(24, "Too many open files"), "file_descriptors"),
        (RuntimeError("received 0 items of ancdata"), "file_descriptors"),
        (RuntimeError("Cannot re-initialize CUDA in forked subprocess."), "cuda_fork"),
        (AttributeError("Can't get local object 'make.<locals>.Data'"), "not_picklable"),
        (TypeError("cannot pickle '_io.BufferedReader' object"), "not_picklable"),
        (RuntimeError("DataLoader timed out after 5.0 seconds"), "timeout"),
        (KeyError("sample 7"), "worker_exception"),
        (EmptyLoaderError(), "empty"),
        (TargetError("No such step.", hint="Name one."), "target_error"),
    ],
)
def test_every_fault_has_its_name_and_a_remedy(error: Exception, kind: str) -> None:
    failure = classify(error)

    assert failure.kind in {kind, f"worker_{kind}"}
    assert failure.message
    assert failure.hint


def test_an_exception_names_where_it_was_raised() -> None:
    passed_on = ValueError("Caught ValueError in DataLoader worker process 0.\nValueError: bad")

    assert classify(passed_on).message == "ValueError in a worker process: bad"
    assert classify(KeyError("x")).message == "KeyError in the main process: 'x'"


def broken_link() -> OSError:
    try:
        Client("/nowhere", "AF_UNIX")
    except OSError as error:
        return error
    raise AssertionError("there is nothing to connect to")


@pytest.mark.parametrize(
    ("codes", "kind", "told"),
    [
        ((-9, 0), "worker_signal", "SIGKILL"),
        ((2,), "worker_exit", "exit code 2"),
        ((), "worker_exit", "FileNotFoundError"),
    ],
)
def test_a_worker_that_is_gone_when_its_batch_is_fetched(
    codes: tuple[int, ...], kind: str, told: str
) -> None:
    failure = classify(broken_link(), codes)

    assert failure.kind == kind
    assert told in failure.message


def test_a_crash_is_known_by_what_torch_wrote_of_it() -> None:
    lost = classify(broken_link(), [255])
    log = "ERROR: Unexpected segmentation fault encountered in worker.\n"

    assert blame_log(lost, "").kind == "worker_exit"
    assert blame_log(lost, log).kind == "worker_signal"
    assert "segmentation fault" in blame_log(lost, log).message


def test_want_of_descriptors_is_not_taken_for_want_of_shared_memory() -> None:
    text = "unable to open shared memory object </torch_7_1_0> in read-write mode: "

    assert classify(RuntimeError(f"{text}Too many open files (24)")).kind == "file_descriptors"


def test_causes_that_go_in_a_circle_end() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one

    assert classify(one).kind == "worker_exception"


def test_the_status_of_a_dead_process_is_spelt_out() -> None:
    assert "SIGSEGV" in died(-11, "").message
    assert "signal 99" in died(-99, "").message
    assert "exit code 3" in died(3, "").message


def test_outcomes() -> None:
    assert outcome_of(classify(RuntimeError("DataLoader timed out after 1"))) == "timed_out"
    assert outcome_of(classify(KeyError("x"))) == "crashed"


def test_a_long_log_is_cut_to_its_end() -> None:
    cut = last_lines("".join(f"line {number}\n" for number in range(10_000)))

    assert cut.endswith("line 9999")
    assert len(cut.splitlines()) == 30
