"""The step itself, slower beside the workers: what replayed batches show (``run --headroom``)."""

from __future__ import annotations

from dlprof.advise.findings.claims import Claim, Gain, Place
from dlprof.advise.findings.evidence import View
from dlprof.advise.thresholds import FED_WAIT_FRACTION, PARALLEL
from dlprof.advise.wording import percent
from dlprof.records import Estimate, Headroom
from dlprof.units import format_duration

_APART = """# at the top of the script, before torch computes
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, cores[{workers}:])

def keep_apart(worker_id):
    os.sched_setaffinity(0, cores[:{workers}])

loader = DataLoader(dataset, worker_init_fn=keep_apart, ...)"""


def slowed(view: View) -> Claim | None:
    """The workers' CPU use, or the pin thread, makes the step slower."""
    script = view.evidence.script
    found = None if script is None else script.loader.headroom
    if script is None or found is None or not view.workers:
        return None
    share = found.slowed_fraction
    if share.low is None or share.low <= 0 or share.value < FED_WAIT_FRACTION:
        return None
    threads = script.step_threads or 1.0
    wanted = view.demand + threads + view.others
    # From so much of the cores on, workers and step take them from each other.
    contended = wanted > 0.9 * view.cores
    pins = view.config.pin_memory and script.loader.copies is not None
    why = _why(view, threads, contended=contended, pins=pins)
    fix, code = _fix(view, threads, contended=contended, pins=pins)
    fed = view.limit == "consumer"
    gain = Gain(estimate=_without(share), source="bound") if fed else None
    behind = (
        ""
        if fed
        else " While the loop waits for data, a faster step only waits longer: data come first."
    )
    now_s = found.step_s + share.value * found.period_s
    return Claim(
        "Loading slows the step itself",
        f"The step takes {format_duration(now_s)} beside the workers, and "
        f"{format_duration(found.step_s)} with the same data in memory while they rest: that is "
        f"{percent(share.value)} of the time. {why}{behind}",
        share.value,
        "wanted_cores usable_cores",
        _figures(found, threads),
        fix,
        code,
        gain=gain,
        place=None if fed else Place.BEHIND,
    )


def _why(view: View, threads: float, *, contended: bool, pins: bool) -> str:
    if contended:
        others = f", other processes {view.others:.1f}" if view.others >= 1 else ""
        return (
            f"The workers want {view.demand:.1f} cores and the step {threads:.1f}{others}, and "
            f"{view.cores:g} are there."
        )
    if pins:
        return "There are cores for both: the pin thread takes turns with the step on the GIL."
    return "There are cores for both: they share caches and memory bandwidth."


def _fix(view: View, threads: float, *, contended: bool, pins: bool) -> tuple[str, str]:
    """In words, and what to paste."""
    workers = max(1, min(round(view.demand), int(view.cores) - 1))
    if contended and threads >= PARALLEL and view.cores >= 2:
        left = max(1, int(view.cores - workers))
        text = f"Leave cores to the workers: torch.set_num_threads({left}) in the script."
        return f"{text} Also try fewer workers.", f"torch.set_num_threads({left})"
    if contended and view.cores >= 2:
        fewer = "Try fewer workers, or keep" if view.workers > 1 else "Keep"
        text = f"{fewer} workers and step on cores of their own. Less work in the workers"
        return f"{text} helps as well.", _APART.format(workers=workers)
    if pins:
        return (
            "Try pin_memory=False: copies get slower, and the step gets its GIL back.",
            "loader = DataLoader(dataset, pin_memory=False, ...)",
        )
    return "Try fewer workers, and less work in each of them.", ""


def _figures(found: Headroom, threads: float) -> dict[str, object]:
    return {
        "slowed_fraction": found.slowed_fraction.value,
        "step_in_memory_s": found.step_s,
        "step_cores": threads,
        "rounds": found.rounds,
    }


def _without(share: Estimate) -> Estimate:
    """Throughput of a loop that hardly waits, if its step were as fast as without loading."""

    def gain(part: float) -> float:
        return 1 / (1 - min(0.95, max(0.0, part)))

    low = share.value if share.low is None else share.low
    high = share.value if share.high is None else share.high
    return Estimate(value=gain(share.value), low=gain(low), high=gain(high))
