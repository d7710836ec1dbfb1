"""The ConvNeXt DDPM suite under pytest, on the CPU and with bad input."""

from __future__ import annotations

import pytest

from suites.convnext_ddpm import conftest
from tests.one_flag import one_flag
from tests.plugin.projects import Project

SMALL = (
    *("--everything", "--gpuperf-rounds=1"),
    *("--convnext-size=4", "--convnext-widths=4,6", "--convnext-steps=3"),
)
"""What every step computes with torch's own operators."""
MEASURED = (
    *(f"sampling.py::test_time_step[{name}]" for name in ("copy_sync", "resident", "graph")),
    "chain.py::test_chain[resident]",
    "loading.py::test_loading[early_start]",
    "training.py::test_training_step[baseline]",
)
"""One of a kind: CI measures all of them, against their baseline."""


def test_on_the_cpu_it_measures_what_runs_there(checkout: Project) -> None:
    saved = ("--gpuperf-run=run.json", "--gpuperf-no-judge", "--gpuperf-metrics=activity")
    tests = (f"suites/convnext_ddpm/test_{name}" for name in MEASURED)
    result = checkout.run("--gpu-arch=cpu", *tests, *SMALL, *saved, "-rs")
    result.assert_outcomes(passed=len(MEASURED) - 1, skipped=1)
    result.stdout.fnmatch_lines(["*CUDA graphs are a GPU's*"])
    measured = {m.configuration: m for m in checkout.saved("run.json").measurements}
    workload = {"size": 4, "batch": 1, "widths": "4,6"}
    assert measured["resident"].workload == workload
    assert measured["resident_chain"].workload == {**workload, "steps": 3}

    def count_of(metric: str, name: str) -> float:
        (one,) = (s for s in measured[name].samples if (s.metric, s.phase) == (metric, "step"))
        return one.values[0]

    # What the counts of a CPU tell of transfers: copies around every operator, or two per step.
    assert count_of("operators", "copy_sync") > 1.5 * count_of("operators", "resident")
    assert count_of("flops", "copy_sync") == count_of("flops", "resident")

    def parts_of(name: str) -> set[str]:
        return {sample.phase for sample in measured[name].samples}

    # Components are traced on a GPU alone.
    assert parts_of("baseline_training") == {"step", "forward", "backward", "optimizer"}
    assert parts_of("resident") == parts_of("resident_chain") == {"step"}
    repeated = next(s for s in measured["early_start"].samples if s.metric == "wall_time")
    assert len(repeated.values) == 20


def test_bad_flags_are_usage_errors() -> None:
    for flag, value, says in (
        ("--convnext-size", 12, "size 12: 4 levels need a multiple of 8"),
        ("--convnext-widths", "5,8", "width 5: the first must be even"),
        ("--convnext-widths", "32,wide", "--convnext-size, --convnext-widths: "),
        ("--convnext-batch", 0, "--convnext-batch 0: 1 or more are needed"),
        ("--convnext-steps", 1, "--convnext-steps 1: 2 or more are needed"),
    ):
        with pytest.raises(pytest.UsageError, match=says):
            conftest.pytest_configure(one_flag(flag, value))
