"""From stamps to the figures of a block."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import multiprocessing
import os
import statistics
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import pytest
from torch.utils.data import DataLoader, Dataset

from dlprof import trial
from dlprof.records import Config
from dlprof.targets.build import build_from_object
from dlprof.tracing.clocks import MISSING
from dlprof.tracing.trace import Made, Row
from dlprof.trial import warm
from dlprof.trial.protocol import BlockRequest, Channel, line_of
from dlprof.trial.warm import Placement, block_figures, cores_of, relocated

MS = 1_000_000


def row(batch: int, *, run_queue: int = 0, worker: int = 0) -> Row:
    """A batch of 10 ms of fetching and 2 of collating, taken in 3 of which 1 was CPU."""
    made = Made(
        worker=worker,
        ordinal=batch,
        picked=0,
        fetched=10 * MS,
        collated=12 * MS,
        fetch_cpu=8 * MS,
        fetch_run_queue=run_queue,
        collate_cpu=MS,
        collate_run_queue=0 if run_queue >= 0 else MISSING,
        others_cpu=0,
        between_cpu=0,
        process_cpu=0,
    )
    return Row(
        epoch=0,
        batch=batch,
        made=made,
        received=20 * MS,
        rebuilt=23 * MS,
        receive_cpu=MS,
        receive_run_queue=0,
        asked=0,
        yielded=24 * MS,
    )


def test_waiting_for_a_core_is_taken_off() -> None:
    rows = [row(0), row(1, run_queue=4 * MS)]
    figures = block_figures(rows, samples=[4, 4], times_s=[0.0, 0.5])
    assert figures["service_s"] == pytest.approx([0.012, 0.008])
    assert figures["corrected"]
    assert figures["stages_s"] == pytest.approx(
        {"fetch": 0.016, "collate": 0.004, "receive": 0.002}
    )


def test_transforms_are_parts_of_fetching() -> None:
    one = row(0, run_queue=5 * MS)  # half of fetching was waiting for a core
    assert one.made is not None
    made = one.made._replace(chain=(4, 6 * MS, 4, 2 * MS))
    rows = [dataclasses.replace(one, made=made), row(1)]
    figures = block_figures(rows, samples=[4, 4], times_s=[], transforms=["Resize", "Crop"])
    assert figures["stages_s"]["fetch: Resize"] == pytest.approx(0.003)
    assert figures["stages_s"]["fetch: Crop"] == pytest.approx(0.001)


def test_without_it_times_are_wall_times_and_that_is_said() -> None:
    rows = [row(0, run_queue=MISSING), row(1)]
    figures = block_figures(rows, samples=[4, 4], times_s=[])
    assert figures["service_s"] == pytest.approx([0.012, 0.012])
    assert not figures["corrected"]
    assert figures["wall_s"] is None


def test_of_a_loader_that_can_not_be_hooked_the_wait_is_known() -> None:
    rows = [dataclasses.replace(row(0), made=None)]
    figures = block_figures(rows, samples=[4], times_s=[1.0])
    assert figures["service_s"] == pytest.approx([0.024])
    assert not figures["corrected"]
    assert figures["stages_s"] == {}


def test_wall_time_is_that_of_the_undisturbed_part_for_the_whole_block() -> None:
    rows = [row(batch) for batch in range(4)]
    figures = block_figures(rows, samples=[2, 2, 2, 2], times_s=[5.0, 5.1, 5.2])
    assert figures["wall_s"] == pytest.approx(0.4)  # 0.1 s for each of four batches


def test_batches_past_the_hooks_make_no_figures() -> None:
    assert "failure" in block_figures([row(0)], samples=[4, 4], times_s=[])


def test_paths_of_the_other_side_are_this_sides_and_the_environment_stays(tmp_path: Path) -> None:
    change, base, link = (tmp_path / name for name in ("change", "base", "link"))
    change.mkdir()
    link.symlink_to(change)
    library, inside = sysconfig.get_path("purelib"), str(change / "base" / "lib")
    entries = [str(link), str(change / "src"), library, "/elsewhere"]
    expected = [str(base), str(base / "src"), library, "/elsewhere"]
    assert relocated(entries, [(str(change), str(base))]) == expected
    assert relocated([library], [(sys.prefix, str(base))]) == [library]
    assert relocated([inside], [(str(change), str(change / "base"))]) == [inside]
    ours = trial.__file__
    assert relocated([ours], [(str(Path(ours).parents[2]), str(base))]) == [ours]


pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="cores can't be chosen here"
)
WITH_ONE = Config(num_workers=1, prefetch_factor=2)
CHOSEN = "its code chooses cores itself"


@pytest.fixture
def own() -> Iterator[set[int]]:
    """This process's cores, which it gets back at the end."""
    cores = os.sched_getaffinity(0)
    yield cores
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread.name), cores)


@pytest.fixture
def worker(own: set[int]) -> Iterator[BaseProcess]:
    """A process that waits."""
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    process.start()
    yield process
    process.kill()
    process.join()


def test_processes_are_held_and_let_go_again(worker: BaseProcess, own: set[int]) -> None:
    assert worker.pid is not None
    placement, core = Placement(), max(own)
    assert placement.hold([worker.pid], WITH_ONE, [core]) == ""
    assert os.sched_getaffinity(worker.pid) == os.sched_getaffinity(0) == {core}
    placement.release([worker.pid])
    assert os.sched_getaffinity(worker.pid) == os.sched_getaffinity(0) == own


def test_code_that_chooses_cores_while_it_is_held_is_noticed(own: set[int]) -> None:
    if len(own) < 2:
        pytest.skip("there is one core, so nothing to choose")
    placement = Placement()
    placement.hold([], Config(), [min(own)])
    assert placement.is_held()
    os.sched_setaffinity(0, own)
    assert not placement.is_held()


def test_a_block_that_asks_for_no_cores_runs_free(worker: BaseProcess, own: set[int]) -> None:
    assert worker.pid is not None
    placement = Placement()
    placement.hold([worker.pid], WITH_ONE, [min(own)])
    assert placement.hold([worker.pid], WITH_ONE, []) == ""
    assert os.sched_getaffinity(0) == own


def test_threads_are_held_too(own: set[int]) -> None:
    done, tasks = threading.Event(), list[int]()

    def wait() -> None:
        tasks.append(threading.get_native_id())
        done.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    while not tasks:
        time.sleep(0.001)
    placement = Placement()
    placement.hold([], Config(), [min(own)])
    held = os.sched_getaffinity(tasks[0])
    placement.release([])
    let_go = os.sched_getaffinity(tasks[0])
    done.set()
    thread.join()
    assert (held, let_go) == ({min(own)}, own)


def test_workers_that_don_t_live_on_run_free(own: set[int]) -> None:
    assert Placement().hold([], WITH_ONE, [min(own)]) == "its workers don't live on"
    assert os.sched_getaffinity(0) == own


def test_what_the_code_has_chosen_is_let_be(worker: BaseProcess, own: set[int]) -> None:
    if len(own) < 2:
        pytest.skip("there is one core, so nothing to choose")
    assert worker.pid is not None
    os.sched_setaffinity(worker.pid, {min(own)})
    assert Placement().hold([worker.pid], WITH_ONE, [max(own)]) == CHOSEN
    assert os.sched_getaffinity(worker.pid) == {min(own)}


@pytest.mark.parametrize(
    ("took_s", "waited_s", "threads"),
    [
        (0.01, 0.0, True),
        (0.02, 0.0, False),
        (0.04, 0.0, False),
        (0.04, 0.03, True),  # beside busy neighbors two threads took half of the wall time
        (0.04, 0.02, False),
    ],
)
def test_what_computes_with_several_threads_runs_free(
    own: set[int],
    monkeypatch: pytest.MonkeyPatch,
    took_s: float,
    waited_s: float,
    *,
    threads: bool,
) -> None:
    """20 ms of CPU time, and some time in which the first thread waited for a core."""
    times = iter([0.0, took_s])
    monkeypatch.setattr(warm, "_clock", lambda: next(times, 0.0))
    ran = iter([(5_000_000, 1_000_000), (25_000_000, 1_000_000 + round(waited_s * 1e9))])
    monkeypatch.setattr(warm, "_ran_ns", lambda _pid: next(ran, (0, 0)))
    placement = Placement()
    placement.hold([], Config(), [])
    placement.learn([])
    assert ("several threads" in placement.hold([], Config(), [min(own)])) is threads
    placement.release([])


def test_what_a_process_ran_is_that_of_all_threads() -> None:
    before, _ = warm._ran_ns(os.getpid())
    until = time.process_time() + 0.02
    while time.process_time() < until:
        pass
    after, waited = warm._ran_ns(os.getpid())
    assert after - before >= 0.015e9
    assert waited >= 0
    assert warm._ran_ns(2**22 + 1) == (0, 0)


def test_a_core_that_the_job_no_longer_has(own: set[int]) -> None:
    placement = Placement()
    assert placement.hold([], Config(), [min(own)]) == ""
    assert placement.hold([], Config(), [4095]) == "the system refuses it"
    assert os.sched_getaffinity(0) == own
    assert placement.hold([], Config(), [min(own)]) == ""


@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL])
def test_a_system_that_refuses_to_hold_processes(own: set[int], number: int) -> None:
    def refuse(_pid: int, _cores: object) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_setaffinity", refuse)
        assert Placement().hold([], Config(), [min(own)]) == "the system refuses it"
    assert os.sched_getaffinity(0) == own


def test_a_cpuset_that_changes_is_followed(own: set[int]) -> None:
    """As the kernel narrows and widens what processes may use, of the check and of its sides."""
    if len(own) < 2:
        pytest.skip("there is one core, so nothing to narrow")
    placement, narrow, wide = Placement(), [min(own)], sorted(own)
    assert placement.hold([], Config(), wide) == ""
    os.sched_setaffinity(0, narrow)
    assert placement.hold([], Config(), narrow) == ""
    placement.release([])
    os.sched_setaffinity(0, narrow)  # a cpuset keeps what is asked for within itself
    assert placement.hold([], Config(), narrow) == ""
    placement.release([])
    assert placement.hold([], Config(), wide) == ""
    placement = Placement()  # begun while the cpuset was narrow
    assert placement.hold([], Config(), wide) == CHOSEN
    assert placement.hold([], Config(), narrow) == ""
    placement.release([])
    os.sched_setaffinity(0, own)
    assert placement.hold([], Config(), wide) == ""


def test_a_cpuset_that_grows_while_sides_are_let_go_is_followed(own: set[int]) -> None:
    """Where the kernel keeps processes to the cores that they were given before."""
    if len(own) < 2:
        pytest.skip("there is one core, so nothing to widen")
    os.sched_setaffinity(0, {min(own)})
    placement = Placement()
    assert placement.hold([], Config(), [min(own)]) == ""
    placement.release([])
    assert placement.hold([], Config(), sorted(own, reverse=True)) == ""
    assert os.sched_getaffinity(0) == {max(own)}


def test_cores_that_the_target_has_chosen_for_all_are_kept(own: set[int]) -> None:
    if len(own) < 2:
        pytest.skip("there is one core, so nothing to choose")
    os.sched_setaffinity(0, {min(own)})
    placement = Placement()
    assert placement.hold([], Config(), sorted(own, reverse=True)) == CHOSEN
    assert os.sched_getaffinity(0) == {min(own)}


def test_a_worker_that_has_ended_leaves_no_other_held(worker: BaseProcess, own: set[int]) -> None:
    assert worker.pid is not None
    placement, core = Placement(), min(own)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dlprof.trial.warm._affinity", lambda _: frozenset(own))
        pids = [worker.pid, 2**22 + 1]
        assert placement.hold(pids, Config(num_workers=2, prefetch_factor=2), [core])
    assert os.sched_getaffinity(worker.pid) == own


def test_the_core_of_a_process(own: set[int]) -> None:
    (core,) = cores_of([os.getpid()])
    assert core in own
    assert cores_of([2**22 + 1]) == []


class _Slow(Dataset[int]):
    """Waits for each sample, or for those that it doesn't have."""

    def __init__(self, seconds: float, *, keeps: bool) -> None:
        self.seconds = seconds
        self.cache: dict[int, int] | None = {} if keeps else None

    def __len__(self) -> int:
        return 200  # of which all can be asked for beside others, too

    def __getitem__(self, index: int) -> int:
        if self.cache is None or index not in self.cache:
            time.sleep(self.seconds)
        if self.cache is not None:
            self.cache[index] = index
        return index


@pytest.mark.parametrize(
    ("seconds", "keeps", "limit_s"), [(0.005, True, 5.0), (0.005, False, 5.0), (3600.0, True, 0.2)]
)
def test_a_side_is_asked_whether_it_keeps_samples_by_another_process(
    monkeypatch: pytest.MonkeyPatch, seconds: float, limit_s: float, *, keeps: bool
) -> None:
    """Its own memory stays as it was, and what hangs holds it up for a moment."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # pytest's own threads stay out
    data = _Slow(seconds, keeps=keeps)
    began_s = time.monotonic()
    found = warm._keeps(build_from_object(DataLoader(data)), limit_s)
    assert found is (keeps and seconds < 1)
    assert not data.cache
    assert time.monotonic() - began_s < 60.0


class Beginning(DataLoader[int]):
    """Has begun its epoch before it is asked for one."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.begun = super().__iter__()

    def __iter__(self) -> Any:
        return self.begun


def test_a_block_of_a_loader_with_an_iterator_of_its_own_has_samples_and_an_end() -> None:
    built = build_from_object(Beginning(_Slow(0.0, keeps=False), batch_size=4))
    seen = warm.Warm(built, Config())._take(BlockRequest(batches=20), None)
    assert seen.samples == [4] * 20
    assert seen.beyond == 0


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")
def test_a_side_may_have_many_files_open(monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl  # which Windows has not
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < 2048:
        pytest.skip("so many files may not be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    plain = os.pipe

    def pipe() -> tuple[int, int]:
        ends = plain()
        reading, writing = (fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 1100) for each in ends)
        for each in ends:
            os.close(each)
        return reading, writing

    monkeypatch.setattr(os, "pipe", pipe)
    try:
        assert warm._forked(lambda: {"event": "here"}) == {"event": "here"}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_block_of_several_epochs_is_of_a_process_that_holds_no_samples(
    own: set[int], workers: int
) -> None:
    """Each block begins with none, and all but its first epoch come from memory."""
    data, server = _Slow(0.03, keeps=True), warm.Server(Channel.of_descriptors(*os.pipe()))
    built = build_from_object(DataLoader(data))
    server._built, server._warm = built, warm.Warm(built, Config(num_workers=workers).canonical())
    for series in ("load", "load", "start"):
        wanted = BlockRequest(series=series, batches=20, epochs=10, cores=tuple(own))
        answer = server._block(json.loads(line_of({"": wanted}))[""])
        block = answer["block"]
        if series == "load":  # new workers aren't held
            assert block["unpinned"] == ("its workers don't live on" if workers else "")
        assert not answer["runs_on"]
        if series == "start":
            assert block["startup_s"] >= 0.03
            continue
        assert len(block["service_s"]) == 20
        assert min(block["service_s"][:2]) >= 0.029
        assert statistics.median(block["service_s"][2:]) < 0.029
    assert not data.cache


def test_what_such_a_process_dies_of_or_raises_is_the_blocks_failure() -> None:
    server = warm.Server(Channel.of_descriptors(*os.pipe()))
    for ending, said in ((lambda: os._exit(3), "exit code 3"), (lambda: 1 / 0, "ZeroDivision")):
        data = _Slow(0.0, keeps=False)
        data.cache = cast("Any", _Ending(ending))
        built = build_from_object(DataLoader(data))
        server._built, server._warm = built, warm.Warm(built, Config())
        wanted = BlockRequest(batches=20, epochs=10)
        answer = server._block(json.loads(line_of({"": wanted}))[""])
        assert answer["event"] == "failed"
        assert said in str(answer["failure"])


class _Ending:
    """A cache that ends who looks into it."""

    def __init__(self, end: Callable[[], object]) -> None:
        self.end = end

    def __contains__(self, index: int) -> bool:
        return bool(self.end())


class _Reading(_Slow):
    """Reads each sample from a file that it has open, and asks a server for it."""

    def __init__(self, path: Path) -> None:
        super().__init__(0.0, keeps=False)
        path.write_bytes(bytes(1000))
        self.file = path.open("rb", buffering=0)
        self.server, self.asked = os.pipe()

    def __getitem__(self, index: int) -> int:
        os.write(self.asked, b"?")
        return self.file.read(1)[0]


@pytest.mark.skipif(sys.platform != "linux", reason="open files are read from /proc")
def test_that_process_moves_no_file_and_asks_no_server_of_the_side(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The side's own reading would go on elsewhere, and miss an answer."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # pytest's own threads stay out
    data = _Reading(tmp_path / "samples")
    assert not warm._keeps(build_from_object(DataLoader(data)), 5.0)
    assert data.file.tell() == 0
    os.set_blocking(data.server, False)
    with pytest.raises(BlockingIOError):
        os.read(data.server, 1)
