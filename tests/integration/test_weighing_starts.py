"""A real dataset is weighed in a process of its own, and one worker started by each method."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dlprof.model.predict import first_batch_s
from dlprof.records import PIPE_BYTES, Config, DatasetWeight
from dlprof.records.codec import from_json
from dlprof.targets.grammar import parse_target
from dlprof.trial.protocol import BuildRequest
from dlprof.trial.runner import TrialRunner
from dlprof.trial.state import TrialLimits

CODE = """
import torch
from torch.utils.data import DataLoader, Dataset

class Records(Dataset):
    def __init__(self):
        self.records = [(number, str(number)) for number in range(50_000)]

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return torch.zeros(4)

def make_loader():
    return DataLoader(Records(), batch_size=4)
"""


@pytest.mark.slow
def test_starts_are_split_by_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weighed.py").write_text(CODE)
    bench = TrialRunner(
        BuildRequest(target=parse_target("weighed.py:make_loader")), directory=tmp_path
    )
    try:
        bench.build(TrialLimits(wall_s=300.0, stall_s=300.0, usable_cores=1.0))
        shown = bench.weigh(
            Config(num_workers=2), limit_s=60.0, left_s=290.0, starts=("own", "fork", "forkserver")
        )
    finally:
        bench.close()
    weight = from_json(DatasetWeight, shown["weight"])
    assert not weight.unavailable
    assert weight.heaviest is not None
    assert weight.heaviest.name == "records"
    assert weight.start_method == "fork"
    assert [each.method for each in weight.starts] == ["fork", "forkserver"]
    fork, server = weight.starts
    assert fork.sent_bytes == 0
    assert fork.phase("unpickle").cpu_s < server.phase("unpickle").cpu_s
    assert server.sent_bytes > PIPE_BYTES
    assert server.phase("imports").cpu_s > 0.1  # torch
    assert server.first_batch_s is not None
    assert server.first_batch_s > sum(each.cpu_s for each in server.phases[1:]) / 2
    # One after the other, however many cores there are.
    one, eight = (first_batch_s(server, count, cores=math.inf) for count in (1, 8))
    assert eight > 5 * one - 5 * server.phase("server").wall_s
