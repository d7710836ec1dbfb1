"""A worker's block on a GPU: its counters in one range and pass, or a trace of what it launches.

The profiler is open for no longer than the block: CUPTI counts in one process of a GPU at a time,
and the next turn is another's.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from pytest_gpuperf.errors import GpuperfError, MeasurementError
from pytest_gpuperf.measure.cupti import library
from pytest_gpuperf.measure.cupti.range_session import RangeSession
from pytest_gpuperf.measure.device import driver
from pytest_gpuperf.measure.trace import host_calls
from pytest_gpuperf.measure.trace.activity import activities, values_of_step
from pytest_gpuperf.measure.trace.profile import STEP_RANGE, Profile, Spans

_TOO_LATE = (
    "its block was the first of its process to use the GPU, and nothing of it was counted. Let the "
    "worker live on from one execution of the step to the next, or say so: "
    "attached(..., first_use=True)"
)


class BlockCounter:
    """Counts a block of this process, a worker, in one pass of the range profiler.

    `counters` are NVIDIA's names by the catalogue's. With `first_use`, the block may be the first
    to use the GPU. The rest is for tests.
    """

    def __init__(
        self,
        counters: Mapping[str, str],
        *,
        first_use: bool = False,
        cupti: library.Cupti | None = None,
        cuda: driver.Driver | None = None,
    ) -> None:
        self._counters = counters
        self._first_use = first_use
        self._cupti, self._cuda = cupti, cuda
        self._session: RangeSession | None = None
        self._held = ExitStack()

    def begin(self) -> None:
        """The block begins. Raises CountersUnavailable and MeasurementError."""
        with ExitStack() as held:
            if self._first_use:
                with suppress(ImportError):  # torch's CUPTI is the one that there may be
                    import torch  # noqa: F401
                held.enter_context((self._cuda or driver.load()).primary_context())
            cuda = _with_context(self._cuda)
            if cuda is not None:
                cuda.synchronize()
                names = tuple(self._counters.values())
                session = held.enter_context(RangeSession(names, cupti=self._cupti, cuda=cuda))
                if session.unsupported:
                    raise MeasurementError(session.unsupported[0].reason)
                session.begin()
                self._session = session
            self._held = held.pop_all()

    def end(self) -> dict[str, float]:
        """The block ends: what was counted. A process that does not use the GPU has counted 0."""
        with self._held:
            cuda = _with_context(self._cuda)
            if self._session is None:
                if cuda is not None:
                    raise MeasurementError(_TOO_LATE)
                return dict.fromkeys(self._counters, 0.0)
            if cuda is not None:
                cuda.synchronize()
            (values,) = self._session.end()
            return {name: values[hardware] for name, hardware in self._counters.items()}


class BlockTrace:
    """Traces a block of this process, a worker, and counts what it launches, by `metrics`."""

    def __init__(self, metrics: Sequence[str], *, first_use: bool = False) -> None:
        self._metrics = metrics
        self._first_use = first_use
        self._profile: Profile | None = None
        self._compilations = host_calls.Compilations()
        self._spans = Spans("")
        self._step = ExitStack()

    def begin(self) -> None:
        """The block begins. Raises CountersUnavailable."""
        if self._first_use:
            import torch

            initialize: Any = torch.cuda.init  # untyped
            initialize()
        if _torch_with_context() is None:
            return
        profile = Profile(host=self._compilations.any)
        profile.start()
        self._profile = profile
        self._step.enter_context(self._spans.named(STEP_RANGE))

    def end(self) -> dict[str, float]:
        """The block ends: what was traced. A process that does not use the GPU has launched 0."""
        torch = _torch_with_context()
        if self._profile is None:
            if torch is not None:
                raise MeasurementError(_TOO_LATE)
            return dict.fromkeys(self._metrics, 0.0)
        self._step.close()
        if torch is not None:
            torch.cuda.synchronize()
        events = self._spans.among(self._profile.stop()())
        values = values_of_step(activities(events))
        values |= host_calls.counted(name for _, name in host_calls.during(events))
        values |= self._compilations.counted(events)
        return {name: values[name] for name in self._metrics if name in values}


def _with_context(cuda: driver.Driver | None) -> driver.Driver | None:
    """The driver, where this thread uses a GPU; who was forked from a process that does cannot."""
    with suppress(GpuperfError):
        cuda = cuda or driver.load()
        return cuda if cuda.current_context() is not None else None
    return None


def _torch_with_context() -> Any:
    torch: Any = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None
