"""What the processes of a sweep say to each other, and what others write there."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Mapping
from typing import Any

import pytest

from dlprof.errors import DlprofError, FileError, NothingMeasuredError, TargetError, UsageError
from dlprof.records import Config, Target
from dlprof.targets.grammar import TargetSpec, parse_target
from dlprof.trial.launch import built_of
from dlprof.trial.protocol import (
    BuildRequest,
    Channel,
    Message,
    TrialRequest,
    describe_error,
    error_of,
    obey,
    record_of,
    serve,
)


def said(text: bytes) -> Channel:
    return Channel(io.BytesIO(text), io.BytesIO())


@pytest.mark.parametrize(
    "target",
    [
        parse_target("synthetic:cpu_ms=2,length=64"),
        parse_target("package.module:make.loader"),
        TargetSpec(text="<Texts>", kind="object", source="work/target.pickle"),
    ],
    ids=lambda target: target.kind,
)
def test_what_target_names_is_sent_and_not_parsed_again(target: TargetSpec) -> None:
    request = BuildRequest(target=target, arguments={"root": "/data"}, shuffle=True, seed=3)
    channel = said(json.dumps({"order": "build", **dataclasses.asdict(request)}).encode() + b"\n")

    assert record_of(BuildRequest, channel.receive()) == request


@pytest.mark.parametrize(
    "rubbish",
    [b"a line of a log\n", b"\xff\x00\n", b"[1]\n", b"null\n", b"\n", b"[" * 200_000 + b"\n"],
    ids=["text", "bytes", "list", "null", "nothing", "deep"],
)
def test_what_is_no_message_is_left_out(rubbish: bytes) -> None:
    channel = said(rubbish + b'{"event": "beat"}\n' + rubbish)

    assert channel.receive() == {"event": "beat"}
    assert channel.receive() is None


@pytest.mark.parametrize("rubbish", [b'{"loss": 0.5}\n', b'{"event": 3}\n', b"{}\n", b"[1]\n"])
def test_what_names_no_event_is_not_heard(rubbish: bytes) -> None:
    """A dataset may write JSON of its own to a descriptor that is not its own."""
    channel = said(rubbish + b'{"event": "beat"}\n' + rubbish)

    assert channel.hear() == {"event": "beat"}
    assert channel.hear() is None


def test_numbers_of_numpy_are_sent_as_plain_ones() -> None:
    """As those that a target's loader is set to."""
    numpy = pytest.importorskip("numpy")
    sent = io.BytesIO()
    message = {"depth": numpy.int64(4), "share": numpy.float32(0.5), "size": len}
    Channel(io.BytesIO(), sent).send(message)
    said = {"depth": 4, "share": 0.5, "size": "builtin_function_or_method"}
    assert json.loads(sent.getvalue()) == said  # of which the last fits no record


@pytest.mark.parametrize("rest", [b"", b'{"event": "be'])
def test_a_message_that_is_cut_off_is_none(rest: bytes) -> None:
    channel = said(b'{"go": true}\n' + rest)

    assert channel.receive() == {"go": True}
    assert channel.receive() is None


def test_orders_are_carried_out_until_nobody_orders() -> None:
    asked: list[int] = []

    def add(number: int) -> Message | None:
        asked.append(number)
        return {"event": "sum", "value": sum(asked)} if sum(asked) < 4 else None

    def fail() -> Message:
        raise RuntimeError("no")

    orders = ({"order": "add", "number": 1}, {"order": "fail"}, {"go": True}, {"order": "sing"})
    lines = [
        json.dumps(order).encode() for order in (*orders, orders[0], {"order": "add", "number": 2})
    ]
    answers = io.BytesIO()

    serve(
        Channel(io.BytesIO(b"\n".join(lines) + b"\n"), answers),
        {"add": add, "fail": fail},
        failed=lambda error: {"event": "failed", "why": str(error)},
    )

    assert [json.loads(line) for line in answers.getvalue().splitlines()] == [
        {"event": "sum", "value": 1},
        {"event": "failed", "why": "no"},
        {"event": "sum", "value": 2},
    ]
    assert asked == [1, 1, 2]


def test_a_worker_that_dies_while_an_answer_is_sent_is_named_with_the_next() -> None:
    """Torch raises it anywhere in the main process."""

    class Struck(Channel):
        strikes = iter([RuntimeError("a worker was killed")])

        def send(self, message: Mapping[str, Any]) -> None:
            super().send(message)
            for strike in self.strikes:
                raise strike

    answers = io.BytesIO()
    serve(
        Struck(io.BytesIO(b'{"order": "go"}\n' * 3), answers),
        {"go": lambda: {"event": "gone"}},
        failed=lambda error: {"event": "failed", "why": str(error)},
    )

    assert [json.loads(line)["event"] for line in answers.getvalue().splitlines()] == [
        "gone",
        "failed",
        "gone",
    ]


def test_an_order_that_is_none_does_nothing() -> None:
    assert obey({"order": "sing"}, {}) is None
    assert obey({"go": True}, {}) is None


def test_a_request_is_read_back_as_it_was() -> None:
    request = TrialRequest(
        config=Config(num_workers=2, prefetch_factor=3), starts=("own", "spawn"), trial_s=2
    )
    values = json.loads(json.dumps(dataclasses.asdict(request)))

    assert record_of(TrialRequest, values) == request
    assert record_of(TrialRequest, None) is None


@pytest.mark.parametrize("kind", [FileError, NothingMeasuredError, TargetError, UsageError])
def test_an_error_is_raised_again_as_what_it_was(kind: type[DlprofError]) -> None:
    error = error_of(describe_error(kind("It is wrong", hint="Leave it out.")))

    assert type(error) is kind
    assert (error.message, error.hint) == ("It is wrong", "Leave it out.")


def test_a_target_with_settings_that_no_run_can_hold_is_refused() -> None:
    target = Target(
        spec="mine:loader", kind="map", dataset="Mine", own_config=Config(batch_size=2**40)
    )
    message = {"event": "built", "target": dataclasses.asdict(target), "versions": {}}

    with pytest.raises(TargetError, match=r"own_config\.batch_size"):
        built_of(json.loads(json.dumps(message)))
