"""Events as torch.profiler exports them, made by hand (times in microseconds), and timelines."""

from __future__ import annotations

from typing import Any

from pytest_gpuperf.measure.trace.activity import COMPONENT
from pytest_gpuperf.measure.trace.profile import Event
from pytest_gpuperf.model.measurement import Timeline


def kernel(begin: float, duration: float, call: int = 0, stream: int = 7, name: str = "k") -> Event:
    """A kernel that the call of this correlation id launched."""
    arguments = {"correlation": call, "stream": stream, "grid": [1, 1, 1], "block": [32, 1, 1]}
    return _on_device("kernel", name, begin, duration, arguments)


def copy(begin: float, duration: float, name: str, size: int, call: int = 0) -> Event:
    """A copy of so many bytes; the name is what follows "Memcpy "."""
    arguments = {"correlation": call, "stream": 7, "bytes": size}
    return _on_device("gpu_memcpy", f"Memcpy {name}", begin, duration, arguments)


def fill(begin: float, duration: float, call: int = 0) -> Event:
    """A memset."""
    return _on_device("gpu_memset", "Memset (Device)", begin, duration, {"correlation": call})


def call(begin: float, number: int, name: str = "cudaLaunchKernel", thread: int = 1) -> Event:
    """The host's call of this correlation id."""
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": begin,
        "dur": 3.0,
        "args": {"correlation": number, "cbid": 211},
    }


def component(begin: float, end: float, name: str, thread: int = 1) -> Event:
    """What `gpuperf.component(name)` leaves in a trace that knows the host."""
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": COMPONENT + name,
        "pid": 1,
        "tid": thread,
        "ts": begin,
        "dur": end - begin,
        "args": {"External id": 1},
    }


def launched(begin: float, duration: float, number: int, at: float | None = None) -> list[Event]:
    """A kernel and the call that launched it, 5 us before it began or `at`."""
    return [
        call(begin - 5 if at is None else at, number),
        kernel(begin, duration, number),
    ]


def points(timeline: Timeline, phase: str, metric: str) -> list[float]:
    """The points of a timeline that are wholly inside a phase."""
    (at,) = (entry for entry in timeline.phases if entry.name == phase)
    return [
        value
        for number, value in enumerate(timeline.series[metric])
        if at.begin <= timeline.begin + number * timeline.interval
        and timeline.begin + (number + 1) * timeline.interval <= at.end
        and value is not None
    ]


def _on_device(
    category: str, name: str, begin: float, duration: float, arguments: dict[str, Any]
) -> Event:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": begin,
        "dur": duration,
        "args": {"device": 0, **arguments},
    }
