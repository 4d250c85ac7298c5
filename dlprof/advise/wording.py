"""How figures read within a sentence."""

from __future__ import annotations

import math

from dlprof.advise.thresholds import NOTABLE
from dlprof.records import Config, Estimate, LoaderCall, Target, Trial
from dlprof.records.findings import Severity
from dlprof.units import counted

EVEN_SHARDS = "its shards feed all workers alike"
"""What a gain of more workers takes for granted, of an iterable whose epochs no trial saw whole."""

FIRST_EPOCH = "its cache holds no sample yet, as in a first epoch"
"""Of a dataset that keeps samples: later epochs get some of them without loading."""

TEN_EPOCHS = "a training has 10 epochs"
"""The same, of what such a training gains."""

NO_LIMIT = "its workers share no limit"
"""What it takes for granted of what they wait for, as of a server's rate: no lower end has it."""


def even_shards(target: Target, config: Config, ranks: int = 1, *, counted: bool = False) -> str:
    """``EVEN_SHARDS``, and whether that is known not to hold: some workers have one more.

    ``counted`` says that the rate counts those that load the last shards alone.
    """
    if counted and target.last_shards(config.num_workers, ranks):
        return f"its {target.shards} shards are alike"
    shards, workers = target.shards or 0, config.num_workers
    most = math.ceil(shards / max(1, workers))
    uneven = (
        ranks <= 1 and not target.repeats_shards and most * workers >= (1 + NOTABLE) * shards > 0
    )
    return f"{EVEN_SHARDS}, which {shards} don't" if uneven else EVEN_SHARDS


def worker_threads_code(threads: int) -> str:
    """The ``worker_init_fn`` that gives a worker so many threads, as ``Config.worker_threads``.

    In a worker torch's pool has one by itself; those of other libraries don't follow it.
    """
    return f"""def set_worker_threads(worker_id: int) -> None:
    torch.set_num_threads({threads})
    # Where the dataset uses them: cv2.setNumThreads({threads}), pyarrow.set_cpu_count({threads}),
    # threadpoolctl.threadpool_limits({threads}) for NumPy, SciPy and scikit-learn"""


def is_trainers(call: LoaderCall) -> bool:
    """Whether a Trainer of Hugging Face's makes the loader, and its Accelerator."""
    return "dataloader_num_workers" in call.names.values()


def accelerate_code(call: LoaderCall, option: str, *, value: bool) -> str:
    """The code that gives accelerate an option."""
    if is_trainers(call):
        return call.given("accelerator_config", f'{{"{option}": {value}}}')
    return f"""config = accelerate.DataLoaderConfiguration({option}={value})
accelerator = accelerate.Accelerator(dataloader_config=config)"""


def as_fast(ratio: Estimate) -> str:
    """A ratio of two rates: ``2.31x as fast``; in words where its interval is wide."""
    if ratio.is_wide:
        low, high = ratio.ends
        if low <= 1 <= high:
            return "faster or slower (too noisy to say)"
        return f"{'faster' if low > 1 else 'slower'} (by how much is too noisy to say)"
    return f"{factor_text(ratio)} as fast"


def factor_text(factor: Estimate) -> str:
    """A factor such as ``0.52x``, with more digits where it is very small, fewer where large."""
    return "unclear" if factor.is_wide else f"{ratio_digits(factor.value)}x"


def ratio_digits(value: float) -> str:
    """Such a factor, or an end of its interval, without the x."""
    shown = ".2g" if value < 0.095 else ".2f" if value < 99.5 else ",.0f"  # never 1.2e+02
    return f"{value:{shown}}"


def between(ratio: Estimate) -> str:
    """The interval behind a ratio: `` (95% CI 2.10-2.54)``; empty for none, or a wide one."""
    if ratio.low is None or ratio.high is None or ratio.is_wide:
        return ""
    return f" (95% CI {ratio_digits(ratio.low)}-{ratio_digits(ratio.high)})"


def end_text(ratio: float) -> str:
    """An end of a ratio's interval: two decimals near 1, fewer far from it."""
    if 0 < ratio < 0.005:  # of which two decimals would make nothing
        return f"{ratio:.2g}"
    return f"{ratio:.2f}" if ratio < 1.995 else f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:,.0f}"


def percent(fraction: float) -> str:
    """A fraction as ``12%``, with a decimal where it is small."""
    return f"{fraction * 100:.1f}%" if fraction < 0.1 else f"{fraction * 100:.0f}%"


def loss_text(loss: float) -> str:
    """By how much slower something is at most: ``at most 10% slower``, or ``not slower``."""
    return f"at most {loss * 100:.0f}% slower" if loss >= 0.005 else "not slower"


def background_text(neighbours: float) -> str:
    """The load of other processes that is predicted with, as ``--assume-background`` takes it.

    They want more cores than they keep busy, where they wait for one like the loader's own.

    >>> background_text(2.483), background_text(1.0)
    ('other processes want 2.5 cores', 'other processes want 1 core')
    """
    return f"other processes want {counted(round(neighbours, 1), 'core')}"


def disturbed_text(disturbed: int, trials: int) -> str:
    """How many of some trials were disturbed; empty for none.

    >>> disturbed_text(5, 5), disturbed_text(2, 2), disturbed_text(3, 5), disturbed_text(1, 1)
    ('all 5 disturbed', 'both disturbed', '3 of 5 disturbed', 'disturbed')
    """
    if not disturbed:
        return ""
    if disturbed == trials < 3:
        return "both disturbed" if trials == 2 else "disturbed"
    some = "all" if disturbed == trials else f"{disturbed} of"
    return f"{some} {trials} disturbed"


def failed_or_skipped(trial: Trial, *, count: int = 1) -> str:
    """The verb of a trial without figures: what can't work here was not tried."""
    if trial.outcome != "skipped":
        return "failed"
    return "was skipped" if count == 1 else "were skipped"


def severity_of(cost: float) -> Severity:
    """By the share of the time, or of the rate, that a cause costs."""
    if cost >= 0.25:
        return "high"
    if cost >= NOTABLE:
        return "medium"
    return "low" if cost > 0 else "info"


def inside(text: str) -> str:
    """A sentence without the capital it begins with, as it stands inside of another."""
    return text[:1].lower() + text[1:]
