"""The parsers of ``/proc`` texts: recorded text, and any text at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dlprof.machine import procfs

_RECORDED = Path(__file__).parents[2] / "data" / "machine"

_PARSERS: list[Callable[[str], object]] = [
    procfs.parse_int,
    procfs.parse_cpu_list,
    procfs.parse_cpuinfo,
    procfs.parse_meminfo,
    procfs.parse_cpu_ticks,
    procfs.parse_process_stat,
    procfs.parse_schedstat,
    procfs.parse_io,
    procfs.parse_pss,
    procfs.parse_statm,
    procfs.parse_pressure,
    procfs.parse_allowed_cpus,
    procfs.parse_counters,
    procfs.parse_load,
    procfs.parse_runnable,
]
_PIECES = """
cpu cpu0 some total= Pss: rchar: read_bytes: -1 0 1_0 ٣ ² ( ) : - , . kB processor
"""
_WORDS = st.sampled_from([*_PIECES.split(), "9" * 30, "\n", " ", "\x00"])


@settings(deadline=None)
@given(st.one_of(st.text(), st.lists(_WORDS).map(" ".join), st.lists(_WORDS).map("".join)))
@example("0.-0")
@example("some " + "x" * 10)
@example("0-99999999999")
@example(") " + "1 " * 60)
def test_no_parser_raises_on_any_text(text: str) -> None:
    for parse in _PARSERS:
        parse(text)


@settings(deadline=None)
@given(st.frozensets(st.integers(0, 8191), max_size=60))
def test_cpu_lists_are_read_as_written(cpus: frozenset[int]) -> None:
    assert procfs.parse_cpu_list(",".join(map(str, sorted(cpus))) + "\n") == cpus


@settings(deadline=None)
@given(st.integers(0, 8000), st.integers(0, 190))
def test_cpu_ranges_include_both_ends(first: int, more: int) -> None:
    assert procfs.parse_cpu_list(f"{first}-{first + more}") == frozenset(
        range(first, first + more + 1)
    )


@pytest.mark.parametrize("text", ["3-1", "a", "1-", "-1", "0-99999999999", "1;2", "1-2-3"])
def test_what_is_no_cpu_list_is_none(text: str) -> None:
    assert procfs.parse_cpu_list(text) is None


@pytest.mark.parametrize(
    ("machine", "model", "physical"),
    [
        ("server-96t", "Intel(R) Xeon(R) Platinum 8168 CPU @ 2.70GHz", 48),
        ("docker-v2-quota", "Intel(R) Core(TM) i9-9900K CPU @ 3.60GHz", 8),
        ("graviton", "ARM implementer 0x41 part 0xd40", None),
    ],
)
def test_recorded_cpuinfo(machine: str, model: str, physical: int | None) -> None:
    text = (_RECORDED / machine / "proc/cpuinfo").read_text()
    info = procfs.parse_cpuinfo(text)
    assert info == procfs.CpuInfo(model=model, physical_cores=physical)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor : 0\ncpu : POWER9, altivec supported\n", "POWER9, altivec supported"),
        ("processor : 0\nmodel name : \nHardware : BCM2835\n", "BCM2835"),
        ("", ""),
    ],
)
def test_cpu_models_of_other_architectures(text: str, model: str) -> None:
    assert procfs.parse_cpuinfo(text).model == model


def test_per_cpu_ticks_leave_out_guests_and_the_total() -> None:
    text = "cpu  9 9 9 9\ncpu0 10 1 5 100 20 3 4 2 10 0\ncpu1 1 1 1 1\nintr 7 7\ncpu9 1 1 1 1\n"
    ticks = procfs.parse_cpu_ticks(text)
    assert ticks == {
        0: procfs.CpuTicks(busy=23, idle=120, stolen=2),
        1: procfs.CpuTicks(busy=3, idle=1, stolen=0),
    }


def test_a_programs_name_may_look_like_anything() -> None:
    rest = "S 41 5 5 0 -1 4194304 1 2 3 4 150 50 30 20 20 0 1 0 98765 1 1"
    stat = procfs.parse_process_stat(f"77 (a) R 1 (b) c) {rest}\n")
    assert stat == procfs.ProcessStat(
        parent=41,
        cpu_ticks=200,
        reaped_ticks=50,
        start_ticks=98765,
        name="a) R 1 (b) c",
        state="S",
        threads=1,
        session=5,
    )


@pytest.mark.parametrize("text", ["", "77", "77 (x) S 1 2", "77 (x) S" + " x" * 30])
def test_a_cut_off_process_stat_is_none(text: str) -> None:
    assert procfs.parse_process_stat(text) is None


def test_memory_is_in_bytes() -> None:
    sizes = procfs.parse_meminfo("MemTotal:  16 kB\nHugePages_Total:  3\nOdd:  x kB\n")
    assert sizes == {"MemTotal": 16384, "HugePages_Total": 3}


def test_small_texts() -> None:
    assert procfs.parse_io("rchar: 10\nwchar: 1\nread_bytes: 4\n") == procfs.IoCounters(
        read_chars=10, read_bytes=4, written_chars=1
    )
    counted = procfs.parse_io("rchar: 1\nsyscr: 2\nsyscw: 3\nread_bytes: 4\nwrite_bytes: 5\n")
    assert counted == procfs.IoCounters(
        read_chars=1, read_bytes=4, reads=2, writes=3, write_bytes=5
    )
    assert procfs.parse_io("rchar: 10\n") is None
    assert procfs.parse_pss("0-1 ---p 0 [rollup]\nRss: 9 kB\nPss: 7 kB\nPss_Anon: 1 kB\n") == 7168
    assert procfs.parse_statm("900 500 200 1 0 300 0\n") == (500, 200)
    assert procfs.parse_schedstat("5\n") is None
    assert procfs.parse_schedstat("0 0 0\n") is None  # a kernel without the account says so
    assert procfs.parse_schedstat("0 7 1\n") == procfs.SchedStat(run_ns=0, wait_ns=7)
    assert procfs.parse_pressure("full avg10=0.00 total=5\n") is None
    assert procfs.parse_load("37.21 35.80 33.99 41/2817 918273\n") == 37.21
    assert procfs.parse_load("1e9 1 1\n") is None
    assert procfs.parse_runnable("37.21 35.80 33.99 41/2817 918273\n") == 41
    assert procfs.parse_runnable("37.21 35.80 33.99\n") is None
    assert procfs.parse_runnable("0.00 0.00 0.00 0/0 0\n") is None  # gVisor counts none
    assert procfs.parse_counters("a 1\nb x\n 3\n") == {"a": 1}
