"""`gpuperf prove` on a CPU: every gate that can fire does, and dead gates are found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_gpuperf.__main__ import main
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import FAILED, OK
from pytest_gpuperf.measure.fresh_process import FreshProcess, Start
from pytest_gpuperf.model.result import FAULTS, Run
from pytest_gpuperf.report.proof import Firing, Proof, proof_of
from pytest_gpuperf.storage import run_files
from tests import ALONE, EVERY, ROOT

_STEP = """
import pytest
import torch


def measured(gpuperf, wrap=lambda model: model, **options):
    model = wrap(torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)
    ))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.ones(4, 64)

    def step():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    gpuperf.measure(step, reset=gpuperf.reset_of(model, optimizer))
"""
_ALIVE = """
def test_eager(gpuperf):
    measured(gpuperf)


def test_compiled(gpuperf):
    measured(gpuperf, lambda model: torch.compile(model, backend="eager"))
"""
_PLAIN = """
def test_eager(gpuperf):
    measured(gpuperf)
"""
_DEAD = """
TOLERATED = "operators flops copies saved_bytes kept_memory peak_memory"
TOLERATED += " layout_copies layout_copy_bytes"


@pytest.mark.gpuperf(tolerance=dict.fromkeys(TOLERATED.split(), "300%"))
def test_tolerates(gpuperf):
    measured(gpuperf)
"""
_NEVER_RUNS = """
def test_never_runs(gpuperf):
    gpuperf.measure(lambda: None)
"""

_FAILS_LATER = """
def test_asserts(gpuperf):
    measured(gpuperf)
    assert not "enough"
"""
_EXPECTED_TO_FAIL = """
@pytest.mark.xfail
def test_is_expected_to_fail(gpuperf):
    measured(gpuperf)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project in a folder of its own, and the current folder."""
    (tmp_path / "pytest.ini").write_text(f"[pytest]\naddopts = {ALONE}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return tmp_path


def _proof(
    project: Path, tests: str, *flags: str, dropped: tuple[str, ...] = ()
) -> tuple[int, Proof, Run]:
    """What `gpuperf prove` finds after a recording, without the baseline's `dropped` keys."""
    (project / "test_it.py").write_text(_STEP + tests, encoding="utf-8")
    recorded = ["--gpu-arch=cpu", "--gpuperf-missing=record", "-q", "-p", "no:cacheprovider"]
    with FreshProcess(Start([*recorded, "test_it.py"], project, {}, judges=True)) as process:
        process.finished(None)
    for baseline in project.rglob("*.yaml") if dropped else ():
        lines = baseline.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = (line for line in lines if line.partition(":")[0].strip() not in dropped)
        baseline.write_text("".join(kept), encoding="utf-8")
    before = {*project.rglob("*")}
    words = ["--gpu-arch=cpu", "--strict-config", "-p", "no:cacheprovider", "test_it.py"]
    code = main(["prove", *flags, "--output", "proof.json", "--", *words])
    made = {path.name for path in {*project.rglob("*.json*"), *project.rglob("*.yaml")} - before}
    assert made == {"proof.json"}  # no run, no baseline
    run = run_files.load(project / "proof.json")
    proof = proof_of(run)
    assert proof
    return code, proof, run


at_night = pytest.mark.skipif(EVERY not in os.environ, reason=f"takes 30 s: {EVERY}")


@at_night
def test_each_count_of_a_cpu_has_a_slowdown_that_makes_it_red(project: Path) -> None:
    """All slowdowns are red, with their lines; a step without one passes."""
    code, proof, run = _proof(project, _ALIVE, "--all")
    assert (code, proof.dead, proof.doubts) == (OK, [], ())
    assert {trial.firing for trial in proof.trials} == {Firing.RED}
    assert {trial.line for trial in proof.trials if "eager" in trial.test} == {"right"}
    red = {verdict.metric for verdict in run.verdicts if verdict.outcome in FAULTS}
    counted = ("flops", "operators", "layout_copies", "layout_copy_bytes", "saved_bytes")
    portable = {m.name for m in catalogue().metrics.values() if m.gated and m.portable}
    assert red >= {*counted, *portable, "kept_memory", "peak_memory"}


@at_night
def test_a_step_that_does_nothing_is_named(project: Path) -> None:
    """Its gates fire, and see nothing of the step."""
    code, proof, _ = _proof(project, _NEVER_RUNS)
    said = {doubt.partition(":")[0] for doubt in proof.doubts}
    assert (code, said) == (FAILED, {"test_never_runs does not see all"})


@at_night
def test_a_gate_that_tolerates_all_is_dead(project: Path) -> None:
    """A tolerance of 300 % of every count."""
    code, proof, _ = _proof(project, _DEAD)
    assert code == FAILED
    assert {trial.test for trial in proof.dead} == {"test_it.py::test_tolerates"}


@at_night
def test_a_test_that_fails_by_itself_is_not_proven(project: Path) -> None:
    """It has no baseline, as it never passed; the reason is its own."""
    code, proof, _ = _proof(project, _FAILS_LATER)
    (said,) = proof.doubts
    assert (code, said.partition(":")[0]) == (FAILED, "test_asserts is not proven")


@at_night
def test_a_failure_that_pytest_expects_is_no_alarm(project: Path) -> None:
    """A regression in a test that is marked xfail turns no session red."""
    code, proof, _ = _proof(project, _EXPECTED_TO_FAIL)
    assert (code, {trial.firing for trial in proof.trials}) == (FAILED, {Firing.PASSED})
    assert proof.dead


@at_night
def test_a_metric_that_the_baseline_lost_is_named(project: Path) -> None:
    """With the data beside it; these would still tell its values."""
    code, proof, _ = _proof(project, _PLAIN, dropped=("flops", "data"))
    assert (code, proof.dead) == (FAILED, [])
    (said,) = proof.doubts
    assert said.startswith("test_eager does not see all: the baseline lacks flops:")
