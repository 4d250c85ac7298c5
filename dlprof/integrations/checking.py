"""What ``dlprof_check`` does in a test: find the TARGET, check it, and say it in pytest's words."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dlprof.errors import BaseNotMeasuredError, BaseTargetError, DlprofError, FileError, UsageError
from dlprof.records.gate import CheckReport


class DataLoadingWarning(UserWarning):
    """Data loading got slower where that only warns."""


class Checker:
    """Checks data loading within a test; the fixture ``dlprof_check`` is one."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self._config = request.config
        self._count = 0

    def __call__(
        self,
        target: object,
        *,
        fail_above: float | str | None = None,
        confidence: float | str | None = None,
        arguments: Mapping[str, str] | None = None,
        **settings: object,
    ) -> CheckReport:
        """Compare the loading of a target with the base that pytest was given.

        The test fails where it got slower, and is skipped where that isn't known; options of
        pytest change both.

        Args:
            target: A function at the top of a module that gives a DataLoader or a Dataset, such a
                class, or a TARGET as ``dlprof check`` takes it.
            fail_above: As for :func:`dlprof.check`.
            confidence: Likewise.
            arguments: Passed to the target's callable, as texts.
            settings: Further settings under their keys in a configuration file, such as
                ``num_workers=2``.

        Raises:
            UsageError: The target has no name that the base's code could know.
        """
        from dlprof.api import check

        __tracebackhide__ = True  # what ends the test is shown at the test's own line
        given: dict[str, Any] = {"arg": arguments or {}, **settings}
        if self._option("budget"):
            given["budget"] = self._option("budget")
        try:
            _refuse_options(given)
            with self._paths():
                report = check(
                    target_name(target, self._folder),
                    against=None if self._option("against") == "auto" else self._option("against"),
                    baseline=self._path("baseline"),
                    fail_above=fail_above,
                    confidence=confidence,
                    directory=self._folder,
                    progress=False,
                    **given,
                )
        except (BaseTargetError, BaseNotMeasuredError) as error:
            # A check that is new is not in the base yet.
            raise pytest.skip.Exception(f"dlprof: {error.message}") from None
        except DlprofError as error:
            raise pytest.fail.Exception(_in_words(error), pytrace=False) from None
        self._keep(report)
        self._end(report)
        return report

    def _option(self, name: str) -> Any:
        return self._config.getoption(f"dlprof_{name}")

    def _path(self, name: str) -> Path | None:
        given = self._option(name)
        return None if given is None else self._folder / given

    @property
    def _folder(self) -> Path:
        """What files are relative to, whatever a test has made of the working directory."""
        return self._config.invocation_params.dir

    @contextlib.contextmanager
    def _paths(self) -> Iterator[None]:
        """Lets other processes import what pytest's own ``pythonpath`` lets tests import."""
        added = [str(path) for path in self._config.getini("pythonpath")]
        with pytest.MonkeyPatch.context() as patch:
            if added:
                patch.setenv("PYTHONPATH", os.pathsep.join(added), prepend=os.pathsep)
            yield

    def _keep(self, report: CheckReport) -> None:
        """Write the document where one was asked for, and the verdict to JUnit's properties."""
        self._count += 1
        self._request.node.user_properties.append(("dlprof", report.state))
        folder = self._path("save")
        if folder is None:
            return
        from dlprof.files import make_folder, replace_file
        from dlprof.report.check import check_document

        own = self._request.node.nodeid
        plain = re.sub("::|/", "-", own)
        name = re.sub(r"[^\w.-]+", "-", plain).strip("-")[-180:]
        if name != plain or "-" in own:  # another test's may read the same
            name += f"-{hashlib.sha256(own.encode()).hexdigest()[:8]}"
        again = f"-{self._count}" if self._count > 1 else ""
        try:
            make_folder(folder)
            replace_file(folder / f"{name}{again}.json", check_document(report).encode())
        except FileError as fault:  # the verdict matters more than its document
            warnings.warn(_in_words(fault), DataLoadingWarning, stacklevel=4)

    def _end(self, report: CheckReport) -> None:
        __tracebackhide__ = True
        if report.state == "pass":
            return
        text = message(report)
        wanted = self._option("regression") or ("warn" if self._option("baseline") else "fail")
        if report.state == "fail" and wanted != "warn":
            pytest.fail(text, pytrace=False)
        elif report.state == "fail":
            warnings.warn(text, DataLoadingWarning, stacklevel=3)
        elif report.state == "inconclusive" and self._option("inconclusive") == "fail":
            pytest.fail(text, pytrace=False)
        else:
            pytest.skip(text)


def _refuse_options(given: Mapping[str, object]) -> None:
    """Refuse what pytest's own options say, and arguments that are no pairs."""
    for name in ("against", "baseline", "directory", "progress", "allow_regression"):
        if name in given:
            raise UsageError(
                f"dlprof_check takes no {name}",
                hint="Options of pytest say what is compared: see pytest --help.",
            )
    if not isinstance(given["arg"], Mapping):
        raise UsageError(
            f"arguments={given['arg']!r} is not a dict of names and values",
            hint='Give a dict of texts, such as {"root": "data"}.',
        )


def _in_words(error: DlprofError) -> str:
    """Why nothing can be checked: what the user can do about it, and no stack of ours."""
    parts = (f"dlprof: {error.message}", error.hint, error.traceback)
    return "\n".join(filter(None, parts))


def message(report: CheckReport) -> str:
    """A verdict as the lines of a failed test."""
    from dlprof.report.check import headline, side_text, stage_lines

    head = headline(report)
    lines = [
        report.explanation
        if report.explanation.startswith(head)
        else f"{head}: {report.explanation}"
    ]
    lines.append(f"{side_text(report.change)} against {side_text(report.base)}")
    if report.state == "fail":
        lines += [f"{name}: {text}" for name, text in stage_lines(report.target)]
        lines.append("If the slowdown is meant, run pytest with --dlprof-regression warn.")
    return "\n".join(lines)


def target_name(target: object, root: Path) -> str:
    """TARGET of a live object: its file, relative to ``root``, and its name there."""
    if isinstance(target, str):
        return target
    name, module = getattr(target, "__qualname__", ""), inspect.getmodule(target)
    source: Any = getattr(module, "__file__", None)
    if module is None or not name or "<" in name:
        shown = name or f"an object of {type(target).__qualname__}"
        raise UsageError(
            f"dlprof_check can't find {shown} by a name in the base's code",
            hint="Give a function or a class at the top of a module, or a TARGET.",
        )
    path = Path(source).resolve() if source else None
    if path is None or not path.is_relative_to(root.resolve()):
        return f"{module.__name__}:{name}"
    return f"{path.relative_to(root.resolve())}:{name}"
