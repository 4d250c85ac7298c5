"""A check as Markdown: the summary of a job and the comment on a merge request."""

from __future__ import annotations

from dlprof.records.gate import CheckReport
from dlprof.report.document import Document
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
    return _fitted(check, MOST_SUMMARY_BYTES)


def render_comment(check: CheckReport) -> str:
    """A comment on a pull or merge request."""
    return f"{MARKER}\n{_fitted(check, MOST_COMMENT_BYTES - len(MARKER) - 1)}"


def _fitted(check: CheckReport, most_bytes: int) -> str:
    """The whole text, with as many targets, worst first, as the place takes."""
    parts = [to_markdown(check_answer(check), level=2)]
    count = len(check.targets)
    room = most_bytes - len(parts[0].encode()) - len(_more(count).encode())
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
