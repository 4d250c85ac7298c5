"""The same planted causes for dlprof and for what others offer: right cause, a fix that helps?

TraceML and loadtune run as their users run them, from ``--site SITE`` (``pip install --no-deps
--target SITE traceml-ai loadtune psutil msgspec pyyaml nvidia-ml-py rich numpy``), Lightning's
warning is asked of the installed package; all are left out where they are missing. Paddle's tuner
and grain's rule are written from their sources. Each fix is applied and measured in turns,
once where two of them propose the same.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import RESULTS, Report, Table, keep, parser, publish, surroundings
from peers import PeerError, run_loadtune
from planted import ask
from planted_cases import CASES, HEALTHY, Case, nowhere
from planted_gains import measure_gain
from torch.utils.data import DataLoader, IterableDataset, Subset

NAME = "head_to_head"
_BUDGET_S, _QUICK_S = 20.0, 8.0
_TUNING_BATCHES = 40
"""Of Paddle's 500, which would take minutes of these loaders."""

_HELPS, _HARMS = 1.05, 0.97
_TRAIN = """
import runpy, sys, time
import torch
import traceml_ai as traceml
traceml.init(mode="auto")
model = torch.nn.Linear(1, 1)
made = runpy.run_path({file!r})[{name!r}](**{arguments!r})
ends = time.monotonic() + {seconds}
while time.monotonic() < ends:
    for batch in made:
        with traceml.trace_step(model):
            model(torch.zeros(1, 1)).sum().backward()
            time.sleep({step_s})
        if time.monotonic() > ends:
            break
"""
_VERDICT = re.compile(r"Verdict: *(?P<what>[A-Z-]+)")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What one of them says of a loader.

    Attributes:
        codes: Of the causes that its words amount to; none for "all is well".
        settings: What to set; empty where it names no values.
        code: Source that is a part of the fix.
        gain: What it promises; ``None`` for nothing.
    """

    codes: Sequence[str] = ()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    code: str = ""
    gain: float | None = None


def _loader(case: Case) -> DataLoader[Any]:
    module = importlib.import_module(case.file.stem)
    made: DataLoader[Any] = getattr(module, case.target or case.name)(**case.arguments)
    return made


def _workers(loader: DataLoader[Any], count: int) -> Said:
    """So many workers, as an answer."""
    if count == loader.num_workers:
        return Said()
    code = "too_few_workers" if count > loader.num_workers else "too_many_workers"
    return Said(codes=(code,), settings={"num_workers": count})


def dlprof(case: Case, budget_s: float) -> Said:
    """``dlprof profile``: its first finding."""
    found = ask(case, budget_s)
    first = next(iter(found.findings), None)
    if found.error:
        raise PeerError(found.error[-200:])
    if first is None or first["code"] == "consumer":
        return Said(codes=() if first is None else ("consumer",))
    fix, gain = first["fix"] or {}, first["predicted_gain"]
    return Said(
        codes=(first["code"],),
        settings=fix.get("dataloader_kwargs") or {},
        code=fix.get("code") or "",
        gain=None if gain is None else gain["value"],
    )


def lightning(case: Case, _budget_s: float) -> Said:
    """The warning of Lightning's ``Trainer.fit``."""
    try:
        from lightning.pytorch.trainer.connectors import data_connector
    except ImportError as error:
        raise PeerError(str(error)) from error
    loader = _loader(case)
    trainer: Any = types.SimpleNamespace(num_devices=1, reload_dataloaders_every_n_epochs=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data_connector._worker_check(trainer, loader, "train_dataloader")  # noqa: SLF001 - the check that is compared
    said = " ".join(str(each.message) for each in caught)
    if "persistent_workers=True" in said:
        return Said(codes=("startup",), settings={"persistent_workers": True})
    found = re.search(r"num_workers=(\d+)", said)
    return Said() if found is None else _workers(loader, int(found[1]))


def grain(case: Case, _budget_s: float) -> Said:
    """The rule of ``pick_performance_config``: as many as fit by five elements' size."""
    loader = _loader(case)
    alone = _again(loader, loader.dataset, 0) if loader.batch_size is not None else loader
    sizes = [sum(_bytes(batch)) for batch in itertools.islice(alone, 5)]
    budget = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / 2
    most = os.cpu_count() or 1
    fits = int(budget / max(1.0, statistics.fmean(sizes)))
    return _workers(loader, min(fits, most) if len(sizes) == 5 else most)


def _bytes(batch: Any) -> list[int]:
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return [size for each in batch for size in _bytes(each)]
    return [getattr(batch, "nbytes", 0)]


def _again(loader: DataLoader[Any], dataset: Any, workers: int) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        batch_size=loader.batch_size,
        num_workers=workers,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
    )


def paddle(case: Case, _budget_s: float) -> Said:
    """Paddle's ``AuToTune``: up by two workers to half of the CPUs while the cost falls by 25 %."""
    loader = _loader(case)
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return Said()
    dataset: Any = loader.dataset
    count = min(len(dataset), loader.batch_size * _TUNING_BATCHES)
    part: Any = Subset(dataset, range(count))
    best, least_s, most = 0, math.inf, (os.cpu_count() or 1) / 2
    for workers in itertools.count(0, 2):
        if workers >= most:
            break
        cost_s = _cost_s(_again(loader, part, workers))
        if least_s * 0.75 <= cost_s:
            break
        best, least_s = workers, cost_s
    return _workers(loader, best)


def _cost_s(loader: DataLoader[Any]) -> float:
    costs, began_s = [], time.perf_counter()
    for _ in loader:
        costs.append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
    return statistics.fmean(costs[2:] or costs)


def loadtune(site: Path) -> Callable[[Case, float], Said]:
    """``loadtune tune``, for map-style datasets."""

    def asked(case: Case, _budget_s: float) -> Said:
        loader = _loader(case)
        if isinstance(loader.dataset, IterableDataset) or case.arguments:
            raise PeerError("it takes map-style datasets")
        config = run_loadtune(case.spec, site).config
        shown = _workers(loader, config.num_workers)
        settings = config.dataloader_kwargs()
        return dataclasses.replace(
            shown, settings={name: settings[name] for name in shown.settings}, gain=None
        )

    return asked


def traceml(site: Path) -> Callable[[Case, float], Said]:
    """``traceml run`` of a training over the loader, with its step marked."""

    def asked(case: Case, budget_s: float) -> Said:
        step_s = float(case.values().get("--step-time", "0ms").removesuffix("ms")) / 1000
        given = {"file": str(case.file), "name": case.target or case.name}
        script = _TRAIN.format(
            **given, arguments=case.arguments, seconds=0.8 * budget_s, step_s=step_s
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "train.py"
            path.write_text(script)
            paths = os.pathsep.join([str(site), str(case.file.parent)])
            done = subprocess.run(
                [sys.executable, "-m", "traceml_ai.launcher.cli", "run", str(path)],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": paths},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=10 * budget_s,
                check=False,
            )
        found = _VERDICT.search(done.stdout + done.stderr)
        if found is None:
            raise PeerError((done.stdout + done.stderr)[-200:])
        # "Increase workers, prefetch, or storage throughput" is all of its advice.
        bound = found["what"].startswith("INPUT")
        return Said(codes=("too_few_workers", "prefetch.shallow", "fetch.io") if bound else ())

    return asked


def _true_gain(case: Case, said: Said) -> float | None:
    """Measured, where the fix is one of settings."""
    if not said.settings:
        return None
    finding = {
        "code": "",
        "fix": {"dataloader_kwargs": dict(said.settings), "code": said.code},
        "predicted_gain": {"value": said.gain or 1.0, "low": None, "high": None},
        "evidence": {},
    }
    found = measure_gain(case, [finding])
    return None if found is None else found.true


def _is_right(case: Case, said: Said) -> bool:
    if case in HEALTHY:
        return not set(said.codes) - {"consumer"}
    return bool({case.code, *case.also} & set(said.codes))


def report(rows: Sequence[Mapping[str, Any]]) -> Report:
    """Who was right, whose fixes help, who cried wolf."""
    tables = []
    for name in dict.fromkeys(row["who"] for row in rows):
        mine = [row for row in rows if row["who"] == name]
        planted, sound = ([r for r in mine if r["sound"] is each] for each in (False, True))
        true = [row["true"] for row in mine if row["true"] is not None]
        kept = [0.8 <= r["true"] / r["gain"] <= 1.25 for r in mine if r["true"] and r["gain"]]
        tables.append(
            [
                *(name, f"{sum(r['right'] for r in planted)} of {len(planted)}"),
                f"{sum(not r['right'] for r in sound)} of {len(sound)}",
                *(f"{sum(g >= _HELPS for g in true)} of {len(true)}", str(_count_harm(true))),
                f"{sum(kept)} of {len(kept)}" if kept else "promises none",
            ]
        )
    columns = ("who", "right cause", "false alarms", "fixes that help", "that harm", "gains kept")
    names = {row["who"] for row in rows}
    right = {who: sum(r["right"] for r in rows if r["who"] == who) for who in names}
    return Report(
        name=NAME,
        title="The same causes for dlprof and others",
        goal="dlprof is right more often than each of them",
        passed="dlprof" in right
        and all(right["dlprof"] > right[who] for who in names - {"dlprof"}),
        tables=[
            Table("", columns, tables),
            Table(
                "Case by case",
                ("case", "planted", "who", "says", "promised", "true gain"),
                [
                    [
                        *(row["case"], row["planted"], row["who"], row["says"] or "all is well"),
                        *(("-" if row[k] is None else f"{row[k]:.2f}") for k in ("gain", "true")),
                    ]
                    for row in rows
                ],
            ),
        ],
        notes=[f"A fix helps from {_HELPS} on, and harms below {_HARMS}."],
        data={"rows": list(rows)},
    )


def _count_harm(true: Sequence[float]) -> int:
    return sum(gain < _HARMS for gain in true)


def main() -> None:
    """Ask all of them about all cases."""
    options = parser(__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", help="cases, or beginnings of them")
    options.add_argument("--site", type=Path, help="where TraceML and loadtune are installed")
    options.add_argument("--more", action="store_true", help="only cases that are not done yet")
    options.add_argument("--minutes", type=float, default=90.0, help="none is begun after them")
    given = options.parse_args()
    quick = given.quick or (bool(given.names) and not given.more)
    plain = [case for case in (*CASES, *HEALTHY) if case.place is nowhere]
    chosen = [case for case in plain if case.name.startswith(tuple(given.names) or "")]
    if given.quick and not given.names:
        chosen = [plain[2], plain[-1]]
    asked: dict[str, Callable[[Case, float], Said]] = {"dlprof": dlprof, "Lightning": lightning}
    asked |= {"grain": grain, "Paddle": paddle}
    if given.site is not None:
        asked |= {"loadtune": loadtune(given.site), "TraceML": traceml(given.site)}
    before, ends_s = surroundings(), time.monotonic() + 60 * given.minutes
    path = RESULTS / f"{NAME}.json"
    rows = json.loads(path.read_text())["data"]["rows"] if given.more and path.exists() else []
    done = {(row["case"], row["who"]) for row in rows}
    true: dict[str, float | None] = {}
    for case, (who, ask_it) in itertools.product(chosen, asked.items()):
        if (case.name, who) in done or time.monotonic() > ends_s:
            continue
        try:
            said = ask_it(case, _QUICK_S if given.quick else _BUDGET_S)
        except Exception as error:  # whatever another's program raises: it is left out
            print(f"{case.name}: {who} left out, {error!r}", file=sys.stderr)
            continue
        fix = json.dumps([case.name, said.settings, said.code], sort_keys=True)
        if not given.quick and fix not in true:
            true[fix] = _true_gain(case, said)
        row = {
            "case": case.name,
            "planted": "nothing" if case in HEALTHY else case.code,
            "sound": case in HEALTHY,
            "who": who,
            "says": ", ".join(said.codes),
            "right": _is_right(case, said),
            "gain": said.gain,
            "true": true.get(fix),
        }
        rows.append(row)
        print(row, file=sys.stderr, flush=True)
        keep(report(rows), before, quick=quick)
    publish(report(rows), before, quick=quick)


if __name__ == "__main__":
    main()
