"""A GPU that somebody else uses meanwhile: no verdict on the code, and never a green one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import projects
from pytest_gpuperf.model.result import Outcome, Run
from pytest_gpuperf.storage import run_files
from tests.gpu.sessions import session
from tests.shared_gpu import verdicts_where_nvml_shows_nobody

pytestmark = pytest.mark.gpu

TIMES = 10
TESTS = f"""
import pytest


@pytest.mark.parametrize("number", range({TIMES}))
def test_products(gpuperf, number):
    import torch

    factor = torch.rand(2048, 2048, device=gpuperf.torch_device)

    def step():
        for _ in range(100):
            factor @ factor

    gpuperf.measure(step)
"""
BUSY = """
import sys, torch

factor = torch.rand(4096, 4096, device="cuda")
torch.cuda.synchronize()
print("busy", flush=True)
while True:
    for _ in range(100):
        factor @ factor
    torch.cuda.synchronize()
"""
WORKER = """
import multiprocessing
import torch


def serve(asked, done):
    x = torch.ones(2048, 2048, device="cuda")
    while asked.get():
        for _ in range(20):
            x = torch.relu(x @ x)
        torch.cuda.synchronize()
        done.put(True)


def test_worker(gpuperf):
    spawn = multiprocessing.get_context("spawn")
    asked, done = spawn.Queue(), spawn.Queue()
    worker = spawn.Process(target=serve, args=(asked, done), daemon=True)
    worker.start()
    asked.put(True)
    done.get()
    x = torch.ones(8, device="cuda")

    def step():
        x.add_(0)
        asked.put(True)
        done.get()

    try:
        gpuperf.measure(step)
    finally:
        asked.put(False)
        worker.join()
"""
COUNTING = """
from pathlib import Path

import torch
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import GpuperfError
from pytest_gpuperf.measure.collector import Phases, Plan, Work
from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector
from pytest_gpuperf.measure.device import nvml

factor = torch.rand(2048, 2048, device="cuda")
plan = Plan(metrics=catalogue().hardware_set("core"), rounds=20)
work = Work(lambda: [factor @ factor for _ in range(100)], Phases())
collector = CuptiCollector(nvml.detect_device(), Path())
print("busy", flush=True)
while True:
    try:
        collector.collect(work, plan)
    except GpuperfError as error:
        print(error, flush=True)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of so many tests that are all the same, with the baseline of this GPU."""
    folder = projects.project(tmp_path_factory.mktemp("shared"), TESTS)
    for number in range(3):
        session(folder, "--gpuperf-no-judge", f"--gpuperf-run=baseline-{number}.json")
    command = [sys.executable, "-m", "pytest_gpuperf", "update-baseline", "--force", "--yes"]
    command += ["--reason", "alone", *(f"baseline-{number}.json" for number in range(3))]
    subprocess.run(command, cwd=folder, env=projects.environment(), check=True, capture_output=True)
    return folder


@contextmanager
def beside(code: str) -> Iterator[None]:
    """While another process runs this on the GPU."""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, env=projects.environment(), stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        try:
            assert other.stdout.readline() == "busy\n"
            yield
        finally:
            other.kill()


def outcomes(run: Run) -> dict[str, set[Outcome]]:
    """By test, of what is gated."""
    said: dict[str, set[Outcome]] = {}
    for verdict in run.verdicts:
        if verdict.outcome not in (Outcome.REPORTED, Outcome.UNSUPPORTED):
            said.setdefault(verdict.test, set()).add(verdict.outcome)
    return said


def test_alone_none_of_them_is_anything_but_what_it_was(project: Path) -> None:
    session(project, "--gpuperf-run=alone.json")
    said = outcomes(run_files.load(project / "alone.json"))
    assert len(said) == TIMES
    # Three short processes are no good baseline of such a short step.
    assert set().union(*said.values()) <= {Outcome.UNCHANGED, Outcome.INCONCLUSIVE}


@pytest.mark.parametrize("other", [BUSY, COUNTING], ids=["busy", "counting"])
def test_beside_another_process_nothing_is_said_of_the_code(other: str, project: Path) -> None:
    file = project / f"beside-{len(other)}.json"
    with beside(other):
        code, _ = session(project, f"--gpuperf-run={file}")
    assert code == 1
    said = outcomes(run_files.load(file))
    assert len(said) == TIMES
    assert set().union(*said.values()) == {Outcome.UNFIT}


def test_where_nvml_shows_nobody_the_canary_does(project: Path) -> None:
    with beside(BUSY):
        session(project, "--gpuperf-run=hidden.json")
    alone = [run_files.load(project / f"baseline-{number}.json") for number in range(3)]
    shared = run_files.load(project / "hidden.json")
    said = [*verdicts_where_nvml_shows_nobody(alone, shared)]
    assert len(said) == TIMES
    for one in said:
        assert {one["cycles"].outcome, one["step_time"].outcome} == {Outcome.MACHINE}
        assert "time_share" in one["step_time"].detail


MODULE_LEVEL = """
import os

import torch

X = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
PRODUCTS = int(os.environ.get("PRODUCTS", "20"))


def test_steady(gpuperf):
    gpuperf.measure(lambda: [X @ X for _ in range(20)] and None)


def test_slower(gpuperf):
    gpuperf.measure(lambda: [X @ X for _ in range(PRODUCTS)] and None)


def test_nested(gpuperf):
    gpuperf.measure(lambda: gpuperf.measure(lambda: X + 1, name="inner"), name="outer")
"""


def test_memory_of_a_test_module_does_not_make_replicas_others_of_each_other(
    tmp_path: Path,
) -> None:
    """And a measurement inside another one is refused, where it would wait for its own lock."""
    folder = projects.project(tmp_path, MODULE_LEVEL)
    session(folder, "--gpuperf-missing=record", "-k", "not nested")
    for products, regressed in (("20", False), ("40", True)):
        _, printed = session(
            folder, "--gpuperf-run=run.json", "-k", "not nested", PRODUCTS=products
        )
        slower = outcomes(run_files.load(folder / "run.json"))["test_it.py::test_slower"]
        assert (Outcome.REGRESSED in slower, Outcome.UNFIT in slower) == (regressed, False)
        assert ("test_it.py:15 test_slower" in printed) == regressed
    ended, printed = session(folder, "-k", "nested")
    assert ended == 1
    assert 'the step of "outer" calls gpuperf.measure (name' in printed


def test_a_step_that_another_process_does_for_it_is_no_measurement(tmp_path: Path) -> None:
    """Its counters are those of this process: what the worker launches is not in them."""
    _, said = session(projects.project(tmp_path / "worker", WORKER), "--gpuperf-missing=warn")
    assert "shared with 1 other process" in said
