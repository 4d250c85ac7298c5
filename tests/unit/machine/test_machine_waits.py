"""What a thread does, by the texts that the kernel shows of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.machine.waits import (
    WAITS,
    Glances,
    Thread,
    Wait,
    parse_wait,
    python_data,
)
from dlprof.records.stages import FORKED, UNSEEN

POLL = "7 0x7f174180ac10 0x1 {ms} 0x7f1762aa3f16 0x0 0x0 0x7f174180ac00 0x7f1762aa3f16\n"


# Recorded from torch 2.13 and Python 3.11 on Linux 6.18.
@pytest.mark.parametrize(
    ("syscall", "channel", "wait"),
    [
        ("running\n", "", "running"),
        (POLL.format(ms="0x1388"), "", "queue"),
        (POLL.format(ms="0x1387"), "", "queue"),
        (POLL.format(ms="0xea60"), "", "network"),  # a socket's time-out of 60 s
        (POLL.format(ms="0xffffffff"), "", "network"),
        ("7 0x7f174180ac10 0x4 0x1388 0x0 0x0 0x0 0x7f17 0x7f17\n", "", "network"),
        ("230 0x1 0x1 0x7ffc8394dff0 0x0 0x0 0x0 0x7ffc8394dfb0 0x7f1762aed545\n", "", "sleep"),
        ("202 0x7f1734000ba0 0x189 0x0 0x0 0x0 0xffffffff 0x7f17 0x7f17\n", "", "threads"),
        ("202 0x7f1734000ba0 0x109 0x0 0x0 0x0 0xffffffff 0x7f17 0x7f17\n", "", "lock"),
        # Of pthread_join, and of a robust lock that processes share.
        ("202 0x7f1734bf1990 0x109 0x3e41 0x0 0x0 0xffffffff 0x7f17 0x7f17\n", "", "threads"),
        ("202 0x7f1734000ba0 0x80 0x80003e41 0x0 0x0 0x0 0x7f17 0x7f17\n", "", "threads"),
        ("202 0x7f1734000ba0 0x0 0x80003e41 0x0 0x0 0x0 0x7f17 0x7f17\n", "", "lock"),
        ("73 0x5 0x2 0x0 0x0 0x0 0x0 0x7ffc 0x7f17\n", "", "lock"),
        (
            "47 0x10 0x7ffc 0x40000000 0x0 0x0 0x0 0x7ffc 0x7f17\n",
            "unix_stream_read_generic",
            "handover",
        ),
        ("0 0xe 0x7f17 0x4 0x0 0x0 0x0 0x7ffc 0x7f17\n", "unix_stream_read_generic", "handover"),
        ("1 0xe 0x7f17 0x4 0x0 0x0 0x0 0x7ffc 0x7f17\n", "pipe_write", "handover"),
        ("1 0x1 0x7f17 0x4 0x0 0x0 0x0 0x7ffc 0x7f17\n", "pipe_write", "other"),  # it prints
        ("1 0x2 0x7f17 0x4 0x0 0x0 0x0 0x7ffc 0x7f17\n", "pipe_write", "other"),
        ("1 0x1 0x7f17 0x4 0x0 0x0 0x0 0x7ffc 0x7f17\n", "rpc_wait_bit_killable", "disk"),
        ("0 0xe 0x7f17 0x4 0x0 0x0 0x0 0x7ffc 0x7f17\n", "folio_wait_bit_common", "disk"),
        ("0 0xe 0x7f17 0x4 0x0 0x0 0x0 0x7ffc 0x7f17\n", "0", "other"),  # it wakes up just now
        ("61 0x1f 0x7ffc 0x0 0x0 0x0 0x0 0x7ffc 0x7f17\n", "", "child"),
        ("16 0x1f 0x7ffc 0x0 0x0 0x0 0x0 0x7ffc 0x7f17\n", "nv_ioctl", "other"),
    ],
)
def test_a_call_says_what_a_thread_waits_for(syscall: str, channel: str, wait: str) -> None:
    assert parse_wait(syscall, channel, "x86_64") == wait


@pytest.mark.parametrize(
    ("channel", "wait"),
    [
        ("poll_schedule_timeout.constprop.0", "queue"),
        ("futex_wait_queue_me", "threads"),
        ("locks_lock_inode_wait", "lock"),
        ("rpc_wait_bit_killable", "disk"),
        ("wait_woken", "network"),
        ("hrtimer_nanosleep", "sleep"),
        ("0", "running"),
        ("some_driver_wait", "other"),
    ],
)
def test_without_the_call_the_kernels_function_says_it(channel: str, wait: str) -> None:
    assert parse_wait("", channel, "x86_64") == wait
    assert parse_wait("7 0x1 0x1 0x1388", channel, "s390x") == wait  # numbers that aren't known


MAPS = """\
5558c44b6000-5558c44b7000 rw-p 00003000 fe:00 26723  /usr/bin/python3.11
5558d857d000-5558d869d000 rw-p 00000000 00:00 0                          [heap]
7f64ae600000-7f64ae9f0000 r-xp 00000000 fe:00 267  /usr/lib/libpython3.11.so.1.0
7f64aeb00000-7f64aeb40000 rw-p 00500000 fe:00 267  /usr/lib/libpython3.11.so.1.0
7f64aeb40000-7f64aeb50000 rw-p 00000000 00:00 0
7f64aeb50000-7f64aeb60000 rw-p 00000000 fe:00 9   /usr/lib/libm.so.6
7f64aeb60000-7f64aeb70000 rw-p 00000000 00:00 0
"""


def test_the_gil_is_distinguished_from_locks_of_the_program_by_where_it_is() -> None:
    gil = python_data(MAPS)
    assert [len(each) for each in gil] == [0x1000, 0x50000]
    for address, wait in (
        ("0x7f64aeb4e6f0", "gil"),
        ("0x5558d8600000", "threads"),
        ("0x7f64aeb61000", "threads"),
    ):
        call = f"202 {address} 0x89 0x0 0x7ffcc0023580 0x0 0xffffffff 0x7ffc 0x7f64"
        assert parse_wait(call, "", "x86_64", gil) == wait
        assert parse_wait(call, "", "x86_64") == "threads"
    assert python_data("no maps\n7f64-") == ()


def test_arm_waits_for_its_queues_by_ppoll() -> None:
    assert parse_wait("73 0x7f17 0x1 0x7ffc 0x0 0x8 0x0 0x0 0x0", "", "aarch64") == "queue"


@pytest.mark.parametrize(("state", "wait"), [("S", "other"), ("D", "disk"), ("R", "running")])
def test_where_the_kernel_hides_both_a_thread_that_sleeps_does_not_run(
    tmp_path: Path, state: str, wait: str
) -> None:
    """As another user's threads, or in gVisor."""
    (tmp_path / "stat").write_text(f"7 (python3) {state} " + "0 " * 49 + "\n")
    (tmp_path / "wchan").write_text("0")
    thread = Thread(str(tmp_path), "x86_64")
    assert (thread.unreadable, thread.look()) == (True, wait)
    thread.close()


PYTHON = "10-20 rw-p 00000000 00:19 11                     /usr/bin/python3.11\n"


def process(
    root: Path,
    pid: int,
    name: str,
    state: str = "S",
    *,
    started: str = "",
    threads: str = "",
    **files: str,
) -> Path:
    """A process in a made-up ``/proc`` with what it has started, and states of its threads."""
    folder, stat = root / f"{pid}", "{} ({}) {} " + "0 " * 16 + "{} " + "0 " * 20
    for number, letter in enumerate(threads or state, start=pid):
        task = folder / f"task/{number}"
        task.mkdir(parents=True)
        (task / "stat").write_text(stat.format(number, name, letter, len(threads or "1")))
        (task / "children").write_text(started if number == pid else "")
    (folder / "stat").write_text(stat.format(pid, name, state, len(threads or "1")))
    for file, text in files.items():
        path = folder if file == "maps" else folder / f"task/{pid}"
        (path / file).write_text(text)
    return folder / f"task/{pid}"


ENDS = {"syscall": "61 0x1c3 0x7ffc 0x0 0x0 0x0 0x0 0x7ffc 0x7f17"}
READS = {"syscall": "0 0x5 0x7ffc 0x400 0x0 0x0 0x0 0x7ffc 0x7f17", "wchan": "anon_pipe_read"}
ASKS = {"syscall": POLL.format(ms="0xffffffff")}
INDICES = {"syscall": POLL.format(ms="0x1388")}
FORKING = {"syscall": "202 0x7f1734000ba0 0x189 0x0 0x0 0x0 0xffffffff 0x7f17 0x7f17"}


@pytest.mark.parametrize("call", [ENDS, READS, ASKS, FORKING], ids=["end", "pipe", "poll", "pool"])
@pytest.mark.parametrize(
    ("child", "seen"),
    [
        ({"name": "gzip", "state": "R"}, "gzip"),
        ({"name": "ffmpeg", "threads": "SSR"}, "ffmpeg"),  # its other threads decode
        ({"name": "sh", "started": "9"}, "sox"),  # a shell waits for what it runs
        ({"name": "python", "state": "R"}, FORKED),  # a pool, or a child before its program begins
        ({"name": "curl"}, ""),  # it waits itself
        ({"name": "gone", "state": "Z"}, ""),
    ],
)
def test_what_waits_for_a_child_that_computes_is_seen_to(
    tmp_path: Path, call: dict[str, str], child: dict[str, str], seen: str
) -> None:
    process(tmp_path, 9, "sox", "R")
    process(tmp_path, 8, **child)
    thread = Thread(str(process(tmp_path, 7, "python", started="8 ", **call)), "x86_64")
    plain: dict[int, Wait] = {id(ASKS): "network", id(FORKING): "threads"}
    assert thread.look() == ("child" if seen else plain.get(id(call), "other"))
    assert dict(thread.children) == ({seen: 1} if seen else {})
    thread.close()


def test_who_waits_for_indices_waits_for_no_child_that_runs_ahead(tmp_path: Path) -> None:
    process(tmp_path, 8, "ffmpeg", "R")
    thread = Thread(str(process(tmp_path, 7, "python", started="8", **INDICES)), "x86_64")
    assert thread.look() == "queue"
    thread.close()


def test_so_does_one_whose_call_is_hidden(tmp_path: Path) -> None:
    """By Yama, as on Ubuntu."""
    process(tmp_path, 8, "ffmpeg", "R")
    hidden = {"wchan": "poll_schedule_timeout.constprop.0"}
    thread = Thread(str(process(tmp_path, 7, "python", started="8", **hidden)), "x86_64")
    assert (thread.unreadable, thread.look()) == (True, "queue")
    thread.close()


def test_main_waits_for_none_of_its_workers(tmp_path: Path) -> None:
    """Of which there may be many, or a server that has started them."""
    process(tmp_path, 8, "pt_data_worker", "R")
    process(tmp_path, 9, "python", started="8")
    folder = process(tmp_path, 7, "python", started="8 9", **READS)
    thread = Thread(str(folder), "x86_64", leave_out="pt_data_worker")
    assert thread.look() == "other"
    process(tmp_path, 10, "gzip", "R")
    (folder / "children").write_text(20 * "8 " + "10")
    assert thread.look() == "child"
    thread.close()


@pytest.mark.parametrize("hides", [False, True])
def test_children_are_named_also_where_the_kernel_hides_what_else_is_waited_for(
    tmp_path: Path, *, hides: bool
) -> None:
    """As Yama does of what is no descendant: the GIL can't be told from another thread."""
    process(tmp_path, 8, "gzip", "R")
    files = {"wchan": "anon_pipe_read"} if hides else READS
    folder = process(tmp_path, 7, "python", started="8", maps=PYTHON, **files)
    glances = Glances(str(tmp_path))
    glances.add(7)
    glances.look()
    (folder / "children").write_text("")
    glances.look()
    rest = UNSEEN if hides else "queue"
    assert glances.shares() == {"child gzip": 0.5, rest: 0.5}
    glances.close()


def test_shares_are_the_same_however_often_they_are_asked_for(tmp_path: Path) -> None:
    """Also of what has ended, and where children computed at last."""
    process(tmp_path, 8, "gzip", "R")
    hidden = {"wchan": "anon_pipe_read"}
    process(tmp_path, 6, "python", maps=PYTHON, **hidden)
    process(tmp_path, 7, "python", started="8", maps=PYTHON, **hidden)
    glances = Glances(str(tmp_path))
    glances.add(6)
    glances.look()
    (tmp_path / "6/task/6/stat").write_text("")
    glances.look()
    assert glances.shares() == {}
    glances.add(7)
    glances.look()
    assert glances.shares() == {"child gzip": 0.5, UNSEEN: 0.5}
    glances.close()


@pytest.mark.slow
@given(
    st.one_of(st.text(), st.from_regex(r"\d{1,3}( 0x[0-9a-f]{1,16}){0,8}\n?")),
    st.text(),
    st.sampled_from(["x86_64", "aarch64", "riscv64"]),
)
def test_any_text_is_some_wait(syscall: str, channel: str, machine: str) -> None:
    assert parse_wait(syscall, channel, machine) in WAITS
