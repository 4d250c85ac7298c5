"""What a rule answers with, and the fixes that are other settings."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from dlprof.advise.findings.gains import Gain
from dlprof.advise.findings.view import View
from dlprof.records import Config, Fix


class Place(enum.IntEnum):
    """Which findings come first, whatever they cost: what hides others, or ends the run."""

    BROKEN = 0  # the run ends, or its data is wrong
    CONSUMER = 1  # nothing of the loader's matters
    FAULT = 2  # something is wrong that needn't be
    CROWD = 3  # others take so much that little can be said of the rest
    SETTING = 4  # the data set is as it is, and the loader's settings don't suit it
    NATURE = 5  # what loading this data set takes
    BEHIND = 6  # true as well, and hidden by another


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a rule says where it finds its cause.

    Attributes:
        title: The cause in a few words.
        explanation: How it slows this loader down, with figures.
        cost: Share of the run's time that the cause takes.
        figures: By name with unit.
        fix: What to change.
        gain: What the fix would bring.
        place: Where it belongs, where that is not where the table puts it.
    """

    title: str
    explanation: str
    cost: float
    figures: Mapping[str, Any]
    fix: Fix | None = None
    gain: Gain | None = None
    place: Place | None = None


def settings_fix(view: View, config: Config, text: str) -> Fix:
    """The fix that another configuration is: the arguments in which it differs.

    Where the target can't be set so from outside, the fix says why and names no arguments.
    """
    reasons = view.evidence.why_fixed(config)
    if reasons:
        return Fix(text=f"{text} It can't be set as the code is: {'; '.join(reasons)}.")
    now = view.config.dataloader_kwargs()
    after = config.dataloader_kwargs()
    changed = {name: value for name, value in after.items() if now.get(name, None) != value}
    if not config.in_order and not view.config.in_order:
        changed.pop("in_order", None)
    return Fix(text=text, dataloader_kwargs=changed, code=code_of(view.config, config))


def fixed(now: Config, fix: Fix | None) -> Config | None:
    """The configuration that a fix asks for; ``None`` for one that is more than settings."""
    if fix is None or not fix.dataloader_kwargs or fix.code:
        return None
    asked = dict(fix.dataloader_kwargs)
    if "multiprocessing_context" in asked:
        asked["start_method"] = asked.pop("multiprocessing_context")
    known = {field.name for field in dataclasses.fields(Config)}
    changed = {name: value for name, value in asked.items() if name in known}
    return dataclasses.replace(now, **changed).canonical()


def code_of(now: Config, config: Config) -> str:
    """Lines for what is no argument of DataLoader."""
    lines = []
    strategy, threads = config.sharing_strategy, config.worker_threads
    if strategy is not None and strategy != now.sharing_strategy:
        lines.append(f'torch.multiprocessing.set_sharing_strategy("{strategy}")')
    if threads is not None and threads != now.worker_threads:
        lines += [
            "def set_worker_threads(worker_id):",
            f"    torch.set_num_threads({threads})",
            "",
            "loader = DataLoader(dataset, worker_init_fn=set_worker_threads, ...)",
        ]
    return "\n".join(lines)
