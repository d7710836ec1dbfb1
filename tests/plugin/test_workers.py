"""Workers of pytest-xdist on a host with several GPUs, all of them scripted."""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf.measure.instrument import STAND_IN
from pytest_gpuperf.plugin import workers
from tests.plugin.projects import BASELINE, STEP, Project
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
    said = conftest.VISIBLE, gpuperf.gpus
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
    monkeypatch.delenv(STAND_IN, raising=False)
    result = project.run_apart("-n3", "-rs", "--gpuperf-missing=warn", "--gpuperf-processes=1")
    # The dead worker's test alone is lost.
    result.assert_outcomes(passed=12, failed=1, skipped=1)
    result.stdout.fnmatch_lines_random(
        [
            "*worker 'gw?' crashed while running 'test_steps.py::test_last_words'",
            "SKIPPED*: needs 3 GPUs of one kind, but only 2 are available",
        ]
    )
    diary = [json.loads(line) for line in (project.root / "diary").read_text("utf-8").splitlines()]
    assert len(diary) == 8
    visible = {worker: own for _, worker, own, _ in diary}
    names = {"gw0": "GPU-c", "gw1": "GPU-a", "gw2": "GPU-c"}
    assert visible.items() <= {**names, "gw3": visible.get("gw3")}.items()
    assert visible.get("gw3") in (None, "GPU-c", "GPU-a")
    for name, _, own, gpus in diary:
        other = "GPU-a" if own == "GPU-c" else "GPU-c"
        assert gpus == ([own, other] if name == "two" else [own])
    # The controller alone writes, and of each test once. Nobody was a stranger.
    measured = project.saved().measurements
    assert len(measured) == len({measurement.test for measurement in measured}) == 8
    for measurement in measured:
        conditions = measurement.fingerprint.conditions
        assert conditions is not None
        assert conditions.before.other_processes == conditions.after.other_processes == ()


@pytest.mark.parametrize(
    ("step", "failed"),
    [
        # The first one in their place collects while the second dies.
        ("ME in ('gw0', 'gw1')", 2),
        # With all its tests collected, before the other has.
        ("False", 0),
    ],
)
def test_a_worker_that_dies_loses_one_test(
    project: Project, monkeypatch: pytest.MonkeyPatch, step: str, failed: int
) -> None:
    has_gpus(
        project,
        f"""
        from time import sleep

        ME = os.environ.get("PYTEST_XDIST_WORKER", "controller")
        Path(ME).touch()

        def others_begin(worker):
            # One that takes the place of another follows when that has been seen to be dead.
            while not os.path.exists(worker):
                sleep(0.01)

        if ME == "gw2" and {failed}:
            others_begin("gw3")

        def pytest_collection():
            if ME == "gw1" and not {failed}:
                others_begin("gw2")

        def pytest_collection_finish():
            if ME == "gw0" and not {failed}:
                os._exit(3)
        """,
    )
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
    flags = ("-n2", "--gpuperf-missing=warn", "--gpuperf-processes=1")
    result = project.pytester.runpytest_subprocess(*flags, timeout=60)
    result.assert_outcomes(passed=6 - failed, failed=failed)


def test_tests_of_a_group_meet_and_have_the_names_that_baselines_know(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim about two measurements is judged where both were made."""
    has_gpus(project)
    project.tests(
        """
        import os
        import pytest

        together = pytest.mark.xdist_group("claims: a")

        @together
        @pytest.mark.optimization("one")
        def test_one(gpuperf):
            gpuperf.measure(lambda: None)
            assert "@" not in os.environ["PYTEST_CURRENT_TEST"]

        @pytest.mark.parametrize("number", range(4))
        def test_alone(gpuperf, number): gpuperf.measure(lambda: None)

        @together
        @pytest.mark.optimization("other")
        def test_other(gpuperf): gpuperf.measure(lambda: None)

        @together
        def test_claim(gpuperf): gpuperf.expect_ratio("cycles", "one", "other", above=0.5)
        """
    )
    monkeypatch.delenv(STAND_IN, raising=False)
    flags = ("-n2", "--dist=loadgroup", "--gpuperf-missing=warn", "--gpuperf-processes=1")
    project.run_apart(*flags).assert_outcomes(passed=7)
    alone = [f"alone[{number}]" for number in range(4)]
    assert [measurement.test for measurement in project.saved().measurements] == [
        f"test_steps.py::test_{name}" for name in ("one", *alone, "other")
    ]


def dealt(gpus: int, count: int, folder: Path) -> list[workers.GpuAssignment]:
    """What so many workers have on a host with so many GPUs."""
    return workers.assignments([f"GPU-{number}" for number in range(gpus)], count, folder)


def test_each_worker_has_the_next_gpu_and_after_the_last_they_share(tmp_path: Path) -> None:
    four = dealt(4, 4, tmp_path)
    assert [own.gpus[0] for own in four] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert four[2].gpus == ("GPU-2", "GPU-0", "GPU-1", "GPU-3")
    assert {own.controller for own in four} == {os.getpid()}
    # A test of several has those of no worker first.
    assert dealt(4, 2, tmp_path)[1].gpus == ("GPU-1", "GPU-2", "GPU-3", "GPU-0")
    five = dealt(2, 5, tmp_path)
    assert [(own.gpus[0], own.beside) for own in five] == [
        *[("GPU-0", 2), ("GPU-1", 1), ("GPU-0", 2), ("GPU-1", 1), ("GPU-0", 2)]
    ]


def test_workers_with_tests_of_several_gpus_wait_for_each_other_in_one_order(
    tmp_path: Path,
) -> None:
    """Each of two wants both: the second waits while the first is begun, and both end."""
    one, two = dealt(2, 2, tmp_path)
    order: list[str] = []

    def several() -> None:
        with two.holding(2) as gpus:
            order.append(str(gpus))

    thread = threading.Thread(target=several)
    with one.holding(2) as gpus:
        assert gpus == ("GPU-0", "GPU-1")
        thread.start()
        order.append("first")
    thread.join()
    assert order == ["first", "('GPU-1', 'GPU-0')"]


def test_what_a_test_holds_its_processes_have(tmp_path: Path) -> None:
    (own,) = dealt(3, 1, tmp_path)
    with own.holding(2) as gpus, replace(own, gpus=gpus, held=True).holding(2) as passed_on:
        assert passed_on == gpus


def started(project: Project, *arguments: str) -> list[dict[str, str]]:
    """What is added to the environment of each worker."""
    config = project.pytester.parseconfigure(*arguments)
    specs = [xdist.execnet.XSpec(spec) for spec in config.getvalue("tx")]
    workers.pytest_xdist_setupnodes(config, specs)
    return [dict(spec.env) for spec in specs]


def counted(project: Project, *arguments: str) -> int | None:
    """How many workers we would have `-n auto` start."""
    return workers.pytest_xdist_auto_num_workers(project.pytester.parseconfig("-nauto", *arguments))


def test_auto_is_a_worker_per_gpu_that_fits_where_something_is_measured(
    host: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.ini("gpuperf_missing = warn")
    assert counted(host) == 2
    assert counted(host, "--gpu-arch=sm90") == 1
    for elsewhere in ("--gpu-arch=cpu", "--gpuperf-collector=cpu", "--gpu-arch=sm70", "--co"):
        assert counted(host, elsewhere) is None, elsewhere
    # Whoever says how many there are is believed.
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "5")
    assert counted(host) is None
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS")
    host.pytester.makeconftest("def pytest_xdist_auto_num_workers(config): return 7")
    assert counted(host) is None
    # Nor is there any without a driver.
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert started(host, "--tx=popen") == [{}]


def test_who_does_not_use_us_keeps_all_gpus(host: Project) -> None:
    assert counted(host) is None
    assert started(host, "--tx=popen", "--tx=popen") == [{}, {}]
    # A flag, a setting or a baseline of ours says that it does.
    assert counted(host, "--gpu-arch=auto") == 2
    (host.root / BASELINE).mkdir(parents=True)
    assert counted(host) is None
    (host.root / BASELINE / "test_steps.yaml").touch()
    assert counted(host) == 2


def test_a_worker_that_somebody_has_placed_stays_there_and_those_of_a_revision_share_one(
    host: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two revisions that are compared: one GPU is held for both."""
    host.ini("gpuperf_rounds = 3")
    mine = "--tx=popen//env:CUDA_VISIBLE_DEVICES=1"
    placed, ours = started(host, mine, "--tx=popen")
    assert placed == {"CUDA_VISIBLE_DEVICES": "1"}
    assert ours["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    monkeypatch.setenv(STAND_IN, str(host.root))
    assert counted(host) == 1
    dealt = started(host, "--tx=popen", "--tx=popen")
    assert [own["CUDA_VISIBLE_DEVICES"] for own in dealt] == ["GPU-a", "GPU-a"]


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
    told = workers.GpuAssignment(("GPU-b", "GPU-a"), str(tmp_path), os.getppid(), held=True)
    monkeypatch.setenv(workers.VARIABLE, told.to_text())
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
    result = project.run_apart("-n2", "--max-worker-restart=0", "--gpuperf-missing=warn")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["gpuperf: the workers died before any test ran"])
