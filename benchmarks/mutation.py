"""Do the unit tests notice a change of the code? Mutants of four rooms, drawn at random.

Each mutant is one small change, of the kinds that mutmut and cosmic-ray make, in a copy of the
checkout. The unit tests that import its room run against it until the first fails. A mutant that no
test notices is named with its line: it shows a missing test, or it changes nothing that can be
seen (``EQUIVALENT``, with the reason). ``--more`` goes on from the kept results, ``--again`` also
asks the survivors again, for which tests may have been written, and ``--wide`` asks all unit tests.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import functools
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import RESULTS, Report, Table, keep, parser, publish, surroundings

NAME = "mutation"
ROOT = Path(__file__).parents[1]
ROOMS = ("stats", "gate", "search", "store")
GOAL = 0.85
SEED = 22
COUNT, QUICK_COUNT = 200, 2
LEAST = 60
"""Fewer mutants decide nothing."""

LIMIT_S = 300.0
"""How long a mutant's tests may take; those of sound code take a minute or two."""

KILLED, TIMED_OUT, SURVIVED, IS_EQUIVALENT = "killed", "timed out", "survived", "equivalent"
EQUIVALENT: Mapping[tuple[str, str], str] = {
    (
        "dlprof/stats/belief.py",
        "result = [[1.0] * size for _ in range(size)]",
    ): "each entry is set in the loops below",
    (
        "dlprof/stats/intervals.py",
        "return _upper_tail(t, df) if t > 0 else 1 - _upper_tail(-t, df)",
    ): "at 0 both are one half",
}
"""Mutants that change nothing that can be seen, by file and mutated line: why."""

_NO_TESTS = 5  # pytest's exit code
_Z95 = 1.96

_SWAPPED: Mapping[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "/"),
    ast.Pow: ("**", "*"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
"""Operators, how they are written, and what becomes of them."""

_TURNED = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)
"""Those that become their opposite."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of one file: the bytes from ``start`` to ``end`` become ``text``."""

    path: str
    line: int
    kind: str
    before: str
    after: str
    start: int
    end: int
    text: str

    @property
    def room(self) -> str:
        """The room that its file is in."""
        return Path(self.path).with_suffix("").parts[1]

    @property
    def key(self) -> tuple[str, int, str, str]:
        """What names it from one run of this script to the next."""
        return (self.path, self.line, self.before, self.after)

    def applied(self, source: bytes) -> bytes:
        """The file with the change."""
        return source[: self.start] + self.text.encode() + source[self.end :]


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A change of a source, before its file is known."""

    kind: str
    start: int
    end: int
    text: str


class _Changes(ast.NodeVisitor):
    """All changes of a source. Left alone: annotations, decorators, texts, and what types need."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.lines = [0]
        for line in source.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))
        self.found: list[Change] = []

    def _span(self, node: Any) -> tuple[int, int]:
        first = self.lines[node.lineno - 1] + node.col_offset
        return first, self.lines[node.end_lineno - 1] + node.end_col_offset

    def _add(self, kind: str, span: tuple[int, int], text: str) -> None:
        self.found.append(Change(kind, *span, text))

    def _swap(self, kind: str, operator: ast.AST, left: ast.AST, right: ast.AST) -> None:
        """Swap the operator that is written between two operands."""
        name, other = _SWAPPED.get(type(operator), ("", ""))
        first, last = self._span(left)[1], self._span(right)[0]
        between = re.sub(rb"#[^\n]*", lambda it: b" " * len(it[0]), self.source[first:last])
        at = re.search(rb"\s+".join(re.escape(each.encode()) for each in name.split()), between)
        if name and at is not None:
            self._add(kind, (first + at.start(), first + at.end()), other)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Swap each comparison for its neighbor or its opposite."""
        operands = [node.left, *node.comparators]
        for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
            self._swap("comparison", operator, left, right)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Swap an arithmetic operator."""
        self._swap("arithmetic", node.op, node.left, node.right)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Swap the operator of an assignment such as ``+=``."""
        self._swap("arithmetic", node.op, node.target, node.value)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Swap each ``and`` and ``or``."""
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._swap("boolean", node.op, left, right)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Leave out a ``not`` or a minus."""
        if isinstance(node.op, ast.Not | ast.USub):
            self._add("unary", (self._span(node)[0], self._span(node.operand)[0]), "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Add one to a number, and take a truth value for the other."""
        if isinstance(node.value, bool):
            self._add("constant", self._span(node), str(not node.value))
        elif isinstance(node.value, int | float):
            self._add("constant", self._span(node), repr(node.value + 1))

    def visit_Return(self, node: ast.Return) -> None:
        """Return nothing."""
        value = node.value
        if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
            self._add("return", self._span(value), "None")
        self.generic_visit(node)

    def visit_If(self, node: ast.If | ast.IfExp | ast.While) -> None:
        """Turn a condition round, unless another change of it does the same."""
        test = node.test
        turned = isinstance(test, ast.UnaryOp) or (
            isinstance(test, ast.Compare) and isinstance(test.ops[0], _TURNED)
        )
        if not (turned or (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING")):
            first, last = self._span(test)
            self._add("condition", (first, last), f"not ({self.source[first:last].decode()})")
        self.generic_visit(node)

    visit_IfExp = visit_While = visit_If  # noqa: N815  # ast names them

    def visit_For(self, node: ast.For) -> None:
        """Loop over nothing."""
        self._add("loop", self._span(node.iter), "[]")
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        """Go on in place of leaving."""
        self._add("loop", self._span(node), "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        """Leave in place of going on."""
        self._add("loop", self._span(node), "break")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Leave annotations and decorators alone."""
        for each in (*node.args.defaults, *node.args.kw_defaults, *node.body):
            if each is not None:
                self.visit(each)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Leave decorators alone."""
        for each in node.body:
            self.visit(each)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Leave the annotation alone."""
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave f-strings alone: before Python 3.12 their parts have no true place."""


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """All mutants of one file that are another program, in the order of their place."""
    finder = _Changes(source)
    finder.visit(ast.parse(source))
    lines = source.decode().splitlines()
    made: dict[tuple[str, int, str, str], Mutant] = {}
    for change in sorted(finder.found, key=lambda each: (each.start, each.end, each.text)):
        line = source.count(b"\n", 0, change.start)
        changed = source[: change.start] + change.text.encode() + source[change.end :]
        mutant = Mutant(
            path=path,
            line=line + 1,
            before=lines[line].strip(),
            after=changed.decode().splitlines()[line].strip(),
            **dataclasses.asdict(change),
        )
        made.setdefault(mutant.key, mutant)
    return list(made.values())


def drawn(root: Path, rooms: Iterable[str] = ROOMS) -> list[Mutant]:
    """All mutants of the rooms in the order in which they are asked, the same each time."""
    found = [
        mutant
        for room in rooms
        for path in sorted([*root.glob(f"dlprof/{room}.py"), *root.glob(f"dlprof/{room}/**/*.py")])
        for mutant in mutants_of(str(path.relative_to(root)), path.read_bytes())
    ]
    random.Random(SEED).shuffle(found)
    return found


@functools.cache
def _imported(path: Path) -> set[str]:
    """The modules that a file imports by name, and the names that it takes from them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update((node.module, *(f"{node.module}.{each.name}" for each in node.names)))
    return found


def tests_of(root: Path, path: str) -> tuple[list[str], list[str], list[str]]:
    """The files of unit tests, in the order in which they are asked of a file's mutants.

    Returns:
        Those that import or name the module; that import its room, by themselves or by a helper of
        theirs; and all others. Small ones come first.
    """
    files = {
        each: _imported(each)
        for each in sorted((root / "tests" / "unit").rglob("*.py"))
        if not each.name.startswith("test_benchmarks")
    }
    helpers = {each.stem: each for each in files if not each.name.startswith("test_")}
    module = ".".join(Path(path).with_suffix("").parts)
    room = ".".join(module.split(".")[:2])

    def all_of(file: Path, seen: frozenset[Path]) -> set[str]:
        own = files[file]
        others = {helpers[name] for name in own if name in helpers} - seen
        return own.union(*(all_of(each, seen | {each}) for each in others))

    def distance(file: Path) -> int:
        if not any(f"{each}.".startswith(f"{room}.") for each in all_of(file, frozenset({file}))):
            return 2
        direct = any(f"{each}.".startswith(f"{module}.") for each in files[file])
        return 0 if direct or Path(path).stem in file.stem else 1

    found: tuple[list[str], list[str], list[str]] = ([], [], [])
    for file in sorted(files, key=lambda each: each.stat().st_size):
        if file.name.startswith("test_"):
            found[distance(file)].append(str(file.relative_to(root)))
    return found


def copied(place: Path) -> Path:
    """A copy of the checkout's files, without what is built."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    return place


def run_tests(place: Path, tests: Sequence[str], limit_s: float | None) -> tuple[str, str]:
    """Run tests until one fails: what became of the code, and which test noticed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("DLPROF_")}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [*command, *tests],
            cwd=place,
            env={**environ, "PYTHONPATH": str(place)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(limit_s)
            ended = SURVIVED if process.returncode == 0 else KILLED
        except subprocess.TimeoutExpired:
            ended = TIMED_OUT
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what its tests have started
            process.wait()
        output.seek(0)
        text = output.read()
    if process.returncode == _NO_TESTS:
        raise RuntimeError(f"no tests: {text}")
    # Without its parameters: a space may be among them, and its text could be cut off.
    noticed = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+)", text, flags=re.MULTILINE)
    return ended, noticed[1] if noticed else ""


class Bench:
    """A copy of the checkout in which mutants are asked, one after the other."""

    def __init__(self, place: Path, *, wide: bool) -> None:
        self.place = copied(place)
        self._wide = wide

    def ask(self, mutant: Mutant) -> dict[str, Any]:
        """What becomes of a mutant, as JSON values."""
        path = self.place / mutant.path
        sound = path.read_bytes()
        began_s = time.monotonic()
        became, by = SURVIVED, ""
        try:
            self._write(path, mutant.applied(sound))
            for tests in tests_of(self.place, mutant.path)[: 3 if self._wide else 2]:
                if tests and became == SURVIVED:
                    became, by = run_tests(self.place, tests, LIMIT_S)
        finally:
            self._write(path, sound)
        wide = self._wide and became == SURVIVED
        return outcome(mutant, became, by, time.monotonic() - began_s, wide=wide)

    def hold(self, found: Iterable[Mapping[str, Any]]) -> None:
        """Hold the tests that noticed mutants against the sound code, which they have to pass."""
        noticed = sorted({each["by"] for each in found if each["by"]})
        became, by = run_tests(self.place, noticed, None) if noticed else (SURVIVED, "")
        if became != SURVIVED:
            raise RuntimeError(f"a test fails without a mutant: {by}")

    def _write(self, path: Path, source: bytes) -> None:
        """Replace a module; what is built of the old one may have the age and size of the new."""
        path.write_bytes(source)
        for built in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            built.unlink()


def interval(hits: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    share, spare = hits / count, _Z95**2 / count
    middle = (share + spare / 2) / (1 + spare)
    half = _Z95 / (1 + spare) * math.sqrt(share * (1 - share) / count + spare / (4 * count))
    return middle - half, middle + half


def counts(found: Sequence[Mapping[str, Any]]) -> tuple[list[str], float | None]:
    """A row's figures, and the share of mutants that were noticed."""
    number = {
        each: sum(one["became"] == each for one in found)
        for each in (KILLED, TIMED_OUT, SURVIVED, IS_EQUIVALENT)
    }
    noticed, asked = number[KILLED] + number[TIMED_OUT], len(found) - number[IS_EQUIVALENT]
    figures = [str(len(found)), *map(str, number.values())]
    if not asked:
        return [*figures, "-", "-"], None
    low, high = interval(noticed, asked)
    return [*figures, f"{noticed / asked:.0%}", f"{low:.0%}-{high:.0%}"], noticed / asked


def report_on(found: Sequence[Mapping[str, Any]], there_are: Mapping[str, int]) -> Report:
    """The tables of all mutants that were asked."""
    columns = ("asked", KILLED, TIMED_OUT, SURVIVED, IS_EQUIVALENT, "noticed", "95 % interval")
    rooms = [
        (room, str(there_are[room]), *counts([each for each in found if each["room"] == room])[0])
        for room in ROOMS
    ]
    everything, share = counts(found)
    kinds = sorted({each["kind"] for each in found})
    left = sorted(
        (each for each in found if each["became"] in (SURVIVED, IS_EQUIVALENT)),
        key=lambda each: (each["path"], each["line"]),
    )
    return Report(
        name=NAME,
        title="The unit tests notice changes",
        goal=f"at least {GOAL:.0%} of the mutants noticed",
        passed=None if share is None or len(found) < LEAST else share >= GOAL,
        tables=[
            Table(
                "",
                ("room", "mutants", *columns),
                [*rooms, ("all", str(sum(there_are.values())), *everything)],
            ),
            Table(
                "By kind of change",
                ("kind", *columns),
                [
                    (kind, *counts([each for each in found if each["kind"] == kind])[0])
                    for kind in kinds
                ],
            ),
            Table(
                "Noticed by no test",
                ("line", "was", "became", "equivalent, because"),
                [
                    (
                        f"`{each['path'].removeprefix('dlprof/')}:{each['line']}`",
                        _code(each["before"]),
                        _code(each["after"]),
                        EQUIVALENT.get((each["path"], each["after"]), ""),
                    )
                    for each in left
                ],
            ),
        ],
        notes=[
            f"A random sample (seed {SEED}) of all mutants.",
            "Each is asked of the unit tests that import its room, by themselves or by a helper.",
            "What only integration tests, fault tests or other rooms' tests notice has survived.",
            f"{sum(each['wide'] for each in found)} survivors were asked of all unit tests.",
            "Each test that noticed one passes without it.",
            f"Timed out: over {LIMIT_S:g} s.",
        ],
        data={"mutants": list(found)},
    )


def _code(line: str) -> str:
    return f"`{line.replace('|', chr(92) + '|')}`"


def earlier(path: Path, *, again: bool) -> dict[tuple[str, int, str, str], dict[str, Any]]:
    """What a kept result says of each mutant; nothing of survivors that are asked again."""
    if not path.exists():
        return {}
    return {
        (each["path"], each["line"], each["before"], each["after"]): each
        for each in json.loads(path.read_text())["data"]["mutants"]
        if not (again and each["became"] == SURVIVED)
    }


def outcome(
    mutant: Mutant, became: str, by: str = "", took_s: float = 0.0, *, wide: bool = False
) -> dict[str, Any]:
    """A mutant and what became of it, as JSON values."""
    about = {name: getattr(mutant, name) for name in ("path", "line", "kind", "before", "after")}
    seen = {"became": became, "by": by, "wide": wide, "took_s": round(took_s, 1)}
    return {"room": mutant.room, **about, **seen}


def main() -> None:
    """Ask and publish."""
    options: argparse.ArgumentParser = parser(__doc__)
    options.add_argument("rooms", nargs="*", metavar="ROOM", help=f"of {', '.join(ROOMS)}")
    options.add_argument("--count", type=int, default=COUNT, help="how many mutants")
    options.add_argument("--more", action="store_true", help="only what was not asked yet")
    options.add_argument("--again", action="store_true", help="with --more: survivors, too")
    options.add_argument("--wide", action="store_true", help="what survives: all unit tests")
    options.add_argument("--minutes", type=float, default=120.0, help="none is begun after them")
    options.add_argument("--list", action="store_true", help="show the mutants, and ask none")
    given = options.parse_args()
    before, until_s = surroundings(), time.monotonic() + 60 * given.minutes
    everything = drawn(ROOT)
    there_are = {room: sum(each.room == room for each in everything) for room in ROOMS}
    wanted = [each for each in everything if each.room in (given.rooms or ROOMS)]
    chosen = wanted[: QUICK_COUNT if given.quick else given.count]
    if given.list:
        for each in chosen:
            print(f"{each.path}:{each.line}: {each.before}  ->  {each.after}")
        return
    known = earlier(RESULTS / f"{NAME}.json", again=given.again) if given.more else {}
    found = {each.key: known[each.key] for each in everything if each.key in known}
    with tempfile.TemporaryDirectory(prefix="dlprof-mutation-") as folder:
        bench = Bench(Path(folder), wide=given.wide)
        for each in chosen:
            if (each.path, each.after) in EQUIVALENT:
                found[each.key] = outcome(each, IS_EQUIVALENT)
            elif each.key not in found and time.monotonic() < until_s:
                found[each.key] = bench.ask(each)
                print(found[each.key], file=sys.stderr, flush=True)
                keep(report_on(list(found.values()), there_are), before, quick=given.quick)
        bench.hold(found.values())
    publish(report_on(list(found.values()), there_are), before, quick=given.quick)


if __name__ == "__main__":
    main()
