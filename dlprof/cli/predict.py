"""``dlprof predict``: what would settings, cores, ranks or a step that were not measured give?"""

from __future__ import annotations

from pathlib import Path

from dlprof.cli import options
from dlprof.errors import UsageError
from dlprof.settings.options import ELSEWHERE_PANEL, PLACE, PREDICTED, option_named


@options.command(
    *PREDICTED,
    options.varied(
        "step_time",
        text="Length of the training step, such as 12ms, or none.",
        default="as measured",
        panel=ELSEWHERE_PANEL,
    ),
    options.varied("ranks", panel=ELSEWHERE_PANEL),
    *PLACE,
    *("storage_limit", "max_wait"),
    options.varied("au", panel=option_named("max_wait").panel),
    kind="Ask a saved run",
    short="--num-workers --cores --ranks --step-time --assume-background --machine --feed --json "
    "--verbose",
    examples=(
        "dlprof predict RUN --cores 16 --ranks 2",
        "dlprof predict RUN --feed --step-time 12ms",
        "dlprof predict RUN --step-time 50ms --au 90%",
    ),
)
def predict(
    asked: options.Asked,
    *,
    run: Path = options.argument("A run file with a calibration.", "RUN"),
    machine: Path | None = options.MACHINE,
    feed: bool = options.option(
        "Say how many workers, cores and GB/s it takes to keep the step fed.",
        panel=option_named("max_wait").panel,
    ),
    method: str | None = options.option("", hidden=True),
) -> None:
    """Predict what was not measured.

    Settings, cores, ranks or steps. Measures nothing: it predicts from the costs of batches that
    dlprof sweep or profile kept.
    """
    if method is not None:
        raise UsageError("--method is gone: there is one predictor", hint="Leave --method out.")
    from dlprof import api
    from dlprof.report import predict as views
    from dlprof.store import read_run

    given = {"machine": machine, **asked.given}
    found = api.ask_prediction(read_run(run), given, feed=feed, prefix="--")
    asked.show(
        lambda: views.predict_document(found),
        lambda: views.feed_report(found) if feed else views.forecast_report(found),
    )
