"""Run files: what was written comes back, whatever happens to the file on the way."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlprof import records
from dlprof.errors import FileError
from dlprof.records import (
    Alternative,
    Config,
    Constraints,
    Cost,
    Estimate,
    Expected,
    Failure,
    GpuInfo,
    GpuUsage,
    LeftOut,
    Machine,
    Reason,
    Recommendation,
    RuleOfThumb,
    Run,
    RunEnd,
    RunHeader,
    Target,
    Trial,
    Usage,
)
from dlprof.store import (
    MismatchError,
    RunWriter,
    check_output,
    from_json,
    read_run,
    to_json,
)
from dlprof.store import format as run_format

GOLDEN = Path(__file__).parents[1] / "data" / "runs" / "golden.dlprof.jsonl"

MACHINE = Machine(
    hostname="box",
    platform="Linux 6.1",
    cpu_model="Intel(R) Core(TM) i9-9900K CPU @ 3.60GHz",
    logical_cpus=16,
    physical_cores=8,
    affinity_cpus=16,
    quota_cores=None,
    usable_cores=16.0,
    memory_bytes=34359738368,
    memory_available_bytes=30064771072,
    shm_bytes=17179869184,
    shm_available_bytes=17179869184,
    open_files_limit=1024,
    numa_nodes=1,
    gpus=(
        GpuInfo(
            index=0,
            name="NVIDIA GeForce RTX 2080 Ti",
            uuid="GPU-5e1f",
            memory_bytes=11811160064,
            pcie_generation=3,
            pcie_width=16,
        ),
    ),
    fingerprint="i9-9900k-16c-32g-2080ti",
    unavailable={"memory_limit_bytes": "no cgroup sets a limit"},
)
HEADER = RunHeader(
    schema_version=1,
    run_id="6f0e1c52",
    started_at="2026-01-05T10:00:00Z",
    dlprof_version="0.1.0",
    torch_version="2.13.0",
    python_version="3.11.7",
    machine=MACHINE,
    target=Target(
        spec="train.py:make_dataset",
        arguments={"root": "/data"},
        kind="map",
        dataset="train.Photographs",
        length=50000,
        batches_per_epoch=1563,
        batch_size=32,
        sampler="RandomSampler",
        import_s=3.2,
        notes=("batch_size taken as 32",),
    ),
    settings={"budget_s": 90.0, "num_workers": [0, 8], "pin_memory": None},
    left_out=(LeftOut(setting="num_workers=64", reason="would need 3 GiB of shared memory"),),
)
PLAIN = Config(num_workers=0)
EIGHT = Config(num_workers=8, prefetch_factor=2, pin_memory=True, persistent_workers=True)
TRIALS = (
    Trial(
        id="t0001",
        config=PLAIN,
        repetition=0,
        outcome="completed",
        samples_per_s=Estimate(value=310.5, low=301.0, high=320.0),
        batches_per_s=Estimate(value=9.7),
        startup_s=0.04,
        usage=Usage(
            own_cpu_cores=1.0,
            other_cpu_cores=0.25,
            gpu=(
                GpuUsage(
                    index=0,
                    name="NVIDIA GeForce RTX 2080 Ti",
                    uuid="GPU-5e1f",
                    kernel_active_fraction=0.5,
                    unavailable={"pcie_rx_bytes_per_s": "the driver does not tell"},
                ),
            ),
        ),
        unavailable={"wait_fraction": "no step was stated"},
        started_at="2026-01-05T10:00:04Z",
        measured_s=1.5,
        wall_s=1.7,
        window_batches=15,
    ),
    Trial(
        id="t0002",
        config=EIGHT,
        repetition=0,
        outcome="crashed",
        failure=Failure(
            kind="worker_exception",
            message="A worker raised KeyError",
            hint="Correct __getitem__.",
            stderr_tail="\x1b[31mKeyError: 'größe'\x1b[0m \udce4",
        ),
        noisy=True,
        warnings=("Other processes took 3 of 16 cores",),
    ),
)
EXPECTED = Expected(samples_per_s=Estimate(value=310.5, low=301.0, high=320.0), pss_bytes=900000000)
RECOMMENDATION = Recommendation(
    config=PLAIN,
    dataloader_kwargs={"num_workers": 0, "pin_memory": False},
    expected=EXPECTED,
    confidence="low",
    confidence_reason="One repeat only.",
    reasons=(Reason(claim="num_workers=8 failed", evidence={"trials": ["t0002"], "ratio": 2.5}),),
    alternatives=(Alternative(config=PLAIN, expected=EXPECTED, relation="default", speed=1.0),),
    constraints=Constraints(max_workers=8, step_s=0.012),
    rules_of_thumb=(RuleOfThumb(name="num_workers = cores", config=EIGHT, unavailable="failed"),),
)
END = RunEnd(
    ended_at="2026-01-05T10:00:09Z",
    reason="decided",
    cost_s=Cost(measured=1.5, overhead=1.0, total=2.5),
)
RUN = Run(path="", header=HEADER, trials=TRIALS, recommendation=RECOMMENDATION, end=END)


def pathless(run: Run) -> Run:
    return dataclasses.replace(run, path="")


def write(path: Path, run: Run = RUN) -> Path:
    with RunWriter.create(path, run.header) as writer:
        for record in (*run.trials, run.recommendation, run.end):
            if record is not None:
                writer.append(record)
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return write(tmp_path / "a.dlprof.jsonl")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def header_line(**changes: object) -> bytes:
    return json.dumps({"record": "run", **to_json(HEADER), **changes}).encode() + b"\n"


# What is written and read


def test_the_golden_file_still_reads() -> None:
    run = read_run(GOLDEN)
    assert pathless(run) == RUN
    assert run.path == str(GOLDEN)


def test_the_golden_file_is_still_written(saved: Path) -> None:
    assert saved.read_bytes() == GOLDEN.read_bytes()


def test_each_line_is_one_record_in_ascii(saved: Path) -> None:
    kinds = [line["record"] for line in lines(saved)]
    assert kinds == ["run", "trial", "trial", "recommendation", "end"]
    assert saved.read_bytes().isascii()


def test_json_has_the_contracts_shape() -> None:
    trial = to_json(TRIALS[0])
    assert trial["samples_per_s"] == {"value": 310.5, "low": 301.0, "high": 320.0}
    assert trial["config"]["num_workers"] == 0
    assert trial["warnings"] == []
    assert trial["unavailable"] == {"wait_fraction": "no step was stated"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_not_finite_is_refused(tmp_path: Path, value: float) -> None:
    trial = dataclasses.replace(TRIALS[0], startup_s=value)
    with pytest.raises(ValueError, match="only finite"):
        to_json(trial)
    path = tmp_path / "a.dlprof.jsonl"
    with RunWriter.create(path, HEADER) as writer, pytest.raises(ValueError, match="only finite"):
        writer.append(trial)
    assert read_run(path).trials == ()


@pytest.mark.parametrize("value", [object(), {1: 2}, {1, 2}, Trial])
def test_a_value_that_json_does_not_know_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        to_json(value)


def test_only_records_of_a_run_are_encoded() -> None:
    with pytest.raises(TypeError, match="no record of a run file"):
        run_format.encode_line(PLAIN)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)
PLAIN_STRATEGIES: Mapping[Any, st.SearchStrategy[Any]] = {
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    str: st.text(max_size=5),
    Any: JSON_VALUES,
}


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a record's type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        fields = {field.name: strategy(hints[field.name]) for field in dataclasses.fields(hint)}
        make: Any = hint
        return st.builds(make, **fields)
    if origin is types.UnionType:
        return st.none() | strategy(arguments[0])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(strategy(arguments[0]), max_size=2).map(tuple)
    if arguments:
        return st.dictionaries(st.text(max_size=5), strategy(arguments[1]), max_size=2)
    return PLAIN_STRATEGIES[hint]


@given(strategy(RunHeader) | strategy(Trial) | strategy(Recommendation) | strategy(RunEnd))
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_every_record_comes_back(record: RunHeader | Trial | Recommendation | RunEnd) -> None:
    data = run_format.decode_line(run_format.encode_line(record))
    back: object = from_json(type(record), data)
    assert back == record


def test_unknown_kinds_and_fields_are_ignored(saved: Path) -> None:
    content = lines(saved)
    content[1]["not_yet_known"] = {"deep": [1]}
    content[1]["config"]["not_yet_known"] = 1
    content.insert(2, {"record": "calibration", "anything": 1})
    saved.write_text("".join(json.dumps(line) + "\n" for line in content))
    assert pathless(read_run(saved)) == RUN


def test_missing_fields_take_their_default() -> None:
    assert from_json(Config, {"num_workers": 2}) == Config(num_workers=2)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ([], "is not an object"),
        ({"num_workers": "2"}, "num_workers is not a whole number"),
        ({"num_workers": 2.5}, "num_workers is not a whole number"),
        ({"num_workers": True}, "num_workers is not a whole number"),
        ({"num_workers": None}, "num_workers is not a whole number"),
        ({"pin_memory": 1}, "pin_memory is neither true nor false"),
        ({"start_method": 1}, "start_method is not a text"),
    ],
)
def test_a_value_of_another_type_is_refused(data: object, fault: str) -> None:
    with pytest.raises(MismatchError, match=f"^{fault}$"):
        from_json(Config, data)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"samples_per_s": {"value": "x"}}, "samples_per_s.value is not a number"),
        ({"samples_per_s": {"value": 10**400}}, "samples_per_s.value is not a finite number"),
        ({"samples_per_s": {}}, "samples_per_s.value is missing"),
        ({"outcome": "won"}, "outcome is none of completed, crashed"),
        ({"outcome": ["completed"]}, "outcome is none of completed, crashed"),
        ({"warnings": "x"}, "warnings is not a list"),
        ({"unavailable": []}, "unavailable is not an object"),
        ({"usage": {"gpu": [{"index": 0}]}}, "usage.gpu.name is missing"),
    ],
)
def test_a_fault_is_named_with_the_way_to_it(change: Mapping[str, object], fault: str) -> None:
    with pytest.raises(MismatchError) as caught:
        from_json(Trial, to_json(TRIALS[0]) | change)
    assert str(caught.value).startswith(fault)


def test_whole_numbers_that_others_wrote_as_floats_are_read() -> None:
    config = from_json(Config, {"num_workers": 2.0})
    assert config.num_workers == 2
    assert isinstance(config.num_workers, int)


# Files that are cut, damaged or no run files


def test_a_file_cut_at_any_byte_reads_as_far_as_it_goes(saved: Path) -> None:
    whole = saved.read_bytes()
    ends = [index for index, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole) - 1, -1, -1):
        os.truncate(saved, size)
        if size < ends[0]:
            with pytest.raises(FileError, match="is not a run file"):
                read_run(saved)
            continue
        run = read_run(saved)
        # A record is whole with its last brace; the line end is not missed.
        complete = sum(size >= end for end in ends)
        assert run.header == HEADER
        assert run.trials == TRIALS[: min(complete - 1, 2)]
        assert (run.recommendation is not None) == (complete >= 4)
        assert (run.end is not None) == (complete >= 5)
        assert run.truncated == (size not in ends and size - 1 not in ends)


@given(st.data())
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_flipped_bit_gives_a_run_or_a_sentence(saved: Path, data: st.DataObject) -> None:
    content = bytearray(GOLDEN.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    saved.write_bytes(content)
    try:
        run = read_run(saved)
    except FileError as error:
        assert str(saved) in error.message  # noqa: PT017 -- both ends are right here
    else:
        assert isinstance(run, Run)


@given(st.binary() | st.text().map(str.encode) | JSON_VALUES.map(lambda v: json.dumps(v).encode()))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_anything_else_is_not_a_run_file(saved: Path, content: bytes) -> None:
    saved.write_bytes(content)
    with pytest.raises(FileError, match="is not a run file") as caught:
        read_run(saved)
    assert "dlprof sweep" in caught.value.hint


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        b"[" * 100_000 + b"\n",
        b'{"record": "trial"}\n',
        b'{"record": "run"}\n',
        b'{"record": "run", "schema_version": "1"}\n',
        b'{"record": "run", "schema_version": 0}\n',
        b'{"record": "run", "schema_version": 1}\n',
        b'{"record": 1}\n',
        b"\x1f\x8b\x08\x00",
        header_line(run_id=1),
        header_line(settings={"x": math.nan}),
        header_line(settings={"x": math.inf}),
        header_line(settings=0).replace(b'"settings": 0', b'"settings": {"x": 1e999}'),
        header_line(settings=0).replace(
            b'"settings": 0', b'"settings": {"x": ' + b"9" * 5000 + b"}"
        ),
    ],
)
def test_a_file_without_a_right_header_is_not_a_run_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.dlprof.jsonl"
    path.write_bytes(content)
    with pytest.raises(FileError, match="is not a run file"):
        read_run(path)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"{nonsense}\n", "it is not JSON"),
        (b"[1]\n", "it is not a record"),
        (b'{"id": "t0001"}\n', "it is not a record"),
        (b'{"record": "trial"}\n', "id is missing"),
        (header_line(), "it begins a second run"),
        (b'{"record": "later", "x": NaN}\n', "it is not JSON"),
    ],
)
def test_a_damaged_line_is_named(saved: Path, line: bytes, fault: str) -> None:
    content = saved.read_bytes().splitlines(keepends=True)
    saved.write_bytes(b"".join([*content[:2], line, *content[2:]]))
    with pytest.raises(FileError) as caught:
        read_run(saved)
    assert caught.value.message == f"Line 3 of {saved} is damaged: {fault}"
    saved.write_bytes(b"".join(content))
    assert pathless(read_run(saved)) == RUN


def test_a_huge_line_is_refused_without_reading_it_all(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlprof.store.reading.MAX_LINE_BYTES", 10_000)
    saved.write_bytes(saved.read_bytes() + b'{"record": "' + b"x" * 20_000)
    with pytest.raises(FileError, match=r"Line 6 .* longer than 10000 bytes"):
        read_run(saved)
    saved.write_bytes(b"{" * 20_000)
    with pytest.raises(FileError, match="is not a run file"):
        read_run(saved)


def test_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.dlprof.jsonl"
    path.write_bytes(header_line(schema_version=7, machine="of another form"))
    with pytest.raises(FileError, match=r"newer dlprof \(schema 7; this one reads up to 1\)"):
        read_run(path)


def test_an_older_version_is_brought_up_step_by_step(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trial_ids(prefix: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        def migrate(line: dict[str, Any]) -> dict[str, Any]:
            return line | {"id": prefix + line["id"]} if line["record"] == "trial" else line

        return migrate

    monkeypatch.setattr(records, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(run_format, "MIGRATIONS", {1: trial_ids("b"), 2: trial_ids("c")})
    assert [trial.id for trial in read_run(saved).trials] == ["cbt0001", "cbt0002"]


def test_what_is_not_a_plain_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="There is no file"):
        read_run(tmp_path / "missing")
    with pytest.raises(FileError, match="is a folder"):
        read_run(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="is not a plain file"):
        read_run(str(tmp_path / "pipe"))


def test_an_unreadable_file_is_a_sentence(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(FileError, match="can't be read: Permission denied"):
        read_run(saved)


def test_ten_thousand_trials_read(tmp_path: Path) -> None:
    path = tmp_path / "long.dlprof.jsonl"
    path.write_bytes(header_line() + run_format.encode_line(TRIALS[0]) * 10_000)
    assert len(read_run(path).trials) == 10_000


# Creating


def test_an_existing_file_is_kept_without_force(saved: Path) -> None:
    before = saved.read_bytes()
    with pytest.raises(FileError, match="already exists") as caught:
        RunWriter.create(saved, HEADER)
    assert "--resume" in caught.value.hint
    assert "--force" in caught.value.hint
    assert saved.read_bytes() == before


def test_force_replaces_an_existing_file(saved: Path) -> None:
    with RunWriter.create(saved, HEADER, force=True) as writer:
        writer.append(TRIALS[1])
    assert read_run(saved).trials == TRIALS[1:]
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_force_keeps_the_old_file_if_the_new_one_cannot_be_written(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(FileError, match="disk is full"):
        RunWriter.create(saved, HEADER, force=True)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_force_writes_through_a_link(saved: Path) -> None:
    link = saved.parent / "link"
    link.symlink_to(saved)
    RunWriter.create(link, HEADER, force=True).close()
    assert link.is_symlink()
    assert read_run(saved).trials == ()


def test_force_creates_what_is_not_there(tmp_path: Path) -> None:
    RunWriter.create(tmp_path / "new", HEADER, force=True).close()
    assert read_run(tmp_path / "new").header == HEADER


@pytest.mark.parametrize("force", [False, True])
def test_a_path_that_cannot_be_a_file_is_refused(tmp_path: Path, *, force: bool) -> None:
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    for path, fault in (
        (tmp_path, "is a folder"),
        (tmp_path / "pipe", "is not a plain file"),
        (tmp_path / "missing" / "a", "There is no folder"),
        (tmp_path / "file" / "a", "is not a folder"),
        (tmp_path / ("x" * 300), "is too long"),
    ):
        with pytest.raises(FileError, match=fault):
            RunWriter.create(path, HEADER, force=force)


def test_a_folder_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(FileError, match="no permission to write into"):
        check_output(tmp_path / "a")


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (errno.EROFS, "read-only file system"),
        (errno.EACCES, "no permission"),
        (errno.EIO, "can't be written: "),
    ],
)
def test_what_the_system_refuses_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fault: str
) -> None:
    monkeypatch.setattr(os, "open", failing(number))
    with pytest.raises(FileError, match=fault):
        RunWriter.create(tmp_path / "a", HEADER)


def test_a_file_whose_header_cannot_be_written_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", failing(errno.ENOSPC))
    with pytest.raises(FileError, match="disk is full"):
        RunWriter.create(tmp_path / "a", HEADER)
    assert list(tmp_path.iterdir()) == []


# Appending


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_full_disk_loses_nothing_that_was_written(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()
    write_really, calls = os.write, iter(range(100))

    def write_half(descriptor: int, content: bytes) -> int:
        if next(calls) > 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_really(descriptor, content[: len(content) // 2])

    with RunWriter.resume(saved) as writer:
        monkeypatch.setattr(os, "write", write_half)
        with pytest.raises(FileError, match="disk is full") as caught:
            writer.append(TRIALS[0])
        assert str(saved) in caught.value.message
        assert saved.read_bytes() == before
        monkeypatch.setattr(os, "write", write_really)
        writer.append(TRIALS[0])
    assert read_run(saved).trials == (*TRIALS, TRIALS[0])


def test_a_record_is_one_write_and_one_sync(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    write_really, sync_really = os.write, os.fsync

    def note_write(descriptor: int, content: bytes) -> int:
        calls.append("write")
        return write_really(descriptor, content)

    def note_sync(descriptor: int) -> None:
        calls.append("fsync")
        sync_really(descriptor)

    with RunWriter.resume(saved) as writer:
        monkeypatch.setattr(os, "write", note_write)
        monkeypatch.setattr(os, "fsync", note_sync)
        writer.append(TRIALS[0])
    assert calls == ["write", "fsync"]


def test_closing_twice_does_nothing(saved: Path) -> None:
    writer = RunWriter.resume(saved)
    writer.close()
    writer.close()


# Resuming


def test_resuming_at_any_cut_keeps_what_was_complete(saved: Path) -> None:
    whole = saved.read_bytes()
    first = whole.index(b"\n")
    for size in range(len(whole), first - 1, -97):
        saved.write_bytes(whole[:size])
        before = read_run(saved)
        with RunWriter.resume(saved) as writer:
            assert not read_run(saved).truncated
            writer.append(TRIALS[0])
        after = read_run(saved)
        assert after.trials == (*before.trials, TRIALS[0])
        assert after.end is None
        assert not after.truncated


def test_resuming_adds_a_missing_line_end(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes().rstrip(b"\n"))
    with RunWriter.resume(saved) as writer:
        writer.append(END)
    assert read_run(saved).end == END


def test_a_file_that_is_no_run_is_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine\n")
    with pytest.raises(FileError, match="is not a run file"):
        RunWriter.resume(path)
    assert path.read_text() == "mine\n"
    with pytest.raises(FileError, match="There is no file"):
        RunWriter.resume(tmp_path / "missing")


def test_a_run_that_cannot_be_cut_is_a_sentence(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "ftruncate", failing(errno.EROFS))
    with pytest.raises(FileError, match="read-only file system"):
        RunWriter.resume(saved)
    monkeypatch.undo()
    RunWriter.resume(saved).close()


def test_two_sweeps_cannot_write_one_file(saved: Path) -> None:
    with RunWriter.resume(saved):
        with pytest.raises(FileError, match="Another sweep is writing"):
            RunWriter.resume(saved)
        with pytest.raises(FileError, match="Another sweep is writing"):
            RunWriter.create(saved, HEADER, force=True)
    RunWriter.resume(saved).close()
    assert pathless(read_run(saved)) == RUN
