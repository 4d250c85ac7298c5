"""Which configurations give wrong data, too little of it, or none to some workers.

A rate of wrong data is no rate. So a run is ``checked`` once, where it is read and while a sweep
goes on, and all that is drawn from it sees failed trials in the place of wrong ones.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from dlprof.records.calibration import SweepPrediction
from dlprof.records.config import Config
from dlprof.records.findings import Finding
from dlprof.records.record import empty, record
from dlprof.records.run import Run
from dlprof.records.stages import Explanation
from dlprof.records.target import Target
from dlprof.records.trial import Failure, FailureKind, Trial

DATA_FAULTS: tuple[FailureKind, ...] = ("duplicated", "truncated", "shared_file")
"""Kinds of failures in which a loader works and its data is wrong."""

SHARE_OUT = (
    "Let each worker yield its own share of the samples, by torch.utils.data.get_worker_info()."
)
"""What to do about samples that come once per worker."""

WHOLE_EPOCHS = (
    "Look for a StopIteration in __getitem__ or collate_fn, such as next() on an empty "
    "iterator: torch takes it for the end of the epoch. Make __len__ match the number of "
    "samples."
)
"""What to do about epochs that end early."""

OPENED_EACH = (
    "Open the file in each worker, at its first sample, not in __init__: keep its path, and no "
    "open file."
)
"""What to do about files that are open when workers are forked."""

ONCE = (
    "what orders or makes its samples can be iterated once, as a generator can. Make it again in "
    "__iter__."
)
"""What makes epochs empty, as the end of a sentence, and what to do about it."""


DUPLICATED_SIGN = "each comes once per worker"
"""In the warning of a trial whose workers gave the same batches, though they asked for shares (or
in an earlier version)."""

LENGTH_SIGN = "where __len__ promises"
"""In the warning of one whose epoch was not as long as promised."""

SHARED_SIGN = "workers gave some of the same samples"
"""In the warning of a trial that saw so, which alone is no fault: they may be drawn at random."""

UNSHARED_SIGN = "no worker asked which samples are its own"
"""In the warning of a trial of several workers in which none read its ``WorkerInfo``."""

VARIED_SIGN = "epochs differ in length"
"""In the warning of a trial whose whole epochs have different numbers of samples."""

NEVER_ASKED = "The iterable dataset never asks which worker it runs in"
"""What such a trial shows, as the beginning of a sentence."""

SOME_SHARED = "Some samples came from several workers"
"""What such a trial shows that saw no whole epoch, likewise."""

_UNTRIED = "Workers yield the same samples with"

_PROMISE = re.compile(r"gave ([\d,]{1,24}) batches where __len__ promises ([\d,]{1,24})")

_MORE = 1.5
"""Samples of an epoch over those of one without workers from which they come more than once."""


RAISED: tuple[FailureKind, ...] = ("target_error", "worker_exception")
"""Kinds of failures that the target's own code raises."""

_WHERE = re.compile(
    r"^Rank \d+ of \d+ on \S+: | in (?:a worker (?:process|thread)|the main process)(?=[:.])"
)
_FRAME = re.compile(r'File ".+", line \d+')


@record(frozen=True, slots=True, kw_only=True)
class Integrity:
    """What the trials of a run say of the data of any configuration."""

    # As in ``Target``: of which several forked workers move one position.
    shared_files: tuple[str, ...] = ()
    forks: bool = True  # whether workers are forked where a configuration names no start method
    main_failure: Failure | None = None  # as in ``Target``: why nothing loads without workers
    # How several workers give the same samples; ``None`` if they don't.
    duplicated: Failure | None = None
    fewest: int = 0  # the fewest workers that were seen to do so
    right: int = 1  # the most workers of which nothing speaks against their data, fewer than those
    truncated: Mapping[int, Failure] = empty()  # how epochs end early, by ``num_workers``
    # ``num_workers`` with which a map-style dataset gave a whole epoch, though others end early:
    # with all but these it ends early too. ``None`` where it says nothing of others.
    whole: frozenset[int] | None = None
    # How an iterable raises with more workers than others that work, by the fewest such
    # ``num_workers``; mostly empty.
    refused: Mapping[int, Failure] = empty()
    worked: int = 0  # the most workers of an iterable that gave batches
    # Workers that get batches, however many more there are; ``None`` if all do.
    fed: int | None = None
    unfed_of: int = 0  # the ``num_workers`` with which that was seen
    # What lets samples seem to come more than once, which is no proof of it, by the trial that
    # shows it.
    unshared: Mapping[str, str] = empty()
    # ``num_workers`` above 1 whose epochs are as long as those of one worker or none.
    shared_out: frozenset[int] = frozenset()

    @classmethod
    def of(cls, run: Run) -> Integrity:
        """What a run says; the views of a run all ask, so that the last answer is kept."""
        asked = (run.trials, run.explanations, run.header.target)
        for known, found in _LAST:
            if all(map(operator.is_, asked, known)):
                return found
        found = cls.of_trials(*asked)
        _LAST[:] = [(asked, found)]
        return found

    @classmethod
    def of_trials(
        cls, trials: Sequence[Trial], explanations: Sequence[Explanation], target: Target
    ) -> Integrity:
        """What some trials of a target, and what the traced ones among them showed, say."""
        iterable = target.kind == "iterable"
        shared_out = frozenset(_shared_out(trials)) if iterable else frozenset()
        faults = [
            (trial, fault)
            for trial in trials
            if (fault := _fault(trial)) is not None
            and (fault.kind != "duplicated" or trial.config.num_workers not in shared_out)
            and not fault.message.startswith(_UNTRIED)
        ]
        faults += [*_overlong(trials), *_miscounted(trials)] if iterable else []
        twice = [(t.config.num_workers, f) for t, f in faults if f.kind == "duplicated"]
        wrong = {trial.id for trial, _ in faults}
        worked = [trial for trial in trials if trial.failure is None and trial.id not in wrong]
        unshared = _unshared(worked, shared_out) if iterable else {}
        fewest = min((workers for workers, _ in twice), default=0)
        right = [t.config.num_workers for t in worked if t.id not in unshared]
        short = {t.config.num_workers: f for t, f in faults if f.kind == "truncated"}
        counted = {t.config.num_workers for t in trials if t.failure is None and t.epoch_samples}
        fed = [(each.fed_workers, each.config.num_workers) for each in explanations]
        # Where none asks, whoever comes first gets what there is.
        fixed = (trial for trial in trials if UNSHARED_SIGN not in trial.warnings)
        fed += [(t.fed_workers, t.config.num_workers) for t in fixed if t.fed_workers]
        # How shares are cut may leave workers without one where more of them all get some.
        most = max((some for some, _ in fed), default=0)
        unfed_of = min((n for some, n in fed if iterable and some < n and n > most), default=0)
        return cls(
            shared_files=target.shared_files,
            main_failure=target.main_failure,
            forks=target.start_method == "fork",
            duplicated=min((f for _, f in twice), key=is_guessed, default=None),
            fewest=fewest,
            right=max((workers for workers in right if workers < fewest), default=1),
            truncated=short,
            whole=frozenset(counted) if short and not iterable else None,
            refused=_refused(trials) if iterable else {},
            worked=max((t.config.num_workers for t in worked), default=0),
            fed=most if unfed_of else None,
            unfed_of=unfed_of,
            unshared={} if twice else unshared,
            shared_out=shared_out,
        )

    @property
    def shared(self) -> Failure | None:
        """How several forked workers read files by one position; ``None`` if they don't."""
        return shared_position(self.shared_files)

    def shares(self, config: Config) -> bool:
        """Whether several workers, started as a configuration's are, read by one position."""
        forks = self.forks if config.start_method is None else config.start_method == "fork"
        return bool(self.shared_files) and forks

    def most_workers(self, config: Config) -> int | None:
        """With more workers the data is wrong, they fail or get none; ``None`` for no such limit.

        They start as those of ``config`` do. Epochs that end early with fewer than that are left to
        ``fault``.
        """
        caps = [] if self.duplicated is None else [max(1, self.right, *self.shared_out)]
        caps += [1] if self.shares(config) else []
        caps += [count - 1 for count in self.refused]
        caps += [self.fed] if self.fed is not None else []
        return min(caps, default=None)

    def most_to_advise(self, config: Config) -> int | None:
        """The same, but only half way from what worked to where workers fail, as without shards.

        Each trial halves what is unknown between them.
        """
        least = min(self.refused, default=None)
        if least is None or self.worked >= least:
            return self.most_workers(config)
        return min((self.worked + least) // 2, self.most_workers(config) or least)

    def fault(self, config: Config) -> Failure | None:
        """Why a configuration's data is wrong, or there is none; ``None`` if nothing is known."""
        workers = config.num_workers
        early = self.main_failure if not workers else None
        if workers > 1 and self.shares(config):
            early = self.shared
        if early is not None:
            return early
        right = workers <= max(1, self.right) or workers in self.shared_out
        if self.duplicated is not None and not right:
            if workers < self.fewest:
                unseen = f"nothing shows that they don't with {workers}"
                message = f"{_UNTRIED} num_workers={self.fewest}, and {unseen}."
                return Failure(kind="duplicated", message=message, hint=self.duplicated.hint)
            return doubled(workers, self.duplicated)
        if workers in self.truncated:
            return self.truncated[workers]
        if self.whole is not None and workers not in self.whole:
            return next(iter(self.truncated.values()))
        return next((f for least, f in self.refused.items() if workers >= least), None)

    def doubt(self, workers: int) -> str:
        """What lets samples of so many workers seem to come more than once; mostly empty."""
        if workers < 2 or workers in self.shared_out:
            return ""
        if self.duplicated is not None:  # who cut shares wrongly once may do so again
            known = f"{_UNTRIED} num_workers={self.fewest}"
            return f"{known}, and no whole epoch shows that {workers} don't"
        return next(iter(self.unshared.values()), "")

    def is_unproven(self, config: Config) -> bool:
        """Whether more workers of an iterable raise, and it is not known that so many don't."""
        return bool(self.refused) and config.num_workers > self.worked

    def is_useless(self, config: Config) -> bool:
        """Whether it need not be tried: its data is wrong, or more workers than these get none."""
        most = self.most_workers(config)
        return self.fault(config) is not None or (most is not None and config.num_workers > most)

    def allows(self, finding: Finding, config: Config) -> bool:
        """Whether a finding for a configuration holds: not if it promises by, or of, wrong data."""
        if finding.code.startswith("data."):
            return True
        asked = finding.fix.dataloader_kwargs if finding.fix is not None else {}
        count = asked.get("num_workers", config.num_workers)
        fixed = dataclasses.replace(config, num_workers=count) if isinstance(count, int) else config
        promises = bool(asked) or finding.predicted_gain is not None
        return not promises or not any(map(self.fault, (config, fixed)))


def broken_sample(run: Run) -> Failure | None:
    """How loading fails, whatever the settings; ``None`` if it doesn't.

    Several numbers of workers raise the same, and no trial is known to have come further: at one
    place of an epoch, with batches of any size; or at several, as where batches are drawn at random
    (``batches`` is ``None`` then). A sweep ends there: one of which a later trial ended otherwise
    was gone on with, so that what raised before may have been fixed, and counts no more.
    """
    found: Failure | None = None
    failed, worked = list[Trial](), list[Trial]()
    for trial in run.trials:
        failure = trial.failure
        if trial.outcome == "skipped":
            continue
        if found is not None and (failure is None or _said(failure) != _said(found)):
            found, failed = None, []
        if failure is None:
            worked.append(trial)
            failed = [each for each in failed if each.config != trial.config]
            continue
        failed.append(trial)
        if found is not None or failure.kind not in RAISED:
            continue
        alike = [each for each in failed if each.failure and _said(each.failure) == _said(failure)]
        raised = {each.config: each.failure for each in alike if each.failure}
        if _at_one_place(raised, trial.config, worked):
            found = failure
        elif len(alike) == len(failed) and _anywhere(raised, worked, run):
            found = dataclasses.replace(failure, batches=None)
    return found


def raised_by_data(run: Run) -> bool:
    """Whether most configurations raise the same, among them some that worked in other trials."""
    trials = [each for each in run.trials if each.outcome != "skipped"]
    plain = {each.config for each in trials if each.purpose == "measure"}
    worked = {each.config for each in trials if each.failure is None}
    raised: dict[tuple[str, ...], set[Config]] = {}
    for each in trials:
        if each.failure is not None and each.failure.kind in RAISED and each.config in plain:
            raised.setdefault(_said(each.failure), set()).add(each.config)
    return any(2 * len(some) > len(plain) and some & worked for some in raised.values())


def _said(failure: Failure) -> tuple[str, ...]:
    """What an exception says, and the innermost frame that raised it, in whichever process."""
    return _WHERE.sub("", failure.message), *_FRAME.findall(failure.stderr_tail)[-1:]


def _at_one_place(raised: Mapping[Config, Failure], last: Config, worked: Sequence[Trial]) -> bool:
    """Whether several numbers of workers raise where the last did, and none that worked came by."""
    size, batches = last.batch_size, raised[last].batches
    there = [c for c, each in raised.items() if (c.batch_size, each.batches) == (size, batches)]
    counts = {config.num_workers for config in there}
    if not batches or len(counts) < 2:
        return False
    beyond = [trial for trial in worked if _came_further(trial, size, batches)]
    # Where the same configuration both came by and raises there, the main process too, batches are
    # drawn in other orders: to come by says nothing then, but of a whole epoch.
    if 0 in counts and any(trial.config in there for trial in beyond):
        beyond = [t for t in beyond if t.epoch_samples is not None or t.config.batch_size != size]
    methods = {each.config.start_method for each in worked if each.config.num_workers}
    # Of what works by another start method only the main process says that it raises, too.
    by_start = 0 not in counts and methods - {config.start_method for config in there}
    return not beyond and not by_start


def _anywhere(raised: Mapping[Config, Failure], worked: Sequence[Trial], run: Run) -> bool:
    """Whether what raises stands for all that is planned, and none that worked came as far.

    Three configurations do, or all, if their batches have all sizes, and the main process is one:
    without it, workers started by all methods.
    """
    plan, known = run.header.plan, Integrity.of(run)
    planned = () if plan is None else (*plan.configs, *plan.cells)
    wanted = {config for config in planned if not known.is_useless(config)}
    sizes = {config.batch_size for config in wanted} - {config.batch_size for config in raised}
    starts, tried = ({c.num_workers and c.start_method for c in some} for some in (wanted, raised))
    beyond = any(
        _came_further(trial, config.batch_size, failure.batches or 0)
        for config, failure in raised.items()
        for trial in worked
    )
    return (
        not (beyond or sizes)
        and any(failure.batches for failure in raised.values())  # else no sample works
        and len({config.num_workers for config in raised}) > 1
        and len(raised) >= min(3, len(wanted) or 3)
        and ({0} & starts or starts) <= tried
    )


def _came_further(trial: Trial, size: int | None, batches: int) -> bool:
    """Whether a trial that worked may have had what raises after so many batches of a size.

    Samples are counted where sizes differ: it may be that only large batches raise.
    """
    own = trial.config.batch_size
    if trial.epoch_samples is not None:
        return True
    if own == size:
        return trial.window_batches > batches
    each = own or trial.samples_per_batch
    return size is None or each is None or trial.window_batches * each >= (batches + 1) * size


_LAST: list[tuple[tuple[object, ...], Integrity]] = []


def checked(run: Run) -> Run:
    """The run with trials of wrong data as failed ones, and without what was drawn from those.

    A calibration by them goes, and the predictions by it; so does a recommendation that knew
    nothing of it.
    """
    found = Integrity.of(run)
    trials = tuple(_judged(trial, found) for trial in run.trials)
    wrong = {one.id for one, other in zip(trials, run.trials, strict=True) if one is not other}
    calibration, advice = run.calibration, run.recommendation
    if calibration is not None and not wrong.isdisjoint(calibration.trials):
        calibration = None
    lost = calibration is None and run.calibration is not None
    if advice is not None:
        knew = any(each.code.startswith("data.") for each in advice.findings)
        if found.fault(advice.config) is not None or (wrong and not knew):
            advice = None
    diagnosis = run.diagnosis
    if diagnosis is not None:
        kept = tuple(each for each in diagnosis.findings if found.allows(each, diagnosis.config))
        diagnosis = dataclasses.replace(diagnosis, findings=kept)
    return dataclasses.replace(
        run,
        trials=trials,
        explanations=tuple(each for each in run.explanations if each.trial_id not in wrong),
        calibration=calibration,
        prediction=None if lost else _possible(run.prediction, found),
        recommendation=advice,
        diagnosis=diagnosis,
    )


def _judged(trial: Trial, found: Integrity) -> Trial:
    """A trial, without rates if its data is wrong."""
    fault = found.fault(trial.config) if trial.failure is None else None
    if fault is None:
        return trial
    return dataclasses.replace(
        trial,
        outcome="crashed",
        failure=fault,
        samples_per_s=None,
        batches_per_s=None,
        bytes_per_s=None,
        startup_s=None,
        epoch_turnover_s=None,
        wait_fraction=None,
        copies=None,
    )


def _possible(prediction: SweepPrediction | None, found: Integrity) -> SweepPrediction | None:
    """A prediction of those that may work; ``None`` if its choice is none of them."""
    if prediction is None or found.fault(prediction.pick) is not None:
        return None
    cells = tuple(cell for cell in prediction.cells if not found.is_useless(cell.config))
    finalists = tuple(config for config in prediction.race if not found.is_useless(config))
    return dataclasses.replace(prediction, cells=cells, race=finalists) if cells else None


def _fault(trial: Trial) -> Failure | None:
    """What a trial by itself says of its data."""
    workers = trial.config.num_workers
    if trial.failure is not None:
        return trial.failure if trial.failure.kind in DATA_FAULTS else None
    if workers > 1 and any(DUPLICATED_SIGN in text for text in trial.warnings):
        return doubled(workers)
    came, promised = _promise(trial)
    if came < promised:
        message = f"An epoch gave {came:,} batches where __len__ promises {promised:,}."
        return Failure(kind="truncated", message=message, hint=WHOLE_EPOCHS)
    return None


def _promise(trial: Trial) -> tuple[int, int]:
    """The batches of an epoch, and those that were promised, where they differ; else zeros."""
    found = next(filter(None, map(_PROMISE.search, trial.warnings)), None)
    if found is None:
        return 0, 0
    came, promised = (int(each.replace(",", "")) for each in found.groups())
    return came, promised


def _overlong(trials: Sequence[Trial]) -> list[tuple[Trial, Failure]]:
    """Trials whose workers give more than ``__len__`` promises, which holds for fewer workers."""
    promises = ((trial, *_promise(trial)) for trial in trials if trial.failure is None)
    more = [each for each in promises if each[1] > each[2]]
    if any(trial.config.num_workers < 2 for trial, _, _ in more):
        return []
    found = []
    for trial, came, promised in more:
        said = f"An epoch gave {came:,} batches where __len__ promises {promised:,}."
        fault = Failure(kind="duplicated", message=said, hint=SHARE_OUT)
        if any(sign in text for text in trial.warnings for sign in (SHARED_SIGN, UNSHARED_SIGN)):
            fault = doubled(trial.config.num_workers)
        found.append((trial, fault))
    return found


def _compared(trials: Iterable[Trial]) -> Iterator[tuple[list[Trial], list[Trial]]]:
    """The trials of more workers beside those of the fewest, as far as they saw whole epochs.

    At one batch size each.
    """
    by_size: dict[int | None, dict[int, list[Trial]]] = {}
    for trial in trials:
        if trial.failure is None and trial.epoch_samples:
            groups = by_size.setdefault(trial.config.batch_size, {})
            groups.setdefault(trial.config.num_workers, []).append(trial)
    for groups in by_size.values():
        fewest = min(groups)
        yield from ((group, groups[fewest]) for n, group in groups.items() if n > fewest)


def _counts(trials: Iterable[Trial]) -> list[int]:
    return [trial.epoch_samples or 0 for trial in trials]


def _miscounted(trials: Sequence[Trial]) -> Iterator[tuple[Trial, Failure]]:
    """Trials whose epochs have other samples than those with no worker or one.

    Fewer only where that is not by chance, as where samples are kept at random: all epochs are
    shorter than the shortest of those by more than these differ.
    """
    varied = _is_varied(trials)
    for group, fewer in _compared(trials):
        counts, plain = _counts(group), _counts(fewer)
        usual, workers = statistics.median(plain), group[0].config.num_workers
        longer = not varied and min(counts) >= _MORE * max(plain)
        for trial, count in zip(group, counts, strict=True):
            if count > _MORE * usual and any(SHARED_SIGN in text for text in trial.warnings):
                yield trial, doubled(workers)
            elif longer and UNSHARED_SIGN in trial.warnings:
                said = f"{_compared_text(trial, fewer)}."
                yield trial, Failure(kind="duplicated", message=said, hint=SHARE_OUT)
        # Several workers may have more than their share: nothing is missing in others then.
        if varied or fewer[0].config.num_workers > 1 or not _is_shorter(group, fewer):
            continue
        hint = "Make the workers' shares hold all samples for any num_workers, and make __len__ "
        for trial in group:
            said = f"{_compared_text(trial, fewer)}."
            yield trial, Failure(kind="truncated", message=said, hint=f"{hint}match their number.")


def _spare(group: Sequence[Trial], fewer: Sequence[Trial]) -> float:
    """Samples by which epochs may differ, where that is not by chance."""
    usual = statistics.median(_counts(fewer))
    each = max(trial.samples_per_batch or usual for trial in group)
    # Share of an epoch's samples that may be missing beside a batch of each worker.
    spare = group[0].config.num_workers * each + 0.02 * usual
    # Standard deviations by which counts of samples that are kept at random may differ.
    return spare if _is_fixed(fewer) else max(spare, 3.0 * math.sqrt(2 * usual))


def _is_shorter(group: Sequence[Trial], fewer: Sequence[Trial]) -> bool:
    """Whether epochs lack samples: all by more than those of fewer workers differ by themselves."""
    plain = _counts(fewer)
    return max(_counts(group)) < 2 * min(plain) - max(plain) - _spare(group, fewer)


def _is_longer(group: Sequence[Trial], fewer: Sequence[Trial]) -> bool:
    """Whether epochs are longer than with fewer workers: far longer, unless all are of a length."""
    least, most = min(_counts(group)), max(_counts(fewer))
    fixed = _is_fixed(fewer) and _is_fixed(group)
    return least >= _MORE * most or (fixed and least > most + _spare(group, fewer))


def _shared_out(trials: Sequence[Trial]) -> set[int]:
    """Several workers, together with as many samples as one worker or none."""
    if _is_varied(trials):
        return set()
    return {
        group[0].config.num_workers
        for group, fewer in _compared(trials)
        if fewer[0].config.num_workers < 2 <= group[0].config.num_workers
        and max(_counts(group)) <= max(_counts(fewer)) + _spare(group, fewer)
        and not _is_longer(group, fewer)
        and not _is_shorter(group, fewer)
    }


def _is_varied(trials: Iterable[Trial]) -> bool:
    return any(VARIED_SIGN in trial.warnings for trial in trials)


def _is_fixed(trials: Sequence[Trial]) -> bool:
    """Whether two epochs or more were seen, all of the same length."""
    counts = _counts(trials)
    again = len(counts) > 1 or (trials[0].window_samples or 0) >= 2 * counts[0]
    return again and len({*counts}) == 1


def _unshared(trials: Sequence[Trial], shared_out: Collection[int]) -> dict[str, str]:
    """What lets workers seem to give the same samples, by trial.

    Longer epochs than those of fewer workers. Where none of both were counted, or no two are alike,
    some of the same samples, or that no worker asked for its share; unless others share out though
    they don't ask.
    """
    found: dict[str, str] = {}
    compared = [] if _is_varied(trials) else [*_compared(trials)]
    covered = {trial.id for group, _ in compared for trial in group}
    for trial in trials:
        if trial.config.num_workers in {0, 1, *shared_out} or trial.id in covered:
            continue
        if any(SHARED_SIGN in text for text in trial.warnings):
            found[trial.id] = SOME_SHARED
        if UNSHARED_SIGN in trial.warnings and not shared_out:
            found[trial.id] = NEVER_ASKED
    for group, fewer in compared:
        if _is_longer(group, fewer):
            found |= {trial.id: _compared_text(trial, fewer) for trial in group}
    return found


def _compared_text(trial: Trial, fewer: Sequence[Trial]) -> str:
    return (
        f"An epoch has {trial.epoch_samples or 0:,} samples with "
        f"num_workers={trial.config.num_workers}, and {statistics.median(_counts(fewer)):,.0f} "
        "with fewer workers"
    )


def shared_position(files: Sequence[str]) -> Failure | None:
    """The failure of forked workers that read files, each in words, by one position."""
    if not files:
        return None
    named = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
    was = "were" if len(files) > 1 else "was"
    message = (
        f"Forked workers move one read position of {named}, which {was} open before they "
        "started. Where one seeks, another reads: samples come back wrong, or fail."
    )
    return Failure(kind="shared_file", message=message, hint=OPENED_EACH)


def doubled(workers: int, seen: Failure | None = None) -> Failure:
    """The failure of an iterable dataset that so many workers each yield whole."""
    message = (
        f"Workers yield the same samples: with num_workers={workers} each comes up to {workers} "
        "times an epoch."
    )
    if seen is not None and is_guessed(seen):
        message = seen.message
    return Failure(kind="duplicated", message=message, hint=seen.hint if seen else SHARE_OUT)


def is_guessed(fault: Failure) -> bool:
    """Whether samples that come twice are concluded from other than such samples."""
    begins = ("An epoch has", "An epoch gave", _UNTRIED)
    return fault.kind == "duplicated" and fault.message.startswith(begins)


def _refused(trials: Iterable[Trial]) -> dict[int, Failure]:
    """The fewest workers with which an iterable raises, where fewer work and no more do."""
    run = [trial for trial in trials if trial.outcome != "skipped"]
    working = [trial.config.num_workers for trial in run if trial.failure is None]
    if not working:
        return {}
    raised = {
        trial.config.num_workers: trial.failure
        for trial in reversed(run)
        if trial.failure is not None
        and trial.failure.kind in RAISED
        and trial.config.num_workers > max(working)
    }
    return {min(raised): raised[min(raised)]} if raised else {}
