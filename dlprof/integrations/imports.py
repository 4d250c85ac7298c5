"""Do something right after a module is first imported, without importing it."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class AfterImport(importlib.abc.MetaPathFinder):
    """Stands first in ``sys.meta_path`` until one module is imported.

    Args:
        name: The module.
        act: Called with it once its code has run; what it raises is kept from the importer.
    """

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._act = act

    def install(self) -> None:
        """Wait for the import; where it has happened already, act at once."""
        module = sys.modules.get(self._name)
        if module is None:
            sys.meta_path.insert(0, self)
        else:
            self._act(module)

    def remove(self) -> None:
        """Wait no longer."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """The module as others find it, with a loader that acts afterwards."""
        del path, target
        if fullname != self._name:
            return None
        self.remove()  # those behind it in the list are asked, and later imports are theirs
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _ActingLoader(spec.loader, self._act)
        return spec


class _ActingLoader(importlib.abc.Loader):
    """Loads as another loader does, then acts and steps back."""

    def __init__(self, loader: importlib.abc.Loader, act: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._act = act

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._act(module)
