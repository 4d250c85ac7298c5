"""The predictions of ``real_data.py`` once more, beside a neighbour that keeps a core busy."""

from __future__ import annotations

import real_data


def main() -> None:
    """Calibrate, predict, measure; the options are those of ``real_data.py``."""
    real_data.main(real_data.BESIDE)


if __name__ == "__main__":
    main()
