"""What of a step's work is seen on a GPU, whoever launches it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import UnsoundStep
from pytest_gpuperf.measure.collector import Plan
from tests.gpu.counted import captured, collect, medians

pytestmark = pytest.mark.gpu

CORE = catalogue().selected("core")
PLAN = Plan(
    metrics=tuple(metric for metric in CORE if not metric.traced),
    rounds=2,
    activity=tuple(metric for metric in CORE if metric.traced),
)
PRODUCTS = 8
EDGE = 2048
COUNTS = ("instructions", "cycles", "kernel_time", "launches")

Step = Callable[[], object]


def products() -> torch.Tensor:
    """The work, as a step of one thread and one stream does it."""
    x = torch.full((EDGE, EDGE), 1 / EDGE, device="cuda")  # and so are its powers
    for _ in range(PRODUCTS):
        x = x @ x
    return x


def stream() -> torch.cuda.Stream:
    make: Any = torch.cuda.Stream  # untyped in some releases
    made: torch.cuda.Stream = make()
    return made


def in_a_thread() -> None:
    thread = threading.Thread(target=products)
    thread.start()
    thread.join()


def in_a_stream_that_is_joined() -> None:
    side = stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        products()
    torch.cuda.current_stream().wait_stream(side)


def in_a_stream_that_is_not_joined() -> None:
    with torch.cuda.stream(stream()):
        products()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        made.submit(products).result()
        yield made


def counted_in(step: Step) -> dict[str, float]:
    """The medians of what a measurement of the step brings."""
    return medians(collect(step, PLAN))


def alike(step: Step) -> None:
    """Holds a step against the same work in the thread and the stream that are measured.

    A thread and a stream of its own take the host time, which is no matter here.
    """
    here, there = counted_in(products), counted_in(step)
    print({name: (here[name], there[name]) for name in (*COUNTS, "step_time", "wall_time")})
    assert there["launches"] == here["launches"]
    assert there["instructions"] == pytest.approx(here["instructions"], rel=0.001)
    assert there["kernel_time"] == pytest.approx(here["kernel_time"], rel=0.02)
    assert 1e6 * there["step_time"] >= 0.98 * there["kernel_time"]


@pytest.mark.parametrize(
    "step", [in_a_thread, in_a_stream_that_is_joined, in_a_stream_that_is_not_joined]
)
def test_other_threads_and_streams_are_seen_as_one_is(step: Step) -> None:
    alike(step)


def test_a_pool_made_before_the_step_is_seen(pool: ThreadPoolExecutor) -> None:
    alike(lambda: pool.submit(products).result())


def test_what_a_graph_replays_is_one_launch_and_counted_whole() -> None:
    here, there = counted_in(products), counted_in(captured(products).replay)
    print({name: (here[name], there[name]) for name in COUNTS})
    assert there["launches"] == 1
    assert there["instructions"] == pytest.approx(here["instructions"], rel=0.01)


def test_kernels_of_cupy_are_seen() -> None:
    cupy: Any = pytest.importorskip("cupy", reason="CuPy is not installed")
    kernel = cupy.RawModule(code=SPIN).get_function("spin")

    def launching(times: int) -> None:
        for _ in range(times):
            kernel((64,), (128,), ())

    few, many = (counted_in(partial(launching, times)) for times in (4, 12))
    print({name: (few[name], many[name]) for name in COUNTS})
    assert (few["launches"], many["launches"]) == (4, 12)
    assert many["instructions"] == pytest.approx(3 * few["instructions"], rel=0.05)
    assert many["kernel_time"] > 2 * few["kernel_time"]


def test_kernels_of_another_context_are_refused() -> None:
    """As PyCUDA or a library makes one: counters are read of the context that torch has."""
    x = torch.ones(8, device="cuda")
    spin = Context()

    def step() -> None:
        x.add_(0)
        for _ in range(40):
            spin.launch()

    with pytest.raises(UnsoundStep, match="1 of 41 kernels of the step ran in a second CUDA"):
        collect(step, PLAN)


class Context:
    """A CUDA context of its own, made by the driver's functions alone."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._own, torchs = ctypes.c_void_p(), ctypes.c_void_p()
        self._do("cuCtxGetCurrent", ctypes.byref(torchs))
        self._do("cuCtxCreate_v2", ctypes.byref(self._own), 0, 0)
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._do("cuModuleLoadData", ctypes.byref(module), PTX.encode())
        self._do("cuModuleGetFunction", ctypes.byref(self._function), module, b"spin")
        self._do("cuCtxSetCurrent", torchs)

    def launch(self) -> None:
        """Launches the kernel there, and waits for it."""
        self._do("cuCtxPushCurrent_v2", self._own)
        self._do("cuLaunchKernel", self._function, 64, 1, 1, 128, 1, 1, 0, None, None, None)
        self._do("cuCtxSynchronize")
        self._do("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _do(self, name: str, *arguments: object) -> None:
        assert getattr(self._cuda, name)(*arguments) == 0, name


PTX = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin()
{
    .reg .pred %p;
    .reg .b32 %r;
    mov.u32 %r, 0;
again:
    add.u32 %r, %r, 1;
    nanosleep.u32 20;
    setp.lt.u32 %p, %r, 200;
    @%p bra again;
    ret;
}
"""
SPIN = """
extern "C" __global__ void spin() {
    for (int i = 0; i < 200; ++i) __nanosleep(20);
}
"""
