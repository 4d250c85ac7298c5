"""Loggers for ``dlprof.watch(loader, log=…)``: TensorBoard, Weights & Biases, Prometheus.

Each is a function of the dictionary that ``watch`` logs. None imports what it logs to: it is given
an object of theirs, or writes a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dlprof.errors import UsageError
from dlprof.files import replace_file, replaceable
from dlprof.integrations.ranks import read_rank

Log = Callable[[dict[str, float]], None]

_STEP = "dlprof/batches"
_SUFFIX = ".prom"
_METRICS = (
    ("waited_s", "exposed_wait_seconds_total", "Time that the loop waited for its loader."),
    ("stepped_s", "step_seconds_total", "Time between a batch's arrival and the next request."),
    ("batches", "batches_total", "Batches that the loader gave."),
    ("epochs", "epochs_total", "Epochs that the loader began."),
    ("time_to_first_batch_s", "time_to_first_batch_seconds", "Time to the first batch of all."),
    ("wait_fraction", "exposed_wait_ratio", "Share of the loop's time that is wait, lately."),
    ("wait_p95_s", "exposed_wait_p95_seconds", "95th percentile of the wait for a batch, lately."),
    ("batches_per_s", "batches_per_second", "Batches per second, lately."),
    ("num_workers", "workers", "Workers of a loader that tunes itself."),
    ("prefetch_factor", "prefetch_factor", "Batches ahead of each of them."),
    ("changes", "tuning_changes_total", "Settings that were tried on it."),
)
"""What is logged, its name in Prometheus after ``dlprof_``, and its help."""


def tensorboard(writer: Any) -> Log:
    """Log to TensorBoard, over the number of batches so far.

    Args:
        writer: A ``SummaryWriter``, of torch's or tensorboardX's.
    """

    def log(values: dict[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, int(values[_STEP]))

    return log


def wandb(run: Any) -> Log:
    """Log to Weights & Biases, over the number of batches so far.

    The values go with the step that the training logs next, so that its own steps stay as they
    are. Where it logs none in between, they are a step of their own.

    Args:
        run: What ``wandb.init()`` returns.
    """
    run.define_metric("dlprof/*", step_metric=_STEP)
    pending: int | None = None  # the step that the values logged last will be part of

    def log(values: dict[str, float]) -> None:
        nonlocal pending
        if pending == run.step:
            run.log({}, commit=True)
        run.log(values, commit=False)
        pending = run.step

    return log


def prometheus(
    path: str | os.PathLike[str], *, loader: str = "loader", environ: Mapping[str, str] = os.environ
) -> Log:
    """Keep a file for the textfile collector of Prometheus' node exporter, replaced whole.

    Args:
        path: In the collector's folder, ending in ``.prom``; ranks of a job write a file each,
            with ``.rankN`` in its name.
        loader: The label ``loader``, which keeps several loaders apart; each needs its own file.
        environ: Where ``RANK`` and ``WORLD_SIZE`` are looked up.

    Raises:
        UsageError: The collector would not read a file of this name.
        FileError: No file can be written there.
    """
    file = Path(path)
    if file.suffix != _SUFFIX:
        raise UsageError(
            f"prometheus: {file} does not end in {_SUFFIX}",
            hint=f"The textfile collector reads *{_SUFFIX} only: call it {file.stem}{_SUFFIX}.",
        )
    rank = read_rank(environ)
    file = file if rank is None else rank.file(file)
    replaceable(file)
    file = file.absolute()  # the training may change the directory
    label = loader.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    labels = f'{{loader="{label}",rank="{0 if rank is None else rank.rank}"}}'

    def log(values: dict[str, float]) -> None:
        lines = []
        for key, name, text in _METRICS:
            if (value := values.get(f"dlprof/{key}")) is not None:
                kind = "counter" if name.endswith("_total") else "gauge"
                lines += [f"# HELP dlprof_{name} {text}", f"# TYPE dlprof_{name} {kind}"]
                lines.append(f"dlprof_{name}{labels} {value!r}")
        replace_file(file, "".join(f"{line}\n" for line in lines).encode())

    return log
