"""Med-DDPM sampling: a step of the reverse diffusion, and a short chain, per configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

from suites.meddpm.optimizations import CHAIN, OPTIMIZATIONS, sampled_by
from suites.meddpm.tolerances import of_sampling

if TYPE_CHECKING:
    from pytest_gpuperf.model.measurement import Scalar
    from pytest_gpuperf.plugin.fixture import GpuPerf
    from suites.meddpm.data import Volumes
    from suites.meddpm.model import GaussianDiffusion3D
    from suites.meddpm.optimizations import Optimization

# A CPU's portable counts of a chain are those of the training's forward pass, over and over.
pytestmark = [pytest.mark.gpu, pytest.mark.beyond]


def _each(names: Iterable[str], what: str) -> pytest.MarkDecorator:
    """Under another name than a training step's: what is claimed of one is not of the other."""
    return pytest.mark.parametrize(
        "configuration",
        [
            pytest.param(
                name,
                marks=[
                    pytest.mark.optimization(f"{name}_{what}"),
                    pytest.mark.gpuperf(**of_sampling(name)),
                ],
            )
            for name in names
        ],
    )


@_each(OPTIMIZATIONS, "sampling")
def test_sampling_step(
    gpuperf: GpuPerf,
    optimized: GaussianDiffusion3D,
    optimization: Optimization,
    volumes: Volumes,
    workload: dict[str, Scalar],
    configuration: str,  # noqa: ARG001 -- it names the test
) -> None:
    """The first step of sampling: from noise to a little less noise."""
    from suites.meddpm.sampling import SamplingStep

    same = sampled_by(optimization)
    if same is not None:
        pytest.skip(f"{optimization.name}: without an optimizer it is {same}, which is measured")
    begin = optimized.timesteps
    device = gpuperf.torch_device.type
    step = SamplingStep(optimized, volumes, optimization, device, begin=begin, steps=1)
    gpuperf.measure(step, reset=step.reset, workload=workload)


@pytest.mark.gpuperf(rounds=1)
@_each(CHAIN, "chain")
def test_sampling_chain(
    gpuperf: GpuPerf,
    optimized: GaussianDiffusion3D,
    optimization: Optimization,
    volumes: Volumes,
    workload: dict[str, Scalar],
    request: pytest.FixtureRequest,
    configuration: str,  # noqa: ARG001 -- it names the test
) -> None:
    """The last steps of sampling, `--meddpm-steps` of them, which end in a volume."""
    from suites.meddpm.sampling import SamplingStep

    steps: int = request.config.getoption("--meddpm-steps")
    device = gpuperf.torch_device.type
    chain = SamplingStep(optimized, volumes, optimization, device, begin=steps, steps=steps)
    gpuperf.measure(chain, reset=chain.reset, workload={**workload, "steps": steps})
