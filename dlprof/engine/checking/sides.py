"""Both sides of a check as they run: built, warmed up, and measured interleaved."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlprof.engine.checking.compared import (
    NO_SUBMODULES,
    CheckListener,
    CheckSettings,
    SidePlan,
    patience,
)
from dlprof.engine.workplace import work_directory
from dlprof.errors import (
    BaseNotMeasuredError,
    BaseTargetError,
    DlprofError,
    NothingMeasuredError,
    TargetError,
    UsageError,
)
from dlprof.gate.plan import SIDES, cores_of
from dlprof.gate.rule import least_to_confirm
from dlprof.gate.views import LEAST_BATCHES, grouped
from dlprof.machine import inspect_machine
from dlprof.machine.tree import allowed_cpus
from dlprof.records import Config, Failure, Machine
from dlprof.records.gate import Block, Quad, Series, Side
from dlprof.search.space import single_config
from dlprof.targets.builtin.options import prepare
from dlprof.trial.failures import as_error
from dlprof.trial.launch import Built
from dlprof.trial.protocol import BlockRequest
from dlprof.trial.side import SideProcess
from dlprof.units import counted
from dlprof.version import __version__


def side_name(plan: SidePlan) -> str:
    """A side for people: ``The base (main, 1a2b3c4)``."""
    compared = plan.compared
    commit = f", {compared.commit[:7]}" if compared.commit else ""
    return f"The {plan.side} ({compared.name}{commit})"


def error_of_side(plan: SidePlan, error: DlprofError) -> DlprofError:
    """The same error, with the name of the side that has it."""
    hint, kind = error.hint, type(error)
    if plan.side == "base" and not isinstance(error, UsageError):  # it may lack more than it seems
        submodules = (
            "The base is checked out without its submodules: check against a directory that has "
            "them, with --against DIRECTORY."
        )
        submodules = submodules if NO_SUBMODULES in plan.compared.note else ""
        untracked = "Name files that git doesn't track, such as data, by absolute paths."
        parts = (
            *(hint, "What is checked has to work in the base too.", submodules),
            untracked if plan.compared.commit else "",
        )
        hint = " ".join(filter(None, parts))
        if submodules and "No module named" in error.message:
            hint = submodules
    if plan.side == "base" and isinstance(error, TargetError):
        kind = BaseTargetError
    return kind(f"{side_name(plan)}: {error.message}", hint=hint, traceback=error.traceback)


def refuse_unlike(plans: Mapping[Side, SidePlan], built: Mapping[Side, Built]) -> None:
    """Refuse sides that load different data, or the same code in spite of all."""
    if len(built) < 2:
        return
    base, change = built["base"], built["change"]
    lengths = (base.target.length, change.target.length)
    if None not in lengths and lengths[0] != lengths[1]:
        names = [f"t{side_name(plan)[1:]}" for plan in (plans["base"], plans["change"])]
        raise TargetError(
            f"The two sides load different data: {names[0]} has {lengths[0]} samples, "
            f"{names[1]} has {lengths[1]}",
            hint="Give both the same data, by --arg for example.",
        )
    if base.stray:
        raise UsageError(
            f"Both sides load the same code: the base takes {base.stray} from the working tree",
            hint="The package is installed so that it points there: put its directory on "
            "PYTHONPATH instead, or name the target by its file, as path/to/file.py:attr.",
        )


_NEAR = 1.5  # a block that is longer or shorter than asked for by no more than this factor will do


class Sides:
    """One or two sides of a check."""

    def __init__(
        self,
        plans: Sequence[SidePlan],
        processes: Mapping[Side, SideProcess],
        settings: CheckSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.machine: Machine = inspect_machine()  # what they run on
        self.built: dict[Side, Built] = {}  # what each side reported of its target
        self.configs: dict[Side, Config] = {}  # the settings of each side's loader
        self.batches = 0  # of a block of loading
        self.build_s = 0.0  # what it took to start the processes and to build the targets
        self.cold_s = 0.0  # what the first blocks of both took, with imports and starts of workers
        self.block_s = 0.0  # what a block of loading takes, all included
        # What the last quad of each series took that is judged; 0 before there is one.
        self.took_s: dict[Series, float] = {"load": 0.0, "start": 0.0}
        # What the last block or start that isn't judged took, by series and side.
        self.tried_s: dict[Series, dict[Side, float]] = {}
        # What a start of each side takes, the turn of an epoch included.
        self.starts_s: dict[Side, float] = {}
        # What went wrong in blocks, by side.
        self.failures: dict[Side, list[Failure]] = {plan.side: [] for plan in plans}
        self._plans = {plan.side: plan for plan in plans}
        self._processes = processes
        self.settings = settings
        self._clock = clock
        self._waits_s: dict[Side, float] = {}  # in the last block, of sides that can't be followed
        self.keeping = set[Side]()  # sides whose dataset keeps samples in each process's memory
        self._refused: list[int] = []  # cores that a side can't be held to

    @property
    def _patience_s(self) -> float:
        return patience(self.settings)[0]

    @property
    def start_s(self) -> float:
        """What the longer of the starts takes."""
        return max(self.starts_s.values(), default=0.0)

    @property
    def confirming_s(self) -> float:
        """What a second pair of processes takes at the least, to start and to confirm a failure."""
        return self.build_s + self.cold_s + least_to_confirm() * self.expected_s("load")

    def expected_s(self, series: Series) -> float:
        """What a quad of a series takes, as far as is known."""
        guess_s = 4 * self.block_s if series == "load" else sum(self.starts_s.values())
        return self.took_s[series] or guess_s

    def provenance(self, started_at: str) -> dict[str, Any]:
        """When, by what and on what the sides were measured, as all documents of checks say it."""
        versions = self.built["change"].versions
        return {
            "started_at": started_at,
            "dlprof_version": __version__,
            "python_version": versions["python"],
            "torch_version": versions["torch"],
            "machine": self.machine,
        }

    def build(self) -> None:
        """Build all sides' targets at the same time."""
        began_s = self._clock()
        for process in self._processes.values():
            process.begin()
        self._on_all(self._build)
        refuse_unlike(self._plans, self.built)
        for side, built in self.built.items():
            pins = bool(self.machine.gpus)
            config = single_config(self.settings.sweep, built.target, has_accelerator=pins)
            self.configs[side] = config
        self._on_all(self._open)
        if self.keeping and self.epochs == 1:  # on a busy machine it is missed now and then
            self._on_all(self._open)
        self.build_s = self._clock() - began_s

    def renew(self) -> None:
        """Load by new processes from now on, with warm loaders as before.

        Raises:
            DlprofError: A side can't be built or loaded from any more.
        """
        for process in self._processes.values():
            process.close()
        self.build()
        self._try_all("load")

    def _on_all(self, act: Callable[[Side], None]) -> None:
        """Have all sides do something, whatever fails on one of them."""
        errors: dict[Side, DlprofError] = {}
        for side in self._plans:
            try:
                act(side)
            except DlprofError as error:
                errors[side] = error
        if errors:
            side, last = list(errors.items())[-1]  # the change comes last
            messages = {each.message for each in errors.values()}
            if len(messages) == 1 and len(errors) == len(self._plans):
                raise last
            raise error_of_side(self._plans[side], last)

    def _open(self, side: Side) -> None:
        if self._processes[side].open(self.configs[side], self._patience_s):
            self.keeping.add(side)

    @property
    def epochs(self) -> int:
        """How often a block loads the same samples, where all sides keep them: as rates have it.

        Where one alone keeps some its blocks are warm, as the other's are: that one may not stand
        being forked.
        """
        return 10 if len(self.keeping) == len(self._plans) else 1

    def _build(self, side: Side) -> None:
        self.built[side] = self._processes[side].build(self._patience_s)

    def warm_up(self) -> None:
        """Fill caches, and find how many batches make a block."""
        workers = max(config.num_workers for config in self.configs.values()) or 1
        flight = max(config.batches_in_flight for config in self.configs.values())
        workers, least = workers * self.epochs, flight + max(LEAST_BATCHES, 2 * workers)
        self.batches = least = min(self._most, _whole(least, workers))
        cold, budget_s = self._try_all("load"), self.settings.sweep.budget_s
        self.block_s, self.cold_s = max(cold.values()), sum(cold.values())
        if self.build_s + self.cold_s > budget_s:
            return
        # What the first block takes, with imports and the starts of workers, no other one does.
        warm = took = self._try_all("load")
        self.block_s = max(warm.values())
        if self.block_s > budget_s / 4:  # no room for a verdict
            return
        # Seldom right at once, as the first batches differ from the rest.
        for _ in range(6 if self._waits_s else 2):
            before = self.batches
            self._fit_block(took, least, workers)
            if self.batches == before:
                break
            took = self._try_all("load")  # what a longer block reads is cached for both, too
        # By how much each first block took longer than a warm one, of which the budget has room
        # for so much: else each is started once.
        guesses = {side: max(0.0, cold[side] - warm[side]) for side in cold}
        room = sum(guesses.values()) <= budget_s * 0.1
        self.starts_s = self._try_all("start") if room else guesses

    def _try_all(self, series: Series) -> dict[Side, float]:
        took: dict[Side, float] = {}
        failed: NothingMeasuredError | None = None
        for side in self._plans:
            try:
                took[side] = self._try(side, series)
            except NothingMeasuredError as error:
                failed = error  # the change comes last: what both have is its own fault
        if failed is not None:
            raise failed
        self.tried_s[series] = took
        return took

    def _fit_block(self, took: Mapping[Side, float], least: int, workers: int) -> None:
        """Make blocks longer or shorter, where they are far from what is wanted."""
        self.block_s, wanted_s = max(took.values()), self.settings.block_s
        # What can't be followed may load while its memory is read: what is waited for then has to
        # be as long, which one block alone doesn't show.
        loaded_s = max(self._waits_s.values(), default=self.block_s)
        if wanted_s / _NEAR <= loaded_s <= wanted_s * _NEAR:
            return
        most = 4.0 * self.batches if self._waits_s else math.inf
        wanted = _whole(min(most, self.batches * wanted_s / max(loaded_s, 1e-9)), workers)
        fitting = min(self._most, max(least, wanted))
        self.block_s *= fitting / self.batches
        self.batches = fitting

    @property
    def _most(self) -> int:
        """Batches of a block at most: no more than come again where samples are kept."""
        targets = ((each.target, self.configs[side]) for side, each in self.built.items())
        found = (target.epoch_batches(config.batch_size) for target, config in targets)
        epoch = min((count for count in found if count), default=4096)
        return self.epochs * epoch if self.epochs > 1 else 4096

    def _try(self, side: Side, series: Series) -> float:
        """Load a block that isn't judged; what it took, in seconds."""
        began_s = self._clock()
        self._processes[side].order(self._request(series))
        block, failure = self._processes[side].collect(self._patience_s)
        if failure is not None:
            raise self._not_measured(side, f"can't be loaded from: {failure.message}", failure)
        if series == "load" and "fetch" not in block.stages_s:
            self._waits_s[side] = math.fsum(block.service_s)
        return self._clock() - began_s

    def quad(self, order: str, series: Series, number: int) -> Quad:
        """Measure one quad, up to the first block that fails: what follows would not count."""
        usable = sorted(allowed_cpus()) if self.settings.pin and series == "load" else []
        cores = cores_of([] if usable == self._refused else usable, number)
        blocks = self._up_to_failure(order, series, cores)
        if cores:  # both sides run alike: where one can't be held to them, neither is
            why = {block.side: block.unpinned for block in blocks if block.unpinned}
            self._refused = usable if why else []
            if len({block.pinned for block in blocks}) > 1 and not blocks[-1].failure:
                free = self._up_to_failure(order, series, ())
                blocks = [
                    dataclasses.replace(block, unpinned=why.get(block.side, "")) for block in free
                ]
        return Quad(number=number, series=series, blocks=tuple(blocks))

    def _up_to_failure(self, order: str, series: Series, cores: tuple[int, ...]) -> list[Block]:
        blocks: list[Block] = []
        for letter in order:
            blocks += self.blocks(letter, series, cores)
            if blocks[-1].failure:
                break
        return blocks

    def blocks(self, order: str, series: Series, cores: tuple[int, ...] = ()) -> tuple[Block, ...]:
        """Measure blocks in an order of ``A`` and ``B``; failed ones say why they have no figures.

        The sides are held to ``cores``, where there are any.
        """
        request = dataclasses.replace(self._request(series), cores=cores)
        return tuple(self._measured(SIDES[letter], request) for letter in order)

    def refuse_failing(self) -> None:
        """Give up on a side that has failed so often that it has a reason to."""
        for side, failures in self.failures.items():
            if len(failures) >= 3 or any(each.kind == "timeout" for each in failures):
                what = f"failed {counted(len(failures), 'time')} while it was measured"
                raise self._not_measured(side, f"{what}: {failures[-1].message}", failures[-1])

    def _not_measured(self, side: Side, what: str, failure: Failure) -> DlprofError:
        kind = BaseNotMeasuredError if side == "base" else NothingMeasuredError
        return as_error(failure, kind, f"{side_name(self._plans[side])} {what}")

    def _measured(self, side: Side, request: BlockRequest) -> Block:
        self._processes[side].order(request)
        block, failure = self._processes[side].collect(self._patience_s)
        if failure is not None:
            self.failures[side].append(failure)
        if len(block.service_s) != len(block.samples):
            return block
        service, samples = grouped(block.service_s, block.samples)
        return dataclasses.replace(block, service_s=service, samples=samples)

    def _request(self, series: Series) -> BlockRequest:
        seed = self.settings.sweep.seed
        return BlockRequest(series=series, batches=self.batches, seed=seed, epochs=self.epochs)


def _whole(batches: float, workers: int) -> int:
    """So many batches, or as many more as give each worker the same number of them."""
    return math.ceil(batches / workers) * workers


_PACKAGE = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def open_sides(
    plans: Sequence[SidePlan], settings: CheckSettings, listener: CheckListener
) -> Iterator[Sides]:
    """The sides with their targets built and their loaders warm, ended at the end."""
    for plan in plans:
        request = plan.request
        if request.target.kind == "builtin":
            prepare(request.target, listener.preparing, arguments=request.arguments)
    with work_directory() as directory:
        library = directory / "library"  # this dlprof, and nothing that lies beside it
        library.mkdir()
        try:
            (library / _PACKAGE.name).symlink_to(_PACKAGE, target_is_directory=True)
        except OSError:  # Windows lets only some users make links
            library = _PACKAGE.parent
        processes = {
            plan.side: SideProcess(
                plan.side,
                plan.request,
                plan,
                library=library,
                logs=directory,
                limit=patience(settings)[1],
                pulse=lambda: listener.pulse(None),
            )
            for plan in plans
        }
        sides = Sides(plans, processes, settings)
        try:
            listener.message(f"building {settings.sweep.target}")
            listener.quads({"load": 0, "start": 0}, None, 0.0, settings.sweep.budget_s)
            sides.build()
            listener.message("warming up")
            sides.warm_up()
            yield sides
        finally:
            for process in processes.values():
                process.close()
