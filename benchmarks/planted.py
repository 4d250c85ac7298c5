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
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from common import DLPROF, Report, Table, parser, publish, surroundings
from planted_cases import CASES, HEALTHY, Case, UnavailableError, neighbours
from planted_gains import TrueGain, gains_table, measure_gain

BUDGET_S = 30.0
QUICK_BUDGET_S = 8.0
GOAL, GOAL_BESIDE, GOAL_GAINS = 0.95, 0.90, 0.80
_CROWD_CORES = 0.5
_PARTS = {
    "fetch.io": "storage",
    "fetch.cpu": "host_cpu",
    "collate": "host_cpu",
    "main.receive": "main_process",
    "main.sampler": "main_process",
}
"""Causes that are a part of loading by themselves: without it the loader must gain most."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a profile said.

    Attributes:
        case: What was planted.
        findings: As the document has them.
        part: Without which the loader would gain most.
        wall_s: What it took.
        error: Why there is no document.
    """

    case: Case
    findings: Sequence[Mapping[str, Any]] = ()
    part: str = ""
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
        return self.first in {self.case.code, *self.case.also}


def _is_crowd(finding: Mapping[str, Any]) -> bool:
    """Whether others are reported, and were there."""
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
            case.spec,
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
    parts = [each["part"] for each in document.get("without") or ()]
    return Answer(case=case, findings=found, part=parts[0] if parts else "", wall_s=wall_s)


def confusion(answers: Sequence[Answer]) -> Table:
    """Planted against found first."""
    planted = dict.fromkeys(answer.case.code for answer in answers if answer.case not in HEALTHY)
    rows = []
    for code in planted:
        mine = [a for a in answers if a.case.code == code and a.case not in HEALTHY]
        wrong = Counter("error" if a.error else a.first for a in mine if not a.right)
        others = ", ".join(f"{n} x {name}" for name, n in wrong.items())
        rows.append([code, str(len(mine)), str(len(mine) - wrong.total()), others or "-"])
    return Table("Planted and found first", ["planted", "cases", "right", "else"], rows)


def healthy_table(answers: Sequence[Answer]) -> Table:
    """The healthy loaders and what was said of them."""
    rows = [
        [a.case.name, ", ".join(f["code"] for f in a.findings) or a.error or "nothing"]
        for a in answers
        if a.case in HEALTHY
    ]
    return Table("Healthy loaders", ["loader", "found"], rows)


def run(
    cases: Sequence[Case], *, budget_s: float, gains: bool
) -> tuple[list[Answer], list[TrueGain]]:
    """Profile the cases one after the other."""
    answers: list[Answer] = []
    found: list[TrueGain] = []
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
        line += f"; {answer.part}" if answer.part else ""
        print(f"{line} [{answer.wall_s:.0f} s]", file=sys.stderr, flush=True)
        gain = measure_gain(case, answer.findings) if gains else None
        if gain is not None:
            found.append(gain)
            print(f"     {gain.code}: {gain.predicted:.2f}, truly {gain.true:.2f}", file=sys.stderr)
    return answers, found


def report(
    answers: Sequence[Answer],
    gains: Sequence[TrueGain],
    *,
    name: str,
    title: str,
    beside: bool,
) -> Report:
    """The tables and the verdict."""
    planted = [answer for answer in answers if answer.case not in HEALTHY]
    healthy = [answer for answer in answers if answer.case in HEALTHY]
    right = statistics.fmean([a.right for a in planted]) if planted else 1.0
    false = sum(not answer.right for answer in healthy)
    honest = [gain.honest for gain in gains]
    goal = GOAL_BESIDE if beside else GOAL
    passed = right >= goal and (beside or false == 0)
    if honest:
        passed = passed and statistics.fmean(honest) >= GOAL_GAINS
    tables = [confusion(answers), *([healthy_table(answers)] if healthy else [])]
    if gains:
        tables.append(gains_table(gains))
    notes = [f"{sum(a.right for a in planted)} of {len(planted)} planted causes came first"]
    parted = [a.part == _PARTS[a.case.code] for a in planted if a.case.code in _PARTS and a.part]
    if parted:
        notes.append(
            f"{sum(parted)} of {len(parted)} that are a part of loading by themselves are the part "
            "without which the loader would gain most"
        )
    if healthy:
        notes.append(
            f"{false} of {len(healthy)} healthy loaders raised a finding but `consumer`, or "
            "`cpu.neighbours` where there was one"
        )
    if honest:
        notes.append(f"{sum(honest)} of {len(honest)} gains lie within 0.8 to 1.25 of the true one")
    where = "beside a busy neighbour" if beside else "on the machine as it was"
    return Report(
        name=f"{name}_beside" if beside else name,
        title=f"{title}, {where}",
        goal=f"the planted cause comes first in {goal:.0%}"
        + ("; healthy loaders raise no finding" if healthy else ""),
        passed=passed,
        tables=tables,
        notes=notes,
        data={
            "answers": [
                {
                    "case": answer.case.name,
                    "planted": answer.case.code,
                    "found": [finding["code"] for finding in answer.findings],
                    "part": answer.part,
                    "error": answer.error,
                    "wall_s": answer.wall_s,
                }
                for answer in answers
            ],
            "gains": [dataclasses.asdict(gain) for gain in gains],
        },
    )


def main(
    *,
    beside: bool = False,
    name: str = "planted",
    title: str = "Planted causes",
    cases: Sequence[Case] = (*CASES, *HEALTHY),
    about: str | None = __doc__,
) -> None:
    """Plant, profile, count.

    Args:
        beside: Whether a core is kept busy even if that isn't asked for.
        name: Of the benchmark.
        title: Of its table.
        cases: What is profiled.
        about: What help says.
    """
    options = parser(about)
    options.add_argument("names", nargs="*", metavar="NAME", help="cases, or beginnings of them")
    options.add_argument("--beside-neighbour", action="store_true", help="keep a core busy")
    options.add_argument(
        "--gains", action=argparse.BooleanOptionalAction, help="apply fixes and measure them"
    )
    given = options.parse_args()
    if given.names:
        cases = [case for case in cases if case.name.startswith(tuple(given.names))]
    elif given.quick:
        cases = [cases[2], cases[-1]]
    before = surroundings()
    beside, chosen = beside or given.beside_neighbour, bool(given.names) or given.quick
    gained = not (chosen or beside) if given.gains is None else given.gains
    with neighbours(1) if beside else contextlib.nullcontext():
        budget_s = QUICK_BUDGET_S if given.quick else BUDGET_S
        answers, gains = run(cases, budget_s=budget_s, gains=gained)
    publish(report(answers, gains, name=name, title=title, beside=beside), before, quick=chosen)


if __name__ == "__main__":
    main()
