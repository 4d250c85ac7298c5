"""Text from files, user code and other machines, made safe to show on a terminal.

A dataset's name or a traceback may hold terminal control sequences, Rich markup or characters
that turn the reading direction. Nothing of that may act: control sequences are taken out here, and
what is left reaches Rich only as ``rich.text.Text``, in which brackets are no markup.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Sequence

# ECMA-48: CSI sequences; OSC, DCS, SOS, PM and APC strings up to their terminator (BEL or ST);
# two-byte escapes. C1 controls (U+0080 to U+009F) start the same sequences in one character.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]"
)
# Control characters but for line feed and tab, marks that reorder text, zero-width and tag
# characters, and lone surrogates, which no encoding can write.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def clean_lines(text: str) -> str:
    r"""The text without anything that a terminal would act on; lines and tabs are kept.

    >>> clean_lines("a\x1b[31mred\x1b[0m\nb")
    'ared\nb'
    """
    unbroken = text.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("", _SEQUENCE.sub("", unbroken))


def clean(text: str) -> str:
    r"""The same as one line: each run of white space becomes a single space.

    >>> clean("two\nlines \x1b]0;title\x07[bold]")
    'two lines [bold]'
    """
    return " ".join(clean_lines(text).split())


def shortened(text: str, most: int, size: Callable[[str], int] = len) -> str:
    """The end of a text that is longer than that, marked as cut: names such as paths begin alike.

    And the number that it begins with, as a bar's ``num_workers``. Of a list whole entries go.

    >>> shortened("data/train.py", 11), shortened("8 prefetch 4, pinned", 14)
    ('...train.py', '8 ..., pinned')
    """
    if size(text) <= most:
        return text
    number, _, rest = text.partition(" ")
    lead = f"{number} " if rest and number.isdecimal() else ""
    text = text[len(lead) :]

    def ending(cut: str, starts: Sequence[int]) -> str:
        """The longest end that fits, found in a few steps however long a file's names are."""
        cut = f"{lead}{cut}"
        fits = bisect.bisect_left(starts, True, key=lambda at: size(cut + text[at:]) <= most)
        return cut + text[starts[fits] :] if fits < len(starts) else ""

    entries = [found.end() for found in re.finditer(", ", text)]
    return ending("..., ", entries) or ending("...", range(1, len(text))) or f"{lead}..."


def clean_within(text: str) -> str:
    """The same for a piece of a line, whose blanks at either end part it from the others."""
    ends = [" " * min(2, len(text) - len(cut)) for cut in (text.lstrip(" "), text.rstrip(" "))]
    return f"{ends[0]}{clean(text)}{ends[1]}" if text.strip() else " " * min(2, len(text))
