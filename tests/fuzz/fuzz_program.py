"""The program in this process, as a user runs it, and what it may never do."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import os
import random
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from unittest import mock

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from dlprof.cli.entry import run

CODES = {0, 2, 6}
"""What bad input may end with: no verdict is asked for, and 70 is a fault of dlprof's own."""

HOSTILE = (
    "\x1b[31m\x1b]0;title\x07\x9b2J\x90q\x9c\u202egnp\r\nimport os # \n\t"
    "[red]MARK[/red][link=http://x]l[/link] <script>x</script> | ``` \x00 \udc9b"
)
"""Terminal sequences, Rich markup, line ends before code, HTML, Markdown."""

_MARK = "[red]MARK"
_UNSEEN = "\u061c\u200b\u200e\u200f\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"


def fuzz(examples: int) -> settings:
    """Settings of a property: the same examples in each run, however slow the machine."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def passable(text: str) -> bool:
    """Whether the system can hand the text to a program at all."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


TEXTS = (
    st.text()
    | st.text(alphabet="0123456789.,:-+eE _%", max_size=24)
    | st.text(alphabet="onfbthauetrle=:/\\.,'\"[]{}\x1b\n\t \udc80", max_size=24)
    | st.sampled_from(
        [
            *(
                "",
                " ",
                "-",
                "--",
                "-1",
                "0",
                "00",
                "1e9",
                "1" * 5000,
                "0:9999999:1",
                "9:1",
                "1:2:0",
            ),
            *(
                "nan",
                "inf",
                "-inf",
                "NaN",
                "Infinity",
                "1e400",
                "0x10",
                "1_000",
                "\u0663",
                "½",
                "²",
            ),
            *("12ms", "12 ms", "12MS", "1.5h", "5ns", "16GiB", "16gib", "16 XB", "1e3GB", "-5GiB"),
            *("on", "off", "both", "auto", "none", "true", "on,off", "fork,spawn", "fork,fork"),
            *(
                "images",
                "images:",
                "images:count=0",
                "synthetic:shape=0x0",
                "a:b",
                "a.b:c",
                "x.py:",
            ),
            *(
                "a/b.py:c",
                "C:\\x.py:y",
                ".py:a",
                ":",
                "::",
                "a:b:c",
                "../..:x",
                "__main__:x",
                "~:x",
            ),
            *(
                "cuda:99999",
                "cuda:-1",
                "cpu:0",
                "k=v",
                "=v",
                "k==",
                "k='",
                "%s%n",
                "${HOME}",
                "`x`",
            ),
            *("\x1b[31mred", "[red]x[/red]", "\u202e", "\ufeff", "a\nb", "\r", "\udcff", HOSTILE),
        ]
    )
).filter(passable)


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


class _Captured(io.TextIOWrapper):
    """A stream set up as ``main`` sets up the real ones."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="backslashreplace", newline="")

    def text(self) -> str:
        self.flush()
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode()


def program(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> Ended:
    """Run a command and hold it against what every command promises.

    Args:
        arguments: The command line behind the program's name.
        environ: ``DLPROF_*`` variables.
    """
    out, err = _Captured(), _Captured()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": "4000", **(environ or {})}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run(arguments, os.environ)
    ended = Ended(code, out.text(), err.text())
    asked = {*arguments, *map("=".join, itertools.pairwise(arguments))}
    as_json = bool(asked & {"--json", "--format=json"}) and "--print-config" not in asked
    if "-o" in asked and not code:
        as_json = False  # it is there
    assert_harmless(ended, as_json=as_json)
    return ended


def assert_harmless(ended: Ended, *, as_json: bool) -> None:
    """No traceback, no code outside the contract, nothing that a terminal acts on."""
    assert ended.code in CODES, ended
    assert "Traceback" not in ended.err, ended
    if as_json:
        assert isinstance(json.loads(ended.out, parse_constant=_refuse), dict), ended
        assert ended.out.isascii(), ended
    elif ended.code:
        assert ended.out == "", ended
        assert 1 <= len(ended.err.splitlines()) <= 2, ended
    for text in (ended.out, ended.err):
        assert not set(filter(_acts, text)), ended
        before = [text[: place + 4] for place in _places(text, "MARK")]
        assert all(each.endswith(_MARK) for each in before), ended


def _acts(character: str) -> bool:
    """Whether a terminal does something else with a character than to show it."""
    if character in "\n\t":
        return False
    return unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} or character in _UNSEEN


def _places(text: str, word: str) -> Iterator[int]:
    place = text.find(word)
    while place >= 0:
        yield place
        place = text.find(word, place + 1)


def _refuse(text: str) -> float:
    raise ValueError(text)


def flips(content: bytes, count: int) -> Iterator[bytes]:
    """Copies with one bit changed, evenly spread, the same in each run."""
    chance = random.Random(0)
    for _ in range(count):
        changed = bytearray(content)
        changed[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        yield bytes(changed)


def cuts(content: bytes, step: int) -> Iterator[bytes]:
    """Beginnings of it: around each line end, and at every so many bytes."""
    ends = [place for place, byte in enumerate(content) if byte == ord("\n")]
    near = {place + aside for place in ends for aside in (-1, 0, 1)}
    for size in sorted({*range(0, len(content), step), *near}):
        yield content[:size]
