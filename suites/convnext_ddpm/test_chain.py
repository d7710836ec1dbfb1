"""Whole samplings, from noise to an image on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.convnext_ddpm.configurations import CHAIN
from suites.convnext_ddpm.tolerances import tolerance

if TYPE_CHECKING:
    from pytest_gpuperf.model.measurement import Scalar
    from pytest_gpuperf.plugin.fixture import GpuPerf
    from suites.convnext_ddpm.step import Chain

pytestmark = pytest.mark.beyond


MEASURED: dict[str, dict[str, object]] = {
    # Nothing but the host's launches of 100 graphs stands between its kernels.
    "resident_graph": {"metrics": "activity", "limit": {"gpu_idle": "5%"}},
}
OTHERWISE: dict[str, object] = {"metrics": "core"}
"""What a time step's kernels and copies do, its own test tells; a hundred of them take a profiler
minutes and tell no more."""


@pytest.mark.parametrize(
    "configuration",
    [
        pytest.param(
            name,
            marks=[
                # Another name than a time step's: what is claimed of one is not of the other.
                pytest.mark.optimization(f"{name}_chain"),
                pytest.mark.gpuperf(
                    rounds=2, tolerance=tolerance(name), **MEASURED.get(name, OTHERWISE)
                ),
            ],
        )
        for name in CHAIN
    ],
)
def test_chain(
    gpuperf: GpuPerf,
    chain: Chain,
    workload: dict[str, Scalar],
    steps: int,
    configuration: str,  # noqa: ARG001 -- it names the test
) -> None:
    """All time steps, with the way of the first image in and of the last one out."""
    gpuperf.measure(chain, workload={**workload, "steps": steps})
