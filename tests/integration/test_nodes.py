"""Ranks on two nodes: two agents of torchrun in two network namespaces, and what is lost there."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import has_trials

from dlprof.errors import UsageError
from dlprof.records import Run, Trial
from dlprof.store import read_run
from dlprof.trial.nodes import RELAY_S, Door, Link, Nodes, knock
from dlprof.trial.protocol import Message, describe_error

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux only")

TARGETS = Path(__file__).parent / "rank_targets.py"
HOSTS = ("one", "two")
PATIENCE_S = 150.0


class TwoNodes:
    """Two network namespaces with a wire between them, and the agents that run in them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.run_file = place / "nodes.dlprof.jsonl"
        self.names = [f"dlprof-{os.getpid()}-{host}" for host in HOSTS]
        self.agents: list[subprocess.Popen[str]] = []

    def lay(self) -> None:
        """Make them, or skip the test."""
        one, two = self.names
        try:
            for name in self.names:
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            ip(
                "-n",
                one,
                "link",
                "add",
                "wire",
                "type",
                "veth",
                "peer",
                "name",
                "wire",
                "netns",
                two,
            )
            for number, name in enumerate(self.names, 1):
                ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", "wire")
                ip("-n", name, "link", "set", "wire", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces can be made here: {error}")

    def wire(self, state: str) -> None:
        """Cut it (``down``), or not (``up``)."""
        ip("-n", self.names[0], "link", "set", "wire", state)

    def start(self, target: str, *options: str, ranks: int = 2, on_two: str = "1") -> None:
        """A sweep on both, with a first trial's record as a sign that it measures."""
        for node, (name, host) in enumerate(zip(self.names, HOSTS, strict=True)):
            inside = ("ip", "netns", "exec", name, "unshare", "--uts")
            named = ("sh", "-c", f'hostname {host} && exec "$@"', "sh")
            torchrun = (
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2"),
                *(f"--nproc-per-node={ranks}", f"--node-rank={node}", "--master-addr=10.77.0.1"),
                *("--master-port=29500", "-m", "dlprof", "sweep", f"{TARGETS}:{target}"),
                *("--prefetch-factor", "2", "--persistent-workers", "off", "--budget", "90s"),
                *("--seed", on_two if node else "1", *options, "-o", str(self.run_file)),
            )
            with (self.place / f"{host}.txt").open("w") as said:
                self.agents.append(
                    subprocess.Popen(
                        [*inside, *named, *torchrun],
                        cwd=self.place,
                        env={
                            **os.environ,
                            "DLPROF_CACHE_DIR": str(self.place / "cache"),
                            "GLOO_SOCKET_IFNAME": "wire",  # no name of a host is known here
                        },
                        stdin=subprocess.DEVNULL,
                        stdout=said,
                        stderr=subprocess.STDOUT,
                        text=True,
                    )
                )

    def until_trials(self, count: int) -> None:
        """Wait until so many are in the run file."""
        ends_s = time.monotonic() + PATIENCE_S
        while not has_trials(self.run_file, count):
            assert time.monotonic() < ends_s, self.said(0)
            time.sleep(0.1)

    def first_process(self, node: int) -> psutil.Process:
        """Which measures there with the ranks of that node."""
        for child in psutil.Process(self.agents[node].pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if child.environ().get("LOCAL_RANK") == "0" and "sweep" in child.cmdline():
                    return child
        raise AssertionError(self.said(node))

    def said(self, node: int) -> str:
        """What was printed there."""
        return (self.place / f"{HOSTS[node]}.txt").read_text()

    def end(self) -> list[int]:
        """How both agents end by themselves."""
        return [agent.wait(PATIENCE_S) for agent in self.agents]

    def run(self) -> Run:
        """What was measured."""
        return read_run(self.run_file)

    def left(self) -> list[psutil.Process]:
        """Processes of theirs that still run."""
        sign = f"DLPROF_CACHE_DIR={self.place / 'cache'}".encode()
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if sign in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                    found.append(process)
        return found

    def clear(self) -> None:
        """End and remove everything."""
        for process in self.left():
            with contextlib.suppress(psutil.Error):
                process.kill()
        for name in self.names:
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                ip("netns", "del", name)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[TwoNodes]:
    """Two nodes; afterwards none of their processes may be left."""
    made = TwoNodes(tmp_path)
    try:
        made.lay()
        yield made
        ends_s = time.monotonic() + 10.0
        while made.left() and time.monotonic() < ends_s:
            time.sleep(0.1)
        assert made.left() == []
    finally:
        made.clear()


netns = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"),
        reason="network namespaces need root, ip and unshare",
    ),
]
QUICK = ("--num-workers", "0,1", "--repeats", "1", "--trial-time", "0.2s")
LONGER = ("--num-workers", "0,1", "--repeats", "2", "--trial-time", "2s")


def failed(run: Run) -> list[Trial]:
    return [trial for trial in run.trials if trial.failure is not None]


class TestTwoNodes:
    """A sweep under torchrun on both."""

    pytestmark = netns

    def test_all_ranks_are_in_one_run_file(self, nodes: TwoNodes) -> None:
        nodes.start("asking", *QUICK, "--make-load", "cores=0.1")
        nodes.until_trials(1)
        loads = [each for each in nodes.left() if "dlprof.trial.load" in each.cmdline()]
        assert len(loads) == 2  # each node its own
        assert nodes.end() == [0, 0], nodes.said(0) + nodes.said(1)
        run = nodes.run()

        assert run.header.launched == 2  # of a machine: its share is that of its own ranks
        measured = [trial for trial in run.completed if trial.purpose == "measure"]
        assert measured
        for trial in measured:
            assert [each.rank for each in trial.ranks] == [0, 1, 2, 3]
            assert [each.host for each in trial.ranks] == ["one", "one", "two", "two"]
            assert {each.epoch_batches for each in trial.ranks} == {256}  # each its share of all
        assert nodes.said(0).count("Recommended") == 1
        assert "4 at once give" in nodes.said(0)
        assert "Recommended" not in nodes.said(1)

    def test_a_step_ends_together_on_both(self, nodes: TwoNodes) -> None:
        nodes.start("straggling", *QUICK, "--step-barrier", ranks=1)
        assert nodes.end() == [0, 0], nodes.said(0) + nodes.said(1)
        measured = [trial for trial in nodes.run().completed if trial.purpose == "measure"]
        assert measured
        for trial in measured:
            fast, slow = trial.ranks
            assert fast.batches_per_s is not None
            assert slow.batches_per_s is not None
            assert 0.7 < fast.batches_per_s.value / slow.batches_per_s.value < 1.4
            assert (fast.barrier_fraction or 0.0) > 0.3 > (slow.barrier_fraction or 0.0)

    @pytest.mark.parametrize(
        ("target", "word", "options"),
        [
            ("killed", "SIGKILL", ()),
            ("killed", "SIGKILL", ("--step-barrier",)),
            ("stopped", "is stopped", ()),
            ("stopped", "is stopped", ("--step-barrier",)),
        ],
    )
    def test_a_lost_rank_is_named_with_its_host(
        self, nodes: TwoNodes, target: str, word: str, options: tuple[str, ...]
    ) -> None:
        nodes.start(target, *QUICK, *options, ranks=1)
        assert nodes.end() == [0, 0], nodes.said(0) + nodes.said(1)
        (lost,) = failed(nodes.run())

        assert lost.failure is not None
        assert lost.failure.message.startswith("Rank 1 of 2 on two: ")
        assert word in lost.failure.message
        assert lost.wall_s < 10
        assert {len(trial.ranks) for trial in nodes.run().completed} >= {2}

    @pytest.mark.parametrize("fault", ["cut", "stopped"])
    def test_a_node_that_is_lost_to_a_trial_comes_back(self, nodes: TwoNodes, fault: str) -> None:
        nodes.start("even", *LONGER)
        nodes.until_trials(1)
        time.sleep(1.0)  # the next trial runs
        victim = nodes.first_process(1)
        if fault == "cut":
            nodes.wire("down")
        else:
            victim.send_signal(signal.SIGSTOP)
        nodes.until_trials(2)
        if fault == "cut":
            nodes.wire("up")
        else:
            victim.send_signal(signal.SIGCONT)
        assert nodes.end() == [0, 0], nodes.said(0) + nodes.said(1)
        run = nodes.run()
        (lost,) = failed(run)

        assert lost.failure is not None
        assert lost.failure.message.startswith("Node two with ranks 2 and 3 was lost")
        assert lost.wall_s < 10
        after = run.trials[run.trials.index(lost) + 1 :]
        assert {len(trial.ranks) for trial in after if trial.purpose == "measure"} >= {4}
        assert {len(trial.ranks) for trial in after if trial.purpose == "scaling"} == {0, 2, 4}
        assert run.recommendation is not None

    def test_what_was_measured_outlives_a_node(self, nodes: TwoNodes) -> None:
        nodes.start("even", *LONGER)
        nodes.until_trials(1)
        nodes.first_process(1).kill()
        nodes.agents[1].wait(PATIENCE_S)
        ends_s = time.monotonic() + PATIENCE_S
        while (run := nodes.run()).end is None:
            assert time.monotonic() < ends_s, nodes.said(0)
            time.sleep(0.2)
        while [each for each in nodes.left() if each.pid != nodes.agents[0].pid]:
            assert time.monotonic() < ends_s, nodes.left()
            time.sleep(0.2)
        nodes.agents[0].kill()  # torchrun waits minutes for that of the other node
        nodes.agents[0].wait(PATIENCE_S)

        assert run.end.reason == "failed"
        assert run.completed
        assert "Node two with ranks 2 and 3 was lost" in " ".join(nodes.said(0).split())

    def test_ranks_with_other_settings_are_refused(self, nodes: TwoNodes) -> None:
        nodes.start("even", *QUICK, on_two="2")
        assert 0 not in nodes.end()
        for node in (0, 1):
            assert "Ranks differ: words is" in " ".join(nodes.said(node).split())
        assert not nodes.run_file.exists()

    def test_ranks_with_other_datasets_are_refused(self, nodes: TwoNodes) -> None:
        nodes.start("other", *QUICK, ranks=1)
        nodes.end()
        assert "Ranks differ: dataset is" in " ".join(nodes.said(0).split())
        assert not nodes.run_file.exists()


def ports(count: int = 4) -> range:
    """Some that are free, one after another."""
    with socket.create_server(("", 0)) as free:
        first = free.getsockname()[1] + 1
    return range(first, first + count)


HELLO = {"job": "mine", "host": "two", "ranks": [1], "said": {"words": []}}


def test_a_taken_port_is_left_out_and_none_at_all_is_said() -> None:
    among = ports()
    with contextlib.ExitStack() as taken:
        taken.enter_context(socket.create_server(("", among[0])))
        door = Door(among, "mine", {"welcome": 1}, lambda _hello: None)
        gathers = threading.Thread(target=door.gather, args=[[1], 10.0])
        gathers.start()
        found = knock("127.0.0.1", among[1:], HELLO)
        assert found is not None
        assert found[2] == {"welcome": 1}
        gathers.join()
        found[0].close()
        door.close()
        for port in among[1:]:
            taken.enter_context(socket.create_server(("", port)))
        with pytest.raises(UsageError, match="are all taken"):
            Door(among, "mine", {"welcome": 1}, lambda _hello: None)


def test_another_job_is_not_let_in_and_who_is_missing_is_named() -> None:
    among = ports()
    with contextlib.closing(Door(among, "other", {"welcome": 1}, lambda _hello: None)) as door:
        knocks = threading.Thread(target=knock, args=["127.0.0.1", among, HELLO])
        knocks.start()
        with pytest.raises(UsageError, match=r"No node came with ranks 1 and 2 within 500 ms"):
            door.gather([1, 2], 0.5)
        knocks.join()


def test_a_refused_node_hears_why() -> None:
    among, heard = ports(), []

    def refuse(_hello: object) -> None:
        raise UsageError("Ranks differ")

    def come() -> None:
        try:
            knock("127.0.0.1", among, HELLO)
        except UsageError as error:
            heard.append(error.message)

    with contextlib.closing(Door(among, "mine", {"welcome": 1}, refuse)) as door:
        comes = threading.Thread(target=come)
        comes.start()
        with pytest.raises(UsageError, match="Ranks differ"):
            door.gather([1], 10.0)
        comes.join()
    assert heard == ["Ranks differ"]


def test_nobody_at_the_door_is_distinguished_from_silence() -> None:
    with pytest.raises(ConnectionRefusedError):
        knock("127.0.0.1", ports(), HELLO)


def test_who_breaks_off_keeps_no_other_out() -> None:
    among, came = ports(), []

    def refuse(hello: object) -> None:
        came.append(hello)
        if len(came) == 2:
            raise ConnectionAbortedError

    with contextlib.closing(Door(among, "mine", {"welcome": 1}, refuse)) as door:
        gathers = threading.Thread(target=door.gather, args=[[1], 10.0])
        gathers.start()
        first = knock("127.0.0.1", among, HELLO)
        gathers.join()
        assert knock("127.0.0.1", among[:1], HELLO) is None
        again = knock("127.0.0.1", among[:1], HELLO)
        for found in (first, again):
            assert found is not None
            found[0].close()


def test_what_fails_on_an_earlier_connection_does_not_close_the_next() -> None:
    class Breaks:
        """A connection that breaks as the node comes back over another."""

        def sendall(self, _line: bytes) -> None:
            link._socket = again
            raise BrokenPipeError

    link: Any = Link("two", [1])
    with socket.socket() as again:
        link._socket = Breaks()
        link.send({"event": "beat"})
        assert link.is_open
        link.close()
        assert not link.is_open


def test_the_last_words_of_a_node_are_heard() -> None:
    class Ends(Link):
        """A link whose node answers and ends between two looks."""

        is_open = True

        def get(self, timeout: float) -> Message:
            del timeout
            if self.is_open:
                self.is_open = False
                raise queue.Empty
            return {"error": describe_error(UsageError("Too few shards"))}

    link: Any = Ends("two", [1])
    link.mail = link
    leader = Nodes(2)
    leader.links = (link,)
    leader.order("build", 2)
    with pytest.raises(UsageError, match="Too few shards"):
        leader.answers(10.0)


def come(among: range) -> Link:
    """To the node that leads, once it is there."""
    follower, found = Link("one", [0]), None
    while found is None:
        with contextlib.suppress(ConnectionRefusedError):
            found = knock("127.0.0.1", among, HELLO)
    follower.open(*found[:2])
    return follower


def test_a_node_that_ends_before_its_first_order_says_why() -> None:
    among = ports()

    def fail() -> None:
        with contextlib.closing(Nodes(2, [come(among)], leads=False)) as nodes:
            nodes.fail(UsageError("No room for the data"))

    with contextlib.closing(Door(among, "mine", {"welcome": 1}, lambda _hello: None)) as door:
        fails = threading.Thread(target=fail)
        fails.start()
        links = door.gather([1], 10.0)
        fails.join()
        while links[0].is_open:
            time.sleep(0.01)
        with (
            contextlib.closing(Nodes(2, links)) as leader,
            pytest.raises(UsageError, match="No room for the data"),
        ):
            leader.order("build", 2)


def test_orders_are_answered_and_a_node_that_leaves_is_missed() -> None:
    among, came = ports(), []
    with contextlib.closing(Door(among, "mine", {"welcome": 1}, lambda _hello: None)) as door:

        def follow() -> None:
            came.append(come(among))
            with contextlib.closing(Nodes(2, came, leads=False)) as nodes:
                nodes.serve({"add": lambda one: {"sum": one + 1}})

        follows = threading.Thread(target=follow)
        follows.start()
        links = door.gather([1], 10.0)
        with contextlib.closing(Nodes(2, links)) as leader:
            leader.order("add", 2, one=1)
            ((link, answer),) = leader.answers(10.0)
            assert answer is not None
            assert (link.ranks, answer["sum"]) == ((1,), 2)
            assert leader.exchange(None) is None
            leader.order("add", 1, one=1)  # which has none of that node's ranks
            assert leader.answers(10.0) == []
            leader.order("add", 2, one=1)
            (follower,) = came
            follower.close()
            while links[0].is_open:
                time.sleep(0.01)
            failure = leader.exchange(None)
            assert failure is not None
            assert failure.message.startswith("Node two with rank 1 was lost")
            follower.mail.put({"order": "leave"})
        follows.join()


class NoDescriptors:
    """A listener of a process that may open no more: somebody waits, and can't be let in."""

    def __init__(self) -> None:
        self.asked = 0

    def fileno(self) -> int:
        return 0 if self.asked < 3 else -1

    def accept(self) -> None:
        self.asked += 1
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_door_without_descriptors_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("dlprof.trial.nodes.time.sleep", slept.append)
    door: Any = Door.__new__(Door)
    door._listener = NoDescriptors()
    door._stay({})
    assert slept == [RELAY_S] * 3
