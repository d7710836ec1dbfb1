"""Fresh processes with a task: under ncu, and for the paper's window."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_gpuperf.storage import run_files
from tests import ROOT
from tests.measure import stand_in_ncu
from tests.measure.ncu_reports import RANGE, module, page, written
from tests.plugin.projects import Project, refused

CONFTEST = f"""
import sys
from contextlib import contextmanager
from pathlib import Path

sys.path.append({str(ROOT)!r})
sys.modules["torch"] = None  # it takes seconds to load, and would tell its version alone

from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.measure import gpu_collector
from pytest_gpuperf.measure.ncu import profiled_step as marks
from tests.examples import H200
from tests.measure.stand_ins import Timer

LOG = Path(__file__).parent / "log"


def note(text):
    with LOG.open("a") as log:
        log.write(text + "\\n")


@contextmanager
def marked():
    note("start")
    yield
    note("stop")


nvml.detect_device = lambda: H200
gpu_collector.CudaTimer = Timer
marks.marked = marked
"""
"""An H200 as far as the plugin sees, which times and marks without CUDA."""

COUNTING = """
from pytest_gpuperf.measure.collector import Collected
from pytest_gpuperf.measure.cupti import library, paper_window
from pytest_gpuperf.errors import CountersUnavailable
from pytest_gpuperf.model.measurement import PAPER_WINDOW, Sample, Window


def nothing():
    raise CountersUnavailable("there is no GPU here", "Buy one")


class Counter(paper_window.WindowCounter):
    def begin(self):
        note("begin")

    def collect(self, work, plan):
        work.step()
        cycles = Sample(PAPER_WINDOW, "cycles", (7.0,))
        return Collected((), window=Window(10, 1, "cupti", (cycles,)))


library.load = nothing
paper_window.WindowCounter = Counter
"""
"""Counts windows without CUPTI."""

STEPS = """
from conftest import note

def test_of_others():
    note("others")

def test_step(gpuperf):
    def step():
        with gpuperf.phase("forward"):
            note("step")
    gpuperf.measure(step, reset=lambda: note("reset"))
"""
FLAGS = ("--gpuperf-collector=ncu", "--gpuperf-ncu=./ncu", "--gpuperf-no-judge")


@pytest.fixture
def ncu(project: Project) -> Project:
    """A project on an H200 with a stand-in for ncu."""
    project.pytester.makeconftest(CONFTEST)
    project.tests(STEPS)
    module(project.root / "extras" / "python")
    text = Path(stand_in_ncu.__file__).read_text(encoding="utf-8")
    text = text.replace("/usr/bin/env python3", sys.executable)
    written(project.root, text, "ncu").chmod(0o755)
    return project


def log(project: Project) -> list[str]:
    """What the steps of all processes did, in order."""
    return (project.root / "log").read_text(encoding="utf-8").splitlines()


def test_counters_come_from_a_child_of_ncu_that_runs_this_test_alone(ncu: Project) -> None:
    written(ncu.root, page(RANGE), "ncu.json")
    result = ncu.run_apart(*FLAGS, "--gpuperf-run=run.json")
    result.assert_outcomes(passed=2)
    (measured,) = run_files.load(ncu.root / "run.json").measurements
    seen = {sample.metric: sample.values for sample in measured.samples}
    assert (seen["cycles"], seen["step_time"]) == ((50_000.0,), (5.0,) * 3)
    settings = measured.fingerprint.settings
    assert (settings["collector"], settings["replay"]) == ("ncu", "range")
    here = log(ncu)
    assert here.count("others") == 1
    child = here[here.index("start") - 3 : here.index("stop") + 1]
    assert child == [
        *("reset", "step"),  # warm-up
        *("reset", "start", "step", "stop"),
    ]


def test_a_process_counts_its_own_window_from_before_the_fixtures(ncu: Project) -> None:
    (ncu.root / "conftest.py").write_text(CONFTEST + COUNTING, encoding="utf-8")
    ncu.tests(
        """
        import pytest
        from conftest import note

        @pytest.fixture
        def model():
            note("model")

        def test_step(model, gpuperf):
            gpuperf.measure(lambda: note("step"))
        """
    )
    result = ncu.run_apart("--gpuperf-protocol=paper-window", "--gpuperf-no-judge", "-v")
    result.assert_outcomes(passed=1)
    said = "paper window, launches 11 to 11 of a process (cupti): cycles 7"
    result.stdout.fnmatch_lines([f"  {said}"])
    # The session's own process first, then the fresh one.
    assert log(ncu) == ["model", *["step"] * 4, "begin", "model", "step"]


def test_a_window_needs_a_gpu(project: Project) -> None:
    project.tests("def test_step(gpuperf): gpuperf.measure(lambda: None)")
    text = refused(project.run("--gpuperf-protocol=paper-window", "--gpu-arch=cpu"))
    assert "the collector here is cpu" in text
