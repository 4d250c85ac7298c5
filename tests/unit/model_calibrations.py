"""Calibrations made up for the tests of the model."""

from __future__ import annotations

import random
from typing import Any

from dlprof.model.bounds import binding, cell_of
from dlprof.model.predict import predict_all
from dlprof.model.work import Conditions
from dlprof.records import BatchCosts, Calibration, Config, Prediction


def constant(
    *,
    cpu: float = 0.0,
    io: float = 0.0,
    put: float = 0.0,
    between: float = 0.0,
    receive: float = 0.0,
    receive_io: float = 0.0,
    main: float = 0.0,
    let_go: float = 0.0,
    pin: float = 0.0,
    count: int = 60,
    **rest: Any,
) -> Calibration:
    """Every batch costs the same."""
    fetching: dict[str, Any] = {
        "cpu_s": (cpu,) * count,
        "io_s": (io,) * count,
        "main_cpu_s": (main,) * count,
        "let_go_cpu_s": (let_go,) * count,
    }
    if pin:
        fetching["pin_s"] = (pin,) * count
    fed = BatchCosts(
        put_cpu_s=(put,) * count,
        between_cpu_s=(between,) * count,
        receive_cpu_s=(receive,) * count,
        receive_io_s=(receive_io,) * count,
        **fetching,
    )
    return Calibration(in_main=BatchCosts(**fetching), in_workers=fed, **rest)


def tailed(
    *, io: float = 0.0, cpu: float = 0.0, slow: float = 0.05, factor: float = 15.0, seed: int = 1
) -> Calibration:
    """One batch in twenty costs fifteen times as much, at random places."""
    rng = random.Random(seed)
    factors = [factor if place < 400 * slow else 1.0 for place in range(400)]
    rng.shuffle(factors)
    costs = BatchCosts(
        cpu_s=tuple(cpu * each for each in factors), io_s=tuple(io * each for each in factors)
    )
    return Calibration(in_main=costs, in_workers=costs)


def fed(workers: int, prefetch: int = 2, **rest: Any) -> Config:
    """A configuration with workers."""
    return Config(num_workers=workers, prefetch_factor=prefetch, **rest)


def rate(calibration: Calibration, config: Config, **where: Any) -> float:
    """Predicted batches per second of one rank."""
    return prediction(calibration, config, **where).batches_per_s.value


def prediction(calibration: Calibration, config: Config, **where: Any) -> Prediction:
    """A prediction on eight cores, unless ``where`` says otherwise."""
    return predict_all(calibration, [config], conditions(**where))[0]


def lowest_bound(calibration: Calibration, config: Config, **where: Any) -> float:
    """The rate that the lowest of the bounds allows."""
    return binding(cell_of(calibration, config, conditions(**where)))[1]


def conditions(**where: Any) -> Conditions:
    """Eight cores, unless ``where`` says otherwise."""
    return Conditions(**({"cores": 8.0} | where))
