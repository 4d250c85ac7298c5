"""Hold what people read to the words of ``docs/words.md``: ``python tools/words.py [PATH ...]``.

Of Python it reads the literals with a blank in them, and the docstrings that people read: those of
the public API, of the records (``docs/reference/run-file.md`` has them), and of the commands, whose
help they are. Of other files it reads everything but names. It prints a line for each word that has
a better one, and exits with 1 where there is any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import dlprof

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "words.md"
READ = ("README.md", "CHANGELOG.md", "docs", "dlprof", "tests/data")
"""What is read where no path is given."""

_REASON = re.compile(r"(?:#|<!--) words:(?P<why>.*?)(?:-->)?$")
_NAMES = {
    ".py": r"``[^`\s]+``|^ +\w+:",
    ".md": r"`[^`\s]+`|\]\([^)]*\)|<!--.*?-->|<a [^>]*>",
    ".html": r"<style.*?</style>|<script.*?</script>|<[^>]*>",
    ".xml": r"<[^>]*>|\w+=",
    ".json": r'"[^"\s]*"',
    ".txt": r"(?!)",
}
"""Kinds of files that are read, and what of them is no prose."""


class Rule(NamedTuple):
    """A row of the table: what to avoid, what may hold it all the same, and the better word."""

    wrong: re.Pattern[str]
    right: re.Pattern[str]
    better: str


_FIELDS = re.compile(r"(?:^ +# .*\n)+|(?<=  )# .*$", flags=re.MULTILINE)
"""What is said of fields, above them or behind."""


class Text(NamedTuple):
    """Something that people read, and the lines that hold it, counted from 1."""

    first: int
    last: int
    words: str


def rules(page: str) -> list[Rule]:
    """The rows of a page's table, with the words to avoid on the left."""
    rows = (line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| "))
    return [
        Rule(_any_of(wrong.split(", ")), _any_of(re.split(r"[,;] ", better)), better)
        for wrong, better in rows
        if wrong not in ("not", "---")
    ]


def _any_of(phrases: Sequence[str]) -> re.Pattern[str]:
    """Any of the phrases, over the end of a line too, but not as a part of a name or an option."""
    each = "|".join(map(_pattern, phrases))
    return re.compile(rf"(?<![\w./`-])(?:{each})(?![\w=(`]|[./-]\w)", flags=re.IGNORECASE)


def _pattern(phrase: str) -> str:
    """A phrase in which a ``*`` is any ending, and a number any number."""
    escaped = re.escape(phrase).replace(r"\*", "[a-z]*").replace(r"\ ", r"\s+")
    return re.sub(r"\d+", lambda _: r"\d[\d.,]*", escaped)


def faults(path: Path, table: Sequence[Rule]) -> Iterator[tuple[int, str]]:
    """The lines of a file that have to change, and how.

    Args:
        path: The file, of a kind that is read.
        table: What to avoid.
    """
    content = path.read_text(encoding="utf-8")
    reasons = {
        number: match["why"].strip()
        for number, line in enumerate(content.splitlines(), start=1)
        if (match := _REASON.search(line))
    }
    excused: set[int] = set()
    for text in _texts(path, content):
        for start, what in _found(text.words, table):
            line = min(text.first + text.words.count("\n", 0, start), text.last)
            lines = range(text.first, text.last + 1) if path.suffix == ".py" else (line,)
            if excuses := reasons.keys() & set(lines):
                excused |= excuses
            else:
                yield line, what
    for number, why in reasons.items():
        if number not in excused:
            yield number, "the exception excuses nothing: leave it out"
        elif not why:
            yield number, "the exception has no reason: say why"


def _found(words: str, table: Sequence[Rule]) -> Iterator[tuple[int, str]]:
    """Where a text has a word to avoid, and the better one."""
    for rule in table:
        allowed = [match.span() for match in rule.right.finditer(words)]
        for match in rule.wrong.finditer(words):
            if not any(low <= match.start() and match.end() <= high for low, high in allowed):
                yield match.start(), f"{' '.join(match[0].split())}: better {rule.better}"


def _texts(path: Path, content: str) -> Iterator[Text]:
    """What people read of a file, names blanked out."""
    pieces = [Text(1, content.count("\n") + 1, content)]
    if path.suffix == ".py":
        pieces = list(_of_python(ast.parse(content), documented=_is_documented(path)))
        if path.parent.name == "records":  # whose fields the reference says in these words
            for found in _FIELDS.finditer(content):
                first = 1 + content.count("\n", 0, found.start())
                words = found[0].replace("#", " ")
                pieces.append(Text(first, first + words.strip("\n").count("\n"), words))
    elif path.name == "CHANGELOG.md":  # what was released stays as it was written
        pieces = [Text(1, content.count("\n") + 1, "\n## ".join(content.split("\n## ")[:2]))]
    names = re.compile(_NAMES[path.suffix], flags=re.DOTALL | re.MULTILINE)
    for text in pieces:
        blanked = names.sub(lambda match: re.sub(r"[^\n]", "\0", match[0]), text.words)
        yield text._replace(words=blanked)


def _is_documented(path: Path) -> bool:
    """Whether people read the docstrings of a module."""
    # What the package itself defines is read with its own module.
    api = {getattr(dlprof, name).__module__ for name in dlprof.__all__ if name != "__version__"}
    api.discard("dlprof")
    module = ".".join(path.resolve().with_suffix("").parts)
    return any(f".{name}." in f".{module}." for name in (*api, "dlprof.records", "dlprof.cli"))


def _of_python(node: ast.AST, *, documented: bool) -> Iterator[Text]:
    """The literals below a node, and the docstrings of what is public where people read them."""
    if isinstance(node, ast.JoinedStr | ast.Constant) and " " in (words := _literal(node)):
        yield Text(node.lineno, node.end_lineno or node.lineno, words)
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant):
            continue
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            public = documented and not getattr(node, "name", "").startswith("_")
            if not public or child not in getattr(node, "body", [])[:1]:
                continue
        yield from _of_python(child, documented=documented)


def _literal(node: ast.JoinedStr | ast.Constant) -> str:
    """The text of a literal, with a figure for what is put in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(
        _literal(each) if isinstance(each, ast.Constant) else "0" for each in node.values
    )


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """The files that are named, or are in the folders that are, but for the table itself.

    Screens in ASCII are left out: they are others with ``us`` for microseconds.
    """
    for path in paths:
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        known = (each for each in inside if each.suffix in _NAMES and each != TABLE)
        yield from (each for each in known if not each.stem.endswith("-ascii"))


def main(arguments: Sequence[str]) -> int:
    """Print what has to change in some files and folders; the exit code."""
    table = rules(TABLE.read_text(encoding="utf-8"))
    named = [Path(each).resolve() for each in arguments] or [ROOT / each for each in READ]
    found = [
        f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{line}: {what}"
        for path in _files(named)
        for line, what in sorted(faults(path, table))
    ]
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
