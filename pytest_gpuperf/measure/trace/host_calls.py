"""Calls of the host beside launches: where it waited, and what memory it asked for.

Read from the CUDA calls of a trace, and of torch.compile from the ranges that it opens in one. They
are the same on every GPU, and nobody's right to read counters is needed for them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pytest_gpuperf.measure.trace.profile import OPERATOR, Trace

WAITING = {
    "cudaStreamSynchronize": "stream_synchronizations",
    "cuStreamSynchronize": "stream_synchronizations",
    "cudaEventSynchronize": "event_synchronizations",
    "cuEventSynchronize": "event_synchronizations",
    "cudaDeviceSynchronize": "device_synchronizations",
    "cuCtxSynchronize": "device_synchronizations",
}
"""Calls in which the host waits, and the metrics that count them."""
ALLOCATING = {
    *("cudaMalloc", "cudaMallocAsync", "cudaMallocFromPoolAsync", "cudaMallocManaged"),
    *("cudaMallocHost", "cudaHostAlloc", "cudaHostRegister", "cuMemCreate", "cuMemAlloc"),
}
"""Calls that ask the driver for memory of the device, or for pinned memory of the host."""
FREEING = {
    *("cudaFree", "cudaFreeAsync", "cudaFreeHost", "cudaHostUnregister", "cuMemRelease"),
    *("cuMemUnmap", "cuMemFree"),
}
"""Calls that give it back. No metric counts them: what is given back is asked for anew, but their
line is the one that makes it so."""
_LOOKED_AT = {*WAITING, *ALLOCATING, *FREEING}
_COMPILED = "Torch-Compiled Region: "
"""What the ranges are called in which a compiled graph is executed; then its compile id, "0/0"."""
_RESUMED = "torch_dynamo_resume_in_"
"""What dynamo calls functions that go on after a graph break."""


def during(trace: Trace) -> list[tuple[float, str]]:
    """When each call of CUDA in the step began, and its name: of waits, and of memory."""
    since, until = trace.step
    made = ((at, plain(name)) for at, name in trace.calls if since <= at <= until)
    return [(at, name) for at, name in made if name in _LOOKED_AT]


def plain(name: str) -> str:
    """The name of a call without the version of the API: "cudaMalloc_v3020" is cudaMalloc."""
    return name.partition("_")[0]


def counted(names: Iterable[str]) -> dict[str, float]:
    """The metrics of these calls, by name."""
    values = dict.fromkeys((*WAITING.values(), "driver_allocations"), 0.0)
    for name, count in Counter(names).items():
        if name not in FREEING:
            values[WAITING.get(name, "driver_allocations")] += count
    return values


class Compilations:
    """What torch.compile does in an execution that was executed before."""

    def __init__(self) -> None:
        self._before = _compilations()

    @property
    def any(self) -> bool:
        """Whether anything has been compiled in this process: only then traces are looked at."""
        return self._before > 0

    def counted(self, trace: Trace | None) -> dict[str, float]:
        """The metrics of the execution since this was made, by name, from its trace with `host`.

        None is the trace of a step in which nothing compiled runs.
        """
        graphs: list[str] = []
        if trace is not None:
            since, until = trace.step
            regions = trace.ranges(_COMPILED, OPERATOR)
            graphs = [one.name.split()[0] for one in regions if since <= one.begin <= until]
        resumed = _resumed() if graphs else set()
        return {
            "compiled_graphs": float(len(graphs)),
            "graph_breaks": float(sum(graph in resumed for graph in graphs)),
            "recompilations": float(_compilations() - self._before),
        }


def _compilations() -> int:
    """How many graphs dynamo has compiled in this process; torch._dynamo.reset forgets them not."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    counters: Mapping[str, Mapping[str, int]] = getattr(utils, "counters", {})
    return counters.get("stats", {}).get("unique_graphs", 0)


def _resumed() -> set[str]:
    """The compile ids of frames that go on after a graph break."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    compiled: Callable[[], Iterable[Any]] = getattr(utils, "get_compilation_metrics", list)
    return {
        str(entry.compile_id)
        for entry in compiled()
        if str(entry.co_name or "").startswith(_RESUMED)
    }
