"""``dlprof predict``: what would settings, cores, ranks or a step that were not measured give?"""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlprof.cli import elsewhere, options, streams
from dlprof.errors import UsageError
from dlprof.settings.options import ELSEWHERE_PANEL, option_named

if TYPE_CHECKING:
    from dlprof.advise.situation import Situation
    from dlprof.records import Config, Run

_AXES = ("num_workers", "prefetch_factor", "pin_memory", "in_order", "sharing_strategy")


@options.takes(
    *_AXES,
    options.varied(
        "step_time",
        text="Length of the training step, such as 12ms, or none.",
        default="as measured",
        panel=ELSEWHERE_PANEL,
    ),
    options.varied("ranks", panel=ELSEWHERE_PANEL),
    *elsewhere.PLACE,
    "storage_limit",
    "max_wait",
)
def predict(
    given: options.Given,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run file with a calibration.")],
    *,
    machine: elsewhere.MachineFile = None,
    feed: Annotated[
        bool,
        typer.Option(
            "--feed",
            help="Say how many workers, cores and GB/s it takes to keep the step fed.",
            rich_help_panel=option_named("max_wait").panel,
        ),
    ] = False,
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
    axes = {key: values for key in _AXES if (values := elsewhere.read(given, key)) is not None}
    wait = elsewhere.read(given, "max_wait")
    if wait is not None and not feed:
        raise UsageError("--max-wait belongs to --feed", hint="Give --feed too, or leave it out.")
    if method is not None:
        raise UsageError("--method is gone: there is one predictor", hint="Leave --method out.")
    from dlprof.store import read_run

    measured = read_run(run)
    situation = elsewhere.situation_of(measured, given, machine)
    if feed:
        _feed(measured, situation, axes, wait=wait, as_json=as_json, verbose=verbose)
    else:
        _forecast(measured, situation, axes, as_json=as_json, verbose=verbose)


def _forecast(
    run: Run,
    situation: Situation,
    axes: Mapping[str, Sequence[object]],
    *,
    as_json: bool,
    verbose: bool,
) -> None:
    from dlprof.advise.candidates import wanted_configs
    from dlprof.advise.forecast import forecast

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
    from dlprof.advise.candidates import base_config
    from dlprof.advise.forecast import feed
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
    from dlprof.advise.candidates import configs_of

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
