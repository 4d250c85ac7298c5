"""What to measure on the machine in question, so that a predicted answer becomes a sure one."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator

from dlprof.advise.predict.cells import base_config
from dlprof.advise.predict.choosing import Chosen
from dlprof.model import cell_of
from dlprof.records import Calibration, Config, Run, ToMeasure
from dlprof.units import format_duration

_WAITS = 0.2
"""Share of a batch's time spent waiting from which storage decides."""

_KEPT = (
    "pin_memory",
    "batch_size",
    "in_order",
    "start_method",
    "sharing_strategy",
    "worker_threads",
)
"""Settings that change what a batch costs, and that a command would otherwise choose itself."""


def checks(run: Run, calibration: Calibration, chosen: Chosen) -> Iterator[ToMeasure]:
    """What to find out, the most telling first.

    Args:
        run: Whose target is to be measured there.
        calibration: What was predicted from.
        chosen: The answer that is to be made sure.
    """
    target, kept = _target(run), _kept(run, chosen.pick.config)
    sweep = f"{_sweep(target, chosen)}{kept}"
    yield ToMeasure(what=_whether_best(chosen), command=sweep)
    if not chosen.place.extrapolated:
        return
    yield ToMeasure(
        what="what a batch costs on its cores: dlprof recommend with the new run file predicts "
        "from that",
        command=f"dlprof profile {target} --num-workers 2{kept}",
    )
    means = cell_of(calibration, chosen.pick.config, chosen.place.conditions).work.means
    whole = means.cpu + means.io
    if whole > 0 and means.io > _WAITS * whole:
        yield ToMeasure(
            what=f"whether its storage makes a batch wait {format_duration(means.io)}, as here",
            command=f"dlprof profile {target} --num-workers 2{kept} --cold-cache",
        )
    yield ToMeasure(
        what="how many cores others keep busy: give that with --neighbours",
        command="dlprof machine",
    )


def _whether_best(chosen: Chosen) -> str:
    where = " there" if chosen.place.extrapolated else ""
    return f"whether {chosen.pick.name} is the best{where}"


def _sweep(target: str, chosen: Chosen) -> str:
    config, limits = chosen.pick.config, chosen.situation.constraints
    values = {0, config.num_workers // 2, config.num_workers}
    values.add(max(2, math.ceil(1.5 * config.num_workers)))
    if limits.max_workers is not None:
        values = {value for value in values if value <= limits.max_workers}
    parts = [f"dlprof sweep {target} --num-workers {','.join(map(str, sorted(values)))}"]
    if config.num_workers:
        parts.append(f"--prefetch-factor {config.prefetch_factor}")
    if limits.step_s is not None:
        parts.append(f"--step-time {limits.step_s * 1000:g}ms")
    if limits.ranks > 1:
        parts.append(f"--ranks {limits.ranks}")
    return " ".join(parts)


def _kept(run: Run, pick: Config) -> str:
    """The other settings that were predicted with, as options: without them others are measured.

    Nothing for those that are the target's own anyway.
    """
    config = pick if pick.num_workers else base_config(run)
    header = run.header
    own = header.target.present_settings(has_accelerator=header.accelerator is not None) or Config()
    words = []
    for name in _KEPT:
        value = getattr(config, name)
        if value is not None and value != getattr(own, name):
            words.append(f"--{name.replace('_', '-')} {_as_given(value)}")
    shuffle = header.settings.get("shuffle")
    if isinstance(shuffle, bool):
        words.append("--shuffle" if shuffle else "--no-shuffle")
    return "".join(f" {word}" for word in words)


def _as_given(value: object) -> str:
    """A setting as an option takes it."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _target(run: Run) -> str:
    """The target as it was written, its arguments behind it."""
    given = run.header.settings.get("arguments")
    pairs = given.items() if isinstance(given, dict) else ()
    words = [shlex.quote(run.header.target.spec)]
    words += [f"--arg {shlex.quote(f'{name}={value}')}" for name, value in pairs]
    return " ".join(words)
