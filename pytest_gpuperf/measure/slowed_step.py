"""A measured step with a known slowdown in it, put in from outside for `gpuperf prove`.

The slowdown acts after one call of a module; in a step that calls none, at its beginning. The first
execution runs the step once without the slowdown, to find that place.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

from pytest_gpuperf.measure.collector import Work
from pytest_gpuperf.measure.instrument import PROVING
from pytest_gpuperf.measure.slowdown import SLOWDOWNS, Call, Dose, Injection, in_tf32
from pytest_gpuperf.model.measurement import (
    SLOWDOWN,
    SLOWDOWN_ABSENT,
    SLOWDOWN_AT,
    SLOWDOWN_SHARE,
    STEP,
    Measurement,
    Scalar,
)


@dataclass(frozen=True)
class SlowdownPlace:
    """A call of a module in a step, where a slowdown can be put in."""

    of: Any
    """The module."""
    result: Any
    """The first tensor of its result, without memory: only shape and type."""
    products: float = 0.0
    """Multiplications, by the shapes of weight and result; 0 without a weight."""


FITTING: Mapping[str, Callable[[SlowdownPlace], bool]] = {
    "any": lambda _: True,
    "first": lambda _: True,
    "product": lambda place: place.products > 0,
    "tf32": lambda place: (
        place.products > 0 and place.result.dtype.itemsize == 4 and in_tf32(place.of)
    ),
    "tensor": lambda place: place.result.numel() > 0,
    "matrix": lambda place: place.result.ndim > 1 and min(place.result.shape[-2:]) > 1,
    "trained": lambda place: place.result.requires_grad and place.products > 0,
}
"""Whether a slowdown of this kind of place can be put in there."""


def chosen(test: str, name: str) -> list[Dose]:
    """The slowdowns that the session has chosen for a measurement; none before that."""
    if not (file := _file(test, name)).exists():
        return []
    return [Dose(**entry) for entry in json.loads(file.read_text(encoding="utf-8"))]


def choose(measured: Measurement, device: str) -> list[Dose]:
    """Chooses the slowdowns for a measurement without one.

    A sample begins where that of the measurement before ended.
    """
    most, file = int(os.environ[PROVING].partition(" ")[0]), _file(measured.test, measured.name)
    doses = _doses(measured, device)
    begin = len(list(file.parent.iterdir())) * most % len(doses)
    doses = [*doses[begin:], *doses[:begin]][: most or None]
    file.write_text(json.dumps([asdict(dose) for dose in doses]), encoding="utf-8")
    return doses


def _file(test: str, name: str) -> Path:
    folder = Path(os.environ[PROVING].partition(" ")[2])
    return folder / f"{hashlib.sha256(f'{test} {name}'.encode()).hexdigest()}.json"


def _doses(measured: Measurement, device: str) -> list[Dose]:
    """Every slowdown that the step can have, each largest size before all smaller ones."""
    values = {s.metric: median(s.values) for s in measured.samples if s.phase == STEP}
    step_ns = 1e6 * values.get("step_time", 0.0)
    amounts = step_ns, values.get("cycles", 0.0), values.get("peak_memory", 0.0)
    kinds = [
        kind
        for kind in SLOWDOWNS.values()
        if device in kind.devices and (not kind.needs or values.get(kind.needs))
    ]
    if not step_ns:  # a CPU's times are not judged: nothing has a size
        return [Dose(kind.name, 0.0, *amounts) for kind in kinds]
    sizes = [(number, kind, s) for kind in kinds for number, s in enumerate(kind.shares)]
    return [Dose(kind.name, s, *amounts) for _, kind, s in sorted(sizes, key=lambda size: size[0])]


class SlowedStep:
    """A step with one slowdown in it."""

    def __init__(
        self, dose: Dose, work: Work, device: str, root: Path, places: list[SlowdownPlace]
    ) -> None:
        """`device` is that of the step's tensors; lines of code are relative to `root`.

        `places` are shared by all slowdowns of one step: the first that is executed finds them.
        """
        self._put, self._places = Injection(dose, device), places
        self._work, self._root = work, root
        self._kind = SLOWDOWNS[dose.slowdown]
        self._place: SlowdownPlace | None = None
        self._share = 1.0
        self._is_found = False
        self._at = self._absent = ""

    def settings(self) -> dict[str, Scalar]:
        """The settings of the measurement."""
        dose = self._put.dose
        said = {SLOWDOWN_AT: self._at, SLOWDOWN_ABSENT: self._absent}
        known = {key: one for key, one in said.items() if one}
        return {SLOWDOWN: dose.slowdown, SLOWDOWN_SHARE: dose.share, **known}

    def reset(self) -> None:
        """Puts the step's state back, and frees what a leak has kept."""
        self._put.kept.clear()
        self._work.reset()

    def step(self) -> object:
        """Executes the step with the slowdown."""
        if not self._is_found:
            self._is_found = True
            self._find()
        with self._put_in():
            return self._work.step()

    def _find(self) -> None:
        """Chooses the place, the same in every process."""
        if self._kind.place == "step":
            return
        if not self._places:
            self._places += modules_of(self._work.step)
            self._work.reset()
        fitting = [place for place in self._places if FITTING[self._kind.place](place)]
        if not fitting:
            if self._kind.place not in ("any", "first"):
                self._absent = "no module that the step calls outside of compiled code fits"
            return
        number = zlib.crc32(f"{self._work.test} {self._work.name} {self._kind.name}".encode())
        self._place = fitting[0 if self._kind.place == "first" else number % len(fitting)]
        if self._kind.place in ("product", "tf32"):
            self._place = max(fitting, key=lambda place: place.products)
            self._share = self._place.products / sum(place.products for place in self._places)

    def _put_in(self) -> AbstractContextManager[object]:
        if self._absent:
            return nullcontext()
        if self._place is None:
            self._act(Call(self._put.buffer("empty", 0)))
            return self._kind.around(None) if self._kind.around else nullcontext()
        return self._hooked(self._place.of)

    def _around(self, module: Any) -> AbstractContextManager[object]:
        self._at = self._at or self._line()
        return self._kind.around(module) if self._kind.around else nullcontext()

    def _act(self, call: Call) -> object:
        if self._kind.place != "step":
            self._at = self._at or self._line()
        return self._kind.act(self._put, call) if self._kind.act else None

    @contextmanager
    def _hooked(self, module: Any) -> Iterator[None]:
        """The slowdown acts at the first call of this module; one that replaces it, at each."""
        called = 0

        def before(*_: object) -> None:
            if not called:
                around.enter_context(self._around(module))

        def after(_: object, args: Any, kwargs: Any, result: Any) -> object:
            nonlocal called
            called += 1
            around.close()
            if called > 1 and self._kind.place != "trained":
                return None
            again = partial(module.forward, *args, **kwargs)
            return self._act(Call(tensor_of(result), again, self._share))

        with ExitStack() as around:
            hooks = [
                module.register_forward_pre_hook(before),
                module.register_forward_hook(after, with_kwargs=True),
            ]
            try:
                yield
            finally:
                for hook in hooks:
                    hook.remove()

    def _line(self) -> str:
        """The line of code that is executed, as call sites have it; "" where there is none."""
        from pytest_gpuperf.measure.trace.call_sites import FrameFinder

        finder = FrameFinder(self._root)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if file := finder.named(Path(frame.f_code.co_filename)):
                return f"{file}:{frame.f_lineno}"
            frame = frame.f_back
        return ""


def modules_of(step: Callable[[], object]) -> list[SlowdownPlace]:
    """The innermost modules that the step calls outside of compiled code, by one execution.

    The interpreter is watched, since hooks on all modules would have compiled code compiled again.
    """
    import torch

    calls: Any = torch.nn.Module._call_impl
    under_way: list[list[Any]] = []
    places: list[SlowdownPlace] = []

    def watch(frame: FrameType, event: str, returned: object) -> None:
        if frame.f_code is not calls.__code__:
            return
        if event == "call":
            if under_way:
                under_way[-1][1] = False
            under_way.append([frame.f_locals["self"], True])
        elif event == "return":
            module, is_innermost = under_way.pop()
            tensor = tensor_of(returned)
            if is_innermost and tensor is not None:
                weight: Any = getattr(module, "weight", None)
                is_product = isinstance(weight, torch.Tensor) and weight.ndim > 1
                times = weight.numel() / weight.shape[0] if is_product else 0.0
                places.append(SlowdownPlace(module, _shape(tensor), times * tensor.numel()))

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        step()
    finally:
        sys.setprofile(before if callable(before) else None)  # cProfile is not
    return places


def tensor_of(result: object) -> Any:
    """The first tensor in what a module returned; None if there is none."""
    import torch
    from torch.utils._pytree import tree_leaves

    return next((leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)), None)


def _shape(tensor: Any) -> Any:
    import torch

    return torch.empty_like(tensor, device="meta", requires_grad=tensor.requires_grad)
