"""Faults and their names, by the texts that torch and the system use."""

from __future__ import annotations

import pytest

from dlprof.errors import TargetError
from dlprof.trial.failures import classify, died, last_lines, outcome_of
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
    failure = classify(error, num_workers=2)

    assert failure.kind in {kind, f"worker_{kind}"}
    assert failure.message
    assert failure.hint


def test_an_exception_names_where_it_was_raised() -> None:
    assert "a worker process" in classify(KeyError("x"), num_workers=1).message
    assert "the main process" in classify(KeyError("x"), num_workers=0).message


def test_causes_that_go_in_a_circle_end() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one

    assert classify(one, num_workers=0).kind == "worker_exception"


def test_the_status_of_a_dead_process_is_spelt_out() -> None:
    assert "SIGSEGV" in died(-11, "").message
    assert "signal 99" in died(-99, "").message
    assert "exit code 3" in died(3, "").message


def test_outcomes() -> None:
    assert outcome_of(classify(RuntimeError("DataLoader timed out after 1"), 1)) == "timed_out"
    assert outcome_of(classify(KeyError("x"), 1)) == "crashed"


def test_a_long_log_is_cut_to_its_end() -> None:
    cut = last_lines("".join(f"line {number}\n" for number in range(10_000)))

    assert cut.endswith("line 9999")
    assert len(cut.splitlines()) == 30
