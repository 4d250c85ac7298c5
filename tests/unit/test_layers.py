"""The table of rooms in ARCHITECTURE.md, held against the imports of every module."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlprof.cli.app import COMMANDS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dlprof"
IMPURE = {
    *("os", "io", "pathlib", "shutil", "tempfile", "mmap", "sys", "logging", "datetime", "time"),
    *("multiprocessing", "signal", "socket", "subprocess", "threading", "asyncio", "psutil"),
}
RUN_FILE = ROOT / "tests" / "data" / "runs"


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of the table."""

    rooms: frozenset[str]
    libraries: frozenset[str]
    pure: bool


def _table() -> dict[str, Row]:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = {}
    for line in text.splitlines():
        if not line.startswith("| `dlprof/"):
            continue
        room, _, rooms, libraries, pure = (cell.strip() for cell in line.strip("|").split("|"))
        assert (ROOT / room.strip("`")).exists(), f"ARCHITECTURE.md: there is no {room}"
        rows[_name(room.strip("`").removeprefix("dlprof/"))] = Row(
            frozenset(re.findall(r"\w+", rooms)),
            frozenset(re.findall(r"\w+", libraries)),
            pure == "yes",
        )
    return rows


def _name(part: str) -> str:
    """A room's short name: ``machine`` of ``machine/``, ``units`` of ``units.py``."""
    return part.removesuffix("/").removesuffix(".py")


def _modules() -> dict[str, list[Path]]:
    rooms: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        rooms.setdefault(_name(path.relative_to(PACKAGE).parts[0]), []).append(path)
    return rooms


@functools.cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    """All that a module's code is made of."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@functools.cache
def _imports(path: Path) -> tuple[str, ...]:
    """Dotted names of what a module imports anywhere, by statement or by a literal name."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports relatively"
            names = [alias.name for alias in node.names]
            from_package = node.module == "dlprof"
            yield from (
                (f"dlprof.{name}" for name in names) if from_package else (node.module or "",)
            )
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (str(each.value) for each in node.args[:1] if isinstance(each, ast.Constant))


def _room_of(module: str) -> str:
    """The room of a module of dlprof; the package itself is ``__init__``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


TABLE = _table()
MODULES = _modules()


# Where things are, and what to change where one is added.
PAGES = "".join((ROOT / page).read_text("utf-8") for page in ("ARCHITECTURE.md", "CONTRIBUTING.md"))


def test_every_file_that_the_pages_name_is_there() -> None:
    named = {word for word in re.findall(r"`([\w./]+(?:\.(?:py|md)|/))`", PAGES) if "*" not in word}
    assert len(named) > 80
    names = {path.name for top in (PACKAGE, ROOT / "tests") for path in top.rglob("*.py")}
    there = {word for top in (ROOT, PACKAGE) for word in named if (top / word).exists()}
    assert {word for word in named - there if "/" in word or word not in names} == set()


def test_every_name_that_the_pages_say_a_file_has_is_there() -> None:
    said = re.findall(r"((?:`\w+`(?: and |, )?)+) of\s+`([\w/]+\.py)`", PAGES)
    named = {(name, file) for names, file in said for name in re.findall(r"\w+", names)}
    named -= {("and", file) for _, file in said}
    assert len(named) > 20
    assert {
        (name, file)
        for name, file in named
        if not re.search(
            rf"^ *(?:async )?(?:def|class) {name}\b|^{name}\b.* = ",
            next(top / file for top in (PACKAGE, ROOT) if (top / file).exists()).read_text("utf-8"),
            re.MULTILINE,
        )
    } == set()


def test_every_room_has_a_row_and_every_row_a_room() -> None:
    assert set(TABLE) == set(MODULES)


@pytest.mark.parametrize("room", sorted(MODULES))
def test_a_room_imports_the_rooms_of_its_row(room: str) -> None:
    found = {
        _room_of(name): path
        for path in MODULES[room]
        for name in _imports(path)
        if name.split(".")[0] == "dlprof" and _room_of(name) != room
    }
    extra = {other: str(path) for other, path in found.items() if other not in TABLE[room].rooms}
    assert not extra, f"dlprof/{room} may not import these rooms"
    assert not TABLE[room].rooms - set(found), f"dlprof/{room} no longer imports these: fix the row"


@pytest.mark.parametrize("room", sorted(MODULES))
def test_a_room_uses_the_libraries_of_its_row(room: str) -> None:
    tops = {name.split(".")[0] for path in MODULES[room] for name in _imports(path)}
    found = tops - sys.stdlib_module_names - {"dlprof"}
    assert found == TABLE[room].libraries


@pytest.mark.parametrize("room", sorted(room for room, row in TABLE.items() if row.pure))
def test_a_pure_room_touches_neither_clock_nor_files_nor_processes(room: str) -> None:
    found = {name.split(".")[0] for path in MODULES[room] for name in _imports(path)}
    assert not found & IMPURE
    nodes = [node for path in MODULES[room] for node in _nodes(path)]
    called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    assert not called & {"open", "print", "input"}
    assert all(TABLE[other].pure or other == "settings" for other in TABLE[room].rooms)


# Whoever follows a value opens these files in this order: TARGET from the command line to the
# trial's loop, and a rate from the clock to the screen. The run file is no part of that one: it is
# written beside it, and read by later commands.
WALKS = {
    "TARGET": "cli/sweep cli/options settings/resolve settings/options engine/sweep "
    "engine/trials targets/grammar trial/protocol trial/runner trial/launch trial/runtime "
    "trial/fork_server trial/child targets/build targets/parts trial/supervisor targets/loader "
    "trial/measure",
    "samples_per_s": "trial/measure stats/intervals trial/child trial/protocol trial/supervisor "
    "trial/state records/codec trial/runner engine/trials engine/sweep advise/recommend "
    "advise/situation advise/choice stats/belief report/sweep report/labels units cli/sweep "
    "cli/options report/terminal",
}


@pytest.mark.parametrize("value", WALKS)
def test_a_value_goes_through_these_files(value: str) -> None:
    files = WALKS[value].split()
    texts = {file: (PACKAGE / f"{file}.py").read_text("utf-8") for file in files}

    def knows(one: str, other: str) -> bool:
        package, _, name = f"dlprof.{other.replace('/', '.')}".rpartition(".")
        text = texts[one]
        return f"{package}.{name}" in text or (f"from {package} import" in text and name in text)

    for number, file in enumerate(files[1:], 1):  # how it comes from one before: either calls
        assert any(knows(file, each) or knows(each, file) for each in files[:number]), file


def test_nouns_stay_few() -> None:
    """Who needs one more finds one that goes; ``tools/size.py`` counts, anchors have 4 to 8 %."""
    said = "\n".join(importlib.import_module("size").nouns()).replace(",", "")
    (modules,) = re.findall(r"(\d+)  modules", said)
    ((functions, once),) = re.findall(r"(\d+)  functions (\d+) private and mentioned once", said)
    (constants,) = re.findall(r"(\d+)  numeric constants", said)
    assert int(modules) <= 300
    assert int(once) <= 0.12 * int(functions)
    assert int(constants) <= 250
    assert said.endswith("names of several: none")


def test_rooms_import_without_circles() -> None:
    layers: list[set[str]] = []
    left = dict(TABLE)
    while left:
        done = set().union(*layers)
        layer = {room for room, row in left.items() if row.rooms <= done}
        assert layer, f"these import each other in a circle: {sorted(left)}"
        layers.append(layer)
        left = {room: row for room, row in left.items() if room not in layer}


HEAVY = {"torch", "torch._dynamo", "torch._inductor", "pydantic", "PIL"}
ASK = f"import sys; print(*sorted({HEAVY} & set(sys.modules)))"
COMMAND = "from dlprof.cli.entry import run; run({arguments!r}, {{}}); "


def _loaded(program: str) -> list[str]:
    """Which heavy libraries a program has loaded at its end, in an interpreter of its own."""
    result = subprocess.run(
        [sys.executable, "-c", program + ASK],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=ROOT,
    )
    return result.stdout.splitlines()[-1].split()


def test_no_help_loads_anything_heavy() -> None:
    words = [[], *([each] for each in COMMANDS), ["baseline", "update"], ["baseline", "show"]]
    asked = [["--version"], *([*each, "--help"] for each in words)]
    assert _loaded("".join(COMMAND.format(arguments=each) for each in asked)) == []


def test_what_recommends_or_knows_a_machine_loads_nothing_heavy() -> None:
    run = str(next(RUN_FILE.glob("*.dlprof.jsonl")))
    asked = [["recommend", run], ["recommend", run, "--json"]]
    asked += [["machine", "--profile", "2080ti-box"], ["machine", "--list"]]
    assert _loaded("".join(COMMAND.format(arguments=each) for each in asked)) == []


def test_what_looks_at_the_machine_loads_no_torch() -> None:
    asked = [["machine", "--seconds", "0.1"], ["doctor"], ["explain"]]
    program = "".join(COMMAND.format(arguments=[*each, "--json"]) for each in asked)
    assert "torch" not in _loaded(program)


SUPERVISING = """
import dlprof
from dlprof import *
import dlprof.engine
import dlprof.trial.runner
import dlprof.trial.observer
import dlprof.trial.supervisor
import dlprof.engine.transfer
import dlprof.engine.check, dlprof.engine.checking.history
from dlprof.targets.grammar import parse_target; parse_target('images')
import dlprof.targets.builtin.options
"""


def test_the_supervisors_side_loads_nothing_heavy() -> None:
    assert _loaded(SUPERVISING) == []


@pytest.mark.slow
def test_what_loads_data_loads_nothing_of_torchs_compiler() -> None:
    """It takes seconds, and makes a folder for its cache among the temporary files."""
    program = """
import importlib, pkgutil
for room in ("device", "targets", "tracing", "transfer", "trial", "tuning"):
    path = importlib.import_module(f"dlprof.{room}").__path__
    for each in pkgutil.walk_packages(path, f"dlprof.{room}."):
        importlib.import_module(each.name)
"""
    assert {*_loaded(program)} & {"torch", "torch._dynamo", "torch._inductor"} == {"torch"}
