"""Runs the planted loaders as trainings, attaches to each, and counts how often the cause is named.

``python benchmarks/attached.py`` takes some 25 minutes; names choose cases. Each training is a loop
over a loader of ``planted_targets.py`` with the case's step, epoch after epoch, in the case's real
surroundings. It runs by itself for a moment, then ``dlprof attach`` watches it for 10 s.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import DLPROF, RESULTS, Report, Table, parser, publish, surroundings
from planted_cases import CASES, HEALTHY, TARGETS, Case, UnavailableError

from dlprof.units import parse_duration_s

GOAL, MOST_CORES = 0.90, 0.005
WATCHED_S = 10.0
_TRAINS_S, _RUNS_S, _MOST_CROWD = 90.0, 1.5, 0.5
_LOOP, _MORE_TRIES = "--train", 2

UNSEEN: Mapping[str, str] = {
    "collate": "collate_fn and __getitem__ are the same thread's CPU time",
    "data.duplicated": "what samples hold is not looked at",
    "data.shared_file": "which process moves a position that several share is not seen",
    "data.truncated": "how long an epoch should be is not known",
}
"""Causes that nothing outside of a process shows, and why."""

_USAGE = ("other_cpu_cores", "own_cpu_cores", "throttled_fraction")
_KEPT = ("overhead_cpu_cores", "looks", "wait_fraction")

LEFT_OUT = {"limit_flag": "the limit is an option of profile"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What attach said.

    Attributes:
        case: What was planted.
        document: Its JSON document.
        wall_s: What the command took.
        command_cpu_s: CPU seconds of the whole command, its start included.
    """

    case: Case
    document: Mapping[str, Any]
    wall_s: float = 0.0
    command_cpu_s: float = 0.0

    @classmethod
    def of(cls, case: Case, kept: Mapping[str, Any]) -> Answer:
        """An answer as the results keep it.

        Args:
            case: What was planted.
            kept: From ``to_record``.
        """
        document = {
            "findings": [{"code": code} for code in kept["found"]],
            "usage": {name: kept.get(name) for name in _USAGE},
            **{name: kept[name] for name in _KEPT if kept[name] is not None},
            **({"error": {"message": kept["error"]}} if kept["error"] else {}),
        }
        return cls(
            case=case,
            document=document,
            wall_s=kept["wall_s"],
            command_cpu_s=kept["command_cpu_s"],
        )

    def to_record(self) -> dict[str, Any]:
        """What the results keep."""
        return {
            "case": self.case.name,
            "planted": self.case.code,
            "found": self.codes,
            "error": self.error,
            "right": self.right,
            "crowded": self.is_crowded,
            "undecided": self.undecided,
            **{name: self.document.get(name) for name in _KEPT},
            **{name: (self.document.get("usage") or {}).get(name) for name in _USAGE},
            "command_cpu_s": self.command_cpu_s,
            "wall_s": self.wall_s,
        }

    @property
    def codes(self) -> list[str]:
        """Of the findings, in their order."""
        return [str(each["code"]) for each in self.document.get("findings", ())]

    @property
    def first(self) -> str:
        """The first code; ``none`` without one."""
        return (self.codes or ["none"])[0]

    @property
    def error(self) -> str:
        """Why there is no answer; empty where there is one."""
        return str((self.document.get("error") or {}).get("message", ""))

    @property
    def is_crowded(self) -> bool:
        """Whether others took the cores, and attach says so, which is true then."""
        others = (self.document.get("usage") or {}).get("other_cpu_cores") or 0.0
        return self.first == "cpu.neighbours" and others >= _MOST_CROWD

    @property
    def right(self) -> bool:
        """Whether the planted cause comes first, behind others' load where there is some."""
        if self.error:
            return False
        codes = self.codes[1:] if self.is_crowded else self.codes
        if self.case in HEALTHY:
            return all(code == "consumer" for code in codes[:1])
        return any(first in (self.case.code, *self.case.also) for first in (self.first, *codes[:1]))

    @property
    def undecided(self) -> bool:
        """Whether others left so little of the cores that the planted cause was none.

        Then attach names them and nothing else, or a quota that is never used up throttles nobody.
        """
        usage = self.document.get("usage") or {}
        unused = self.case.code == "cpu.quota" and not usage.get("throttled_fraction")
        return not self.right and (unused or (self.is_crowded and len(self.codes) == 1))


def train(case: Case) -> None:
    """Load batch after batch, with the case's step between them."""
    options = case.values()
    step = _step(options)
    module = _module(TARGETS)
    print("begun", flush=True)
    loader = getattr(module, case.target or case.name)(**case.arguments)
    ends_s = time.monotonic() + _TRAINS_S
    while time.monotonic() < ends_s:
        for batch in loader:
            step(batch)
            if time.monotonic() > ends_s:
                break


def _step(options: Mapping[str, str]) -> Callable[[object], None]:
    if "--step" in options:
        function: Callable[[object], None]
        function = getattr(_module(TARGETS), options["--step"].rpartition(":")[2])
        return function
    seconds = parse_duration_s(options.get("--step-time", "0s"))
    return lambda _batch: time.sleep(seconds) if seconds else None


def _module(path: Path) -> Any:
    name = path.stem
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} can't be loaded")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def ask(case: Case, seconds: float) -> Answer:
    """Start the training, attach to it, end it."""
    with case.place() as prefix:
        command = [*prefix, sys.executable, __file__, _LOOP, case.name]
        training = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            if training.stdout is not None:
                training.stdout.readline()
            if not case.code.startswith(("memory.shm", "memory.limit")):
                time.sleep(_RUNS_S)
            return _attach(case, training.pid, seconds)
        finally:
            with contextlib.suppress(OSError):
                os.killpg(training.pid, signal.SIGTERM)  # so that semaphores are cleaned up
            training.wait()
            if training.stdout is not None:
                training.stdout.close()


def _attach(case: Case, pid: int, seconds: float) -> Answer:
    began_s = time.perf_counter()
    command = [*DLPROF, "attach", str(pid), "--json", "--seconds", f"{seconds:g}"]
    before = _children_s()
    done = subprocess.run(command, capture_output=True, check=False, timeout=10 * seconds + 60)
    return Answer(
        case=case,
        document=json.loads(done.stdout or b'{"error": {"message": "no document"}}'),
        wall_s=time.perf_counter() - began_s,
        command_cpu_s=_children_s() - before,
    )


def _children_s() -> float:
    """CPU seconds of the processes that this one has waited for; the training still runs."""
    used = os.times()
    return used.children_user + used.children_system


def run(cases: Sequence[Case], seconds: float) -> list[Answer]:
    """Attach to the cases one after the other."""
    answers = []
    for case in cases:
        try:
            answer = ask(case, seconds)
            for _ in range(_MORE_TRIES):
                answer = ask(case, seconds) if answer.undecided else answer
        except UnavailableError as error:
            print(f"{case.name}: left out, {error}", file=sys.stderr, flush=True)
            continue
        answers.append(answer)
        mark = "ok  " if answer.right else "unsn" if case.code in UNSEEN else "MISS"
        said = answer.error or ", ".join(answer.codes[:4]) or "nothing"
        cores = answer.document.get("overhead_cpu_cores") or 0.0
        wait = (answer.document.get("wait_fraction") or {}).get("value")
        print(
            f"{mark} {case.name} ({case.code}): {said} [wait {wait}, {cores:.2%} of a core, "
            f"{answer.document.get('looks')} looks]",
            file=sys.stderr,
            flush=True,
        )
    return answers


def report(answers: Sequence[Answer]) -> Report:
    """The tables and the verdict."""
    healthy = [each for each in answers if each.case in HEALTHY]
    planted = [each for each in answers if each.case not in HEALTHY]
    visible = [each for each in planted if each.case.code not in UNSEEN and not each.undecided]
    false = [each for each in healthy if not each.right]
    rows = []
    for code in dict.fromkeys(each.case.code for each in planted):
        mine = [each for each in planted if each.case.code == code]
        others = Counter(each.error or each.first for each in mine if not each.right)
        shown = ", ".join(f"{count} x {name}" for name, count in others.items()) or "-"
        rows.append([code, str(len(mine)), str(sum(each.right for each in mine)), shown])
    cores = [
        float(each.document["overhead_cpu_cores"])
        for each in answers
        if "overhead_cpu_cores" in each.document
    ]
    share = statistics.fmean(each.right for each in visible) if visible else 1.0
    return Report(
        name="attached",
        title="Planted causes, seen from outside in 10 s",
        goal=f"the planted cause comes first in {GOAL:.0%} of those that show from outside; "
        f"no finding but `consumer` on healthy trainings; watching takes at most {MOST_CORES:.1%} "
        "of a core",
        passed=share >= GOAL and not false and statistics.median(cores or [0.0]) <= MOST_CORES,
        tables=[
            Table("Planted and found first", ["planted", "cases", "right", "else"], rows),
            Table(
                "Healthy trainings",
                ["training", "found"],
                [[each.case.name, ", ".join(each.codes) or each.error or "-"] for each in healthy],
            ),
        ],
        notes=[
            _counts(visible, planted),
            *(f"`{code}` doesn't show from outside: {why}" for code, why in UNSEEN.items()),
            *(f"`{name}` is left out: {why}" for name, why in LEFT_OUT.items()),
            f"{len(false)} of {len(healthy)} healthy trainings got a finding but `consumer`",
            _crowd(answers),
            _cost(cores, answers),
        ],
        data={"answers": [each.to_record() for each in answers]},
    )


def _counts(visible: Sequence[Answer], planted: Sequence[Answer]) -> str:
    right = f"{sum(each.right for each in visible)} of {len(visible)} causes that show from outside"
    undecided = sum(each.undecided for each in planted)
    more = f" (without {undecided} where others left too little of the cores)" if undecided else ""
    return f"{right} came first{more}; {sum(a.right for a in planted)} of all {len(planted)}"


def _crowd(answers: Sequence[Answer]) -> str:
    count = sum(each.is_crowded for each in answers)
    return (
        "`cpu.neighbours` before the planted cause counts as right where others kept half a core "
        f"busy, which they did: {count} times"
    )


def _cost(cores: Sequence[float], answers: Sequence[Answer]) -> str:
    median, most = statistics.median(cores or [0.0]), max(cores, default=0.0)
    command_s = statistics.median(each.command_cpu_s for each in answers) if answers else 0.0
    return (
        f"watching took {median:.2%} of a core in the median, {most:.2%} at most; the whole "
        f"command {command_s:.2f} CPU seconds, its start included"
    )


def main() -> None:
    """Train, attach, count."""
    cases = {case.name: case for case in (*CASES, *HEALTHY)}
    if sys.argv[1:2] == [_LOOP]:
        train(cases[sys.argv[2]])
        return
    options = parser(__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", help="cases, or beginnings of them")
    options.add_argument(
        "--more", action="store_true", help="keep the answers of all others from the results"
    )
    given = options.parse_args()
    chosen = [case for name, case in cases.items() if name not in LEFT_OUT]
    if given.names:
        chosen = [case for case in chosen if case.name.startswith(tuple(given.names))]
    elif given.quick:
        chosen = [CASES[2], HEALTHY[0]]
    before = surroundings()
    answers = {each.case.name: each for each in _earlier(cases)} if given.more else {}
    answers |= {each.case.name: each for each in run(chosen, 3.0 if given.quick else WATCHED_S)}
    ordered = [answers[name] for name in cases if name in answers]
    publish(report(ordered), before, quick=given.quick or (bool(given.names) and not given.more))


def _earlier(cases: Mapping[str, Case]) -> list[Answer]:
    """The answers that the results have."""
    made = json.loads((RESULTS / "attached.json").read_text())
    kept = made["data"]["answers"]
    return [Answer.of(cases[each["case"]], each) for each in kept if each["case"] in cases]


if __name__ == "__main__":
    main()
