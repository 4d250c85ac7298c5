"""Data that comes more often, or less often, than it should."""

from __future__ import annotations

from dlprof.advise.findings.claims import Claim, Place, Words, claim
from dlprof.advise.findings.view import View
from dlprof.records import Fix

DUPLICATED_SIGN = "each comes once per worker"
"""In the warning of a trial whose workers gave the same batches."""

LENGTH_SIGN = "where __len__ promises"
"""In the warning of a trial whose epoch was not as long as promised."""

_SHARDED_CODE = """def __iter__(self):
    worker = torch.utils.data.get_worker_info()
    first, step = (worker.id, worker.num_workers) if worker else (0, 1)
    for sample in itertools.islice(self.samples(), first, None, step):
        yield sample"""


def duplicated(view: View) -> Claim | None:
    """An iterable data set is not shared out among workers."""
    found = _warned(view, DUPLICATED_SIGN)
    if not found:
        return None
    workers = max(2, view.workers)
    return claim(
        view,
        "data.duplicated",
        Words(
            title="Every worker gives the same samples",
            explanation=f"With {workers} workers an epoch holds each sample {workers} times: the "
            "iterable data set does not share them out.",
        ),
        place=Place.BROKEN,
        cost=1 - 1 / workers if view.workers > 1 else 0.0,
        figures={"num_workers": view.workers, "seen_in": found},
        fix=Fix(
            text="Let each worker yield its own share of the samples, by "
            "torch.utils.data.get_worker_info().",
            code=_SHARDED_CODE,
        ),
    )


def truncated(view: View) -> Claim | None:
    """An epoch ended early."""
    failures = [
        trial
        for trial in view.evidence.trials()
        if trial.failure is not None and trial.failure.kind == "truncated"
    ]
    warned = _warned(view, LENGTH_SIGN)
    if not failures and not warned:
        return None
    failure = failures[0].failure if failures else None
    told = failure.message if failure is not None else _warning(view, LENGTH_SIGN)
    return claim(
        view,
        "data.truncated",
        Words(title="An epoch is not as long as it should be", explanation=told),
        place=Place.BROKEN,
        cost=1.0 if failures else 0.5,
        figures={"seen_in": [trial.id for trial in failures] or warned},
        fix=Fix(
            text="Look for a StopIteration, such as next() on an empty iterator, in __getitem__ "
            "or collate_fn, which torch takes for the end of the epoch, and make __len__ say how "
            "many samples come."
        ),
    )


def _warned(view: View, sign: str) -> list[str]:
    trials = view.evidence.trials()
    return [trial.id for trial in trials if any(sign in text for text in trial.warnings)]


def _warning(view: View, sign: str) -> str:
    texts = [text for trial in view.evidence.trials() for text in trial.warnings if sign in text]
    return texts[0][:1].upper() + texts[0][1:] + "."
