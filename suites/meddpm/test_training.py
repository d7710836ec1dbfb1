"""Med-DDPM training steps under the paper's configurations (section 5) and those beyond it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.claim import parameters
from suites.meddpm.claims import CLAIMS
from suites.meddpm.optimizations import OPTIMIZATIONS, PAPER
from suites.meddpm.tolerances import of_training

if TYPE_CHECKING:
    from pytest_gpuperf.model.measurement import Scalar
    from pytest_gpuperf.plugin.fixture import GpuPerf
    from suites.claim import Claim
    from suites.meddpm.step import TrainingStep


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test per configuration: the paper's, those beyond it, and those that were asked for."""
    if metafunc.function is not test_training_step:
        return
    asked = metafunc.config.getoption("--meddpm-configuration")
    names = dict.fromkeys([*OPTIMIZATIONS, *asked])
    default = {*PAPER, *asked}
    metafunc.parametrize(
        "configuration",
        [
            pytest.param(
                name,
                marks=[
                    pytest.mark.optimization(name),
                    pytest.mark.gpuperf(**of_training(name)),
                    *([] if name in default else [pytest.mark.beyond]),
                ],
            )
            for name in names
        ],
    )


def test_training_step(
    gpuperf: GpuPerf,
    training_step: TrainingStep,
    workload: dict[str, Scalar],
    configuration: str,  # noqa: ARG001 -- it names the test
) -> None:
    """Forward, backward and Adam on one volume, batch 1."""
    gpuperf.measure(
        training_step,
        reset=training_step.reset,
        workload=workload,
        settings=training_step.settings,
    )


@pytest.mark.parametrize("claim", parameters(CLAIMS, PAPER))
def test_claim(gpuperf: GpuPerf, claim: Claim) -> None:
    """What is claimed of two configurations that were measured above."""
    claim.expect(gpuperf)
