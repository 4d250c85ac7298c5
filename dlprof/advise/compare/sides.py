"""The two sides of a comparison: which configurations are compared, and what these cost.

The closed form is the bounds of the model (``dlprof.model.bounds``): the workers, the cores, and
what follows one after another in the main process. It is simple on purpose: each of its figures is
measured on both sides, and what it does not explain is shown as such.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from dlprof.advise import thresholds as at
from dlprof.advise.candidates import gather, has_rate
from dlprof.advise.scaling import in_step
from dlprof.advise.situation import Situation
from dlprof.advise.speeds import speeds_of
from dlprof.errors import NothingMeasuredError, UsageError
from dlprof.model import Means, rate_allowed
from dlprof.records import (
    Config,
    Estimate,
    Explanation,
    Run,
    RunHeader,
    StageName,
    Trial,
    WatchedLoader,
)
from dlprof.units import format_duration

PartCode = Literal[
    "cpu",
    "cores",
    "quota",
    "neighbours",
    "storage",
    "receive",
    "copy",
    "wait",
    "step",
    "settings",
    "remainder",
]


_LEAST, _MOST = 1e-12, 1e12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chosen:
    """A configuration of a run that is compared, and what the run shows of it.

    Attributes:
        run: The run.
        config: Which.
        name: It in words.
        trials: Those with a rate, of this configuration and of others.
        rates: The one rate of each configuration, as all views of the run have it.
        means: Mean natural logarithm of the rates of each one's trials, of all of them.
    """

    run: Run
    config: Config
    name: str
    trials: tuple[Trial, ...]
    rates: Mapping[Config, Estimate]
    means: Mapping[Config, float]

    @property
    def own(self) -> list[Trial]:
        """The trials of this configuration."""
        return [trial for trial in self.trials if trial.config == self.config]

    @property
    def rate(self) -> Estimate:
        """What this configuration is worth."""
        return self.rates[self.config]

    @property
    def log_rate(self) -> float:
        """Natural logarithm of the rate, moved by as much as the trials that are left out do."""
        left = statistics.fmean(map(log_of, self.own))
        return math.log(self.rate.value) + left - self.means[self.config]

    @property
    def settings(self) -> Config:
        """The settings as both runs name them."""
        return _settings(self.run, self.config)

    def having(self, settings: Config) -> Chosen | None:
        """The configuration of such settings, if the run measured it."""
        known = {_settings(self.run, trial.config): trial.config for trial in self.trials}
        found = known.get(settings)
        return None if found is None else dataclasses.replace(self, config=found)

    @functools.cached_property
    def figures(self) -> Mapping[str, Any]:
        """What the trials say, by name with unit: the evidence."""
        own, rates = self.own, list(map(rate_of, self.own))
        figures = _batch_figures(self) | {
            **{name: _mean(getattr(trial.usage, name) for trial in own) for name in _USAGE},
            **{name: getattr(self.run.header.machine, name) for name in _MACHINE},
            "wait_fraction": _mean(trial.wait_fraction for trial in own),
            "settings": self.config.text,
        }
        wait, copy_s = figures["wait_fraction"], figures["copy_s_per_sample"]
        per_sample_s = statistics.fmean(1 / rate for rate in rates)
        step_s = None if wait is None else max(0.0, (1 - wait) * per_sample_s - (copy_s or 0.0))
        # The geometric mean of the CPU time, which a busy neighbour changes least.
        used = zip(rates, (trial.usage.own_cpu_cores for trial in own), strict=True)
        log_cpu_s = _mean(math.log(bounded(cores / rate)) for rate, cores in used if cores)
        cpu_s = None if log_cpu_s is None else math.exp(log_cpu_s)
        figures |= {"step_s_per_sample": step_s, "cpu_s_per_sample": cpu_s}
        if self.run.watched:
            # The clock around ``next()`` shows the loop, and its first batches' stages the rest.
            traced, period_s = _explanation(self.run, self.config), math.exp(-self.log_rate)
            fetch = None if traced is None else traced.stage("fetch")
            figures["fetch_s_per_batch"] = None if fetch is None else fetch.mean_s
            figures["wait_s_per_sample"] = None if wait is None else wait * period_s
            if wait is not None:  # copies are part of the step, whose length the clock shows
                figures["step_s_per_sample"] = max(0.0, period_s - wait * period_s)
        return figures

    @functools.cached_property
    def costs(self) -> SideCosts | None:
        """What the closed form takes; ``None`` where CPU time, or a loop's wait, isn't known."""
        figures, config = self.figures, self.config
        if self.run.watched:
            wait_s, step_s = figures["wait_s_per_sample"], figures["step_s_per_sample"]
            return None if wait_s is None else SideCosts(cpu_s=1.0, wait_s=wait_s, step_s=step_s)
        if figures["cpu_s_per_sample"] is None:
            return None
        queued = min(_MOST_WAITING, figures["run_queue_wait_fraction"] or 0.0)
        threads = max(1.0, figures["own_cpu_cores"] / (1 - queued))  # those that wait for a core
        costs = SideCosts(
            **{name: figures[f"{name}_per_sample"] or 0.0 for name in _SECONDS},
            worker_share=figures["worker_share"],
            threads=1.0 if config.num_workers else threads,
            affinity=bounded(figures["affinity_cpus"] or figures["usable_cores"]),
            pin_thread=config.pin_memory and config.num_workers > 0,
            workers=config.num_workers,
        )
        return _with_waiting(costs, figures)

    @property
    def unknown(self) -> Mapping[PartCode, str]:
        """Parts that the run does not show, and why."""

        def unrecorded(field: str) -> str:
            reasons = (trial.unavailable.get(f"usage.{field}", "") for trial in self.own)
            return next(filter(None, reasons), "its trials do not record it")

        if self.run.watched:
            return {} if self.costs is not None else {"wait": "its loop has no time"}
        if self.costs is None:
            return {"cpu": unrecorded("own_cpu_cores")}
        shown, found = self.figures, dict[PartCode, str]()
        if None in (shown["receive_s_per_sample"], shown["pin_s_per_sample"]):
            found["receive"] = "run dlprof profile"
        if shown["copy_s_per_sample"] is None:
            found["copy"] = "run dlprof profile"
        if shown["io_s_per_sample"] is None:
            how = "run the sweep with --num-workers 0 among the values, or dlprof profile"
            found["storage"] = how
        if shown["other_cpu_cores"] is None:
            found["neighbours"] = unrecorded("other_cpu_cores")
        return found

    def leaving_out(self) -> list[Chosen]:
        """Without each of its own trials, or group of them; none if there is but one."""
        own = self.own
        # Trials of one configuration are left out in at most so many groups, however many
        # there are.
        count = min(20, len(own))
        return [
            dataclasses.replace(self, trials=tuple(t for t in self.trials if id(t) not in out))
            for place in range(count if count > 1 else 0)
            for out in [{id(trial) for trial in own[place::count]}]
        ]


def pair(
    a: Run, b: Run, *, num_workers: int | None = None, best: bool = False
) -> tuple[Chosen, Chosen, str]:
    """Choose what to compare.

    Returns:
        That of either run, and which these are and why, one sentence.

    Raises:
        NothingMeasuredError: If one of them has no rate at all.
        UsageError: If one of them has none for ``num_workers``, or if they load different data, so
            that a difference of their rates says nothing.
    """
    if a.is_script and b.is_script:
        return _loops(a, b, num_workers=num_workers, best=best)
    data, other = a.header.target, b.header.target
    if data.dataset != other.dataset and data.spec != other.spec:
        raise UsageError(
            f"The runs load different data: {data.spec} ({data.dataset}) and {other.spec} "
            f"({other.dataset})",
            hint="Compare runs of one target, or of two versions of it with one name.",
        )
    found_a, found_b = _choices(a, num_workers), _choices(b, num_workers)
    shared = [settings for settings in found_a if settings in found_b]
    if shared and not best:
        pairs = [(found_a[settings], found_b[settings]) for settings in shared]
        one, two = max(pairs, key=lambda both: both[0].rate.value * both[1].rate.value)
        how = f"Compared at the same settings in both runs: {one.name}"
        if len(shared) > 1:
            how += f", the fastest of the {len(shared)} that both measured"
    else:
        one, two = (
            max(found.values(), key=lambda each: each.rate.value) for found in (found_a, found_b)
        )
        why = "" if shared else ", as no settings were measured in both"
        how = f"Compared at the fastest settings of each run{why}: {one.name}, and {two.name}"
    return one, two, f"{how}."


def _loops(a: Run, b: Run, *, num_workers: int | None, best: bool) -> tuple[Chosen, Chosen, str]:
    """The loops of two training scripts: over the loader that is waited for longest in both."""
    found_a, found_b = _watched(a, num_workers), _watched(b, num_workers)
    shared = [name for name in found_a if name in found_b]
    if shared and not best:
        name = max(shared, key=lambda name: found_a[name].waited_s + found_b[name].waited_s)
        one, two, how = found_a[name], found_b[name], f"the loop over {name} in both scripts"
    else:
        one, two = (
            max(found.values(), key=lambda each: each.waited_s) for found in (found_a, found_b)
        )
        how = f"the loops over {one.name} and {two.name}, which are waited for longest"
    times = [each.step_times for each in (one, two) if each.step_times is not None]
    if len(times) == 2 and (waits := in_step(times)):
        (wait_a, _), (wait_b, _) = waits
        one, two = _alone(one, wait_a), _alone(two, wait_b)
        how += ", as fast as each rank is without the waits in its steps for the other's batches"
    return _chosen_loop(a, one), _chosen_loop(b, two), f"Compared: {how}."


def _alone(loader: WatchedLoader, waits: float) -> WatchedLoader:
    """A loop without the share of its time in which its steps waited for another rank's batches."""
    left = max(1 - waits, _LEAST)

    def faster(rate: float | None) -> float | None:
        return None if rate is None else rate / left

    return dataclasses.replace(
        loader,
        samples_per_s=faster(loader.samples_per_s),
        batches_per_s=faster(loader.batches_per_s),
        wait_fraction=None
        if loader.wait_fraction is None
        else min(1.0, loader.wait_fraction / left),
    )


def _watched(run: Run, num_workers: int | None) -> dict[str, WatchedLoader]:
    """The loaders of a script whose samples per second are known, by name."""
    if not run.watched:
        raise NothingMeasuredError(
            f"No DataLoader was iterated in the script of {run.path}",
            hint="Watch a script that loads data: see dlprof run.",
        )
    found = {each.name: each for each in run.watched if (each.samples_per_s or 0.0) > 0}
    if not found:
        raise NothingMeasuredError(
            f"{run.path} has no rate", hint="None of its loaders gave samples that can be counted."
        )
    if num_workers is None:
        return found
    fitting = {
        name: each
        for name, each in found.items()
        if each.config is not None and each.config.num_workers == num_workers
    }
    if not fitting:
        raise UsageError(f"{run.path} has no loader of num_workers={num_workers}")
    return fitting


def _chosen_loop(run: Run, loader: WatchedLoader) -> Chosen:
    """A loop as the one trial of its loader's settings."""
    config, rate = loader.config or Config(), Estimate(value=loader.samples_per_s or 0.0)
    batches = loader.batches_per_s
    trial = Trial(
        id=loader.name,
        config=config,
        repetition=0,
        outcome="completed",
        samples_per_s=rate,
        batches_per_s=None if batches is None else Estimate(value=batches),
        samples_per_batch=rate.value / batches if batches else None,
        wait_fraction=loader.wait_fraction,
    )
    return Chosen(
        run=run,
        config=config,
        name=config.text,
        trials=(trial,),
        rates={config: rate},
        means={config: log_of(trial)},
    )


def _choices(run: Run, num_workers: int | None) -> dict[Config, Chosen]:
    """What a run measured and can be compared, by its settings.

    With those trials alone whose rates can be compared with each other: none of traced trials or
    with a cold cache; and no trial without a step beside trials of the same configuration that
    have one.
    """
    plain = [trial for trial in run.trials if trial.purpose == "measure"]
    stepped = {trial.config for trial in plain if trial.wait_fraction is not None}
    alike = (t for t in plain if t.wait_fraction is not None or t.config not in stepped)
    run = dataclasses.replace(run, trials=tuple(alike))
    measured = [each for each in gather(run) if each.trials]
    if not measured:
        what = "has no rate"
        if run.is_script:
            what = "is of a training script, which has no trials"
        raise NothingMeasuredError(
            f"{run.path} {what}",
            hint="Give two run files of dlprof run, or two of dlprof sweep or dlprof profile.",
        )
    tried = sorted({each.config.num_workers for each in measured})
    if num_workers is not None and num_workers not in tried:
        raise UsageError(
            f"{run.path} did not measure num_workers={num_workers}",
            hint=f"It has {', '.join(map(str, tried))}.",
        )
    speeds = speeds_of(run, Situation.of(run))
    rates = {each.config: speeds.rate(each.key) for each in measured}
    means = {m.config: statistics.fmean(map(log_of, m.trials)) for m in measured}
    return {
        _settings(run, each.config): Chosen(
            run=run,
            config=each.config,
            name=each.name,
            trials=tuple(filter(has_rate, run.trials)),
            rates=rates,
            means=means,
        )
        for each in measured
        if num_workers in {None, each.config.num_workers}
    }


def rate_of(trial: Trial) -> float:
    """Samples per second, within what logarithms and quotients can take, whatever a file says."""
    return bounded(trial.samples_per_s.value) if trial.samples_per_s is not None else _LEAST


def log_of(trial: Trial) -> float:
    """Natural logarithm of the samples per second."""
    return math.log(rate_of(trial))


def bounded(value: float) -> float:
    """A figure within what logarithms and quotients can take."""
    return min(_MOST, max(_LEAST, value))


def _settings(run: Run, config: Config) -> Config:
    """The settings with the target's batch size filled in."""
    own = run.header.target.batch_size
    return dataclasses.replace(config, batch_size=config.batch_size or own)


def bridges(a: Chosen, b: Chosen) -> list[tuple[Chosen, Chosen]]:
    """Where the settings differ, the same ones of both runs: as A has them, and as B does.

    They tell settings from the rest, as far as the run of the other one measured them too.
    """
    if a.settings == b.settings:
        return []
    known = [(a.having(settings), b.having(settings)) for settings in (a.settings, b.settings)]
    return [(one, two) for one, two in known if one is not None and two is not None]


def doubts(a: Chosen, b: Chosen) -> Iterator[str]:
    """What is against the comparison, one sentence each."""
    ranks = [each.run.header.launched for each in (a, b)]
    if ranks[0] != ranks[1]:
        yield f"Rates are of one loader each: A loaded {ranks[0]} of them at once, B {ranks[1]}."
    yield from _of_scripts(a, b)
    yield from _of_data(a, b)
    yield from _of_machines(a.run.header, b.run.header)
    if a.run.watched:  # the wait holds what the settings make
        yield "Each script ran once, so how far such figures spread is unknown."
        return
    if a.settings != b.settings and not bridges(a, b):
        yield (
            "Neither run measured both settings, so their part is an estimate. More workers "
            "also take a larger share of busy cores."
        )
    for name, own in (("A", a.own), ("B", b.own)):
        if len(own) == 1:
            yield f"{name} was measured only once, so its spread is unknown."
        if any(trial.whole_epochs for trial in own):
            yield f"The epochs of {name} were too short: its rate includes epoch restarts."


def _of_scripts(a: Chosen, b: Chosen) -> Iterator[str]:
    if not a.run.watched:
        return
    loops = [side.own[0].id for side in (a, b)]
    if loops[0] != loops[1]:
        yield f"The loops have different names ({' and '.join(loops)}): they may do different work."
    for name, script in (("A", a.run.script), ("B", b.run.script)):
        if script is None or script.ending in {"running", "interrupted"}:
            yield f"The script of {name} was cut off: its figures are of a part of it."
        elif script.ending == "exception" or script.exit_code:
            yield f"The script of {name} failed: its figures are of what ran before."


def _of_data(a: Chosen, b: Chosen) -> Iterator[str]:
    data, other = a.run.header.target, b.run.header.target
    if data.spec != other.spec:
        yield f"The targets have different names ({data.spec} and {other.spec})."
    if data.dataset != other.dataset:
        yield f"The datasets are of different classes ({data.dataset} and {other.dataset})."
    if data.arguments != other.arguments:
        yield "The targets were given different arguments."
    if data.length != other.length:
        lengths = ("unknown" if n is None else f"{n:,}" for n in (data.length, other.length))
        yield f"The datasets differ in length ({' and '.join(lengths)})."
    if a.settings.batch_size != b.settings.batch_size:
        yield "The batch sizes differ; samples per second are compared."


def _of_machines(one: RunHeader, two: RunHeader) -> Iterator[str]:
    steps = [side.settings.get("step_s") for side in (one, two)]
    step_s = [float(each) if isinstance(each, int | float) else 0.0 for each in steps]
    if abs(step_s[0] - step_s[1]) > at.SAME_STEP * max(step_s):
        lasting = " and ".join(map(format_duration, step_s))
        yield f"The runs were measured with different steps ({lasting})."
    if one.torch_version != two.torch_version:
        yield (
            f"The versions of torch differ ({one.torch_version} and {two.torch_version}): that "
            "may explain some of the CPU time per sample."
        )
    if one.python_version != two.python_version:
        yield f"The versions of Python differ ({one.python_version} and {two.python_version})."
    if (one.accelerator is None) != (two.accelerator is None):
        yield "Only one of the runs had an accelerator."


_USAGE = (
    *("own_cpu_cores", "available_cpu_cores", "other_cpu_cores", "run_queue_wait_fraction"),
    *("throttled_fraction", "cache_hit_fraction", "read_bytes_per_s"),
)
_MACHINE = ("logical_cpus", "affinity_cpus", "quota_cores", "usable_cores")
_SECONDS = ("cpu_s", "io_s", "receive_s", "pin_s", "copy_s", "step_s")
_MOST_WAITING = 0.99
_LEAST_CORES = 1e-3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SideCosts:
    """What decides the rate of one configuration on one machine. Seconds are per sample.

    Attributes:
        cpu_s: CPU seconds of all the loader's processes.
        worker_share: Share of that in workers; 1 where it isn't known.
        threads: Threads that run or want to without workers, on average, at least 1.
        affinity: CPUs that the job may run on.
        own_stretch: What a CPU second takes because own threads get into each other's way, beyond
            what too few CPUs explain; 1 for no longer.
        quota_stretch: The same because a quota holds the job back.
        neighbour_stretch: The same because neighbours take cores.
        io_s: True waiting in fetching and collating.
        receive_s: Taking, rebuilding and ordering a batch, in the main process.
        pin_s: Copying to page-locked memory.
        pin_thread: Whether a thread of its own receives and pins.
        copy_s: Copying to the device.
        step_s: The training step.
        wait_s: What a loop of a training script waits for data, where that is all that is known of
            its loading.
        workers: ``num_workers``.
    """

    cpu_s: float
    worker_share: float = 1.0
    threads: float = 1.0
    affinity: float = 1.0
    own_stretch: float = 1.0
    quota_stretch: float = 1.0
    neighbour_stretch: float = 1.0
    io_s: float = 0.0
    receive_s: float = 0.0
    pin_s: float = 0.0
    pin_thread: bool = False
    copy_s: float = 0.0
    step_s: float = 0.0
    wait_s: float | None = None
    workers: int = 0

    @property
    def computing_s(self) -> float:
        """How long computing takes, were there CPUs enough."""
        return self.cpu_s * self.own_stretch * self.quota_stretch * self.neighbour_stretch

    @property
    def demand(self) -> float:
        """Threads that want to run at once, on average."""
        if self.workers == 0:
            return self.threads
        busy_s = self.worker_share * self.computing_s
        return self.workers * busy_s / (busy_s + self.io_s)

    @property
    def log_rate(self) -> float:
        """Natural logarithm of the samples per second that the model's bounds allow."""
        if self.wait_s is not None:  # the loop's two parts, one after the other
            return -math.log(max(_LEAST, self.wait_s + self.copy_s + self.step_s))
        cpu_s, main_s = self.worker_share * self.computing_s, self.receive_s
        helpers = 1 / self.worker_share - 1  # main computes beside the workers
        io_s, pinned = self.io_s, self.workers > 0 and self.pin_thread
        if not self.workers:
            cpu_s, io_s = self.computing_s / min(self.threads, self.affinity), io_s + self.pin_s
            main_s = helpers = 0.0
        rate = rate_allowed(
            Means(cpu=cpu_s, io=io_s, receive_io=main_s + (self.pin_s if pinned else 0.0)),
            workers=self.workers,
            cores=self.affinity,
            step_s=self.copy_s + self.step_s,
            helpers=helpers,
            pinned=pinned,
        )
        return math.log(min(_MOST, rate))


def _batch_figures(chosen: Chosen) -> dict[str, Any]:
    """What traced trials, or else calibrations, show; ``None`` where neither does."""
    run, config = chosen.run, chosen.config
    explained = _explanation(run, config)
    batch = explained.costs if explained is not None and explained.costs.cpu_s else None
    known = run.calibration
    if batch is None and known is not None and known.batch_size == config.batch_size:
        batch = known.in_workers if config.num_workers else known.in_main
    sizes = [size for t in chosen.own if (size := t.samples_per_batch or 0.0) > 0]
    samples = statistics.fmean(sizes) if sizes else float(run.header.target.batch_size or 1)

    def each(seconds: float | None) -> float | None:
        return None if seconds is None else max(0.0, seconds) / samples

    def mean_s(*columns: str, stages: Sequence[StageName] = ()) -> float | None:
        """Of some columns together or, where all of them are empty, of some stages; per sample."""
        found = [
            statistics.fmean(values) for name in columns if (values := getattr(batch, name, ()))
        ]
        if not found and explained is not None:
            found = [stage.mean_s for n in stages if (stage := explained.stage(n)) is not None]
        return each(sum(found)) if found else None

    in_worker_s, in_main_s = mean_s("cpu_s", "put_cpu_s"), mean_s("receive_cpu_s", "main_cpu_s")
    share = 1.0
    if config.num_workers and in_worker_s and in_main_s is not None:
        share = max(0.01, in_worker_s / (in_worker_s + in_main_s))
    receive_s, pin_s = (
        mean_s("receive_cpu_s", "receive_io_s", "main_cpu_s", stages=["dispatch", "rebuild"]),
        mean_s("pin_s", stages=["pin"]),
    )
    has_device = run.header.accelerator is not None
    copy_s = mean_s(stages=["copy"])
    if copy_s is None and known is not None:
        copy_s = each(known.copy_s)
    io_s, source = mean_s("io_s"), "a traced trial"
    if io_s is None and explained is not None and (fetch := explained.stage("fetch")) is not None:
        io_s = each(fetch.io_s)
    if io_s is None:
        io_s, source = _left_waiting(chosen)
    return {
        "worker_share": share,
        # Without workers it is part of the fetching.
        "receive_s_per_sample": receive_s if config.num_workers else 0.0,
        "pin_s_per_sample": pin_s if config.pin_memory and has_device else 0.0,
        "copy_s_per_sample": copy_s if has_device else copy_s or 0.0,
        "io_s_per_sample": io_s,
        "io_from": None if io_s is None else source,
    }


def _explanation(run: Run, config: Config) -> Explanation | None:
    """The last explanation of a configuration, or of one whose samples cost the same.

    That is one that differs in the number, depth and life of its queues alone.
    """

    def sample(each: Config) -> Config:
        some = min(1, each.num_workers)
        alike = dataclasses.replace(each, num_workers=some, persistent_workers=False)
        return dataclasses.replace(alike, prefetch_factor=None, in_order=True)

    hooked = [each for each in run.explanations if each.hooked]
    alike = [each for each in reversed(hooked) if sample(each.config) == sample(config)]
    return max(alike, key=lambda each: each.config == config, default=None)


def _with_waiting(costs: SideCosts, figures: Mapping[str, Any]) -> SideCosts:
    """The costs with what waiting for a core adds, and to whom that is put down.

    All waiting is known from the run queue, and what the quota caused, from its throttling. Of what
    too few CPUs don't explain, the rest is the neighbours', if they keep a good part of the CPUs
    busy, and that of own threads that get into each other's way, if nobody else is there.
    """
    waiting = figures["run_queue_wait_fraction"]
    if waiting is None:
        return _without_run_queue(costs, figures)
    own: float = figures["own_cpu_cores"]
    whole = 1 / (1 - min(_MOST_WAITING, max(0.0, waiting)))
    # The fraction is of the window or, where that is longer, of the time held back and used.
    held = min(_MOST_WAITING, max(0.0, figures["throttled_fraction"] or 0.0))
    held = max(held, own * held / (1 - held)) if own > 0 else held
    quota = min(whole, 1 + held / max(_LEAST_CORES, own))
    others = max(0.0, figures["other_cpu_cores"] or 0.0) / costs.affinity
    theirs = min(1.0, others / 0.2)  # of the CPUs: from there on all of it
    # How many want to run at once depends on how long computing takes, which waiting is part of.
    wanted = dataclasses.replace(costs, quota_stretch=whole).demand
    excess = max(1.0, whole / quota / max(1.0, wanted / costs.affinity))
    return dataclasses.replace(
        costs,
        quota_stretch=quota,
        neighbour_stretch=excess**theirs,
        own_stretch=excess ** (1 - theirs),
    )


def _without_run_queue(costs: SideCosts, figures: Mapping[str, Any]) -> SideCosts:
    """What cores that were used up, or a quota that was, say of waiting for them."""
    own: float = figures["own_cpu_cores"]
    quota, others = figures["quota_cores"], figures["other_cpu_cores"]
    wanted = min(costs.affinity, costs.demand)
    if quota is not None and own >= at.USED_UP * quota:
        return dataclasses.replace(costs, quota_stretch=max(1.0, wanted / bounded(quota)))
    if others is None or own < at.USED_UP * (costs.affinity - others):
        return costs
    left = max(_LEAST_CORES, costs.affinity - others)
    return dataclasses.replace(costs, neighbour_stretch=max(1.0, wanted / left))


def _left_waiting(chosen: Chosen) -> tuple[float | None, str]:
    """True waiting per sample as ``num_workers=0`` leaves it, and the trials that show it.

    It is their time per sample less CPU time and run-queue wait, as there nothing overlaps.
    """
    size = chosen.settings.batch_size
    own = chosen.run.header.target.batch_size
    plain = [t for t in chosen.trials if not t.config.num_workers]
    plain = [t for t in plain if (t.config.batch_size or own) == size]
    found = []
    for trial in plain:
        cores, queued = trial.usage.own_cpu_cores, trial.usage.run_queue_wait_fraction
        if cores is None or queued is None:
            continue
        waiting = 1.0 if trial.wait_fraction is None else trial.wait_fraction
        busy = min(1.0, cores) / (1 - min(_MOST_WAITING, queued))
        found.append(max(0.0, waiting - busy) / rate_of(trial))
    return _mean(found), f"num_workers=0 ({', '.join(trial.id for trial in plain)})"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
