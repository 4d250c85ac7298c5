"""Run a script in this process as ``python SCRIPT ARGS`` or ``python -m MODULE ARGS`` would."""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import importlib.util
import os
import shlex
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from dlprof.errors import UsageError
from dlprof.records.watched import ScriptEnding
from dlprof.store import SUFFIX
from dlprof.targets.faults import OWN, without_own_lines
from dlprof.units import quoted


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A script that is ready to be run."""

    argv: tuple[str, ...]  # its ``sys.argv``
    folder: str  # what Python puts first on ``sys.path`` for it
    path: str  # its ``__file__``
    code: CodeType  # compiled
    spec: ModuleSpec | None  # of a module; ``None`` for a script
    loader: Any  # its ``__loader__``


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a script ended."""

    kind: ScriptEnding  # for the record
    exit_code: int  # what Python would end with; for an interrupted script, what a shell calls it


def load_script(script: str, arguments: Sequence[str]) -> Program:
    """Read and compile a script file."""
    path = Path(script)
    hint = "Give a Python file, or -m and a module."
    if script.lower().endswith(SUFFIX):  # JSON that Python may take for a script
        raise UsageError(
            f"{quoted(script)} is a run file, not a script",
            hint=f"See it with dlprof report {shlex.quote(script)}",
        )
    if os.path.isdir(script):  # asks where a folder on the way is closed, too
        raise UsageError(f"{quoted(script)} is a directory, not a script", hint=hint)
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"There is no file {quoted(script)}", hint=hint) from None
    except OSError as error:
        raise UsageError(f"{quoted(script)} can't be read: {error.strerror}", hint=hint) from None
    # Python leaves ./ in it, and so in every traceback.
    full = str(path) if path.is_absolute() else os.path.join(os.getcwd(), script)
    try:
        code = compile(source, full, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # the second, before Python 3.12, of null bytes
        line = getattr(error, "lineno", None)
        where = f"line {line}: " if line else ""
        raise UsageError(
            f"{quoted(script)} is not a Python script ({where}{getattr(error, 'msg', error)})",
            hint="Give a Python file that python itself can run.",
        ) from None
    return Program(
        argv=(script, *arguments),
        folder=os.path.dirname(os.path.realpath(full)),
        path=full,
        code=code,
        spec=None,
        loader=SourceFileLoader("__main__", full),
    )


def load_module(module: str, arguments: Sequence[str]) -> Program:
    """Find and compile a module, or the ``__main__`` of a package; imports what is around it."""
    sys.argv[:] = "-m", *arguments  # as what is around it finds them in Python
    hint = "Give a module that python -m can run."
    spec = _find(module)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _find(f"{module}.__main__")
        hint = f"{module} is a package without a __main__ module."
    if spec is None:
        raise UsageError(f"There is no module {quoted(module)} to run", hint=hint)
    get_code = getattr(spec.loader, "get_code", None)
    code = None if get_code is None else get_code(spec.name)
    if code is None or spec.origin is None:
        raise UsageError(f"{quoted(module)} is not a Python module that can be run", hint=hint)
    return Program(
        argv=(spec.origin, *arguments),
        folder=os.getcwd(),
        path=spec.origin,
        code=code,
        spec=spec,
        loader=spec.loader,
    )


def _find(module: str) -> ModuleSpec | None:
    if module.startswith("."):
        return None
    try:
        return importlib.util.find_spec(module)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            return None
        raise  # a package around it that doesn't find what it imports
    except ValueError:  # a name such as "__main__"
        return None


def as_main(program: Program) -> ModuleType:
    """Make this process the script's: ``__main__``, ``sys.argv`` and ``sys.path`` are its own."""
    main = ModuleType("__main__")
    cached = None if program.spec is None else program.spec.cached
    if sys.version_info < (3, 14):  # which makes them of the code, when they are asked for
        main.__annotations__ = {}
    main.__dict__.update(
        __builtins__=builtins,
        __cached__=cached,
        __file__=program.path,
        __loader__=program.loader,
        __package__=None if program.spec is None else program.spec.parent,
        __spec__=program.spec,
    )
    sys.modules["__main__"] = main
    sys.argv[:] = program.argv
    return main


def set_path(folder: str) -> None:
    """Put a script's folder where Python puts it; ``dlprof``'s own stands there so far."""
    if not sys.flags.safe_path:
        sys.path[:1] = [folder]


def execute(program: Program, main: ModuleType) -> Ending:
    """Run the script to its end; what ends it is shown as Python shows it."""
    try:
        exec(program.code, main.__dict__)  # noqa: S102 - running the user's script is the task
    except BaseException as error:  # whatever the script ends with
        return show_fault(error)
    return Ending(kind="returned", exit_code=0)


def show_fault(error: BaseException) -> Ending:
    """Show what ended the script as Python shows it, without dlprof's own frames."""
    if isinstance(error, SystemExit):
        return Ending(kind="exit", exit_code=_exit_code(error))
    _strip(error, set())
    # As Python does: a hook may begin a debugger there, and what the script was in the midst of
    # stays as it is, workers among it, instead of being ended here.
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as request:  # of a hook of the script's
        return Ending(kind="exception", exit_code=_exit_code(request))
    except BaseException as fault:  # one that fails
        _strip(fault, {id(error)})
        if fault.__context__ is error:  # to Python that isn't being handled as it calls the hook
            fault.__context__ = None
        said = ("Error in sys.excepthook:", fault), ("\nOriginal exception was:", error)
        for words, each in said:
            with contextlib.suppress(OSError, ValueError, AttributeError):  # as below
                sys.stderr.write(f"{words}\n")
            sys.__excepthook__(type(each), each, each.__traceback__)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none at all
        sys.stderr.flush()
    if isinstance(error, KeyboardInterrupt):
        return Ending(kind="interrupted", exit_code=130)
    return Ending(kind="exception", exit_code=1)


def _exit_code(request: SystemExit) -> int:
    """The exit code of ``sys.exit``; a text is shown on stderr and means 1."""
    if request.code is None:
        return 0
    if isinstance(request.code, int):
        return int(request.code)  # True and False are codes too
    with contextlib.suppress(Exception):  # closed, or none at all; or a class of the script's own
        sys.stderr.write(f"{request.code}\n")
    return 1


def _strip(error: BaseException | None, seen: set[int]) -> None:
    if error is None or id(error) in seen or len(seen) > 100:
        return
    seen.add(id(error))
    entries, kept = [], error.__traceback__
    while kept is not None:
        if not kept.tb_frame.f_code.co_filename.startswith(OWN):
            entries.append(kept)
        kept = kept.tb_next
    for entry in reversed(entries):
        kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = kept
    with contextlib.suppress(Exception):  # an exception of the script's own may refuse
        # Among them a worker's traceback, which torch passes on as a text.
        args = tuple(
            type(each)(without_own_lines(each)) if isinstance(each, str) and OWN in each else each
            for each in error.args
        )
        if args != error.args:
            error.args = args
    _strip(error.__cause__, seen)
    _strip(error.__context__, seen)
