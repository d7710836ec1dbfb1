"""What a measurement is compared with, or why there is nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf.baselines.reference import Baseline, baseline_of
from pytest_gpuperf.errors import BadFile
from pytest_gpuperf.model.measurement import Measurement, Scalar
from pytest_gpuperf.model.result import JudgedBy
from tests.baselines import accept
from tests.examples import A100, TEST, measurement
from tests.kernel_steps import table

FILE = "baselines/sm90/nvidia-h200/meddpm.yaml"
KERNELS = table(("conv", 900.0), ("add", 300.0))


def looked_up(root: Path, measured: Measurement) -> Baseline:
    """The baseline of a measurement, for people in `root`."""
    return baseline_of(measured, root / "baselines", root)


def test_a_measurement_is_compared_with_the_entry_of_its_name_and_workload(
    tmp_path: Path,
) -> None:
    before = looked_up(tmp_path, measurement())
    assert (before.exists, before.reference.missing) == (False, "no-file")
    assert before.reference.detail == f"{FILE} does not exist"
    assert (before.suite.tests, before.kernels()) == ({}, None)
    accept(tmp_path, measurement())
    baseline = looked_up(tmp_path, measurement())
    entry = baseline.suite.tests[TEST]["step"]
    reference = baseline.reference
    assert (reference.samples, reference.gpus, reference.days) == (
        *({"step": entry.step}, entry.gpus),
        entry.days,
    )
    assert (reference.missing, reference.detail) == ("", "")
    assert baseline.judged_by == JudgedBy(TEST, "step", entry.recorded, entry.revision)
    for other, missing, detail in (
        (measurement(test="x.py::other"), "no-entry", f"{FILE} has no entry for this test"),
        (measurement(name="sampling"), "no-entry", f"{FILE} has no entry for this test"),
        (
            measurement(workload={"size": 64}),
            "other-workload",
            f"the entry in {FILE} has another workload: size 128, here 64",
        ),
    ):
        assert looked_up(tmp_path, other).judged_by is None
        reference = looked_up(tmp_path, other).reference
        assert (reference.samples, reference.missing, reference.detail) == (None, missing, detail)
    assert looked_up(tmp_path, measurement(device=A100)).reference.missing == "no-file"


def test_what_counts_other_things_is_not_compared(tmp_path: Path) -> None:
    def counted(**settings: Scalar) -> Measurement:
        return measurement(settings=settings, kernels=KERNELS)

    accept(tmp_path, counted(collector="ncu", replay="range"))
    for now, missing in (
        (counted(collector="ncu", replay="app-range"), ""),
        (counted(rounds=5), ""),
        (counted(collector="ncu", replay="kernel"), "other-collector"),
        (counted(collector="cupti"), "other-collector"),
    ):
        baseline = looked_up(tmp_path, now)
        assert baseline.reference.missing == missing
        assert (baseline.kernels() is None) is bool(missing)
    assert "measured by ncu, range replay, this run by cupti, and" in baseline.reference.detail


def test_kernel_tables_are_those_that_were_accepted(tmp_path: Path) -> None:
    accept(tmp_path, measurement(kernels=KERNELS))
    assert looked_up(tmp_path, measurement()).kernels() == KERNELS
    accept(tmp_path, measurement())
    with pytest.raises(BadFile, match=f"^{FILE}: tests/{TEST.partition('[')[0]}.*no kernel table"):
        looked_up(tmp_path, measurement()).kernels()


def test_a_file_that_cannot_be_trusted_is_refused(tmp_path: Path) -> None:
    accept(tmp_path, measurement())
    file = tmp_path / FILE
    file.write_text(file.read_text().replace("suite: meddpm", "suite: other"))
    with pytest.raises(BadFile, match="but its place is for"):
        looked_up(tmp_path, measurement())
    elsewhere = replace(measurement(), suite="another")
    assert looked_up(tmp_path, elsewhere).reference.missing == "no-file"
