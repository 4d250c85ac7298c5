from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from compare_runs import Costs, made_run

from dlprof.cli.entry import run
from dlprof.records import Run
from dlprof.report.document import Column, Document, Table
from dlprof.report.index import index_report, page_names
from dlprof.store import RunWriter


def _write(name: str, made: Run) -> str:
    with RunWriter.create(Path(name), made.header) as writer:
        for trial in made.trials:
            writer.append(trial)
    return name


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A saved run in the working directory."""
    monkeypatch.chdir(tmp_path)
    return _write("run.dlprof.jsonl", made_run(Costs()))


@pytest.fixture
def slower_file(run_file: str) -> str:
    """Another beside it, on a machine of fewer cores."""
    return _write("slower.dlprof.jsonl", made_run(Costs(affinity=4)))


def test_a_report_is_the_screen_of_the_sweep(
    run_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", run_file], {}) == 0
    out, err = capsys.readouterr()
    assert "  Recommended  num_workers=8" in out
    assert err == ""


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("report.html", "<!DOCTYPE html>"),
        ("report.md", "# dlprof: "),
        ("report.csv", "run_id,"),
        ("report.json", '{"schema_version"'),
    ],
)
def test_the_suffix_shows_the_format(
    run_file: str, capsys: pytest.CaptureFixture[str], name: str, begins: str
) -> None:
    assert run(["report", run_file, "-o", name], {}) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert name in err
    assert Path(name).read_text(encoding="utf-8").startswith(begins)


@pytest.mark.parametrize("given", ["html", "markdown", "csv", "json", "text"])
def test_a_format_alone_goes_to_stdout(
    run_file: str, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    assert run(["report", run_file, "-v", "--format", given], {}) == 0
    assert "data.py:make" in capsys.readouterr().out


def test_text_goes_into_a_file_too(run_file: str) -> None:
    assert run(["report", run_file, "--format", "text", "-o", "screen.txt"], {}) == 0
    text = Path("screen.txt").read_text(encoding="utf-8")
    assert text.startswith("Configurations\n")
    assert "\x1b" not in text


def test_a_trace_needs_a_timeline(run_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", run_file, "-o", "run.perfetto.json"], {}) == 2
    assert "dlprof profile" in capsys.readouterr().err
    assert not Path("run.perfetto.json").exists()


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["-o", "report.xyz"], "names no format"),
        (["--format", "pdf"], "is no format"),
        (["--format", "csv", "--json"], "exclude each other"),
        (["-o", f"{300 * 'a'}.html"], "is too long"),
        (["-o", "run.dlprof.jsonl", "--format", "json", "--force"], "the run file itself"),
        (["-o", "nowhere/report.html"], "no folder"),
    ],
)
def test_what_can_not_be_written_is_refused(
    run_file: str, capsys: pytest.CaptureFixture[str], arguments: list[str], fault: str
) -> None:
    before = Path(run_file).read_bytes()
    assert run(["report", run_file, *arguments], {}) == 2
    out, err = capsys.readouterr()
    assert fault in out + err
    assert Path(run_file).read_bytes() == before


def test_a_file_that_is_there_is_kept_unless_forced(run_file: str) -> None:
    Path("report.html").write_text("mine", encoding="utf-8")
    assert run(["report", run_file, "-o", "report.html"], {}) == 2
    assert Path("report.html").read_text(encoding="utf-8") == "mine"
    assert run(["report", run_file, "-o", "report.html", "--force"], {}) == 0
    assert "<!DOCTYPE" in Path("report.html").read_text(encoding="utf-8")


def test_two_runs_are_compared(
    run_file: str, slower_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", run_file, slower_file], {}) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "All of it is available cores" in out
    assert "available cores 0.50x" in out


@pytest.mark.parametrize(
    ("name", "begins"),
    [("c.html", "<!DOCTYPE html>"), ("c.md", "# dlprof: "), ("c.json", '{\n  "schema_version"')],
)
def test_a_comparison_goes_into_a_file(
    run_file: str, slower_file: str, capsys: pytest.CaptureFixture[str], name: str, begins: str
) -> None:
    assert run(["compare", run_file, slower_file, "-o", name], {}) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"Written: {name}\n")
    text = Path(name).read_text(encoding="utf-8")
    assert text.startswith(begins)
    assert "available cores" in text
    assert "Details: -v" not in text
    assert run(["compare", run_file, slower_file, "-o", name], {}) == 2  # it is there by now
    assert "--force" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["c.csv", "c.perfetto", "slower.dlprof.jsonl"])
def test_a_comparison_is_no_table_and_replaces_no_run(
    run_file: str, slower_file: str, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    before = Path(slower_file).read_bytes()
    assert run(["compare", run_file, slower_file, "-o", given, "--force"], {}) == 2
    assert "no format" in capsys.readouterr().err
    assert Path(slower_file).read_bytes() == before


def test_several_runs_have_an_index_with_a_page_for_each(
    run_file: str, slower_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", run_file, slower_file, "-o", "index.html"], {}) == 0
    written = "Written: index.html, and a page for each of 2 runs beside it\n"
    assert capsys.readouterr().err == written
    index = Path("index.html").read_text(encoding="utf-8")
    for name in ("run", "slower"):
        assert f'<a href="./{name}.html">{name}</a>' in index
        assert "<h1>dlprof: data.py:make on " in Path(f"{name}.html").read_text(encoding="utf-8")
    assert index.count("num_workers=8") == len((run_file, slower_file))


def test_pages_that_are_there_are_kept_unless_forced(run_file: str, slower_file: str) -> None:
    Path("slower.html").write_text("mine", encoding="utf-8")
    assert run(["report", run_file, slower_file, "-o", "index.html"], {}) == 2
    assert Path("slower.html").read_text(encoding="utf-8") == "mine"
    assert not Path("run.html").exists()
    assert run(["report", run_file, slower_file, "-o", "index.html", "--force"], {}) == 0
    assert Path("slower.html").read_text(encoding="utf-8") != "mine"


def test_an_index_that_a_damaged_run_ends_leaves_no_page(run_file: str) -> None:
    Path("damaged.dlprof.jsonl").write_text("no run\n", encoding="utf-8")
    before = {*Path().iterdir()}
    words = ["report", run_file, "damaged.dlprof.jsonl", "-o", "index.html"]
    assert run(words, {}) == 2
    assert {*Path().iterdir()} == before

    page = Path(run_file).name.partition(".")[0] + ".html"
    Path(page).write_text("of before", encoding="utf-8")
    assert run([*words, "--force"], {}) == 2
    assert Path(page).exists()


def test_no_two_pages_have_one_name() -> None:
    runs = ["a/run.dlprof.jsonl", "b/Run.jsonl", "index.dlprof.jsonl", ".jsonl", "odd name"]
    names = page_names([Path(each) for each in runs], "index.html")
    assert names == ["run.html", "Run-2.html", "index-2.html", "run-3.html", "odd name.html"]
    (column, *_) = _columns(index_report([("", *"234567")], ["a b#?.html"]))
    assert column.links == ["./a%20b%23%3F.html"]


def _columns(index: Document) -> tuple[Column, ...]:
    (table,) = index.answer
    assert isinstance(table, Table)
    return table.columns


def test_several_runs_are_a_table_on_the_screen(
    run_file: str, slower_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", run_file, slower_file], {}) == 0
    head, one, other = capsys.readouterr().out.splitlines()
    assert head.split()[:1] == ["run"]
    assert one.split()[0] == "run"
    assert "num_workers=8" in one
    assert other.split()[0] == "slower"


def test_a_table_of_trials_takes_one_run(
    run_file: str, slower_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", run_file, slower_file, "-o", "all.csv"], {}) == 2
    assert "A csv file holds one run, and 2 are given" in capsys.readouterr().err


def test_a_comparison_as_json(
    run_file: str, slower_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", run_file, slower_file, "--json", "--num-workers", "8"], {}) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert {"a", "b", "ratio", "parts", "findings", "verdict"} <= set(document)
    assert document["a"]["config"]["num_workers"] == 8
    assert document["findings"][0]["code"] == "cpu.affinity"


@pytest.mark.parametrize("value", ["3", "2,4", "x"])
def test_workers_that_were_not_measured_are_refused(
    run_file: str, slower_file: str, value: str
) -> None:
    assert run(["compare", run_file, slower_file, "--num-workers", value], {}) == 2


def test_neither_loads_anything_heavy(run_file: str, slower_file: str) -> None:
    program = (
        "import sys; from dlprof.cli.entry import run; "
        "run(sys.argv[1:], {}); "
        "print(*sorted({'torch', 'pydantic', 'PIL'} & set(sys.modules)), file=sys.stderr)"
    )
    for arguments in (["compare", run_file, slower_file], ["report", run_file], ["report", "-h"]):
        result = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert result.stderr.strip() == ""
