"""What a rule answers with, and the fixes that are other settings."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from dlprof.advise.findings.gains import Gain
from dlprof.advise.findings.view import View
from dlprof.records import Config, Fix, LoaderCall


class Place(enum.IntEnum):
    """Which findings come first, whatever they cost: what hides others, or ends the run."""

    BROKEN = 0  # the run ends, or its data is wrong
    CONSUMER = 1  # nothing of the loader's matters
    FAULT = 2  # something is wrong that needn't be
    CROWD = 3  # others take so much that little can be said of the rest
    SETTING = 4  # the dataset is as it is, and the loader's settings don't suit it
    NATURE = 5  # what loading this dataset takes
    BEHIND = 6  # true as well, and hidden by another


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """What a rule says where it finds its cause.

    Attributes:
        title: The cause in a few words.
        explanation: How it slows this loader down, with figures.
        cost: Share of the run's time that the cause takes.
        figures: Names of those that show it, as ``View.figures`` knows them.
        given: Figures that only the rule knows.
        fix: What to change, in a sentence; empty where nothing should be.
        code: What to paste.
        config: Settings that are the fix, or a part of it.
        gain: What the fix would bring.
        place: Where it belongs, where that is not where the table puts it.
    """

    title: str
    explanation: str
    cost: float
    figures: str = ""
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fix: str = ""
    code: str = ""
    config: Config | None = None
    gain: Gain | None = None
    place: Place | None = None


def fix_of(view: View, claim: Claim) -> Fix | None:
    """What to change: of settings, the arguments that differ from the present ones.

    Where the target can't be set so from outside, the fix says why and names no arguments.
    """
    now, config, code = view.config, claim.config, claim.code
    if config is None:
        return Fix(text=claim.fix, code=code) if claim.fix else None
    reasons = view.evidence.why_fixed(config)
    if reasons:
        text = f"{claim.fix} The target's code prevents it: {'; '.join(reasons)}."
        return Fix(text=text, code=code)
    strategy, threads = config.sharing_strategy, config.worker_threads
    if strategy is not None and strategy != now.sharing_strategy:
        code = f'torch.multiprocessing.set_sharing_strategy("{strategy}")'
    if threads is not None and threads != now.worker_threads:
        code = f"""def set_worker_threads(worker_id):
    torch.set_num_threads({threads})

loader = DataLoader(dataset, worker_init_fn=set_worker_threads, ...)"""
    settings, call = changed(now, config), view.evidence.target.call
    other = call.written(settings) if settings and call != LoaderCall() else ""
    return Fix(text=claim.fix, dataloader_kwargs=settings, code=code, call=other)


def changed(now: Config, config: Config) -> dict[str, Any]:
    """The arguments of DataLoader in which a configuration differs from the present one."""
    before, after = now.dataloader_kwargs(), config.dataloader_kwargs()
    return {name: value for name, value in after.items() if before.get(name) != value}


def fixed(now: Config, fix: Fix | None) -> Config | None:
    """The configuration that a fix asks for; ``None`` for one that is more than settings."""
    if fix is None or not fix.dataloader_kwargs or fix.code:
        return None
    asked = dict(fix.dataloader_kwargs)
    if "multiprocessing_context" in asked:
        asked["start_method"] = asked.pop("multiprocessing_context")
    known = {field.name for field in dataclasses.fields(Config)}
    chosen = {name: value for name, value in asked.items() if name in known}
    return dataclasses.replace(now, **chosen).canonical()
