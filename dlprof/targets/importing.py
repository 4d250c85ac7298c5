"""From a module or file target to the object that it names."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType

from dlprof.errors import TargetError, did_you_mean
from dlprof.targets.faults import raised_outside, target_fault, user_traceback
from dlprof.targets.grammar import TargetSpec


def import_object(spec: TargetSpec, *, directory: Path | None = None) -> object:
    """Import the module of a target and return the attribute that it names, whatever that is."""
    directory = directory or Path.cwd()
    if spec.kind == "file":
        module = _import_file(spec, (directory / spec.source).resolve())
    else:
        _put_first_on_path(directory)
        module = _import(spec, spec.source)
    return _attribute(spec, module)


def module_name(path: Path) -> tuple[Path, str]:
    """The directory that must be on ``sys.path`` for a file, and the module's dotted name there.

    Python's own rule: every directory upwards that holds an ``__init__.py`` is a package.
    """
    root = path.parent
    parts = [] if path.name == "__init__.py" else [path.stem]
    while (root / "__init__.py").is_file() and root != root.parent:
        parts.insert(0, root.name)
        root = root.parent
    return root, ".".join(parts)


def _import_file(spec: TargetSpec, path: Path) -> ModuleType:
    if not path.exists():
        raise TargetError(
            f"There is no file {spec.source!r}.",
            hint="Give a path that exists, relative to the working directory.",
        )
    if not path.is_file():
        raise TargetError(f"{spec.source!r} is not a file.", hint="Name a .py file.")
    root, name = module_name(path)
    if "." in path.stem:
        raise TargetError(
            f"The file {spec.source!r} can't be imported: its name holds a dot before .py.",
            hint="Rename the file; worker processes must be able to import it by its name.",
        )
    _put_first_on_path(root)
    _refuse_other(spec, path, name, sys.modules.get(name))
    # A file written a moment ago is not in the import system's directory caches.
    importlib.invalidate_caches()
    module = _import(spec, name)
    _refuse_other(spec, path, name, module)
    return module


def _refuse_other(spec: TargetSpec, path: Path, name: str, module: ModuleType | None) -> None:
    """Refuse a file whose module name already stands for another file."""
    if module is None:
        return
    found = getattr(module, "__file__", None)
    if found is None or Path(found).resolve() != path:
        raise TargetError(
            f"The file {spec.source!r} can't be imported: the name {name!r} belongs to "
            f"another module ({found or 'built into Python'}).",
            hint="Rename the file; worker processes must be able to import it by its name.",
        )


def _put_first_on_path(directory: Path) -> None:
    # Worker processes started by spawn or forkserver get a copy of sys.path, so the module can be
    # imported, and objects of its classes unpickled, in them too.
    text = str(directory)
    if not sys.path or sys.path[0] != text:
        sys.path.insert(0, text)


def _import(spec: TargetSpec, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except SystemExit as error:
        raise TargetError(
            f"Importing {spec.source!r} ended the program (SystemExit).",
            hint='Put what the script runs under `if __name__ == "__main__":`.',
            traceback=user_traceback(error),
        ) from error
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        # Where the target's module is missing, and not one that it needs.
        if missing and f"{name}.".startswith(f"{missing}.") and not raised_outside(error):
            raise TargetError(
                f"There is no module {missing!r} (target {spec.text!r}).",
                hint="The working directory is searched first; for a file write path/to/file.py:"
                f"{spec.attr}, and install what the module's package needs.",
            ) from None
        hint = "Import it in a Python prompt to see the error alone."
        if missing:
            hint = f"Install {missing.partition('.')[0]!r} in this environment, or fix the import."
        elif isinstance(error, ImportError) and "no known parent package" in str(error):
            hint = "Add an __init__.py to its folder, or name it as a module of its package: "
            hint += f"package.module:{spec.attr}."
        said = f"{spec.source!r} was found, but importing it failed:"
        raise target_fault(said, error, hint) from error


def _attribute(spec: TargetSpec, module: ModuleType) -> object:
    found: object = module
    path = spec.source
    for name in spec.attr.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            public = [entry for entry in dir(found) if not entry.startswith("_")]
            has = f"It has: {', '.join(public[:12]) or 'no public names'}."
            hint = did_you_mean(name, public, most=3) or has
            raise TargetError(f"{path!r} has no attribute {name!r}.", hint=hint) from None
        except Exception as error:
            hint = "The attribute is computed by code of the target; fix it there."
            raise target_fault(f"Reading {name!r} of {path!r} failed:", error, hint) from error
        path = f"{path}:{name}" if path == spec.source else f"{path}.{name}"
    return found


def place_of(spec: TargetSpec, directory: Path) -> tuple[str, int | None] | None:
    """File and line of what TARGET names, once it has been built; ``None`` for what lies in none.

    Only functions and classes have a line of their own. ``directory`` is the one from which it was
    built: the target may have changed to another.
    """
    if spec.kind in {"builtin", "object"}:
        return None
    found = import_object(spec, directory=directory)
    if inspect.isfunction(found) or inspect.isclass(found):
        try:
            return inspect.getfile(found), inspect.getsourcelines(found)[1]
        except (TypeError, OSError):
            pass  # made by code that stands in no file
    if spec.kind == "file":
        return str((directory / spec.source).resolve()), None
    file = importlib.import_module(spec.source).__file__
    return None if file is None else (file, None)
