"""When trials may not be forked from the process that built the target."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlprof.trial.fork_server import fork_hazard


def _opened(directory: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (directory / str(number)).symlink_to(name)
    return directory


@pytest.mark.parametrize("driver", ["/dev/nvidiactl", "/dev/kfd", "/dev/dri/renderD128"])
def test_a_driver_that_was_started_does_not_survive_a_fork(tmp_path: Path, driver: str) -> None:
    hazard = fork_hazard(_opened(tmp_path, "/dev/null", "socket:[12]", driver))
    assert "torch.cuda.is_available()" in hazard


def test_other_files_are_no_hazard(tmp_path: Path) -> None:
    opened = _opened(tmp_path, "/dev/null", "pipe:[7]", "/home/me/nvidia.txt")
    assert fork_hazard(opened) == ""
    assert fork_hazard(tmp_path / "missing") == ""
