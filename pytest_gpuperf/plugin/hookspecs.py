"""The hooks that pytest-gpuperf offers to conftest files and other plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpuperf.measure.collector import Collector
    from pytest_gpuperf.model.measurement import Measurement
    from pytest_gpuperf.model.result import Verdict


@pytest.hookspec(firstresult=True)
def pytest_gpuperf_collector(config: pytest.Config, arch: str, name: str) -> Collector | None:
    """A collector of your own, for hardware or a protocol that is not built in.

    `arch` and `name` are what `--gpu-arch` and `--gpuperf-collector` say, "auto" included. Return
    None to leave the choice to others.
    """


@pytest.hookspec
def pytest_gpuperf_judged(
    config: pytest.Config, measurement: Measurement, verdicts: tuple[Verdict, ...]
) -> None:
    """Called after a measurement was judged and before its test fails or passes.

    Under pytest-xdist this runs in the worker.
    """
