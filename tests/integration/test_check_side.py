"""One side of a check: a real process, and loaders that are not as most are."""

from __future__ import annotations

import contextlib
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dlprof import trial
from dlprof.records import Config
from dlprof.records.gate import Block, Series
from dlprof.targets.grammar import parse_target
from dlprof.trial.protocol import BlockRequest, BuildRequest
from dlprof.trial.side import SidePlace, SideProcess

TARGETS = '''
import os, queue, threading, time
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

class LastOnly(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        if worker.id == worker.num_workers - 1:
            yield from torch.arange(18)

def last_only():
    return DataLoader(LastOnly(), batch_size=2, num_workers=2)

class LoadsAhead:
    """Not a DataLoader: its thread loads ahead, whoever asks."""

    def __init__(self):
        self.queue = queue.Queue(64)
        threading.Thread(target=self.fill, daemon=True).start()

    def fill(self):
        while True:
            time.sleep(0.005)
            self.queue.put(torch.zeros(2))

    def __iter__(self):
        while True:
            yield self.queue.get()

class AsksAhead:
    """Made around a DataLoader, and asks for one batch more, as accelerate's loaders do."""

    def __init__(self):
        self.loader = DataLoader(torch.arange(64), batch_size=2)

    def __iter__(self):
        batches = iter(self.loader)
        ready = next(batches)
        for batch in batches:
            yield ready
            ready = batch
        yield ready

class Asks(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return input()

def asks():
    return DataLoader(Asks())

def spawned():
    return DataLoader(torch.arange(64), num_workers=1, multiprocessing_context="spawn")

class AsItIs(DataLoader):
    """Takes no settings, so that it can't be made again."""

    def __init__(self):
        workers = dict(num_workers=1, persistent_workers=True)
        super().__init__(torch.arange(64), batch_size=2, **workers)

AS_IT_IS = AsItIs()

class Leaves(Dataset):
    """Ends its process, and leaves one behind that has the same files open."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        forking = threading.Thread(target=lambda: os.fork() or time.sleep(3600))
        forking.start()
        time.sleep(0.5)
        os._exit(3)

def leaves():
    return DataLoader(Leaves())
'''


@contextlib.contextmanager
def opened(
    folder: Path, name: str, library: Path = Path(trial.__file__).parents[2], **place: Any
) -> Iterator[SideProcess]:
    """A side with its loader made."""
    (folder / "targets.py").write_text(TARGETS)
    request = BuildRequest(target=parse_target(f"targets.py:{name}"))
    lies = SidePlace(directory=folder, **place)
    side = SideProcess("change", request, lies, library=library, logs=folder)
    with contextlib.closing(side):
        built = side.build(60.0)
        side.open(built.target.own_config or Config(), 60.0)
        yield side


def block(side: SideProcess, batches: int, series: Series = "load") -> Block:
    side.order(BlockRequest(batches=batches, series=series))
    return side.collect(20.0)[0]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="as environments are on Unix")
def test_an_environment_inside_of_the_checkout_serves_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a directory for temporary files, where dlprof is found, also by spawned workers."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    checkout, base = tmp_path / "checkout", tmp_path / "base"
    venv.create(checkout / ".venv", with_pip=False, symlinks=True)
    packages = next((checkout / ".venv").glob("lib/*/site-packages"))
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if "dlprof" not in each.name:
            (packages / each.name).symlink_to(each)
    library = checkout / "tmp"
    for folder in (base, library):
        folder.mkdir()
    (library / "dlprof").symlink_to(Path(trial.__file__).parents[1])
    python, moved = str(checkout / ".venv" / "bin" / "python"), ((str(checkout), str(base)),)
    with opened(base, "spawned", python=python, moved=moved, library=library) as side:
        assert block(side, 4).failure == ""


@pytest.mark.slow
def test_a_block_may_end_where_the_next_worker_has_no_data(tmp_path: Path) -> None:
    """Of two workers the second alone has data; an epoch holds nine batches."""
    with opened(tmp_path, "last_only") as side:
        for batches in (9, 10, 11):
            made = block(side, batches)
            assert (made.failure, sum(made.samples)) == ("", 2 * batches)


@pytest.mark.slow
def test_what_is_loaded_ahead_is_loaded_in_the_sides_own_turn(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    with opened(tmp_path, "LoadsAhead") as side:
        block(side, 80)  # which empties the queue
        time.sleep(0.5)  # the other side's turn
        made = block(side, 20)
        assert sum(made.service_s) > 0.03  # of 0.1
        (process,) = set(psutil.Process().children()) - before
        began_s = time.monotonic()
    assert not process.is_running()
    assert time.monotonic() - began_s < 60  # on a machine of any speed: its thread never ends


@pytest.mark.slow
def test_stages_are_known_through_what_asks_for_one_batch_ahead(tmp_path: Path) -> None:
    with opened(tmp_path, "AsksAhead") as side:
        assert set(block(side, 8).stages_s) == {"fetch", "collate"}
        assert len(block(side, 40).service_s) == 40  # an epoch's end in the middle


@pytest.mark.slow
def test_code_that_asks_for_input_gets_none(tmp_path: Path) -> None:
    with opened(tmp_path, "asks") as side:
        assert "EOFError" in block(side, 4).failure


@pytest.mark.slow
def test_a_loader_that_can_not_be_made_again_is_not_started_and_loads_on(tmp_path: Path) -> None:
    with opened(tmp_path, "AS_IT_IS") as side:
        block(side, 8)
        made = block(side, 8, "start")
        assert (made.failure, made.startup_s) == ("", None)
        assert len(block(side, 8).service_s) == 8


@pytest.mark.slow
def test_a_worker_that_ends_between_blocks_is_named_in_the_next(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    with opened(tmp_path, "last_only") as side:
        block(side, 8)
        (process,) = set(psutil.Process().children()) - before
        process.children()[0].kill()
        time.sleep(0.5)
        assert "killed by signal" in block(side, 8).failure
        assert block(side, 8).failure == ""


@pytest.mark.slow
def test_the_end_of_a_side_is_seen_though_another_process_holds_its_pipes(tmp_path: Path) -> None:
    with opened(tmp_path, "leaves") as side:
        assert "exit code 3" in block(side, 4).failure
