"""``--arg`` texts become what a callable's parameters ask for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest

from dlprof.errors import TargetError
from dlprof.targets.arguments import bind_arguments


def bind(function: Callable[..., Any], **arguments: str) -> dict[str, Any]:
    positional, keywords = bind_arguments(function, arguments, {}, name="make()")
    assert not positional
    return keywords


def annotated(
    *,
    count: int = 0,
    scale: float = 0.0,
    flip: bool = False,
    root: Path = Path(),
    name: str = "",
    limit: int | None = None,
    old: Optional[float] = None,  # noqa: UP045 - as users write it
    split: Literal["train", "val", 3] = "train",
    tagged: Annotated[int, "samples"] = 0,
    free: Any = None,
    anything: object = None,
    both: int | str = 0,
) -> None: ...


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("count", "12", 12),
        ("scale", "1e-3", 1e-3),
        ("flip", "true", True),
        ("flip", "OFF", False),
        ("root", "/data/x", Path("/data/x")),
        ("name", "007", "007"),
        ("limit", "none", None),
        ("limit", "5", 5),
        ("old", "0.5", 0.5),
        ("split", "val", "val"),
        ("split", "3", 3),
        ("tagged", "4", 4),
        ("free", "5", 5),
        ("anything", "5", "5"),
        ("both", "5", 5),
        ("both", "five", "five"),
    ],
)
def test_by_annotation(key: str, text: str, value: object) -> None:
    found = bind(annotated, **{key: text})[key]
    assert found == value
    assert type(found) is type(value)


def test_by_default_and_without_any_sign() -> None:
    def make(a=1, b=2.0, c=False, d="x", e=Path(), f=None, *, g): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - as users write it

    found = bind(make, a="3", b="3", c="yes", d="3", e="3", f="3", g="03")
    assert found == {"a": 3, "b": 3.0, "c": True, "d": "3", "e": Path("3"), "f": 3, "g": "03"}


@pytest.mark.parametrize(
    ("text", "value"),
    [("none", None), ("True", True), ("-4", -4), ("0.25", 0.25), ("1_000", "1_000"), ("", "")],
)
def test_guesses_are_modest(text: str, value: object) -> None:
    def make(**kwargs: Any) -> None: ...

    assert bind(make, key=text) == {"key": value}


@pytest.mark.parametrize(
    ("key", "text", "wanted"),
    [
        ("count", "2.5", "int"),
        ("flip", "maybe", "bool"),
        ("limit", "many", "int | None"),
        ("split", "test", "Literal"),
    ],
)
def test_what_cannot_be_converted_is_named(key: str, text: str, wanted: str) -> None:
    with pytest.raises(TargetError) as caught:
        bind(annotated, **{key: text})
    assert f"{key}={text}" in caught.value.message
    assert wanted in caught.value.message
    assert "make()" in caught.value.message


def test_types_that_no_text_can_give_are_refused() -> None:
    def make(transform: Callable[[int], int]) -> None: ...

    with pytest.raises(TargetError, match="transform=x"):
        bind(make, transform="x")


def test_unknown_arguments_are_named_with_the_closest() -> None:
    with pytest.raises(TargetError, match="no argument 'cuont'") as caught:
        bind(annotated, cuont="1")
    assert caught.value.hint == "Did you mean count?"


def test_missing_arguments_are_named() -> None:
    def make(root: Path, split: str, size: int = 3) -> None: ...

    with pytest.raises(TargetError, match="needs the arguments 'root', 'split'") as caught:
        bind(make)
    assert "--arg root=" in caught.value.hint
    assert "a function without arguments" in caught.value.hint  # as for argparse's Namespace
    with pytest.raises(TargetError, match="needs the argument 'split'"):
        bind(make, root="/")


def test_a_method_of_a_class_needs_an_instance_and_no_arg() -> None:
    class Module:
        def train_dataloader(self) -> None: ...

    with pytest.raises(TargetError, match="needs the argument 'self'") as caught:
        bind_arguments(Module.train_dataloader, {}, {}, name="Module.train_dataloader()")
    assert "--arg" not in caught.value.hint
    assert "the class, Module," in caught.value.hint


def test_positional_only_parameters_are_passed_by_position() -> None:
    def make(root: str, n: int, /, *, flip: bool) -> None: ...

    positional, keywords = bind_arguments(
        make, {"n": "2", "root": "r", "flip": "on"}, {}, name="make()"
    )
    assert positional == ["r", 2]
    assert keywords == {"flip": True}

    def with_defaults(root: str = "r", n: int = 1, /) -> None: ...

    assert bind_arguments(with_defaults, {"n": "2"}, {}, name="make()") == (["r", 2], {})


def test_settings_pass_as_they_are_and_partials_work() -> None:
    def make(root: str, num_workers: int) -> None: ...

    positional, keywords = bind_arguments(
        functools.partial(make, "r"), {}, {"num_workers": 3}, name="make()"
    )
    assert (positional, keywords) == ([], {"num_workers": 3})


def test_annotations_that_do_not_resolve_fall_back_to_their_names() -> None:
    def make(n: int, other: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - what is tried

    assert bind(make, n="4", other="5") == {"n": 4, "other": 5}


def test_callables_without_a_signature_take_guesses() -> None:
    assert bind(dict, a="1") == {"a": 1}
