"""Runs that were recorded on H200s and H100s, judged again: by our baselines, and by each other."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import recorded
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.stopping import next_look
from pytest_gpuperf.judge.verdict import Reference, judge
from pytest_gpuperf.model.entry import Entry
from pytest_gpuperf.model.result import Outcome, Run
from pytest_gpuperf.storage import baseline_files, run_files
from suites.convnext_ddpm.tolerances import tolerance
from suites.meddpm import model
from suites.meddpm.optimizations import CHAIN, OPTIMIZATIONS, PAPER, sampled_by
from suites.meddpm.tolerances import of_sampling, of_training
from tests import ROOT
from tests.meddpm import small
from tests.plugin.projects import Project
from tests.plugin.test_conditions import AT_NIGHT

TRAINING, SAMPLING = (f"suites/meddpm/test_{name}.py" for name in ("training", "sampling"))
STEP = f"{TRAINING}::test_training_step"
TESTS = [
    *(f"{STEP}[{name}]" for name in OPTIMIZATIONS),
    *(
        f"{SAMPLING}::test_sampling_step[{name}]"
        for name, optimization in OPTIMIZATIONS.items()
        if sampled_by(optimization) is None
    ),
    *(f"{SAMPLING}::test_sampling_chain[{name}]" for name in CHAIN),
]


@pytest.fixture
def h200(checkout: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A checkout with a copy of our baselines. Steps are built, small, and never executed."""
    shutil.copytree(ROOT / "baselines", checkout.root / "baselines")  # with its tolerances
    monkeypatch.setattr(model, "med_ddpm", lambda _: small.network())
    return checkout


def replay(h200: Project, run: str, *arguments: str) -> pytest.RunResult:
    """Judges a run in this checkout: one of ours in docs/runs, or one of its own."""
    flags = ("--everything", "--meddpm-data=synthetic", "--meddpm-size=16")
    file = ROOT / "docs" / "runs" / run
    return h200.run("--gpu-arch=sm90", f"--gpuperf-replay={file}", *flags, *arguments)


def of(run: Run, *, newest: bool) -> Run:
    """What the newest process measured, which measured everything, or all others.

    Kernels' tables take time, and nobody asks.
    """
    process = run.measurements[-1].process
    kept = (m for m in run.measurements if (m.process == process) is newest)
    return replace(run, measurements=tuple(replace(m, kernels=None) for m in kept))


def test_every_baseline_is_of_five_processes_and_has_what_is_held() -> None:
    """Time, memory and counts; and the time of kernels where that is held."""
    accepted = baseline_files.load(ROOT / "baselines" / "sm90" / "nvidia-h200" / "meddpm.yaml")
    assert accepted is not None
    for test in TESTS:
        entry = accepted.tests[test]["step"]
        assert len(entry.gpus) >= 5, test
        assert {"cycles", "instructions", "step_time", "peak_memory"} <= {*entry.step}
        tolerances = of_training if test.startswith(TRAINING) else of_sampling
        configuration = test.partition("[")[2].removesuffix("]")
        held = "kernel_time" in tolerances(configuration).get("tolerance", {})
        assert ("kernel_time" in entry.step) == held, test


def test_a_process_that_did_not_make_the_baselines_passes(h200: Project) -> None:
    run = recorded.run("docs/runs/h200-optimizations.json.xz")
    others, measured = h200.root / "others.json", h200.root / "measured.json"
    run_files.save(of(run, newest=False), others)
    run_files.save(of(run, newest=True), measured)
    assert h200.update(others.name) == 0
    result = replay(h200, str(measured), TRAINING, SAMPLING)
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"{len(TESTS)} unchanged, all {len(TESTS)} compared"])


def test_a_run_that_did_not_make_the_baseline_passes_and_its_claims_hold(h200: Project) -> None:
    tests = (*(f"{STEP}[{name}]" for name in PAPER), f"{TRAINING}::test_claim")
    result = replay(h200, "h200-meddpm.json", *tests, "--gpuperf-report=report.json")
    # 4 steps, and the claims about them; others' claims need what this run has not
    result.assert_outcomes(passed=7, skipped=7)
    held = "tf32 / baseline: cycles 0.1771, below 0.35: holds"
    result.stdout.fnmatch_lines([held, "4 unchanged, all 4 compared"])
    expected = run_files.load(h200.root / "report.json").expectations
    assert [entry.outcome for entry in expected] == [Outcome.HOLDS] * 3
    assert all(entry.verified for entry in expected)


# On H100s

DATA, DOCS = ROOT / "tests" / "data", ROOT / "docs" / "runs"


def reference_of(entry: Entry) -> Reference:
    return Reference({"step": entry.step}, "", "", entry.gpus, entry.days, canary=entry.canary)


def test_the_headline_takes_few_further_processes_on_a_gpu_that_its_baseline_knows() -> None:
    """On two H100s, minutes after the baseline. The session itself had asked for ten in all."""
    known = [run_files.load(file) for file in sorted((DATA / "h100-unmet").iterdir())]
    session = run_files.load(DATA / "h100-headline" / "judged.json.xz")
    processes = 0
    for test in dict.fromkeys(one.test for one in session.measurements):
        before = [one for run in known for one in run.measurements if one.test == test]
        now = [one for one in session.measurements if one.test == test]
        reference = reference_of(baseline_files.entry_of(before, recorded=""))
        count: int | None = 1
        while count is not None:
            looked = count
            said = judge(now[:looked], reference, catalogue().metrics, {})
            count = next_look(said, looked)
        assert {v.outcome for v in said} <= {Outcome.UNCHANGED, Outcome.REPORTED}, test
        processes += looked
    assert len(session.measurements) == 10
    assert processes == 4


SESSIONS = [
    file
    for folder in (DATA / "h100-aa", DOCS / "workers", DOCS / "workers-everything")
    for file in sorted(folder.glob("*.xz"))
]
"""34 on eight GPUs of four hosts."""


@pytest.mark.parametrize(
    "sessions", [SESSIONS[::6], pytest.param(SESSIONS, marks=AT_NIGHT)], ids=["some", "all"]
)
def test_on_h100s_that_our_baseline_has_not_met_the_same_code_is_unchanged(
    sessions: list[Path],
) -> None:
    """Both suites, by one process of each test.

    In the last session torch.compile had picked kernels with 1.05 % more instructions.
    """
    said: Counter[Outcome] = Counter()
    most = 0.0
    for session in map(run_files.load, (*sessions, DATA / "h100-compiled" / "session.json.xz")):
        for one in session.measurements:
            known = baseline_files.load_for(ROOT / "baselines", one.fingerprint.device, one.suite)
            assert known is not None
            if one.test not in known.tests:  # of --everything most
                continue
            compiled = one.test.endswith("[compile]")
            reference = reference_of(known.tests[one.test][one.name])
            tolerances = tolerance("compile") if compiled else one.tolerance
            for verdict in judge([one], reference, catalogue().metrics, tolerances):
                said[verdict.outcome] += 1
                if compiled and (verdict.phase, verdict.metric) == ("step", "instructions"):
                    most = max(most, verdict.change or 0.0)
    assert {*said} == {Outcome.UNCHANGED, Outcome.REPORTED}, said
    assert most == pytest.approx(0.00996, abs=1e-4)
