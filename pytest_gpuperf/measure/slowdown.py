"""Known slowdowns, which `gpuperf prove` puts into a step from outside: what each does.

The amounts follow from the step as it was measured without a slowdown, so that every process puts
in the same. `slowed_step.py` chooses the place.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import FunctionType
from typing import Any

from pytest_gpuperf.measure.collector import no_reset

GPU, CPU = "cuda", "cpu"
"""The devices of a step's tensors."""
_LAUNCH_NS, _COPY_BYTES_PER_NS, _MOVED_BYTES_PER_NS = 2000.0, 12.0, 2000.0
"""Assumptions: the time of a tiny kernel, and the speeds of a copy from pageable memory and of one
within a GPU. Where they are too high, a slowdown is larger than asked for."""
_KEPT = 0.03
"""The part of the step's peak memory that is kept, or allocated."""
_TRAINING = 3
"""The multiplications of a training step, in those of its forward pass."""
_SIDE = 128


@dataclass(frozen=True)
class Dose:
    """One slowdown for one measurement, and the step's values that its amount follows from."""

    slowdown: str
    share: float = 0.0
    """Of the step's time; 0 for a slowdown without a size."""
    step_ns: float = 0.0
    cycles: float = 0.0
    peak_bytes: float = 0.0

    @property
    def time_ns(self) -> float:
        """The time that the slowdown takes."""
        return self.share * self.step_ns

    def __str__(self) -> str:
        """The slowdown as people read it: "spin 1 %"."""
        return f"{self.slowdown} {100 * self.share:g} %" if self.share else self.slowdown


@dataclass
class Injection:
    """A slowdown in a process, and what it holds there."""

    dose: Dose
    device: str
    kept: list[object] = field(default_factory=list)
    """Tensors of a leak, until a reset."""
    buffers: dict[str, Any] = field(default_factory=dict)

    def buffer(self, name: str, size: int, **options: Any) -> Any:
        """A tensor of `size` bytes on the step's device, the same in each execution."""
        import torch

        if name not in self.buffers:
            options = {"device": self.device, "dtype": torch.uint8, **options}
            self.buffers[name] = torch.ones(max(1, size), **options)
        return self.buffers[name]

    def memory(self) -> Any:
        """A new tensor of the size that is kept or allocated."""
        import torch

        size = max(1, int(_KEPT * self.dose.peak_bytes))
        return torch.ones(size, device=self.device, dtype=torch.uint8)


@dataclass
class Call:
    """A call of a module that has just returned."""

    result: Any
    """The first tensor of its result; an empty one where the step begins."""
    again: Callable[[], object] = no_reset
    """Makes the call once more."""
    share: float = 1.0
    """Its share of the step's multiplications."""


Act = Callable[[Injection, Call], object]
"""What a slowdown does after a call; a tensor that it returns replaces the module's."""
Around = Callable[[Any], AbstractContextManager[object]]
"""A context for a call of this module, or for a whole step: then the module is None."""


@dataclass(frozen=True)
class Slowdown:
    """A kind of slowdown."""

    name: str
    does: str
    """What happens in the step, for people to read."""
    act: Act | None = None
    around: Around | None = None
    devices: tuple[str, ...] = (GPU,)
    shares: tuple[float, ...] = (0.0,)
    """Its sizes as shares of the step's time, the largest first."""
    place: str = "any"
    """Where it can be put in: a key of `slowed_step.FITTING`, or "step" for the whole step, which
    has no line of code."""
    needs: str = ""
    """A metric that must not be zero."""


@cache
def _library() -> Any:
    """The library of the operator `spin`, which exists as long as this: operators have lines."""
    import torch

    untyped: Any = torch.library
    library = untyped.Library("gpuperf", "FRAGMENT")
    library.define("spin(int cycles) -> ()")
    library.impl("spin", torch.cuda._sleep, "CompositeExplicitAutograd")
    return library


def _spin(put: Injection, _: Call) -> None:
    import torch

    _library()
    torch.ops.gpuperf.spin(int(put.dose.share * put.dose.cycles))


def _again(put: Injection, call: Call) -> None:
    import torch

    with torch.no_grad():
        for _ in range(max(1, math.ceil(_TRAINING * put.dose.share / call.share))):
            call.again()


def _synchronize(_: Injection, __: Call) -> None:
    import torch

    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    event.synchronize()
    torch.cuda.current_stream().synchronize()
    torch.cuda.synchronize()


def _wait(put: Injection, _: Call) -> None:
    time.sleep(put.dose.time_ns / 1e9)


def _copy_pageable(put: Injection, _: Call) -> None:
    size = int(put.dose.time_ns * _COPY_BYTES_PER_NS)
    put.buffer("device", size).copy_(put.buffer("pageable", size, device=CPU))


def _copy(put: Injection, _: Call) -> None:
    size = int(put.dose.time_ns * _COPY_BYTES_PER_NS / 4)
    on_device = put.buffer("device", size)
    pinned = put.buffer("pinned", size, device=CPU, pin_memory=True)
    on_device.copy_(pinned, non_blocking=True)
    pinned.copy_(on_device, non_blocking=True)
    put.buffer("other", size).copy_(on_device)
    put.buffer("pageable", size, device=CPU).copy_(on_device)


def _allocate(put: Injection, _: Call) -> None:
    import torch

    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        put.memory()


def _keep(put: Injection, _: Call) -> None:
    put.kept.append(put.memory())


def _launch(put: Injection, _: Call) -> None:
    small = put.buffer("small", 1)
    for _number in range(max(1, int(put.dose.time_ns / _LAUNCH_NS))):
        small.add_(1)


def _lay_out(put: Injection, call: Call) -> None:
    of = call.result.detach()
    moved = 2 * of.numel() * of.element_size()
    for _ in range(max(1, math.ceil(put.dose.time_ns * _MOVED_BYTES_PER_NS / moved))):
        of.transpose(-1, -2).contiguous()


def _clone(_: Injection, call: Call) -> None:
    call.result.detach().clone()


def _multiply(put: Injection, _: Call) -> None:
    import torch

    factor = put.buffer("factor", _SIDE * _SIDE, dtype=torch.float32).view(_SIDE, _SIDE)
    torch.mm(factor, factor)


def _save(_: Injection, call: Call) -> Any:
    import torch

    return call.result * torch.ones_like(call.result)


def _compiled(put: Injection, function: Callable[[Any], Any]) -> None:
    import torch

    torch.compile(function, backend="eager")(put.buffer("small", 1))


def _breaks(x: Any) -> Any:
    import torch

    x = x + 1
    torch._dynamo.graph_break()
    return x + 1


def _adds(x: Any) -> Any:
    return x + 1


def _break(put: Injection, _: Call) -> None:
    _compiled(put, _breaks)


def _recompile(put: Injection, _: Call) -> None:
    # dynamo keeps what it has compiled by the code object.
    _compiled(put, FunctionType(_adds.__code__.replace(), _adds.__globals__))


def _precision_of(module: Any) -> tuple[Any, str, Any]:
    """The setting for the precision of this module's products: owner, name, value for float32."""
    import torch

    backends: Any = torch.backends
    is_product = isinstance(module, torch.nn.Linear)
    if hasattr(backends.cuda.matmul, "fp32_precision"):
        return backends.cuda.matmul if is_product else backends.cudnn.conv, "fp32_precision", "ieee"
    return backends.cuda.matmul if is_product else backends.cudnn, "allow_tf32", False


def in_tf32(module: Any) -> bool:
    """Whether the products of this float32 module are computed in TF32."""
    owner, name, _ = _precision_of(module)
    return getattr(owner, name) in ("tf32", True)


@contextmanager
def _in_float32(module: Any) -> Iterator[None]:
    owner, name, value = _precision_of(module)
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _uncompiled(_: object) -> AbstractContextManager[object]:
    from pytest_gpuperf.measure.trace.call_sites import uncompiled

    return uncompiled()


_BOTH, _ONE, _THREE = (GPU, CPU), (0.01,), (0.03,)
_COMPILED: Any = {"devices": _BOTH, "place": "step", "needs": "compiled_graphs"}
SLOWDOWNS = {
    kind.name: kind
    for kind in (
        Slowdown("spin", "a kernel spins", _spin, shares=(0.03, 0.01, 0.003)),
        Slowdown("again", "a layer is computed again", _again, None, _BOTH, _THREE, "product"),
        Slowdown("synchronisation", "the host waits for the GPU", _synchronize),
        Slowdown("kept tensor", "a tensor outlives the step", _keep, None, _BOTH),
        Slowdown("wait", "the host sleeps", _wait, shares=(0.03, 0.01), place="first"),
        Slowdown(
            "pageable copy", "pageable memory is copied to the GPU", _copy_pageable, shares=_ONE
        ),
        Slowdown("allocation", "the driver is asked for memory", _allocate),
        Slowdown("layout", "a tensor gets another layout", _lay_out, None, _BOTH, _ONE, "matrix"),
        Slowdown("copy", "a result is copied", _clone, None, (CPU,), place="tensor"),
        Slowdown("float32", "a TF32 layer runs in float32", None, _in_float32, place="tf32"),
        Slowdown("launches", "tiny kernels are launched", _launch, shares=_ONE),
        Slowdown("copies", "the GPU's and pinned memory are copied", _copy, shares=_ONE),
        Slowdown("product", "a matrix product is added", _multiply, None, (CPU,)),
        Slowdown("saved", "a tensor is saved for backward", _save, None, (CPU,), place="trained"),
        Slowdown("graph break", "compiled code is left", _break, **_COMPILED),
        Slowdown("recompilation", "each step compiles", _recompile, **_COMPILED),
        Slowdown("uncompiled", "compiled code runs eagerly", None, _uncompiled, **_COMPILED),
    )
}
"""All kinds by name, the most telling first: a sample begins with these."""
