"""Training steps, and what is claimed of all that the suite measures: this file runs last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.claim import parameters
from suites.convnext_ddpm.claims import CLAIMS
from suites.convnext_ddpm.configurations import CONFIGURATIONS, TRAINING
from suites.convnext_ddpm.tolerances import tolerance

if TYPE_CHECKING:
    from pytest_gpuperf.model.measurement import Scalar
    from pytest_gpuperf.plugin.fixture import GpuPerf
    from suites.claim import Claim
    from suites.convnext_ddpm.step import TrainingStep


@pytest.mark.parametrize(
    "configuration",
    [
        pytest.param(
            name,
            marks=[
                pytest.mark.optimization(f"{name}_training"),
                pytest.mark.gpuperf(tolerance=tolerance(name)),
                pytest.mark.beyond,
            ],
        )
        for name in TRAINING
    ],
)
def test_training_step(
    gpuperf: GpuPerf,
    training_step: TrainingStep,
    workload: dict[str, Scalar],
    configuration: str,  # noqa: ARG001 -- it names the test
) -> None:
    """Forward, backward and Adam."""
    gpuperf.measure(training_step, reset=training_step.reset, workload=workload)


@pytest.mark.parametrize("claim", parameters(CLAIMS, CONFIGURATIONS))
def test_claim(gpuperf: GpuPerf, claim: Claim) -> None:
    """What is claimed of two configurations that were measured before."""
    claim.expect(gpuperf)
