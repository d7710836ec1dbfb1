"""The origins of a step's operators in the code, and so of its kernels.

A dispatch mode sees every ATen operator, in forward and backward. It takes the innermost frame
whose code is neither torch's nor installed. On a GPU it opens a range in the trace around each
operator, which marks its launches. Under the mode torch runs compiled code operator by operator. So
only launches that compiled code makes too have a call site, and those of a CUDA graph have none.
"""

from __future__ import annotations

import sys
import sysconfig
import tempfile
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from traceback import walk_stack
from types import CodeType, FrameType
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from pytest_gpuperf.judge.alignment import common
from pytest_gpuperf.measure.device.fingerprint import INSTALLED, of_file
from pytest_gpuperf.measure.trace import activity, host_calls, profile
from pytest_gpuperf.measure.trace.profile import Spans
from pytest_gpuperf.model.measurement import (
    BACKWARD,
    Caller,
    CallSite,
    HostCall,
    IdleTime,
    KernelTable,
)

_ENGINES = ("/torch/autograd/graph.py", "/torch/autograd/__init__.py")
"""The files that call autograd's engine."""
_DEPTH = 16
"""The most callers kept of a function."""
_OURS = Path(__file__).parents[2]
_TEMPORARY = tempfile.gettempdir()
_PYTHONS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})


class CallSiteRegistry:
    """The call sites of one execution.

    Operators of backward get the call site where their autograd node was made. A node's sequence
    number is the next one when its operator is dispatched.
    """

    def __init__(self, root: Path) -> None:
        self._frames = FrameFinder(root)
        self._known: dict[CallSite, int] = {}
        self._made_at: dict[int, dict[int, CallSite]] = defaultdict(dict)
        """The call sites by a node's sequence number, which each thread counts separately."""

    @property
    def sites(self) -> tuple[CallSite, ...]:
        """All call sites, in the order in which they were first seen."""
        return tuple(map(self._frames.counted, self._known))

    def here(self) -> int:
        """The position of the call site of the present operator."""
        return self._known.setdefault(self._site(), len(self._known))

    def of(self, frames: Iterable[tuple[str, int, str]]) -> int:
        """The number of the innermost frame (file, line, function) of no library, or of nowhere."""
        own = [(self._frames.named(Path(file)), line, name) for file, line, name in frames]
        site = next((CallSite(f"{f}:{line}", name) for f, line, name in own[::-1] if f), _NOWHERE)
        # Call sites of operators have the class and the module.
        same = (one for one in self._known if one.line == site.line and not one.backward)
        return self._known.setdefault(next(same, site), len(self._known))

    def _site(self) -> CallSite:
        node = torch._C._current_autograd_node()
        site = self._frames.innermost() if node is None else self._of_backward(node)
        # A backward pass of which a graph is made makes nodes, too.
        following: int = torch._C._autograd._get_sequence_nr()
        self._made_at[following - 1].setdefault(threading.get_native_id(), site)
        return site

    def _of_backward(self, node: Any) -> CallSite:
        again = self._frames.innermost(up_to_engine=True)
        by_thread = self._made_at.get(node._sequence_nr(), {})
        any_site = next(iter(by_thread.values())) if len({*by_thread.values()}) == 1 else None
        made_at = by_thread.get(threading.get_native_id(), any_site) or self._frames.innermost()
        # On a GPU the engine has its own thread, without a caller.
        ends = (number for number, one in enumerate(again.callers) if not one.line)
        within = next(ends, len(again.callers))
        inside, engine = again.callers[:within], again.callers[within:] or (_ENGINE,)
        callers = made_at.callers
        if again.line:
            # Recomputation for the backward pass has its own frames.
            forward = (Caller(made_at.line, made_at.function, made_at.executions), *callers)
            outermost = inside[-1].function if inside else again.function
            beyond = (n for n, one in enumerate(forward, 1) if one.function == outermost)
            made_at, callers = again, (*inside, engine[0], *forward[next(beyond, 0) :])
        return replace(made_at, backward=True, callers=callers + engine)


@dataclass(eq=False, slots=True)
class _Activation:
    """One execution of a function, kept by its frame, so that its surroundings are found once."""

    finder: FrameFinder
    tracing: Any
    """The frame's previous trace function: a debugger, or a coverage tool."""
    number: int = 0
    callers: tuple[Caller, ...] = ()
    modules: list[torch.nn.Module] = field(default_factory=list)

    def __call__(self, *event: object) -> None:
        """Passes the event on to the previous trace function."""
        self.tracing = self.tracing and (self.tracing(*event) or self.tracing)


class FrameFinder:
    """Finds where in the code the interpreter is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files: dict[CodeType, tuple[str, str]] = {}
        """By code, its file as it is shown, "" for a library's; and the library's distribution."""
        self._modules: dict[int, str] = {}
        """The names of modules within the outermost, by id."""
        self._numbers: dict[tuple[str, ...], int] = {}
        """The numbers of functions, by their names and those of their callers."""
        self._executions: Counter[int] = Counter()
        """The number of executions of each, by number."""

    def innermost(self, *, up_to_engine: bool = False) -> CallSite:
        """The innermost frame that is no library's, and the module that its code works for.

        With its callers and the libraries that it calls. From that of who asks, and no further out
        than autograd's engine with `up_to_engine`. Each function has its number until it is
        `counted`.
        """
        libraries: dict[str, None] = {}
        for frame, line in walk_stack(sys._getframe(1)):
            code = frame.f_code
            if up_to_engine and code.co_filename.endswith(_ENGINES):
                return CallSite("", "", callers=self._called_by(frame))
            if file := self._file(code):
                execution, function = self._execution(frame), function_of(frame.f_code)
                return CallSite(
                    f"{file}:{line}",
                    function,
                    self._module(execution.modules),
                    libraries=tuple(filter(None, libraries)),
                    executions=execution.number,
                    callers=execution.callers,
                )
            libraries[self._files[code][1]] = None
        return _NOWHERE

    def counted(self, site: CallSite) -> CallSite:
        """The call site with counts of executions in place of the functions' numbers."""
        often = self._executions
        callers = (replace(one, executions=often[one.executions]) for one in site.callers)
        return replace(site, executions=often[site.executions], callers=tuple(callers))

    def _called_by(self, frame: FrameType) -> tuple[Caller, ...]:
        """The frame as a caller, and its callers. Autograd's engine is no line."""
        execution, file = self._execution(frame), self._file(frame.f_code)
        line = f"{file}:{frame.f_lineno}" if file else ""
        function = function_of(frame.f_code) if file else BACKWARD
        return (Caller(line, function, execution.number), *execution.callers)[:_DEPTH]

    def _execution(self, frame: FrameType) -> _Activation:
        """The activation of a frame outside libraries, or of autograd's engine."""
        kept: Any = frame.f_trace
        if isinstance(kept, _Activation):
            if kept.finder is self:
                return kept
            kept = kept.tracing
        made, file = _Activation(self, kept), self._file(frame.f_code)
        for outer, _ in walk_stack(frame):
            if outer.f_code.co_filename.startswith(str(_OURS)):
                break
            code, of_user = outer.f_code, self._file(outer.f_code)
            if outer is not frame and (of_user or (file and code.co_filename.endswith(_ENGINES))):
                made.callers = self._called_by(outer)
                made.modules += self._execution(outer).modules if of_user else []
                break
            if code.co_argcount and code.co_varnames[0] == "self":
                owner = outer.f_locals.get("self")
                made.modules += [owner] if isinstance(owner, torch.nn.Module) else []
        path = (
            function_of(frame.f_code) if file else BACKWARD,
            *(one.function for one in made.callers),
        )
        made.number = self._numbers.setdefault(path, len(self._numbers) + 1)
        self._executions[made.number] += 1
        frame.f_trace = made
        return made

    def of_another_thread(self, frame: FrameType) -> CallSite:
        """The call site without a module, from a frame that another thread executes.

        Its variables are not read, since that thread may free them meanwhile. Under CPython 3.12 a
        process that read those of a compiled step ended with a segmentation fault.
        """
        for outer, line in walk_stack(frame):
            if file := self._file(outer.f_code):
                return CallSite(f"{file}:{line}", function_of(outer.f_code))
        return _NOWHERE

    def _module(self, modules: Sequence[torch.nn.Module]) -> str:
        """The name of the first (innermost) module in the outermost module that contains it.

        Recomputation for the backward pass begins inside: it keeps the name it had. A module that
        calls another without holding it, such as a process given a network, has no name for it.
        """
        if modules and id(modules[0]) not in self._modules:
            trees = ({id(m): name for name, m in o.named_modules()} for o in reversed(modules))
            self._modules |= next(tree for tree in trees if id(modules[0]) in tree)
        return self._modules[id(modules[0])] if modules else ""

    def _file(self, code: CodeType) -> str:
        if code not in self._files:
            file = Path(code.co_filename)
            self._files[code] = self.named(file), of_file(file)
        return self._files[code][0]

    def named(self, file: Path) -> str:
        """A file as people find it, without a folder of this machine; "" for a library's."""
        installed = INSTALLED & {*file.parts}
        if installed or file.is_relative_to(_OURS) or any(map(file.is_relative_to, _PYTHONS)):
            return ""
        if not file.exists():
            return ""  # made at run time
        if file.is_relative_to(self.root):
            return file.relative_to(self.root).as_posix()
        below = [Path(p) for p in sys.path if p and file.is_relative_to(p)]
        if not below and file.is_relative_to(_TEMPORARY):
            return ""  # a library's, made for this process
        longest = max(below, key=lambda folder: len(folder.parts), default=file.parent)
        return file.relative_to(longest).as_posix()


def function_of(code: CodeType) -> str:
    """The function that has this code, as in "Attention.attend"; before Python 3.11 "attend"."""
    name: str = getattr(code, "co_qualname", code.co_name)
    return name.replace("<locals>.", "")


def uncompiled() -> AbstractContextManager[None]:
    """In this block compiled code runs operator by operator, and compiled again after it.

    Under a dispatch mode it does so anyway. But dynamo (torch 2.13) then takes the mode's code for
    something that it cannot compile, and never executes the compiled code again.
    """
    set_stance: Any = torch.compiler.set_stance  # untyped
    return set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


class Annotating(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Opens a range in torch's trace around each operator, named after its call site's position."""

    supports_higher_order_operators = True

    def __init__(self, call_sites: CallSiteRegistry) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._call_sites = call_sites

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Executes an operator in its range."""
        with torch.profiler.record_function(f"{activity.COMPONENT}{self._call_sites.here()}"):
            return func(*args, **(kwargs or {}))


def with_call_sites(
    table: KernelTable,
    root: Path,
    step: Callable[[], object],
    synchronize: Callable[[], None],
) -> KernelTable:
    """The table with the call site of each launch, from one more execution of the step.

    It adds those of the host's waits and allocations. Launches that differ in that execution, or
    have no operator, have no known origin. Raises what the step raises.
    """
    call_sites = CallSiteRegistry(root)

    def annotated() -> None:
        with uncompiled(), _waits_annotated(call_sites), Annotating(call_sites):
            step()

    trace = profile.trace(annotated, synchronize, host=True)
    # Each once, as later additions expect; calls only from libraries have no known origin.
    sites = tuple(dict.fromkeys((*call_sites.sites, _NOWHERE)))
    nowhere = sites.index(_NOWHERE)
    site_of = [nowhere] * len(table.launches)
    ranges = profile.Ranges(trace.ranges(activity.COMPONENT))
    same = common(
        [table.names[launch.name] for launch in table.launches],
        [entry.name for entry in trace.entries],
    )
    for place, there in same:
        site_of[place] = int(ranges.at(trace.entries[there].launched) or nowhere)
    called = Counter((name, int(ranges.at(at) or nowhere)) for at, name in host_calls.during(trace))
    return replace(
        table,
        sites=sites,
        site_of=tuple(site_of),
        calls=tuple(HostCall(name, site, count) for (name, site), count in called.items()),
    )


def with_idle_sites(
    table: KernelTable,
    root: Path,
    step: Callable[[], object],
    synchronize: Callable[[], None],
) -> KernelTable:
    """The table with the host's position while the GPU was idle, from one more execution.

    A sample covers the time since the previous sample; code that holds the interpreter is seen
    once, when it ends. A gap without a sample has no line. Raises what the step raises.
    """
    spans, known = Spans(_SEEN), {site: number for number, site in enumerate(table.sites)}
    frames = FrameFinder(root)

    def watched() -> None:
        with _looked_at(frames, known, spans):
            step()

    trace = profile.trace(watched, synchronize, spans=spans)
    looks = trace.ranges(_SEEN)
    moments = [look.begin for look in looks]
    idle: defaultdict[int, float] = defaultdict(float)
    for begin, end in trace.gaps:
        inside = looks[bisect_left(moments, begin) : bisect_left(moments, end)]
        until = [look.begin for look in inside[:-1]] + [end]
        for since, at, look in zip([begin, *until], until, inside, strict=False):
            idle[int(look.name)] += at - since
    return replace(
        table,
        sites=tuple(known),
        idle_at=tuple(IdleTime(site, time) for site, time in idle.items()),
    )


@contextmanager
def _looked_at(frames: FrameFinder, known: dict[CallSite, int], spans: Spans) -> Iterator[None]:
    """Looks where this thread is, again and again, from another thread.

    `known` gets a number for each place, and `spans` a moment with that number for each look.
    """
    watched, ended, switches = threading.get_ident(), threading.Event(), sys.getswitchinterval()

    def look() -> None:
        while not ended.wait(_LOOK_SECONDS):
            frame = sys._current_frames().get(watched)
            if frame is not None:
                number = known.setdefault(frames.of_another_thread(frame), len(known))
                now = time.time_ns()
                spans.add(f"{_SEEN}{number}", now, now)
            del frame

    looking = threading.Thread(target=look, daemon=True)
    sys.setswitchinterval(_LOOK_SECONDS)
    looking.start()
    try:
        yield
    finally:
        ended.set()
        looking.join()
        sys.setswitchinterval(switches)


_SEEN = "gpuperf seen: "
"""The prefix of the names of samples in the trace."""
_LOOK_SECONDS = 2e-4


@contextmanager
def _waits_annotated(call_sites: CallSiteRegistry) -> Iterator[None]:
    """Opens a range around each wait that is no operator, as `Annotating` does around those."""

    def annotated(original: Callable[..., object]) -> Callable[..., object]:
        @wraps(original)
        def wait(*arguments: object, **named: object) -> object:
            # Under the mode, opening a range is an operator too: the range of that one would end
            # within ours, and ranges nest.
            with _disable_current_modes():
                with torch.profiler.record_function(f"{activity.COMPONENT}{call_sites.here()}"):
                    return original(*arguments, **named)

        return wait

    places: tuple[Any, ...] = (torch.cuda, torch.cuda.Stream, torch.cuda.Event)
    with ExitStack() as stack:
        for place in places:
            wait = annotated(place.synchronize)
            stack.enter_context(mock.patch.object(place, "synchronize", wait))
        yield


_NOWHERE, _ENGINE = CallSite("", ""), Caller("", BACKWARD)
