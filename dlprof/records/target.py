"""What is loaded, as far as the run file records it."""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dlprof.records.config import BY_COPY, START_METHODS, Config
from dlprof.records.record import empty, record
from dlprof.records.trial import Failure

_OF_CALLS = (
    *(ast.Module, ast.Assign, ast.Expr, ast.FunctionDef, ast.arguments, ast.arg, ast.Return),
    *(ast.Call, ast.keyword, ast.Name, ast.Attribute, ast.Constant, ast.Load, ast.Store),
)
"""What a call is made of, in a method of the user's that returns it or by itself."""


COPIED_SIGN = "where no setting says otherwise"
"""In the note on a target whose workers aren't forked unless a setting says so."""

NO_DATA_SIGN, PARTIAL_SIGN = "Each batch is None", "less than a full batch"
SPREAD_SIGN = "batches from all over an epoch"
"""In notes that any screen begins with: batches without anything in them, an epoch of one that is
not full, and one along whose order samples differ."""

STORED_SIGN = "as it is stored for all then"
"""In the note on a target that keeps samples where all processes find them, as in files."""

EPOCH_SIGN = "workers that outlive an epoch don't see"
"""In the note on a target whose dataset is changed from epoch to epoch."""


@record(frozen=True, slots=True, kw_only=True)
class LoaderCall:
    """Where the user's code sets a loader's settings, in the words of its framework."""

    # The code, with ``{settings}`` where the arguments go.
    text: str = "DataLoader(dataset, ..., {settings})"
    # What arguments of DataLoader are called there, for those that are called otherwise.
    names: Mapping[str, str] = empty()
    variable: str = "loader"  # what the code's value is assigned to; empty where that isn't shown
    # Arguments of DataLoader that can't be given there, each with the reason in words.
    fixed: Mapping[str, str] = empty()
    # Arguments of DataLoader that are given in another place, each with its code, in which
    # ``{value}`` is what they are set to.
    elsewhere: Mapping[str, str] = empty()

    @property
    def collates(self) -> str:
        """What its own collate function does, where it takes no other; empty where none is said."""
        return self.fixed.get("collate_fn", "").partition(": its own ")[2]

    def written(self, settings: Mapping[str, Any], extra: Sequence[str] = ()) -> str:
        """The code that sets arguments of DataLoader, and some more that are given as source.

        >>> LoaderCall(
        ...     text="TrainingArguments(..., {settings})",
        ...     names={"num_workers": "dataloader_num_workers"},
        ... ).written({"num_workers": 8})
        'TrainingArguments(..., dataloader_num_workers=8)'
        """
        known = (f"{self.names.get(name, name)}={value!r}" for name, value in settings.items())
        return self.text.replace("{settings}", ", ".join([*known, *extra]))

    def checked(self) -> LoaderCall:
        """The same, or that of a plain DataLoader where it is neither a call nor a comment.

        A run file from elsewhere may hold any text, and people paste what is shown.

        >>> LoaderCall(text="os.system('…')").checked() == LoaderCall()
        True
        """
        others = [code.replace("{value}", "0") for code in self.elsewhere.values()]
        sound = is_call(self.assigned(dict.fromkeys(self.names, 0)))
        commented = any(code.startswith("#") for code in others)
        return self if sound and not commented and all(map(is_call, others)) else LoaderCall()

    def assigned(self, settings: Mapping[str, Any], extra: Sequence[str] = ()) -> str:
        """The same with the variable that takes its value."""
        code = self.written(settings, extra)
        return f"{self.variable} = {code}" if self.variable else code

    def given(self, name: str, value: str) -> str:
        """The code that gives the loader one more argument, whose value is source.

        A call without ``...`` is of a function of the user's own, or there is none: what it makes
        is shown as a plain DataLoader.

        >>> LoaderCall().given("collate_fn", "collate")
        'loader = DataLoader(dataset, ..., collate_fn=collate)'
        """
        if name in self.elsewhere:
            return self.elsewhere[name].replace("{value}", value)
        call = self if "..." in self.text else LoaderCall()
        return call.assigned({}, [f"{call.names.get(name, name)}={value}"])


def is_call(code: str) -> bool:
    """Whether code is a call, by itself or returned by a method; or a comment.

    Of texts it may pass on start methods alone.
    """
    try:
        parsed = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    nodes = list(ast.walk(parsed))
    values = (node.value for node in nodes if isinstance(node, ast.Constant))
    calls = (
        len(parsed.body) == 1
        and any(isinstance(node, ast.Call) for node in nodes)
        and all(isinstance(node, _OF_CALLS) for node in nodes)
        and not any(isinstance(v, str | bytes) and v not in START_METHODS for v in values)
    )
    # What is measured as it is has a comment in place of a call.
    return calls or (not parsed.body and code.startswith("#"))


def _is_ordered(config: Config, sampler: str | None) -> bool:
    """Whether each sample comes to the same process in all epochs."""
    return sampler == "SequentialSampler" and (config.in_order or config.num_workers < 2)


def loaded_of(epochs: int, config: Config, sampler: str | None, ranks: int = 1) -> float:
    """As many of some epochs as are loaded by those who keep what they once had."""
    ordered = _is_ordered(config, sampler)
    others = 0.0 if ordered else 1 - 1 / (ranks * max(1, config.num_workers))
    return math.fsum(others**epoch for epoch in range(epochs))


@record(frozen=True, slots=True, kw_only=True)
class Target:
    """What is loaded, as far as the run file records it."""

    spec: str  # TARGET as the user wrote it
    # ``--arg`` pairs, and the parameters after a built-in's colon.
    arguments: Mapping[str, str] = empty()
    kind: Literal["map", "iterable"]  # ``map`` or ``iterable``
    dataset: str  # the dataset's class, ``module.QualName``
    length: int | None = None  # samples per epoch; ``None`` where the dataset doesn't say
    batches_per_epoch: int | None = None  # batches per epoch at ``batch_size``; ``None`` likewise
    # The loader's own batch size; ``None`` with a batch sampler or no batching.
    batch_size: int | None = None
    sampler: str | None = None  # the sampler's class name
    # What makes batches of samples, ``module.qualname``; ``None`` where nothing does, or that isn't
    # known.
    collate_fn: str | None = None
    # Whether trials can be forked from one process that has built the target once; false where
    # building it started threads or touched CUDA.
    fork_safe: bool = True
    import_s: float | None = None  # importing and building the target, once
    # The settings that the target's own DataLoader was built with, canonical; ``None`` for a bare
    # dataset or a built-in. Its ``in_order`` and ``start_method`` are what "keep the target's own"
    # means.
    own_config: Config | None = None
    # Settings that can't be changed on this target, by their names in ``Config``, each with the
    # reason in words; they are as ``own_config`` has them, or at torch's defaults.
    fixed: Mapping[str, str] = empty()
    # Where the user's code sets the loader's settings: a plain DataLoader by default.
    call: LoaderCall = dataclasses.field(default_factory=LoaderCall)
    batch_bytes: int | None = None  # tensor data of one batch, from a disposable probe
    batch_tensors: int | None = None  # tensors in one batch, from the probe
    batch_s: float | None = None  # loading one batch in the main process, second batch of the probe
    batch_cpu_s: float | None = None  # CPU time of that; the rest of ``batch_s`` is blocked time
    # From asking for an epoch to its first batch, in the main process, of the probe; ``None`` where
    # it didn't load there, and in files of earlier versions.
    first_batch_s: float | None = None
    # Files that were open when workers were forked and whose position several of them moved, each
    # in words: their data is wrong.
    shared_files: tuple[str, ...] = ()
    # By what workers share tensors where a configuration names nothing; ``None`` where its own code
    # may change that in each worker, and in files of earlier versions.
    sharing_strategy: str | None = None
    # Why it can't be loaded from without workers, where it can be with one; else ``None``.
    main_failure: Failure | None = None
    # Seconds of a sample that a process asks for the first time, where it keeps samples in its own
    # memory, or where all processes find them, which a note says then; ``None`` where it doesn't,
    # or that isn't known.
    first_sample_s: float | None = None
    kept_sample_s: float | None = None  # of the same sample that it asks for again; likewise
    # Memory that it takes for each; ``None`` likewise, or where none was seen to be taken.
    kept_sample_bytes: int | None = None
    # Whether the dataset's attributes name files, so that a cold page cache matters; ``None`` where
    # that isn't known.
    reads_files: bool | None = None
    # Files or shards that an iterable dataset is split by: more workers than these get none.
    # ``None`` where it doesn't surely say.
    shards: int | None = None
    # Whether each worker begins its shards again, so that none loads alone at the end of an epoch.
    repeats_shards: bool = False
    notes: tuple[str, ...] = ()  # what to know about how dlprof takes the target

    @property
    def start_method(self) -> str:
        """What its workers are started by where a configuration names nothing."""
        if self.own_config is not None and self.own_config.start_method is not None:
            return self.own_config.start_method
        notes = [note for note in self.notes if COPIED_SIGN in note]
        return next((name for name in BY_COPY for note in notes if f" {name} " in note), "fork")

    @property
    def against_persisting(self) -> str | None:
        """Why workers are to outlive an epoch only where the user names that; else ``None``."""
        if self.own_config is not None and self.own_config.persistent_workers:
            return None
        return next((note for note in self.notes if EPOCH_SIGN in note), None)

    @property
    def is_spread(self) -> bool:
        """Whether trials load batches from all over an epoch, as its beginning is unlike it."""
        return any(f"trials took {SPREAD_SIGN}" in note for note in self.notes)

    @property
    def keeps_samples(self) -> bool:
        """Whether the dataset has a cache in the memory of each process, which that fills."""
        known = self.first_sample_s is not None and self.kept_sample_s is not None
        return known and not self.stores_samples

    @property
    def stores_samples(self) -> bool:
        """Whether it keeps samples where all processes find them, as in files that it writes."""
        return any(STORED_SIGN in note for note in self.notes)

    def epochs_loaded(self, config: Config, ranks: int = 1) -> float:
        """As many of ten epochs as are loaded: the others are kept by those who ask for them.

        Each worker of a rank that persists has a cache of its own. Drawn at random, a sample comes
        to the one that has it as often as to each other one; in order, always.
        """
        if not self.keeps_samples or (config.num_workers and not config.persistent_workers):
            return 10.0
        return loaded_of(10, config, self.sampler, ranks)

    @property
    def kept_cost(self) -> float:
        """What a kept sample takes, as a share of one that is loaded; 1 where none is kept."""
        if self.first_sample_s is None or self.kept_sample_s is None:
            return 1.0
        return self.kept_sample_s / self.first_sample_s

    def ten_epochs(self, config: Config, ranks: int = 1, kept_cost: float | None = None) -> float:
        """How many first epochs ten take as long as; of another ``kept_cost`` where it is given."""
        loaded, cost = self.epochs_loaded(config, ranks), kept_cost
        return loaded + (10 - loaded) * (self.kept_cost if cost is None else cost)

    def full_caches(self, config: Config) -> int:
        """Bytes of what all processes of a rank keep in the end."""
        if self.kept_sample_bytes is None or self.length is None:
            return 0
        shares = _is_ordered(config, self.sampler) or not config.persistent_workers
        return self.kept_sample_bytes * self.length * (1 if shares else max(1, config.num_workers))

    @property
    def persisting(self) -> tuple[bool, ...]:
        """What ``persistent_workers`` may be where the user doesn't say."""
        if self.against_persisting:
            return (False,)
        return (True,) if self.keeps_samples else (False, True)

    def fewest_workers(self, workers: int, ranks: int = 1) -> int:
        """The fewest that end an epoch as soon, where it is known by how many shards it is split.

        Of 8 shards some of 6 workers have two, as all of 4 have. Ranks may share them in any way,
        and workers that begin theirs again end together.
        """
        if self.shards is None or self.repeats_shards or ranks > 1:
            return workers
        if not 0 < workers < self.shards:
            return workers
        return math.ceil(self.shards / math.ceil(self.shards / workers))

    def last_shards(self, workers: int, ranks: int = 1) -> int:
        """Of how many workers each has one shard more, and loads it when the others are done.

        Two of 6 workers of 8 shards. None where nobody knows, or no worker has.
        """
        if self.shards is None or self.repeats_shards or ranks > 1:
            return 0
        return self.shards % workers if 0 < workers < self.shards else 0

    def epoch_batches(self, batch_size: int | None) -> int | None:
        """Batches in an epoch at a batch size; ``None`` where the target doesn't say."""
        if batch_size is None or batch_size == self.batch_size:
            return self.batches_per_epoch
        if self.length is None:
            return None
        own = self.batch_size or 0
        # Where its own batches leave fewer samples over than one holds, ``drop_last`` is set.
        drops = 0 < self.length - own * (self.batches_per_epoch or 0) < own
        return self.length // batch_size if drops else math.ceil(self.length / batch_size)

    def present_settings(
        self, *, has_accelerator: bool, compares_starts: bool = False
    ) -> Config | None:
        """``own_config`` as a sweep measures it; ``None`` where the target has none.

        The start method is left at ``None``, which keeps the target's own, and named only where
        start methods are compared. Without an accelerator torch pins nothing whatever
        ``pin_memory`` says.
        """
        own = self.own_config
        if own is None:
            return None
        named = compares_starts and "start_method" not in self.fixed
        return dataclasses.replace(
            own,
            start_method=own.start_method if named else None,
            pin_memory=own.pin_memory and has_accelerator,
        )

    def attainable(self, config: Config, *, has_accelerator: bool) -> Config:
        """A configuration with every setting that can't be changed as the target has it."""
        if not self.fixed:
            return config
        own = self.present_settings(has_accelerator=has_accelerator) or Config()
        kept: dict[str, Any] = {name: getattr(own, name) for name in self.fixed}
        return dataclasses.replace(config, **kept).canonical()
