"""What a check is to do, and the two sides that follow: where the code of each lies, its name."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from dlprof import files
from dlprof.engine.checking.git import Git, default_ref, find_git, remove_abandoned, worktree
from dlprof.engine.profile import for_one, refuse_named
from dlprof.engine.trials import ProgressListener
from dlprof.errors import BaseTargetError, UsageError
from dlprof.gate.plan import CONFIDENCE, THRESHOLD
from dlprof.gate.verdict import NextLook
from dlprof.records import Target
from dlprof.records.gate import Compared, Series, Side
from dlprof.search.space import single_config
from dlprof.settings import SweepSettings, by_key
from dlprof.settings.options import SWEPT
from dlprof.targets.grammar import parse_target
from dlprof.trial.protocol import BuildRequest
from dlprof.trial.side import SidePlace


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """A check's options as resolved."""

    # TARGET, its arguments, at most one value of each swept setting, ``budget_s``, ``timeout_s``,
    # ``seed``, ``shuffle``.
    sweep: SweepSettings
    # A git ref or a directory; ``None`` for the merge base with the upstream's default branch,
    # unless ``against_python`` is given.
    against: str | None = None
    against_python: str | None = None  # the interpreter of the environment that is compared with
    fail_above: float = THRESHOLD  # what counts as slower, as a fraction of the base
    confidence: float = CONFIDENCE  # that code which isn't slower doesn't fail
    pin: bool = True  # whether both sides are held to the same cores
    # Length of a block of loading, in seconds. Cores change their speed after a second or so: four
    # blocks of 0.15 s mostly see a change, four of 0.05 s seldom do (simulated: a verdict on equal
    # code after 2.6 s of loading instead of 11; benchmarks, gate_rule).
    block_s: float = 0.05
    override: str = ""  # why a regression may pass; empty where none may
    warn_only: bool = False  # whether a failure is only reported

    @property
    def source(self) -> Path | None:
        """The file that TARGET names, if it names one."""
        spec = parse_target(self.sweep.target)
        return Path(spec.source) if spec.kind == "file" else None


def for_check(settings: SweepSettings, origins: Mapping[str, str]) -> CheckSettings:
    """A check's settings from those of a sweep, which share files and variables."""
    taken = {"target", "arg", "shuffle", "budget", "seed", "timeout", *SWEPT}
    others = (key for key in by_key() if key not in taken)
    refuse_named(origins, others, "A check", "it loads by one configuration, as fast as it can")
    one = for_one(settings, origins)
    # What two values are wrong for is any target; so that is said before one is built.
    single_config(one, Target(spec="", kind="map", dataset=""), has_accelerator=False)
    if origins["budget"] != by_key()["budget"].flag:
        one = dataclasses.replace(one, budget_s=60.0)
    return CheckSettings(sweep=one)


def patience(settings: CheckSettings) -> tuple[float, str]:
    """How long one answer may take, in seconds, and the option that makes it no longer."""
    timeout_s = settings.sweep.timeout_s
    # Importing torch on a slow machine takes as long.
    budget_s = max(settings.sweep.budget_s, 30.0)
    return (timeout_s, "--timeout") if timeout_s <= budget_s else (budget_s, "--budget")


class CheckListener(ProgressListener, Protocol):
    """Hears what a check does, as it does it."""

    def quads(
        self, done: Mapping[Series, int], look: NextLook | None, elapsed_s: float, budget_s: float
    ) -> None:
        """Another quad was measured; ``look`` is what the last look at all of them gave."""


NO_SUBMODULES = "without its submodules"
"""Noted of a base that lacks what lies in them: git leaves them out of a worktree."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SidePlan(SidePlace):
    """What one side of a check is, and where it runs."""

    side: Side  # which
    request: BuildRequest  # how its target is built
    root: Path  # the directory that holds all of its code: its own or one above it
    compared: Compared  # its name for people


def working_tree(settings: SweepSettings, cwd: Path, git: Git | None = None) -> SidePlan:
    """The change: the working directory as it stands."""
    commit = note = ""
    if git is not None:
        commit = git.commit("HEAD") or ""
        note = "with uncommitted changes" if git.is_dirty() else ""
    return SidePlan(
        side="change",
        request=BuildRequest(
            target=parse_target(settings.target),
            arguments=settings.arguments,
            shuffle=settings.shuffle,
            seed=settings.seed,
        ),
        directory=cwd,
        root=cwd if git is None else git.root,
        compared=Compared(name="working tree", commit=commit, note=note),
    )


@contextlib.contextmanager
def both_sides(
    settings: CheckSettings, environ: Mapping[str, str], cwd: Path
) -> Iterator[tuple[SidePlan, SidePlan]]:
    """The base and the change that the settings name; a worktree lives as long as this."""
    cwd = cwd.resolve()
    remove_abandoned(cwd)
    against = settings.against
    python = _interpreter(settings.against_python)
    if against is None and python is not None:
        change, other = working_tree(settings.sweep, cwd), Compared(name=python)
        change = dataclasses.replace(change, compared=Compared(name=str(Path(sys.executable))))
        yield dataclasses.replace(change, side="base", python=python, compared=other), change
        return
    git = find_git(cwd)
    commit = git.commit(against) if git is not None and against is not None else None
    directory = _directory(against, cwd) if against is not None and commit is None else None
    if directory is not None:
        if directory == cwd and python is None:
            raise UsageError(
                f"--against {against} is the working directory itself",
                hint="Give a directory that holds another version; "
                "--self-test checks the code against itself.",
            )
        change = working_tree(settings.sweep, cwd, git)
        # Held against the working directory, whatever it lies in.
        here = dataclasses.replace(change, root=change.directory)
        yield _base(here, directory, python, Compared(name=str(directory))), change
        return
    git = git or Git(cwd)  # which says why there is none
    change = working_tree(settings.sweep, cwd, git)
    if against is None:
        named = default_ref(git, environ)
    elif commit is None:
        raise git.no_such_ref(against)
    else:
        named = Compared(name=against, commit=commit)
    if named.commit == change.compared.commit and not git.is_dirty():
        named = dataclasses.replace(named, note="the same commit")
    with worktree(git, named.commit) as path:
        yield _base(change, path, python, named), change


def _interpreter(python: str | None) -> str | None:
    if python is None:
        return None
    found = shutil.which(os.path.expanduser(python))  # may be a mere name
    if found is None:
        raise UsageError(
            f"--against-python {python}: there is no such program",
            hint="Give the path of another environment's python.",
        )
    return str(Path(found).absolute())  # not resolved: an environment's python is a link


def _directory(against: str, cwd: Path) -> Path | None:
    """The directory that is meant, where there is no such git ref; ``None`` if it is none."""
    if not against.strip():  # a variable of a CI job that isn't set; as a path it is the checkout
        raise UsageError(
            "--against is empty", hint="Give a git ref or a directory, or leave --against out."
        )
    path = Path(os.path.realpath(cwd / os.path.expanduser(against)))  # never raises
    if os.path.isdir(path):  # never raises, however long the path
        return path
    if files.is_there(path):
        raise UsageError(
            f"--against {against} is a file",
            hint="Give a git ref or a directory; a stored history goes to --baseline.",
        )
    if against.startswith(("/", "./", "../", "~")):
        raise UsageError(
            f"--against {against}: there is no such directory",
            hint="Give a directory that exists, or a git ref.",
        )
    return None


def _base(change: SidePlan, root: Path, python: str | None, compared: Compared) -> SidePlan:
    """The base whose code lies at ``root``, where the change's lies at its own root."""
    notes = [compared.note] if compared.note else []
    if len(str(root)) != len(str(change.root)):
        notes.append("at a path of different length, which alone can cost a few percent")
    if python is not None:
        notes.append(f"by {python}")
    if compared.commit and (root / ".gitmodules").exists():
        notes.append(NO_SUBMODULES)
    request = change.request
    spec = request.target
    if spec.kind == "file":
        # A path into the checkout means the base's own file; a relative one finds it by itself.
        is_absolute = Path(spec.source).is_absolute()
        source = Path(os.path.normpath(change.directory / spec.source))
        source = source.resolve() if is_absolute else source
        is_inside = source.is_relative_to(change.root)
        if is_absolute or not is_inside:
            moved = root / source.relative_to(change.root) if is_inside else source
            there = dataclasses.replace(spec, text=f"{moved}:{spec.attr}", source=str(moved))
            request = dataclasses.replace(request, target=there)
    within = change.directory.relative_to(change.root)
    if not (root / within).is_dir():
        raise BaseTargetError(
            f"The base {compared.name} ({compared.commit[:7]}) has no directory {str(within)!r}",
            hint="Run the check from the top of the repository.",
        )
    return SidePlan(
        side="base",
        request=request,
        directory=root / within,
        root=root,
        python=python or sys.executable,
        moved=((str(change.root), str(root)),),
        compared=dataclasses.replace(compared, note=", ".join(notes)),
    )
