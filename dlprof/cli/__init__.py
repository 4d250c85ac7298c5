"""The command line: one module per command, each parse, one call, render.

Importing it loads neither torch nor pydantic; each command imports what it needs when it runs.
"""

from dlprof.cli.entry import main

__all__ = ["main"]
