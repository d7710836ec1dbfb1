"""From weights on the host to the end of the first time step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.convnext_ddpm.configurations import LOADINGS
from suites.convnext_ddpm.tolerances import tolerance

if TYPE_CHECKING:
    from pytest_gpuperf.model.measurement import Scalar
    from pytest_gpuperf.plugin.fixture import GpuPerf
    from suites.convnext_ddpm.loading import WeightLoading

pytestmark = pytest.mark.beyond


@pytest.mark.gpuperf(repetitions=20, tolerance=tolerance("baseline"))
@pytest.mark.parametrize(
    "loading",
    [pytest.param(name, marks=pytest.mark.optimization(name)) for name in LOADINGS],
)
def test_loading(
    gpuperf: GpuPerf,
    weight_loading: WeightLoading,
    workload: dict[str, Scalar],
    loading: str,  # noqa: ARG001 -- it names the test
) -> None:
    """All weights, and one time step with torch's own operators."""
    gpuperf.measure(weight_loading, reset=weight_loading.reset, workload=workload)
