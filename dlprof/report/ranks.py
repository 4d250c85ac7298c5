"""What ranks that loaded at once have to say: which is the slowest, and how more of them scale.

In a sweep's trials, and in a training that several ranks ran.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dlprof.advise.scaling import (
    NOT_SEEN,
    ScalingLaw,
    rank_speeds,
    scales,
    scaling_law,
    straggler_of,
)
from dlprof.advise.thresholds import SCALES
from dlprof.advise.wording import end_text
from dlprof.records import Config, Estimate, NumaBinding, Run
from dlprof.report import document as doc
from dlprof.report.labels import (
    cores_text,
    gain_text,
    interval_text,
    limit_text,
    percent_text,
    rate_text,
    value_text,
    whole_text,
)
from dlprof.units import MISSING, counted, format_duration, format_rate

if TYPE_CHECKING:  # dlprof recommend answers without predictions
    from dlprof.advise.forecast import Accelerators


def ranks_facts(run: Run, pick: Config, rate: Estimate | None) -> Iterator[doc.Row]:
    """All ranks together and the slowest, whose rate is that of their configuration, in a line."""
    speeds = rank_speeds(run, pick)
    if not speeds or rate is None:
        return
    slowest = max(speeds, key=lambda each: (each.slowest, -each.samples_per_s.value))
    cause = f", for {slowest.cause.partition(':')[0]}" if slowest.cause else ""
    each, all_ = format_rate(rate.value), format_rate(len(speeds) * rate.value)
    text = f"{len(speeds)} at once give {all_} samples/s, {each} each at the pace of the slowest "
    text += f"(rank {slowest.rank}{cause})"
    # Whom the kernel gave less of the cores in a window is chance where ranks don't step together.
    chance = slowest.slowest < slowest.trials and not any(s.barrier_fraction for s in speeds)
    mean = math.fsum(each.samples_per_s.value for each in speeds) / len(speeds)
    if chance and rate.high is not None and mean > rate.high:
        text += f", {format_rate(mean)} on average: --step-barrier has them in step, as DDP does"
    found = next((s for s in scales(run) if s.ranks == len(speeds) and s.over_one), None)
    if found is not None and found.over_one is not None:
        text += f"; {gain_text(found.over_one, 'one rank')}"
        law, limit = scaling_law(run), found.limit
        if law is not None and law.bend is not None:
            text, limit = f"{text}, bends at {_ranks_text(law.bend)}", law.cause
        text += f", limited by {limit.partition(':')[0]}" if limit not in {"", NOT_SEEN} else ""
    yield "Ranks", text


def binding_text(found: NumaBinding) -> str:
    """Whether ranks are to be bound to NUMA nodes, and what that brings."""
    if found.gain is None:
        return f"torchrun {found.option} not compared: {found.unavailable}"
    advice = "use it" if found.pays else "not worth it"
    return f"torchrun {found.option}: {gain_text(found.gain, 'unbound ranks')}; {advice}"


def ranks_sections(run: Run, pick: Config) -> Iterator[doc.Section]:
    """Each rank, each node where there are several, and each number of ranks."""
    speeds = rank_speeds(run, pick)
    if len(hosts := dict.fromkeys(each.host for each in speeds)) > 1:
        there = [[each for each in speeds if each.host == host] for host in hosts]
        rates_of = [[each.samples_per_s.value for each in node] for node in there]
        of_nodes = (
            doc.Column("node", list(hosts), left=True),
            doc.Column("ranks", [", ".join(str(each.rank) for each in node) for node in there]),
            doc.Column("samples/s", [format_rate(sum(each)) for each in rates_of]),
            doc.Column("slowest rank", [format_rate(min(each)) for each in rates_of]),
        )
        yield from doc.section(f"Nodes with {pick.text}", doc.Table(of_nodes))
    if speeds:
        rates = [each.samples_per_s for each in speeds]
        barrier = [percent_text(each.barrier_fraction or None) for each in speeds]
        waited = "share of the time in which it waited for slower ranks."
        columns = (
            doc.Column("rank", [str(each.rank) for each in speeds]),
            doc.Column("samples/s", [value_text(rate) for rate in rates]),
            doc.Column("95% CI", [interval_text(rate) for rate in rates]),
            doc.Column("1st batch", [format_duration(each.startup_s) for each in speeds], 2),
            doc.Column("barrier", barrier, 3, note=waited),
            doc.Column("slowest in", [f"{each.slowest} of {each.trials}" for each in speeds], 1),
            _causes("slow for", [each.cause for each in speeds]),
        )
        yield from doc.section(f"Ranks with {pick.text}, in trials", doc.Table(columns))
    found = scales(run)
    if len(found) > 1:
        over = [gain_text(each.over_one) if each.over_one else MISSING for each in found]
        against = "what all give together against one rank by itself, interleaved."
        busy = "share of the time in which the slowest rank's step passes (95% CI)."
        shares = [_share_text(each.utilization) for each in found]
        of_counts = (
            doc.Column("ranks", [str(each.ranks) for each in found]),
            doc.Column("workers each", [str(each.num_workers) for each in found]),
            doc.Column("samples/s each", [value_text(each.samples_per_s) for each in found], 5),
            doc.Column("together", [value_text(each.together_samples_per_s) for each in found], 4),
            doc.Column("over one", over, 3, note=against),
            doc.Column("step busy", shares, 1, note=busy),
            _causes("limited by", [each.limit for each in found], keep=2),
        )
        law = scaling_law(run)
        said = () if law is None else (_law_text(law, max(each.ranks for each in found)),)
        yield from doc.section("Scaling, in trials", doc.Table(of_counts), doc.items(said))


def _law_text(law: ScalingLaw, ranks: int) -> str:
    fits = "" if law.misfit is None else f"; the law fits within {percent_text(law.misfit)}"
    if law.bend is None:
        upto, sure = counted(ranks, "rank"), f"none before {law.straight_to:.1f} of them (97.5%)"
        if law.straight_to < SCALES * ranks:
            return f"Too noisy to say whether it bends up to {upto}: {sure}"
        return f"No bend up to {upto}: {sure}{fits}"
    cause, bend = f"; limited by {law.cause}" if law.cause else "", _ranks_text(law.bend)
    if law.shape == "sharp":
        return f"Bends at {bend}: more of them together give no more{cause}{fits}"
    most = f"all together never give more than {bend} that share nothing"
    return f"Each further rank slows the others: {most}{cause}{fits} (Amdahl)"


def _share_text(share: Estimate | None) -> str:
    if share is None:
        return MISSING
    low, high = (percent_text(end) for end in share.ends)
    return percent_text(share.value) + (f" ({low}-{high})" if low != high else "")


def _ranks_text(count: Estimate) -> str:
    return rate_text(count, "ranks", end_text)


def accelerators_text(found: Accelerators) -> str:
    """How many are kept busy, with what, and what limits one more."""
    asked, has = percent_text(found.least_utilization), _kept_text(found, found.utilization)
    full = found.held_by in {"memory", "shm"}
    name = found.held_by if full else found.limit or found.held_by
    limit = f"limited by {limit_text(name) or 'what is not seen'}"
    free = [busy for part, busy in _free(found) if part == found.limit]
    limit += f" ({percent_text(free[0].value)} without it)" if free and not full else ""
    if not found.count.value:
        return f"none is {asked} busy: one alone is {has} busy, {limit}"
    settings = found.config.text_naming("prefetch_factor")
    more = "more were not looked at" if found.count.value == found.most else limit
    if found.next_utilization is not None:
        more = f"with one more {_kept_text(found, found.next_utilization)}, {limit}"
    are = "accelerator is" if found.count.value == 1 else "accelerators are"
    each = f"{has} {'measured ' if found.measured else ''}with {settings} each"
    return f"{whole_text(found.count)} {are} at least {asked} busy: {each}; {more}"


def _kept_text(found: Accelerators, share: float) -> str:
    """A utilization, with a decimal where it would read as what is asked for and isn't."""
    text, asked = percent_text(share), found.least_utilization
    short = share < asked and text == percent_text(asked)
    return f"{math.floor(1000 * share) / 10:.1f}%" if short else text


def _free(found: Accelerators) -> Iterator[tuple[str, Estimate]]:
    """What one more would have without each part of loading: all of the time at most."""
    for each in found.without if found.next_utilization is not None else ():
        busy = each.gain.times(found.next_utilization or 0.0)
        yield each.part, busy.through(lambda share: min(1.0, share))


def accelerators_sections(found: Accelerators | None) -> Iterator[doc.Section]:
    """What one more would have without each part of loading."""
    if free := [] if found is None else [*_free(found)]:
        note = "of the time (95% CI), if that part took none and all else stayed as it is."
        columns = (
            doc.Column("without", [limit_text(part) for part, _ in free], left=True),
            doc.Column("busy", [_share_text(busy) for _, busy in free], note=note),
        )
        yield from doc.section("One more accelerator, predicted", doc.Table(columns))


def training_facts(run: Run) -> Iterator[doc.Row]:
    """Which rank of a training the others wait for, or which waits longest, in a line."""
    script = run.script
    if script is None or len(script.ranks) < 2:
        if script is not None and script.rank:
            there = "ranks of one machine are compared in the file of the first of them"
            yield "Ranks", f"rank {script.rank} by itself; {there}"
        return
    ranks, world = script.ranks, script.world_size or 0
    waits = sorted(each.wait_fraction for each in ranks if each.wait_fraction is not None)
    if not waits:
        return
    late = straggler_of(run)
    share = "" if late is None else percent_text(late.waits_fraction)
    cause = f" (because of {late.cause.partition(':')[0]})" if late and late.cause else ""
    if late is None:
        which = "both wait" if len(ranks) == 2 else f"all {len(ranks)} wait"
        if len(waits) < len(ranks):  # as where one of them validates
            name = next((each.loader for each in ranks if each.loader), "a loader")
            one = len(waits) == 1
            verbs = f"iterates {name} and waits" if one else f"iterate {name} and wait"
            which = f"{len(waits)} of {len(ranks)} {verbs}"
        text = f"{which} {_between(waits[0], waits[-1])} of the time for data"
    elif late.rank is None:
        text = f"each waits in its steps for batches of others, {share} of the time; "
        text += "which one comes last changes"
    elif late.in_step:
        text = f"rank {late.rank}'s batches come last{cause}: the others wait for them in their "
        text += f"steps {share} of the time{' on average' if len(ranks) > 2 else ''}"
    else:
        text = f"rank {late.rank} waits longest for data, {share} of the time{cause}; "
        text += f"the others wait {_between(waits[0], waits[-2])}"
    starts = [each.startup_s for each in ranks if each.startup_s is not None]
    if starts and max(starts) > 2 * min(starts):
        first, last = format_duration(min(starts)), format_duration(max(starts))
        text += f"; first batches took {first} to {last}"
    if (apart := world - len(ranks)) > 0:
        are = "is" if apart == 1 else "are"
        text += f"; {apart} of {world} {are} not compared (elsewhere, or not ended)"
    yield "Ranks", text


def _between(least: float, most: float) -> str:
    low, high = percent_text(least), percent_text(most)
    return low if low == high else f"{low} to {high}"


def training_sections(run: Run) -> Iterator[doc.Section]:
    """Each rank of a training: its own wait, that for others, and theirs for it."""
    ranks = () if run.script is None else run.script.ranks
    if len(ranks) < 2:
        return
    late = straggler_of(run)
    causes = [late.cause if late and each.rank == late.rank else "" for each in ranks]
    its = "share of the time in which it waited in its step for batches of other ranks."
    theirs = "share of the time in which the other ranks waited in their steps for its batch."
    there = "share of its batches that were there when they were asked for."
    columns = (
        doc.Column("rank", [str(each.rank) for each in ranks]),
        doc.Column("waits", [percent_text(each.wait_fraction) for each in ranks]),
        doc.Column("for others", [percent_text(e.barrier_fraction) for e in ranks], note=its),
        doc.Column("others for it", [percent_text(e.held_up_fraction) for e in ranks], note=theirs),
        doc.Column("ready", [percent_text(each.ready_fraction) for each in ranks], 3, note=there),
        doc.Column("1st batch", [format_duration(each.startup_s) for each in ranks]),
        doc.Column("cores", [cores_text(each.own_cpu_cores) for each in ranks], 1),
        doc.Column("CPUs", [str(len(each.cpus)) if each.cpus else MISSING for each in ranks], 2),
        _causes("slow for", causes),
    )
    yield from doc.section(f"Ranks, of {ranks[0].loader or 'their loaders'}", doc.Table(columns))


def _causes(title: str, causes: Sequence[str], *, keep: int | None = None) -> doc.Column:
    """Causes in a word each, and what they mean below: a line would not hold them."""
    named = [each.partition(": ") for each in causes]
    means = dict.fromkeys(f"{cause} ({meaning})" for cause, _, meaning in named if meaning)
    note = f"{', '.join(means)}." if means else ""
    return doc.Column(title, [cause for cause, _, _ in named], keep, left=True, note=note)
