"""Plants causes, profiles the loaders, and counts how often ``findings[0]`` names what was planted.

``python benchmarks/planted.py`` runs all causes and the healthy loaders, ``--beside-neighbour`` the
same with a core kept busy, as ``planted_beside.py`` does; names choose cases. ``--gains``, which a
run of all cases on a machine of its own has by default, applies the fixes and measures them.
Quotas, memory limits, /dev/shm and the like are real, and need root on Linux with cgroup v1 or
hybrid; cases whose surroundings can't be made are left out, and said so.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import planted_targets
from common import DLPROF, Report, Table, parser, publish, surroundings

from dlprof.records import Config
from dlprof.trial.bench import Bench
from dlprof.trial.protocol import BuildRequest, TrialRequest
from dlprof.trial.story import Limits

TARGETS = Path(planted_targets.__file__)
CGROUPS = Path("/sys/fs/cgroup")
BUDGET_S = 30.0
QUICK_BUDGET_S = 8.0
GOAL, GOAL_BESIDE, GOAL_GAINS = 0.95, 0.90, 0.80
_BURN = "while True: pass"
_CROWD_CORES = 0.5
_ROUNDS = 4
_TRIAL_S = 1.5

Prefix = Sequence[str]
Place = Callable[[], contextlib.AbstractContextManager[Prefix]]


@contextlib.contextmanager
def nowhere() -> Iterator[Prefix]:
    """No surroundings of its own."""
    yield ()


class UnavailableError(Exception):
    """The surroundings of a case can't be made here."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One planted cause.

    Attributes:
        name: Of the function in ``planted_targets``, and what tells it from its siblings.
        code: The code that should come first; ``consumer`` or none for a healthy loader.
        target: The function, with ``--arg`` for it.
        options: Further options of ``dlprof profile``.
        place: What surrounds it; gives what the command begins with.
    """

    name: str
    code: str
    target: str = ""
    options: Sequence[str] = ()
    place: Place = nowhere


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[Prefix]:
    """Processes that each keep a core busy."""
    started = [subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(count)]
    try:
        time.sleep(0.3)
        yield ()
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextlib.contextmanager
def cgroup(controller: str, settings: Mapping[str, str]) -> Iterator[Prefix]:
    """A cgroup (v1) with settings of its own; what runs in it is ended with it."""
    folder = CGROUPS / controller / f"dlprof-planted-{os.getpid()}"
    try:
        folder.mkdir()
        for name, value in settings.items():
            (folder / name).write_text(value)
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise UnavailableError(f"no cgroup for {controller}: {error}") from error
    try:
        yield ("sh", "-c", f'echo $$ > {folder}/tasks && exec "$@"', "sh")
    finally:
        for _ in range(50):
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.1)


@contextlib.contextmanager
def small_shm(megabytes: int) -> Iterator[Prefix]:
    """A mount namespace with a small /dev/shm."""
    mount = f"mount -t tmpfs -o size={megabytes}m tmpfs /dev/shm"
    probe = subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False)
    if probe.returncode != 0:
        raise UnavailableError("no mount namespace can be made")
    yield ("unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh")


def quota(cores: float) -> contextlib.AbstractContextManager[Prefix]:
    """A CPU quota."""
    period = 100_000
    settings = {"cpu.cfs_period_us": str(period), "cpu.cfs_quota_us": str(round(cores * period))}
    return cgroup("cpu", settings)


def memory(megabytes: int) -> contextlib.AbstractContextManager[Prefix]:
    """A memory limit."""
    return cgroup("memory", {"memory.limit_in_bytes": str(megabytes << 20)})


def _case(name: str, code: str, *options: str, **fields: Any) -> Case:
    return Case(name=name, code=code, options=options, **fields)


CASES: tuple[Case, ...] = (
    _case("consumer_cpu", "consumer", "--step-time", "120ms", target="cpu_jpeg"),
    _case("consumer_io", "consumer", "--step-time", "30ms", target="io_stream"),
    _case("cpu_python", "fetch.cpu"),
    _case("cpu_jpeg", "fetch.cpu"),
    _case("cpu_words", "fetch.cpu"),
    _case("io_map", "fetch.io"),
    _case("io_stream", "fetch.io"),
    _case("io_files", "fetch.io"),
    _case("collate_loop", "collate"),
    _case("collate_lists", "collate"),
    _case("receive_tensors", "main.receive"),
    _case("receive_objects", "main.receive"),
    _case("sampler_index", "main.sampler"),
    _case("sampler_batch", "main.sampler"),
    _case("order_tail", "order.blocking"),
    _case("order_rare", "order.blocking"),
    _case("shallow_phases", "prefetch.shallow", "--step-time", "8ms"),
    _case("shallow_consumer", "prefetch.shallow", "--step", f"{TARGETS}:burst_step"),
    _case("lock_process", "lock"),
    _case("lock_file", "lock"),
    _case("few_cpu", "too_few_workers"),
    _case("few_jpeg", "too_few_workers"),
    _case("few_waiting", "too_few_workers"),
    _case("many_tiny", "too_many_workers"),
    _case("many_shards", "too_many_workers"),
    _case("oversubscribed_python", "cpu.oversubscribed"),
    _case("oversubscribed_zlib", "cpu.oversubscribed"),
    _case("threads_torch", "cpu.threads"),
    _case("threads_python", "cpu.threads"),
    _case("affinity_workers", "cpu.affinity"),
    _case("affinity_main", "cpu.affinity"),
    _case("quota_python", "cpu.quota", target="cpu_python", place=lambda: quota(0.8)),
    _case("quota_jpeg", "cpu.quota", target="cpu_jpeg", place=lambda: quota(1.0)),
    _case("crowd_python", "cpu.neighbours", target="cpu_python", place=lambda: neighbours(6)),
    _case("crowd_words", "cpu.neighbours", target="cpu_words", place=lambda: neighbours(4)),
    _case("startup_short", "startup"),
    _case("startup_spawn", "startup"),
    _case("growth_list", "memory.growth"),
    _case("growth_cache", "memory.growth"),
    _case("limit_workers", "memory.limit", place=lambda: memory(1200)),
    _case("limit_flag", "memory.limit", "--max-ram", "900MiB", target="limit_workers"),
    _case("shm_default", "memory.shm", place=lambda: small_shm(48)),
    _case("shm_custom", "memory.shm", place=lambda: small_shm(32)),
    _case("duplicated_stream", "data.duplicated"),
    _case("duplicated_lines", "data.duplicated"),
    _case("truncated_stop", "data.truncated"),
    _case("truncated_stream", "data.truncated"),
)
_STEPS = {"io_eight": "20ms", "jpeg_two": "30ms", "jpeg_one": "30ms", "large_batches": "25ms"}
HEALTHY = tuple(
    Case(
        name=f"healthy_{name}",
        code="consumer",
        target="healthy",
        options=("--arg", f"name={name}", "--step-time", _STEPS.get(name, "16ms")),
    )
    for name in planted_targets.HEALTHY
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a profile said.

    Attributes:
        case: What was planted.
        findings: As the document has them.
        wall_s: What it took.
        error: Why there is no document.
    """

    case: Case
    findings: Sequence[Mapping[str, Any]] = ()
    wall_s: float = 0.0
    error: str = ""

    @property
    def first(self) -> str:
        """The first code; ``none`` where nothing was found."""
        return self.findings[0]["code"] if self.findings else "none"

    @property
    def right(self) -> bool:
        """Whether it is the planted one, or of a healthy loader nothing but that it keeps up.

        That others take the cores is no false finding where they do.
        """
        if self.error:
            return False
        if self.case in HEALTHY:
            return all(f["code"] == "consumer" or _is_crowd(f) for f in self.findings)
        return self.first == self.case.code


def _is_crowd(finding: Mapping[str, Any]) -> bool:
    """Whether others are told of, and were there."""
    others = finding["evidence"].get("other_cpu_cores") or 0.0
    return finding["code"] == "cpu.neighbours" and others >= _CROWD_CORES


def ask(case: Case, budget_s: float) -> Answer:
    """Profile one case."""
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, case.place() as prefix:
        command = [
            *prefix,
            *DLPROF,
            "profile",
            f"{TARGETS}:{case.target or case.name}",
            *case.options,
            *("--budget", f"{budget_s:g}s", "--json", "-q"),
            *("-o", f"{folder}/planted.dlprof.jsonl"),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=6 * budget_s + 60
            )
        except subprocess.TimeoutExpired:
            return Answer(case=case, error="it did not end")
    wall_s = time.perf_counter() - began_s
    try:
        document = json.loads(done.stdout)
    except json.JSONDecodeError:
        return Answer(case=case, wall_s=wall_s, error=done.stderr[-400:] or "no document")
    found = (document.get("diagnosis") or document).get("findings")
    if found is None:
        return Answer(case=case, wall_s=wall_s, error=str(document.get("error"))[:400])
    return Answer(case=case, findings=found, wall_s=wall_s)


def confusion(answers: Sequence[Answer]) -> Table:
    """Planted against found first."""
    planted = dict.fromkeys(answer.case.code for answer in answers if answer.case not in HEALTHY)
    rows = []
    for code in planted:
        mine = [a for a in answers if a.case.code == code and a.case not in HEALTHY]
        counts = Counter("error" if answer.error else answer.first for answer in mine)
        others = ", ".join(f"{n} x {name}" for name, n in counts.items() if name != code)
        rows.append([code, str(len(mine)), str(counts[code]), others or "-"])
    return Table("Planted and found first", ["planted", "cases", "right", "else"], rows)


def healthy_table(answers: Sequence[Answer]) -> Table:
    """The healthy loaders and what was said of them."""
    rows = [
        [a.case.name, ", ".join(f["code"] for f in a.findings) or a.error or "nothing"]
        for a in answers
        if a.case in HEALTHY
    ]
    return Table("Healthy loaders", ["loader", "found"], rows)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrueGain:
    """A fix, predicted and measured."""

    case: str
    code: str
    predicted: float
    true: float

    @property
    def ratio(self) -> float:
        """True over predicted."""
        return self.true / self.predicted


def measure_gain(answer: Answer) -> TrueGain | None:
    """Apply the settings that the first finding names, and measure both in turn."""
    if not answer.findings:
        return None
    finding = answer.findings[0]
    kwargs, gain = (finding["fix"] or {}).get("dataloader_kwargs"), finding["predicted_gain"]
    if not kwargs or gain is None:
        return None
    with tempfile.TemporaryDirectory() as folder, answer.case.place():
        rates = _rates(answer.case, kwargs, Path(folder))
    if rates is None:
        return None
    return TrueGain(
        case=answer.case.name, code=finding["code"], predicted=gain["value"], true=rates
    )


def _rates(case: Case, kwargs: Mapping[str, Any], folder: Path) -> float | None:
    """Geometric mean of the ratios of interleaved trials."""
    options = dict(zip(case.options[::2], case.options[1::2], strict=True))
    step = options.get("--step-time", "0ms")
    arguments = dict([options["--arg"].split("=", 1)]) if "--arg" in options else {}
    request = BuildRequest(target=f"{TARGETS}:{case.target or case.name}", arguments=arguments)
    with contextlib.closing(Bench(request, directory=folder)) as bench:
        target = bench.build(Limits(wall_s=60.0, stall_s=30.0, usable_cores=2.0))
        bench.probe(TrialRequest(config=Config(), probe=True))
        now = target.present_settings(has_accelerator=False) or Config()
        fixed = _changed(now, kwargs)
        logs = []
        for block in range(_ROUNDS):
            pair = (now, fixed) if block % 2 else (fixed, now)
            found = {}
            for config in pair:
                trial = bench.run(
                    TrialRequest(
                        config=config,
                        trial_s=_TRIAL_S,
                        step_s=float(step.removesuffix("ms")) / 1000,
                        step_callable=options.get("--step"),
                    ),
                    trial_id="t",
                    repetition=block,
                )
                found[config] = trial.batches_per_s.value if trial.batches_per_s else math.nan
            logs.append(math.log(found[fixed] / found[now]))
    known = [each for each in logs if math.isfinite(each)]
    return math.exp(statistics.fmean(known)) if known else None


def _changed(now: Config, kwargs: Mapping[str, Any]) -> Config:
    """The configuration with DataLoader arguments changed."""
    fields = {
        ("start_method" if k == "multiprocessing_context" else k): v for k, v in kwargs.items()
    }
    if fields.get("num_workers") and not now.num_workers:
        fields.setdefault("prefetch_factor", 2)
    return dataclasses.replace(now, **fields).canonical()


def gains_table(gains: Sequence[TrueGain]) -> Table:
    """Predicted and true gains."""
    rows = [
        [g.case, g.code, f"{g.predicted:.2f}", f"{g.true:.2f}", f"{g.ratio:.2f}"] for g in gains
    ]
    return Table("Gains", ["case", "code", "predicted", "true", "true / predicted"], rows)


def run(cases: Sequence[Case], *, budget_s: float, gains: bool) -> tuple[list[Answer], list[Any]]:
    """Profile the cases one after the other."""
    answers, found = [], []
    for case in cases:
        try:
            answer = ask(case, budget_s)
        except UnavailableError as error:
            print(f"{case.name}: left out, {error}", file=sys.stderr, flush=True)
            continue
        answers.append(answer)
        said = ", ".join(f"{f['code']} {f['cost']:.2f}" for f in answer.findings[:3])
        mark = "ok  " if answer.right else "MISS"
        line = f"{mark} {case.name} ({case.code}): {said or answer.error or 'nothing'}"
        print(f"{line} [{answer.wall_s:.0f} s]", file=sys.stderr, flush=True)
        gain = measure_gain(answer) if gains else None
        if gain is not None:
            found.append(gain)
            print(f"     {gain.code}: {gain.predicted:.2f}, truly {gain.true:.2f}", file=sys.stderr)
    return answers, found


def report(answers: Sequence[Answer], gains: Sequence[TrueGain], *, beside: bool) -> Report:
    """The tables and the verdict."""
    planted = [answer for answer in answers if answer.case not in HEALTHY]
    healthy = [answer for answer in answers if answer.case in HEALTHY]
    right = statistics.fmean([a.right for a in planted]) if planted else 1.0
    false = sum(not answer.right for answer in healthy)
    honest = [0.8 <= gain.ratio <= 1.25 for gain in gains]
    goal = GOAL_BESIDE if beside else GOAL
    passed = right >= goal and (beside or false == 0)
    if honest:
        passed = passed and statistics.fmean(honest) >= GOAL_GAINS
    tables = [confusion(answers), healthy_table(answers)]
    if gains:
        tables.append(gains_table(gains))
    notes = [
        f"{sum(a.right for a in planted)} of {len(planted)} planted causes came first",
        f"{false} of {len(healthy)} healthy loaders raised another finding than `consumer`",
    ]
    if honest:
        notes.append(f"{sum(honest)} of {len(honest)} gains lie within 0.8 to 1.25 of the true one")
    where = "beside a busy neighbour" if beside else "on the machine as it was"
    return Report(
        name="planted_beside" if beside else "planted",
        title=f"Planted causes, {where}",
        goal=f"the planted cause comes first in {goal:.0%}; healthy loaders raise no finding",
        passed=passed,
        tables=tables,
        notes=notes,
        data={
            "answers": [
                {
                    "case": answer.case.name,
                    "planted": answer.case.code,
                    "found": [finding["code"] for finding in answer.findings],
                    "error": answer.error,
                    "wall_s": answer.wall_s,
                }
                for answer in answers
            ],
            "gains": [dataclasses.asdict(gain) for gain in gains],
        },
    )


def main(*, beside: bool = False) -> None:
    """Plant, profile, count.

    Args:
        beside: Whether a core is kept busy even if that isn't asked for.
    """
    options = parser(__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", help="cases, or beginnings of them")
    options.add_argument("--beside-neighbour", action="store_true", help="keep a core busy")
    options.add_argument(
        "--gains", action=argparse.BooleanOptionalAction, help="apply fixes and measure them"
    )
    given = options.parse_args()
    cases = [*CASES, *HEALTHY]
    if given.names:
        cases = [case for case in cases if case.name.startswith(tuple(given.names))]
    elif given.quick:
        cases = [CASES[2], HEALTHY[0]]
    before = surroundings()
    beside, chosen = beside or given.beside_neighbour, bool(given.names) or given.quick
    gained = not (chosen or beside) if given.gains is None else given.gains
    with neighbours(1) if beside else contextlib.nullcontext():
        budget_s = QUICK_BUDGET_S if given.quick else BUDGET_S
        answers, gains = run(cases, budget_s=budget_s, gains=gained)
    publish(report(answers, gains, beside=beside), before, quick=chosen)


if __name__ == "__main__":
    main()
