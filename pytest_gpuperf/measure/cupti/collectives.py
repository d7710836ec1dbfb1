"""The instructions that a rank executes by itself: those between the collectives of its step.

Collectives wait for other ranks in a loop, and the instructions for that vary by chance. So the
stretches between them are ranges, which hardly takes longer than the step. A range for every launch
would cost 1 ms when a pass begins, and 1 ms more at its launch (H100, CUPTI 13.0).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.judge.stopping import LEAST_ROUNDS
from pytest_gpuperf.measure.collector import Collected, PhaseListener, PhaseNames, Work
from pytest_gpuperf.measure.cupti.counting import Marker, counted_in, ranges_of
from pytest_gpuperf.measure.cupti.range_session import RangeSession
from pytest_gpuperf.measure.execution import CudaTimer, prepare
from pytest_gpuperf.measure.trace import profile
from pytest_gpuperf.model.measurement import STEP, Sample, Unsupported

_OPERATORS = (
    *("_allgather_base_", "allgather_", "allgather_coalesced_", "allgather_into_tensor_coalesced_"),
    *("allreduce_", "allreduce_coalesced_", "alltoall_", "alltoall_base_", "barrier", "broadcast_"),
    *("_reduce_scatter_base_", "reduce_", "reduce_scatter_", "reduce_scatter_tensor_coalesced_"),
)
"""The names of torch's c10d operators, as far as this torch has them. Sends between two ranks are
left out: they would wait for a peer that may be about to send first."""
_NAME = "own_instructions"


def own_instructions(work: Work, timer: CudaTimer, arch: str) -> Collected:
    """A value per execution of a rank's step, or why there is none; empty for a step of no rank.

    All ranks execute equally often, and no kernel is replayed.
    """
    if not work.together:
        return Collected(())
    begun = PhaseNames()
    work.progress.begins("tracing kernels")
    prepare(work, timer)
    with heard_by(begun):
        traced = profile.trace(work.step, timer.synchronize)
    if traced.has_graphs:
        return _lacking("counters cannot separate collectives in a CUDA graph")
    # Continue after a failure too: the other ranks execute the step once more.
    own = [_once(work, timer, arch, begun.names) for _ in range(LEAST_ROUNDS)]
    launched = sum(entry.collective for entry in traced.entries)
    if launched != len(begun.names):
        return _lacking(
            f"the GPU ran {launched} collectives, but torch.distributed began {len(begun.names)}, "
            "so the counters cannot separate them"
        )
    for one in own:
        if isinstance(one, str):
            return _lacking(one)
    counts = tuple(one for one in own if isinstance(one, float))
    return Collected((Sample(STEP, _NAME, counts),))


def _lacking(reason: str) -> Collected:
    return Collected((), (Unsupported(_NAME, reason),))


def _once(work: Work, timer: CudaTimer, arch: str, begun: Sequence[str]) -> float | str:
    """The instructions between the collectives of one execution, or why they are unknown.

    The device is waited for before and after each collective, so nothing overlaps it.
    """
    hardware = catalogue().metrics["instructions"].hardware_name(arch) or ""
    ranges, stage = ranges_of(begun), "counting between collectives"
    try:
        with RangeSession((hardware,), len(begun) + 1) as session:
            marker = partial(Marker, session, timer, ranges, ranges[::2], "collectives")
            stretches = counted_in(session, marker, heard_by, work, timer, stage)
    except (CountersUnavailable, MeasurementError) as error:
        return str(error)
    # Where nothing ran there may be no number.
    return math.fsum(filter(math.isfinite, (values[hardware] for values in stretches.values())))


@contextmanager
def heard_by(listener: PhaseListener) -> Iterator[None]:
    """Sends each collective that torch.distributed begins in the block to `listener`.

    DistributedDataParallel begins them in C++, in a thread of autograd. All pass torch's
    dispatcher, where the slot for gradients, before that of the device, is free.
    """
    torch: Any = sys.modules["torch"]
    registered = torch.library.Library("c10d", "IMPL", "Autograd")

    def through(name: str, operator: Callable[..., object]) -> Callable[..., object]:
        def collective(*arguments: object, **named: object) -> object:
            listener.enter(name)
            with torch._C._AutoDispatchBelowAutograd():
                result = operator(*arguments, **named)
            listener.leave(name)
            return result

        return collective

    try:
        for name in filter(partial(hasattr, torch.ops.c10d), _OPERATORS):
            registered.impl(name, through(name, getattr(torch.ops.c10d, name).default))
        yield
    finally:
        registered._destroy()
