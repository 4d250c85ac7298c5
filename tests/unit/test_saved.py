"""The settings file: one for all machines, strict about what goes into a DataLoader."""

from __future__ import annotations

import dataclasses
import errno
import multiprocessing
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlprof.errors import FileError, UsageError
from dlprof.machine.inspection import fingerprint
from dlprof.records import (
    Config,
    Constraints,
    Estimate,
    Expected,
    Machine,
    Recommendation,
)
from dlprof.saved import kwargs_for, save_settings

GOLDEN = Path(__file__).parents[1] / "data" / "settings" / "two_machines.toml"

BOX = Machine(
    hostname="box",
    platform="Linux",
    cpu_model="Intel i9-9900K",
    logical_cpus=16,
    affinity_cpus=16,
    usable_cores=16.0,
    shm_bytes=16 * 1024**3,
    fingerprint="i9-9900k 16c",
)
SERVER = dataclasses.replace(
    BOX, hostname="server", cpu_model="Xeon 8168", usable_cores=12.0, fingerprint="xeon-8168"
)
EIGHT = Config(num_workers=8, prefetch_factor=4, pin_memory=True, persistent_workers=True)


def recommendation(config: Config = EIGHT, **changes: Any) -> Recommendation:
    return Recommendation(
        config=config,
        dataloader_kwargs=changes.pop("dataloader_kwargs", config.dataloader_kwargs()),
        expected=Expected(samples_per_s=Estimate(value=1234.5678), pss_bytes=900_000_000),
        confidence="high",
        confidence_reason="Three repeats.",
        **changes,
    )


def save(
    path: Path,
    *,
    machine: Machine = BOX,
    config: Config = EIGHT,
    target: str = "train.py:data",
    when: str = "2026-01-05T10:00:00Z",
    notes: Sequence[str] = (),
) -> None:
    save_settings(path, machine, recommendation(config), target, when=when, notes=notes)


def refuse(text: str) -> None:
    pytest.fail(f"warned: {text}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dlprof.toml"


def test_what_was_saved_is_found_again(path: Path) -> None:
    save(path)
    assert kwargs_for(path, machine=BOX, warn=refuse) == EIGHT.dataloader_kwargs()
    assert kwargs_for(str(path), machine=BOX, target="train.py:data", warn=refuse) == (
        EIGHT.dataloader_kwargs()
    )


def test_one_file_serves_two_machines(path: Path) -> None:
    save(path)
    save(path, machine=SERVER, config=Config(num_workers=0), when="2026-01-06T10:00:00Z")
    assert kwargs_for(path, machine=BOX, warn=refuse)["num_workers"] == 8
    assert kwargs_for(path, machine=SERVER, warn=refuse) == {
        "num_workers": 0,
        "pin_memory": False,
    }
    assert path.read_text() == GOLDEN.read_text()


def test_the_recorded_file_reads() -> None:
    assert kwargs_for(GOLDEN, machine=BOX, warn=refuse) == EIGHT.dataloader_kwargs()


def test_saving_again_replaces_only_that_entry(path: Path) -> None:
    save(path)
    save(path, machine=SERVER)
    save(path, config=Config(num_workers=2))
    assert kwargs_for(path, machine=BOX, warn=refuse)["num_workers"] == 2
    assert kwargs_for(path, machine=SERVER, warn=refuse)["num_workers"] == 8


def test_saving_keeps_what_people_wrote_and_warns_of_the_data_once(path: Path) -> None:
    save(path, notes=["Workers yield the same samples."])
    mine = "# why: it swaps with more\nnum_workers = 8 # tried"
    path.write_text("# ours\n" + path.read_text().replace("num_workers = 8", mine))
    save(path, config=Config(num_workers=2), notes=["An epoch ends early."])
    text = path.read_text()
    assert text.startswith("# ours\n# Settings for torch")
    assert "\n# dlprof: An epoch ends early.\n# why: it swaps with more\n" in text
    assert "num_workers = 2 # tried" in text
    assert "Workers yield" not in text
    assert "prefetch_factor = 4" not in text
    assert kwargs_for(path, machine=BOX, warn=refuse)["num_workers"] == 2


def test_a_file_that_can_not_be_added_to_without_loss_is_left_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object) -> str:
        raise ValueError

    save(path)
    before = path.read_text()
    monkeypatch.setattr("dlprof.tomledit.revised_toml", lose)
    with pytest.raises(FileError, match="without losing some of it") as caught:
        save(path, machine=SERVER)
    assert caught.value.hint
    assert path.read_text() == before


def test_a_machine_keeps_several_targets(path: Path) -> None:
    save(path, target="images", when="2026-01-07T10:00:00Z")
    save(path, target="voc", config=Config(num_workers=2), when="2026-01-06T10:00:00Z")
    assert kwargs_for(path, machine=BOX, target="voc", warn=refuse)["num_workers"] == 2
    warned: list[str] = []
    assert kwargs_for(path, machine=BOX, warn=warned.append)["num_workers"] == 8
    assert "2 targets" in warned[0]
    assert "'images'" in warned[0]


@pytest.mark.parametrize(
    ("changes", "workers"),
    [
        ({"usable_cores": 16.0}, 4),
        ({"usable_cores": 2.5}, 2),
        ({"usable_cores": 1.0}, 0),
        ({"usable_cores": 0.5}, 0),
        ({"usable_cores": 16.0, "shm_bytes": 64 * 1024**2}, 0),
        ({"usable_cores": 16.0, "shm_bytes": None}, 4),
    ],
)
def test_an_unknown_machine_gets_a_warning_and_a_safe_default(
    path: Path, changes: dict[str, Any], workers: int
) -> None:
    save(path)
    stranger = dataclasses.replace(BOX, hostname="new", fingerprint="new", **changes)
    warned: list[str] = []
    assert kwargs_for(path, machine=stranger, warn=warned.append) == {"num_workers": workers}
    assert "no settings for this machine (new)" in warned[0]
    assert f"num_workers={workers}" in warned[0]
    assert "dlprof sweep" in warned[0]


@pytest.mark.parametrize(("ranks", "workers"), [("1", 4), ("4", 4), ("5", 3), ("8", 2), ("16", 0)])
def test_a_rank_without_settings_counts_on_its_share_of_the_cores(
    path: Path, monkeypatch: pytest.MonkeyPatch, ranks: str, workers: int
) -> None:
    save(path)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    stranger = dataclasses.replace(BOX, hostname="new", fingerprint="new")
    found = kwargs_for(path, machine=stranger, warn=lambda _: None)
    assert found == {"num_workers": workers}


def on_cores(cores: float, **changes: Any) -> Machine:
    """A machine with that share of a node's cores, under the name that such a one has."""
    node = dataclasses.replace(BOX, logical_cpus=64, memory_bytes=1 << 38, **changes)
    key = fingerprint(
        cpu_model=node.cpu_model,
        usable_cores=cores,
        logical_cpus=64,
        memory_bytes=node.memory_bytes,
        gpus=(),
    )
    return dataclasses.replace(node, usable_cores=cores, fingerprint=key)


def test_a_rank_on_its_share_of_the_cores_has_what_all_ranks_measured(path: Path) -> None:
    """As by srun with --cpus-per-task, which binds each task."""
    eight = recommendation(constraints=Constraints(ranks=8))
    save_settings(path, on_cores(64.0), eight, "train.py:data", when="2026-01-05T10:00:00Z")
    expected = EIGHT.dataloader_kwargs()
    for cores in (64.0, 8.0):  # as torchrun leaves them, and as srun binds them
        assert kwargs_for(path, machine=on_cores(cores), warn=refuse) == expected
    warned: list[str] = []
    kwargs_for(path, machine=on_cores(16.0), warn=warned.append)
    kwargs_for(path, machine=on_cores(8.0, cpu_model="another"), warn=warned.append)
    assert len(warned) == 2


def test_an_unknown_target_gets_a_warning_and_a_safe_default(path: Path) -> None:
    save(path)
    with pytest.warns(UserWarning, match="no settings for 'other' on this machine") as caught:
        assert kwargs_for(path, machine=BOX, target="other") == {"num_workers": 4}
    assert caught[0].filename == __file__


def test_this_machine_is_looked_at_where_none_is_given(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(path)
    monkeypatch.setattr("dlprof.machine.inspect_machine", lambda: BOX)
    assert kwargs_for(path, warn=refuse)["num_workers"] == 8


def test_each_call_gives_a_dict_of_its_own(path: Path) -> None:
    save(path)
    kwargs_for(path, machine=BOX).clear()
    assert kwargs_for(path, machine=BOX)


def test_settings_beside_dataloader_are_kept_for_people(path: Path) -> None:
    config = dataclasses.replace(
        EIGHT, sharing_strategy="file_system", worker_threads=2, start_method="spawn"
    )
    asked = recommendation(config, constraints=Constraints(ranks=8))
    save_settings(path, BOX, asked, "images", when="")
    text = path.read_text()
    for line in ('sharing_strategy = "file_system"', "worker_threads = 2", "ranks = 8"):
        assert line in text
    kwargs = kwargs_for(path, machine=BOX, warn=refuse)
    assert kwargs == config.dataloader_kwargs()
    assert kwargs["multiprocessing_context"] == "spawn"


@pytest.mark.parametrize("kwargs", [{"dataset": 1}, {"num_workers": "8"}, {"num_workers": -1}])
def test_a_recommendation_of_other_arguments_is_not_saved(
    path: Path, kwargs: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="can't be saved"):
        save_settings(path, BOX, recommendation(dataloader_kwargs=kwargs), "images", when="")
    assert not path.exists()


# Names may hold anything that a host or a path may hold; surrogates stand for other bytes.
NAMES = st.text(max_size=20) | st.text(st.characters(categories=["Cs", "Cc"]), max_size=3)


@pytest.mark.slow
@given(hostname=NAMES, cpu=NAMES, fingerprint=st.text(), target=st.text(), when=NAMES)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_names_come_back(
    path: Path, hostname: str, cpu: str, fingerprint: str, target: str, when: str
) -> None:
    machine = dataclasses.replace(BOX, hostname=hostname, cpu_model=cpu, fingerprint=fingerprint)
    path.unlink(missing_ok=True)
    save(path, machine=machine, target=target, when=when)
    found = kwargs_for(path, machine=machine, target=target, warn=refuse)
    assert found == EIGHT.dataloader_kwargs()


# Bad files


ENTRY = '[machine.a]\nhostname = "a"\n[machine.a.target.x]\nnum_workers = 2\n'


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("version = 2", "written by a newer dlprof"),
        ("version = 0", "version must be a whole number from 1"),
        ("version = '1'", "not '1'"),
        ("version = true", "not True"),
        ("[project]\nname = 'x'", "project is not a known key"),
        ("machine = 3", "machine must be a table, not 3"),
        ("[machine]\na = 3", "machine.a must be a table, not 3"),
        ("[machine.a]\ntarget = 3", "machine.a.target must be a table, not 3"),
        ("[machine.a]\nhost = 'x'", "machine.a.host is not a known key"),
        ("[machine.a]\nhostname = 3", "machine.a.hostname must be a text, not 3"),
        ("[machine.a]\nusable_cores = nan", "machine.a.usable_cores must be a number, not nan"),
        ("[machine.a.target]\nx = 3", "machine.a.target.x must be a table, not 3"),
        ('[machine."a b".target.x]\nnum_workers = -1', 'machine."a b".target.x.num_workers'),
        ("[machine.a.target.x]\npin_memory = true", "machine.a.target.x.num_workers is missing"),
        (
            ENTRY + "prefetch_factor = 0",
            "prefetch_factor must be a whole number from 1 to 1000000000, not 0",
        ),
        (ENTRY + "prefetch_factor = 2.0", "not 2.0"),
        (ENTRY + "pin_memory = 1", "pin_memory must be true or false, not 1"),
        (ENTRY + "batch_size = 0", "batch_size must be a whole number"),
        (
            ENTRY + "multiprocessing_context = 'thread'",
            "multiprocessing_context must be fork or spawn or forkserver, not 'thread'",
        ),
        (ENTRY + "collate_fn = 'os:system'", "collate_fn is not a known key"),
        (ENTRY + "worker_init_fn = 'x'", "worker_init_fn is not a known key"),
        (ENTRY + "expected = { samples_per_s = inf }", "expected must be a table of numbers, not"),
        (ENTRY + "expected = { samples_per_s = 'x' }", "expected must be a table of numbers, not"),
        (
            ENTRY.replace("= 2", "= 4097"),
            "num_workers must be a whole number from 0 to 4096, not 4097",
        ),
        (ENTRY.replace("= 2", "= 0") + "prefetch_factor = 2", "needs a num_workers above 0"),
        (ENTRY.replace("= 2", "= 0") + "persistent_workers = true", "needs a num_workers above 0"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(path: Path, text: str, fault: str) -> None:
    path.write_text(text)
    with pytest.raises(FileError) as caught:
        kwargs_for(path, machine=BOX)
    assert str(path) in caught.value.message
    assert fault in caught.value.message
    assert caught.value.hint
    with pytest.raises(FileError):
        save(path)
    assert path.read_text() == text


def test_a_close_key_is_suggested(path: Path) -> None:
    path.write_text(ENTRY + "prefetch_factors = 2")
    with pytest.raises(FileError) as caught:
        kwargs_for(path, machine=BOX)
    assert caught.value.hint.startswith("Did you mean prefetch_factor?")


def test_a_file_edited_by_hand_reads(path: Path) -> None:
    path.write_text(f"[machine.{'x'}.target.images]\nnum_workers = 3\n")
    machine = dataclasses.replace(BOX, fingerprint="x")
    assert kwargs_for(path, machine=machine, warn=refuse) == {"num_workers": 3}


def test_an_empty_file_knows_no_machine(path: Path) -> None:
    path.write_text("")
    warned: list[str] = []
    kwargs_for(path, machine=BOX, warn=warned.append)
    assert len(warned) == 1
    save(path)
    assert kwargs_for(path, machine=BOX, warn=refuse)


def test_a_missing_file_is_a_sentence(path: Path) -> None:
    with pytest.raises(FileError, match="There is no file"):
        kwargs_for(path, machine=BOX)


@given(st.binary(max_size=200))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_content_makes_reading_fail_in_another_way(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kwargs = kwargs_for(path, machine=BOX)
        except FileError:
            kwargs = {"num_workers": 4}
    assert kwargs == {"num_workers": 4}


# Writing


def test_a_folder_or_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is a folder"):
        save(tmp_path)
    with pytest.raises(FileError, match="There is no folder"):
        save(tmp_path / "missing" / "dlprof.toml")


def test_a_full_disk_keeps_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(path)
    before = path.read_text()

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FileError, match="disk is full"):
        save(path, machine=SERVER)
    assert path.read_text() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_link_and_permissions_are_kept(path: Path) -> None:
    save(path)
    path.chmod(0o640)
    link = path.parent / "link.toml"
    link.symlink_to(path)
    save(link, machine=SERVER)
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert kwargs_for(path, machine=SERVER, warn=refuse)


def _save_some(path: Path, number: int) -> None:
    for turn in range(5):
        name = f"machine-{number}-{turn}"
        save(path, machine=dataclasses.replace(BOX, hostname=name, fingerprint=name))


def test_two_processes_that_save_at_once_lose_nothing(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    savers = [context.Process(target=_save_some, args=(path, number)) for number in range(2)]
    for saver in savers:
        saver.start()
    for saver in savers:
        saver.join()
    assert [saver.exitcode for saver in savers] == [0, 0]
    for number in range(2):
        for turn in range(5):
            machine = dataclasses.replace(BOX, fingerprint=f"machine-{number}-{turn}")
            assert kwargs_for(path, machine=machine, warn=refuse)
