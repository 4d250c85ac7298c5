"""Records are dataclasses like any other, whatever they are made by."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from dlprof.records import Config, Constraints, Machine, Trial
from dlprof.records.record import record


@record(frozen=True, slots=True)
class One:
    name: str


@record(frozen=True, slots=True)
class OtherOne:
    name: str


@pytest.mark.parametrize("kind", [Config, Constraints, Machine, Trial])
def test_a_record_is_a_frozen_dataclass_of_its_fields(kind: type) -> None:
    assert dataclasses.is_dataclass(kind)
    assert set(vars(kind)["__slots__"]) == {each.name for each in dataclasses.fields(kind)}


def test_records_are_compared_and_hashed_by_their_fields() -> None:
    assert One("a") == One("a")
    assert One("a") != One("b")
    others: list[object] = [OtherOne("a"), ("a",)]
    assert One("a") not in others
    assert hash(One("a")) == hash(One("a"))
    assert {Config(num_workers=2), Config(num_workers=2)} == {Config(num_workers=2)}


def test_a_record_is_shown_as_it_is_made() -> None:
    assert repr(One("a")) == "One(name='a')"
    config = Config(num_workers=3, prefetch_factor=4)
    assert eval(repr(config), {"Config": Config}) == config  # noqa: S307 - what repr is for


def test_a_record_can_not_be_changed_but_copied_and_sent() -> None:
    one = One("a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.name = "b"  # type: ignore[misc] # what is tried
    assert dataclasses.replace(one, name="b") == One("b")
    assert copy.deepcopy(one) == one
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 - made here
