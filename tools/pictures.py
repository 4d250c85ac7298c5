"""Draw the README's picture from a saved run: ``python tools/pictures.py [--check]``.

``docs/img/sweep-light.svg`` and ``sweep-dark.svg`` show how the screen of ``dlprof sweep`` ends.
They name no font of another site. ``--check`` writes nothing and exits with 1 where one is stale.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, DIMMED_MONOKAI, TerminalTheme

from dlprof.report.sweep import sweep_report
from dlprof.report.terminal import Screen
from dlprof.store import read_run

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "img"
RUN = Path("examples/loader.dlprof.jsonl")
COMMAND = "dlprof sweep my_data.py:make_loader --step-time 40ms"
THEMES = {"light": DEFAULT_TERMINAL_THEME, "dark": DIMMED_MONOKAI}
_FONTS = re.compile(r"@font-face \{.*?\}\s*", flags=re.DOTALL)


def picture(theme: TerminalTheme) -> str:
    """The end of the sweep's screen, 80 columns wide, as SVG."""
    console = Console(
        record=True, file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor"
    )
    console.print(Screen(sweep_report(read_run(RUN))))
    return _FONTS.sub("", console.export_svg(title=COMMAND, theme=theme, unique_id="dlprof"))


def main() -> int:
    """Write or check both; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check: bool = parser.parse_args().check
    os.chdir(ROOT)  # the screen names the run file as it is given
    stale = []
    for name, theme in THEMES.items():
        path, drawn = FOLDER / f"sweep-{name}.svg", picture(theme)
        if not path.exists() or path.read_text(encoding="utf-8") != drawn:
            stale.append(path.relative_to(ROOT))
            if not check:
                path.write_text(drawn, encoding="utf-8")
    for path in stale:
        print(f"{path} {'is stale: make docs' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
