"""The picks of ``picks.py`` once more, made beside neighbours that come and go on the cores."""

from __future__ import annotations

import picks


def main() -> None:
    """Choose and judge; the options are those of ``picks.py``."""
    picks.main(beside=True)


if __name__ == "__main__":
    main()
