"""Write the tables and screens of ``docs/``: ``python tools/reference.py [--check]``.

A table is between ``<!-- from the code: NAME -->`` and ``<!-- end -->``. A screen is the block
below ``<!-- screen: COMMAND -->``: what the command prints in the checkout, of a saved run; of
``cat``, a recorded screen. The rest of the pages is written by hand. ``--check`` writes nothing and
exits with 1 where a page is not as the code has it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import inspect
import io
import json
import os
import re
import shlex
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import click

import dlprof
from dlprof import errors
from dlprof.cli.app import program
from dlprof.cli.entry import run
from dlprof.machine.profiles import GpuProfile, MachineProfile
from dlprof.records import Recommendation, Run
from dlprof.records.findings import FindingCode
from dlprof.records.machine import CoreSpeeds
from dlprof.settings import SweepSettings, by_key
from dlprof.settings.options import Option
from dlprof.store import RECORD_TYPES
from dlprof.targets.builtin.options import options_of
from dlprof.targets.grammar import BUILTINS, TargetSpec
from dlprof.units import format_bytes

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
EXPLAIN = ROOT / "dlprof" / "explain"
SCHEMA = ROOT / "dlprof" / "schema"
_BLOCK = re.compile(
    r"(<!-- from the code: (?P<name>[^>]+) -->\n).*?(?=<!-- end -->)", flags=re.DOTALL
)
_SCREEN = re.compile(
    r"(<!-- screen: (?P<command>[^>]+) -->\n```\w*\n).*?(?=^```$)", flags=re.DOTALL | re.MULTILINE
)
_FIELD = re.compile(r"    (?P<name>\w+): .*?(?:  # (?P<behind>.+))?$")
_UNITS = {
    "samples_per_s": "samples/s",
    "batches_per_s": "batches/s",
    "bytes_per_s": "bytes/s",
    "_s": "s",
    "_bytes": "bytes",
    "_cores": "cores",
    "_fraction": "0 to 1",
    "_ghz": "GHz",
    "_hz": "Hz",
    "_w": "W",
}
_DEFAULT = re.compile(r" (?:\(default: (?P<shown>.*)\)|Default: (?P<said>.+?))\.?$")
_LINE = 88  # characters of a signature that is written in one line
_ONE_CONFIGURATION = ("profile", "check", "baseline update", "transfer")
"""Commands that load a single configuration."""

_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises):\n", flags=re.MULTILINE)
"""What a docstring's sections begin with."""

_ENTRY = re.compile(r"^(\w+): (.*(?:\n    .*)*)", flags=re.MULTILINE)
"""An argument or an exception, and what is said of it."""

_PLAIN = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "anything"}


def _cell(text: str) -> str:
    """A text for a cell of a Markdown table."""
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def command_table(name: str) -> str:
    """The arguments and options of one command, in the sections that ``--help`` has.

    Args:
        name: The words that name it, behind the program's.
    """
    command: Any = program()
    for word in name.split():
        command = command.get_command(click.Context(command), word)
    sections: dict[str, list[list[str]]] = {}
    for parameter in command.params:
        if getattr(parameter, "hidden", False):  # an option that is gone, and says so
            continue
        sections.setdefault(parameter.panel, []).append(_option_row(name, parameter))
    head = ("option", "takes", "default", "what it does")
    return "\n".join(f"### {title}\n\n{_table(head, rows)}" for title, rows in sections.items())


def _option_row(command: str, parameter: Any) -> list[str]:
    names = [*parameter.opts, *parameter.secondary_opts]
    if parameter.param_type_name == "argument":
        names = [parameter.metavar]
    option = by_key().get(parameter.name)
    takes = ""
    if not getattr(parameter, "is_flag", False):
        takes = _takes(command, option) if option else parameter.metavar
    text, shown = _parted(parameter.help or "")
    default = f"`{parameter.default}`" if isinstance(parameter.default, str) else shown
    if option and command == "sweep":
        value = getattr(SweepSettings(), option.field)
        default = _default(option.unset if value is None else value)
        shown = shown.removeprefix("auto").removeprefix(", ")
        default += f": {shown}" if shown and default == "`auto`" else ""
    listed = ", ".join(f"`{each}`" for each in names)
    return [listed, _cell(takes), _cell(default), _cell(text)]


def _takes(command: str, option: Option) -> str:
    """What an option may be set to; several values only where they are compared."""
    once = option.kind.once.allowed if option.kind.once and command in _ONE_CONFIGURATION else ""
    return once or option.kind.allowed


def _default(value: object) -> str:
    if isinstance(value, Mapping):
        return ""
    if isinstance(value, bool):
        return "off"
    return f"`{value:g}s`" if isinstance(value, float) else f"`{value}`"


def _parted(text: str) -> tuple[str, str]:
    """The help without what it says of the default, which has a column of its own; and that."""
    found = _DEFAULT.search(text)
    if found is None:
        return text, ""
    return f"{text[: found.start()]}.".replace("..", "."), found["shown"] or found["said"]


def builtin_table(name: str) -> str:
    """The parameters of a built-in target."""
    options = options_of(TargetSpec(text=name, kind="builtin", source=name), {})
    texts = described(type(options))
    rows = (
        [
            f"`{field.name}`",
            field.metadata.get("says", "true or false"),
            _written(getattr(options, field.name), field.metadata.get("says", "")),
            _cell(texts[field.name]),
        ]
        for field in dataclasses.fields(options)
    )
    return _table(("parameter", "takes", "default", "what it is"), rows)


def _written(value: object, says: str) -> str:
    """A parameter's value as one would write it in TARGET."""
    if isinstance(value, tuple):
        return f"`{'x'.join(f'{part:g}' for part in value)}`"
    if isinstance(value, int) and says.startswith("a size"):
        return f"`{format_bytes(value).replace('.0 ', '')}`"
    text = str(value).lower() if isinstance(value, bool) else f"{value}".removesuffix(".0")
    return f"`{text}`" if text else ""


def record_tables() -> str:
    """Every record of a run file, each followed by the objects that it holds."""
    parts: list[str] = []
    seen: set[type] = set()
    for kind, record_type in RECORD_TYPES.items():
        waiting = [record_type]
        while waiting:
            found = waiting.pop(0)
            if found in seen:
                continue
            seen.add(found)
            title = f"## Record `{kind}`" if found is record_type else f"### {found.__name__}"
            parts.append(f"{title}\n\n{summary(found)}\n\n{_record_table(found)}")
            waiting = [*_held_by(found), *waiting]
    return "\n".join(parts)


def profile_tables() -> str:
    """The keys of a machine profile, and those of its GPUs and of its cores' speed."""
    parts = {
        "": MachineProfile,
        "The table `[core_speed]` has:\n\n": CoreSpeeds,
        "Each table `[[gpus]]` has:\n\n": GpuProfile,
    }
    return "\n".join(intro + _key_table(found) for intro, found in parts.items())


def _key_table(profile: type) -> str:
    texts = described(profile)
    rows = (
        [
            f"`{field.name}`",
            "yes" if field.default is dataclasses.MISSING else "",
            _cell(texts[field.name]).replace("; `None` if not known", ""),
        ]
        for field in dataclasses.fields(profile)
    )
    return _table(("key", "required", "meaning"), rows)


def summary(record_type: type) -> str:
    """The first sentence of a record's docstring."""
    return _cell((inspect.getdoc(record_type) or "").partition("\n\n")[0])


def _record_table(record_type: type) -> str:
    hints, texts = typing.get_type_hints(record_type), described(record_type)
    head = ("field", "type", "unit", "meaning")
    return _table(
        head,
        (
            [f"`{name}`", _type(hint), _unit(record_type, name), _as_json(_cell(texts[name]))]
            for name, hint in hints.items()
        ),
    )


def _as_json(text: str) -> str:
    """What a docstring says, in the words of JSON."""
    return text.replace("`None`", "`null`")


def described(record_type: type) -> dict[str, str]:
    """What is said of each field, there or in a class which its own is derived from.

    It is a comment above the field, or one behind it: without a capital or full stop.
    """
    texts: dict[str, str] = {}
    for each in filter(dataclasses.is_dataclass, reversed(record_type.__mro__)):
        above: list[str] = []
        for line in inspect.getsource(each).splitlines():
            if field := _FIELD.match(line):
                behind = field["behind"]
                if behind or above:
                    said = f"{behind[0].upper()}{behind[1:]}." if behind else " ".join(above)
                    texts[field["name"]] = said
                above = []
            elif line.startswith("    # "):
                above.append(line.strip(" #"))
    return texts


def _unit(record_type: type, name: str) -> str:
    if record_type.__name__ == "Cost":
        return "s"
    return next((unit for end, unit in _UNITS.items() if f"_{name}".endswith(end)), "")


def _type(hint: Any) -> str:
    """A type as JSON has it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join("null" if each is types.NoneType else _type(each) for each in arguments)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin is not None:
        return f"object of {_type(arguments[1])}"
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    return _PLAIN[hint]


def _held_by(record_type: type) -> Iterator[type]:
    """The records among the types of a record's fields."""
    waiting = list(typing.get_type_hints(record_type).values())
    while waiting:
        hint = waiting.pop(0)
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield hint
        else:
            waiting = [*typing.get_args(hint), *waiting]


def exit_code_table() -> str:
    """Every exit code, with what it means."""
    rows = ([str(each.value), _cell(each.meaning)] for each in errors.ExitCode)
    return _table(("code", "meaning"), rows)


def finding_table() -> str:
    """Every code, with the first sentence of its page."""
    rows = []
    for code in typing.get_args(FindingCode):
        page = (EXPLAIN / f"{code}.md").read_text(encoding="utf-8")
        meaning = page.split("\n\n")[1]
        rows.append([f"[`{code}`](../../dlprof/explain/{code}.md)", _cell(meaning)])
    return _table(("code", "meaning"), rows)


def schema_table() -> str:
    """Every schema, with what it is of."""
    rows = []
    for path in sorted(SCHEMA.glob("*.json"), key=lambda path: path.stem):
        found = json.loads(path.read_text(encoding="utf-8"))
        link = f"[`{path.stem}`](../../dlprof/schema/{path.name})"
        rows.append([link, _cell(found["description"])])
    return _table(("schema", "of"), rows)


def _functions() -> dict[str, Any]:
    """The public functions, as they are called; some have the name of a room."""
    found = {f"dlprof.{name}": getattr(dlprof, name) for name in dlprof.__all__}
    return {
        name: each.__wrapped__ if isinstance(each, types.ModuleType) else each
        for name, each in found.items()
        if not isinstance(each, str | type)
    }


def api_overview() -> str:
    """The public functions, each with the first sentence on it."""
    rows = (
        [f"[`{name}`](#{name.replace('.', '')})", _cell(_docstring(each)[0].partition("\n\n")[0])]
        for name, each in _functions().items()
    )
    return _table(("function", "what it does"), rows)


def api() -> str:
    """Every public name of the package, by its docstring."""
    methods = {"Run.to_dataframe": Run.to_dataframe, "Recommendation.apply": Recommendation.apply}
    parts = ["## Functions\n"]
    parts += (_described_function(name, each) for name, each in _functions().items())
    parts.append("## Methods\n")
    parts += (_described_function(name, each) for name, each in methods.items())
    classes = {n: each for n in dlprof.__all__ if isinstance(each := getattr(dlprof, n), type)}
    options = {name: each for name, each in classes.items() if typing.is_typeddict(each)}
    parts.append("## Options\n")
    parts += (_described_options(name, each) for name, each in options.items())
    parts.append("## Classes\n")
    parts += (_described_class(name, classes[name]) for name in classes if name not in options)
    return "\n".join(parts)


def _described_function(name: str, function: Any) -> str:
    """A function as its signature and docstring have it.

    Raises:
        KeyError: Its docstring leaves out an argument, or what it returns.
    """
    signature = inspect.signature(function)
    module = inspect.getmodule(inspect.unwrap(function))
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    prose, sections = _docstring(function)
    texts = dict(_ENTRY.findall(sections.get("Args", "")))
    rows = [
        [
            f"`{each.name}`",
            _api_type(each.annotation, module),
            "" if each.default is each.empty else f"`{_quoted(each.default)}`",
            _cell(_linked(texts[each.name])),
        ]
        for each in parameters
    ]
    bare = [each.replace(annotation=each.empty) for each in parameters]
    call = f"{name}{inspect.Signature(bare)}".replace("'", '"')
    if len(call) > _LINE:  # an argument a line, where ``*`` has its own
        call = re.sub(r", (?=[\w*])", ",\n    ", call).replace("(", "(\n    ", 1)[:-1] + ",\n)"
    returned = _api_type(signature.return_annotation, module)
    kind = "" if returned == "`Any`" else f" {returned}:"
    ends = [f"**Returns**{kind} {_cell(_linked(sections['Returns']))}"]
    raised = _ENTRY.findall(sections.get("Raises", ""))
    ends += [f"**Raises** `{kind}`: {_cell(text)}" for kind, text in raised]
    table = _table(("argument", "type", "default", "what it is"), rows) if rows else ""
    parts = (f"### {name}", f"```py\n{call}\n```", prose, table.rstrip(), *ends)
    return "\n\n".join(filter(None, parts)) + "\n"


def _quoted(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _described_options(name: str, table: Any) -> str:
    """Options as keywords, with what the command of that name says of each."""
    word = name.removesuffix("Options").lower()
    command: Any = program().get_command(click.Context(program()), word)
    shown = (each for each in command.params if not getattr(each, "hidden", False))
    said = {each.name: _option_row(word, each) for each in shown}
    hints = inspect.get_annotations(table)
    module = inspect.getmodule(table)
    rows = [[f"`{key}`", _api_type(hint, module), *said[key][2:]] for key, hint in hints.items()]
    return f"### {name}\n\n{_docstring(table)[0]}\n\n" + _table(
        ("keyword", "type", "default", "what it does"), rows
    )


def _described_class(name: str, found: type) -> str:
    prose, sections = _docstring(found)
    parts = [f"### {name}\n\n{prose}\n"]
    module = inspect.getmodule(found)
    if dataclasses.is_dataclass(found):
        texts = described(found)
        hints = inspect.get_annotations(found)
        rows = [
            [f"`{each.name}`", _api_type(hints[each.name], module), _cell(texts[each.name])]
            for each in dataclasses.fields(found)
        ]
        parts.append(_table(("field", "type", "what it is"), rows))
    if issubclass(found, errors.DlprofError):
        held = dict(_ENTRY.findall(sections["Args"] + sections["Attributes"]))
        rows = [[f"`{name}`", _cell(text)] for name, text in held.items()]
        parts += [_table(("attribute", "what it is"), rows), "Its kinds, in `dlprof.errors`:\n"]
        kinds = (each for each in vars(errors).values() if isinstance(each, type))
        rows = [
            [f"`{each.__name__}`", f"{each.exit_code.value}", summary(each)]
            for each in kinds
            if issubclass(each, found) and each is not found
        ]
        parts.append(_table(("class", "exit code", "what it is"), rows))
    return "\n".join(parts)


def _docstring(found: Any) -> tuple[str, dict[str, str]]:
    """What a docstring says, as Markdown, and its sections."""
    prose, *rest = _SECTION.split(inspect.getdoc(found) or "")
    sections = {
        name: textwrap.dedent(body) for name, body in zip(rest[::2], rest[1::2], strict=True)
    }
    paragraphs = (" ".join(each.split()) for each in prose.strip().split("\n\n"))
    return _linked("\n\n".join(paragraphs)).replace("``", "`"), sections


def _linked(text: str) -> str:
    """A docstring's text whose references lead to their place on the page."""
    text = re.sub(r":func:`(\w+)`", r"[`dlprof.\1`](#dlprof\1)", text)
    return re.sub(r":class:`(\w+)`", lambda found: f"[`{found[1]}`](#{found[1].lower()})", text)


def _api_type(hint: Any, module: Any) -> str:
    """A type of the Python API, without the names that a module has for it alone."""
    text = getattr(hint, "__forward_arg__", hint)
    text = re.sub(r"\b_[A-Z]\w*", lambda found: repr(getattr(module, found[0])), text)
    text = re.sub(r"Unpack\[(\w+)\]", r"\1", text)
    text = re.sub(r"\b(?:[a-z]\w*\.)+|~_", "", text)
    text = re.sub(r"Literal\[(.+?)\]", lambda found: found[1].replace(", ", " or "), text)
    text = text.replace("'", '"')
    return f"`{text.replace(' | ', ' or ')}`"


@functools.cache
def screen(command: str) -> str:
    """What a command prints in the checkout, 80 columns wide.

    Raises:
        ValueError: Where it fails.
    """
    program, *words = shlex.split(command)
    if program == "cat":
        return "".join((ROOT / word).read_text(encoding="utf-8") for word in words)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DLPROF_")}
    kept |= {"COLUMNS": "80", "NO_COLOR": "1"}
    shown = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with (
        mock.patch.dict(os.environ, kept, clear=True),
        contextlib.chdir(ROOT),
        contextlib.redirect_stdout(shown),
    ):
        if program != "dlprof" or run(words, os.environ):
            raise ValueError(f"This screen's command fails: {command}")
    shown.seek(0)
    return shown.read()


def rendered(page: str) -> str:
    """A page with each table and screen as the code has it.

    Raises:
        KeyError: For a table that there is none of.
        ValueError: Where a screen's command fails.
    """
    makers = {
        "exit codes": exit_code_table,
        "findings": finding_table,
        "machine profile": profile_tables,
        "python": api,
        "python functions": api_overview,
        "records": record_tables,
        "schemas": schema_table,
    }

    def make(match: re.Match[str]) -> str:
        what, _, name = match["name"].partition(" ")
        if what == "command":
            table = command_table(name)
        elif what == "builtin" and name in BUILTINS:
            table = builtin_table(name)
        else:
            table = makers[match["name"]]()
        return f"{match[1]}\n{table}\n"

    page = _SCREEN.sub(lambda match: match[1] + screen(match["command"]), page)
    return _BLOCK.sub(make, page)


def main() -> int:
    """Write or check every page; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check: bool = parser.parse_args().check
    stale = []
    for path in sorted(DOCS.rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        fresh = rendered(page)
        if fresh != page:
            stale.append(path.relative_to(ROOT))
            if not check:
                path.write_text(fresh, encoding="utf-8")
    for name in stale:
        print(f"{name} {'is not as the code has it: make docs' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
