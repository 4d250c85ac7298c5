"""Faults as PyTorch users make them, written without a look at the rules: which does dlprof name?

``python benchmarks/strangers.py`` profiles them all, as ``planted.py`` does; names choose some.
What a loader may be called was judged before any was profiled; several where experts differ.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import planted
import strangers_targets
from planted_cases import Case

TARGETS = Path(strangers_targets.__file__)


def _case(name: str, *codes: str, options: tuple[str, ...] = (), target: str = "") -> Case:
    return Case(
        name=name, code=codes[0], also=codes[1:], options=options, target=target, file=TARGETS
    )


_STEP: dict[str, Any] = {"options": ("--step-time", "20ms")}
CASES: tuple[Case, ...] = (
    _case("jpeg_full_size", "fetch.cpu"),
    _case("png_in_main", "too_few_workers", "fetch.cpu"),
    _case("pandas_rows", "fetch.cpu"),
    _case("json_lines", "fetch.cpu"),
    _case("regex_tokens", "fetch.cpu"),
    _case("zip_opened_per_sample", "fetch.cpu"),
    _case("sqlite_without_index", "fetch.cpu"),
    _case("deep_copies", "fetch.cpu"),
    _case("logging_with_stack", "fetch.cpu"),
    _case("garbage_collected_per_sample", "fetch.cpu"),
    _case("whole_array_for_a_row", "fetch.cpu", "fetch.io"),
    _case("npz_compressed", "fetch.cpu"),
    _case("gzip_seeks", "fetch.cpu"),
    _case("pixels_by_python", "fetch.cpu"),
    _case("memmap_by_elements", "fetch.cpu"),
    _case("pickles", "fetch.cpu"),
    _case("stream_skipped", "fetch.cpu", "too_many_workers", "cpu.oversubscribed"),
    _case("network_waits", "fetch.io", "too_few_workers"),
    _case("http_requests", "fetch.io", "too_few_workers"),
    _case("command_per_sample", "fetch.io", "too_few_workers", "fetch.cpu"),
    _case("waits_in_main", "too_few_workers", "fetch.io"),
    _case("stragglers", "order.blocking", "prefetch.shallow", **_STEP),
    _case("slow_shard", "order.blocking"),
    _case("bursts", "prefetch.shallow", "order.blocking", **_STEP),
    _case("one_reader_at_a_time", "lock"),
    _case("file_locked", "lock"),
    _case("cache_of_a_manager", "lock", "fetch.io"),
    _case("padded_in_python", "collate"),
    _case("normalized_in_collate", "collate"),
    _case("lists_of_dicts", "main.receive"),
    _case("many_tensors", "main.receive"),
    _case("arrays_by_pickle", "main.receive"),
    _case("weighted_one_by_one", "main.sampler"),
    _case("buckets_sorted_each_time", "main.sampler"),
    _case("single_samples", "too_many_workers", "main.receive"),
    _case("torch_threads", "cpu.threads"),
    _case("pools_in_workers", "cpu.threads"),
    _case("sixteen_workers", "cpu.oversubscribed", "too_many_workers"),
    _case("one_worker", "too_few_workers", "fetch.cpu"),
    _case("pinned_workers", "cpu.affinity"),
    _case("spawned_each_epoch", "startup"),
    _case("vocabulary_each_epoch", "startup"),
    _case("opened_each_epoch", "startup"),
    _case("annotations_spawned", "dataset.heavy", "startup"),
    _case("cached_forever", "memory.growth"),
    _case("history_kept", "memory.growth"),
    _case("one_file_four_workers", "workers.unfed"),
    _case("first_worker_only", "workers.unfed"),
    _case("stream_repeated", "data.duplicated"),
    _case("slow_training", "consumer", target="quick_tensors", options=("--step-time", "40ms")),
    _case(
        "computing_training",
        "consumer",
        target="quick_tensors",
        options=("--step", f"{TARGETS}:step_of_products"),
    ),
)


def main() -> None:
    """Profile them, count."""
    planted.main(name="strangers", title="Strangers' causes", cases=CASES, about=__doc__)


if __name__ == "__main__":
    main()
