"""All that needs an accelerator, in under eight minutes: copies, exposure, pinning, sampling."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

from common import DLPROF, CommandError, Report, Table, parser, publish, run_command, surroundings

HERE = Path(__file__).parent
TARGETS = HERE / "gpu_targets.py"
KINDS = (
    *("many_small", "one_large", "ragged_list", "uint8_images", "variable_shapes"),
    "already_there",
)
LIMIT_S = 480.0
LARGE, QUICK_LARGE = 1 << 28, 1 << 22
RATE_GOAL, LINK_GOAL, EXPOSED_GOAL, SAMPLING_GOAL = 0.03, 0.95, 0.10, 0.01
SAME = 0.02
"""Gain of pinning below which neither answer is wrong."""

GOAL = (
    f"pinned copies of 256 MB within {RATE_GOAL:.0%} of a loop timed by device events and at least "
    f"{LINK_GOAL:.0%} of nvbandwidth's; exposed copy time within {EXPOSED_GOAL:.0%} of the loop "
    "with copies less the loop without; the pick of pin_memory the measured best in six of six; "
    f"sampling costs at most {SAMPLING_GOAL:.0%} of the throughput"
)
NO_DEVICE = "gpu: torch finds no accelerator here, so that there is nothing to measure."


class Plain:
    """The loops by hand, in a process of their own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(HERE / "gpu_plain.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        """Of that process."""
        return self._process.pid

    def ask(self, do: str, **request: Any) -> Any:
        """What a request gives.

        Raises:
            RuntimeError: The process failed; it has said why on standard error.
        """
        stdin, stdout = cast(Any, self._process.stdin), cast(Any, self._process.stdout)
        print(json.dumps({"do": do, **request}), file=stdin, flush=True)
        line = stdout.readline()
        if not line:
            raise RuntimeError("the loop by hand failed")
        return json.loads(line)

    def close(self) -> None:
        """End it."""
        cast(Any, self._process.stdin).close()
        self._process.wait(30)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of the report.

    Attributes:
        what: Was compared.
        dlprof: Dlprof's figure, as a text.
        other: What it is held against.
        ratio: As a text.
        passed: Whether the goal was reached; ``None`` where it couldn't be held against anything.
    """

    what: str
    dlprof: str
    other: str
    ratio: str
    passed: bool | None


def copies(plain: Plain, device: str, *, quick: bool) -> list[Result]:
    """The fastest large pinned copies, three ways."""
    size, budget = (QUICK_LARGE, "2s") if quick else (LARGE, "15s")
    shown = _json(["transfer", "--device", device, "--budget", budget])
    mine = _rate_of(shown, size)
    others = {
        "a loop timed by device events": plain.ask("events", bytes=size, pinned=True),
        "torch.utils.benchmark": plain.ask("timer", bytes=size),
        "nvbandwidth": nvbandwidth(),
    }
    return [_copied(name, mine, rate, size) for name, rate in others.items()]


def _copied(name: str, mine: float | None, rate: float | None, size: int) -> Result:
    what = f"pinned copies of {size >> 20} MiB, against {name}"
    if mine is None or rate is None:
        return Result(what=what, dlprof=_speed(mine), other=_speed(rate), ratio="-", passed=None)
    ratio = mine / rate
    reached = {"events": abs(ratio - 1) <= RATE_GOAL, "nvbandwidth": ratio >= LINK_GOAL}
    return Result(
        what=what,
        dlprof=_speed(mine),
        other=_speed(rate),
        ratio=f"{ratio:.3f}",
        passed=reached.get(name.rpartition(" ")[2]),
    )


def _rate_of(shown: dict[str, Any], size: int) -> float | None:
    """The fastest copies of one size, pinned where anything could be pinned."""
    cells = [cell for cell in shown["devices"][0]["cells"] if cell["bytes"] == size]
    pinned = [cell for cell in cells if cell["memory"] == "pinned"]
    return max((cell["bytes_per_s"] for cell in pinned or cells), default=None)


def nvbandwidth() -> float | None:
    """Bytes per second of NVIDIA's own tool; ``None`` where it isn't installed."""
    program = shutil.which("nvbandwidth")
    if program is None:
        return None
    try:
        shown = run_command([program, "-t", "host_to_device_memcpy_ce"]).stdout
    except CommandError:
        return None
    found = re.search(r"SUM host_to_device_memcpy_ce\s+([\d.]+)", shown)
    return float(found[1]) * 1e9 if found else None


def exposure(plain: Plain, device: str, *, quick: bool) -> list[Result]:
    """Exposed copy time against the loop with copies less the loop without."""
    results = []
    for pin in (False, True):
        shown = _sweep("one_large", device, pins=("on" if pin else "off",), quick=quick)
        mine = [trial["copies"]["exposed_s"] for trial in shown["trials"] if trial.get("copies")]
        request = {"kind": "one_large", "workers": 2, "pin": pin, "batches": 5 if quick else 60}
        taken: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(1 if quick else 5):
            for copied in random.sample((True, False), 2):
                taken[copied].append(plain.ask("loop", copies=copied, **request))
        other = statistics.median(taken[True]) - statistics.median(taken[False])
        what = f"exposed copy time, {'pinned' if pin else 'pageable'}"
        results.append(_exposed(what, [each for each in mine if each is not None], other))
    return results


def _exposed(what: str, mine: list[float], other: float) -> Result:
    other_text = f"{other * 1e3:.2f} ms"
    if not mine or other <= 0:
        return Result(what=what, dlprof="-", other=other_text, ratio="-", passed=None)
    ratio = statistics.median(mine) / other
    passed = abs(ratio - 1) <= EXPOSED_GOAL
    text = f"{statistics.median(mine) * 1e3:.2f} ms"
    return Result(what=what, dlprof=text, other=other_text, ratio=f"{ratio:.3f}", passed=passed)


def picks(plain: Plain, device: str, *, quick: bool) -> list[Result]:
    """The pick of ``pin_memory`` against what loops by hand gain by it."""
    return [_pick(plain, device, kind, quick=quick) for kind in KINDS]


def _pick(plain: Plain, device: str, kind: str, *, quick: bool) -> Result:
    shown = _sweep(kind, device, pins=("both",), quick=quick)
    picked = bool(shown["recommendation"]["config"]["pin_memory"])
    workers = 0 if kind == "already_there" else 2
    what = f"pin_memory for {kind.replace('_', ' ')}"
    if kind == "already_there":  # torch refuses to pin what is on the device
        return Result(what=what, dlprof=str(picked), other="False", ratio="-", passed=not picked)
    gains = []
    for _ in range(1 if quick else 5):
        taken = {
            pin: plain.ask(
                "loop", kind=kind, workers=workers, pin=pin, copies=True, batches=5 if quick else 60
            )
            for pin in random.sample((True, False), 2)
        }
        gains.append(taken[False] / taken[True])
    gain = statistics.median(gains)
    passed = abs(gain - 1) <= SAME or picked == (gain > 1)
    return Result(
        what=what, dlprof=str(picked), other=str(gain > 1), ratio=f"{gain:.3f}", passed=passed
    )


def sampling(plain: Plain, *, quick: bool) -> list[Result]:
    """The loop's rate with an observer beside it, over that without."""
    request = {"kind": "uint8_images", "workers": 2, "pin": True, "copies": True}
    ratios = []
    for _ in range(1 if quick else 6):
        taken = {}
        for watched in random.sample((True, False), 2):
            observer = _observer(plain.pid) if watched else None
            taken[watched] = plain.ask("loop", batches=5 if quick else 300, **request)
            if observer is not None:
                observer.communicate(timeout=30)
        ratios.append(taken[False] / taken[True])
    ratio = statistics.median(ratios)
    return [
        Result(
            what="throughput with the observer beside the loop, over that without",
            dlprof="sampled twice a second",
            other="not sampled",
            ratio=f"{ratio:.4f}",
            passed=ratio >= 1 - SAMPLING_GOAL,
        )
    ]


def _observer(pid: int) -> subprocess.Popen[str]:
    """A running observer, as a trial has it; ends with its standard input."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dlprof.trial.observer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    for order in ({"order": "watch", "pid": pid}, {"order": "start"}):
        print(json.dumps(order), file=process.stdin, flush=True)
    return process


def _sweep(kind: str, device: str, *, pins: tuple[str, ...], quick: bool) -> dict[str, Any]:
    is_fed = kind != "already_there"  # workers must not touch the device
    workers = ["--num-workers", "2", "--prefetch-factor", "2"] if is_fed else ["--num-workers", "0"]
    length = ["0.3s", "1"] if quick else ["2s", "3"]
    return _json(
        [
            *("sweep", f"{TARGETS}:{kind}", *workers, "--persistent-workers", "off"),
            *("--pin-memory", *pins, "--device", device),
            *("--step", f"{TARGETS}:step", "--trial-time", length[0], "--repeats", length[1]),
        ]
    )


def _json(command: list[str]) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(run_command([*DLPROF, *command, "--json", "-q"]).stdout)
    return shown


def _speed(bytes_per_s: float | None) -> str:
    return "-" if bytes_per_s is None else f"{bytes_per_s / 1e9:.2f} GB/s"


def report(results: list[Result], device: str, took_s: float) -> Report:
    """All results as one table."""
    results = [*results, _took(took_s)]
    judged = [result.passed for result in results if result.passed is not None]
    rows = [
        [each.what, each.dlprof, each.other, each.ratio, _verdict(each.passed)] for each in results
    ]
    return Report(
        name="gpu",
        title="On the device",
        goal=GOAL,
        passed=bool(judged) and all(judged),
        tables=[Table("", ["what", "dlprof", "by hand", "ratio", "goal"], rows)],
        notes=[f"On {device}; the step multiplies matrices there."],
        data={"results": [dataclasses.asdict(each) for each in results]},
    )


def _took(took_s: float) -> Result:
    return Result(
        what="time that all of this takes",
        dlprof=f"{took_s:.0f} s",
        other=f"{LIMIT_S:.0f} s",
        ratio=f"{took_s / LIMIT_S:.2f}",
        passed=took_s <= LIMIT_S,
    )


def _verdict(passed: bool | None) -> str:  # noqa: FBT001 - a verdict, not a switch
    return {True: "reached", False: "missed", None: "-"}[passed]


def main() -> None:
    """Measure, print and keep."""
    options = parser(__doc__)
    options.add_argument("--device", help="torch's name; the accelerator by default")
    given = options.parse_args()
    before, began_s = surroundings(), time.perf_counter()
    plain = Plain()
    try:
        device = given.device or plain.ask("device")
        if device == "cpu" and not (given.quick and given.device):
            print(NO_DEVICE)
            return
        results = [
            *copies(plain, device, quick=given.quick),
            *exposure(plain, device, quick=given.quick),
            *picks(plain, device, quick=given.quick),
            *sampling(plain, quick=given.quick),
        ]
    finally:
        plain.close()
    publish(report(results, device, time.perf_counter() - began_s), before, quick=given.quick)


if __name__ == "__main__":
    main()
