"""Calls of the host beside launches: where it waited, and what memory it asked for.

Read from the CUDA calls of a trace, and of torch.compile from the ranges that it opens in one. They
are the same on every GPU, and nobody's right to read counters is needed for them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pytest_gpuperf.measure.trace.profile import ANNOTATION, LAUNCHING, STEP_RANGE, Event

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


def during(traced: Sequence[Event]) -> list[tuple[float, str]]:
    """When each call of CUDA began, in the trace's time, and its name: of waits, and of memory.

    Those of the step only, where the trace says when that was.
    """
    since, until = within(traced)
    made = (
        (float(event["ts"]), plain(str(event["name"])))
        for event in traced
        if event.get("cat") in LAUNCHING
    )
    return sorted((at, name) for at, name in made if name in _LOOKED_AT and since <= at <= until)


def plain(name: str) -> str:
    """The name of a call without the version of the API: "cudaMalloc_v3020" is cudaMalloc."""
    return name.partition("_")[0]


def within(traced: Sequence[Event]) -> tuple[float, float]:
    """When the step began and ended, in the trace's time; all of it where nobody said."""
    for event in traced:
        if event.get("cat") == ANNOTATION and event.get("name") == STEP_RANGE:
            return float(event["ts"]), float(event["ts"]) + float(event["dur"])
    return float("-inf"), float("inf")


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

    def counted(self, traced: Sequence[Event]) -> dict[str, float]:
        """The metrics of the execution since this was made, by name, from its trace with `host`."""
        since, until = within(traced)
        graphs = [
            str(event["name"]).removeprefix(_COMPILED).split()[0]
            for event in traced
            if str(event.get("name", "")).startswith(_COMPILED)
            and since <= float(event["ts"]) <= until
        ]
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
