"""The CPU collector: counts that can be computed by hand, and what a measurement leaves behind."""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import while_loop
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint

from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.judge.alignment import COSTS, operator_of
from pytest_gpuperf.measure.collector import Phases, Plan, Work
from pytest_gpuperf.measure.cpu.cpu_collector import CpuCollector
from pytest_gpuperf.measure.cpu.dispatch import Memory, Operators, StepCounter
from pytest_gpuperf.model.measurement import BACKWARD, STEP, CallSite, KernelTable
from tests import ROOT
from tests.heard_progress import Heard
from tests.measure.stand_ins import line_of, values

PLAN = Plan(metrics=(), rounds=5, repetitions=2, warmup=1)
FLOATS = 256
BYTES = 4 * FLOATS


def counted(step: Callable[[], object]) -> StepCounter:
    counter = StepCounter()
    with counter.watching():
        step()
    return counter


def backward(result: object) -> None:
    """The backward pass from the sum of `result`."""
    assert isinstance(result, Tensor)
    torch.autograd.backward(result.sum())


# Floating-point operations


def test_floating_point_operations_of_forward_backward_and_what_is_computed_again() -> None:
    left, right = torch.ones(4, 8, requires_grad=True), torch.ones(8, 16, requires_grad=True)
    product, attention, layer = 2 * 4 * 8 * 16, 2 * 2 * 64 * 64 * 32, nn.Linear(8, 8, bias=False)
    query = torch.ones(1, 2, 64, 32, requires_grad=True)

    def attend() -> Tensor:
        return functional.scaled_dot_product_attention(query, query, query)

    def block(values: Tensor) -> Tensor:
        return torch.exp(layer(values))

    for step, flops in (
        (lambda: left @ right, product),
        # One product for each input's gradient.
        (lambda: backward(left @ right), 3 * product),
        (attend, 2 * attention),
        # Backward computes the scores again and then four gradients.
        (lambda: backward(attend()), 7 * attention),
        (lambda: backward(block(left)), 3 * product / 2),
        (lambda: backward(checkpoint(block, left, use_reentrant=False)), 4 * product / 2),
    ):
        assert counted(step).step.flops == flops


# Operators


IMAGES, ROWS, WORDS = torch.ones(2, 4, 6, 6), torch.ones(4, 8), torch.arange(4)
IDIOMS: dict[str, Callable[[], object]] = {
    "dropout in eval": nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Dropout1d()).eval(),
    "dropout": nn.Dropout(),
    "dropout in place": lambda: nn.Dropout(inplace=True).eval()(ROWS.clone()),
    "layer norm": nn.LayerNorm(8),
    "softmax": lambda: ROWS.softmax(-1),
    "attention": lambda: functional.scaled_dot_product_attention(ROWS, ROWS, ROWS),
    "fused attention": lambda: functional.scaled_dot_product_attention(IMAGES, IMAGES, IMAGES),
    "convolution": lambda: nn.Conv2d(4, 3, 3, padding="same")(IMAGES),
    "embedding": lambda: nn.Embedding(8, 3)(WORDS),
    "recurrent": nn.LSTM(8, 3),
    "upsample": lambda: functional.interpolate(IMAGES, scale_factor=2.0, mode="bilinear"),
    "shuffle": lambda: nn.ChannelShuffle(2)(IMAGES),
    "product of batches": lambda: IMAGES @ IMAGES[0, 0],
    "views": lambda: (ROWS.view(32), ROWS.t().reshape(32), ROWS.flatten(), ROWS.expand(2, 4, 8)),
    "contiguous": lambda: (ROWS.contiguous(), ROWS.t().contiguous(), ROWS.chunk(2)),
    "types": lambda: (ROWS.double(), ROWS.to(torch.float32), ROWS.type_as(WORDS)),
    "made anew": lambda: (ROWS.clone(), ROWS.detach(), ROWS.detach().clone(), ROWS.new_ones(3)),
    "in place": lambda: ROWS.clone().add_(1).relu_().mul_(2).zero_(),
    "one-hot": lambda: functional.one_hot(WORDS),
}


@cache
def composites() -> frozenset[str]:
    """The operators that the CPU executes as others."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    names = [n for n in torch._C._dispatch_get_all_op_names() if not n.endswith((".out", "_out"))]

    def with_kernel(key: str) -> set[str]:
        return {name.partition(".")[0] for name in names if has_kernel(name, key)}

    own = with_kernel("CompositeExplicitAutograd") | with_kernel("CPU")
    return frozenset(with_kernel("CompositeImplicitAutograd") - own)


def executed(step: Callable[[], object]) -> list[str]:
    """What torch's profiler sees of the step, of composite operators what they are made of."""

    def made_of(event: Any) -> list[str]:
        if event.name not in composites():
            return [event.name]
        return [name for child in event.cpu_children for name in made_of(child)]

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()
    roots = [event for event in profiler.events() if event.cpu_parent is None]
    return [name for event in roots for name in made_of(event)]


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("idiom", IDIOMS)
def test_what_is_counted_is_what_is_executed(idiom: str, mode: Callable[[], Any]) -> None:
    step = partial(IDIOMS[idiom], *[ROWS] * isinstance(IDIOMS[idiom], nn.Module))
    operators = Operators(ROOT)
    with mode():
        with StepCounter(operators).watching():
            step()
        expected = [name for name in executed(step) if name != "aten::detach"]
    table = operators.table()
    names = [operator_of(table.names[launch.name]) for launch in table.launches]
    assert [name.replace(".", "::", 1) for name in names] == expected


# Layout copies


def _channels_last(volume: Tensor) -> Tensor:
    return volume.contiguous(memory_format=torch.channels_last_3d)


VOLUME = torch.zeros(2, 4, 4, 4, 2)


def test_copies_that_change_the_order_of_strides() -> None:
    for name, step, copies in (
        ("contiguous of contiguous", lambda: VOLUME.contiguous(), 0),
        ("another type", lambda: VOLUME.double(), 0),
        ("transposed clone keeps its strides", lambda: VOLUME.transpose(1, 4).clone(), 0),
        ("broadcast", lambda: VOLUME.copy_(torch.zeros(2)), 0),
        ("expanded", lambda: torch.zeros(1, 8).expand(8, 8).contiguous(), 0),
        ("dimensions of size one", lambda: _channels_last(torch.zeros(1, 1, 5, 5, 5)), 0),
        ("to channels-last", lambda: _channels_last(VOLUME), 1),
        ("to", lambda: VOLUME.to(memory_format=torch.channels_last_3d), 1),
        ("reshape that has to copy", lambda: VOLUME.transpose(1, 2).reshape(-1), 1),
        ("copy_", lambda: VOLUME.copy_(VOLUME.clone().transpose(1, 2)), 1),
        ("foreach", lambda: torch._foreach_copy_([torch.zeros(3, 3)], [torch.zeros(3, 3).t()]), 1),
    ):
        assert counted(step).step.layout_copies == copies, name
    # Their bytes are those written.
    half = torch.zeros(8, 16, dtype=torch.float32)
    written = counted(lambda: half.t().to(torch.float16, memory_format=torch.contiguous_format))
    assert (written.step.layout_copies, written.step.layout_copy_bytes) == (1, 2 * 8 * 16)


# Bytes saved for backward


def test_saved_storages_count_once_and_only_those_of_the_step() -> None:
    inputs = torch.ones(FLOATS, requires_grad=True)
    weight = nn.Parameter(torch.ones(FLOATS))

    def step() -> None:
        scaled = weight * inputs.detach()  # saves the inputs, which live anyway
        grown = scaled.exp()  # saves its result
        _ = (grown * weight, grown[:10].sin())  # grown again, a parameter, and a view of grown

    def block(values: Tensor) -> Tensor:
        return values.exp().exp().exp()  # each saves its result

    assert counted(step).step.saved_bytes == BYTES
    assert counted(lambda: backward(block(inputs * 2))).step.saved_bytes == 3 * BYTES
    # A checkpoint saves its input only.
    again = counted(lambda: backward(checkpoint(block, inputs * 2, use_reentrant=False)))
    assert again.step.saved_bytes == BYTES


LOOP: Any = while_loop  # untyped
WEIGHT, LONG = torch.ones(16, 16), torch.ones(1, 2, 128, 16)


def _hooks_off() -> None:
    with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
        product = WEIGHT.clone().requires_grad_() @ WEIGHT
    backward(product)


@pytest.mark.parametrize(
    ("transform", "operators", "products"),
    [
        (lambda: torch.func.grad(lambda w: (w @ w).sum())(WEIGHT), 9, 3),
        (lambda: torch.func.vmap(torch.func.grad(lambda w: (w * w).sum()))(WEIGHT), 8, 0),
        (_hooks_off, 7, 2),
    ],
)
def test_a_step_that_refuses_hooks_is_measured_but_for_saved_bytes(
    transform: Callable[[], object], operators: int, products: int
) -> None:
    phases, executions = Phases(), []

    def step() -> None:
        executions.append(1)
        with phases.mark("before"):
            WEIGHT.clone().requires_grad_().exp()  # saves its result
        with phases.mark("refusing"):
            transform()

    disable: object = torch._C._autograd._saved_tensors_hooks_disable
    collected = CpuCollector().collect(Work(step, phases), PLAN)
    assert [entry.metric for entry in collected.unsupported] == ["saved_bytes"]
    counts = values(collected)
    assert not [phase for phase, metric in counts if metric == "saved_bytes"]
    assert counts["refusing", "operators"] == (operators, operators)
    assert counts["refusing", "flops"] == (products * 2 * 16**3,) * 2
    assert len(executions) == 1 + 2 + 2
    assert torch._C._autograd._saved_tensors_hooks_disable is disable


# Peak memory


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(
    ("step", "flops"),
    [
        (lambda: torch.cond(WEIGHT.sum() > 0, lambda x: x @ x, lambda x: x + 1, (WEIGHT,)), 8192),
        (
            lambda: LOOP(
                lambda n, _: n < 3, lambda n, x: (n + 1, x @ x), (torch.tensor(0), WEIGHT)
            ),
            3 * 8192,
        ),
        (lambda: flex_attention(LONG, LONG, LONG), None),
    ],
)
def test_operators_that_call_functions_are_counted_with_what_those_call(
    step: Callable[[], object], flops: int | None
) -> None:
    done = counted(step).step
    assert done.operators > 1
    assert done.flops == flops if flops else done.flops > 0


def test_peak_memory_of_a_chain() -> None:
    inputs = torch.ones(FLOATS)

    def step() -> None:
        a = inputs + 1  # 1 alive: the inputs were there before
        b = a * 2  # 2
        c = b[:10]  # 2: a view
        del a, b  # 1: the view keeps b's storage
        d = torch.cat([inputs, inputs])  # 3
        d.add_(1)  # 3: in place
        del c, d

    assert counted(step).memory.peak == 3 * BYTES


# The collector


class Training:
    """A small training step with every kind of count in it, and a reset with some."""

    def __init__(self) -> None:
        self.phases = Phases()
        self.first, self.last = nn.Conv3d(1, 8, 3, padding=1), nn.Conv3d(8, 1, 1)
        self.optimizer = torch.optim.Adam([*self.first.parameters(), *self.last.parameters()])
        self.volume = torch.rand(1, 1, 8, 8, 8)

    def block(self, hidden: Tensor) -> Tensor:
        return functional.group_norm(hidden.transpose(2, 3).contiguous(), 4).sigmoid()

    def step(self) -> None:
        with self.phases.mark("forward"):
            hidden = checkpoint(self.block, self.first(self.volume), use_reentrant=False)
            assert isinstance(hidden, Tensor)
            loss = (self.last(hidden) - self.volume).abs().mean()
        with self.phases.mark("backward"):
            torch.autograd.backward(loss)
        with self.phases.mark("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()

    def work(self) -> Work:
        return Work(self.step, self.phases, lambda: self.volume.transpose(2, 3).contiguous())


PORTABLE = ("flops", "operators", "layout_copies", "layout_copy_bytes", "saved_bytes")


def test_phases_add_up_to_the_step() -> None:
    counts = values(CpuCollector().collect(Training().work(), PLAN))
    for metric in PORTABLE:
        parts = [counts[phase, metric] for phase in ("forward", "backward", "optimizer")]
        assert tuple(map(sum, zip(*parts, strict=True))) == counts[STEP, metric]
        assert counts[STEP, metric][0] > 0


def test_the_operators_are_named_of_which_two_rounds_differ() -> None:
    sizes = iter((1, 2, 3, 3, 3, 3, 3))

    def step() -> None:
        size = next(sizes)
        torch.ones(size, 4) @ torch.ones(4, 4)
        [torch.zeros(1) for _ in range(size)]

    collected = CpuCollector().collect(Work(step, Phases()), Plan(metrics=(), rounds=2))
    assert collected.settings is not None
    assert collected.settings["unequal"] == "aten.mm 64 and 96 FLOP, aten.zeros 2 and 3 calls"
    assert values(collected)[STEP, "flops"] == (64.0, 96.0)


def test_phases_that_change_are_refused() -> None:
    phases = Phases()
    names = iter("aabcdef")

    def step() -> None:
        with phases.mark(next(names)):
            pass

    with pytest.raises(MeasurementError, match=r"first \['a'\], then \['b'\]"):
        CpuCollector().collect(Work(step, phases), PLAN)


@pytest.mark.parametrize("collecting", [True, False])
def test_a_step_that_raises_leaves_nothing_behind(
    collecting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases = Phases()
    switched: list[bool] = []
    monkeypatch.setattr(gc, "isenabled", lambda: collecting)
    monkeypatch.setattr(gc, "disable", lambda: switched.append(False))
    monkeypatch.setattr(gc, "enable", lambda: switched.append(True))

    def step() -> None:
        with phases.mark("forward"):
            if _get_current_dispatch_mode() is not None:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        CpuCollector().collect(Work(step, phases), PLAN)
    assert switched == [False, True][: 1 + collecting]
    assert _get_current_dispatch_mode() is None
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert counted(lambda: torch.ones(1)).phases == {}


@pytest.mark.parametrize(("rounds", "counted_rounds"), [(1, 1), (30, 2)])
def test_every_execution_is_announced_and_times_come_from_some_of_their_own(
    rounds: int, counted_rounds: int
) -> None:
    diary: list[str] = []

    def step() -> None:
        diary.append("step" if _get_current_dispatch_mode() is None else "counted step")

    work = Work(step, Phases(), lambda: diary.append("reset"), progress=Heard(diary))
    collected = CpuCollector().collect(work, Plan((), rounds=rounds, repetitions=2, warmup=2))
    settings = collected.settings or {}
    assert (settings["counted_rounds"], settings["threads"]) == (
        counted_rounds,
        torch.get_num_threads(),
    )
    assert len(values(collected)[STEP, "wall_time"]) == 2
    announced = ["warming up 1 of 2", "warming up 2 of 2"]
    announced += [f"counting, round {n} of {counted_rounds}" for n in range(1, counted_rounds + 1)]
    announced += ["timing 1 of 2", "timing 2 of 2"]
    assert diary == [
        entry
        for text in announced
        for entry in (text, "reset", "counted " * ("round" in text) + "step")
    ]


# Where operators come from


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.keeps = False
        self.kept: Tensor | None = None

    def attend(self, x: Tensor) -> Tensor:
        weights: Tensor = (self.query(x) @ x.mT).softmax(-1)
        return weights @ x

    def forward(self, x: Tensor) -> Tensor:
        y = self.attend(x)
        if self.keeps:
            self.kept = y
        return y


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attentions = Attention(), Attention()
        self.layers = nn.ModuleList(self.attentions)
        self.again = False

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.again else layer(x)
        return x


def operators(step: Callable[[], object]) -> KernelTable:
    return CpuCollector(ROOT).kernels(Work(step, Phases()), ())


def sites(table: KernelTable, operator: str) -> list[CallSite]:
    """Where each of these operators comes from, in order; who calls that is left out."""
    return [replace(one, executions=0, callers=()) for one in called_sites(table, operator)]


def called_sites(table: KernelTable, operator: str) -> list[CallSite]:
    launches = zip(table.launches, table.site_of, strict=True)
    return [
        table.sites[at] for one, at in launches if operator_of(table.names[one.name]) == operator
    ]


def callers(table: KernelTable, operator: str) -> list[list[tuple[str, int]]]:
    """The function of each of these operators and those that call it, with their executions."""
    return [
        [
            (site.function, site.executions),
            *((one.function.rpartition("of.")[2], one.executions) for one in site.callers),
        ]
        for site in called_sites(table, operator)
    ]


def training_of(model: nn.Module) -> Callable[[], None]:
    x = torch.rand(2, 4, 8)

    def step() -> None:
        model.zero_grad()
        backward(model(x))

    return step


def test_every_operator_has_its_line_its_function_and_its_module() -> None:
    """In backward those whose backward it is, and computed again those where it was computed."""
    model = Layers()
    step = training_of(model)
    table = operators(step)
    assert len(table.launches) == len(table.site_of) == counted(step).step.operators
    assert table.of_operators
    line = line_of(Attention.attend, "softmax")
    first, second = (CallSite(line, "Attention.attend", f"layers.{n}") for n in (0, 1))
    in_backward = [replace(second, backward=True), replace(first, backward=True)]
    assert sites(table, "aten._softmax") == [first, second]
    assert sites(table, "aten._softmax_backward_data") == in_backward
    model.again = True
    assert sites(operators(step), "aten._softmax") == [first, second, *in_backward]


def test_an_operator_has_its_callers_with_how_often_they_were_executed() -> None:
    """In backward those of what it is the backward of, and who ran the engine, how often."""
    step = training_of(Layers())
    attend = [("Attention.attend", 2), ("Attention.forward", 2), ("Layers.forward", 1), ("step", 1)]
    table = operators(step)
    assert callers(table, "aten._softmax") == [attend] * 2
    engine = [(BACKWARD, 1), ("backward", 1), ("step", 1)]
    assert callers(table, "aten._softmax_backward_data") == [attend + engine] * 2
    lines = {caller.line for site in table.sites for caller in site.callers}
    assert line_of(Layers.forward, "else layer(x)") in lines


def test_what_is_computed_again_is_called_where_it_was_computed() -> None:
    """By what runs it in the engine, and then by who called what it computes again."""
    model = Layers()
    model.again = True
    again = [("Attention.attend", 1), ("Attention.forward", 1), (BACKWARD, 1)]
    outside = [("Layers.forward", 1), ("step", 1), (BACKWARD, 1), ("backward", 1), ("step", 1)]
    (*_, last) = callers(operators(training_of(model)), "aten._softmax")
    assert last[3:] == outside
    assert [function for function, _ in last[:3]] == [function for function, _ in again]


def test_a_graph_of_the_backward_pass_has_a_backward_pass_of_its_own() -> None:
    def step() -> None:
        x = torch.ones(3, requires_grad=True)
        (slope,) = torch.autograd.grad(x.exp().sum(), x, create_graph=True)
        torch.autograd.backward(slope.sum())

    table = operators(step)
    lines = [[one.line for one in site.callers] for site in called_sites(table, "aten.mul")]
    first, second = line_of(step, "x.exp()"), line_of(step, "d.backward(")
    assert {site.line for site in called_sites(table, "aten.mul")} == {first}
    assert lines[0] == ["", first]
    assert {*map(tuple, lines[1:])} == {("", second), ("", first, "", second)}


def test_who_traces_hears_all_that_is_executed() -> None:
    """As a debugger does, and what counts executed lines."""
    step, lines = training_of(Layers()), Counter[str]()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        lines[f"{event} {frame.f_code.co_name}"] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        table = operators(step)
    finally:
        sys.settrace(before)
    assert [lines[f"{event} attend"] for event in ("call", "line", "return")] == [2, 4, 2]
    assert callers(table, "aten._softmax") == callers(operators(step), "aten._softmax")


def test_what_operators_cost_adds_up_to_what_is_counted() -> None:
    """In their number by lines, and in types: of what is freed, kept, saved, and converted."""
    model = Layers()
    step = training_of(model)
    for model.again in (False, True):
        for model.attentions[0].keeps in (False, True):
            collected = values(CpuCollector(ROOT).collect(Work(step, Phases()), PLAN))
            table = operators(step)
            sums = {metric: table.total(metric) for metric in COSTS}
            assert sums == {metric: collected[STEP, metric][0] for metric in COSTS}
    assert {name for name in table.names if name.startswith("aten.bmm")} == {"aten.bmm float32"}


def test_what_a_module_keeps_of_a_step_is_memory_that_outlives_it() -> None:
    model = Layers()
    step = training_of(model)
    gradients = sum(weight.nbytes for weight in model.parameters())
    activation = 4 * 2 * 4 * 8

    def kept() -> set[float]:
        return {*values(CpuCollector().collect(Work(step, Phases()), PLAN))[STEP, "kept_memory"]}

    assert kept() == {gradients}
    model.attentions[1].keeps = True
    assert kept() == {gradients + activation}


@pytest.mark.parametrize(("patience_s", "kept"), [(0.0, 32), (60.0, 0)])
def test_what_another_thread_lets_go_of_a_moment_later_is_not_kept(
    patience_s: float, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As gloo's, of what was reduced. It is looked for once, or until it is gone."""
    held, memory = [torch.ones(8)], Memory()
    memory.note(held[0], ())
    monkeypatch.setattr(time, "sleep", lambda _: held.clear())
    memory.end(patience_s)
    assert memory.kept == kept
