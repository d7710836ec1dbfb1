"""One time step of sampling under every configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.convnext_ddpm.configurations import CONFIGURATIONS
from suites.convnext_ddpm.tolerances import of_time_step

if TYPE_CHECKING:
    from pytest_gpuperf.model.measurement import Scalar
    from pytest_gpuperf.plugin.fixture import GpuPerf
    from suites.convnext_ddpm.step import SamplingStep


@pytest.mark.parametrize(
    "configuration",
    [
        pytest.param(
            name,
            marks=[
                pytest.mark.optimization(name),
                pytest.mark.gpuperf(**of_time_step(name)),
            ],
        )
        for name in CONFIGURATIONS
    ],
)
def test_time_step(
    gpuperf: GpuPerf,
    sampling_step: SamplingStep,
    workload: dict[str, Scalar],
    configuration: str,  # noqa: ARG001 -- it names the test
) -> None:
    """The network and p_sample, once."""
    gpuperf.measure(sampling_step, reset=sampling_step.reset, workload=workload)
