"""Which kernels a regression comes from: in the message, the run, the reports, and why none is."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuperf.model.result import Attribution
from tests.plugin.projects import BASELINE, STEP, Project

CONV = [
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x32",
    900,
    5e6,
]
ADD = ["ampere_sgemm_128x64_tn", 400, 2e6]
ADAM = ["multi_tensor_apply_kernel", 300, 1e6]
SOFTMAX = ["softmax_warp_forward", 200, 3e5]
BEFORE = [CONV, ADD, CONV, ADAM]
SLOWER = [CONV, [ADD[0], 800, 2e6], CONV, ADAM]
MORE = [CONV, ADD, SOFTMAX, CONV, SOFTMAX, ADAM]

TABLES = BASELINE / "test_steps.kernels.json.xz"


@pytest.fixture
def a100(project: Project) -> Project:
    """A project with one test, on a scripted A100 with a baseline that knows its kernels."""
    project.device(kernels=BEFORE)
    project.tests(STEP)
    project.accept_processes(*[1.0] * 5, kernels=True)
    return project


def replayed(
    project: Project, kernels: list[Any], *arguments: str, mismatch: str = ""
) -> pytest.RunResult:
    """Judges three processes in which the kernels were these and the cycles twice as many."""
    return project.replay(*arguments, factor=2.0, kernels=kernels, mismatch=mismatch)


def attributions(project: Project, name: str = "judged.json") -> list[Attribution]:
    """Those of a run or report."""
    return [named.attribution for named in project.saved(name).attributions]


def message(result: pytest.RunResult) -> list[str]:
    """What the failing test says."""
    lines = str(result.stdout).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("gpuperf: "))
    end = next(i for i, line in enumerate(lines) if line.startswith("to accept what is intended"))
    return lines[start : end + 1]


# Another sequence


def test_another_sequence_fails_no_test(a100: Project) -> None:
    a100.device(kernels=MORE)
    result = a100.run("--gpuperf-kernels=always", "--gpuperf-run=run.json")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["*kernels *kernels-changed", "note: kernels of test_step: 2 added"]
    )
    # Neither settles it another process, nor are kernels of what did not regress listed.
    result.stdout.no_fnmatch_line("* processes)")
    result.stdout.no_fnmatch_line("kernels: *")
    assert len(attributions(a100, "run.json")) == 1


# Why none is named


def test_bad_tables_stop_no_verdict_and_are_noted_once(project: Project) -> None:
    project.device(kernels=BEFORE)
    project.tests(STEP + STEP.replace("test_step", "test_other"))
    project.accept_processes(*[1.0] * 5, kernels=True)
    (project.root / TABLES).write_bytes(b"damaged")
    result = replayed(project, MORE)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "gpuperf: *: regressed on*",
            f"  no kernel can be named: {TABLES}: *not compressed by xz: *. Restore it from git*",
            "to accept what is intended:",
        ]
    )
    notes = [line for line in result.outlines if "no kernel can be named" in line]
    assert [line.split(":")[0] for line in notes] == ["  no kernel can be named"] * 2  # each test's
    assert project.saved("judged.json").verdicts[0].metric == "cycles"
    assert attributions(project) == []


# What the baseline keeps


def test_a_recorded_missing_baseline_has_kernels(project: Project) -> None:
    project.device(kernels=BEFORE)
    project.tests(STEP)
    assert project.run("--gpuperf-missing=record").ret == 0
    assert (project.root / TABLES).exists()
    project.run_files()[0].unlink()
    result = replayed(project, SLOWER)
    assert message(result)[-4].endswith("slower x2 (memory, cache or clocks), 1 launch")
    # What is there is not recorded, so nothing is counted for it.
    project.device(kernels=MORE)
    assert project.run("--gpuperf-missing=record", "--gpuperf-run=again.json").ret == 0
    assert project.saved("again.json").measurements[0].kernels is None
