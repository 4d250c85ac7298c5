"""What a self-test says of a machine."""

from __future__ import annotations

import dataclasses
import json

import pytest
from gate_samples import check_golden, confirmed, load_quads, start_quads
from golden import drawn
from schemas import conforms

from dlprof.gate.plan import make_plan
from dlprof.gate.verdict import checked_target, make_self_test
from dlprof.records.gate import SelfTest, TargetCheck
from dlprof.report.check import check_document, self_test_report
from dlprof.report.documents import brief_document


def check(slower: float, *, noise: float = 0.01, quads: int = 36) -> TargetCheck:
    loaded = load_quads(quads, slower, noise=noise)
    measured = (confirmed(loaded) if slower else loaded) + start_quads(20, 0.5)
    return dataclasses.replace(checked_target("data.py:make", make_plan(), measured), measured_s=12)


def examined(same: TargetCheck, slowed: TargetCheck) -> SelfTest:
    return make_self_test(same, slowed, 0.10)


def shown(test: SelfTest) -> str:
    return drawn(self_test_report(test), 80, verbose=True)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_screen(width: int) -> None:
    report = self_test_report(examined(check(0.0), check(0.10)))
    check_golden(f"self-test-{width}.txt", drawn(report, width))
    assert len(drawn(report, 80).splitlines()) <= 16


def test_all_figures() -> None:
    check_golden("self-test-verbose.txt", shown(examined(check(0.0), check(0.10))))


def test_a_machine_that_shows_both_is_trusted() -> None:
    test = examined(check(0.0), check(0.10))
    assert test.trusted
    brief = json.loads(brief_document(check_document(test)))
    conforms("brief", brief)
    assert brief["trusted"] is True
    text = shown(test)
    assert "Verdict  TRUSTED: checks on this machine" in text
    assert "To do    use dlprof check here as it is" in text
    assert "The same code passed against itself after 12 s" in text
    assert "Code made slower by 10% failed after" in " ".join(text.split())


def test_equal_code_that_fails_is_the_first_thing_to_say() -> None:
    test = examined(check(0.2), check(0.2))
    assert not test.trusted
    assert "don't trust a failure on this machine" in test.explanation
    assert "To do    self-test again with a larger --budget, or on a quieter machine" in shown(test)
    assert "Detects" not in shown(test)
    assert "nothing: the same code fails it" in shown(test)


@pytest.mark.parametrize(
    ("slower", "noise", "said"),
    [
        (0.0, 0.01, "does not detect that much"),
        (0.05, 0.3, "could not be distinguished from equal code"),
    ],
)
def test_slower_code_that_does_not_fail_takes_the_trust(
    slower: float, noise: float, said: str
) -> None:
    test = examined(check(0.0), check(slower, noise=noise))
    assert not test.trusted
    assert said in test.explanation


def test_equal_code_that_can_not_be_shown_takes_the_trust() -> None:
    test = examined(check(0.0, noise=0.5), check(0.10))
    assert not test.trusted
    assert "could not be distinguished from slower code" in test.explanation


def test_reach_says_what_would_have_failed() -> None:
    reach = {each.name: each for each in examined(check(0.0), check(0.10)).reach}
    service = reach["service"].worse
    assert service is not None
    assert 0.05 < service < 0.08
    startup = reach["startup"].worse
    assert startup is not None
    assert 0.2 < startup < 0.3
    assert reach["startup"].unit == "s"


def test_wall_time_can_not_fail_on_a_crowded_machine() -> None:
    quads = load_quads(140, run_queue_wait_fraction=0.5) + start_quads(3, 0.5)
    crowded = checked_target("data.py:make", make_plan(), quads)
    reach = {each.name: each for each in examined(crowded, crowded).reach}
    assert reach["wall"].reason == "run-queue delay is too high"
    assert reach["startup"].reason == "too little was measured"
    assert "nothing: run-queue delay is too high" in shown(examined(crowded, crowded))


def test_a_check_against_a_baseline_is_no_self_test() -> None:
    one = check(0.0)
    with pytest.raises(ValueError, match="two sides"):
        examined(dataclasses.replace(one, plan=None), one)


def test_the_document_holds_the_raw_blocks() -> None:
    document = json.loads(check_document(examined(check(0.0, quads=11), check(0.10, quads=11))))
    assert document["schema_version"] == 1
    assert document["trusted"] is True
    assert len(document["same"]["quads"]) == 31
