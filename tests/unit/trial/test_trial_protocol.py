"""What the processes of a sweep say to each other, and what others write there."""

from __future__ import annotations

import io

import pytest

from dlprof.trial.protocol import Channel


def said(text: bytes) -> Channel:
    return Channel(io.BytesIO(text), io.BytesIO())


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


@pytest.mark.parametrize("rest", [b"", b'{"event": "be'])
def test_a_message_that_is_cut_off_is_none(rest: bytes) -> None:
    channel = said(b'{"go": true}\n' + rest)

    assert channel.receive() == {"go": True}
    assert channel.receive() is None
