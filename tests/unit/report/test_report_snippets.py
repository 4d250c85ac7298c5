from __future__ import annotations

import ast
import dataclasses
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
from builders import config
from example_runs import example_recommendation, example_run, hostile_run

from dlprof.records import Config, Fix, LoaderCall, Recommendation, Run
from dlprof.report.findings import fix_code
from dlprof.report.snippets import difference, render_lightning, render_python, render_toml

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
    assert _arguments(source) == chosen.dataloader_kwargs()
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
    assert _arguments(source) == chosen.dataloader_kwargs()
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
    for render in (render_python, render_toml, render_lightning):
        text = render(run, run.recommendation)
        assert "\x1b" not in text
        assert all(line.startswith("#") for line in text.splitlines()[:2])
    tomllib.loads(render_toml(run, run.recommendation))
    ast.parse(render_python(run, run.recommendation))


TRAINER = LoaderCall(
    text="TrainingArguments(..., {settings})",
    names={"num_workers": "dataloader_num_workers"},
    variable="args",
)


def _of(call: LoaderCall) -> Run:
    run = example_run()
    target = dataclasses.replace(run.header.target, call=call)
    return dataclasses.replace(run, header=dataclasses.replace(run.header, target=target))


def test_settings_are_shown_where_the_target_s_framework_has_them() -> None:
    source = render_python(_of(TRAINER), _advice(config(2)))
    (line,) = [each for each in source.splitlines() if "TrainingArguments" in each]
    assert line.startswith("args = TrainingArguments(..., dataloader_num_workers=2, prefetch")
    assert "DataLoader" not in source
    ast.parse(source)
    assert difference(config(2), config(1), TRAINER) == (
        "args = TrainingArguments(..., dataloader_num_workers=2)"
    )
    assert difference(config(2), config(1)) == "loader = DataLoader(dataset, ..., num_workers=2)"


def test_code_that_is_more_than_a_call_is_shown_as_it_is() -> None:
    inside = LoaderCall(
        text="def train_dataloader(self):\n    return DataLoader(..., {settings})", variable=""
    )
    source = render_python(_of(inside), _advice(config(2, worker_threads=2)))
    ast.parse(source)
    assert "\n    return DataLoader(..., num_workers=2, " in source
    assert "worker_init_fn=set_worker_threads)" in source


def test_a_call_of_a_stranger_s_run_file_brings_no_escape_sequence() -> None:
    source = render_python(_of(LoaderCall(text="\x1b[2Jx({settings})")), _advice(config(2)))
    assert "\x1b" not in source


def test_a_fix_is_shown_where_the_target_s_framework_has_it() -> None:
    fix = Fix(text="", dataloader_kwargs={"num_workers": 4})
    assert fix_code(fix) == "DataLoader(dataset, ..., num_workers=4)"
    fix = dataclasses.replace(fix, call=TRAINER.written(fix.dataloader_kwargs))
    assert fix_code(fix) == "TrainingArguments(..., dataloader_num_workers=4)"
