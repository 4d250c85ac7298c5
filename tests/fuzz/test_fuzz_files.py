"""Configuration, settings and machine files: any bytes, any values."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

import pytest
from fuzz_program import HOSTILE, cuts, flips, fuzz, program
from hypothesis import given
from hypothesis import strategies as st

import dlprof
from dlprof.errors import DlprofError
from dlprof.settings import OPTIONS
from dlprof.tomlfile import toml_key, toml_value

DATA = Path(__file__).parents[1] / "data"
GOLDEN = DATA / "runs" / "golden.dlprof.jsonl"
SAVED = (DATA / "settings" / "two_machines.toml").read_bytes()
MIXED = (DATA / "settings" / "mixed.toml").read_bytes()
CONFIG = b"""\
target = "train.py:make"
arg = { root = "/data" }
num_workers = "0:16:2"
prefetch_factor = [2, 4]
pin_memory = "both"
batch_size = 32
start_method = ["fork", "spawn"]
step_time = "12ms"
budget = 90.0
max_ram = "16GiB"
cold_cache = false
"""
MACHINE = b"""\
logical_cpus = 32
usable_cores = 16.0
memory_bytes = 68719476736
shm_bytes = 17179869184
"""
VALUES = st.recursive(
    st.none().map(lambda _: "")
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**18, 2**63, 10**400, -1, 0, 1e308, 5e-324, HOSTILE, "auto", "both", "1s"])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=4,
)
KEYS = st.sampled_from([option.key for option in OPTIONS]) | st.text(max_size=6)
OTHER_KINDS = [
    b"",
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbftarget = 'images'",
    b"x = " + b"[" * 50_000,
    b"a." * 1_500 + b"b = 1",
    b"budget = " + b"9" * 10_000,
    b"budget = nan",
    b"budget = -inf",
    b"num_workers = [1, 'x', 2.5, nan, []]",
    b"num_workers = 1979-05-27",
    b"arg = [1979-05-27T07:32:00Z]",
    b"arg = {a = 07:32:00}",
    b"[tool]\ndlprof = 3",
    b"[tool.dlprof]\nbudget = 1",
    b"budget = 1\nbudget = 2",
    b"# " + b"x" * 1_100_000,
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def as_toml(table: dict[str, Any]) -> bytes:
    lines = [f"{toml_key(key)} = {toml_value(value)}\n" for key, value in table.items()]
    return "".join(lines).encode(errors="surrogatepass")


def configure(place: Path, content: bytes) -> None:
    (place / "config.toml").write_bytes(content)
    program(["sweep", "--config", "config.toml", "--print-config"])


def save_into(place: Path, content: bytes) -> None:
    """Keep settings in a file that is there already; one that is refused stays as it is."""
    file = place / "dlprof.toml"
    file.write_bytes(content)
    with warnings.catch_warnings(), contextlib.suppress(DlprofError):
        warnings.simplefilter("ignore")
        assert isinstance(dlprof.kwargs_for(str(file)), dict)
    ended = program(["recommend", str(GOLDEN), "--save", file.name, "-q"])
    if ended.code:
        assert file.read_bytes() == content


def limit(place: Path, content: bytes) -> None:
    (place / "machine.toml").write_bytes(content)
    program(["recommend", str(GOLDEN), "--machine", "machine.toml", "--json"])


@pytest.mark.slow
def test_damaged_configuration(place: Path) -> None:
    for content in (*cuts(CONFIG, 3), *flips(CONFIG, 200), *OTHER_KINDS):
        configure(place, content)


def test_damaged_project_files(place: Path) -> None:
    whole = b"[tool.dlprof]\n" + CONFIG
    for content in (*cuts(whole, 11), *flips(whole, 60), *OTHER_KINDS):
        (place / "pyproject.toml").write_bytes(content)
        program(["sweep", "--print-config"])


@pytest.mark.slow
@fuzz(250)
@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=3))
def test_any_configuration(place: Path, table: dict[str, Any]) -> None:
    configure(place, as_toml(table))


@pytest.mark.slow
@pytest.mark.parametrize("whole", [SAVED, MIXED])
def test_damaged_settings_files(place: Path, whole: bytes) -> None:
    for content in (*cuts(whole, 43), *flips(whole, 60)):
        save_into(place, content)


def test_settings_files_of_other_kinds(place: Path) -> None:
    for content in OTHER_KINDS:
        save_into(place, content)


@pytest.mark.slow
@fuzz(100)
@given(st.dictionaries(st.sampled_from(["version", "machine", "x"]), VALUES, max_size=2))
def test_any_settings_file(place: Path, table: dict[str, Any]) -> None:
    save_into(place, as_toml(table))


def test_damaged_machine_files(place: Path) -> None:
    for content in (*cuts(MACHINE, 5), *flips(MACHINE, 60), *OTHER_KINDS):
        limit(place, content)


@pytest.mark.slow
@fuzz(100)
@given(
    st.dictionaries(
        st.sampled_from(["logical_cpus", "usable_cores", "memory_bytes", "hostname", "gpus"]),
        VALUES,
        max_size=3,
    )
)
def test_any_machine_file(place: Path, table: dict[str, Any]) -> None:
    limit(place, as_toml({"logical_cpus": 8, "usable_cores": 4.0, **table}))
