"""``%load_ext dlprof``, and then ``%%dlprof`` on a cell: how long its loops wait for their loaders.

IPython is never imported: it loads this, and passes itself in.
"""

from __future__ import annotations

import sys
from typing import Any

from dlprof.integrations.watch import Watched, loader_of, watch_all
from dlprof.report.script import is_harmless

_NAME = "loader"
_NONE = "dlprof: no DataLoader was iterated in this cell.\n"


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook the cell magic ``%%dlprof``; called by ``%load_ext dlprof``."""

    def dlprof(_line: str, cell: str) -> None:
        """Run the cell, and say how long its loops waited for their DataLoaders."""
        from torch.utils.data import DataLoader  # the cell is about to

        with watch_all(DataLoader, name=_NAME) as seen:
            shell.run_cell(cell)
        sys.stdout.write("".join(_text(each, shell.user_ns) for each in seen) or _NONE)

    shell.register_magic_function(dlprof, magic_kind="cell", magic_name="dlprof")


def _text(watched: Watched[Any], variables: dict[str, Any]) -> str:
    """One loader: its summary, and what finds out why the loop waits."""
    loader, summary = loader_of(watched), watched.summary()
    hint = ""
    if summary.batches and not is_harmless([summary], None):
        name = next((each for each in variables if variables[each] is loader), _NAME)
        hint = f"  What it waits for, and the fix: dlprof.profile({name})\n"
    return f"{summary}\n{hint}"
