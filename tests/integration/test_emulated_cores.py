"""Real loaders on emulated cores: predictions hold, within bounds that any machine keeps.

How exact they are, ``benchmarks/emulated.py`` says.
"""

from __future__ import annotations

import importlib
import statistics
from typing import Any

import pytest

from dlprof.model.calibrate import fit
from dlprof.model.predict import predict_all
from dlprof.model.work import Conditions
from dlprof.records import Calibration, Config

SAMPLE_S = 0.010
BATCH_S = 2 * SAMPLE_S

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.fixture
def emulated() -> Any:
    return importlib.import_module("emulated_cores")


def measured(emulated: Any, load: Any, config: Config, **where: Any) -> float:
    """Batches per second of one rank."""
    setup = emulated.Setup(load=load, config=config, window_s=0.5, batches=12, **where)
    return statistics.fmean(ran.rate for ran in emulated.run(setup))


def calibrated(emulated: Any, load: Any) -> Calibration:
    shown = []
    for workers in (0, 1):
        config = Config(num_workers=workers).canonical()
        setup = emulated.Setup(load=load, config=config, cores=1, window_s=0.3, batches=12)
        shown.append(emulated.explanation(setup, emulated.run(setup)[0], f"t{workers}"))
    return fit(shown, [])


def test_computing_takes_emulated_cores(emulated: Any) -> None:
    load = emulated.Load(cpu_s=SAMPLE_S, spread=0.0)
    config = Config(num_workers=4, prefetch_factor=2)
    one, three = (measured(emulated, load, config, cores=cores) for cores in (1, 3))
    # What is in flight at the window's ends may add a round of W batches, nothing else can.
    assert one <= 1.5 / BATCH_S
    assert three > 1.4 * one


def test_ranks_share_emulated_cores(emulated: Any) -> None:
    load = emulated.Load(cpu_s=SAMPLE_S, spread=0.0)
    config = Config(num_workers=2, prefetch_factor=2)
    assert measured(emulated, load, config, cores=2, ranks=2) <= 1.5 / BATCH_S


def test_waiting_takes_none(emulated: Any) -> None:
    load = emulated.Load(io_s=SAMPLE_S, spread=0.0)
    alone, four = (
        measured(emulated, load, Config(num_workers=w).canonical(), cores=1) for w in (0, 4)
    )
    assert four > 1.6 * alone


@pytest.mark.slow
def test_what_was_calibrated_on_one_core_is_foreseen_on_others(emulated: Any) -> None:
    load = emulated.Load(cpu_s=SAMPLE_S / 2, io_s=SAMPLE_S / 2)
    calibration = calibrated(emulated, load)
    for cores, ranks, workers in ((2, 1, 4), (1, 1, 4), (2, 2, 2)):
        config = Config(num_workers=workers, prefetch_factor=2)
        where = Conditions(cores=float(cores), ranks=ranks)
        rate = measured(emulated, load, config, cores=cores, ranks=ranks)
        found = predict_all(calibration, [config], where)[0]
        assert 0.5 * rate < found.batches_per_s.value < 2.0 * rate, (cores, ranks)
