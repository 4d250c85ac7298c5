"""A check as Markdown: the summary of a job and the comment on a merge request."""

from __future__ import annotations

from dlprof.records.gate import CheckReport
from dlprof.report.document import Document, Facts
from dlprof.report.gate.check import check_answer, check_details
from dlprof.report.markdown import to_markdown

MOST_SUMMARY_BYTES = 1024 * 1024 - 4096
"""GitHub takes 1024 kB for the summary of a step, other tools' lines among them."""

MOST_COMMENT_BYTES = 64_000
"""GitHub takes 65,536 characters for a comment."""

MARKER = "<!-- dlprof check -->"
"""First line of a comment, by which the next run finds it to replace it."""


def render_summary(check: CheckReport) -> str:
    """What goes to ``$GITHUB_STEP_SUMMARY``."""
    head = to_markdown(check_answer(check), level=2)
    return head + _details(check, MOST_SUMMARY_BYTES - len(head.encode()))


def render_comment(check: CheckReport) -> str:
    """A comment on a pull or merge request: five lines of one target, all else folded away."""
    whole = check_answer(check)
    facts, *pictures = whole.answer
    if isinstance(facts, Facts):  # the title says the verdict, the table the other metrics
        facts = Facts(tuple(row for row in facts.rows if row[0] not in {"Verdict", "Also"}))
    answer = to_markdown(Document(title=whole.title, answer=(facts,)), level=3)
    drawn = f"\n{to_markdown(Document(title='', answer=tuple(pictures)))}" if pictures else ""
    head = f"{MARKER}\n{answer}\n<details><summary>Details</summary>\n{drawn}"
    end = "\n</details>\n"
    return head + _details(check, MOST_COMMENT_BYTES - len((head + end).encode())) + end


def _details(check: CheckReport, most_bytes: int) -> str:
    """Where it was measured and as many targets, worst first, as the place takes."""
    parts: list[str] = []
    count = len(check.targets)
    room = most_bytes - len(_more(count).encode())
    for number, section in enumerate(check_details(check)):  # the first says where, not what
        title, blocks = section.title, section.blocks
        text = "\n" + to_markdown(Document(title=title, answer=blocks), level=3)
        room -= len(text.encode())
        if room < 0:
            parts.append(_more(count + 1 - number))
            break
        parts.append(text)
    return "".join(parts)


def _more(count: int) -> str:
    return f"\n{count} more targets are in the JSON document.\n"
