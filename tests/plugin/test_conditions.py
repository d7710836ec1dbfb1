"""pytest as CI runs it: a fresh process measures under the session's own conditions, all of them.

Each row is a session with fresh processes, so it has several of what people have. They take 3 to 7
s each: without EVERY in the environment one of them runs, at night all.
"""

from __future__ import annotations

import json
import os

import pytest

from tests import EVERY
from tests.plugin.projects import Project

TESTS = """
import json, os, random
import pytest

def test_before(gpuperf): gpuperf.measure(lambda: None)
def test_left_out(gpuperf): raise AssertionError("it was not asked for")

def note(config):
    plugins = sorted({d.project_name for _, d in config.pluginmanager.list_plugin_distinfo()})
    folders = str(config.rootpath), str(config.inipath), os.getcwd()
    session = plugins, folders, __name__, os.environ["PYTEST_ADDOPTS"].split()[:1]
    options = {name: repr(value) for name, value in vars(config.option).items()}
    with open(os.environ["DIARY"], "a") as diary:
        print(json.dumps([os.getpid(), repr(session), options, random.random()]), file=diary)
"""
STEP = """
@pytest.mark.xdist_group("device")
def test_slower(gpuperf, pytestconfig, tmp_path):
    note(pytestconfig)
    gpuperf.measure(lambda: None)
"""
COROUTINE = """
@pytest.mark.asyncio
async def test_slower(gpuperf, pytestconfig, tmp_path):
    note(pytestconfig)
    gpuperf.measure(lambda: None)
"""
SUBTEST = """
def test_slower(gpuperf, pytestconfig, tmp_path, subtests):
    with subtests.test("the step"):
        note(pytestconfig)
        gpuperf.measure(lambda: None)
"""
SLOWER = "test_steps.py::test_slower"
OWN = {
    *("basetemp", "override_ini", "xmlpath", "lfnf", "last_failed_no_failures", "cov_report"),
    *("numprocesses", "dist", "tx", "loadgroup", "gpuperf_gpuperf_run"),
    *("gpuperf_gpuperf_no_judge", "gpuperf_gpuperf_github"),
}
"""Options that a fresh process has of its own: where it writes, no workers, and what it is told."""
IN_ORDER = ("--randomly-seed=last", "--randomly-dont-reorganize")
LOOP = ("-o", "asyncio_default_fixture_loop_scope=function")
ROWS = {
    "load": (STEP, ("-n1", "--dist=load", "-p", "timeout", "--timeout=600")),
    "loadscope": (STEP, ("-n1", "--dist=loadscope", "-p", "pytest_cov", "--cov=.")),
    "loadfile": (STEP, ("-n1", "--dist=loadfile", "-p", "rerunfailures", "--reruns=1")),
    "loadgroup": (STEP, ("-n1", "--dist=loadgroup", "-p", "randomly", IN_ORDER[1])),
    "worksteal": (STEP, ("-n1", "--dist=worksteal", "--import-mode=importlib")),
    "each": (STEP, ("--tx=1*popen", "--dist=each", "-p", "no:cacheprovider")),
    "asyncio": (COROUTINE, ("-p", "asyncio", *LOOP, "-p", "randomly", *IN_ORDER)),
    "subtests": (SUBTEST, ("-c", "ci/other.ini", "--rootdir=.", "--confcutdir=.")),
}


ALWAYS = ("worksteal",)
AT_NIGHT = pytest.mark.skipif(not os.environ.get(EVERY), reason=f"at night, with {EVERY} set")


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=[AT_NIGHT] * (row not in ALWAYS)) for row in ROWS]
)
def test_a_fresh_process_has_the_sessions_own_conditions(
    row: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, arguments = ROWS[row]
    markers = "markers =\n    xdist_group(name): with whom\n    asyncio: a coroutine"
    project.ini(markers)
    (project.root / "ci").mkdir()
    settings = (project.root / "tox.ini").read_text(encoding="utf-8")
    (project.root / "ci" / "other.ini").write_text(settings, encoding="utf-8")
    diary = project.root / "diary"
    monkeypatch.setenv("DIARY", str(diary))
    cached = "no:cacheprovider" not in arguments
    monkeypatch.setenv("PYTEST_ADDOPTS", f"-ra {'--lf ' * cached}--junitxml=session.xml")
    selected = ("-k", "before or slower", "-x", "--basetemp=base")
    project.device()
    project.tests(TESTS + STEP)
    project.accept_processes(*[1.0] * 5, selected="before or slower")
    diary.unlink()
    project.tests(TESTS + step)
    project.device(factors={"slower": {"cycles": 1.1}})

    result = project.run_apart(*selected, *arguments)
    # xdist calls it an interruption where -x ends the session.
    assert result.ret in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
    run = project.saved()
    verdicts = [v for v in run.verdicts if (v.test, v.metric) == (SLOWER, "cycles")]
    assert [(v.outcome.value, v.processes) for v in verdicts] == [("regressed", 3)]
    assert len([m for m in run.measurements if m.test == SLOWER]) == 3

    executions = [json.loads(line) for line in diary.read_text(encoding="utf-8").splitlines()]
    (process, session, options, number), *fresh = executions
    fresh = [execution for execution in fresh if execution[0] != process]  # not what was rerun
    assert len({own for own, *_ in fresh}) == 2
    for _, its_session, its_options, its_number in fresh:
        assert its_session == session
        differing = {name for name in options if its_options.get(name) != options[name]}
        assert differing <= OWN
        assert "randomly" not in arguments or its_number == number
    junit = (project.root / "session.xml").read_text(encoding="utf-8")
    assert junit.count('name="test_before"') == 1
    assert "regressed" in junit
    assert (project.root / "base").is_dir()
