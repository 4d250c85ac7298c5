"""The recommendation as something to paste: Python, TOML, a data module, the start of a job."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dlprof.advise.wording import worker_threads_code
from dlprof.advise.wrong_data import said_first
from dlprof.records import Config, LoaderCall, Recommendation, Run, RunHeader
from dlprof.report.labels import cores_text, gain_text, rate_text
from dlprof.report.text import clean, clean_lines
from dlprof.stats.intervals import typical
from dlprof.units import counted, format_bytes

_INDENT = "    "
_TORCH_LOADER = "from torch.utils.data import DataLoader"

_OFF: Mapping[str, Any] = {
    "prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None
}  # fmt: skip
"""What torch takes of settings that only workers have, where there are none."""


def loader_call(
    kwargs: Mapping[str, Any], given: Sequence[str] = ("dataset",), extra: Sequence[str] = ()
) -> list[str]:
    """The lines of a ``DataLoader(...)`` call; what is given and what is extra is source."""
    arguments = [*given, *(f"{name}={value!r}" for name, value in kwargs.items()), *extra]
    return ["DataLoader(", *(f"{_INDENT}{argument}," for argument in arguments), ")"]


def difference(config: Config, run: Run | None = None) -> str:
    """The lines to change: what differs from the run's present loader, or PyTorch's defaults."""
    now, call, kept = Config(), LoaderCall(), set[str]()
    method: str | None = None
    if run is not None:
        target, now = run.header.target, run.present or now
        call, kept = target.call.checked(), _arguments({**target.fixed, **target.call.fixed})
        # One of the target's own is kept, and named nowhere else.
        method = target.own_config.start_method if target.own_config is not None else None
    plain, wanted = Config(num_workers=1).dataloader_kwargs(), config.dataloader_kwargs()
    base = plain | {"multiprocessing_context": method} | now.dataloader_kwargs()
    # What is set now and is to be no more: as it is, torch would refuse it without workers. What
    # can't be set there is not: code that takes num_workers alone sees to the rest.
    gone: Mapping[str, Any] = {"in_order": True} if config.num_workers else _OFF
    set_now = [k for k in gone if k in base and k not in wanted and base[k] != plain.get(k)]
    set_now = [k for k in set_now if k not in kept]
    wanted |= {k: gone[k] for k in set_now}
    changed = {k: v for k, v in wanted.items() if k == "num_workers" or v != base.get(k)}
    code = call.assigned(changed, _worker_init(config))
    return "\n".join([*(line for line in _set_up(config) if line), code])


def _arguments(names: Iterable[str]) -> set[str]:
    """DataLoader's names of settings."""
    return {"multiprocessing_context" if name == "start_method" else name for name in names}


def _alone(run: Run) -> dict[str, Any]:
    """What a dataset that is a target by itself was loaded with; the user's code has it else."""
    target = run.header.target
    if target.own_config is not None or target.call.checked() != LoaderCall():
        return {}
    shuffled = run.header.settings.get("shuffle") is True
    return {"batch_size": target.batch_size, **({"shuffle": True} if shuffled else {})}


def render_python(run: Run, recommendation: Recommendation) -> str:
    """A Python snippet that builds the recommended loader from a ``dataset``.

    Settings that are no DataLoader arguments (sharing strategy, worker threads) are set the way
    torch wants them.
    """
    config, target = recommendation.config, run.header.target
    fixed = _arguments(target.fixed)  # with what can't be set, the line would raise
    # Not those that the run file says: it may come from elsewhere, and people paste this.
    settings = {k: v for k, v in config.dataloader_kwargs().items() if k not in fixed}
    alone, extra = _alone(run), _worker_init(config)
    call, imports = loader_call(alone | settings, extra=extra), [_TORCH_LOADER]
    call[0] = f"loader = {call[0]}"
    # What else it takes, and where it is from, the user's code knows: PyG's has torch's name.
    if not alone:
        call, imports = [clean_lines(target.call.checked().assigned(settings, extra))], []
    return "\n".join([*_head(run, recommendation, *imports), *_set_up(config), *call]) + "\n"


def _head(run: Run, recommendation: Recommendation, *imports: str) -> list[str]:
    config = recommendation.config
    plain = config.sharing_strategy is None and config.worker_threads is None
    lines = [*([] if plain else ["import torch"]), *imports]
    return [*_comment_lines(run, recommendation), *lines, *([""] if lines else [])]


def _worker_init(config: Config) -> list[str]:
    return [] if config.worker_threads is None else ["worker_init_fn=set_worker_threads"]


def _set_up(config: Config) -> list[str]:
    lines = []
    if config.sharing_strategy is not None:
        lines += [f"torch.multiprocessing.set_sharing_strategy({config.sharing_strategy!r})", ""]
    if config.worker_threads is not None:
        lines += ["", *worker_threads_code(config.worker_threads).splitlines(), "", ""]
    return lines


def render_toml(run: Run, recommendation: Recommendation) -> str:
    """The arguments as a TOML table ``[dataloader]``, what they should give as comments."""
    config, names = recommendation.config, ("sharing_strategy", "worker_threads")
    lines = [*_comment_lines(run, recommendation), "[dataloader]"]
    # Every value is a whole number, a truth value or a short text, and JSON writes these as TOML.
    lines += [f"{name} = {json.dumps(v)}" for name, v in config.dataloader_kwargs().items()]
    others = {name: v for name in names if (v := getattr(config, name)) is not None}
    if others:
        lines += ["", "[worker]", *(f"{name} = {json.dumps(v)}" for name, v in others.items())]
    return "\n".join(lines) + "\n"


def trainer_arguments(config: Config) -> str:
    """The settings as Hugging Face's ``TrainingArguments`` take them; others are only named."""
    workers = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory")
    names = {name: f"dataloader_{name}" for name in workers}
    names["batch_size"] = "per_device_train_batch_size"
    wanted, plain = config.dataloader_kwargs(), Config()
    lines = [f"{_INDENT}{names[k]}={v!r}," for k, v in wanted.items() if k in names]
    others = ("in_order", "start_method", "sharing_strategy", "worker_threads")
    left = [f"{k}={v}" for k in others if (v := getattr(config, k)) != getattr(plain, k)]
    lines += [f"{_INDENT}# not set here: {', '.join(left)}"] if left else []
    return "\n".join(["args = TrainingArguments(", f"{_INDENT}...,", *lines, ")"])


def render_lightning(run: Run, recommendation: Recommendation) -> str:
    """A Lightning data module with the recommended loader, and how many ranks it is meant for."""
    config, ranks = recommendation.config, recommendation.constraints.ranks
    alone, extra = _alone(run), _worker_init(config)
    imports = ("from lightning.pytorch import LightningDataModule", _TORCH_LOADER)
    head = [*_head(run, recommendation, *imports), *_set_up(config)]
    if config.worker_threads is None:
        head.append("")
    given = ["self.dataset"] if alone else ["self.dataset", "..."]  # and what else it takes
    written = loader_call(alone | config.dataloader_kwargs(), given, extra)
    call = f"\n{_INDENT * 2}".join(written)
    lines = "\n".join(head)
    return f"""{lines}
class DataModule(LightningDataModule):
    def __init__(self, dataset):
        super().__init__()
        self.dataset = dataset

    def train_dataloader(self):
        return {call}


# Each rank builds a loader of its own; these settings are for Trainer(devices={ranks}).
"""


_SCRIPT = "train.py"


def render_torchrun(run: Run, recommendation: Recommendation) -> str:
    """The command that starts a rank for each device of one machine or of several."""
    return "\n".join([*_job_lines(run, recommendation), _torchrun(recommendation)]) + "\n"


def render_sbatch(run: Run, recommendation: Recommendation) -> str:
    """A batch script for Slurm: one torchrun on each node, with the cores of its ranks."""
    limits, gpus = recommendation.constraints, _gpu_resource(run.header)
    lines = [
        "#!/bin/bash",
        f"#SBATCH --nodes={limits.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --cpus-per-task={_cpus(recommendation) * limits.ranks}",
        *([f"#SBATCH --gpus-per-node={limits.ranks}"] if gpus else []),
        *_job_lines(run, recommendation),
        "# srun does not inherit --cpus-per-task from sbatch.",
        'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"',
    ]
    if limits.nodes > 1:
        lines.append('HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)')
    return "\n".join([*lines, f"srun {_torchrun(recommendation, slurm=True)}"]) + "\n"


def render_kubernetes(run: Run, recommendation: Recommendation) -> str:
    """A pod that runs the ranks of one node, with a /dev/shm that holds their queues."""
    limits, expected = recommendation.constraints, recommendation.expected
    size, memory = "", "# memory: not known of these settings"
    if recommendation.config.num_workers and expected.shm_bytes is not None:
        # Twice it: batches that the step still holds, and those that NCCL or gloo exchange, are
        # there, too.
        needed = math.ceil(2 * limits.ranks * expected.shm_bytes / 2**20)
        size = f", sizeLimit: {max(64, needed)}Mi"
    if expected.pss_bytes is not None:
        needed = math.ceil(limits.ranks * expected.pss_bytes / 2**20)
        memory = f"memory: {needed}Mi  # of loading alone: add what the training takes"
    head = "\n".join(_job_lines(run, recommendation))
    head += "\n# This is one of its nodes." if limits.nodes > 1 else ""
    resource = _gpu_resource(run.header)
    gpus = f"        limits:\n          {resource}: {limits.ranks}\n" if resource else ""
    return f"""{head}
apiVersion: v1
kind: Pod
metadata:
  name: training
spec:
  restartPolicy: Never
  containers:
    - name: training
      image: IMAGE
      command: {json.dumps(_torchrun(recommendation).split())}
      resources:
        requests:
          cpu: {_cpus(recommendation) * limits.ranks}
          {memory}
{gpus}      volumeMounts:
        - {{name: shm, mountPath: /dev/shm}}
  volumes:
    - name: shm
      emptyDir: {{medium: Memory{size}}}
"""


def _gpu_resource(header: RunHeader) -> str:
    """What Kubernetes calls the GPUs of a run; empty where a job need not ask for any.

    AMD's are ``cuda`` to torch, too: that they are is in the version of ROCm's torch, or in the
    names of the cards.
    """
    if header.accelerator != "cuda":
        return ""
    said = " ".join([header.torch_version, *(card.name for card in header.machine.gpus)])
    amd = re.search(r"rocm|\b(amd|instinct|radeon)\b", said, re.IGNORECASE)
    return "amd.com/gpu" if amd else "nvidia.com/gpu"


def _cpus(recommendation: Recommendation) -> int:
    """Of one rank: a core for each thread that loads, and one for the training process."""
    config = recommendation.config
    return config.num_workers * (config.worker_threads or 1) + 1


def _torchrun(recommendation: Recommendation, *, slurm: bool = False) -> str:
    limits, bound = recommendation.constraints, recommendation.numa_binding
    each = f"torchrun --nproc-per-node={limits.ranks}"
    if bound is not None and bound.pays:
        each += f" {bound.option}"
    if limits.nodes == 1:
        return f"{each} --standalone {_SCRIPT}"
    head, job = ("$HEAD", "$SLURM_JOB_ID") if slurm else ("HOST", "JOB")
    where = f"--rdzv-backend=c10d --rdzv-endpoint={head}:29500 --rdzv-id={job}"
    return f"{each} --nnodes={limits.nodes} {where} {_SCRIPT}"


def _job_lines(run: Run, recommendation: Recommendation) -> list[str]:
    """What the job's figures rest on, and what its script has to set, as comments."""
    limits, config = recommendation.constraints, recommendation.config
    same = [trial for trial in run.completed if trial.config == config]
    busy = typical(trial.usage.own_cpu_cores for trial in same)
    cores = f"{counted(_cpus(recommendation), 'core')} a rank: its workers and the training process"
    if busy is not None:
        cores += f"; {cores_text(busy)} were busy in the sweep"
    queued = recommendation.expected.shm_bytes
    full = "not known" if queued is None else format_bytes(queued)
    code = difference(config, run)
    bound = recommendation.numa_binding
    gain = gain_text(bound.gain) if bound is not None and bound.pays and bound.gain else ""
    return [
        *_comment_lines(run, recommendation),
        f"# {counted(limits.nodes, 'node')} of {counted(limits.ranks, 'rank')}, {cores}.",
        *([f"# /dev/shm that a rank's full queues take: {full}."] if config.num_workers else []),
        *([f"# {bound.option}: {gain}; torch needs numactl for it."] if bound and gain else []),
        f"# Each rank of {_SCRIPT} sets:",
        *(f"#   {clean(line)}".rstrip() for line in code.splitlines()),
    ]


def _comment_lines(run: Run, recommendation: Recommendation) -> list[str]:
    """Where the settings come from and what they should give, so that it can be checked later."""
    machine = clean(recommendation.constraints.machine or run.header.machine.hostname)
    version, target = clean(run.header.dlprof_version), clean(run.header.target.spec)
    rate = rate_text(recommendation.expected.samples_per_s)
    if not recommendation.in_trials:
        rate += ", predicted" if recommendation.basis == "predicted" else ", estimated"
    return [
        *(f"# {clean(text)}" for text in said_first(run)),
        f"# dlprof {version}: {target} on {machine}, {clean(run.header.started_at)[:10]}",
        f"# expect {rate}, confidence {recommendation.confidence}",
    ]
