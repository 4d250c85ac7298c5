from __future__ import annotations

import ast
import dataclasses
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
from builders import config
from example_runs import example_recommendation, example_run, hostile_run
from torch.utils.data import DataLoader

from dlprof.records import (
    Config,
    Estimate,
    Fix,
    GpuInfo,
    LoaderCall,
    NumaBinding,
    Recommendation,
    Run,
)
from dlprof.report.findings import fix_code
from dlprof.report.snippets import (
    difference,
    render_kubernetes,
    render_lightning,
    render_python,
    render_sbatch,
    render_toml,
    render_torchrun,
    trainer_arguments,
)

_CONFIGS = (
    config(0),
    config(4, persistent_workers=True, pin_memory=True),
    config(8, batch_size=64, in_order=False, start_method="forkserver"),
    config(2, sharing_strategy="file_system", worker_threads=2),
)


def _advice(chosen: Config) -> Recommendation:
    return dataclasses.replace(
        example_recommendation(), config=chosen, dataloader_kwargs=chosen.dataloader_kwargs()
    )


def _arguments(source: str) -> dict[str, object]:
    """The literal keyword arguments of the one DataLoader call in a source."""
    calls = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "DataLoader"
    ]
    assert len(calls) == 1
    return {
        str(word.arg): ast.literal_eval(word.value)
        for word in calls[0].keywords
        if isinstance(word.value, ast.Constant)
    }


@pytest.mark.parametrize("chosen", _CONFIGS, ids=lambda chosen: chosen.key)
def test_python_passes_exactly_the_recommended_arguments(chosen: Config) -> None:
    source = render_python(example_run(), _advice(chosen))
    assert _arguments(source) == {"batch_size": 32} | chosen.dataloader_kwargs()
    _check_beside_the_loader(source, chosen)


def _check_beside_the_loader(source: str, chosen: Config) -> None:
    """Settings that are no arguments of DataLoader are set, with what they need."""
    assert ("set_sharing_strategy('file_system')" in source) == bool(chosen.sharing_strategy)
    assert ("worker_init_fn=set_worker_threads" in source) == bool(chosen.worker_threads)
    assert ("torch.set_num_threads(2)" in source) == bool(chosen.worker_threads)
    needs_torch = bool(chosen.sharing_strategy or chosen.worker_threads)
    assert ("import torch" in source.splitlines()) == needs_torch


@pytest.mark.parametrize("render", [render_python, render_lightning])
@pytest.mark.parametrize("rest", [{"sharing_strategy": "file_system"}, {"worker_threads": 2}, {}])
def test_snippets_are_laid_out_as_formatters_do(
    render: Callable[[Run, Recommendation], str], rest: dict[str, Any]
) -> None:
    """Two blank lines around what is defined at the top, never three."""
    source = render(example_run(), _advice(config(2, **rest)))
    assert "\n\n\n\n" not in source
    for defined in ("def set_worker_threads", "class DataModule"):
        assert defined not in source or f"\n\n\n{defined}" in source
    _check_beside_the_loader(source, config(2, **rest))


@pytest.mark.parametrize("chosen", _CONFIGS, ids=lambda chosen: chosen.key)
def test_lightning_passes_exactly_the_recommended_arguments(chosen: Config) -> None:
    source = render_lightning(example_run(), _advice(chosen))
    assert _arguments(source) == {"batch_size": 32} | chosen.dataloader_kwargs()
    _check_beside_the_loader(source, chosen)


@pytest.mark.parametrize("chosen", _CONFIGS, ids=lambda chosen: chosen.key)
def test_toml_reads_back_as_the_recommended_arguments(chosen: Config) -> None:
    document = tomllib.loads(render_toml(example_run(), _advice(chosen)))
    assert document["dataloader"] == chosen.dataloader_kwargs()
    assert document.get("worker", {}).get("worker_threads") == chosen.worker_threads
    assert document.get("worker", {}).get("sharing_strategy") == chosen.sharing_strategy


def test_foreign_text_stays_inside_its_comment() -> None:
    run = hostile_run()
    assert run.recommendation is not None
    jobs = (render_torchrun, render_sbatch, render_kubernetes)
    for render in (render_python, render_toml, render_lightning, *jobs):
        text = render(run, run.recommendation)
        assert "\x1b" not in text
        assert all(line.startswith("#") for line in text.splitlines()[:2])
    tomllib.loads(render_toml(run, run.recommendation))
    ast.parse(render_python(run, run.recommendation))


@pytest.mark.parametrize("render", [render_python, render_lightning, render_toml])
def test_a_stranger_s_run_file_names_no_argument(
    render: Callable[[Run, Recommendation], str],
) -> None:
    strange = {"num_workers=1)\nimport os  # ": 1}
    advice = dataclasses.replace(_advice(config(2)), dataloader_kwargs=strange)
    assert render(example_run(), advice) == render(example_run(), _advice(config(2)))


@pytest.mark.parametrize("render", [render_python, render_lightning])
def test_a_dataset_by_itself_is_loaded_as_it_was_measured(
    render: Callable[[Run, Recommendation], str],
) -> None:
    run, settings = example_run(), config(2).dataloader_kwargs()

    def shown(own: Config | None, size: int | None, *, shuffle: bool | None = None) -> str:
        target = dataclasses.replace(run.header.target, own_config=own, batch_size=size)
        header = dataclasses.replace(run.header, target=target, settings={"shuffle": shuffle})
        return render(dataclasses.replace(run, header=header), _advice(config(2)))

    assert _arguments(shown(None, 16)) == settings | {"batch_size": 16}
    assert _arguments(shown(None, None)) == settings | {"batch_size": None}  # it makes batches
    assert _arguments(shown(None, 8, shuffle=True)) == settings | {"batch_size": 8, "shuffle": True}
    assert _arguments(shown(config(1), 16, shuffle=True)) == settings
    # A loader of one's own takes more, which is not left out in silence.
    assert ("..." in shown(config(1), 16), "..." in shown(None, 16)) == (True, False)


TRAINER = LoaderCall(
    text="TrainingArguments(..., {settings})",
    names={"num_workers": "dataloader_num_workers"},
    variable="args",
)


def _of(call: LoaderCall, own: Config | None = None) -> Run:
    run = example_run()
    target = dataclasses.replace(run.header.target, call=call, own_config=own)
    return dataclasses.replace(run, header=dataclasses.replace(run.header, target=target))


def test_settings_are_shown_where_the_target_s_framework_has_them() -> None:
    source = render_python(_of(TRAINER), _advice(config(2)))
    (line,) = [each for each in source.splitlines() if "TrainingArguments" in each]
    assert line.startswith("args = TrainingArguments(..., dataloader_num_workers=2, prefetch")
    assert "DataLoader" not in source
    ast.parse(source)
    assert difference(config(2), _of(TRAINER, config(1))) == (
        "args = TrainingArguments(..., dataloader_num_workers=2)"
    )
    assert difference(config(2)) == "loader = DataLoader(dataset, ..., num_workers=2)"


@pytest.mark.parametrize(
    ("chosen", "present", "settings"),
    [
        (config(0), config(4), {"num_workers": 0}),
        (
            config(0),
            config(4, prefetch_factor=4, persistent_workers=True, start_method="spawn"),
            {
                "num_workers": 0,
                "prefetch_factor": None,
                "persistent_workers": False,
                "multiprocessing_context": None,
            },
        ),
        (config(2), config(4, in_order=False), {"num_workers": 2, "in_order": True}),
        (config(2, in_order=False), config(4, in_order=False), {"num_workers": 2}),
        (config(2), config(4, start_method="spawn"), {"num_workers": 2}),  # which is kept
    ],
)
def test_what_is_set_now_and_is_to_be_no_more_is_taken_back(
    chosen: Config, present: Config, settings: dict[str, Any]
) -> None:
    code = difference(chosen, _of(LoaderCall(), present))
    assert _arguments(code) == settings
    if None in settings.values():
        rows: Any = [0]
        assert DataLoader(rows, **present.dataloader_kwargs() | settings).num_workers == 0


def test_what_the_user_s_class_does_not_take_is_not_taken_back() -> None:
    """Such a class sets it itself, where there are workers; the line would raise TypeError."""
    taken_not = dict.fromkeys(("prefetch_factor", "persistent_workers"), "Mine takes no such")
    call = LoaderCall(text="Mine(dataset, ..., {settings})", fixed=taken_not)
    present = config(4, prefetch_factor=4, persistent_workers=True, start_method="spawn")
    run = _of(call, present)
    target = dataclasses.replace(run.header.target, fixed={"start_method": "Mine takes none"})
    run = dataclasses.replace(run, header=dataclasses.replace(run.header, target=target))
    assert difference(config(0), run) == "loader = Mine(dataset, ..., num_workers=0)"


@pytest.mark.parametrize("chosen", _CONFIGS, ids=lambda chosen: chosen.key)
def test_training_arguments_have_all_settings_or_name_them(chosen: Config) -> None:
    code = trainer_arguments(chosen)
    ast.parse(code)
    for name, value in chosen.dataloader_kwargs().items():
        shown = {"batch_size": "per_device_train_batch_size"}.get(name, f"dataloader_{name}")
        named = {"multiprocessing_context": f"start_method={value}"}.get(name, f"{name}={value}")
        assert f" {shown}={value!r},\n" in code or named in code.partition("# not set here: ")[2]
    assert ("worker_threads=2" in code) == bool(chosen.worker_threads)
    assert ("sharing_strategy=file_system" in code) == bool(chosen.sharing_strategy)


def test_what_the_target_cannot_take_is_not_shown() -> None:
    run = _of(LoaderCall(text="create_loader(dataset, ..., {settings})"))
    reasons = {"prefetch_factor": "it takes none", "start_method": "it takes none"}
    target = dataclasses.replace(run.header.target, fixed=reasons)
    run = dataclasses.replace(run, header=dataclasses.replace(run.header, target=target))
    source = render_python(run, _advice(config(2, start_method="spawn")))
    assert source.splitlines()[-1] == (
        "loader = create_loader(dataset, ..., num_workers=2, persistent_workers=False, "
        "pin_memory=False)"
    )


@pytest.mark.parametrize("own", [None, config(1)])
def test_a_loader_of_the_user_s_is_shown_to_have_more_arguments(own: Config | None) -> None:
    run = _of(LoaderCall())
    target = dataclasses.replace(run.header.target, own_config=own)
    run = dataclasses.replace(run, header=dataclasses.replace(run.header, target=target))
    source = render_python(run, _advice(config(2)))
    ast.parse(source)
    assert ("loader = DataLoader(dataset, ..., num_workers=2, " in source) is (own is not None)
    # Where it has torch's name, as PyG's has, it need not be torch's.
    assert ("from torch.utils.data import DataLoader" in source) is (own is None)


def test_code_that_is_more_than_a_call_is_shown_as_it_is() -> None:
    inside = LoaderCall(
        text="def train_dataloader(self):\n    return DataLoader(..., {settings})", variable=""
    )
    source = render_python(_of(inside), _advice(config(2, worker_threads=2)))
    ast.parse(source)
    assert "\n    return DataLoader(..., num_workers=2, " in source
    assert "worker_init_fn=set_worker_threads)" in source


def test_what_is_measured_as_it_is_is_no_dataloader() -> None:
    asis = LoaderCall(text="# Loader is measured as it is: nothing of it is set", variable="")
    source = render_python(_of(asis), _advice(config()))
    assert asis.text in source
    assert "DataLoader(" not in source
    assert LoaderCall(text="# two\nimport os", variable="").checked() == LoaderCall()
    for stranger in ("import os", "# {value}", "f('{value}')"):
        code = {"collate_fn": stranger}
        assert LoaderCall(text="f({settings})", elsewhere=code).checked() == LoaderCall()


def test_a_call_of_a_stranger_s_run_file_brings_no_escape_sequence() -> None:
    source = render_python(_of(LoaderCall(text="\x1b[2Jx({settings})")), _advice(config(2)))
    assert "\x1b" not in source


def test_a_fix_is_shown_where_the_target_s_framework_has_it() -> None:
    fix = Fix(text="", dataloader_kwargs={"num_workers": 4})
    assert fix_code(fix) == "DataLoader(dataset, ..., num_workers=4)"
    fix = dataclasses.replace(fix, call=TRAINER.written(fix.dataloader_kwargs))
    assert fix_code(fix) == "TrainingArguments(..., dataloader_num_workers=4)"


def _job(workers: int = 4, ranks: int = 8, nodes: int = 1, **rest: Any) -> Recommendation:
    advice = _advice(config(workers, **rest))
    limits = dataclasses.replace(advice.constraints, ranks=ranks, nodes=nodes)
    expected = dataclasses.replace(advice.expected, shm_bytes=100 << 20, pss_bytes=2 << 30)
    return dataclasses.replace(advice, constraints=limits, expected=expected)


def _commands(source: str) -> list[str]:
    return [each for each in source.splitlines() if each and not each.startswith("#")]


def test_torchrun_starts_the_ranks_that_were_asked_for() -> None:
    (one,) = _commands(render_torchrun(example_run(), _job()))
    assert one == "torchrun --nproc-per-node=8 --standalone train.py"
    (several,) = _commands(render_torchrun(example_run(), _job(nodes=3)))
    assert shlex.split(several)[1:3] == ["--nproc-per-node=8", "--nnodes=3"]
    assert "--standalone" not in several


@pytest.mark.parametrize("render", [render_torchrun, render_sbatch, render_kubernetes])
@pytest.mark.parametrize("pays", [True, False])
def test_ranks_are_bound_to_numa_nodes_where_that_pays(
    render: Callable[[Run, Recommendation], str], pays: bool
) -> None:
    gain = Estimate(value=1.2 if pays else 1.01, low=1.1 if pays else 0.9, high=1.3)
    bound = NumaBinding(gain=gain, pays=pays)
    source = render(example_run(), dataclasses.replace(_job(), numa_binding=bound))
    assert any("--numa-binding=node" in each for each in _commands(source)) is pays
    said = "# --numa-binding=node: 1.20x (95% CI 1.10-1.30); torch needs numactl for it."
    assert (said in source.splitlines()) is pays


@pytest.mark.parametrize(("threads", "cpus"), [(None, 5 * 8), (3, 13 * 8)])
def test_a_batch_job_has_a_core_for_each_thread_that_loads(threads: int | None, cpus: int) -> None:
    source = render_sbatch(example_run(), _job(worker_threads=threads))
    assert source.startswith("#!/bin/bash\n#SBATCH ")
    assert f"\n#SBATCH --cpus-per-task={cpus}\n" in source
    assert 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"' in _commands(source)
    assert "#   loader = DataLoader(dataset, ..., num_workers=4" in source


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("nodes", [1, 16])
def test_a_batch_job_is_a_script_whose_settings_come_first(nodes: int) -> None:
    source = render_sbatch(_of(LoaderCall(text="\n; rm {settings}\n$(x)")), _job(nodes=nodes))
    subprocess.run(["bash", "-n"], input=source, text=True, check=True)
    lines = source.splitlines()
    last = max(index for index, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert all(line.startswith("#") for line in lines[: last + 1])  # Slurm reads no further
    assert f"#SBATCH --nodes={nodes}" in lines
    assert ("--rdzv-id=$SLURM_JOB_ID" in source) == (nodes > 1)
    assert not any("rm" in each.split() or "$(x)" in each for each in _commands(source))


def test_a_pod_s_shared_memory_holds_the_queues_of_all_ranks() -> None:
    yaml = pytest.importorskip("yaml")
    pod = yaml.safe_load(render_kubernetes(example_run(), _job()))["spec"]
    (container,), (volume,) = pod["containers"], pod["volumes"]
    assert volume["emptyDir"]["medium"] == "Memory"
    assert int(volume["emptyDir"]["sizeLimit"].removesuffix("Mi")) >= 8 * 100
    (mount,) = container["volumeMounts"]
    assert mount == {"name": volume["name"], "mountPath": "/dev/shm"}
    assert container["command"] == ["torchrun", "--nproc-per-node=8", "--standalone", "train.py"]
    assert container["resources"]["requests"] == {"cpu": 40, "memory": "16384Mi"}


def test_a_pod_s_shared_memory_has_no_limit_that_nobody_knows() -> None:
    yaml, advice = pytest.importorskip("yaml"), _job()
    unknown = dataclasses.replace(advice.expected, shm_bytes=None, pss_bytes=None)
    source = render_kubernetes(example_run(), dataclasses.replace(advice, expected=unknown))
    pod = yaml.safe_load(source)["spec"]
    assert pod["volumes"][0]["emptyDir"] == {"medium": "Memory"}
    assert "memory" not in pod["containers"][0]["resources"]["requests"]
    assert "not known" in source


@pytest.mark.parametrize(
    ("accelerator", "torch", "card", "asked"),
    [
        ("cuda", "2.13.0+cu130", "NVIDIA H200", "nvidia.com/gpu"),
        ("cuda", "2.13.0", "", "nvidia.com/gpu"),  # no driver was asked
        ("cuda", "2.13.0+rocm7.2", "", "amd.com/gpu"),
        ("cuda", "2.13.0a0+git1234", "AMD Instinct MI300X", "amd.com/gpu"),
        ("cpu", "2.13.0+rocm7.2", "AMD Instinct MI300X", ""),
        (None, "2.13.0+cpu", "", ""),
    ],
)
def test_a_job_asks_for_the_gpus_of_its_vendor(
    accelerator: str | None, torch: str, card: str, asked: str
) -> None:
    yaml, run = pytest.importorskip("yaml"), example_run()
    cards = (GpuInfo(index=0, name=card, uuid=""),) if card else ()
    header = dataclasses.replace(
        run.header,
        accelerator=accelerator,
        torch_version=torch,
        machine=dataclasses.replace(run.header.machine, gpus=cards),
    )
    run = dataclasses.replace(run, header=header)
    (container,) = yaml.safe_load(render_kubernetes(run, _job()))["spec"]["containers"]
    assert container["resources"].get("limits", {}) == ({asked: 8} if asked else {})
    assert ("--gpus-per-node=8" in render_sbatch(run, _job())) is bool(asked)
