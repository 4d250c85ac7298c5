"""Is everything that people read in the words of the field?

Texts of the package that hold a blank, the docstrings of its public API and records, help, the
pages of the documentation and the recorded screens must do without the words on the left of
``WORDS``. Keys of JSON and run files stay as they are. ``python tools/words.py [PATH ...]`` lists
what is left; a line that needs such a word says so: ``words: REASON``.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]

WORDS = {
    r"told|tells?|telling": "reported, shown; detects; says",
    r"foretold|foretells?|foresight|foreseen": "predicted, predict, prediction",
    r"reckon(?:s|ed|ing)?": "estimate, compute",
    r"mend(?:s|ed|ing)?": "fix",
    r"anew": "again, re-",
    r"dear|dearer": "expensive, costs more",
    r"to be had": "available",
    r"stands? in|stands? beside|stands? (?:at|before|behind)": "is in",
    r"meanwhile|by turns|in turns": "during the trial; interleaved",
    r"neighbours?": "other processes, background load",
    r"data sets?": "dataset",
    r"start-up": "time to first batch",
    r"epoch turnover": "epoch restart",
    r"waiting for a core|waits? for a core|no core": "run-queue delay",
    r"hold up|out of turn": "reorder wait",
    r"serialis\w*|colour\w*|randomis\w*|normalis\w*|initialis\w*|licence|behaviour\w*": (
        "the American spelling"
    ),
    r"explained trials?|explaining (?:pass|passes|trials?)": "traced trial",
    r"belie[sd]?": "disagrees with the model",
    r"quads?": "ABBA block",
}
_FOUND = re.compile(
    "|".join(rf"(?P<w{i}>\b(?:{pattern})\b)" for i, pattern in enumerate(WORDS)), re.IGNORECASE
)
_BETTER = list(WORDS.values())
_ALLOWED = "words: "
# Names in code, paths, options and addresses are no prose.
_NAMES = re.compile(r"^ *\w+: |`+[^`\n]*`+|--[\w-]+|https?:\S+|\b\w+(?:[._]\w+)+|\]\([^)]*\)")
_PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md", "tests/data/report/*", "tests/data/gate/*")
_PUBLIC = ("dlprof/__init__.py", "dlprof/api.py")
_RECORDS = "dlprof/records/"


def found_in(text: str, first_line: int = 1) -> Iterator[tuple[int, str, str]]:
    """The line, the word and a better one of each that a text should do without."""
    for number, line in enumerate(text.splitlines(), first_line):
        if _ALLOWED in line:
            continue
        for match in _FOUND.finditer(_NAMES.sub(" ", line)):
            place = next(i for i in range(len(_BETTER)) if match[f"w{i}"])
            yield number, match[0], _BETTER[place]


def texts_of(source: str, *, docstrings: bool) -> Iterator[tuple[int, str]]:
    """The texts of a module that people see, each with its line.

    Args:
        source: The module.
        docstrings: Whether its docstrings are read too.
    """
    lines = source.splitlines()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        if " " not in node.value.strip() or _ALLOWED in lines[node.lineno - 1]:
            continue
        if docstrings or node.lineno not in _docstrings(tree):
            yield node.lineno, node.value


def _docstrings(tree: ast.Module) -> set[int]:
    """The lines of bare texts: docstrings of modules, classes, functions and constants."""
    return {
        node.value.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def check(paths: Sequence[Path]) -> Iterator[str]:
    """One line for each word that should go."""
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            public = name in _PUBLIC or name.startswith(_RECORDS)
            pieces = list(texts_of(text, docstrings=public))
        else:
            pieces = [(1, text)]
        for line, piece in pieces:
            for number, word, better in found_in(piece, line):
                yield f"{name}:{number}: {word!r}: {better}"


def all_paths() -> list[Path]:
    """Everything that is held to it."""
    pages = (path for pattern in _PAGES for path in ROOT.glob(pattern) if path.suffix != ".json")
    return sorted({*(ROOT / "dlprof").rglob("*.py"), *pages})


def main() -> None:
    """Check the paths that are named, or all."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("paths", nargs="*", type=Path)
    given = options.parse_args().paths
    found = list(check([path.resolve() for path in given] or all_paths()))
    sys.stdout.write("".join(f"{line}\n" for line in found))
    if found:
        sys.exit(f"{len(found)} words that have a better one")


if __name__ == "__main__":
    main()
