"""Calls of the host other than launches: its waits and its requests for memory.

They come from the CUDA calls of a trace, and for torch.compile from the ranges that it opens. They
are the same on every GPU, and need no permission to read counters.
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
"""Calls that free memory. No metric counts them: freed memory is requested anew, but their line is
the cause."""
_LOOKED_AT = {*WAITING, *ALLOCATING, *FREEING}
_COMPILED = "Torch-Compiled Region: "
"""The prefix of the ranges that execute a compiled graph, followed by its compile id, "0/0"."""
_RESUMED = "torch_dynamo_resume_in_"
"""The prefix of dynamo's functions after a graph break, followed by "forward_at_12"."""
_EXPLAINED = "Explanation: "
_REASON = 200
"""Characters of a reason that are kept."""


def during(trace: Trace) -> list[tuple[float, str]]:
    """The time and name of each CUDA call in the step that waits or manages memory."""
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
    """The work of torch.compile in an execution that is not the first."""

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
        graphs = [] if trace is None else _graphs(trace)
        resumed = _resumed() if graphs else {}
        return {
            "compiled_graphs": float(len(graphs)),
            "graph_breaks": float(sum(graph in resumed for graph in graphs)),
            "recompilations": float(_compilations() - self._before),
        }


def graph_breaks(trace: Trace) -> list[tuple[str, list[tuple[str, int, str]]]]:
    """Why torch.compile left a graph, each time that an execution went on after it.

    As dynamo says it, with the frames there: file, line and function, the outermost first.
    """
    graphs = _graphs(trace)
    resumed = _resumed() if graphs else {}
    utils: Any = sys.modules.get("torch._dynamo.utils")
    breaks = [one for one in getattr(utils, "graph_break_reasons", ()) if one.user_stack]
    frames = [[(f.filename, f.lineno, f.name) for f in one.user_stack] for one in breaks]
    at = {stack[0][:2]: number for number, stack in enumerate(frames)}
    known = [at[place] for one in graphs if (place := resumed.get(one)) in at]
    # Dynamo's explanation, or the first line of its message.
    told = [str(one.reason).split(_EXPLAINED, 1)[-1].partition("\n")[0] for one in breaks]
    return [(told[number][:_REASON], frames[number]) for number in known]


def _graphs(trace: Trace) -> list[str]:
    """The compile ids of the graphs that were executed, in their order."""
    since, until = trace.step
    regions = trace.ranges(_COMPILED, OPERATOR)
    return [one.name.split()[0] for one in regions if since <= one.begin <= until]


def _compilations() -> int:
    """The number of graphs compiled in this process; torch._dynamo.reset does not clear it."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    counters: Mapping[str, Mapping[str, int]] = getattr(utils, "counters", {})
    return counters.get("stats", {}).get("unique_graphs", 0)


def _resumed() -> dict[str, tuple[str, int]]:
    """The file and line of the graph break, by compile id, for frames that resume after one."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    compiled: Callable[[], Iterable[Any]] = getattr(utils, "get_compilation_metrics", list)
    resumed = {}
    for entry in compiled():
        name = str(entry.co_name or "")
        if name.startswith(_RESUMED):
            line = name.rpartition("_at_")[2]
            at = int(line) if line.isdecimal() else 0
            resumed[str(entry.compile_id)] = str(entry.co_filename), at
    return resumed
