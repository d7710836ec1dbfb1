"""Workers of pytest-xdist on a host with several GPUs, all of them scripted."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest

from pytest_gpuperf.measure.device import allotment
from pytest_gpuperf.measure.instrument import STAND_IN
from pytest_gpuperf.plugin import hooks, workers
from tests.plugin.projects import STEP, Project
from tests.plugin.several_gpus import has_gpus, on_three_gpus

xdist = pytest.importorskip("xdist.workermanage")


@pytest.fixture
def host(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project on a host with three GPUs, one of another kind."""
    return on_three_gpus(project, monkeypatch)


TESTS = """
import json, os, sys
from contextlib import contextmanager
import pytest
import conftest

@contextmanager
def alone(gpus):
    # Whoever else has one of these GPUs meanwhile finds that it is taken.
    for uuid in gpus:
        os.close(os.open(uuid, os.O_CREAT | os.O_EXCL))
    yield
    for uuid in gpus:
        os.unlink(uuid)

def use(gpuperf, name):
    with alone(gpuperf.gpus):
        gpuperf.measure(lambda: None)
    said = conftest.VISIBLE, gpuperf.gpus, conftest.THREADS, sorted(os.sched_getaffinity(0))
    with open("diary", "a") as diary:
        print(json.dumps([name, os.environ["PYTEST_XDIST_WORKER"], *said]), file=diary)

@pytest.mark.gpu
@pytest.mark.parametrize("number", range(4))
def test_of_others(number):
    with alone([conftest.VISIBLE]):
        os.sched_yield()

@pytest.mark.parametrize("number", range(6))
def test_one(gpuperf, number): use(gpuperf, "one")

@pytest.mark.gpus(2)
@pytest.mark.parametrize("number", range(2))
def test_two(gpuperf, number): use(gpuperf, "two")

@pytest.mark.gpus(3)
def test_three(gpuperf): raise AssertionError("ran")

def test_last_words(gpuperf):
    gpuperf.measure(lambda: None)
    os._exit(3)
"""


def test_workers_have_gpus_of_their_own_share_them_and_are_replaced(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three on two GPUs, one of which dies while it holds its own."""
    has_gpus(project)
    project.tests(TESTS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0,7,1")
    for variable in ("OMP_NUM_THREADS", STAND_IN):
        monkeypatch.delenv(variable, raising=False)
    result = project.run_apart("-n3", "-rs", "--gpuperf-missing=warn", "--gpuperf-processes=1")
    # The dead worker's test alone is lost.
    result.assert_outcomes(passed=12, failed=1, skipped=1)
    result.stdout.fnmatch_lines_random(
        [
            "*worker 'gw?' crashed while running 'test_steps.py::test_last_words'",
            "SKIPPED*: needs 3 GPUs of one kind; 2 here for the test to have",
        ]
    )
    diary = [json.loads(line) for line in (project.root / "diary").read_text("utf-8").splitlines()]
    assert len(diary) == 8
    visible = {worker: own for _, worker, own, *_ in diary}
    names = {"gw0": "GPU-c", "gw1": "GPU-a", "gw2": "GPU-c"}
    assert visible.items() <= {**names, "gw3": visible.get("gw3")}.items()
    assert visible.get("gw3") in (None, "GPU-c", "GPU-a")
    for name, _, own, gpus, threads, cpus in diary:
        other = "GPU-a" if own == "GPU-c" else "GPU-c"
        assert gpus == ([own, other] if name == "two" else [own])
        assert threads is None or int(threads) <= len(cpus)
    # The controller alone writes, and of each test once. Nobody was a stranger.
    measured = project.saved().measurements
    assert len(measured) == len({measurement.test for measurement in measured}) == 8
    for measurement in measured:
        conditions = measurement.fingerprint.conditions
        assert conditions is not None
        assert conditions.before.other_processes == conditions.after.other_processes == ()


DYING = """
from time import sleep

def others_begin(worker):
    # One that takes the place of another follows when that has been seen to be dead.
    while not os.path.exists(worker):
        sleep(0.01)

ME = os.environ.get("PYTEST_XDIST_WORKER", "controller")
Path(ME).touch()
"""
"""Below `HOST`: workers that die, and wait for each other's end."""


@pytest.mark.parametrize(
    ("count", "conftest", "step", "failed"),
    [
        # The one in its place is sent two tests, as it begins one when it knows of the next.
        (1, "", "ME == 'gw0'", 1),
        # Both; the first one in their place collects while the second dies.
        (2, "ME == 'gw2' and others_begin('gw3')", "ME in ('gw0', 'gw1')", 2),
        # With all its tests collected, before the other has.
        (
            2,
            """
def pytest_collection_finish():
    if ME == "gw0":
        os._exit(3)
def pytest_collection():
    if ME == "gw1":
        others_begin("gw2")
""",
            "False",
            0,
        ),
    ],
)
def test_whoever_dies_and_whenever_all_other_tests_run(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    conftest: str,
    step: str,
    failed: int,
) -> None:
    has_gpus(project, DYING + conftest)
    project.tests(
        f"""
        import os
        import pytest
        from conftest import ME

        @pytest.mark.parametrize("number", range(6))
        def test_one(gpuperf, number):
            if {step}:
                os._exit(3)
            gpuperf.measure(lambda: None)
        """
    )
    monkeypatch.delenv(STAND_IN, raising=False)
    flags = (f"-n{count}", "--gpuperf-missing=warn", "--gpuperf-processes=1")
    result = project.pytester.runpytest_subprocess(*flags, timeout=60)
    result.assert_outcomes(passed=6 - failed, failed=failed)


def started(project: Project, *arguments: str) -> list[dict[str, str]]:
    """What is added to the environment of each worker."""
    config = project.pytester.parseconfigure(*arguments)
    specs = [xdist.execnet.XSpec(spec) for spec in config.getvalue("tx")]
    workers.deal(config, specs)
    return [dict(spec.env) for spec in specs]


def counted(project: Project, *arguments: str) -> int | None:
    """How many workers we would have `-n auto` start."""
    return workers.count(project.pytester.parseconfig("-nauto", *arguments))


def test_auto_is_a_worker_per_gpu_that_fits_where_something_is_measured(host: Project) -> None:
    host.tests(STEP)
    assert counted(host) == 2
    assert counted(host, "--gpu-arch=sm90") == 1
    assert counted(host, "test_steps.py::test_step") == 2
    for elsewhere in ("--gpu-arch=cpu", "--gpuperf-collector=cpu", "--gpu-arch=sm70", "--co"):
        assert counted(host, elsewhere) is None, elsewhere


def test_workers_of_one_revision_of_two_share_the_gpu_that_is_held_for_both(
    host: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.tests(STEP)
    monkeypatch.setenv(STAND_IN, str(host.root))
    assert counted(host) == 1
    dealt = started(host, "--tx=popen", "--tx=popen")
    assert [own["CUDA_VISIBLE_DEVICES"] for own in dealt] == ["GPU-a", "GPU-a"]


def test_who_says_how_many_workers_there_are_is_believed(
    host: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.tests(STEP)
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "5")
    assert counted(host) is None
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS")
    host.pytester.makeconftest("def pytest_xdist_auto_num_workers(config): return 7")
    assert counted(host) is None


def test_without_a_driver_no_file_is_read(host: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    host.tests(STEP)
    monkeypatch.setattr(workers, "_DRIVERS", ())
    monkeypatch.setattr(workers, "_files", None)
    assert counted(host) is None


def test_who_does_not_use_us_keeps_all_gpus(host: Project) -> None:
    host.tests("def test_plain(): pass")
    assert counted(host) is None
    assert started(host, "--tx=popen", "--tx=popen") == [{}, {}]
    # A flag, a setting or a conftest file of ours says that it does.
    assert counted(host, "--gpu-arch=auto") == 2
    host.ini("gpuperf_rounds = 3")
    assert counted(host) == 2
    host.ini()
    host.pytester.makeconftest("# gpuperf is used by a fixture here")
    assert counted(host) == 2


def test_tests_are_looked_for_where_pytest_finds_them(
    host: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below links, those in a circle too, and in a package by its name."""
    package = host.root / "elsewhere" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "test_it.py").write_text("def test_it(gpuperf): pass", encoding="utf-8")
    inside = host.root / "inside"
    inside.mkdir()
    assert counted(host, "inside") is None
    (inside / "circle").symlink_to(inside)
    (inside / "linked").symlink_to(package)
    assert counted(host, "inside") == 2
    assert counted(host, "--pyargs", "package") is None
    monkeypatch.syspath_prepend(package.parent)
    for name in ("package", "package.test_it", "package.test_it::test_it"):
        assert counted(host, "--pyargs", name) == 2, name
    assert "package" not in sys.modules
    for name in ("no.such", "__main__", "sys"):
        assert counted(host, "--pyargs", name) is None, name


def test_a_worker_runs_on_its_own_processors_from_the_start() -> None:
    """And where it may not, on those that it has."""
    allowed = sorted(os.sched_getaffinity(0))
    group = xdist.execnet.Group(execmodel="main_thread_only")
    for cpus, has in ((allowed[-1:], allowed[-1:]), ((4095,), allowed)):
        own = allotment.Allotment(("GPU-a",), "", os.getpid(), cpus=tuple(cpus), threads=1)
        gateway = group.makegateway("popen")
        gateway.spec.env[allotment.VARIABLE] = own.to_text()
        workers.bind(SimpleNamespace(gateway=gateway))
        asked = gateway.remote_exec("import os; channel.send(sorted(os.sched_getaffinity(0)))")
        assert asked.receive() == has
    group.terminate(1)


def test_threads_are_as_many_as_cores_unless_somebody_has_said_how_many(
    host: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.tests(STEP)
    cores = [frozenset({number}) for number in range(6)]
    monkeypatch.setattr(allotment, "own_cores", lambda: cores)
    two = ("--tx=popen", "--tx=popen//env:OMP_NUM_THREADS=1")
    assert [own["OMP_NUM_THREADS"] for own in started(host, *two)] == ["3", "1"]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert not any("OMP_NUM_THREADS" in own for own in started(host, "--tx=popen", "--tx=popen"))


def test_a_worker_that_somebody_has_placed_stays_there(host: Project) -> None:
    host.tests(STEP)
    mine = "--tx=popen//env:CUDA_VISIBLE_DEVICES=1"
    placed, ours = started(host, mine, "--tx=popen")
    assert placed == {"CUDA_VISIBLE_DEVICES": "1"}
    assert ours["CUDA_VISIBLE_DEVICES"] == "GPU-a"


def test_a_number_of_gpus_is_a_whole_one(host: Project) -> None:
    for marker in ("gpus", "gpus(0)", "gpus(1, 2)", "gpus('2')", "gpus(n=2)"):
        host.tests(f"import pytest\n@pytest.mark.{marker}\ndef test_step(gpuperf): pass")
        result = host.run("--gpu-arch=cpu")
        assert result.ret == pytest.ExitCode.USAGE_ERROR, marker
        result.stderr.fnmatch_lines(["ERROR: test_steps.py::test_step: *gpus*"])


def test_without_workers_a_test_has_the_first_gpus_that_its_process_sees(host: Project) -> None:
    host.device()
    host.tests(
        """
        import pytest

        @pytest.mark.gpus(2)
        def test_two(gpuperf): assert gpuperf.gpus == ("GPU-a", "GPU-b")
        def test_one(gpuperf): assert gpuperf.gpus == ("GPU-a",)

        @pytest.mark.gpus(3)
        def test_three(gpuperf): raise AssertionError("ran")
        """
    )
    host.run().assert_outcomes(passed=2, skipped=1)


def test_a_fresh_process_has_what_the_test_holds_that_started_it(
    host: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It holds nothing itself: its session does."""
    told = allotment.Allotment(("GPU-b", "GPU-a"), str(tmp_path), os.getppid())
    monkeypatch.setenv(allotment.VARIABLE, told.passed_on(["GPU-b", "GPU-a"]).to_text())
    host.device()
    host.tests(
        """
        import os, pytest

        @pytest.mark.gpus(2)
        def test_two(gpuperf):
            assert gpuperf.gpus == ("GPU-b", "GPU-a")
            assert "GPUPERF_ALLOTMENT" not in os.environ
        """
    )
    host.run().assert_outcomes(passed=1)


def test_where_all_workers_die_with_their_tests_collected_nothing_is_green(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = "def pytest_collection_finish(): 'PYTEST_XDIST_WORKER' in os.environ and os._exit(3)\n"
    has_gpus(project, dying)
    project.tests(STEP)
    monkeypatch.delenv(STAND_IN, raising=False)
    result = project.run_apart("-n2", "--max-worker-restart=0")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["gpuperf: the workers died before any test ran"])


def test_where_nobody_can_be_told_tests_say_so(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that is full."""
    full = """
from pytest_gpuperf.errors import UsageFailure

def tell(folder, *_):
    raise UsageFailure(f"{folder}: cannot be written: No space left on device")

workers.tell = tell
"""
    has_gpus(project, full)
    project.tests(f"{dedent(STEP)}\ndef test_other(): pass\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.delenv(STAND_IN, raising=False)
    result = project.run_apart("-n2", "--gpuperf-processes=1")
    result.assert_outcomes(passed=1, errors=1)
    # No line of the test has run: it stands where the test does.
    result.stdout.fnmatch_lines(["*No space left on device*", "test_steps.py:1: Failed"])


def test_by_the_group_tests_have_a_gpu_and_the_names_that_baselines_know(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_gpus(project)
    project.tests(
        """
        import os
        import pytest

        @pytest.mark.xdist_group("together")
        @pytest.mark.parametrize("number", range(4))
        def test_one(gpuperf, number):
            gpuperf.measure(lambda: None)
            with open("diary", "a") as diary:
                print(os.environ["PYTEST_XDIST_WORKER"], file=diary)
        """
    )
    monkeypatch.delenv(STAND_IN, raising=False)
    flags = ("--gpuperf-missing=warn", "--gpuperf-processes=1")
    project.run_apart("-n2", "--dist=loadgroup", *flags).assert_outcomes(passed=4)
    assert len({*(project.root / "diary").read_text("utf-8").splitlines()}) == 1
    tests = {measurement.test for measurement in project.saved().measurements}
    assert tests == {f"test_steps.py::test_one[{number}]" for number in range(4)}


@pytest.mark.parametrize(("dist", "refused"), [("load", True), ("loadgroup", False)])
def test_groups_of_others_stay_together(
    project: Project, monkeypatch: pytest.MonkeyPatch, dist: str, *, refused: bool
) -> None:
    """They may have one database: whether or not ours are among them, or are refused."""
    has_gpus(project)
    marker = "@pytest.mark.gpuperf(metrics='none')" if refused else ""
    project.tests(
        f"""
        import os
        import pytest

        @pytest.mark.xdist_group("database")
        class TestDatabase:
            @pytest.mark.parametrize("number", range(6))
            def test_one(self, number):
                with open("diary", "a") as diary:
                    print(os.environ["PYTEST_XDIST_WORKER"], file=diary)

        {marker}
        def test_ours(): pass
        """
    )
    monkeypatch.delenv(STAND_IN, raising=False)
    result = project.run_apart("-n2", f"--dist={dist}")
    result.assert_outcomes(passed=6 + (not refused), errors=int(refused))
    assert len({*(project.root / "diary").read_text("utf-8").splitlines()}) == 1


def test_a_worker_that_somebody_has_placed_has_the_order_of_the_others(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_gpus(project)
    project.tests(
        """
        import pytest

        @pytest.mark.parametrize("number", range(3))
        def test_one(gpuperf, number): gpuperf.measure(lambda: None)

        @pytest.mark.gpus(2)
        def test_two(gpuperf): gpuperf.measure(lambda: None)
        """
    )
    monkeypatch.delenv(STAND_IN, raising=False)
    placed = ("--tx=popen//env:CUDA_VISIBLE_DEVICES=2", "--tx=2*popen", "--dist=load")
    flags = ("--gpuperf-missing=warn", "--gpuperf-processes=1")
    result = project.run_apart(*placed, *flags)
    assert "Different tests were collected" not in result.stdout.str()
    assert result.parseoutcomes().get("passed", 0) >= 3


@pytest.mark.parametrize(
    ("marks", "count"),
    [
        ("", 2),
        ("@pytest.mark.skip", 0),
        ("@pytest.mark.skipif(True, reason='r')", 0),
        ("@pytest.mark.skipif(condition=True, reason='r')", 0),
        ("@pytest.mark.skipif(False, reason='r')", 2),
        ("@pytest.mark.skipif('True')", 2),  # pytest evaluates it
    ],
)
def test_what_is_skipped_waits_for_no_gpu(host: Project, marks: str, count: int) -> None:
    (item,) = host.pytester.getitems(
        f"import pytest\n@pytest.mark.gpus(2)\n{marks}\ndef test_two(gpuperf): pass\n"
    )
    assert hooks._gpus(item) == count


def test_the_baselines_say_on_which_gpu_a_test_runs(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the workers have them the other way round."""
    measured_is_what_is_visible = """
from pytest_gpuperf.measure.device import nvml
from tests.plugin.scripted import ScriptedCollector

ScriptedCollector.device = lambda self: nvml.visible_gpus()[0].device
"""
    has_gpus(project, measured_is_what_is_visible)
    project.tests(
        """
        def test_one(gpuperf): use(gpuperf, "one")
        def test_two(gpuperf): use(gpuperf, "two")

        def use(gpuperf, name):
            gpuperf.measure(lambda: None)
            with open("diary", "a") as diary:
                print(name, *gpuperf.gpus, file=diary)
        """
    )
    monkeypatch.delenv(STAND_IN, raising=False)
    for visible in ("0,1", "1,0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        flags = ("--gpuperf-missing=warn", "--gpuperf-processes=1", "--gpuperf-run=run.json")
        project.run_apart("-n2", *flags).assert_outcomes(passed=2)
        project.update("run.json")
    lines = (project.root / "diary").read_text("utf-8").splitlines()
    # Which worker is the first is chance.
    before, after = (dict(line.split() for line in those) for those in (lines[:2], lines[2:]))
    assert {*before.values()} == {"GPU-a", "GPU-b"}
    assert after == before


def test_the_controller_is_told_how_long_steps_take_by_their_baselines(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a test measures; what needs several GPUs is longer than anything."""
    heard = """
_tell = workers.tell

def tell(folder, *of):
    _tell(folder, *of)
    Path("told.json").write_bytes((folder / workers._TOLD).read_bytes())

workers.tell = tell
"""
    has_gpus(project, heard)
    project.tests(
        """
        import pytest

        def test_one(gpuperf): gpuperf.measure(lambda: None)
        def test_two(gpuperf):
            gpuperf.measure(lambda: None)
            gpuperf.measure(lambda: None, name="again")

        @pytest.mark.gpus(2)
        def test_several(gpuperf): gpuperf.measure(lambda: None)
        """
    )
    monkeypatch.delenv(STAND_IN, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    flags = ("--gpuperf-missing=warn", "--gpuperf-processes=1", "--gpuperf-run=run.json")
    several = {"test_steps.py::test_several": math.inf}
    known = {"test_steps.py::test_one": 286.1, "test_steps.py::test_two": 2 * 286.1}
    for lengths_ms in (several, known | several):
        project.run_apart("-n1", *flags).assert_outcomes(passed=3)
        assert json.loads((project.root / "told.json").read_bytes())["lengths_ms"] == lengths_ms
        project.update("run.json")
