"""The other nodes of a job, as this one reaches them: messages over TCP, one JSON object a line.

The node of rank 0 leads. It orders what all do at once, and passes on to the others what one has to
say of the trial that runs. A node that gives no sign of life for some seconds is lost to that
trial, and may come back for the next. One node alone is a leader without others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dlprof.errors import DlprofError, UsageError
from dlprof.records import Failure
from dlprof.records.codec import MismatchError, from_json
from dlprof.trial.failures import as_error
from dlprof.trial.launch import LocalRank
from dlprof.trial.protocol import Channel, Message, Orders, describe_error, error_of, line_of, obey
from dlprof.trial.rank_group import RankGroup
from dlprof.units import format_duration

RELAY_S = 0.02  # seconds between looks at what ranks here and on other nodes have come to

_BEAT_S = 1.0
_MOST_MISSED = 5
"""Beats without a word, after which a node is lost: it is named well within ten seconds."""

_HELLO_S = 3.0
_RETURN_S = 30.0  # for a node that was lost to come back
_GONE = "See whether {host} and the network to it are well; --resume goes on with a sweep."


class Link:
    """The way to another node. It is closed once that is silent, and may be opened again.

    It has the node's name and the numbers of its ranks. Orders and answers come into ``mail``, in
    their order, and what becomes of a running trial into ``news``.
    """

    def __init__(self, host: str, ranks: Iterable[int]) -> None:
        self.host, self.ranks = host, tuple(ranks)
        self.mail: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.news: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._socket: socket.socket | None = None
        self.opened = self._missed = 0  # how often, and beats without a word since
        self._sends = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether the node lives, as far as is known."""
        return self._socket is not None

    def open(self, connection: socket.socket, channel: Channel) -> None:
        """Talk over a connection from now on, and not over an earlier one."""
        self.close()
        connection.settimeout(None)
        # A node that reads nothing must not block this one.
        limit = struct.pack("ll", _MOST_MISSED, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._missed, self._socket = 0, connection
        self.opened += 1
        threading.Thread(target=self._read, args=[connection, channel], daemon=True).start()

    def _read(self, connection: socket.socket, channel: Channel) -> None:
        while (message := channel.receive()) is not None:
            self._missed = 0
            if message.get("event") == "news":
                self.news.put(message)
            elif message.get("event") != "beat":
                self.mail.put(message)
        self._lose(connection)

    def _lose(self, connection: socket.socket) -> None:
        """Close it, unless the node has come back over another one."""
        if self._socket is connection:
            self.close()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; over a closed link none goes."""
        with self._sends:
            connection = self._socket
            if connection is not None:
                try:
                    connection.sendall(line_of(message))
                except OSError:
                    self._lose(connection)

    def beat(self) -> None:
        """Say that this node lives, and close the link if the other has long said nothing.

        Counted in beats and not by a clock, which runs on while this process is stopped.
        """
        self._missed += 1
        if self._missed > _MOST_MISSED:
            self.close()
        self.send({"event": "beat"})

    def close(self) -> None:
        """Close the connection."""
        connection, self._socket = self._socket, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def failure(self) -> Failure:
        """Of a trial during which it was closed."""
        whose = f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"ranks {_listed(self.ranks)}"
        return Failure(
            kind="worker_exit",
            message=f"Node {self.host} with {whose} was lost: it has ended, or gave no sign of "
            f"life for {format_duration(_MOST_MISSED * _BEAT_S)}",
            hint=_GONE.format(host=self.host),
        )


class Nodes:
    """All other nodes: of the one that leads, and of each that follows it."""

    def __init__(
        self,
        ranks: int = 0,  # how many there are on all nodes together; 0 where there is one node
        links: Sequence[Link] = (),  # to the followers; of a follower, to the leader alone
        *,
        leads: bool = True,  # whether this node does
        # Of a follower: opens the link again; whether there is still something to reach.
        reach: Callable[[], bool] = lambda: False,
    ) -> None:
        self.ranks, self.links, self.leads = ranks, tuple(links), leads
        self._reach = reach
        self._number = 0  # of the order that is carried out; news of others are too late
        self._among: dict[Link, int] = {}  # who takes part, by which opening of its link
        self._closed = threading.Event()
        if links:
            threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while not self._closed.wait(_BEAT_S):
            for link in self.links:
                link.beat()

    def close(self) -> None:
        """Let the others go: they hang up, unless they are busy."""
        self._closed.set()
        ends_s = time.monotonic() + 2.0
        for link in self.links if self.leads else ():
            link.send({"order": "leave"})
        for link in self.links:
            while self.leads and link.is_open and time.monotonic() < ends_s:
                time.sleep(RELAY_S)
            link.close()

    def order(self, name: str, below: int, **details: Any) -> None:
        """Order all nodes with ranks below a number to do what this one is about to do.

        Raises:
            NothingMeasuredError: One was lost, and does not come back.
            DlprofError: One had ended, and said why.
        """
        if not self.leads:
            return
        among = tuple(link for link in self.links if min(link.ranks) < below)
        ends_s = time.monotonic() + _RETURN_S
        while gone := [link for link in among if not link.is_open]:
            with contextlib.suppress(queue.Empty):
                while True:
                    _raise(gone[0].mail.get_nowait(), gone[0])
            if time.monotonic() > ends_s:
                raise as_error(gone[0].failure())
            time.sleep(_BEAT_S)
        self._begin(self._number + 1, among)
        for link in among:
            link.send({"order": name, "number": self._number, **details})

    def _begin(self, number: int, among: Iterable[Link]) -> None:
        self._number, self._among = number, {link: link.opened for link in among}

    def _is_lost(self, link: Link) -> bool:
        """Whether it was closed since, even if it is open again: the other end knows no more."""
        return not link.is_open or link.opened != self._among[link]

    def answers(self, patience_s: float) -> list[tuple[Link, Message | None]]:
        """What those answer that were ordered something; ``None`` for each that was lost."""
        if not self.leads:
            return []
        ends_s = time.monotonic() + patience_s + 30.0  # beyond what the order itself may take
        found = [(link, self._answer(link, ends_s)) for link in self._among]
        for link, answer in found:
            _raise(answer or {}, link)
        return found

    def all_answer(self, patience_s: float) -> list[tuple[Link, Message]]:
        """The same, where none may be lost."""
        there = list[tuple[Link, Message]]()
        for link, answer in self.answers(patience_s):
            if answer is None:
                raise as_error(link.failure())
            there.append((link, answer))
        return there

    def _answer(self, link: Link, ends_s: float) -> Message | None:
        while time.monotonic() < ends_s:
            lost = self._is_lost(link)  # asked first: its last words come before its end
            with contextlib.suppress(queue.Empty):
                message = link.mail.get(timeout=RELAY_S)
                if message.get("number") in (self._number, None):
                    return message
                continue
            if lost:
                return None
        link.close()  # it may do anything by now, and comes back when it is done
        return None

    def exchange(self, group: RankGroup | None) -> Failure | None:
        """Pass on how far ranks are, and hear it; a failure where a node or a rank was lost."""
        for link in self._among:
            with contextlib.suppress(queue.Empty, MismatchError):
                while True:
                    news = link.news.get_nowait()
                    if news.get("number") != self._number:
                        continue
                    if "lost" in news:
                        return self.lose(from_json(Failure, news["lost"]))
                    if group is not None:
                        group.take(news.get("marks"))
            if self._is_lost(link):
                return self.lose(link.failure())
        if self._among and group is not None and (marks := group.fresh()):
            self._share(marks=marks)
        return None

    def lose(self, failure: Failure) -> Failure:
        """End the trial on all nodes."""
        self._share(lost=failure)
        return failure

    def _share(self, **what: Any) -> None:
        for link in self._among:
            link.send({"event": "news", "number": self._number, **what})

    def serve(self, orders: Orders) -> None:
        """Do what the leader orders, until it lets this node go."""
        (leader,) = self.links
        while True:
            try:
                order = leader.mail.get(timeout=_BEAT_S)
            except queue.Empty:
                if not leader.is_open:
                    self._return(leader)
                continue
            if order.get("order") == "leave":
                return
            number = order.pop("number", 0)
            self._begin(number, self.links)
            try:
                answer = obey(order, orders) or {}
            except DlprofError as error:
                answer = {"error": describe_error(error)}
            leader.send({"event": "answer", "number": number, **answer})

    def fail(self, error: DlprofError) -> None:
        """Say why this node can do nothing more, whatever is ordered."""
        for link in self.links:
            link.send({"event": "answer", "error": describe_error(error)})

    def _return(self, leader: Link) -> None:
        ends_s = time.monotonic() + 2 * _RETURN_S
        there = True
        while there and time.monotonic() < ends_s:
            there = self._reach()
            if leader.is_open or not leader.mail.empty():
                return
            time.sleep(_BEAT_S)
        raise as_error(leader.failure())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """All that load at once: those of this node, none for a loader by itself, and other nodes."""

    local: tuple[LocalRank, ...] = ()
    nodes: Nodes = dataclasses.field(default_factory=Nodes)


class Door:
    """Where other nodes come to the one that leads: first of all, and again after a cut.

    The first port that is free is taken. All nodes of the job know its name, and no other job's;
    each is answered ``welcome``, unless ``refuse`` raises for what it says of itself.
    """

    def __init__(
        self, ports: range, job: str, welcome: Message, refuse: Callable[[Message], object]
    ) -> None:
        self._job, self._welcome, self._refuse = job, welcome, refuse
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        for port in ports:
            with contextlib.suppress(OSError):
                self._listener = socket.create_server(
                    ("", port), family=family, dualstack_ipv6=both
                )
                return
        raise UsageError(
            f"Ports {ports[0]} to {ports[-1]} are all taken, by which the nodes would meet",
            hint="Launch it again with another --master-port or --rdzv-endpoint.",
        )

    def gather(self, ranks: Iterable[int], patience_s: float) -> list[Link]:
        """Wait for the nodes of these ranks, and go on to let them in again."""
        links: dict[int, Link] = {}
        missing, ends_s = {*ranks}, time.monotonic() + patience_s
        while missing:
            self._listener.settimeout(max(0.001, ends_s - time.monotonic()))
            try:
                self._admit(links, known=False)
            except TimeoutError:
                said = "rank" if len(missing) == 1 else "ranks"
                raise UsageError(
                    f"No node came with {said} {_listed(missing)} within "
                    f"{format_duration(patience_s)}",
                    hint="Start all nodes with the same command, by one launcher, and let them "
                    f"reach port {self._listener.getsockname()[1]} of this one.",
                ) from None
            missing -= links.keys()
        self._listener.settimeout(None)
        threading.Thread(target=self._stay, args=[links], daemon=True).start()
        return list({id(link): link for link in links.values()}.values())

    def _stay(self, links: dict[int, Link]) -> None:
        while self._listener.fileno() >= 0:  # it is closed at the end
            try:
                self._admit(links, known=True)
            except OSError:  # of one that came, which keeps no other out; or there is no descriptor
                time.sleep(RELAY_S)

    def _admit(self, links: dict[int, Link], *, known: bool) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(_HELLO_S)
        channel = Channel.of_socket(connection)
        hello = channel.receive() or {}
        ranks = hello.get("ranks")
        if hello.get("job") != self._job or not ranks or (known and ranks[0] not in links):
            connection.close()
            channel.close()
            return
        try:
            self._refuse(hello)
        except UsageError as error:
            channel.send({"error": describe_error(error)})
            connection.close()
            if known:
                return
            raise
        link = links.get(ranks[0]) or Link(str(hello.get("host")), ranks)
        links.update(dict.fromkeys(ranks, link))
        channel.send(self._welcome)
        link.open(connection, channel)

    def close(self) -> None:
        """Let nobody in any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def knock(
    address: str, ports: Sequence[int], hello: Message
) -> tuple[socket.socket, Channel, Message] | None:
    """Come to the node that leads; ``None`` where none of the ports is its door.

    Raises:
        DlprofError: It refuses this one.
        ConnectionRefusedError: Its machine is there, and none of the ports is open.
    """
    refused = 0
    for port in ports:
        try:
            connection = socket.create_connection((address, port), timeout=_HELLO_S)
        except OSError as error:
            refused += isinstance(error, ConnectionRefusedError)
            continue
        channel = Channel.of_socket(connection)
        channel.send(hello)
        answer = channel.receive()
        _raise(answer or {})
        if answer is not None and "welcome" in answer:
            return connection, channel, answer
        connection.close()
    if refused == len(ports):
        raise ConnectionRefusedError
    return None


def _raise(answer: Message, link: Link | None = None) -> None:
    if "error" in answer:
        error = error_of(answer["error"])
        if link is not None:
            error.message = f"Node {link.host}: {error.message}"
        raise error


def _listed(ranks: Iterable[int]) -> str:
    *first, last = sorted(ranks)
    return f"{', '.join(map(str, first))} and {last}" if first else str(last)
