"""Findings of the way to the device, from what trials measured of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from builders import config
from finding_cases import QUIET, Loader, codes, evidence

from dlprof.advise.findings.diagnosis import find
from dlprof.advise.findings.evidence import Evidence
from dlprof.records import Copies, Finding, GpuInfo, GpuUsage, LoaderCall, PinCosts

_CARDS = (
    GpuInfo(index=0, name="A", uuid="a", pcie_generation=4, pcie_width=16, cuda_index=1),
    GpuInfo(index=1, name="B", uuid="b", pcie_generation=3, pcie_width=16, cuda_index=0),
)
_PINNED = config(2, pin_memory=True)
_MIB = 1 << 20


def _copies(exposed_ms: float, *, pinned: float = 0.0, mib: float = 16, **rest: Any) -> Copies:
    fields: dict[str, Any] = {"copy_s": exposed_ms / 1e3, "hidden_s": 0.0, **rest}
    return Copies(
        device="cuda:0",
        batches=100,
        timed=20,
        bytes=mib * _MIB,
        exposed_s=exposed_ms / 1e3,
        pinned_fraction=pinned,
        **fields,
    )


def _seen(
    loader: Loader, copies: Copies | None, *gpu: GpuUsage, variants: Any = None, **rest: Any
) -> Evidence:
    return evidence(
        loader,
        accelerator="cuda",
        machine_fields={"gpus": _CARDS},
        usage=dataclasses.replace(QUIET, gpu=gpu),
        variants=variants,
        trial_fields={"copies": copies},
        **rest,
    )


def _found(seen: Evidence, code: str) -> Finding | None:
    return next((finding for finding in find(seen) if finding.code == code), None)


def _used(**figures: Any) -> GpuUsage:
    return GpuUsage(index=1, name="B", uuid="b", **figures)


_BUSY = Loader(fetch_cpu=0.01, step=0.005, busy=0.6, rate=70)


def test_exposed_pageable_copies_are_a_fault() -> None:
    found = _found(_seen(_BUSY, _copies(4)), "transfer.pageable")
    assert found is not None
    assert found.evidence["share"] == pytest.approx(0.28)
    assert found.evidence["pinned_fraction"] == 0
    assert found.fix is not None
    assert found.fix.dataloader_kwargs == {"pin_memory": True}
    assert "non_blocking=True" in found.fix.code


_ACCELERATED = """config = accelerate.DataLoaderConfiguration(non_blocking=True)
accelerator = accelerate.Accelerator(dataloader_config=config)"""


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (
            LoaderCall(
                text="TrainingArguments(..., {settings})",
                names={"num_workers": "dataloader_num_workers"},
                variable="args",
            ),
            'args = TrainingArguments(..., accelerator_config={"non_blocking": True})',
        ),
        (
            LoaderCall(text="accelerator.prepare(DataLoader(dataset, ..., {settings}))"),
            _ACCELERATED,
        ),
        (
            LoaderCall(
                text="def train_dataloader(self):\n    return DataLoader(dataset, ..., {settings})",
                variable="",
            ),
            "",
        ),
    ],
)
def test_what_copies_in_the_users_place_is_asked_to_in_its_words(
    call: LoaderCall, code: str
) -> None:
    """Lightning does so by itself."""
    seen = _seen(_BUSY, _copies(4))
    target = dataclasses.replace(seen.target, call=call)
    found = _found(dataclasses.replace(seen, target=target), "transfer.pageable")
    assert found is not None
    assert found.fix is not None
    assert found.fix.code == code
    assert found.fix.dataloader_kwargs == {"pin_memory": True}


def test_faster_copies_bring_what_the_step_waits_for_and_nothing_where_data_comes_later() -> None:
    held = _found(_seen(_BUSY, _copies(4)), "transfer.pageable")
    starving = Loader(fetch_cpu=0.03, step=0.002, rate=60)
    found = find(_seen(starving, _copies(4)))
    waits = next(each for each in found if each.code == "transfer.pageable")
    assert held is not None
    assert held.predicted_gain is not None
    assert held.predicted_gain.value == pytest.approx(9.3 / 7.3, rel=0.02)
    assert waits.predicted_gain is not None
    assert waits.predicted_gain.value == pytest.approx(1.0)
    assert codes(found)[0] == "fetch.cpu"


@pytest.mark.parametrize(
    "copies",
    [
        _copies(0.1),  # they take no time
        _copies(0.1, copy_s=0.005, hidden_s=0.0049),  # they are hidden
        _copies(4, pinned=0.99),  # the user pins by himself
    ],
)
def test_copies_that_pinning_would_not_help_are_none(copies: Copies) -> None:
    assert _found(_seen(_BUSY, copies), "transfer.pageable") is None


def test_pinning_is_not_advised_on_macs_for_whose_accelerator_torch_pins_nothing() -> None:
    seen = _seen(_BUSY, _copies(4))
    assert "transfer.pageable" in codes(find(seen))
    assert "transfer.pageable" not in codes(find(dataclasses.replace(seen, accelerator="mps")))


def test_what_pinning_was_measured_to_bring_decides() -> None:
    slower = _seen(_BUSY, _copies(4), variants={_PINNED: 0.97})
    faster = _seen(_BUSY, _copies(4), variants={_PINNED: 1.3})
    assert _found(slower, "transfer.pageable") is None
    found = _found(faster, "transfer.pageable")
    assert found is not None
    assert found.predicted_gain is not None
    assert found.predicted_gain.value == pytest.approx(1.3)


def test_batches_that_torch_can_not_pin_are_named() -> None:
    loader = dataclasses.replace(_BUSY, config=_PINNED)
    found = _found(_seen(loader, _copies(4, pinned=0.1)), "transfer.pageable")
    assert found is not None
    assert "doesn't pin" in found.title
    assert found.fix is not None
    assert "def pin_memory" in found.fix.code


def test_a_slow_link_is_reported_with_how_it_was_seen() -> None:
    loader = dataclasses.replace(_BUSY, config=_PINNED)
    beside = GpuUsage(index=0, name="A", uuid="a", pcie_rx_bytes_per_s=10e9)
    seen = _used(pcie_generation=1, pcie_width=16)
    found = _found(_seen(loader, _copies(5, pinned=1.0), beside, seen), "transfer.link")
    assert found is not None
    assert found.evidence["link_bytes_per_s"] == pytest.approx(15.75e9, rel=1e-3)  # that of B
    assert "generation 1 with 16 lanes" in found.explanation
    assert "GPU 0 received" in found.explanation


@pytest.mark.parametrize(
    ("exposed_ms", "pinned", "mib"),
    [(5, 0.0, 16), (1.4, 1.0, 16), (5, 1.0, 1)],
    ids=["pageable", "fast", "small"],
)
def test_other_copies_say_nothing_of_the_link(exposed_ms: float, pinned: float, mib: float) -> None:
    loader = dataclasses.replace(_BUSY, config=_PINNED)
    copies = _copies(exposed_ms, pinned=pinned, mib=mib)
    assert _found(_seen(loader, copies, _used()), "transfer.link") is None


def test_others_that_had_the_card_before_are_neighbours() -> None:
    used = _used(kernel_active_fraction=0.9, other_processes=2, other_memory_bytes=5 << 30)
    found = _found(_seen(_BUSY, _copies(0.1), used), "gpu.neighbours")
    assert found is not None
    assert "2 others used it before: 5.0 GiB" in found.explanation
    assert "the trial's own among them" in found.explanation
    alone = _used(kernel_active_fraction=0.9, other_processes=0)
    elsewhere = GpuUsage(index=0, name="A", uuid="a", other_processes=3)
    assert _found(_seen(_BUSY, _copies(0.1), elsewhere, alone), "gpu.neighbours") is None


def test_an_idle_device_shows_that_the_step_is_the_hosts() -> None:
    fed = Loader(fetch_cpu=0.001, busy=0.1, step=0.0099, rate=100, wait=0.0001)
    callable_step = {"step_s": 0.0}
    idle = _seen(fed, _copies(0.1), _used(kernel_active_fraction=0.3), **callable_step)
    busy = _seen(fed, _copies(0.1), _used(kernel_active_fraction=0.95), **callable_step)
    stated = _seen(fed, _copies(0.1), _used(kernel_active_fraction=0.3))
    assert codes(find(idle))[0] == "consumer"
    assert "ran kernels only 30%" in find(idle)[0].explanation
    assert find(idle)[0].evidence["kernel_active_fraction"] == 0.3
    assert "kernels" not in find(busy)[0].explanation
    assert "kernels" not in find(stated)[0].explanation


def test_a_pin_thread_without_a_core_says_so() -> None:
    pin = PinCosts(thread_cpu_s=0.002, thread_run_queue_s=0.006, pinned_bytes=1 << 28)
    loader = Loader(config=_PINNED, fetch_cpu=0.005, pin=0.0098, busy=0.4, rate=100)
    found = _found(_seen(loader, _copies(0.2, pinned=1.0, pin=pin)), "main.pin")
    assert found is not None
    assert "run-queue delay is 6.0 ms a batch" in found.explanation
    assert found.evidence["pinned_bytes"] == 1 << 28


def test_a_card_that_can_not_be_joined_is_not_guessed() -> None:
    cards = tuple(dataclasses.replace(card, cuda_index=None) for card in _CARDS)
    seen = _seen(_BUSY, _copies(4), _used(kernel_active_fraction=0.9, other_processes=2))
    unknown = dataclasses.replace(seen, machine=dataclasses.replace(seen.machine, gpus=cards))
    assert _found(unknown, "gpu.neighbours") is None


def test_the_uuid_that_torch_reported_goes_before_any_order() -> None:
    other = GpuUsage(index=0, name="A", uuid="a", other_processes=3)
    found = _found(_seen(_BUSY, _copies(0.1, uuid="a"), other, _used()), "gpu.neighbours")
    assert found is not None
    assert found.evidence["gpu"] == 0
