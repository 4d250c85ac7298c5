"""What attach and top print: the answer within 16 lines, and the same figures in JSON."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from golden import check_golden, drawn
from schemas import conforms
from test_attach_diagnosis import HERE, QUIET, _consumer, _cpu, _io, _order, _seen

from dlprof.attach import Attached, session
from dlprof.attach.diagnosis import diagnose_training
from dlprof.attach.trainings import Training
from dlprof.attach.watching import Look, ProcessSeen, Seen
from dlprof.cli.entry import run as run_program
from dlprof.records import Estimate, Machine, Usage
from dlprof.records.codec import from_json
from dlprof.report.attach import attach_report, figures_of, top_report
from dlprof.report.document import Document
from dlprof.report.documents import json_document
from dlprof.report.terminal import plain_text

MOST_LINES = 16
RECORDED = Path(__file__).parents[2] / "data" / "attach" / "recorded.json"


def _lines(document: Document, *, verbose: bool = False) -> list[str]:
    return drawn(document, 80, verbose=verbose).splitlines()


def _alone() -> Seen:
    looks = [Look(main="running", pin=None, idle=0, alive=0) for _ in range(200)]
    return _seen(looks, workers=0, batches=0, main={"run_s": 9.8})


MADE: dict[str, Callable[[], Seen]] = {
    "io": _io,
    "cpu": _cpu,
    "consumer": _consumer,
    "order": _order,
    "alone": _alone,
}


def _found(name: str) -> Attached:
    return diagnose_training(MADE[name](), HERE, QUIET)


@pytest.mark.parametrize("name", MADE)
def test_the_answer_is_short_and_complete(name: str) -> None:
    found = _found(name)
    lines = _lines(attach_report(found))
    assert len(lines) <= MOST_LINES
    text = "\n".join(lines)
    assert found.finding is not None
    assert found.finding.code in text
    assert f"Certainty   {found.confidence}" in text
    assert ("  Fix " in text) == ("  Speed-up " in text)
    assert lines[-1].strip() == "dlprof run train.py"
    details = "\n".join(_lines(attach_report(found), verbose=True))
    answer, _, hint = text.rpartition("  Details")
    assert ": -v · each batch's stages" in hint
    assert details.endswith(f"{answer}  Each batch's stages, in a new run:\n  dlprof run train.py")
    assert "sampled" in details


def test_a_training_that_its_launcher_led_to_says_so() -> None:
    seen = _io()
    training = dataclasses.replace(seen.training, launcher="17 (timeout)")
    found = diagnose_training(dataclasses.replace(seen, training=training), HERE, QUIET)
    assert ", started by 17 (timeout)" in " ".join(_lines(attach_report(found)))


def _recorded() -> Attached:
    """What ``tools/record.py`` saw of the training of ``docs/how-to/attach.md``."""
    kept = json.loads(RECORDED.read_text(encoding="utf-8"))
    seen = kept["seen"]
    looks = [Look(*row) for row in seen.pop("looks")]
    parts: dict[str, Any] = {
        "training": from_json(Training, seen.pop("training")),
        "main": from_json(ProcessSeen, seen.pop("main")),
        "workers": tuple(from_json(ProcessSeen, each) for each in seen.pop("workers")),
        "ended_before": tuple(seen.pop("ended_before")),
    }
    machine, usage = from_json(Machine, kept["machine"]), from_json(Usage, kept["usage"])
    return diagnose_training(Seen(looks=looks, **parts, **seen), machine, usage)


def test_the_pages_screen_is_that_of_a_training_that_ran() -> None:
    """``DLPROF_UPDATE_GOLDEN=1`` draws it again, and ``make docs`` the page."""
    check_golden("attach-80.txt", drawn(attach_report(_recorded()), 80))


def test_what_more_workers_leave_rests_on_no_step_that_is_only_seen_from_outside() -> None:
    busy = _seen(
        [*_io().looks],
        worker={"run_s": 2.5, "queued_s": 0.02},
        worker_waits={"sleep": 150, "running": 50},
        main={"run_s": 0.3},
    )
    lines = _lines(attach_report(diagnose_training(busy, HERE, QUIET)))
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert (
        "Fix num_workers=9 (more may be faster: dlprof sweep measures them) "
        "Speed-up up to 4.1x (95%) with this step, if its workers share no limit, predicted" in text
    )
    assert (
        "Workers have a batch to make 100% of the time (in sleep() 75%, running 25%), 0.0" in text
    )
    assert text.count("blocked is not seen") == 1
    assert "(more may be faster" in "\n".join(_lines(attach_report(_found("io"))))


@pytest.mark.parametrize("name", MADE)
def test_json_is_as_its_schema_says(name: str) -> None:
    figures = figures_of(_found(name))
    conforms("attach", json.loads(json_document(**figures)))
    conforms("top", json.loads(json_document(trainings=[figures, figures])))
    conforms("top", json.loads(json_document(trainings=[])))


def test_json_says_what_the_screen_says() -> None:
    found = _found("io")
    document = json.loads(json_document(**figures_of(found)))
    assert document["findings"][0]["code"] == "fetch.io"
    assert document["wait_fraction"]["value"] == pytest.approx(0.953, abs=0.02)
    assert document["main_waits"] == {"running": 0.05, "queue": 0.95}
    assert [each["pid"] for each in document["workers"]] == [2, 3]
    assert document["overhead_cpu_cores"] == 0.0
    assert figures_of(_found("alone"))["unavailable"]["wait_fraction"]


def test_a_line_for_each_training_and_one_sentence_for_none() -> None:
    found = [_found("io"), _found("consumer"), _found("alone")]
    lines = _lines(top_report(found, unseen=2))
    assert sum("train.py" in line for line in lines) == 3
    assert any("fetch.io" in line for line in lines)
    assert any("2 trainings can't be looked at" in line for line in lines)
    document = json.loads(json_document(trainings=list(map(figures_of, found))))
    assert document["trainings"][0]["findings"][0]["code"] == "fetch.io"
    assert "No training" in "\n".join(_lines(top_report([])))


@pytest.mark.parametrize("width", [60, 68, 80, 120])
def test_what_is_found_goes_on_below_where_the_screen_ends(width: int) -> None:
    found = _found("io")
    training = dataclasses.replace(found.seen.training, command=("python", "a" * 40 + ".py"))
    long = dataclasses.replace(found, seen=dataclasses.replace(found.seen, training=training))
    lines = plain_text(top_report([found, long]), width=width).splitlines()
    assert max(map(len, lines)) <= width
    first = found.finding
    assert first is not None
    below = [line[lines[0].index("bottleneck") :].split() for line in lines[1 : lines.index("")]]
    words = [word for line in below for word in line]
    assert words[: len(first.title.split())] == first.title.split()


def test_whose_training_it_is_is_said_where_it_is_anothers() -> None:
    mine = _found("io")
    whose = dataclasses.replace(mine.seen.training, user="alice", is_own=False)
    theirs = dataclasses.replace(mine, seen=dataclasses.replace(mine.seen, training=whose))
    assert "alice" not in "".join(_lines(top_report([mine])))
    assert any("alice" in line for line in _lines(top_report([mine, theirs])))
    assert "train.py of alice" in _lines(attach_report(theirs))[0]
    assert figures_of(theirs)["user"] == "alice"
    assert figures_of(mine)["user"] is None
    assert "whose" in figures_of(mine)["unavailable"]["user"]


def test_trainings_of_equal_wait_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of their ids, whichever are found first."""
    trainings = [Training(pid=pid, start_ticks=7919 * pid, parent=pid) for pid in range(1, 41)]
    waits = {each.pid: Estimate(value=0.5) if each.pid % 3 == 0 else None for each in trainings}

    class Still:
        machine = HERE

        def __init__(self, training: Training, **_: object) -> None:
            self.seen, self.usage = (lambda: training.pid), (lambda look: look() and QUIET)

        def close(self) -> None:
            """Nothing."""

    scans = list[str]()

    def scan(proc: str) -> list[tuple[int, None]]:
        scans.append(proc)
        return [(1, None)]

    monkeypatch.setattr(session, "_check_system", lambda _: None)
    monkeypatch.setattr(session, "find_trainings", lambda *_: trainings)
    monkeypatch.setattr(session, "training_of", lambda pid, _: trainings[pid - 1])
    monkeypatch.setattr(session, "Watcher", Still)
    monkeypatch.setattr(session, "scan_processes", scan)
    judged = lambda pid, *_: SimpleNamespace(pid=pid, wait_fraction=waits[pid])  # noqa: E731 - one line of a stand-in
    monkeypatch.setattr(session, "diagnose_training", judged)
    board = session.Board(clock=lambda: 0)
    found = [cast(Any, each).pid for each in board.watch(0.0)]
    board.close()
    assert found == sorted(found, key=lambda pid: (pid % 3 > 0, pid))
    assert len(found) == 40


class _Watched:
    """A board without trainings, of which somebody has seen enough at the second look."""

    unseen = 0

    def __init__(self) -> None:
        self._looks = 0

    def watch(self, seconds: float) -> tuple[Attached, ...]:
        self._looks += 1
        if self._looks > 1:
            assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
            raise KeyboardInterrupt
        return ()

    def close(self) -> None:
        """Nothing."""


@pytest.mark.parametrize(("term", "moves"), [("xterm", True), ("dumb", False)])
def test_the_list_is_live_only_where_a_terminal_can_draw_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], term: str, *, moves: bool
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "0")  # which is no width
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("dlprof.attach.Board", _Watched)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run_program(["top"], {}) == 0
    out = capsys.readouterr().out
    assert "No training that loads data" in out
    assert (out.rfind("\x1b[?25h") > out.find("\x1b[?25l") >= 0) is moves  # its cursor is back
    assert signal.getsignal(signal.SIGTERM) is before
