"""``--arg`` texts turned into what a callable's parameters ask for."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dlprof.errors import TargetError, did_you_mean


def bind_arguments(
    function: Callable[..., Any],
    arguments: Mapping[str, str],
    settings: Mapping[str, Any],
    *,
    name: str,
) -> tuple[list[Any], dict[str, Any]]:
    """The positional and keyword arguments to call a target's callable with.

    Each text of ``arguments`` is converted by the parameter's annotation, or by the type of its
    default; without either, ``none``, ``true``, ``false`` and numbers that read back unchanged are
    converted, and all else stays text. ``settings`` are passed as they are.
    """
    signature = signature_of(function)
    known = named_parameters(signature)
    unknown = [] if takes_any(signature) else [key for key in arguments if key not in known]
    for key in unknown:
        hint = did_you_mean(key, known) or f"It takes: {', '.join(known) or 'no arguments'}."
        raise TargetError(f"{name} takes no argument {key!r}.", hint=hint)
    values = dict(settings)
    for key, text in arguments.items():
        wanted = _wanted_type(known.get(key))
        try:
            values[key] = _convert(text, wanted)
        except (ValueError, TypeError):
            shown = wanted.__name__ if isinstance(wanted, type) else str(wanted)
            raise TargetError(
                f"--arg {key}={text} can't be converted to {shown}, which {name} asks for.",
                hint="int, float, bool, str, Path and None can be given as text; for anything else "
                "name a function that builds the value itself.",
            ) from None
    missing = [
        key
        for key, parameter in known.items()
        if parameter.default is parameter.empty and key not in values
    ]
    if missing:
        listed = ", ".join(repr(key) for key in missing)
        texts = " ".join(f"--arg {key}=..." for key in missing)
        hint = f"Add {texts}, or name a function without arguments that calls it."
        owner = name.rpartition(".")[0]
        if owner and missing[0] == "self":
            hint = "It is a method, which an instance has. Name a function that makes one and "
            hint += f"calls it, or the class, {owner}, where it is Lightning's."
        raise TargetError(
            f"{name} needs the argument{'s'[: len(missing) > 1]} {listed}.", hint=hint
        )
    positional = [
        values.pop(key, parameter.default)  # what is left out has one
        for key, parameter in known.items()
        if parameter.kind is parameter.POSITIONAL_ONLY
    ]
    return positional, values


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """The signature with its annotations resolved as far as they can be; ``None`` without one."""
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # annotations of the user's are arbitrary code
        try:
            return inspect.signature(function)
        except (TypeError, ValueError):
            return None


def takes_any(signature: inspect.Signature | None) -> bool:
    """Whether there is a ``**kwargs``, as may be where there is no signature."""
    parameters = () if signature is None else signature.parameters.values()
    return signature is None or any(each.kind is each.VAR_KEYWORD for each in parameters)


def named_parameters(signature: inspect.Signature | None) -> dict[str, inspect.Parameter]:
    """The parameters that take one value by name or position."""
    parameters = {} if signature is None else signature.parameters
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {key: each for key, each in parameters.items() if each.kind not in variable}


def _wanted_type(parameter: inspect.Parameter | None) -> Any:
    """The type that a parameter asks for; ``None`` where it doesn't say."""
    if parameter is None:
        return None
    annotation = parameter.annotation
    if annotation is parameter.empty or annotation is Any:
        default = parameter.default
        return None if default is parameter.empty or default is None else type(default)
    if isinstance(annotation, str):  # an annotation that could not be resolved
        return {"int": int, "float": float, "bool": bool, "str": str, "Path": Path}.get(annotation)
    return annotation


def _convert(text: str, wanted: Any) -> Any:
    generic = _GENERIC_CONVERTERS.get(typing.get_origin(wanted))
    if generic is not None:
        return generic(text, typing.get_args(wanted))
    converter = _CONVERTERS.get(wanted)
    if converter is not None:
        return converter(text)
    if isinstance(wanted, type) and (issubclass(wanted, Path) or issubclass(Path, wanted)):
        return Path(text)  # also PurePath, os.PathLike, and PosixPath as the type of a default
    raise TypeError


def _convert_union(text: str, members: tuple[Any, ...]) -> Any:
    # None and numbers first: str and Path would take any text.
    order = sorted(members, key=lambda member: member in (str, Path))
    for member in sorted(order, key=lambda member: member is not types.NoneType):
        try:
            return _convert(text, member)
        except (ValueError, TypeError):
            continue
    raise ValueError


def to_bool(text: str) -> bool:
    """``true``, ``yes``, ``on``, ``1`` and their opposites.

    Raises:
        ValueError: It is none of them.
    """
    lowered = text.strip().lower()
    if lowered not in {"true", "yes", "on", "1", "false", "no", "off", "0"}:
        raise ValueError
    return lowered in {"true", "yes", "on", "1"}


def _convert_none(text: str) -> None:
    if text.strip().lower() not in {"none", "null", ""}:
        raise ValueError


def _guess(text: str) -> Any:
    """A value for a parameter that says nothing of its type."""
    lowered = text.strip().lower()
    if lowered in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[lowered]
    for number in (int, float):
        try:
            value = number(text)
        except ValueError:
            continue
        if str(value) == text:
            return value
    return text


_CONVERTERS: Mapping[Any, Callable[[str], Any]] = {
    None: _guess,
    object: str,
    str: str,
    int: int,
    float: float,
    bool: to_bool,
    types.NoneType: _convert_none,
}
_GENERIC_CONVERTERS: Mapping[Any, Callable[[str, tuple[Any, ...]], Any]] = {
    typing.Union: _convert_union,
    types.UnionType: _convert_union,
    typing.Literal: lambda text, choices: choices[[*map(str, choices)].index(text)],
    typing.Annotated: lambda text, members: _convert(text, members[0]),
}
