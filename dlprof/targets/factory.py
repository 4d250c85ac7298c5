"""Callables that a target names: calling them, and calling them again for each configuration."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch.utils.data import DataLoader

from dlprof.errors import TargetError
from dlprof.records import Config
from dlprof.targets.arguments import bind_arguments, named_parameters, signature_of, takes_any
from dlprof.targets.faults import target_fault
from dlprof.targets.parts import KEYWORDS, SWEPT, core_of, is_default

NOT_A_SCRIPT = "Name what makes the loader; a training script is profiled by dlprof run SCRIPT."
"""What to do about a target that is a whole training."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Factory:
    """A callable of the target with its ``--arg`` texts, and the name that messages use.

    ``named`` are swept settings that it names among its parameters and the user left open, with
    their defaults (``Parameter.empty`` where there is none); it is ``open`` with ``**kwargs``.
    """

    function: Callable[..., Any]
    name: str
    arguments: Mapping[str, str]
    named: Mapping[str, Any]
    open: bool

    @classmethod
    def of(cls, function: Callable[..., Any], name: str, arguments: Mapping[str, str]) -> Factory:
        """Look at the signature of a callable."""
        signature = signature_of(function)
        if signature is None:
            parameters, is_open = {}, True
        else:
            parameters, is_open = named_parameters(signature), takes_any(signature)
        named = {
            key: parameter.default
            for key, parameter in parameters.items()
            if key in SWEPT and key not in arguments
        }
        return cls(function=function, name=name, arguments=arguments, named=named, open=is_open)

    @property
    def replaced(self) -> Mapping[str, Any]:
        """The defaults of its own that :meth:`first_call` puts others in the place of."""
        if "num_workers" not in self.named:
            return {}
        of_workers = ("num_workers", "prefetch_factor", "persistent_workers")
        return {key: self.named[key] for key in of_workers if key in self.named}

    def takes(self, setting: str) -> bool:
        """Whether a swept setting can be passed to it."""
        return setting in self.named or (self.open and setting not in self.arguments)

    @property
    def fixed(self) -> Mapping[str, str]:
        """Settings that can't be passed to it, by their names in ``Config``, with the reason."""
        return {
            field: f"--arg sets {key}" if key in self.arguments else f"{self.name} takes no {key}"
            for field, key in KEYWORDS.items()
            if not self.takes(key)
        }

    def first_call(self) -> Any:
        """Call it as the user would, but without workers where it lets that be chosen."""
        wanted = [*self._required(), *self.replaced]
        return self._call({key: SWEPT[key] for key in wanted})

    def loader(self, config: Config, own: Config | None = None) -> Any:
        """Call it for one configuration."""
        settings = config.dataloader_kwargs()
        if config.num_workers == 0:
            # A default of the callable's own would be illegal without workers.
            settings |= {key: SWEPT[key] for key in ("prefetch_factor", "persistent_workers")}
        settings |= {"in_order": config.in_order}
        accepted = {key: value for key, value in settings.items() if self._passes(key, value, own)}
        made = self._call({key: SWEPT[key] for key in self._required()} | accepted)
        self._check(core_of(made), accepted)
        return made

    def _check(self, core: Any, asked: Mapping[str, Any]) -> None:
        """Refuse a loader for which something was left out: its figures would be of other settings.

        Whether it pins may hang on the accelerator, and what a batch is on the ranks.
        """
        names = ["num_workers"]
        if isinstance(core, DataLoader):
            names += ["prefetch_factor", "persistent_workers", "in_order"]
        for name in names:
            wanted = asked.get(name)
            found = getattr(core, name, wanted)
            if wanted is not None and found != wanted:
                raise TargetError(
                    f"{self.name} was asked for {name}={wanted} and returned a loader with "
                    f"{found}.",
                    hint=f"Pass {name} on to the loader.",
                )

    def _required(self) -> list[str]:
        return [key for key, default in self.named.items() if default is inspect.Parameter.empty]

    def _passes(self, key: str, value: Any, own: Config | None) -> bool:
        if key in self.named:
            return True
        # What torch does by itself need not be taken.
        is_torchs = key not in {"num_workers", "batch_size"} and is_default(key, value)
        if is_torchs or value == getattr(own, key, None):
            return False
        if self.takes(key):
            return True
        raise TargetError(
            f"{self.name} takes no {key}, so {key}={value} can't be measured with it.",
            hint=f"Add {key} to its parameters and pass it to the loader, or leave it out.",
        )

    def _call(self, settings: Mapping[str, Any]) -> Any:
        positional, keywords = bind_arguments(
            self.function, self.arguments, settings, name=self.name
        )
        try:
            return self.function(*positional, **keywords)
        except TargetError:
            raise
        except (Exception, SystemExit) as error:
            hint = "Call it in a Python prompt with the same arguments to see the error alone."
            if isinstance(error, SystemExit):  # mostly a script's main, whose options it lacks
                hint = NOT_A_SCRIPT
            raise target_fault(f"{self.name} raised", error, hint) from error
