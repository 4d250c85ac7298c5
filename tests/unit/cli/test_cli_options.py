"""The set of commands and options is frozen: scripts rely on it. Add freely, remove never."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner
from golden import check_golden

from dlprof.cli.app import COMMANDS, program
from dlprof.settings import OPTIONS, SweepSettings
from dlprof.units import parse_duration_s


def all_options() -> dict[str, list[str]]:
    """Each command's arguments and options, as they are typed."""
    return {
        name: sorted(
            "/".join([*parameter.opts, *parameter.secondary_opts]) for parameter in command.params
        )
        for name, command in _commands("dlprof", program())
    }


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """A command, and all below it where it is a group, by the words that name them."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            yield from _commands(f"{name} {word}", command.get_command(context, word))


def test_the_set_of_options_is_frozen() -> None:
    lines = [
        f"{command} {option}" for command, options in all_options().items() for option in options
    ]
    check_golden("options.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_short_help_fits_one_screen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(program(), [name, "-h"])
    assert shown.exit_code == 0
    assert len(shown.output.splitlines()) <= 30


def test_every_setting_has_its_flag() -> None:
    typed = {name for option in all_options()["dlprof sweep"] for name in option.split("/")}
    assert {option.flag for option in OPTIONS} - {"TARGET"} <= typed


@pytest.mark.parametrize(
    ("flag", "default"),
    [("--budget", SweepSettings().budget_s), ("--timeout", SweepSettings().timeout_s)],
)
def test_the_defaults_that_help_names_are_the_defaults(flag: str, default: float) -> None:
    group = program()
    command: Any = group.get_command(click.Context(group), "sweep")
    (text,) = [parameter.help for parameter in command.params if flag in parameter.opts]
    assert parse_duration_s(text.rpartition("Default: ")[2].rstrip(".")) == default
