"""Settings from flags, environment, configuration files and defaults."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dlprof.errors import UsageError, did_you_mean
from dlprof.settings.model import SweepSettings, check_conflicts, needs_workers
from dlprof.settings.options import ENVIRONMENT_PREFIX, OPTIONS, by_key
from dlprof.tomlfile import read_toml, toml_value
from dlprof.units import quoted, spread_of

DEFAULT_ORIGIN = "default"

_CONFIG_VARIABLE = f"{ENVIRONMENT_PREFIX}CONFIG"


@dataclasses.dataclass(frozen=True, slots=True)
class _Given:
    """A value, where it came from, and that source's place in the order (0 is the last word)."""

    value: Any
    origin: str
    layer: int


def resolve_settings(
    flags: Mapping[str, object | None],
    *,
    environ: Mapping[str, str],
    config_file: Path | None,
    cwd: Path,
) -> tuple[SweepSettings, Mapping[str, str]]:
    """Settings by flags, then environment, ``--config``, ``pyproject.toml``, defaults.

    Args:
        flags: Raw texts or natural values under configuration keys; ``None`` is not given.
        environ: The environment; empty variables count as not set.
        config_file: The file given by ``--config``; ``DLPROF_CONFIG`` names it otherwise.
        cwd: Where the search for ``pyproject.toml`` begins, upwards.

    Returns:
        The settings, and where each came from, under configuration keys.
    """
    for key in flags:
        if key not in by_key():
            raise _unknown(key, "the options given")
    layers = (
        {key: (raw, by_key()[key].flag) for key, raw in flags.items() if raw is not None},
        _from_environment(environ),
        *(_from_file(path) for path in config_files(environ, config_file, cwd)),
    )
    given: dict[str, _Given] = {}
    for number, layer in enumerate(layers):
        for key, (raw, origin) in layer.items():
            # Read even where a higher layer has the last word: a faulty file shows itself at once.
            value = by_key()[key].read(raw, origin)
            given.setdefault(key, _Given(value, origin, number))
    given = dict(_still_meant(given))
    settings = SweepSettings(**{by_key()[key].field: item.value for key, item in given.items()})
    check_conflicts(settings)
    origins = {option.key: DEFAULT_ORIGIN for option in OPTIONS}
    return settings, origins | {key: item.origin for key, item in given.items()}


def config_files(environ: Mapping[str, str], config_file: Path | None, cwd: Path) -> Iterator[Path]:
    """The files that settings are read from, the stronger first; see ``resolve_settings``.

    The given one, or what ``DLPROF_CONFIG`` names; then ``pyproject.toml``, if there is one.
    """
    if config_file is None and environ.get(_CONFIG_VARIABLE):
        config_file = Path(environ[_CONFIG_VARIABLE])
    if config_file is not None:
        yield config_file
    for folder in (cwd, *cwd.parents):
        path = folder / "pyproject.toml"
        with contextlib.suppress(PermissionError):  # of a folder above that is closed to us
            if path.is_file():
                yield path
                return


def print_config(settings: SweepSettings, origins: Mapping[str, str]) -> str:
    """The settings as TOML that ``--config`` takes and that resolves to the same settings."""
    lines = ["# Settings of dlprof sweep, as resolved."]
    for option in OPTIONS:
        value = getattr(settings, option.field)
        written = toml_value(option.unset if value is None else spread_of(value) or value)
        # repr: an origin holds a path of the user's, which may hold anything.
        origin = ascii(origins.get(option.key, DEFAULT_ORIGIN))[1:-1]
        lines += ["", f"# {option.text} From: {origin}", f"{option.key} = {written}"]
    return "\n".join(lines) + "\n"


def _still_meant(given: Mapping[str, _Given]) -> Iterator[tuple[str, _Given]]:
    """What is left when a stronger layer's choice makes a weaker layer's pointless.

    A flag ``--step-time`` replaces a file's ``step``, and ``--num-workers 0`` its
    ``prefetch_factor``. Within one layer both stay, and are refused as a conflict.
    """
    rivals = {"step": "step_time", "step_time": "step", "step_on": "step", "ranks": "launch_ranks"}
    workers, timed = given.get("num_workers"), given.get("step_time")
    for key, item in given.items():
        rival = given.get(rivals.get(key, ""))
        if rival and rival.value is not None and rival.layer < item.layer:
            continue
        # Where it passes goes with its length, also where that is "none".
        if key == "step_on" and timed and timed.value is None and timed.layer < item.layer:
            continue
        alone = workers is not None and workers.value == (0,) and workers.layer < item.layer
        if alone and needs_workers(key, item.value):
            continue
        yield key, item


_Layer = Mapping[str, tuple[object, str]]


def _from_environment(environ: Mapping[str, str]) -> _Layer:
    names = {option.environment: option.key for option in OPTIONS}
    endings = [name.removeprefix(ENVIRONMENT_PREFIX) for name in (*names, _CONFIG_VARIABLE)]
    for name in environ:
        ending = name.removeprefix(ENVIRONMENT_PREFIX)
        if ending == name or ending in endings:
            continue
        # What follows the prefix of a misspelt variable is at least this much like its
        # right name's; the prefix alone would make any two alike. DLPROF_CACHE_DIR and
        # others that are no options are less.
        if meant := did_you_mean(ending, endings, cutoff=0.75):
            raise UsageError(
                f"The environment variable {name} is not known",
                hint=f"{meant.replace('mean ', f'mean {ENVIRONMENT_PREFIX}')} Else unset it.",
            )
    return {key: (environ[name], name) for name, key in names.items() if environ.get(name)}


def _from_file(path: Path) -> _Layer:
    table, source = read_toml(path), str(path)
    if path.name == "pyproject.toml":
        tools = table.get("tool", {})
        table = tools.get("dlprof", {}) if isinstance(tools, Mapping) else {}
        source += " [tool.dlprof]"
        if not isinstance(table, Mapping):
            raise UsageError(
                f"{path}: tool.dlprof is not a table",
                hint="Write [tool.dlprof], then one key a line.",
            )
    # As the flag is spelled, or as Python and the environment have it.
    named = {key: key.replace("-", "_") for key in table}
    for key, name in named.items():
        if name not in by_key():
            raise _unknown(key, source)
        if key != name and name in table:
            raise UsageError(f"{source} has {key} and {name}", hint="Leave one of the two out.")
    return {named[key]: (raw, f"{key} in {source}") for key, raw in table.items()}


def _unknown(key: str, source: str) -> UsageError:
    known = f"Known keys: {', '.join(by_key())}."
    hint = did_you_mean(key.replace("-", "_"), by_key()) or known
    return UsageError(f"{quoted(key)} in {source} is not an option of dlprof", hint=hint)
