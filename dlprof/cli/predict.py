"""``dlprof predict``: what would settings, cores, ranks or a step that were not measured give?"""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlprof.cli import elsewhere, options, streams
from dlprof.errors import UsageError

if TYPE_CHECKING:
    from dlprof.advise.situation import Situation
    from dlprof.records import Config, Run

_FEEDING = "Feeding a step"


def predict(  # noqa: PLR0913 - a command has as many parameters as it has options
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run file with a calibration.")],
    *,
    num_workers: options.NumWorkers = None,
    prefetch_factor: options.PrefetchFactor = None,
    pin_memory: options.PinMemory = None,
    in_order: options.InOrder = None,
    sharing_strategy: options.SharingStrategy = None,
    step_time: Annotated[
        str | None,
        typer.Option(
            "--step-time",
            metavar="TIME",
            help="Length of the training step, such as 12ms, or none. Default: as measured.",
            rich_help_panel=elsewhere.PLACE,
        ),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(
            "--ranks",
            metavar="N",
            help="Training processes on the machine, one loader each. Default: 1.",
            rich_help_panel=elsewhere.PLACE,
        ),
    ] = None,
    cores: elsewhere.Cores = None,
    neighbours: elsewhere.Neighbours = None,
    speed: elsewhere.Speed = None,
    storage_limit: elsewhere.StorageLimit = None,
    machine: elsewhere.MachineFile = None,
    feed: Annotated[
        bool,
        typer.Option(
            "--feed",
            help="Say how many workers, cores and GB/s it takes to keep the step fed.",
            rich_help_panel=_FEEDING,
        ),
    ] = False,
    max_wait: Annotated[
        str | None,
        typer.Option(
            "--max-wait",
            metavar="SHARE",
            help="Share of time that a step that is fed may wait. Default: 2%.",
            rich_help_panel=_FEEDING,
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            hidden=True,
        ),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Predict what settings, cores, ranks or steps that were not measured would give.

    Measures nothing: it predicts from the costs of batches that dlprof sweep or profile kept.
    """
    del quiet  # taken as by every command; there is no progress to hide
    axes = _axes(
        {
            "num_workers": num_workers,
            "prefetch_factor": prefetch_factor,
            "pin_memory": pin_memory,
            "in_order": in_order,
            "sharing_strategy": sharing_strategy,
        }
    )
    wait = elsewhere.option("max_wait", max_wait)
    if wait is not None and not feed:
        raise UsageError("--max-wait belongs to --feed", hint="Give --feed too, or leave it out.")
    if method is not None:
        raise UsageError("--method is gone: there is one predictor", hint="Leave --method out.")
    from dlprof.store import read_run

    measured = read_run(run)
    situation = elsewhere.situation_of(
        measured,
        machine=machine,
        cores=cores,
        ranks=ranks,
        step_time=step_time,
        storage_limit=storage_limit,
        neighbours=neighbours,
        speed=speed,
    )
    if feed:
        _feed(measured, situation, axes, wait=wait, as_json=as_json, verbose=verbose)
    else:
        _forecast(measured, situation, axes, as_json=as_json, verbose=verbose)


def _axes(given: Mapping[str, str | None]) -> dict[str, Sequence[object]]:
    """The values of the settings that were named."""
    named = {key: text for key, text in given.items() if text is not None}
    if not named:
        return {}
    from dlprof.settings import parse_option

    values = {key: parse_option(key, text) for key, text in named.items()}
    return {key: value for key, value in values.items() if value is not None}


def _forecast(
    run: Run,
    situation: Situation,
    axes: Mapping[str, Sequence[object]],
    *,
    as_json: bool,
    verbose: bool,
) -> None:
    from dlprof.advise.predict.cells import wanted_configs
    from dlprof.advise.predict.forecast import forecast

    answer = forecast(run, wanted_configs(run, situation, axes), situation)
    if as_json:
        from dlprof.report.predict import forecast_document

        streams.write_result(forecast_document(run, answer))
        return
    from dlprof.report.predict import forecast_report

    whole = bool(axes.keys() - {"num_workers"})
    streams.print_result(forecast_report(run, answer, whole=whole), verbose=verbose)


def _feed(
    run: Run,
    situation: Situation,
    axes: Mapping[str, Sequence[object]],
    *,
    wait: float | None,
    as_json: bool,
    verbose: bool,
) -> None:
    from dlprof.advise.predict.cells import base_config
    from dlprof.advise.predict.feed import feed
    from dlprof.advise.thresholds import FED_WAIT_FRACTION

    base = _only_one(base_config(run), axes)
    allowed = FED_WAIT_FRACTION if wait is None else wait
    answer = feed(run, situation, max_wait=allowed, base=base)
    if as_json:
        from dlprof.report.predict import feed_document

        streams.write_result(feed_document(run, answer))
        return
    from dlprof.report.predict import feed_report

    streams.print_result(feed_report(run, answer), verbose=verbose)


def _only_one(base: Config, axes: Mapping[str, Sequence[object]]) -> Config:
    """The other settings of the loader that is to feed; how many workers is what is asked.

    Raises:
        UsageError: Workers or queued batches were named, or several values of another setting.
    """
    from dlprof.advise.predict.cells import configs_of

    for name in ("num_workers", "prefetch_factor"):
        if name in axes:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"--feed finds {name} by itself", hint=f"Leave {flag} out.")
    made = configs_of(base, axes)
    if len(made) > 1:
        raise UsageError(
            "--feed takes one value of each setting", hint="Ask for each of them by itself."
        )
    return made[0]
