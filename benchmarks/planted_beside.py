"""The planted causes of ``planted.py`` once more, beside a neighbour that keeps a core busy."""

from __future__ import annotations

import planted


def main() -> None:
    """Plant, profile, count; the options are those of ``planted.py``."""
    planted.main(beside=True)


if __name__ == "__main__":
    main()
