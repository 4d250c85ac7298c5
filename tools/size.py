"""How large dlprof is: lines as they are, docstrings, templates and scripts included, and nouns.

``python tools/size.py`` prints each room, the whole, how many names there are to know, and how
often the reader of a recommendation comes back to a module; with names of packages or modules, such
as ``advise search stats model``, their lines alone.
"""

from __future__ import annotations

import ast
import collections
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "dlprof"
COUNTED = {".py", ".html", ".css", ".js", ".sh", ".toml"}


def lines(path: Path) -> int:
    """Lines of a file, or of all that a folder holds."""
    if path.is_dir():
        return sum(lines(each) for each in path.iterdir() if each.name != "__pycache__")
    return len(path.read_text().splitlines()) if path.suffix in COUNTED else 0


def find(name: str) -> Path:
    """The folder or module of a name."""
    folder = ROOT / name
    return folder if folder.is_dir() else folder.with_suffix(".py")


def constants(module: ast.Module) -> int:
    """Names at the top of a module that stand for a number, or for several."""
    count = 0
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            numbers = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            if numbers and all(map(_is_number, numbers)):
                count += len(target.elts) if isinstance(target, ast.Tuple) else 1
    return count


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


@functools.cache
def parsed(path: Path) -> ast.Module:
    """What a module's text says."""
    return ast.parse(path.read_text())


def nouns() -> Iterator[str]:
    """How many names a reader meets."""
    texts = [path.read_text() for path in ROOT.rglob("*.py")]
    mentions = collections.Counter(re.findall(r"\b[A-Za-z_]\w*", "\n".join(texts)))
    trees = list(map(ast.parse, texts))
    nodes = [node for tree in trees for node in ast.walk(tree)]
    functions = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    once = [
        name
        for name in functions
        if name.startswith("_") and not name.startswith("__") and mentions[name] <= 2
    ]
    classes = collections.Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    twice = sorted(name for name, count in classes.items() if count > 1)
    yield f"{len(texts):8,}  modules"
    yield f"{len(functions):8,}  functions, {len(once):,} private and mentioned once"
    yield f"{sum(map(constants, trees)):8,}  numeric constants of modules"
    yield f"{len(classes):8,}  classes; names of several: {', '.join(twice) or 'none'}"


def defined(module: str, *names: str) -> tuple[str, ast.FunctionDef | ast.ClassDef] | None:
    """What a name, or one within a class, is in a module: where it is from, and its definition."""
    path = ROOT.parent.joinpath(*module.split("."))
    nodes = parsed(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))
    found: list[ast.stmt] = nodes.body
    for name in names:
        kinds = (ast.FunctionDef, ast.ClassDef)
        named = [each for each in found if isinstance(each, kinds) and each.name == name]
        if not named:
            break
        found = named[0].body
    else:
        return module, named[0]
    for node in ast.walk(nodes):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dlprof."):
            for each in node.names:
                if names[0] == (each.asname or each.name):
                    return defined(str(node.module), each.name, *names[1:])
    return None


def walk(module: str, name: str, *values: str) -> list[str]:
    """The modules in the order in which a reader who follows values through a function opens them.

    By their names: through every call that is given them, into each function once, and back.
    """
    way, seen = [module], set[ast.AST]()

    def names(node: ast.AST) -> set[str]:
        return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}

    def follow(here: str, function: ast.AST, values: set[str]) -> None:
        seen.add(function)
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
            found = defined(here, *ast.unparse(call.func).split("."))
            if found is None or found[1] in seen or not isinstance(found[1], ast.FunctionDef):
                continue
            taken = [each.arg for each in found[1].args.args if each.arg not in {"self", "cls"}]
            given = [*zip(taken, call.args, strict=False)]
            given += [(each.arg or "", each.value) for each in call.keywords]
            if held := {key for key, each in given if values & names(each)}:
                way.append(found[0])
                follow(*found, held)
                way.append(here)

    if (start := defined(module, name)) is not None:
        follow(*start, {*values})
    return [here for here, before in zip(way, ["", *way], strict=False) if here != before]


def main() -> None:
    """Print the figures."""
    names = sys.argv[1:]
    if names:
        print(f"{sum(lines(find(name)) for name in names):,}")
        return
    for path in sorted(ROOT.iterdir()):
        if count := lines(path):
            print(f"{count:8,}  {path.name}")
    print(f"{lines(ROOT):8,}  in all")
    print(*nouns(), sep="\n")
    for values in (["run"], ["run", "situation"]):
        way = walk("dlprof.advise.recommend", "recommend", *values)
        known = len({*way})
        followed = " and ".join(values)
        print(f"{len(way) - known:8,}  returns to {known} modules: recommend, following {followed}")


if __name__ == "__main__":
    main()
