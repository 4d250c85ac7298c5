"""What the pages say of the gate's errors is what rule and campaign give."""

from __future__ import annotations

import collections
import json
from pathlib import Path

from dlprof.gate.plan import make_plan

ROOT = Path(__file__).parents[2]
CI = (ROOT / "docs" / "how-to" / "ci.md").read_text(encoding="utf-8")
CHECKING = (ROOT / "docs" / "concepts" / "checking.md").read_text(encoding="utf-8")
SESSIONS = json.loads((ROOT / "benchmarks" / "results" / "gate_campaign.json").read_text())["data"][
    "sessions"
]


def verdicts(*, harmless: bool) -> collections.Counter[str]:
    found = (s for s in SESSIONS if s["kind"].startswith(("none", "3 %")) is harmless)
    return collections.Counter(session["verdict"] for session in found)


def test_the_campaigns_counts_are_those_of_the_docs() -> None:
    rows = {
        "harmless: none, or 3% slower": verdicts(harmless=True),
        "slower than its limit": verdicts(harmless=False),
    }
    for name, found in rows.items():
        counts = (found.total(), found["fail"], found["pass"], found["inconclusive"])
        assert f"| {name} | {' | '.join(map(str, counts))} |" in CHECKING
    fine, slow = rows.values()
    text = " ".join(CI.split())
    assert f"campaign of {len(SESSIONS)} checks" in text
    assert f"none of {fine.total()} harmless changes failed" in text
    assert f"{fine['inconclusive']} of them were still undecided" in text
    assert f"of {slow.total()} slowdowns {slow['fail']} failed and none passed" in text


def test_no_alarms_prove_no_more_than_their_upper_bound() -> None:
    checks = verdicts(harmless=True).total()
    assert verdicts(harmless=True)["fail"] == 0
    one_sided, two_sided = (100 * (1 - share ** (1 / checks)) for share in (0.05, 0.025))
    assert f"{one_sided:.1f}" == f"{two_sided:.1f}"  # so that one figure says it
    assert f"the 95% upper bound for false alarms is {two_sided:.1f}% on" in " ".join(
        CHECKING.split()
    )
    assert f"95% upper bound: {two_sided:.1f}%" in CI


def test_the_bound_by_construction_is_the_plans() -> None:
    plan = make_plan(confidence=0.99)
    service = next(rule for rule in plan.rules if rule.name == "service")
    spent = service.alpha * len(service.views) * len(service.looks)
    assert f"at most {100 * spent:.0f}% of the checks of code at the limit fail" in CHECKING
    assert f"at most {100 * plan.error_bound:.1f}% on any metric" in CHECKING
