"""Counts a step's calls of PyTorch, operator by operator, on any device.

A dispatch mode sees every ATen operator below autograd. That includes backward, which on a CPU runs
in the calling thread, and recomputation by torch.utils.checkpoint. A mode belongs to one thread, so
work handed to another thread enters it there. The inside of an operator is not seen (a convolution
that converts its input's layout).
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial, wraps
from multiprocessing import active_children, pool
from pathlib import Path
from threading import get_ident
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # at the first operator under a mode torch would, in the step's time
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.flop_counter import flop_registry

from pytest_gpuperf.errors import UnsoundStep
from pytest_gpuperf.measure.trace.call_sites import CallSiteRegistry, uncompiled
from pytest_gpuperf.model.measurement import (
    GRAPH_BREAK,
    MADE_BYTES,
    OPERATOR,
    STEP,
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

PEAK = "peak_memory"
_AT_ONCE = "other threads of the step allocate memory too, so the peak varies by chance"
_HOOKS_REFUSED = (
    "gpuperf counts saved tensors by autograd hooks, which this step disables (torch.func does)"
)

_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_AUTOGRAD: Any = torch._C._autograd
_disable_hooks = _AUTOGRAD._saved_tensors_hooks_disable

_HANDING_OVER: tuple[tuple[Any, str, int], ...] = (
    (futures.ThreadPoolExecutor, "submit", 1),
    (pool.ThreadPool, "apply_async", 1),
    (pool.ThreadPool, "_guarded_task_generation", 2),
)
"""The functions that give work to pools, and the position of the callable. A pool may be older than
the step, and outlive it, so its threads do not count by themselves."""
_POOLS = (futures.thread.__name__, pool.__name__)


@dataclass
class Counts:
    """Portable counts of a step or phase; names and units are those of the catalogue."""

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
    operator: Noted | None
    """The operator that made it."""
    made: int
    """The number of allocations before this one."""
    ended: int | None = None
    """The number of allocations when this one ended."""
    saved: bool = False


@dataclass
class _Counting:
    """The state of counting in one thread."""

    counted_now: tuple[Counts, ...]
    thread: int = field(default_factory=threading.get_native_id)
    hooks: ExitStack = field(default_factory=ExitStack)
    inside_ns: int = 0
    """The processor time that its operators took."""


class StepCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts one execution of a step. Enter with `watching`; a `PhaseListener`.

    Operators outside every phase count for the whole step only. A phase that occurs twice is
    summed. Work handed to another thread counts for the phase of the handover. `operators`, if
    given, note each counted operator.
    """

    supports_higher_order_operators = True

    def __init__(self, operators: Operators | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operators = operators
        self.step = Counts()
        """The whole step."""
        self.phases: dict[str, Counts] = {}
        """Phases in the order in which they first occur."""
        self.memory = operators.memory if operators else Memory()
        self.uncounted: dict[str, str] = {}
        """The metrics that could not be counted, each with the reason."""
        self.work: Counter[tuple[object, str]] = Counter()
        """The work of the whole step, by operator and unit: calls and FLOP."""
        self.own_ns: dict[int, int] = {}
        """The processor time of each thread while it counted, by its number in the system."""
        self.inside_ns = 0
        """The part of the time spent in operators."""
        self._own_thread = threading.get_native_id()
        self._threads: dict[int, _Counting] = {}
        # Reentrant: a storage may end, which is heard, wherever this thread is.
        self._lock = self.memory.lock

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Counts what is executed in the block, here and in threads that it hands work to.

        Memory counts until `Memory.end`.
        """
        refused = mock.patch.object(_AUTOGRAD, "_saved_tensors_hooks_disable", self._refused)
        with uncompiled(), _hand_overs_heard_by(self), refused:
            try:
                with self.counting((self.step,)):
                    yield
            finally:
                with self._lock:
                    self._threads.clear()

    @contextmanager
    def counting(self, counted: tuple[Counts, ...]) -> Iterator[None]:
        """Counts for `counted` what this thread executes in the block."""
        here = _Counting(counted)
        hooks = torch.autograd.graph.saved_tensors_hooks(
            partial(self._saved, here), lambda tensor: tensor
        )
        started = time.thread_time_ns()
        with self._lock:
            self._threads[get_ident()] = here
        try:
            with self, here.hooks:
                here.hooks.enter_context(hooks)
                yield
        finally:
            with self._lock:
                self._threads.pop(get_ident(), None)
                used = self.own_ns.get(here.thread, 0) + time.thread_time_ns() - started
                self.own_ns[here.thread] = used
                self.inside_ns += here.inside_ns

    def carried(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, counted in whatever thread it is executed; as it is in a thread of others."""
        handing = self._threads.get(get_ident())
        if handing is None:
            return call
        counted = handing.counted_now

        @wraps(call)
        def counted_there(*args: Any, **kwargs: Any) -> Any:
            if get_ident() in self._threads or not self._threads:  # or the step has ended
                return call(*args, **kwargs)
            with self.counting(counted):
                return call(*args, **kwargs)

        return counted_there

    def _refused(self, message: str, fail_if_non_empty: bool = True) -> None:
        """Disables saved-tensor hooks, as torch.func's transforms do.

        torch raises if hooks exist. The counter's own are closed before: it counts no saved bytes
        of this thread from now on.
        """
        here = self._threads.get(get_ident())
        if fail_if_non_empty and here:
            self.uncounted["saved_bytes"] = _HOOKS_REFUSED
            here.hooks.close()
        _disable_hooks(message, fail_if_non_empty)

    def enter(self, phase: str) -> None:
        """Counts for `phase` too, from now on."""
        self._count_for(self.step, self.phases.setdefault(phase, Counts()))

    def leave(self, phase: str) -> None:  # noqa: ARG002
        """Counts for the step only, from now on."""
        self._count_for(self.step)

    def counts(self) -> Iterator[tuple[str, dict[str, int]]]:
        """The counts of the whole step, with those of memory after its end, then of each phase."""
        memory = {"kept_memory": self.memory.kept, PEAK: self.memory.peak}
        yield STEP, asdict(self.step) | memory
        for phase, counts in self.phases.items():
            yield phase, asdict(counts)

    def _count_for(self, *counts: Counts) -> None:
        if here := self._threads.get(get_ident()):
            here.counted_now = counts

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Executes an operator and counts it."""
        kwargs = kwargs or {}
        here = self._threads.get(get_ident())
        if here is None:  # a thread that goes on after the step
            return func(*args, **kwargs)
        began = time.thread_time_ns()
        operator = getattr(func, "overloadpacket", func)
        formula = flop_registry.get(_CPU_ATTENTION.get(operator, operator))
        if formula is None and isinstance(func, HigherOrderOperator):
            args = tuple(self._counting(one) if callable(one) else one for one in args)
        elif formula is None:
            # In inference mode composite operators come whole; count what they are made of.
            # `decompose` prefers what torch traces, where dropout in eval makes a clone.
            with self:
                if _has_kernel(func.name(), _COMPOSITE):
                    return func._op_dk(_COMPOSITE, *args, **kwargs)
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        counted = operator not in _NOT_COUNTED
        noted = None
        if self._operators and counted:
            with self._lock:
                noted = self._operators.note(str(operator))
        result = func(*args, **kwargs)
        copied = _copied(operator, args, result)
        copies = [
            target.numel() * target.element_size()
            for source, target in copied
            if changes_stride_order(source, target)
        ]
        flops = formula(*args, **kwargs, out_val=result) if formula else 0
        with self._lock:
            if here.thread != self._own_thread:
                self.uncounted[PEAK] = _AT_ONCE
            made = self.memory.note(result, (args, kwargs), noted)
            self.work[operator, "calls"] += counted
            self.work[operator, "FLOP"] += flops
            for counts in here.counted_now:
                counts.operators += counted
                counts.flops += flops
                counts.copies += len(copied)
                counts.layout_copies += len(copies)
                counts.layout_copy_bytes += sum(copies)
            if noted is not None:
                dtype = next((str(one.dtype) for one in _tensors((result, args))), "")
                noted.name = f"{noted.name} {dtype.removeprefix('torch.')}".strip()
                of_it = flops, len(copied), len(copies), sum(copies), made
                noted.counts[: len(_OF_OPERATOR)] = of_it
        here.inside_ns += time.thread_time_ns() - began
        return result

    def _counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Counts in a function that torch.cond or a loop calls; the operator stops counting."""

        def counted(*args: Any) -> Any:
            with self:
                return function(*args)

        return counted

    def _saved(self, here: _Counting, tensor: torch.Tensor) -> torch.Tensor:
        with self._lock:
            nbytes = self.memory.newly_saved(tensor)
            for counts in here.counted_now:
                counts.saved_bytes += nbytes
        return tensor


@contextmanager
def _hand_overs_heard_by(counter: StepCounter) -> Iterator[None]:
    """Lets `counter` carry what its threads hand to others: a thread's start, a pool's task."""
    start = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        target = getattr(thread, "_target", None)
        if getattr(target, "__module__", "") not in _POOLS:
            thread.run = counter.carried(thread.run)  # type: ignore[method-assign]
        start(thread)

    def handing(method: Callable[..., Any], position: int) -> Callable[..., Any]:
        @wraps(method)
        def handed(*args: Any, **kwargs: Any) -> Any:
            if len(args) > position:
                carried = counter.carried(args[position])
                args = (*args[:position], carried, *args[position + 1 :])
            return method(*args, **kwargs)

        return handed

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(threading.Thread, "start", started))
        for owner, name, position in _HANDING_OVER:
            method = handing(getattr(owner, name), position)
            stack.enter_context(mock.patch.object(owner, name, method))
        yield


_OF_OPERATOR = ("flops", "copies", "layout_copies", "layout_copy_bytes", MADE_BYTES)
_COSTS = (*_OF_OPERATOR, "saved_bytes", "kept_memory", "peak_memory")


@dataclass
class Noted:
    """One operator of an execution."""

    name: str
    """With the result's type once it was executed."""
    site: int
    """The number of its call site."""
    counts: list[float] = field(default_factory=lambda: [0.0] * len(_COSTS))
    """In the order of _COSTS."""


class Operators:
    """The operators of one execution in order, each with its origin in the code and its cost.

    The cost is its own counts, plus the memory that it made: bytes saved for backward, bytes that
    outlived the step, and bytes alive at the peak.
    """

    def __init__(self, root: Path) -> None:
        self._call_sites = CallSiteRegistry(root)
        self._noted: list[Noted] = []
        self.memory = Memory(history=[])

    def note(self, operator: str) -> Noted:
        """Notes an operator before it is executed."""
        self._noted.append(Noted(operator, self._call_sites.here()))
        return self._noted[-1]

    def table(self, breaks: Iterable[tuple[str, list[tuple[str, int, str]]]] = ()) -> KernelTable:
        """The table, after `Memory.end`, with compiled code's graph breaks and their reasons."""
        self.memory.attribute()
        every = dict.fromkeys(one.name for one in self._noted)
        names = {name: position for position, name in enumerate(every)}
        launches = [
            Launch(names[name], OPERATOR, None, None, 0.0, tuple(counts) if any(counts) else ())
            for name, counts in ((one.name, one.counts) for one in self._noted)
        ]
        left = Counter((reason, self._call_sites.of(frames)) for reason, frames in breaks)
        return KernelTable(
            tuple(names),
            _COSTS,
            tuple(launches),
            0.0,
            sites=self._call_sites.sites,
            site_of=tuple(one.site for one in self._noted),
            calls=tuple(HostCall(f"{GRAPH_BREAK}: {why}", at, n) for (why, at), n in left.items()),
        )


_LOOKING_S = 1e-3


@dataclass
class Memory:
    """Follows the storages that a step makes, from the operator that made them to their end.

    Only storages made by the step count: parameters, optimizer state and inputs live without it.
    Bytes are those of the tensor's storage when it was made. Memory that an operator allocates and
    frees inside itself is not seen.
    """

    kept: int = 0
    """The bytes that are alive."""
    peak: int = 0
    """The most bytes that were alive at once."""
    history: list[_Allocation] | None = None
    """All allocations, if requested."""
    _made: int = 0
    _peak_at: int = 0
    # Keyed by the address of the C++ storage, which is unique among the living.
    _living: dict[int, tuple[_Allocation, weakref.ref[torch.UntypedStorage]]] = field(
        default_factory=dict
    )
    lock: threading.RLock = field(default_factory=threading.RLock)
    """The lock for every update, because several threads make and free storages."""

    def note(self, results: object, arguments: object, operator: Noted | None = None) -> int:
        """Takes up storages among an operator's results that were not among its arguments.

        Returns their bytes.
        """
        before = self.kept
        given = {argument.untyped_storage()._cdata for argument in _tensors(arguments)}
        for storage in (tensor.untyped_storage() for tensor in _tensors(results)):
            key = storage._cdata
            if key in given or key in self._living:
                continue
            ended = partial(self._ended, key)
            made = _Allocation(storage.nbytes(), operator, self._made)
            self._living[key] = made, weakref.ref(storage, ended)
            if self.history is not None:
                self.history.append(made)
            self._made += 1
            self.kept += storage.nbytes()
            if self.kept > self.peak:
                self.peak, self._peak_at = self.kept, made.made
        return self.kept - before

    def newly_saved(self, tensor: torch.Tensor) -> int:
        """The bytes that saving `tensor` keeps alive and that no earlier saving did."""
        if tensor.layout is not torch.strided:
            return 0
        allocation, _ = self._living.get(tensor.untyped_storage()._cdata, (None, None))
        if allocation is None or allocation.saved:
            return 0
        allocation.saved = True
        return allocation.nbytes

    def end(self, patience_s: float = 0.0) -> None:
        """Stops following, once nothing is alive any more or so many seconds later."""
        end = time.monotonic() + patience_s
        while self._living and time.monotonic() < end:
            time.sleep(_LOOKING_S)
        self._living.clear()

    def attribute(self) -> None:
        """Adds to each operator the bytes that it made: saved, kept, and alive at the peak."""
        for one in self.history or ():
            if one.operator is not None:
                ended = math.inf if one.ended is None else one.ended
                at_peak = one.made <= self._peak_at < ended
                of = one.saved, one.ended is None, at_peak
                for at, applies in enumerate(of, len(_OF_OPERATOR)):
                    one.operator.counts[at] += one.nbytes * applies

    def _ended(self, key: int, _: object) -> None:
        with self.lock:
            allocation, _ = self._living.pop(key)
            allocation.ended = self._made
            self.kept -= allocation.nbytes


def changes_stride_order(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether the tensors have the same shape but a different order of dimensions in memory.

    Dimensions of size one and expanded ones (stride zero) do not count.
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
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Source and target of each tensor that `operator` copied; nothing if it is not a copy."""
    pairs: Iterable[tuple[Any, Any]] = ()
    if operator in _SOURCES:
        pairs = [(arguments[_SOURCES[operator]], result)]
    elif operator is aten._foreach_copy_:
        pairs = zip(arguments[1], arguments[0], strict=True)
    # A number may be copied into a tensor.
    return [(source, target) for source, target in pairs if isinstance(source, torch.Tensor)]


_SOURCES: dict[object, int] = {aten.clone: 0, aten._to_copy: 0, aten.copy: 1, aten.copy_: 1}
"""The operators that copy one tensor as it is (`contiguous`, `to`, `reshape` dispatch these), with
the position of the argument that is copied."""


def _tensors(value: object) -> Iterator[torch.Tensor]:
    """The tensors with a storage in the arguments or results of an operator."""
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided:
            yield value
    elif isinstance(value, (tuple, list, dict)):
        for element in value.values() if isinstance(value, dict) else value:
            yield from _tensors(element)


OUTSIDE = "code outside of PyTorch"
THREADS = "threads that the step did not start"
PROCESSES = "other processes"
LOADERS = "a DataLoader's workers"
NOTHING = "all of it, since it calls no operator of PyTorch"

_LEAST_NS = 10_000_000
"""Times below this are too short for a step."""
_NOTED = {OUTSIDE: 0.5, THREADS: 0.1, PROCESSES: 0.1, LOADERS: 0.1}
"""The share of the step's time above which a place is named. Time outside of PyTorch includes
Python, which takes 25 to 40 % of a small step while operators are counted."""
_REFUSED = 0.9
"""The share that makes a step unsound: of what is left no slowdown would be seen."""


@dataclass
class Unseen:
    """The processor time of one execution that `counter` counts, in nanoseconds."""

    counter: StepCounter
    total: int = 0
    places: dict[str, int] = field(default_factory=dict)
    """The places with uncounted time."""
    loads: bool = False
    """Whether a DataLoader was asked: its work is a part of many steps, here or by workers."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Attributes all use of the processor in the block to the step."""
        take = _BaseDataLoaderIter.__next__

        def taken(loader: Any) -> Any:
            self.loads = True
            return take(loader)

        before, threads = _used(), _threads()
        with mock.patch.object(_BaseDataLoaderIter, "__next__", taken):
            yield
        after = _used()
        own = self.counter.own_ns
        elsewhere = sum(
            max(0, used - threads.get(thread, 0) - own.get(thread, 0))
            for thread, used in _threads().items()
            if thread != threading.get_native_id()
        )
        counted = sum(own.values())
        here, processes = (now - then for now, then in zip(after, before, strict=True))
        # The rest of the process's time is of library threads, divided by possible callers.
        each = here / max(1, counted + elsewhere)
        self.total = here + processes
        self.places = {
            OUTSIDE: int(each * max(0, counted - self.counter.inside_ns)),
            THREADS: int(each * elsewhere),
            LOADERS if self.loads else PROCESSES: processes,
        }

    @property
    def is_most(self) -> bool:
        """Whether too little is left to be judged alone.

        Python between operators is no reason: what interprets them takes most of many small steps.
        """
        alone = self.counter.step.operators > 0
        lost = sum(ns for at, ns in self.places.items() if not (alone and at == OUTSIDE))
        return not self.loads and lost >= max(_LEAST_NS, _REFUSED * self.total)

    @property
    def noted(self) -> list[str]:
        """The places that are to be said."""
        least = {place: max(_LEAST_NS, share * self.total) for place, share in _NOTED.items()}
        return [place for place, ns in self.places.items() if ns >= least[place]]

    def __str__(self) -> str:
        into = [f"{ns / 1e6:.3g} ms in {at}" for at, ns in self.places.items() if ns > _LEAST_NS]
        return f"of {self.total / 1e6:.3g} ms of CPU time it spends {' and '.join(into)}"


def part_unseen(rounds: Sequence[Unseen]) -> str:
    """The places where part of the time was uncounted in every round, or "".

    Raises UnsoundStep if it is most of the time. A step with no operators and no time is a stub.
    """
    last = rounds[-1]
    if all(unseen.is_most for unseen in rounds):
        raise UnsoundStep(
            f"most of this step cannot be counted: {last}, where gpuperf counts no operator. A "
            "slowdown there would fail no test. On a CPU gpuperf counts the PyTorch operators "
            "that the step calls, also in its threads and pools. Give measure a step that "
            "computes with PyTorch operators"
        )
    if not last.counter.step.operators:
        return NOTHING
    return ", ".join(place for place in last.noted if all(place in one.noted for one in rounds))


def _threads() -> dict[int, int]:
    """The processor time of each Python thread, by its number in the system."""
    numbers = [thread.native_id for thread in threading.enumerate()]
    return {number: _clock(number, 6) for number in numbers if number}


def _used() -> tuple[int, int]:
    """The processor time of this process, and that of all processes it started."""
    import resource

    children = {process.pid for process in active_children()}
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that ended
            children |= {*map(int, file.read_text(encoding="ascii").split())}
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended_ns = int((ended.ru_utime + ended.ru_stime) * 1e9)
    return time.process_time_ns(), ended_ns + sum(_clock(pid, 2) for pid in children if pid)


def _clock(number: int, kind: int) -> int:
    """Linux numbers the clock of a thread (6) or process (2) by its own number."""
    with suppress(OSError):  # it has ended
        return time.clock_gettime_ns(~number << 3 | kind)
    return 0
