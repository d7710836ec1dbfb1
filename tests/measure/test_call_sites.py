"""Where launches come from: a real trace of torch's operators, with kernels put into it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import Tensor, nn

from pytest_gpuperf.measure.trace import call_sites, profile
from pytest_gpuperf.measure.trace.call_sites import FrameFinder, with_call_sites, with_idle_sites
from pytest_gpuperf.measure.trace.profile import Spans, Trace
from pytest_gpuperf.model.measurement import CallSite, KernelTable, Launch
from tests import ROOT
from tests.measure.stand_ins import line_of

LAUNCHING = {"aten::mm": "gemm", "aten::relu": "relu", "aten::threshold_backward": "relu_backward"}
"""The kernel that these operators would launch on a GPU."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y.relu()


NET = Net()
FACTOR = torch.rand(3, 4)
NONE = KernelTable((), (), (), 0.0)
TRACE = profile.trace
Tracing = Callable[..., Trace]
"""`profile.trace`, or a script in its place."""


def step() -> None:
    NET.zero_grad()
    torch.autograd.backward(NET(FACTOR).sum())


def traced(run: Callable[[], object], synchronize: Callable[[], None], *, host: bool) -> Trace:
    """What torch traces on the host, and kernels that it would have launched.

    An operator is in the trace twice, before the dispatch mode has it and after: it launches then.
    """
    events = [*TRACE(run, synchronize, host=host).events]
    operators = [e for e in events if e.get("cat") == "cpu_op" and e["name"] in LAUNCHING]
    operators.sort(key=lambda event: float(event["ts"]))
    for number, event in enumerate(operators[1::2], 1):
        call = {"ts": event["ts"], "dur": 0.1, "args": {"correlation": number}}
        events.append({**call, "cat": "cuda_runtime", "name": "cudaLaunchKernel"})
        events.append({**call, "cat": "kernel", "name": LAUNCHING[event["name"]]})
    return Trace(events)


def added(
    add: Callable[..., KernelTable],
    step: Callable[[], object],
    tracing: Tracing,
    table: KernelTable = NONE,
) -> KernelTable:
    """The table with what `add` adds, from a trace that `tracing` makes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile, "trace", tracing)
        return add(table, ROOT, step, lambda: None)


def located(step: Callable[[], object], *kernels: str) -> list[CallSite]:
    """The call sites of these kernels of the step."""
    names = tuple(dict.fromkeys(kernels))
    launches = [Launch(names.index(name), "kernel", None, None, 100.0) for name in kernels]
    table = KernelTable(names, (), tuple(launches), 0.0, mismatch="not counted")
    made = added(with_call_sites, step, traced, table)
    assert (made.launches, made.mismatch) == (table.launches, "not counted")
    return [replace(made.sites[at], executions=0, callers=()) for at in made.site_of]


GEMM = CallSite(line_of(Net.forward, "self.layer"), "Net.forward")
RELU = CallSite(line_of(Net.forward, "relu"), "Net.forward")


def test_each_launch_has_the_line_of_its_operator_or_of_the_one_whose_gradient_it_is() -> None:
    backward = [replace(RELU, backward=True), replace(GEMM, backward=True)]
    assert located(step, "gemm", "relu", "relu_backward", "gemm") == [GEMM, RELU, *backward]


def test_a_network_that_a_module_is_given_has_the_names_that_it_has_itself() -> None:
    class Process(nn.Module):
        def forward(self, network: nn.Module) -> Tensor:
            y: Tensor = network(FACTOR)
            return y

    network, process = nn.Sequential(nn.Identity(), NET), Process()
    (site,) = located(lambda: process(network), "gemm")
    assert site == CallSite(GEMM.line, GEMM.function, "1")


def test_what_the_other_execution_did_not_launch_comes_from_nowhere_known() -> None:
    nowhere = CallSite("", "")
    assert located(step, "gemm", "of a graph", "relu") == [GEMM, nowhere, RELU]
    assert located(lambda: None, "gemm") == [nowhere]


def test_a_place_that_is_no_place_is_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who adds call sites later counts on that."""
    monkeypatch.setattr(FrameFinder, "innermost", lambda *_, **__: CallSite("", ""))
    assert {*located(lambda: NET(FACTOR), "gemm", "relu")} == {CallSite("", "")}
    made = added(with_call_sites, step, lambda run, *_, **__: run() or Trace(()))
    assert len(made.sites) == len({*made.sites})


def test_waits_that_are_no_operators_have_their_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = Spans("")

    def waited() -> None:
        now = time.time_ns()
        spans.add("waited", now, now)

    monkeypatch.setattr(torch.cuda, "synchronize", waited)

    def wait() -> None:
        torch.cuda.synchronize()

    def step() -> None:
        for _ in range(5):
            NET(FACTOR)
            wait()

    def waits(run: Callable[[], object], synchronize: Callable[[], None], **_: object) -> Trace:
        events = [*TRACE(run, synchronize, host=True, spans=spans).events]
        waited = [e for e in events if e.get("name") == "waited"]
        call = {"cat": "cuda_runtime", "name": "cudaDeviceSynchronize"}
        return Trace([*events, *({**event, **call} for event in waited)])

    made = added(with_call_sites, step, waits)
    (call,) = made.calls
    assert (call.count, made.sites[call.site].function.rpartition(".")[2]) == (5, "wait")


class Frame:
    """A frame whose thread has freed its variables: to look at one ends the process."""

    def __init__(self, frame: FrameType) -> None:
        self.f_code, self.f_lineno, self._back = frame.f_code, frame.f_lineno, frame.f_back

    @property
    def f_back(self) -> Frame | None:
        return Frame(self._back) if self._back else None


def idle(run: Callable[[], object], synchronize: Callable[[], None], spans: Spans) -> Trace:
    """A trace of the step in which a GPU works at its beginning and at its end."""
    events = [*TRACE(run, synchronize, host=True, spans=spans).events]
    (step,) = (e for e in events if e.get("name") == profile.STEP_RANGE)
    ends = (float(step["ts"]), float(step["ts"]) + float(step["dur"]))
    ran = ({"ts": at, "dur": 1.0, "cat": "kernel", "name": "k"} for at in ends)
    return Trace([*events, *ran])


def test_a_call_that_holds_the_interpreter_has_all_of_its_time_though_it_is_seen_once() -> None:
    def step() -> None:
        threading.Event().wait(0.01)
        sum(range(10_000_000))

    made = added(with_idle_sites, step, idle)
    longest = max(made.idle_at, key=lambda part: part.idle)
    first = step.__code__.co_firstlineno
    assert made.sites[longest.site].line.endswith(f":{first + 2}")


def test_time_without_work_is_that_of_the_line_at_which_the_host_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def busy() -> None:
        until = time.perf_counter() + 0.1
        while time.perf_counter() < until:
            sum(range(100))

    frames = sys._current_frames
    monkeypatch.setattr(
        sys, "_current_frames", lambda: {thread: Frame(one) for thread, one in frames().items()}
    )
    made = added(with_idle_sites, busy, idle)
    functions = [made.sites[part.site].function for part in made.idle_at]
    assert any(function.endswith("busy") for function in functions)
    assert sum(part.idle for part in made.idle_at) >= 0.1e9


@pytest.mark.parametrize(
    ("file", "temporary", "name"),
    [
        ("project/own/code.py", "", "own/code.py"),
        ("elsewhere/package/code.py", "", "package/code.py"),
        ("alone/code.py", "/nowhere", "code.py"),
        # Written for this process alone, as PyTorch Geometric does, installed, or in no file.
        ("alone/code.py", "", ""),
        ("lib/site-packages/library/code.py", "", ""),
        ("nowhere/code.py", "", ""),
    ],
)
def test_files_are_named_without_a_folder_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, temporary: str, name: str
) -> None:
    code = tmp_path / file
    if "nowhere" not in file:
        code.parent.mkdir(parents=True)
        code.write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    monkeypatch.setattr(call_sites, "_TEMPORARY", temporary or str(tmp_path))
    assert FrameFinder(tmp_path / "project").named(code) == name
