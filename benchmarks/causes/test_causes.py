"""The training steps of causes.yaml, as they are or, with --patched, each with its cause.

No test of this repository's: `python -m benchmarks.causes` runs it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from benchmarks.causes import patches

if TYPE_CHECKING:
    from torch import Tensor

    from benchmarks.causes.patches import Cause
    from pytest_gpuperf.plugin.fixture import GpuPerf
    from suites.training import ModelTraining

CAUSES = patches.causes()


class Prepared:
    """A step that is made, and patched, when it is first run: a recorded one never is."""

    def __init__(self, cause: Cause, gpuperf: GpuPerf, *, patched: bool) -> None:
        self._cause = cause
        self._gpuperf = gpuperf
        self._patched = patched
        self._entered = ExitStack()
        self._step: ModelTraining | None = None

    def __call__(self) -> Tensor:
        """One training step; returns its loss."""
        return self._made()()

    def reset(self) -> None:
        """Puts weights, optimizer and random generators back."""
        self._made().reset()

    def close(self) -> None:
        """Takes the cause out, and frees what the step has."""
        self._entered.close()
        if self._step is None:
            return
        import torch

        self._step = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _made(self) -> ModelTraining:
        from benchmarks.causes import steps

        if self._step is None:
            if self._patched:
                self._entered.enter_context(patches.applied(self._cause))
            self._step = self._entered.enter_context(
                steps.step(self._cause.step, self._gpuperf.phase, self._gpuperf.torch_device.type)
            )
        return self._step


@pytest.fixture
def step(request: pytest.FixtureRequest, gpuperf: GpuPerf, name: str) -> Iterator[Prepared]:
    """The step of this cause; skips where the code of others is not there."""
    cause, option = CAUSES[name], request.config.getoption
    if not (option("--gpuperf-replay") or patches.present(cause)):
        pytest.skip(f"{cause.file} is in no folder of sys.path")
    prepared = Prepared(cause, gpuperf, patched=option("--patched", False))
    yield prepared
    prepared.close()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.optimization(c.step)) for name, c in CAUSES.items()],
)
def test_cause(gpuperf: GpuPerf, step: Prepared, name: str) -> None:
    """Forward, backward and Adam."""
    from benchmarks.causes import steps

    workload = steps.workload(CAUSES[name].step, gpuperf.torch_device.type)
    gpuperf.measure(step, reset=step.reset, workload=workload)
