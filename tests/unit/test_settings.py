"""Sweep settings: four sources, one meaning, one sentence for each fault."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from dlprof.errors import DlprofError, FileError, UsageError
from dlprof.settings import (
    OPTIONS,
    SweepSettings,
    parse_option,
    settings_from_json,
    settings_to_json,
)
from dlprof.settings.resolve import print_config, resolve_settings
from dlprof.units import parse_step, spread_of

DATA = Path(__file__).parents[1] / "data" / "settings"
CONFIGS = Path(__file__).parents[2] / "configs"


def resolve(
    flags: Mapping[str, object | None] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    config: Path | None = None,
    cwd: Path = Path("/nowhere"),
) -> SweepSettings:
    return resolve_settings(flags or {}, environ=environ or {}, config_file=config, cwd=cwd)[0]


def written(folder: Path, text: str, name: str = "sweep.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_table_covers_each_field_once() -> None:
    fields = [field.name for field in dataclasses.fields(SweepSettings)]
    assert sorted(option.field for option in OPTIONS) == sorted(fields)
    assert len({option.key for option in OPTIONS}) == len(OPTIONS)


def test_an_option_that_may_be_none_has_a_word_for_it() -> None:
    defaults = SweepSettings()
    for option in OPTIONS:
        if getattr(defaults, option.field) is None:
            assert option.unset in {"auto", "none"}
        else:
            assert option.unset is None


def test_nothing_given_is_the_defaults() -> None:
    settings, origins = resolve_settings({}, environ={}, config_file=None, cwd=Path("/nowhere"))
    assert settings == SweepSettings()
    assert set(origins) == {option.key for option in OPTIONS}
    assert set(origins.values()) == {"default"}


def test_flags_win_over_environment_over_config_over_pyproject(tmp_path: Path) -> None:
    written(
        tmp_path,
        "[tool.dlprof]\nbudget = 1\nseed = 1\nranks = 1\nrepeats = 1\n",
        "pyproject.toml",
    )
    config = written(tmp_path, "budget = 2\nseed = 2\nranks = 2\n")
    settings, origins = resolve_settings(
        {"budget": "4s", "seed": None},
        environ={"DLPROF_BUDGET": "3s", "DLPROF_SEED": "3"},
        config_file=config,
        cwd=tmp_path,
    )
    assert (settings.budget_s, settings.seed, settings.ranks, settings.repeats) == (4, 3, 2, 1)
    assert origins["budget"] == "--budget"
    assert origins["seed"] == "DLPROF_SEED"
    assert origins["ranks"] == f"ranks in {config}"
    assert origins["repeats"] == f"repeats in {tmp_path / 'pyproject.toml'} [tool.dlprof]"


@pytest.mark.parametrize("key", ["step_time", "step-time"])
def test_a_key_is_spelled_as_the_flag_or_as_the_variable(tmp_path: Path, key: str) -> None:
    config = written(tmp_path, f'{key} = "12ms"\n')
    settings, origins = resolve_settings({}, environ={}, config_file=config, cwd=tmp_path)
    assert settings.step_s == 0.012
    assert origins["step_time"] == f"{key} in {config}"


def test_a_key_is_spelled_once(tmp_path: Path) -> None:
    config = written(tmp_path, 'step-time = "12ms"\nstep_time = "5ms"\n')
    with pytest.raises(UsageError, match="has step-time and step_time"):
        resolve_settings({}, environ={}, config_file=config, cwd=tmp_path)


def test_the_nearest_pyproject_counts(tmp_path: Path) -> None:
    inner = tmp_path / "inner" / "package"
    inner.mkdir(parents=True)
    written(tmp_path, "[tool.dlprof]\nseed = 1\n", "pyproject.toml")
    written(inner.parent, "[tool.dlprof]\nseed = 2\n", "pyproject.toml")
    assert resolve(cwd=inner).seed == 2
    assert resolve(cwd=tmp_path).seed == 1


def test_a_folder_above_that_is_closed_to_us_has_no_pyproject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    look = Path.is_file

    def closed(path: Path) -> bool:
        if path.parent == tmp_path:
            raise PermissionError(13, "Permission denied")
        return look(path)

    monkeypatch.setattr(Path, "is_file", closed)
    assert resolve(cwd=inner) == SweepSettings()


def test_a_pyproject_of_others_is_left_alone(tmp_path: Path) -> None:
    written(tmp_path, '[project]\nname = "x"\n[tool.other]\nseed = 1\n', "pyproject.toml")
    assert resolve(cwd=tmp_path) == SweepSettings()


def test_a_pyproject_may_be_given_as_the_config(tmp_path: Path) -> None:
    path = written(tmp_path, "[tool.dlprof]\nseed = 5\n", "pyproject.toml")
    assert resolve(config=path).seed == 5


@pytest.mark.parametrize(
    ("key", "raw", "field", "value"),
    [
        ("num_workers", "0:4:2", "num_workers", (0, 2, 4)),
        ("num_workers", 4, "num_workers", (4,)),
        ("num_workers", [4, 0, 4], "num_workers", (4, 0)),
        ("num_workers", "auto", "num_workers", None),
        ("pin_memory", "both", "pin_memory", (False, True)),
        ("pin_memory", True, "pin_memory", (True,)),
        ("pin_memory", [True, False], "pin_memory", (True, False)),
        ("start_method", "fork, spawn", "start_method", ("fork", "spawn")),
        ("start_method", ["spawn"], "start_method", ("spawn",)),
        ("shuffle", "off", "shuffle", False),
        ("shuffle", True, "shuffle", True),
        ("step_time", "12ms", "step_s", 0.012),
        ("step_time", "none", "step_s", None),
        ("step_time", "9.5", "step_s", 9.5),
        ("step_time", 20.0, "step_s", 20.0),
        ("step_time", "20s", "step_s", 20.0),
        ("step", "train.py:step", "step_callable", "train.py:step"),
        ("step", r"C:\train.py:step", "step_callable", r"C:\train.py:step"),
        ("device", "cuda:1", "device", "cuda:1"),
        ("budget", "2m", "budget_s", 120.0),
        ("budget", 60, "budget_s", 60.0),
        ("trial_time", "auto", "trial_s", None),
        ("repeats", " 3 ", "repeats", 3),
        ("max_ram", "16GiB", "max_ram_bytes", 16 * 1024**3),
        ("max_shm", 0, "max_shm_bytes", 0),
        ("arg", ["root=/a=b", "split=train"], "arguments", {"root": "/a=b", "split": "train"}),
        ("arg", "root='/a b' split=x", "arguments", {"root": "/a b", "split": "x"}),
        ("arg", {"size": 4, "flip": True}, "arguments", {"size": "4", "flip": "True"}),
        ("arg", [], "arguments", {}),
        ("make_load", "cores=12", "make_load", {"cores": 12.0}),
        ("make_load", "cores=0.5,reads=1MB/s", "make_load", {"cores": 0.5, "reads": 1e6}),
        ("make_load", {"memory": "2GB/s"}, "make_load", {"memory": 2e9}),
        ("make_load", "none", "make_load", None),
        ("step_time", "normal:50ms,0", "step_s", 0.05),
    ],
)
def test_values_are_read(key: str, raw: object, field: str, value: object) -> None:
    assert getattr(resolve({key: raw}), field) == value


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        ("target", ""),
        ("target", 3),
        ("num_workers", ""),
        ("num_workers", "-1"),
        ("num_workers", "4097"),
        ("num_workers", 4097),
        ("num_workers", -1),
        ("num_workers", []),
        ("num_workers", [True]),
        ("num_workers", 2.0),
        ("num_workers", True),
        ("num_workers", list(range(1001))),
        ("prefetch_factor", "0"),
        ("prefetch_factor", {"a": 1}),
        ("pin_memory", "maybe"),
        ("pin_memory", 1),
        ("pin_memory", []),
        ("start_method", "frok"),
        ("start_method", []),
        ("start_method", 3),
        ("start_method", "fork,"),
        ("shuffle", "both"),
        ("shuffle", 1),
        ("step_time", "0"),
        ("step_time", -1),
        ("step_time", "2h"),
        ("step_time", math.nan),
        ("step", "step"),
        ("step", "train.py:"),
        ("device", "gpu"),
        ("device", "cuda:x"),
        ("budget", "0.5s"),
        ("budget", "8d"),
        ("budget", math.inf),
        ("budget", 10**400),
        ("budget", True),
        ("budget", None.__class__),
        ("repeats", "0"),
        ("repeats", 1.5),
        ("repeats", "9" * 30),
        ("search", "magic"),
        ("seed", -1),
        ("timeout", "0s"),
        ("max_ram", "1KiB"),
        ("max_ram", 1.5),
        ("ranks", "0"),
        ("cold_cache", "sometimes"),
        ("arg", "root"),
        ("arg", "1x=3"),
        ("arg", "a='b"),
        ("arg", ["a=1", "a=2"]),
        ("arg", [3]),
        ("arg", 3),
        ("arg", {"a": [1]}),
        ("arg", {"a": math.nan}),
        ("arg", {"a-b": 1}),
        ("make_load", ""),
        ("make_load", "12"),
        ("make_load", "cores"),
        ("make_load", "cores=0"),
        ("make_load", "cores=2000"),
        ("make_load", "cores=1,cores=2"),
        ("make_load", "disks=1"),
        ("make_load", {}),
        ("make_load", 12),
        ("step_time", "normal:50ms"),
        ("step_time", "normal:2h,1s"),
        ("step_time", "normal:1s,2h"),
        ("step_time", "normal:0,1ms"),
        ("step_time", "gamma:1ms,11ms"),
        ("step_time", "uniform:2ms,1ms"),
        ("step_time", "poisson:5ms"),
        ("step_time", "exponential:x"),
        ("step_time", ":"),
        ("step_time", "20"),
        ("step_time", "normal:20,1"),
    ],
)
def test_a_bad_value_names_its_option_and_what_is_allowed(key: str, raw: object) -> None:
    with pytest.raises(UsageError) as caught:
        resolve({key: raw})
    flag = "TARGET" if key == "target" else "--" + key.replace("_", "-")
    assert caught.value.message.startswith(f"{flag}: ")
    assert caught.value.hint.startswith(f"{key} takes ")
    assert len(caught.value.message) < 160


def test_steps_that_differ_keep_how_they_do() -> None:
    settings = resolve({"step_time": " Normal: 50ms, 5ms "})
    assert settings.step_s is not None
    assert (float(settings.step_s), spread_of(settings.step_s)) == (0.05, "normal:50ms,5ms")
    written = settings_to_json(settings)
    assert (written["step_s"], written["step_spread"]) == (0.05, "normal:50ms,5ms")
    assert settings_from_json(json.loads(json.dumps(written))) == settings
    assert settings_from_json({**written, "step_spread": None}) != settings
    assert 'step_time = "normal:50ms,5ms"' in print_config(settings, {})
    with pytest.raises(UsageError, match="step_s in the run's settings"):
        settings_from_json({**written, "step_spread": "evil:1"})


def test_the_shortest_step_is_reported_as_it_may_be_given() -> None:
    with pytest.raises(UsageError) as caught:
        resolve({"step_time": "0"})
    assert "from 1 µs to 1 h" in f"{caught.value.message} {caught.value.hint}"


def test_a_bad_value_in_the_environment_names_the_variable() -> None:
    with pytest.raises(UsageError, match=r"DLPROF_BUDGET: 'long' is not a duration"):
        resolve(environ={"DLPROF_BUDGET": "long"})


def test_a_bad_value_in_a_file_names_file_and_key(tmp_path: Path) -> None:
    config = written(tmp_path, "num_workers = 2.5\n")
    with pytest.raises(UsageError) as caught:
        resolve(config=config)
    assert str(config) in caught.value.message
    assert "num_workers" in caught.value.message


def test_a_bad_value_in_a_file_shows_even_under_a_flag(tmp_path: Path) -> None:
    config = written(tmp_path, "seed = 'x'\n")
    with pytest.raises(UsageError, match="seed in"):
        resolve({"seed": "1"}, config=config)


@pytest.mark.parametrize(("key", "close"), [("num_worker", "num_workers"), ("max-rams", "max_ram")])
def test_an_unknown_key_is_refused_with_a_close_one(tmp_path: Path, key: str, close: str) -> None:
    config = written(tmp_path, f"{key} = 1\n")
    with pytest.raises(UsageError, match="is not an option") as caught:
        resolve(config=config)
    assert key in caught.value.message
    assert str(config) in caught.value.message
    assert caught.value.hint == f"Did you mean {close}?"


def test_an_unknown_key_like_no_other_gets_the_list() -> None:
    with pytest.raises(UsageError) as caught:
        resolve({"zzz": 1})
    assert "num_workers" in caught.value.hint


def test_a_misspelt_variable_is_refused_and_others_are_left_alone() -> None:
    others = {"DLPROF_CACHE_DIR": "x", "DLPROF_DEBUG": "1"}
    assert resolve(environ=others) == SweepSettings()
    with pytest.raises(UsageError) as caught:
        resolve(environ={"DLPROF_NUM_WORKER": "1"})
    assert "DLPROF_NUM_WORKERS" in caught.value.hint


def test_an_empty_variable_is_not_set() -> None:
    assert resolve(environ={"DLPROF_BUDGET": ""}) == SweepSettings()


@pytest.mark.parametrize(
    "flags",
    [
        {"step_time": "1ms", "step": "a:b"},
        {"num_workers": "0", "prefetch_factor": "2"},
        {"num_workers": "0", "persistent_workers": "on"},
        {"num_workers": "0", "start_method": "spawn"},
        {"num_workers": "0", "sharing_strategy": "file_system"},
        {"num_workers": "0", "worker_threads": "2"},
        {"num_workers": "0", "in_order": "off"},
        {"num_workers": "4,8", "max_workers": "2"},
        {"trial_time": "60s", "budget": "30s"},
        {"trial_time": "60s", "timeout": "30s"},
        {"search": "model", "batch_size": "16,32"},
        {"num_workers": "1:1000", "batch_size": "1:1000"},
    ],
)
def test_options_that_exclude_each_other_are_refused(flags: Mapping[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(flags)
    assert caught.value.hint


@pytest.mark.parametrize(
    "flags",
    [
        {"num_workers": "0,2", "prefetch_factor": "2"},
        {"num_workers": "0", "persistent_workers": "both"},
        {"num_workers": "0", "in_order": "on"},
        {"num_workers": "0", "pin_memory": "on"},
    ],
)
def test_options_that_only_partly_matter_are_kept(flags: Mapping[str, object]) -> None:
    resolve(flags)


def test_a_flag_replaces_what_it_excludes_in_a_file(tmp_path: Path) -> None:
    config = written(
        tmp_path, 'step = "a:b"\nprefetch_factor = [2, 4]\npin_memory = "both"\nranks = 4\n'
    )
    flags = {"step_time": "5ms", "num_workers": "0", "launch_ranks": "2"}
    settings = resolve(flags, config=config)
    assert (settings.ranks, settings.launch_ranks) == (1, (2,))
    assert settings.step_callable is None
    assert settings.step_s == 0.005
    assert settings.prefetch_factor is None
    assert settings.pin_memory == (False, True)


@pytest.mark.parametrize("flags", [{"step": "a:b"}, {"step_time": "none"}])
def test_where_a_files_step_passes_goes_with_its_length(
    tmp_path: Path, flags: dict[str, object]
) -> None:
    config = written(tmp_path, 'step_time = "5ms"\nstep_on = "device"\n')
    settings = resolve(flags, config=config)
    assert (settings.step_s, settings.step_on) == (None, "host")
    assert resolve({"step_time": "9ms"}, config=config).step_on == "device"


def test_a_flag_that_needs_workers_conflicts_with_a_file_without(tmp_path: Path) -> None:
    config = written(tmp_path, "num_workers = 0\n")
    with pytest.raises(UsageError, match="prefetch_factor needs worker processes"):
        resolve({"prefetch_factor": "4"}, config=config)


@pytest.mark.parametrize(
    "content",
    [b"num_workers = ", b"a = " + b"[" * 100_000, b"a = " + b"9" * 5000, b"\0" * 10],
)
def test_a_config_that_is_not_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(FileError, match="is not valid TOML") as caught:
        resolve(config=path)
    assert str(path) in caught.value.message


def test_a_config_that_is_missing_a_folder_or_huge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="There is no file"):
        resolve(config=tmp_path / "missing.toml")
    with pytest.raises(FileError, match="is a folder"):
        resolve(config=tmp_path)
    huge = tmp_path / "huge.toml"
    huge.write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(FileError, match="is too long for a TOML file"):
        resolve(config=huge)


def test_tool_dlprof_must_be_a_table(tmp_path: Path) -> None:
    written(tmp_path, "[tool]\ndlprof = 3\n", "pyproject.toml")
    with pytest.raises(UsageError, match="not a table"):
        resolve(cwd=tmp_path)


def test_a_recorded_file_with_natural_and_text_values_reads() -> None:
    settings = resolve(config=DATA / "mixed.toml")
    assert settings == SweepSettings(
        target="train.py:make_dataset",
        arguments={"root": "/data/imagenet", "size": "224"},
        num_workers=(0, 2, 4, 8),
        prefetch_factor=(2, 4),
        pin_memory=(False, True),
        persistent_workers=(True,),
        start_method=("fork", "spawn"),
        shuffle=True,
        step_s=0.012,
        budget_s=60.0,
        max_ram_bytes=16 * 1024**3,
    )


@pytest.mark.parametrize("name", ["quick", "full", "ci"])
def test_the_shipped_configs_resolve(name: str) -> None:
    settings, origins = resolve_settings(
        {}, environ={}, config_file=CONFIGS / f"{name}.toml", cwd=Path("/nowhere")
    )
    assert settings != SweepSettings()
    assert "default" in origins.values()


def test_quick_is_quicker_than_full() -> None:
    quick, full = (resolve(config=CONFIGS / f"{name}.toml") for name in ("quick", "full"))
    assert quick.budget_s <= 20 < SweepSettings().budget_s < full.budget_s


def test_one_option_can_be_read_on_its_own() -> None:
    assert parse_option("max_ram", "2GiB") == 2 * 1024**3
    assert parse_option("max_ram", "none") is None
    with pytest.raises(UsageError, match=r"^--max-ram: 'much'"):
        parse_option("max_ram", "much")
    with pytest.raises(UsageError, match=r"^here: 'much'"):
        parse_option("max_ram", "much", "here")


def unique(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | st.lists(values, min_size=1, max_size=5, unique=True).map(tuple)


def valid(settings: SweepSettings) -> bool:
    try:
        settings_from_json(settings_to_json(settings))
    except UsageError:
        return False
    return True


ANY_SETTINGS = st.builds(
    SweepSettings,
    target=st.text(min_size=1).map(lambda text: f"t{text}t"),
    arguments=st.dictionaries(st.from_regex(r"[a-z_]\w{0,9}", fullmatch=True), st.text()),
    num_workers=unique(st.integers(0, 4096)),
    prefetch_factor=unique(st.integers(1, 4096)),
    pin_memory=unique(st.booleans()),
    persistent_workers=unique(st.booleans()),
    batch_size=unique(st.integers(1, 1_000_000)),
    in_order=unique(st.booleans()),
    start_method=unique(st.sampled_from(["fork", "spawn", "forkserver"])),
    sharing_strategy=unique(st.sampled_from(["file_descriptor", "file_system"])),
    worker_threads=unique(st.integers(1, 1024)),
    shuffle=st.none() | st.booleans(),
    step_s=st.none()
    | st.floats(1e-6, 3600.0)
    | st.sampled_from(["normal:5ms,6ms", "gamma:1s,0.3s"]).map(parse_step),
    device=st.sampled_from(["auto", "cpu", "cuda:3"]),
    budget_s=st.floats(1.0, 604800.0),
    trial_s=st.none() | st.floats(0.05, 1.0, exclude_max=True),
    repeats=st.none() | st.integers(1, 1000),
    search=st.sampled_from(["auto", "grid", "model"]),
    seed=st.integers(0, 2**32 - 1),
    timeout_s=st.floats(1.0, 86400.0),
    max_workers=st.none() | st.just(4096),
    max_ram_bytes=st.none() | st.integers(1024**2, 1024**5),
    max_shm_bytes=st.none() | st.integers(0, 1024**5),
    ranks=st.integers(1, 4096),
    make_load=st.none()
    | st.dictionaries(
        st.sampled_from(["memory", "reads"]), st.floats(1.0, 1e12), min_size=1, max_size=2
    ),
    cold_cache=st.booleans(),
).filter(valid)


@pytest.mark.slow
@given(ANY_SETTINGS)
@hypothesis_settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
    ],
)
def test_what_print_config_writes_resolves_to_the_same(
    tmp_path: Path, settings: SweepSettings
) -> None:
    config = written(tmp_path, print_config(settings, {"target": "--target \n x"}))
    assert resolve(config=config) == settings


@pytest.mark.slow
@given(ANY_SETTINGS)
@hypothesis_settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
def test_settings_come_back_from_json(settings: SweepSettings) -> None:
    assert settings_from_json(json.loads(json.dumps(settings_to_json(settings)))) == settings


def test_json_of_other_versions_reads() -> None:
    assert settings_from_json({"seed": 3, "not_yet_known": [1]}) == SweepSettings(seed=3)


@pytest.mark.parametrize("data", [{"seed": None}, {"num_workers": [-1]}, {"budget_s": "x"}])
def test_json_that_no_sweep_wrote_is_refused(data: Mapping[str, Any]) -> None:
    with pytest.raises(UsageError, match="run's settings"):
        settings_from_json(data)


@given(
    st.sampled_from([option.key for option in OPTIONS]),
    st.text() | st.integers() | st.floats() | st.booleans() | st.lists(st.integers() | st.text()),
)
def test_no_value_makes_an_option_fail_in_another_way(key: str, raw: object) -> None:
    try:
        parse_option(key, raw)
    except DlprofError as error:
        kind = error.kind
    else:
        kind = "usage"
    assert kind == "usage"


def test_the_environment_can_name_the_configuration_file(tmp_path: Path) -> None:
    path = written(tmp_path, "seed = 5\n")
    other = written(tmp_path, "seed = 6\n", "other.toml")
    assert resolve(environ={"DLPROF_CONFIG": str(path)}).seed == 5
    assert resolve(environ={"DLPROF_CONFIG": str(path)}, config=other).seed == 6
