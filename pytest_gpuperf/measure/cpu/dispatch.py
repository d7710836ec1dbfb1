"""Counts what a step asks of PyTorch, operator by operator, whatever device executes it.

A dispatch mode sees every ATen operator below autograd: those of backward too, which on a CPU runs
in the thread that calls it, and those of a recomputation by torch.utils.checkpoint. It does not see
what an operator does inside (a convolution that converts its input's layout by itself), nor
operators of threads that the step starts.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from pytest_gpuperf.measure.trace.call_sites import CallSiteRegistry, uncompiled
from pytest_gpuperf.model.measurement import (
    GRAPH_BREAK,
    MADE_BYTES,
    OPERATOR,
    HostCall,
    KernelTable,
    Launch,
)

aten = torch.ops.aten

# torch registers formulas for the GPU's fused attention only; the CPU's takes the same arguments.
_CPU_ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu: aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        aten._scaled_dot_product_flash_attention_backward
    ),
}

_NOT_COUNTED = {aten.detach}
"""Autograd detaches what it saves whenever someone watches it save, as `StepCounter` does."""

_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_AUTOGRAD: Any = torch._C._autograd
_disable_hooks = _AUTOGRAD._saved_tensors_hooks_disable


@dataclass
class Counts:
    """Portable counts of a step or of one phase; names and units are those of the catalogue."""

    flops: int = 0
    operators: int = 0
    copies: int = 0
    layout_copies: int = 0
    layout_copy_bytes: int = 0
    saved_bytes: int = 0


@dataclass
class _Allocation:
    """A storage that the step made."""

    nbytes: int
    operator: int | None
    """The number of the one that made it."""
    made: int
    """How many were made before it."""
    ended: int | None = None
    """How many had been made when it ended."""
    saved: bool = False


class StepCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts one execution of a step. Enter with `watching`; a `PhaseListener`.

    Operators outside every phase count for the whole step only. A phase that comes twice is summed.
    `operators`, where they are given, note each one that is counted.
    """

    def __init__(self, operators: Operators | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operators = operators
        self.step = Counts()
        """The whole step."""
        self.phases: dict[str, Counts] = {}
        """Phases in the order in which they first occur."""
        self.memory = operators.memory if operators else Memory()
        self.hooks_refused = False
        """Whether the step refused saved-tensor hooks: its saved bytes are not counted then."""
        self._hooks = ExitStack()
        self._counted_now: tuple[Counts, ...] = (self.step,)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Counts what is executed in the block by this thread; memory until `Memory.end`."""
        hooks = torch.autograd.graph.saved_tensors_hooks(self._saved, lambda tensor: tensor)
        with uncompiled(), self, _refusals_heard_by(self), self._hooks:
            self._hooks.enter_context(hooks)
            yield

    def go_without_hooks(self) -> None:
        """Counts no saved bytes from now on."""
        self.hooks_refused = True
        self._hooks.close()

    def enter(self, phase: str) -> None:
        """Counts for `phase` too, from now on."""
        self._counted_now = (self.step, self.phases.setdefault(phase, Counts()))

    def leave(self, phase: str) -> None:  # noqa: ARG002
        """Counts for the step only, from now on."""
        self._counted_now = (self.step,)

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Executes an operator and counts it."""
        kwargs = kwargs or {}
        operator = func.overloadpacket
        formula = flop_registry.get(_CPU_ATTENTION.get(operator, operator))
        if formula is None:
            # In inference mode composite operators come whole; count what they are made of.
            # `decompose` prefers what torch traces, where dropout in eval makes a clone.
            with self:
                if _has_kernel(func.name(), _COMPOSITE):
                    return func._op_dk(_COMPOSITE, *args, **kwargs)
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        counted = operator not in _NOT_COUNTED
        number = self._operators.note(str(operator)) if self._operators and counted else None
        result = func(*args, **kwargs)
        made = self.memory.note(result, (args, kwargs), number)
        flops = formula(*args, **kwargs, out_val=result) if formula else 0
        copied = list(_copied(operator, args, result))
        copies = [
            target.numel() * target.element_size()
            for source, target in copied
            if changes_stride_order(source, target)
        ]
        for counts in self._counted_now:
            counts.operators += counted
            counts.flops += flops
            counts.copies += len(copied)
            counts.layout_copies += len(copies)
            counts.layout_copy_bytes += sum(copies)
        if self._operators and number is not None:
            dtype = next((str(one.dtype) for one in _tensors((result, args))), "")
            counted_of_it = (flops, len(copied), len(copies), sum(copies), made)
            self._operators.executed(number, dtype.removeprefix("torch."), counted_of_it)
        return result

    def _saved(self, tensor: torch.Tensor) -> torch.Tensor:
        nbytes = self.memory.newly_saved(tensor)
        for counts in self._counted_now:
            counts.saved_bytes += nbytes
        return tensor


@contextmanager
def _refusals_heard_by(counter: StepCounter) -> Iterator[None]:
    """Tells `counter` where this thread disables saved-tensor hooks: torch.func's transforms do.

    torch raises where there are any: not for those of the counter.
    """
    thread = get_ident()

    def refuse(message: str, fail_if_non_empty: bool = True) -> None:
        if fail_if_non_empty and get_ident() == thread:
            counter.go_without_hooks()
        _disable_hooks(message, fail_if_non_empty)

    _AUTOGRAD._saved_tensors_hooks_disable = refuse
    try:
        yield
    finally:
        _AUTOGRAD._saved_tensors_hooks_disable = _disable_hooks


_OF_OPERATOR = ("flops", "copies", "layout_copies", "layout_copy_bytes", MADE_BYTES)
_OF_MEMORY = ("saved_bytes", "kept_memory", "peak_memory")


class Operators:
    """The operators of one execution in their order, each with where in the code it comes from.

    And with what it costs: what it counts itself, and what of the memory that it made was saved for
    backward, outlived the step, or was alive when most was.
    """

    def __init__(self, root: Path) -> None:
        self._call_sites = CallSiteRegistry(root)
        self._noted: list[str] = []
        self._site_of: list[int] = []
        self._counts: list[list[float]] = []
        self.memory = Memory(history=[])

    def note(self, operator: str) -> int:
        """One is about to be executed. Returns its number."""
        self._noted.append(operator)
        self._site_of.append(self._call_sites.here())
        self._counts.append([0.0] * len((*_OF_OPERATOR, *_OF_MEMORY)))
        return len(self._noted) - 1

    def executed(self, number: int, dtype: str, counts: tuple[int, ...]) -> None:
        """It was, and its result is of that type; `counts` are those of _OF_OPERATOR."""
        self._noted[number] = f"{self._noted[number]} {dtype}".strip()
        self._counts[number][: len(counts)] = counts

    def table(self, breaks: Iterable[tuple[str, list[tuple[str, int, str]]]] = ()) -> KernelTable:
        """What was noted, after `Memory.end`; with where and why compiled code left its graph."""
        for number, of_memory in self.memory.by_operator():
            for at, nbytes in enumerate(of_memory, len(_OF_OPERATOR)):
                self._counts[number][at] += nbytes
        names = {name: position for position, name in enumerate(dict.fromkeys(self._noted))}
        launches = [
            Launch(names[name], OPERATOR, None, None, 0.0, tuple(counts) if any(counts) else ())
            for name, counts in zip(self._noted, self._counts, strict=True)
        ]
        left = Counter((reason, self._call_sites.of(frames)) for reason, frames in breaks)
        return KernelTable(
            tuple(names),
            (*_OF_OPERATOR, *_OF_MEMORY),
            tuple(launches),
            0.0,
            sites=self._call_sites.sites,
            site_of=tuple(self._site_of),
            calls=tuple(HostCall(f"{GRAPH_BREAK}: {why}", at, n) for (why, at), n in left.items()),
        )


_LOOKING_S = 1e-3


@dataclass
class Memory:
    """Follows the storages that a step makes, from the operator that made them to their end.

    Only those count that the step made: parameters, optimizer state and inputs live with or without
    the step. Bytes are those of the tensor's storage as it was made; what an operator allocates and
    frees inside itself is not seen.
    """

    peak: int = 0
    """The most bytes that were alive at once."""
    history: list[_Allocation] | None = None
    """All that were made, where somebody asks."""
    _current: int = 0
    _made: int = 0
    _peak_at: int = 0
    # Keyed by the address of the C++ storage, which is unique among the living.
    _living: dict[int, tuple[_Allocation, weakref.ref[torch.UntypedStorage]]] = field(
        default_factory=dict
    )

    def note(self, results: object, arguments: object, operator: int | None = None) -> int:
        """Takes up storages among an operator's results that were not among its arguments.

        Returns their bytes. `operator` is its number.
        """
        before = self._current
        for tensor in _tensors(results):
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._living or any(
                argument.untyped_storage()._cdata == key for argument in _tensors(arguments)
            ):
                continue
            ended = partial(self._ended, key)
            made = _Allocation(storage.nbytes(), operator, self._made)
            self._living[key] = made, weakref.ref(storage, ended)
            if self.history is not None:
                self.history.append(made)
            self._made += 1
            self._current += storage.nbytes()
            if self._current > self.peak:
                self.peak, self._peak_at = self._current, made.made
        return self._current - before

    def newly_saved(self, tensor: torch.Tensor) -> int:
        """The bytes that saving `tensor` keeps alive and that no earlier saving did."""
        if tensor.layout is not torch.strided:
            return 0
        allocation, _ = self._living.get(tensor.untyped_storage()._cdata, (None, None))
        if allocation is None or allocation.saved:
            return 0
        allocation.saved = True
        return allocation.nbytes

    def end(self, patience_s: float = 0.0) -> int:
        """Stops following, and returns the bytes that are alive, after so many seconds still."""
        end = time.monotonic() + patience_s
        while self._living and time.monotonic() < end:
            time.sleep(_LOOKING_S)
        self._living.clear()
        return self._current

    def by_operator(self) -> Iterator[tuple[int, list[int]]]:
        """Of each of `history` who made it; its bytes where saved, where kept, and at the peak."""
        for one in self.history or ():
            if one.operator is not None:
                ended = math.inf if one.ended is None else one.ended
                at_peak = one.made <= self._peak_at < ended
                of = one.saved, one.ended is None, at_peak
                yield one.operator, [one.nbytes * applies for applies in of]

    def _ended(self, key: int, _: object) -> None:
        allocation, _ = self._living.pop(key)
        allocation.ended = self._made
        self._current -= allocation.nbytes


def changes_stride_order(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether the tensors have one shape and lie in memory in a different order of dimensions.

    Dimensions of size one and expanded ones (stride zero) have no place in the order.
    """
    strided = source.layout is target.layout is torch.strided
    if not strided or source.shape != target.shape:
        return False
    before, after = source.stride(), target.stride()
    dimensions = [d for d, size in enumerate(source.shape) if size > 1 and before[d] and after[d]]
    return sorted(dimensions, key=lambda d: -before[d]) != sorted(
        dimensions, key=lambda d: -after[d]
    )


def _copied(
    operator: object, arguments: tuple[Any, ...], result: Any
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Source and target of each tensor that `operator` copied; nothing if it is not a copy."""
    find = _COPIES.get(operator)
    if find is None:
        return
    for source, target in find(arguments, result):
        # A number may be copied into a tensor.
        if isinstance(source, torch.Tensor):
            yield source, target


_Pairs = Callable[[tuple[Any, ...], Any], Any]

_COPIES: dict[object, _Pairs] = {
    aten.clone: lambda arguments, result: [(arguments[0], result)],
    aten._to_copy: lambda arguments, result: [(arguments[0], result)],
    aten.copy: lambda arguments, result: [(arguments[1], result)],
    aten.copy_: lambda arguments, result: [(arguments[1], result)],
    aten._foreach_copy_: lambda arguments, _: zip(arguments[1], arguments[0], strict=True),
}
"""The operators that copy a tensor as it is (`contiguous`, `to`, `reshape` dispatch these)."""


def _tensors(value: object) -> Iterator[torch.Tensor]:
    """The tensors with a storage in the arguments or results of an operator."""
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided:
            yield value
    elif isinstance(value, (tuple, list)):
        for element in value:
            yield from _tensors(element)
    elif isinstance(value, dict):
        for element in value.values():
            yield from _tensors(element)
