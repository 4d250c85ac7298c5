"""Records are dataclasses like any other, whatever they are made by."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle

import builders
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.records import Config, Constraints, Estimate, Machine, Trial
from dlprof.records.record import record


@record(frozen=True, slots=True)
class One:
    name: str


@record(frozen=True, slots=True)
class OtherOne:
    name: str


@record(frozen=True, slots=True)
class Noted:
    name: str
    figures: dict[str, int] = dataclasses.field(hash=False)
    seen: str = dataclasses.field(default="", repr=False)


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


def test_a_field_may_be_left_out_of_the_hash_and_of_what_is_shown() -> None:
    one, other = Noted("a", {"n": 1}, "x"), Noted("a", {"n": 2}, "x")
    assert hash(one) == hash(other)
    assert one != other
    assert repr(one) == "Noted(name='a', figures={'n': 1})"


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
    assert pickle.loads(pickle.dumps(one)) == one


def test_an_interval_goes_the_way_of_its_figure() -> None:
    seen = Estimate(value=1.0, low=0.0, high=2.0)
    assert seen.through(math.exp) == Estimate(value=math.e, low=1.0, high=math.exp(2.0))
    assert Estimate(value=4.0).through(math.sqrt) == Estimate(value=2.0)
    assert seen.ends == (0.0, 2.0)
    assert Estimate(value=3.0, high=4.0).ends == (3.0, 4.0)


@pytest.mark.parametrize(
    ("whole", "limit", "size"),
    [(8, None, 8), (8, 3, 3), (2, 3, 2), (None, 3, 3), (None, None, None)],
)
def test_a_job_has_no_more_memory_than_its_limit(
    whole: int | None, limit: int | None, size: int | None
) -> None:
    found = builders.machine(2, memory_bytes=whole, memory_limit_bytes=limit)
    assert found.memory_size_bytes == size


POSITIVE = st.floats(min_value=1e-9, max_value=1e9)
FACTORS = st.floats(min_value=1.0, max_value=1e6)
ENDS = st.floats(min_value=-1e12, max_value=1e12) | st.just(math.inf)


def spread_of(value: float, low: float, high: float) -> float:
    found = Estimate(value=value, low=low, high=high).log_sd
    assert found is not None
    return found


@given(POSITIVE, st.floats(min_value=0.0, max_value=1.2))
def test_an_interval_says_how_far_off_its_figure_is(value: float, log_sd: float) -> None:
    half = math.exp(1.96 * log_sd)
    found = spread_of(value, value / half, value * half)
    assert found == pytest.approx(log_sd, rel=1e-6, abs=1e-9)
    # As the interval of a time, or in another unit, says it of the rate.
    seen = Estimate(value=value, low=value / half, high=value * half)
    assert seen.inverse.log_sd == pytest.approx(found, rel=1e-6, abs=1e-9)
    assert seen.times(7.0).log_sd == pytest.approx(found, rel=1e-6, abs=1e-9)


@given(POSITIVE, FACTORS, FACTORS, FACTORS, FACTORS)
def test_a_wider_interval_is_never_surer(
    value: float, down: float, up: float, lower: float, higher: float
) -> None:
    narrow = spread_of(value, value / down, value * up)
    assert spread_of(value, value / (down * lower), value * (up * higher)) >= narrow - 1e-9
    assert spread_of(value, -value, value * up) >= narrow - 1e-9
    assert spread_of(value, value / down, math.inf) >= narrow - 1e-9


@given(POSITIVE, st.floats(min_value=0.0, max_value=0.2))
def test_a_narrow_interval_is_as_wide_in_logarithms(value: float, half: float) -> None:
    found = spread_of(value, value * (1 - half), value * (1 + half))
    assert found == pytest.approx(half / 1.96, rel=0.02, abs=1e-9)


@given(POSITIVE, ENDS, ENDS)
def test_no_interval_makes_a_spread_that_is_none(value: float, low: float, high: float) -> None:
    assert 0 <= spread_of(value, low, high) < math.inf
    # To within a whole of the figure: an error of a half, and none of many times the figure.
    assert spread_of(1.0, 0.0, 2.0) == pytest.approx(0.53, abs=0.01)
    assert spread_of(1.0, 0.5, math.inf) == pytest.approx(0.53, abs=0.01)


def test_without_an_interval_nothing_is_known_of_the_spread() -> None:
    assert Estimate(value=1.0).log_sd is None
    assert Estimate(value=0.0, low=0.0, high=0.0).log_sd is None
