"""Does the certificate of a sweep hold, and how much does it say? Replayed sweeps, truth known.

The search, the belief and the decision are dlprof's own; trials are made up. True rates are what a
model predicted times errors as they were measured (``emulated.py``, ``real_data.py``); the cores
change their speed as recorded here (``--record``) or as made up, each by itself. No machine time:
the figures are the same wherever this runs. ``--live N`` sweeps N drawn loaders instead, and judges
what was chosen by a grid and a last comparison in turns, as ``picks.py`` does.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import json
import math
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import drawn_loaders
import picks
import worlds
from common import RESULTS, Report, Table, keep, parser, publish, surroundings
from picks_report import DLPROF, Outcome, earlier, name_of

from dlprof.advise.choice import decide
from dlprof.advise.reasons import certify
from dlprof.advise.situation import Situation
from dlprof.errors import DlprofError
from dlprof.machine import inspect_machine
from dlprof.machine.core_speed import SpeedProbe
from dlprof.records import (
    Config,
    Estimate,
    Machine,
    Plan,
    PredictedCell,
    Run,
    RunHeader,
    SweepPrediction,
    Target,
    Trial,
    TrialCost,
    Usage,
)
from dlprof.search.grid import GridSearch, Proposal
from dlprof.search.led import final_plan, finalists
from dlprof.settings import SweepSettings
from dlprof.stats.belief import NEAR, ExpectedRates

NAME, LIVE = "certificate", "certificate_live"
LIVE_DATASETS = 30
_LIVE = picks.Design(
    minutes=0, turns=1, sweeps=1, least_finals=8, finals=16, trial_s=0.7, final_s=1.0
)
_LEAST_BATCHES = 1000
"""Of an epoch of a drawn loader: picks are judged by the steady rate, which then says all."""

TRACES = Path(__file__).parent / "results" / "speed_traces.json"
KINDS = ("waits", "computes", "both")
RATIOS = (1.0, 1.3, 1.8, 3.0)
DWELLS_S = (0.05, 0.3, 1.0, 5.0, 30.0)
_STEP_S = 0.05
"""Between two figures of a trace."""

_BUDGET_S = SweepSettings().budget_s  # the default one
_OVERHEAD_S, _CALIBRATED_S = 0.4, 5.0
_START_S = 0.2  # 14 workers took 6 s on two cores, 32 took 11
_DEPTHS = (2, 4)
_SLOWLY = 0.5
_GOAL, _NOTHING = 0.95, 1e-9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A loader and a machine that don't exist.

    Attributes:
        kind: What limits the loader.
        cores: Of the machine.
        trace: How its cores change: ``recorded N``, or the ratio and the dwell of two speeds.
        share: Of the cores' time that the loader computes.
        exponent: How its rate follows their speed.
        noise: Standard deviation of a trial's log rate beside that.
        true: Log rates at the mean speed, by configuration.
        predicted: As the model has them.
        log_sd: How far off the model says that it may be.
        speeds: Of each core, every ``_STEP_S``, relative to its mean.
        start_s: What a trial costs beside its window for each worker.
    """

    kind: str
    cores: int
    trace: str
    share: float
    exponent: float
    noise: float
    true: Mapping[Config, float]
    predicted: Mapping[Config, float]
    log_sd: float
    speeds: Sequence[Sequence[float]]
    start_s: float = 0.0

    def speed(self, cores: Sequence[int], began_s: float, length_s: float) -> float:
        """Mean speed of some cores in a window."""
        first = int(began_s / _STEP_S)
        last = first + max(1, round(length_s / _STEP_S))
        return statistics.fmean(
            trace[place % len(trace)]
            for trace in (self.speeds[core] for core in cores)
            for place in range(first, last)
        )


def errors_measured() -> list[list[tuple[int, float]]]:
    """By dataset, ``num_workers`` and log of measured over predicted, levels taken out."""
    found: dict[str, list[tuple[int, float]]] = collections.defaultdict(list)
    runs = json.loads((RESULTS / "emulated.json").read_text())["data"]["runs"]
    for each in runs:
        if not each["step_s"] and not each["step_cpu_s"] and each["ranks"] == 1:
            log = math.log(each["rate"] / each["predicted"]["maxplus"]["value"])
            found[f"{each['kind']} {each['cores']}"].append((_workers(each["config"]), log))
    for each in json.loads((RESULTS / "real_data.json").read_text())["data"]["cells"]:
        rate = statistics.fmean(map(math.log, each["rates"]))
        log = rate - math.log(each["given"]["maxplus"])
        found[each["data"]].append((_workers(each["config"]), log))
    levels = {name: statistics.median(log for _, log in some) for name, some in found.items()}
    return [
        [(workers, log - levels[name]) for workers, log in some]
        for name, some in found.items()
        if len(some) > 5
    ]


def _nearest(errors: Sequence[tuple[int, float]], workers: int) -> list[tuple[int, float]]:
    """Those that were measured with the most similar number of workers."""

    def apart(one: tuple[int, float]) -> float:
        return abs(math.log2(one[0] + 0.1) - math.log2(workers + 0.1))

    least = min(map(apart, errors))
    return [each for each in errors if apart(each) <= least]


def _workers(key: str) -> int:
    return int(key.split("-", maxsplit=1)[0].removeprefix("w"))


def draw(seed: int, errors: Sequence[Sequence[tuple[int, float]]], traces: Sequence[Any]) -> World:
    """A world; the same for the same seed."""
    rng = random.Random(seed)
    kind, cores = KINDS[seed % len(KINDS)], rng.choice((2, 4, 8))
    cpu_s, io_s = {"waits": (0.01, 1.0), "computes": (1.0, 0.02), "both": (0.5, 0.5)}[kind]
    cpu_s, io_s, main_s = (each * math.exp(rng.gauss(0, 0.4)) for each in (cpu_s, io_s, 0.01))
    workers = sorted({0, 1, 2, 3, 4, 6, 8, cores, 2 * cores, 3 * cores // 2})
    start_s = _START_S if seed % 2 else 0.0  # such as many workers take on few cores
    workers += [n for n in (16, 32) if start_s and max(workers) < n <= 16 * cores]
    configs = [
        Config(num_workers=w, prefetch_factor=p, persistent_workers=k).canonical()
        for w in workers
        for p in _DEPTHS
        for k in (False, True)
    ]
    predicted = {}
    for config in dict.fromkeys(configs):
        count = config.num_workers
        limits = (main_s, (cpu_s + io_s) / max(1, count), cpu_s / cores)
        log = -math.log(sum(limit**4 for limit in limits) ** 0.25)
        predicted[config] = log - (0.03 / (config.prefetch_factor or 1) if count else 0.0)
    missed = rng.choice(errors)
    # Errors change slowly with the number of workers, or (the hard case) not at all so.
    slowly = rng.random() < _SLOWLY
    by_workers = {w: rng.choice(_nearest(missed, w) if slowly else missed)[1] for w in workers}
    own_sd = 0.3 * statistics.pstdev(log for _, log in missed)
    steady = dict.fromkeys((c.num_workers, c.prefetch_factor) for c in configs)
    own = {key: rng.gauss(0, own_sd) for key in steady}
    level = rng.gauss(0, 0.1)
    true = {
        config: log
        + level
        + by_workers[config.num_workers]
        + own[config.num_workers, config.prefetch_factor]
        for config, log in predicted.items()
    }
    trace, speeds = _speeds(rng, cores, traces)
    return World(
        kind=kind,
        cores=cores,
        trace=trace,
        share=cpu_s / (cpu_s + io_s),
        exponent=rng.uniform(0.6, 1.1),
        noise=math.hypot(0.006, 0.03 * cpu_s / (cpu_s + io_s)),
        true=true,
        predicted=predicted,
        log_sd=rng.choice((0.06, 0.08, 0.1)),
        speeds=speeds,
        start_s=start_s,
    )


def _speeds(rng: random.Random, cores: int, traces: Sequence[Any]) -> tuple[str, list[list[float]]]:
    """How the cores' speeds change."""
    count = int((_BUDGET_S + 60) / _STEP_S)
    if traces and rng.random() < 0.4:
        number = rng.randrange(len(traces))
        kept = list(traces[number].values())
        made = []
        for _ in range(cores):
            one = rng.choice(kept)
            first = rng.randrange(len(one))
            made.append([*one[first:], *one[:first]])
        name = f"recorded {number + 1}"
    else:
        ratio, dwell_s = rng.choice(RATIOS), rng.choice(DWELLS_S)
        slow = rng.uniform(0.2, 0.8)
        made = []
        for _ in range(cores):
            is_slow, one = rng.random() < slow, []
            for _ in range(count):
                leaves = (1 - slow if is_slow else slow) * _STEP_S / dwell_s
                is_slow ^= rng.random() < min(1.0, 2 * leaves)
                one.append(1 / ratio if is_slow else 1.0)
            made.append(one)
        name = f"{ratio:g}x, {dwell_s:g} s"
    means = map(statistics.fmean, made)
    return name, [[value / mean for value in one] for one, mean in zip(made, means, strict=True)]


def sweep(world: World, seed: int) -> dict[str, Any]:
    """One sweep, as the engine does it."""
    rng = random.Random(seed)
    prediction = _prediction(world)
    present = rng.choice([c for c in world.true if c.num_workers])
    plan = Plan(
        configs=tuple(world.true),
        trial_s=1.0,
        min_repeats=2,
        max_repeats=8,
        planned_repeats=3,
        take_turns=True,
        cost=TrialCost(overhead_s=_OVERHEAD_S),
        present=present,
    )
    raced = tuple(sorted({*prediction.race, present}, key=lambda config: config.cost_key))
    search = GridSearch(
        plan=final_plan(plan, raced),
        seed=seed,
        expected=ExpectedRates.of(prediction.cells, prediction.log_sd),
        cells=tuple(cell.config for cell in prediction.cells),
    )
    plain = {each.num_workers: each for each in reversed([*world.true]) if each.num_workers < 3}
    traced = [_traced(world, config) for config in plain.values()]
    trials: list[Trial] = []
    now_s = _CALIBRATED_S
    while isinstance(
        found := search.propose([*traced, *trials], remaining_s=_BUDGET_S - now_s), Proposal
    ):
        trials.append(_trial(world, found, now_s, len(trials), rng))
        now_s += trials[-1].wall_s
    run = _run(trials, prediction, plan)
    choice, _ = decide(Situation.of(run))
    certificate = certify(choice)
    if certificate is None:
        raise RuntimeError("several configurations were measured, and nothing was certified")
    pick = world.true[choice.pick.config]
    measured = max(world.true[trial.config] for trial in trials)
    return {
        "kind": world.kind,
        "starts": bool(world.start_s),
        "trace": world.trace,
        "epsilon": certificate.epsilon,
        "epsilon_measured": certificate.epsilon_measured,
        "shown": certificate.shown,
        "regret": 1 - math.exp(pick - max(world.true.values())),
        "regret_measured": 1 - math.exp(pick - measured),
        "slower_than_default": 1 - math.exp(min(0.0, pick - world.true[Config().canonical()])),
        "took_s": now_s,
        "trials": len(trials),
    }


def _traced(world: World, config: Config) -> Trial:
    """A trial that calibrates: here, only what it costs is of interest."""
    wall_s = 0.8 + _OVERHEAD_S + world.start_s * config.num_workers
    return Trial(
        id=f"traced {config.key}",
        config=config,
        repetition=0,
        outcome="completed",
        purpose="explain",
        measured_s=0.8,
        wall_s=wall_s,
    )


def _trial(world: World, found: Proposal, now_s: float, number: int, rng: random.Random) -> Trial:
    """What a trial measures in a world at a moment."""
    config, length_s = found.config, found.trial_s
    used = rng.sample(range(world.cores), min(world.cores, max(1, config.num_workers)))
    speed = world.speed(used, now_s, length_s)
    log = world.true[config] + world.share * world.exponent * math.log(speed)
    rate = 1000 * math.exp(log + rng.gauss(0, world.noise))
    half = rate * rng.uniform(0.005, 0.03)
    samples = Estimate(value=rate, low=rate - half, high=rate + half)
    return Trial(
        id=f"t{number + 1:04}",
        config=config,
        repetition=found.repetition,
        outcome="completed",
        samples_per_s=samples,
        batches_per_s=Estimate(value=rate / 16, low=(rate - half) / 16, high=(rate + half) / 16),
        startup_s=0.1,
        epoch_turnover_s=0.05,
        measured_s=length_s,
        wall_s=length_s + _OVERHEAD_S + world.start_s * config.num_workers,
        window_batches=100,
        samples_per_batch=16.0,
        usage=Usage(
            own_cpu_cores=world.share * len(used),
            available_cpu_cores=float(world.cores),
            core_speed=25_000 * speed * math.exp(rng.gauss(0, 0.015)),
        ),
    )


def _prediction(world: World) -> SweepPrediction:
    best = max(world.predicted.values())
    cells = tuple(
        PredictedCell(
            config=config,
            samples_per_s=Estimate(value=1000 * math.exp(log)),
            speed=math.exp(log - best),
        )
        for config, log in sorted(world.predicted.items(), key=lambda item: item[0].cost_key)
    )
    pick = next(cell for cell in cells if cell.speed >= NEAR)
    return SweepPrediction(
        cells=cells,
        race=finalists(cells, pick, None),
        pick=pick.config,
        cores=world.cores,
        log_sd=world.log_sd,
    )


def _run(trials: Sequence[Trial], prediction: SweepPrediction, plan: Plan) -> Run:
    cores = int(prediction.cores)
    machine = Machine(
        hostname="made up",
        platform="Linux",
        cpu_model="made up",
        logical_cpus=cores,
        affinity_cpus=cores,
        usable_cores=cores,
        fingerprint="made up",
    )
    header = RunHeader(
        schema_version=1,
        run_id="r",
        started_at="",
        dlprof_version="",
        torch_version="",
        python_version="",
        machine=machine,
        target=Target(spec="made", kind="map", dataset="up"),
        settings={},
        plan=plan,
    )
    return Run(path="made up", header=header, trials=tuple(trials), prediction=prediction)


def record(seconds: float) -> None:
    """Record how this machine's cores change, and add it to the traces."""
    probe = SpeedProbe()
    began_s, seen = time.monotonic(), collections.defaultdict(list)
    kept = json.loads(TRACES.read_text()) if TRACES.exists() else []
    while time.monotonic() - began_s < seconds:
        probe.start()
        time.sleep(_STEP_S)
        probe.stop()
        for cpu, speed in probe.speeds.items():
            seen[str(cpu)].append(round(speed))
    kept.append(dict(seen))
    TRACES.write_text(json.dumps(kept, separators=(",", ":")))


def report(found: Sequence[Mapping[str, Any]]) -> Report:
    """The tables."""
    rows = [("all", found)]
    rows += [(kind, [each for each in found if each["kind"] == kind]) for kind in KINDS]
    rows.append(("costly workers", [each for each in found if each.get("starts")]))
    for name in sorted({each["trace"].split(",")[0] for each in found}):
        rows.append((name, [each for each in found if each["trace"].startswith(name)]))
    held = _share(found, "regret", "epsilon")
    return Report(
        name=NAME,
        title="The certificate holds",
        goal=f"in {_GOAL:.0%} of 2,000 replayed sweeps or more; as narrow as can be",
        passed=len(found) >= 2000 and held >= _GOAL,
        tables=[
            Table(
                "",
                (
                    "worlds",
                    "sweeps",
                    "holds",
                    "of those measured",
                    "median ε",
                    "of those measured",
                    "lost, of ε",
                    "> 3 % from the best",
                    "slower than the default",
                    "median trials",
                    "median time",
                ),
                [_row(name, some) for name, some in rows if some],
            )
        ],
        notes=[
            "ε: the recommended settings have at least 1 - ε of the rate of the best (95 %).",
            f"{len(found)} sweeps; their trials are made up, the search and the decision are not.",
            (
                f"Lost, of ε: what {_GOAL:.0%} lose at most, free of any distribution (conformal). "
                "Where that is below 1, ε holds for any sweep that is exchangeable with these."
            ),
        ],
        data={"sweeps": list(found)},
    )


def _lost_at_most(some: Sequence[Mapping[str, Any]]) -> float:
    """Share of its ε that a sweep loses at most, with ``_GOAL``, whatever errors are like.

    The split conformal bound (Vovk, Gammerman and Shafer 2005): a sweep that is exchangeable with
    ``n`` others loses with this probability at most the ``(n + 1) * _GOAL``-th smallest share of
    theirs, rounded up. Nothing is assumed of distributions, nor of what was only predicted.
    """
    scores = sorted(each["regret"] / max(each["epsilon"], _NOTHING) for each in some)
    place = math.ceil((len(scores) + 1) * _GOAL)
    return float(scores[place - 1]) if place <= len(scores) else math.inf


def drawn(count: int) -> Iterator[tuple[str, str]]:
    """Names and modules of so many drawn loaders with long epochs."""
    made = ((seed, drawn_loaders.draw(random.Random(seed))) for seed in itertools.count(1000))
    long = ((n, each) for n, each in made if each.length >= _LEAST_BATCHES * each.batch_size)
    for seed, each in itertools.islice(long, count):
        cost = "computes" if each.computes else f"{1000 * each.sample_s:g} ms"
        name = f"{seed}: {each.kind}, {cost} by {each.batch_size}, {each.collate}"
        yield name, drawn_loaders.module_text(each)


def live(count: int, known: Sequence[Outcome], *, quick: bool) -> Iterator[Outcome]:
    """Sweep and judge drawn loaders that aren't known yet."""
    design, had, machine = picks.QUICK if quick else _LIVE, {each.world for each in known}, None
    for name, text in drawn(count):
        if name in had:
            continue
        machine = machine or inspect_machine()
        with tempfile.TemporaryDirectory(prefix="dlprof-benchmark-") as folder:
            path = Path(folder) / "drawn.py"
            path.write_text(text)
            target = f"{path}:make_loader"
            world = worlds.World(name=name, rules={}, cores=machine.logical_cpus, target=target)
            try:
                yield picks.play(world, design, None, beside=False)
            except DlprofError as error:
                print(f"{name}: left out, {error.message}", file=sys.stderr, flush=True)


def report_live(found: Sequence[Outcome]) -> Report:
    """The table of drawn loaders, and what they and the datasets of ``picks.py`` say together."""
    others = earlier(RESULTS / f"{name_of(beside=False)}.json")
    all_, mine = [*_certified([*others, *found])], [*_certified(found)]
    broken = [outcome.broken(config, epsilon) for outcome, config, epsilon, _ in all_]
    within = [outcome.regrets[config] <= epsilon for outcome, config, epsilon, _ in all_]
    datasets = len({outcome.world for outcome, *_ in all_})
    measured = [known for *_, known in mine if known is not None]
    return Report(
        name=LIVE,
        title="The certificate holds, live",
        goal=f"on {LIVE_DATASETS} datasets or more, in {_GOAL:.0%} of the sweeps",
        passed=datasets >= LIVE_DATASETS and sum(broken) <= (1 - _GOAL) * len(broken),
        tables=[
            Table(
                "",
                (
                    *("loader", "best", "over the default", "dlprof's pick", "regret, %"),
                    *("its standard error, %", "ε, %", "of those measured, %", "holds"),
                ),
                [_live_row(*each) for each in mine],
            )
        ],
        notes=[
            (
                f"With the datasets of picks.py: {datasets} datasets, {len(all_)} sweeps. Of "
                f"{sum(within)} of them the regret is within ε; {sum(broken)} surely lose more, by "
                "two standard errors."
            ),
            (
                f"Median ε of these loaders {statistics.median(e for _, _, e, _ in mine):.1%}, "
                f"over those measured {statistics.median(measured or [math.nan]):.1%}."
            ),
            (
                f"Each loader is drawn (drawn_loaders.py) and swept once for {_LIVE.budget_s:g} "
                f"s. It is judged as picks.py judges: {len(picks.grid(_LIVE.workers))} cells of "
                f"{_LIVE.trial_s:g} s, then {_LIVE.least_finals} to {_LIVE.finals} turns of "
                f"{_LIVE.final_s:g} s of the best and of what was chosen."
            ),
        ],
        data={"worlds": [dataclasses.asdict(each) for each in found]},
    )


def _certified(
    found: Sequence[Outcome],
) -> Iterator[tuple[Outcome, str, float, float | None]]:
    """What dlprof chose and certified: its key, ε over all and over the measured."""
    for outcome in found:
        for each in outcome.chosen:
            if each.who == DLPROF and each.config is not None and each.epsilon is not None:
                yield outcome, each.config, each.epsilon, each.epsilon_measured


def _live_row(
    outcome: Outcome, config: str, epsilon: float, measured: float | None
) -> tuple[str, ...]:
    lost, sure = outcome.regrets[config], not outcome.broken(config, epsilon)
    return (
        outcome.world,
        outcome.best,
        f"{outcome.gain(outcome.best):.2f}",
        config,
        f"{100 * lost:.1f}",
        f"{100 * outcome.error(config):.1f}",
        f"{100 * epsilon:.0f}",
        "-" if measured is None else f"{100 * measured:.0f}",
        "yes" if lost <= epsilon else "can't tell" if sure else "**no**",
    )


def _main_live(count: int, *, quick: bool) -> None:
    """Sweep what is missing and publish."""
    path, before = RESULTS / f"{LIVE}.json", surroundings()
    found = [] if quick else earlier(path)
    warnings.filterwarnings("ignore", category=UserWarning)  # more workers than real cores
    for outcome in live(count, found, quick=quick):
        found.append(outcome)
        keep(report_live(found), before, quick=quick)
        print(*(_live_row(*each) for each in _certified([outcome])), file=sys.stderr, flush=True)
    publish(report_live(found), before, quick=quick)


def _share(found: Sequence[Mapping[str, Any]], regret: str, epsilon: str) -> float:
    return float(
        sum(each[regret] <= each[epsilon] + _NOTHING for each in found) / max(1, len(found))
    )


def _row(name: str, some: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    def median(key: str) -> float:
        return float(statistics.median(each[key] for each in some))

    return (
        name,
        str(len(some)),
        f"{_share(some, 'regret', 'epsilon'):.1%}",
        f"{_share(some, 'regret_measured', 'epsilon_measured'):.1%}",
        f"{median('epsilon'):.1%}",
        f"{median('epsilon_measured'):.1%}",
        f"{_lost_at_most(some):.2f}",
        f"{sum(each['regret'] > 1 - NEAR for each in some) / len(some):.1%}",
        f"{sum(each['slower_than_default'] > 1 - NEAR for each in some)}",
        f"{median('trials'):.0f}",
        f"{median('took_s'):.0f} s",
    )


def main() -> None:
    """Replay and publish."""
    options: argparse.ArgumentParser = parser(__doc__)
    options.add_argument("--record", type=float, metavar="SECONDS", help="add this machine's speed")
    options.add_argument("--sweeps", type=int, default=2000)
    options.add_argument("--more", action="store_true", help="only those that are not done yet")
    options.add_argument(
        "--live", type=int, metavar="N", help="sweep N drawn loaders, those that are not done yet"
    )
    given = options.parse_args()
    if given.live:
        _main_live(given.live, quick=given.quick)
        return
    if given.record:
        record(given.record)
        return
    count = 30 if given.quick else given.sweeps
    path = RESULTS / f"{NAME}.json"
    found = json.loads(path.read_text())["data"]["sweeps"] if given.more and path.exists() else []
    errors, before = errors_measured(), surroundings()
    traces = json.loads(TRACES.read_text()) if TRACES.exists() else []
    for seed in range(len(found), count):
        found.append(sweep(draw(seed, errors, traces), seed))
        if seed % 100 == 99:
            keep(report(found), before, quick=given.quick)
            print(seed + 1, " | ".join(_row("all", found)), file=sys.stderr, flush=True)
    publish(report(found), before, quick=given.quick)


if __name__ == "__main__":
    main()
