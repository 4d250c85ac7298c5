"""Copies to the device in calibrations and predictions."""

from __future__ import annotations

import dataclasses

import pytest
from builders import config
from finding_cases import Loader, explanation
from model_calibrations import constant
from predicted_runs import asked, calibrated, elsewhere

from dlprof.model.bounds import bounds, cell_of
from dlprof.model.calibrate import fit
from dlprof.model.predict import predict_all
from dlprof.model.work import Conditions
from dlprof.records import GpuInfo, Machine
from dlprof.records.machine import link_bytes_per_s

_PINNED = dataclasses.replace(config(2), pin_memory=True)
_ALONE = Conditions(cores=4, step_s=0.005)


def test_copies_are_calibrated_by_where_they_start() -> None:
    pageable = explanation(Loader(fetch_cpu=0.01, copy=0.004))
    pinned = explanation(Loader(config=_PINNED, fetch_cpu=0.01, copy=0.001))
    both = fit([pageable, pinned], [])
    assert both.copy_s == pytest.approx(0.004)
    assert both.pinned_copy_s == pytest.approx(0.001)
    alone = fit([pageable], [])
    assert alone.copy_s == pytest.approx(0.004)
    assert alone.pinned_copy_s is None
    assert fit([pinned], []).copy_s == pytest.approx(0.001)
    assert fit([explanation(Loader(fetch_cpu=0.01))], []).copy_s == 0


def test_a_copy_lengthens_the_step() -> None:
    calibration = constant(cpu=0.0001, copy_s=0.004, pinned_copy_s=0.001, pin=0.0001)
    plain = cell_of(calibration, config(2), _ALONE)
    pinned = cell_of(calibration, _PINNED, _ALONE)
    assert plain.step_s == pytest.approx(0.009)
    assert pinned.step_s == pytest.approx(0.006)
    unknown = dataclasses.replace(calibration, pinned_copy_s=None)
    assert cell_of(unknown, _PINNED, _ALONE).step_s == pytest.approx(0.009)


def test_pinning_pays_by_its_copies_and_costs_by_its_thread() -> None:
    def rate(pin_memory: bool, pin_s: float) -> float:  # the setting itself
        calibration = constant(cpu=0.001, copy_s=0.004, pinned_copy_s=0.001, pin=pin_s)
        chosen = dataclasses.replace(config(2), pin_memory=pin_memory)
        (found,) = predict_all(calibration, [chosen], _ALONE)
        return found.batches_per_s.value

    assert rate(True, 0.0005) > 1.3 * rate(False, 0.0005)  # 6 ms against 9
    assert rate(True, 0.012) < 0.95 * rate(False, 0.012)  # the thread takes longer than both


def test_a_slower_link_lengthens_copies() -> None:
    calibration = constant(cpu=0.0001, copy_s=0.004)
    slower = Conditions(cores=4, step_s=0.005, copy_scale=2.0)
    assert cell_of(calibration, config(2), slower).step_s == pytest.approx(0.013)
    assert bounds(cell_of(calibration, config(2), slower))["step"] < 1 / 0.013 * 1.01
    with pytest.raises(ValueError, match="copy_scale"):
        Conditions(cores=4, copy_scale=0)


def test_the_theory_of_links() -> None:
    card = GpuInfo(index=0, name="X", uuid="u", pcie_generation=3, pcie_width=16)
    assert card.link_bytes_per_s == pytest.approx(15.75e9, rel=1e-3)
    assert link_bytes_per_s(1, 16) == pytest.approx(4e9)
    assert link_bytes_per_s(5, 16) == pytest.approx(63e9, rel=1e-3)
    assert link_bytes_per_s(None, 16) is None
    assert link_bytes_per_s(9, 16) is None
    assert link_bytes_per_s(4, None) is None


def _with_link(at: Machine, generation: int | None) -> Machine:
    card = GpuInfo(index=0, name="X", uuid="u", pcie_generation=generation, pcie_width=16)
    return dataclasses.replace(at, gpus=(card,))


@pytest.mark.parametrize(
    ("here", "there", "scale"), [(4, 3, 2.0), (3, 5, 0.25), (4, None, 1.0), (None, 3, 1.0)]
)
def test_another_machines_link_sets_what_a_copy_takes_there(
    here: int | None, there: int | None, scale: float
) -> None:
    run = calibrated()
    mine = _with_link(run.header.machine, here)
    run = dataclasses.replace(run, header=dataclasses.replace(run.header, machine=mine))
    place = asked(run, machine=_with_link(elsewhere(8), there))
    assert place.conditions.copy_scale == pytest.approx(scale)


def test_an_answer_for_another_link_says_so() -> None:
    slower = _with_link(elsewhere(8), 3)
    for copy_s, said in ((0.004, True), (0.0, False)):
        run = calibrated(constant(cpu=0.004, copy_s=copy_s))
        mine = _with_link(run.header.machine, 4)
        run = dataclasses.replace(run, header=dataclasses.replace(run.header, machine=mine))
        notes = asked(run, machine=slower).notes
        assert any("2 times as long" in note for note in notes) is said
