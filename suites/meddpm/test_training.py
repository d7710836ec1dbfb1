"""Med-DDPM training steps under the paper's configurations (section 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.claim import parameters
from suites.meddpm.claims import CLAIMS
from suites.meddpm.optimizations import OPTIMIZATIONS

if TYPE_CHECKING:
    from pytest_gpuperf.fixture import GpuPerf
    from suites.claim import Claim
    from suites.meddpm.data import Volumes
    from suites.meddpm.step import TrainingStep


@pytest.mark.parametrize(
    "configuration",
    [pytest.param(name, marks=pytest.mark.optimization(name)) for name in OPTIMIZATIONS],
)
def test_training_step(
    gpuperf: GpuPerf,
    training_step: TrainingStep,
    volumes: Volumes,
    configuration: str,  # noqa: ARG001 -- it names the test
    request: pytest.FixtureRequest,
) -> None:
    """Forward, backward and Adam on one volume, batch 1."""
    weights = "checkpoint" if request.config.getoption("--meddpm-weights") else "seeded"
    size = volumes.image.shape[-1]
    gpuperf.measure(
        training_step,
        reset=training_step.reset,
        workload={"size": size, "batch": 1, "data": volumes.source, "weights": weights},
    )


@pytest.mark.parametrize("claim", parameters(CLAIMS))
def test_claim(gpuperf: GpuPerf, claim: Claim) -> None:
    """What is claimed of two configurations that were measured above."""
    claim.expect(gpuperf)
