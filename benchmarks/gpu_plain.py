"""Copies and loops timed by hand on the device; shares no measuring code with dlprof.

Reads one JSON request on each line of standard input, and answers each with a line of JSON:

- ``{"do": "events", "bytes": N, "pinned": true}``: bytes per second;
- ``{"do": "timer", "bytes": N}``: the same by ``torch.utils.benchmark``;
- ``{"do": "loop", "kind": "one_large", "workers": 2, "pin": true, "copies": true,
  "batches": 100}``:
  seconds per batch.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from gpu_targets import KINDS, device, step
from torch.utils import benchmark

_COPIES = 10
_WARM_UP = 10


def synchronize() -> None:
    """Wait for the device; the CPU needs no waiting for."""
    if device().type != "cpu":
        torch.accelerator.synchronize()


def buffers(size: int, *, pinned: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What is copied, and where it goes."""
    source = torch.zeros(size, dtype=torch.uint8)
    if pinned and device().type != "cpu":
        source = source.pin_memory()
    return source, torch.empty(size, dtype=torch.uint8, device=device())


def by_events(size: int, *, pinned: bool) -> float:
    """Bytes per second of copies in a row between two device events, median of five rounds."""
    source, there = buffers(size, pinned=pinned)
    if device().type == "cpu":
        return by_timer(size)
    rates = []
    for _ in range(5):
        began = torch.Event(device=device(), enable_timing=True)
        ended = torch.Event(device=device(), enable_timing=True)
        there.copy_(source, non_blocking=True)
        began.record()
        for _ in range(_COPIES):
            there.copy_(source, non_blocking=True)
        ended.record()
        ended.synchronize()
        rates.append(_COPIES * size / (began.elapsed_time(ended) / 1e3))
    return sorted(rates)[len(rates) // 2]


def by_timer(size: int) -> float:
    """Bytes per second as ``torch.utils.benchmark`` has it, the copy waited for."""
    source, there = buffers(size, pinned=True)
    timer = benchmark.Timer(
        stmt="there.copy_(source, non_blocking=True); wait()",
        globals={"there": there, "source": source, "wait": synchronize},
    )
    return size / timer.blocked_autorange(min_run_time=0.5).median


def loop(kind: str, workers: int, *, pin: bool, copies: bool, batches: int) -> float:
    """Seconds a batch of a training loop, the first batches left out."""
    pins = pin and device().type != "cpu"
    iterator = iter(KINDS[kind](num_workers=workers, pin_memory=pins))
    began_s = 0.0
    for place in range(_WARM_UP + batches):
        if place == _WARM_UP:
            synchronize()
            began_s = time.perf_counter()
        batch = next(iterator)
        step(_there(batch, pin=pins) if copies else batch)
    synchronize()
    return (time.perf_counter() - began_s) / batches


def _there(batch: Any, *, pin: bool) -> Any:
    if isinstance(batch, dict):
        return {name: _there(part, pin=pin) for name, part in batch.items()}
    if isinstance(batch, list):
        return [_there(part, pin=pin) for part in batch]
    return batch.to(device(), non_blocking=pin)


def answer(request: dict[str, Any]) -> float | str:
    """What a request asks for."""
    given = {name: value for name, value in request.items() if name != "do"}
    match request["do"]:
        case "device":
            return str(device())
        case "events":
            return by_events(given["bytes"], pinned=given["pinned"])
        case "timer":
            return by_timer(given["bytes"])
        case _:
            return loop(**given)


def main() -> None:
    """Answer until standard input ends."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
