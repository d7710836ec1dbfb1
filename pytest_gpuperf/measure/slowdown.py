"""Known slowdowns, which `gpuperf prove` puts into a measured step from outside.

The amounts follow from the step as it was measured without a slowdown, so that every process puts
in the same. A slowdown acts before each call of one layer; in a step that calls none, before it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from types import FrameType, FunctionType
from typing import Any
from unittest import mock

from pytest_gpuperf.measure.collector import Work
from pytest_gpuperf.measure.instrument import PROVING
from pytest_gpuperf.model.measurement import (
    SLOWDOWN,
    SLOWDOWN_AT,
    SLOWDOWN_SHARE,
    STEP,
    Measurement,
    Scalar,
)

GPU, CPU = "cuda", "cpu"
"""The devices of a step's tensors."""
_FIRST, _LARGEST, _TF32, _WHOLE = "first", "largest", "largest in TF32", "whole step"
"""Where a slowdown is put in, if not in any layer; the whole step has no line of code."""
_TRAINING = 3
"""The multiplications of a training step, in those of its forward pass."""
_SIDE = 1024
_COPIED, _LAUNCHED, _LAID_OUT = 12e6, 500.0, 2e9 / (8 * _SIDE**2)
"""What a GPU is assumed to do in a millisecond: bytes copied from pageable memory, tiny kernels,
and layouts of a matrix. Where that is too much, a slowdown is larger than asked for."""
_KEPT = 0.03
"""The part of the step's peak memory that is kept, or allocated."""

Dose = tuple[str, float, float]
"""A slowdown with its size, and its amount in one execution of the step."""
Act = Callable[["SlowedStep"], AbstractContextManager[object] | None]
"""What a slowdown does before a call; a context that it returns is around the call."""


@dataclass
class Layer:
    """A module with a weight that a step calls."""

    module: Any
    calls: int = 0
    products: float = 0.0
    """Multiplications in all calls, by the shapes of weight and results."""
    is_tf32: bool = False


@dataclass(frozen=True)
class Slowdown:
    """A kind of slowdown."""

    act: Act
    does: str
    """What happens in the step, for people to read."""
    devices: tuple[str, ...]
    shares: tuple[float, ...] = (0.0,)
    """Its sizes as shares of the step's time, the largest first; 0 for one without a size."""
    of: str = ""
    """The metric of the step that the amount follows from."""
    rate: float = 1.0
    """The amount for one unit of this metric."""
    place: str = ""
    needs: str = ""
    """A metric that must not be zero."""

    def fitting(self, layers: Sequence[Layer]) -> Sequence[Layer]:
        """Those of the layers that it may be put into."""
        if self.place in (_LARGEST, _TF32):
            able = [layer for layer in layers if layer.is_tf32 or self.place == _LARGEST]
            return sorted(able, key=lambda layer: -layer.products)[:1]
        return {_FIRST: layers[:1], _WHOLE: ()}.get(self.place, layers)


SLOWDOWNS: dict[str, Slowdown] = {}
"""All kinds by name, the most telling first: a sample begins with these."""
_TIMED: Any = {"of": "step_time", "shares": (0.01,)}
_COMPILED: Any = {"place": _WHOLE, "needs": "compiled_graphs"}


def _slowdown(name: str, does: str, *devices: str, **how: Any) -> Callable[[Act], Act]:
    """Makes the function a kind of slowdown: on these devices, and as the fields of it say."""

    def known(act: Act) -> Act:
        SLOWDOWNS[name] = Slowdown(act, does, devices, **how)
        return act

    return known


@cache
def _library() -> Any:
    """The library of the operator `spin`, which exists as long as this: operators have lines."""
    import torch

    untyped: Any = torch.library
    library = untyped.Library("gpuperf", "FRAGMENT")
    library.define("spin(int cycles) -> ()")
    library.impl("spin", torch.cuda._sleep, "CompositeExplicitAutograd")
    return library


@_slowdown("spin", "a kernel spins", GPU, shares=(0.03, 0.01, 0.003), of="cycles")
def _spin(put: SlowedStep) -> None:
    import torch

    _library()
    torch.ops.gpuperf.spin(int(put.amount))


@_slowdown("again", "a layer is computed again", GPU, CPU, shares=(0.03,), place=_LARGEST)
def _again(put: SlowedStep) -> None:
    import torch

    with torch.no_grad():
        for _ in range(max(1, math.ceil(_TRAINING * put.share / put.part))):
            put.call()


@_slowdown("synchronisation", "the host waits for the GPU", GPU)
def _synchronize(_: SlowedStep) -> None:
    import torch

    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    event.synchronize()
    torch.cuda.current_stream().synchronize()
    torch.cuda.synchronize()


@_slowdown("kept tensor", "a tensor outlives the step", GPU, CPU, of="peak_memory", rate=_KEPT)
def _keep(put: SlowedStep) -> None:
    put.kept.append(put.tensor())


@_slowdown(
    "wait", "the host sleeps", GPU, shares=(0.03, 0.01), of="step_time", rate=1e-3, place=_FIRST
)
def _wait(put: SlowedStep) -> None:
    time.sleep(put.amount)


@_slowdown("pageable copy", "pageable memory is copied to the GPU", GPU, **_TIMED, rate=_COPIED)
def _copy_pageable(put: SlowedStep) -> None:
    put.tensor().copy_(put.tensor(device=CPU))


@_slowdown("allocation", "the driver is asked for memory", GPU, of="peak_memory", rate=_KEPT)
def _allocate(put: SlowedStep) -> None:
    import torch

    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        put.tensor()


@_slowdown("layout", "a tensor gets another layout", GPU, CPU, **_TIMED, rate=_LAID_OUT)
def _lay_out(put: SlowedStep) -> None:
    import torch

    matrix = torch.ones(_SIDE, _SIDE, device=put.device)
    for _ in range(max(1, int(put.amount))):
        matrix.t().contiguous()


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


@_slowdown("float32", "a TF32 layer runs in float32", GPU, place=_TF32)
def _in_float32(put: SlowedStep) -> AbstractContextManager[object]:
    owner, name, value = _precision_of(put.layer.module)
    after = ExitStack()
    after.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)
    return after


@_slowdown("launches", "tiny kernels are launched", GPU, **_TIMED, rate=_LAUNCHED)
def _launch(put: SlowedStep) -> None:
    small = put.tensor()[:1]
    for _ in range(max(1, int(put.amount))):
        small.add_(1)


@_slowdown("copies", "the GPU's and pinned memory are copied", GPU, **_TIMED, rate=_COPIED / 4)
def _copy(put: SlowedStep) -> None:
    on_device, pinned = put.tensor(), put.tensor(device=CPU, pin_memory=True)
    on_device.copy_(pinned, non_blocking=True)
    pinned.copy_(on_device, non_blocking=True)
    put.tensor().copy_(on_device)
    put.tensor(device=CPU).copy_(on_device)


@_slowdown("saved", "a tensor is saved for backward", CPU, of="peak_memory", rate=_KEPT / 4)
def _save(put: SlowedStep) -> None:
    import torch

    with torch.inference_mode(mode=False), torch.enable_grad():
        put.tensor(dtype=torch.float32, requires_grad=True).exp()


def _breaks(x: Any) -> Any:
    import torch

    x = x + 1
    torch._dynamo.graph_break()
    return x + 1


@_slowdown("recompilation", "each step compiles code with a break", GPU, CPU, **_COMPILED)
def _compile(put: SlowedStep) -> None:
    import torch

    # dynamo keeps what it has compiled by the code object.
    function = FunctionType(_breaks.__code__.replace(), _breaks.__globals__)
    torch.compile(function, backend="eager")(put.tensor())


@_slowdown("uncompiled", "compiled code runs eagerly", GPU, CPU, **_COMPILED)
def _uncompiled(_: SlowedStep) -> AbstractContextManager[object]:
    from pytest_gpuperf.measure.trace.call_sites import uncompiled

    return uncompiled()


def slowed_steps(
    work: Work, device: str, root: Path, measured: Callable[[], Measurement]
) -> list[SlowedStep]:
    """The step with each slowdown: the session chooses them, and its fresh processes read them.

    `measured` measures the step without one. A sample begins where that of the measurement before
    ended. For `device` and `root` see SlowedStep.
    """
    most, _, folder = os.environ[PROVING].partition(" ")
    file = Path(folder) / hashlib.sha256(f"{work.test} {work.name}".encode()).hexdigest()
    plain = None if file.exists() else measured()
    layers = layers_of(work.step)
    work.reset()
    if plain is not None:
        doses = _doses(plain, device, layers)
        begin = len(list(file.parent.iterdir())) * int(most) % len(doses)
        sample = [*doses[begin:], *doses[:begin]][: int(most) or None]
        file.write_text(json.dumps(sample), encoding="utf-8")
    doses = json.loads(file.read_text(encoding="utf-8"))
    return [SlowedStep(dose, work, layers, device, root) for dose in doses]


def _doses(measured: Measurement, device: str, layers: Sequence[Layer]) -> list[Dose]:
    """Every slowdown that the step can have, each largest size before all smaller ones."""
    values = {s.metric: median(s.values) for s in measured.samples if s.phase == STEP}
    sizes = [
        (number, (name, share, (share or 1.0) * kind.rate * values.get(kind.of, 0.0)))
        for name, kind in SLOWDOWNS.items()
        if device in kind.devices
        and (not kind.needs or values.get(kind.needs))
        and (kind.place not in (_LARGEST, _TF32) or kind.fitting(layers))
        # A CPU's times are not judged: nothing has a size.
        for number, share in enumerate(kind.shares if "step_time" in values else (0.0,))
    ]
    return [dose for _, dose in sorted(sizes, key=lambda size: size[0])]


class SlowedStep:
    """A step with one slowdown in it."""

    def __init__(self, dose: Dose, work: Work, layers: Sequence[Layer], device: str, root: Path):
        """Of the step's `layers` it takes one that fits, the same in every process.

        `device` is that of the step's tensors; lines of code are relative to `root`.
        """
        self.slowdown, self.share, self.amount = dose
        """The amount is that before each call: bytes, cycles, or a number."""
        self.device = device
        self.part = 1.0
        """The layer's part of the step's multiplications."""
        self.call: Callable[[], object] = work.step
        """Makes the present call once more; held by nothing after it, since it has its inputs."""
        self.kept: list[object] = []
        """Tensors of a leak, until a reset."""
        self._kind, self._work, self._root, self._at = SLOWDOWNS[self.slowdown], work, root, ""
        self.layer: Any = None
        if fitting := self._kind.fitting(layers):
            number = zlib.crc32(f"{work.test} {work.name} {self.slowdown}".encode())
            self.layer = fitting[number % len(fitting)]
            self.amount /= self.layer.calls
            self.part = self.layer.products / sum(layer.products for layer in layers)

    def __str__(self) -> str:
        """The slowdown as people read it: "spin 1 %"."""
        return f"{self.slowdown} {100 * self.share:g} %" if self.share else self.slowdown

    def settings(self) -> dict[str, Scalar]:
        """The settings of the measurement."""
        return {SLOWDOWN: self.slowdown, SLOWDOWN_SHARE: self.share, SLOWDOWN_AT: self._at}

    def tensor(self, **options: Any) -> Any:
        """A new tensor of `amount` elements, at least one: bytes on the step's device."""
        import torch

        size = max(1, int(self.amount))
        return torch.ones(size, **{"device": self.device, "dtype": torch.uint8, **options})

    def reset(self) -> None:
        """Puts the step's state back, and frees what a leak has kept."""
        self.kept.clear()
        self._work.reset()

    def step(self) -> object:
        """Executes the step with the slowdown."""
        if self.layer is None:
            return self._slowed(self._work.step)
        forward = self.layer.module.forward

        def slowed(*args: Any, **kwargs: Any) -> object:
            return self._slowed(partial(forward, *args, **kwargs))

        with mock.patch.object(self.layer.module, "forward", slowed):
            return self._work.step()

    def _slowed(self, call: Callable[[], object]) -> object:
        from pytest_gpuperf.measure.trace.call_sites import FrameFinder

        if self._kind.place != _WHOLE and not self._at:
            self._at = FrameFinder(self._root).innermost().line
        with mock.patch.object(self, "call", call), self._kind.act(self) or nullcontext():
            return call()


def layers_of(step: Callable[[], object]) -> list[Layer]:
    """The layers that the step calls outside of compiled code, by one execution.

    The interpreter is watched, since hooks on all modules would have compiled code compiled again.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    calls: Any = torch.nn.Module._call_impl
    layers: dict[int, Layer] = {}

    def watch(frame: FrameType, event: str, returned: object) -> None:
        if frame.f_code is not calls.__code__ or event != "return":
            return
        module = frame.f_locals["self"]
        weight: Any = getattr(module, "weight", None)
        results = [one for one in tree_leaves(returned) if isinstance(one, torch.Tensor)]
        if results and isinstance(weight, torch.Tensor) and weight.ndim > 1:
            layer = layers.setdefault(id(module), Layer(module))
            layer.calls += 1
            layer.products += results[0].numel() * weight.numel() / weight.shape[0]
            layer.is_tf32 = results[0].dtype is torch.float32 and in_tf32(module)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        step()
    finally:
        sys.setprofile(before if callable(before) else None)  # cProfile is not
    return [*layers.values()]
