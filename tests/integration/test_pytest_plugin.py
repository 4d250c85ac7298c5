"""The pytest plugin in a project of its user; what would measure is replaced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from dlprof import api
from dlprof.errors import BaseNotMeasuredError, BaseTargetError, DlprofError, UsageError
from dlprof.integrations import pytest_plugin
from dlprof.records.gate import CheckReport, Compared, GateState, TargetCheck, Verdict

pytest_plugins = ("pytester",)

PLUGIN = (
    *("-p", "no:dlprof", "-p", "dlprof.integrations.pytest_plugin", "-p", "no:cacheprovider"),
    # Of modules that these tests have imported before pytest in the same process begins.
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)
LOADING = """
    import pytest

    def make_loader():
        raise AssertionError("loaded in the process of the tests")

    def test_loading(dlprof_check):
        dlprof_check(make_loader, fail_above=0.05)

    @pytest.mark.dlprof
    def test_marked():
        pass

    def test_other():
        pass
"""


def report(target: str, state: GateState) -> CheckReport:
    verdict = Verdict(state=state, explanation="Service time: as asked.")
    return CheckReport(
        state=state,
        explanation=verdict.explanation,
        targets=(TargetCheck(target=target, verdict=verdict),),
        base=Compared(name="main"),
        change=Compared(name="working tree"),
    )


class Project:
    """A project with one check in it, and what it asked."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.state: GateState = "pass"
        self.asked: list[dict[str, object]] = []
        self.pytester = pytester
        pytester.makepyfile(test_loading=LOADING)

    def check(self, target: str, **given: object) -> CheckReport:
        self.asked.append({"target": target, **given})
        return report(target, self.state)

    def run(self, *arguments: str) -> pytest.RunResult:
        return self.pytester.runpytest_inprocess(*PLUGIN, *arguments)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project(pytester)
    monkeypatch.setattr(api, "check", made.check)
    return made


def test_without_arguments_checks_are_skipped_with_the_reason(project: Project) -> None:
    result = project.run("-rs")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*nothing to compare with: give --dlprof-against*"])


def test_what_is_marked_is_skipped_when_asked(project: Project) -> None:
    project.run("--dlprof-skip", "--dlprof-against", "main").assert_outcomes(passed=1, skipped=2)


def test_a_variable_says_it_too(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLPROF_SKIP", "1")
    project.run().assert_outcomes(passed=1, skipped=2)


def test_the_fixture_names_the_file_and_passes_on_what_is_given(project: Project) -> None:
    project.run("--dlprof-against", "main", "--dlprof-budget", "5s").assert_outcomes(passed=3)
    (given,) = project.asked
    assert given["target"] == "test_loading.py:make_loader"
    assert (given["against"], given["budget"], given["fail_above"]) == ("main", "5s", 0.05)


@pytest.mark.parametrize(
    ("state", "options", "outcomes"),
    [
        ("fail", (), {"failed": 1}),
        ("fail", ("--dlprof-regression", "warn"), {"passed": 1, "warnings": 1}),
        ("inconclusive", (), {"skipped": 1}),
        ("inconclusive", ("--dlprof-inconclusive", "fail"), {"failed": 1}),
        ("no_baseline", (), {"skipped": 1}),
    ],
)
def test_the_verdict_is_the_outcome(
    project: Project,
    state: GateState,
    options: tuple[str, ...],
    outcomes: dict[str, int],
) -> None:
    project.state = state
    result = project.run("--dlprof-against", "main", "test_loading.py::test_loading", *options)
    result.assert_outcomes(**outcomes)


def test_a_baseline_only_warns(project: Project) -> None:
    project.state = "fail"
    result = project.run("--dlprof-baseline", "loading.jsonl")
    result.assert_outcomes(passed=3, warnings=1)
    assert project.asked[0]["baseline"] == project.pytester.path / "loading.jsonl"


def test_two_bases_are_one_too_many(project: Project) -> None:
    result = project.run("--dlprof-baseline", "a", "--dlprof-against", "b")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_the_document_of_a_check_is_kept(project: Project) -> None:
    project.run("--dlprof-against", "main", "--dlprof-save", "checks").assert_outcomes(passed=3)
    (path,) = (project.pytester.path / "checks").iterdir()
    assert json.loads(path.read_text())["state"] == "pass"


def test_each_test_has_a_document_of_its_own(project: Project) -> None:
    """Also where their names differ in signs alone, or far from their ends."""
    project.pytester.makepyfile(
        test_loading="""
        import pytest

        def make_loader():
            pass

        @pytest.mark.parametrize("size", ["8/x", "8 x", "8:x", "a" + 200 * "x", "b" + 200 * "x"])
        def test_sizes(dlprof_check, size):
            dlprof_check(make_loader)
            dlprof_check(make_loader)
    """
    )
    project.run("--dlprof-against", "main", "--dlprof-save", "kept").assert_outcomes(passed=5)
    assert len(list((project.pytester.path / "kept").iterdir())) == 10


def test_a_folder_to_take_turns_in_is_there_when_a_process_is_to_start(project: Project) -> None:
    """Not by what xdist has registered: it does so only once this plugin is configured."""
    config = project.pytester.parseconfigure(*PLUGIN, "--dlprof-against", "main")
    turns = config.pluginmanager.getplugin("dlprof-turns")
    assert turns is not None
    node = types.SimpleNamespace(workerinput={})
    turns.pytest_configure_node(node)
    folder = Path(node.workerinput["dlprof_turns"])
    assert folder.is_dir()
    turns.pytest_unconfigure()
    assert not folder.exists()


def test_where_turns_can_not_be_taken_that_is_said(project: Project) -> None:
    """A process of pytest-xdist on another machine doesn't see the folder."""
    config = project.pytester.parseconfig(*PLUGIN, "--dlprof-against", "main")
    config.workerinput = {"dlprof_turns": str(project.pytester.path / "nowhere")}  # type: ignore[attr-defined] # of xdist
    said = project.pytester.make_hook_recorder(config.pluginmanager)
    pytest_plugin.pytest_configure(config)
    (warning,) = said.getcalls("pytest_warning_recorded")
    assert "on another machine" in str(warning.warning_message.message)
    assert not config.pluginmanager.hasplugin("dlprof-turns")


def test_paths_are_those_of_the_command_wherever_a_test_goes(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.pytester.makepyfile(
        test_loading="""
        import os

        def make_loader():
            pass

        def test_elsewhere(dlprof_check, tmp_path):
            os.chdir(tmp_path)
            dlprof_check(make_loader)
    """
    )
    here = project.pytester.path
    project.run("--dlprof-baseline", "history.jsonl", "--dlprof-save", "kept")
    monkeypatch.chdir(here)
    assert project.asked[0]["baseline"] == here / "history.jsonl"
    assert len(list((here / "kept").iterdir())) == 1


def test_documents_that_can_not_be_kept_change_no_verdict(project: Project) -> None:
    (project.pytester.path / "file").write_text("")
    options = ("--dlprof-against", "main", "--dlprof-save")
    assert project.run(*options, "file").ret == pytest.ExitCode.USAGE_ERROR
    assert not project.asked
    project.state = "fail"
    result = project.run(*options, "file/below")
    result.assert_outcomes(failed=1, passed=2, warnings=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("against='HEAD'", "takes no against"),
        ("arguments=['a=1']", "is not a dict of names and values"),
    ],
)
def test_what_a_check_does_not_take_is_said(project: Project, given: str, message: str) -> None:
    project.pytester.makepyfile(
        test_loading=f"""
        def make_loader():
            pass

        def test_it(dlprof_check):
            dlprof_check(make_loader, {given})
    """
    )
    result = project.run("--dlprof-against", "main")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{message}*"])
    assert not project.asked


def test_a_check_that_can_not_be_made_fails_in_words(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_target: str, **_given: object) -> CheckReport:
        raise UsageError("There is no such git ref", hint="Fetch it first.")

    monkeypatch.setattr(api, "check", refuse)
    result = project.run("--dlprof-against", "nowhere")
    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(["dlprof: There is no such git ref", "Fetch it first."])
    result.stdout.no_fnmatch_line("*another exception occurred*")


@pytest.mark.parametrize("kind", [BaseTargetError, BaseNotMeasuredError])
def test_a_base_that_can_not_be_loaded_from_skips(
    project: Project, monkeypatch: pytest.MonkeyPatch, kind: type[DlprofError]
) -> None:
    def refuse(_target: str, **_given: object) -> CheckReport:
        raise kind("The base (main): there is no file 'test_loading.py'")

    monkeypatch.setattr(api, "check", refuse)
    result = project.run("--dlprof-against", "main", "-rs")
    result.assert_outcomes(skipped=1, passed=2)
    result.stdout.fnmatch_lines(["SKIPPED*test_loading.py:*The base (main): there is no file*"])


def test_a_check_that_can_not_say_is_skipped_at_the_line_of_the_test(project: Project) -> None:
    project.state = "inconclusive"
    result = project.run("--dlprof-against", "main", "-rs")
    result.assert_outcomes(skipped=1, passed=2)
    result.stdout.fnmatch_lines(["SKIPPED*test_loading.py:*as asked*"])


def test_a_check_that_is_asked_for_late_needs_a_base_too(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "check", None)
    project.pytester.makepyfile(
        test_late="""
        def test_late(request):
            request.getfixturevalue("dlprof_check")("data.py:make")
        """
    )
    result = project.run("test_late.py", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*nothing to compare with*"])
    project.run("--dlprof-against", "main", "--dlprof-skip", "test_late.py").assert_outcomes(
        skipped=1
    )


def test_a_function_without_a_name_in_the_code_is_refused(project: Project) -> None:
    project.pytester.makepyfile(
        test_local="""
        def test_local(dlprof_check):
            dlprof_check(lambda: None)
        """
    )
    result = project.run("--dlprof-against", "main", "test_local.py")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*can't find*by a name*"])


@pytest.mark.slow
def test_checks_take_turns_with_tests_of_other_processes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(test_loading=LOADING)
    pytester.makeconftest(f"""
        import os
        import dlprof.api
        from {__name__} import report
        dlprof.api.check = lambda target, **given: report(target, "pass")

        def pytest_runtest_setup(item):
            assert os.path.exists(item.config.workerinput["dlprof_turns"] + "/room")
    """)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    monkeypatch.setenv("TMPDIR", str(pytester.path))
    result = pytester.runpytest_subprocess(*PLUGIN, "--dlprof-against", "main", "-n", "1")
    result.assert_outcomes(passed=3)
    assert not list(pytester.path.glob("dlprof-turns-*"))


def test_importing_it_costs_nothing(tmp_path: Path) -> None:
    program = (
        "import pytest, sys; before = set(sys.modules); import dlprof.integrations.pytest_plugin;"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    loaded = done.stdout.split()
    assert [name for name in loaded if name.split(".")[0] == "dlprof"] == [
        "dlprof",
        "dlprof.integrations",
        "dlprof.integrations.pytest_plugin",
        "dlprof.late",
        "dlprof.version",
    ]
    assert not {"torch", "rich", "psutil"} & set(loaded)
