"""What a predicted answer says beside: the machine in another state, and what to measure there."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Iterator

from dlprof.advise.choice import Choice
from dlprof.advise.predict.carried import predictions
from dlprof.advise.predict.cells import base_config
from dlprof.advise.reasons import CAVEATS
from dlprof.advise.recommend import decide, expected_of
from dlprof.advise.situation import usable_calibration
from dlprof.advise.thresholds import STORAGE_WAITS, UNORDERED_PAYS
from dlprof.model import cell_of, describe
from dlprof.records import Config, PredictedCase, Reason, Run, ToMeasure
from dlprof.units import format_duration

_KEPT = (
    "pin_memory",
    "batch_size",
    "in_order",
    "start_method",
    "sharing_strategy",
    "worker_threads",
)
"""Settings that change what a batch costs, and that a command would otherwise choose itself."""


def cases_of(run: Run, choice: Choice) -> Iterator[PredictedCase]:
    """The machine as shared now, where that is known, and dedicated."""
    shared = choice.situation.neighbours
    states = {"as shared now": shared, "dedicated": 0.0} if shared else {"dedicated": 0.0}
    for name, neighbours in states.items():
        found, mine = choice, choice.pick
        if neighbours != shared:
            where = dataclasses.replace(
                choice.situation, neighbours=neighbours, as_measured=False, by_model=True
            )
            found, _ = decide(run, where, also=mine.config)
            mine = found.of(mine.config) or found.pick
        bound = "" if mine.prediction is None else describe(mine.prediction.bound)
        yield PredictedCase(
            name=name,
            neighbours=neighbours,
            expected=expected_of(found, mine),
            bound=bound,
            best=found.pick.config,
            best_samples_per_s=found.speeds.rate(found.pick.key),
        )


def unordered(run: Run, choice: Choice) -> Iterator[Reason]:
    """What yielding batches as they come would earn, and cost, where it is worth a sentence."""
    config = choice.pick.config
    if config.num_workers < 2 or not config.in_order:
        return
    other = dataclasses.replace(config, in_order=False)
    found = predictions(run, choice.situation, [config, other])
    gain = found[other].batches_per_s.value / found[config].batches_per_s.value
    if gain >= UNORDERED_PAYS:
        claim = f"in_order=False would give {gain:.2f}x of that, {CAVEATS['in_order']}"
        yield Reason(claim=claim, evidence={"gain": gain})


def checks(run: Run, choice: Choice) -> Iterator[ToMeasure]:
    """What to find out, the most telling first.

    Args:
        run: Whose target is to be measured there.
        choice: The answer that is to be made sure.
    """
    situation, pick = choice.situation, choice.pick
    target, kept = _target(run), _kept(run, pick.config)
    where = " there" if situation.extrapolated else ""
    yield ToMeasure(
        what=f"whether {pick.name} is the best{where}", command=f"{_sweep(target, choice)}{kept}"
    )
    if not situation.extrapolated:
        return
    yield ToMeasure(
        what="what a batch costs on its cores: dlprof recommend with the new run file predicts "
        "from that",
        command=f"dlprof profile {target} --num-workers 2{kept}",
    )
    means = cell_of(usable_calibration(run), pick.config, situation.conditions).work.means
    whole = means.cpu + means.io
    if whole > 0 and means.io > STORAGE_WAITS * whole:
        yield ToMeasure(
            what=f"whether its storage makes a batch wait {format_duration(means.io)}, as here",
            command=f"dlprof profile {target} --num-workers 2{kept} --cold-cache",
        )
    yield ToMeasure(
        what="how many cores others keep busy: give that with --neighbours",
        command="dlprof machine",
    )


def _sweep(target: str, choice: Choice) -> str:
    config, limits = choice.pick.config, choice.situation.constraints
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
