"""The documents' pictures, drawn from a saved run; ``--check`` says whether they are current."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME, TerminalTheme

from dlprof.report.screen import run_report
from dlprof.report.terminal import Screen
from dlprof.store import read_run

ROOT = Path(__file__).parents[1]
_RUN = ROOT / "examples" / "loader.dlprof.jsonl"
_COMMAND = "$ dlprof sweep my_data.py:make_loader --step-time 12ms"
_THEMES = {"dark": SVG_EXPORT_THEME, "light": DEFAULT_TERMINAL_THEME}
_WIDTH = 88


def picture(theme: TerminalTheme) -> str:
    """The answer of a recorded sweep as a terminal shows it."""
    console = Console(
        record=True,
        width=_WIDTH,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        markup=False,
        highlight=False,
        legacy_windows=False,
    )
    console.print(_COMMAND)
    console.print(Screen(run_report(read_run(str(_RUN.relative_to(ROOT))))), crop=False)
    return console.export_svg(title="dlprof", theme=theme, unique_id="dlprof")


def main() -> None:
    """Write the pictures, or compare them."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--check", action="store_true")
    check = options.parse_args().check
    for name, theme in _THEMES.items():
        path = ROOT / "docs" / "img" / f"sweep-{name}.svg"
        drawn = picture(theme)
        if not check:
            path.write_text(drawn, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != drawn:
            sys.exit(
                f"{path.relative_to(ROOT)} is not as the screen is now: python tools/pictures.py"
            )


if __name__ == "__main__":
    main()
