"""Events as torch.profiler exports them, made by hand (times in microseconds)."""

from __future__ import annotations

from collections.abc import Callable

from pytest_gpuperf.measure.trace.activity import COMPONENT
from pytest_gpuperf.measure.trace.profile import ANNOTATION, Event, Trace


def kernel(begin: float, duration: float, call: int = 0, stream: int = 7, name: str = "k") -> Event:
    """A kernel that the call of this correlation id launched."""
    arguments = {"correlation": call, "stream": stream, "grid": [1, 1, 1], "block": [32, 1, 1]}
    return {**_event("kernel", name, begin, duration), "args": arguments}


def on_gpu(number: int, event: Event, context: int = 1) -> Event:
    """The same kernel or copy on the GPU that CUDA gives that number, and in that context."""
    return {**event, "args": {**event["args"], "device": number, "context": context}}


def copy(begin: float, duration: float, name: str, size: int, call: int = 0) -> Event:
    """A copy of so many bytes; the name is what follows "Memcpy "."""
    return _event("gpu_memcpy", f"Memcpy {name}", begin, duration, correlation=call, bytes=size)


def fill(begin: float, duration: float, call: int = 0) -> Event:
    """A memset."""
    return _event("gpu_memset", "Memset (Device)", begin, duration, correlation=call)


def call(begin: float, number: int, name: str = "cudaLaunchKernel", thread: int = 1) -> Event:
    """The host's call of this correlation id."""
    return _event("cuda_runtime", name, begin, 3.0, thread, correlation=number, cbid=211)


def component(begin: float, end: float, name: str) -> Event:
    """What `gpuperf.component(name)` leaves in a trace."""
    return annotated(begin, end, COMPONENT + name)


def annotated(begin: float, end: float, name: str) -> Event:
    """A range of this name."""
    return _event(ANNOTATION, name, begin, end - begin, 1)


def launched(begin: float, duration: float, number: int, at: float | None = None) -> list[Event]:
    """A kernel and the call that launched it, 5 us before it began or `at`."""
    return [call(begin - 5 if at is None else at, number), kernel(begin, duration, number)]


def _event(
    category: str, name: str, begin: float, duration: float, thread: int = 7, **arguments: object
) -> Event:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": begin,
        "dur": duration,
        "args": arguments,
    }


def ran(kinds: str, *durations: float, order: str = "") -> Trace:
    """A trace of k(ernels), c(opies) and G(raphs) of so many nanoseconds, one after the other.

    `order` has their positions, 0 to 9, as the host launched them.
    """
    order = order or "".join(map(str, range(len(kinds))))
    events: list[Event] = []
    for n, kind in enumerate(kinds):
        begin, lasts = 1000 * n, (durations or [50.0] * len(kinds))[n] / 1e3
        events.append(call(order.find(str(n)) - 1e3, n + 1, "cudaGraphLaunch" * (kind == "G")))
        copied = copy(begin, lasts, "DtoD", 8, n + 1)
        events.append(copied if kind == "c" else kernel(begin, lasts, n + 1, name=f"k{n}"))
    return Trace(events)


def named(*kernels: str) -> Trace:
    """A trace of kernels of these names."""
    return Trace([kernel(10 * n, 1, n + 1, name=name) for n, name in enumerate(kernels)])


def shows(made: Trace) -> Callable[..., Trace]:
    """In place of `profile.trace`: executes the step, and this is what its trace has."""

    def traced(step: Callable[[], object], *_: object, **__: object) -> Trace:
        step()
        return made

    return traced
