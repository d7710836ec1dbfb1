"""What is said of edits in a training step that a CPU measured: real counts, and who is named."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pytest_gpuperf.baselines.judgement import judged_in_pairs
from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.attribution import Naming, attribute
from pytest_gpuperf.measure.collector import Phases, Plan, Work
from pytest_gpuperf.measure.cpu.cpu_collector import CpuCollector
from pytest_gpuperf.measure.instrument import DeviceInstrument, Subject
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.model.result import Attribution, Cause, CauseKind, Outcome

PROJECT = {
    "model.py": """import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def attend(self, x):
        y = self.norm(x)
        return self.attention(y, y, y, need_weights=False)[0]

    def forward(self, x):
        x = x + self.attend(x)
        h = F.gelu(self.up(x))
        return x + self.down(h)


class Net(nn.Module):
    def __init__(self, words=50, width=32, depth=1, hidden=64):
        super().__init__()
        self.words = words
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, hidden) for _ in range(depth))
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
""",
    "losses.py": """from torch.nn import functional as F


def loss_of(logits, tokens):
    scores = logits.flatten(0, 1)
    return F.cross_entropy(scores, tokens.flatten())
""",
    "train.py": """import torch
from losses import loss_of
from model import Net

net = Net()
tokens = torch.arange(64).reshape(4, 16) % 50
optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
weights = torch.eye(50)


def smooth(x, times=2):
    for _ in range(times):
        x = torch.tanh(x @ weights)
    return x


def step():
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=True):
        logits = net(tokens)
    loss = loss_of(smooth(logits.to(weights.dtype)), tokens)
    loss.backward()
    optimizer.step()
    return loss.detach()
""",
}
COMPILED = {
    "train.py": """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        h = self.first(x).relu()
        return self.second(h)


net = torch.compile(Net(), backend="eager")
x = torch.ones(4, 8)


def step():
    return net(x).sum()
"""
}
CALLS = {
    "train.py": """import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

net, x = nn.Linear(8, 8), torch.ones(4, 8)


def layer(x):
    return net(x).tanh()


def loss():
    return layer(x).sum()


def error():
    with torch.no_grad():
        return layer(x[:2]).sum()


def step():
    net.zero_grad()
    total = loss()
    total.backward()
    return total.detach() + 0 * error()
"""
}
UP, RETURN = "h = F.gelu(self.up(x))", "return x + self.down(h)"
HERE = f"{UP}\n        {RETURN}"
MLP = f"return x + self.mlp(x)\n\n    def mlp(self, x):\n        {UP}\n        return self.down(h)"
BLOCK = PROJECT["model.py"][: PROJECT["model.py"].index("class Net")]
IN_LAYERS = {
    "layers.py": BLOCK,
    "model.py": PROJECT["model.py"].replace(
        BLOCK, "from torch import nn\nfrom layers import Block\n"
    ),
}
Edit = tuple[str, str]
"""What stands in the code, and what is put in its place."""


def measured(root: Path, sources: Mapping[str, str], *edits: Edit) -> Measurement:
    """The step with these edits, executed and counted as a session does it."""
    root.mkdir(exist_ok=True)
    for name, code in sources.items():
        for old, new in edits:
            code = code.replace(old, new)
        (root / name).write_text(code, "utf-8")
    before = {*sys.modules}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root)
        torch.manual_seed(0)
        work = Work(runpy.run_path(str(root / "train.py"))["step"], Phases())
        compiler = tuple(m for m in catalogue().metrics.values() if m.portable and m.traced)
        plan = Plan(metrics=(), repetitions=1, activity=compiler)
        instrument = DeviceInstrument(CpuCollector(root), root)
        (once,) = instrument.measure(Subject("t.py::test", "step", "t", "", {}, "core"), work, plan)
        made = instrument.with_kernels(once, work, plan)
    for name in {*sys.modules} - before:
        if name in {file.removesuffix(".py") for file in sources}:
            del sys.modules[name]
    return made


def told(now: Measurement, then: Measurement) -> Attribution | None:
    """What is said of the first, where it is worse."""
    pairs = [(replace(then, process=f"a{n}"), replace(now, process=f"b{n}")) for n in range(4)]
    result = judged_in_pairs(pairs)
    worse = any(verdict.outcome is Outcome.REGRESSED for verdict in result.verdicts)
    return result.attribution if worse else None


def caused(now: Measurement, then: Measurement, folder: Path) -> tuple[Cause, str]:
    """The cause that is named, and the text of its line; the first was measured in `folder`."""
    attribution = told(now, then)
    assert attribution is not None
    assert attribution.cause is not None
    file, number = attribution.cause.line.split(":")
    code = (folder / file).read_text("utf-8").splitlines()[int(number) - 1]
    return attribution.cause, code


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    return measured(tmp_path_factory.mktemp("before"), PROJECT)


COUNT, PRECISION, MORE = CauseKind.COUNT, CauseKind.PRECISION, CauseKind.LAUNCHES


@pytest.mark.parametrize(
    ("edits", "kind", "line", "what"),
    [
        ([("hidden=64", "hidden=128")], COUNT, UP, "flops"),
        ([(UP, f"{UP}.clone()")], MORE, UP, "aten.clone"),
        ([(RETURN, f"self.kept = h.detach()\n        {RETURN}")], COUNT, UP, "kept_memory"),
        ([("eye(50)", "eye(50, dtype=torch.float64)")], PRECISION, ".to(weights", "float64"),
        ([("enabled=True", "enabled=False")], PRECISION, "self.attention(", "float32"),
        ([("weights=False", "weights=True")], CauseKind.ALGORITHM, "self.attention(", "aten.bmm"),
        ([("times=2", "times=6")], CauseKind.REPEATED, "torch.tanh", "aten.mm, aten.tanh"),
        (
            [("self.norm(x)", "self.norm(x.mT.contiguous().mT)")],
            CauseKind.LAYOUT,
            ".contiguous()",
            "aten.clone",
        ),
        ([(HERE, MLP), (UP, f"{UP}.clone()")], MORE, UP, "aten.clone"),
    ],
)
def test_what_an_edit_costs_is_named_with_its_line(
    before: Measurement,
    tmp_path: Path,
    edits: list[Edit],
    kind: CauseKind,
    line: str,
    what: str,
) -> None:
    cause, code = caused(measured(tmp_path, PROJECT, *edits), before, tmp_path)
    assert (cause.kind, line in code) == (kind, True), (cause, code)
    assert cause.what.startswith(what)


@pytest.mark.parametrize(
    ("edit", "line", "callee", "executions"),
    [
        (("= loss()", "= loss() + loss()"), "= loss()", "loss", (1, 2)),
        (
            (
                "= loss()",
                "= loss()\n    total += torch.autograd.grad(total, net.weight, None, None"
                ", True)[0].sum()",
            ),
            "torch.autograd.grad(",
            "backward",
            (1, 2),
        ),
        (
            ("layer(x).sum()", "checkpoint(layer, x, use_reentrant=False).sum()"),
            "checkpoint(layer",
            "layer",
            (0, 1),
        ),
        (
            ("layer(x[:2]).sum()", "sum(layer(one).sum() for one in x[:2])"),
            "sum(layer(one)",
            "layer",
            (1, 2),
        ),
        (("torch.no_grad()", "torch.enable_grad()"), "layer(x[:2])", "", ()),
    ],
    ids=["helper", "double backward", "computed again", "loop", "gradients"],
)
def test_what_is_called_more_often_or_otherwise_is_told_of_its_caller(
    tmp_path: Path, edit: Edit, line: str, callee: str, executions: tuple[int, ...]
) -> None:
    before = measured(tmp_path / "base", CALLS)
    now = measured(tmp_path / "now", CALLS, edit)
    cause, code = caused(now, before, tmp_path / "now")
    assert line in code
    assert (cause.callee, cause.executions) == (callee, executions)
    assert bool(cause.phase) == ("checkpoint" in line)


@pytest.mark.parametrize(
    ("sources", "edits"),
    [
        (PROJECT, [(HERE, MLP)]),
        (PROJECT, [("attend", "look_around"), ("Block", "Layer"), ("blocks", "layers")]),
        (PROJECT | IN_LAYERS, []),
        (
            PROJECT,
            [
                ("    optimizer.zero_grad()\n", ""),
                ("    return loss.det", "    optimizer.zero_grad()\n    return loss.det"),
            ],
        ),
    ],
    ids=["extracted", "renamed", "another file", "another order"],
)
def test_a_refactoring_changes_nothing_and_moves_each_operator(
    before: Measurement, tmp_path: Path, sources: Mapping[str, str], edits: list[Edit]
) -> None:
    now = measured(tmp_path, sources, *edits)
    assert told(now, before) is None
    assert before.kernels is not None
    assert now.kernels is not None
    attribution = attribute(now.kernels, before.kernels, Naming(*kernel_families.NAMING))
    assert (attribution.launched.added, attribution.launched.removed) == (0, 0)
    assert (attribution.lines, attribution.cause) == ((), None)


def test_of_a_baseline_that_knows_only_operators_no_line_is_made_up(
    before: Measurement, tmp_path: Path
) -> None:
    table = before.kernels
    assert table is not None
    launches = tuple(replace(launch, values=()) for launch in table.launches)
    names = tuple(name.partition(" ")[0] for name in table.names)
    earlier = replace(before, kernels=replace(table, names=names, metrics=(), launches=launches))
    now = measured(tmp_path, PROJECT, ("hidden=64", "hidden=128"))
    pairs = [(replace(earlier, process=f"a{n}"), replace(now, process=f"b{n}")) for n in range(4)]
    result = judged_in_pairs(pairs)
    assert any(verdict.outcome is Outcome.REGRESSED for verdict in result.verdicts)
    assert result.attribution is not None
    assert (result.attribution.cause, result.attribution.lines) == (None, ())
    assert any("lack bytes and types" in note for note in result.notes)


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
def test_a_graph_break_has_its_line_and_dynamos_reason(tmp_path: Path) -> None:
    base = measured(tmp_path / "base", COMPILED)
    edit = ("return self.second(h)", "return self.second(h * h.max().item())")
    now = measured(tmp_path / "now", COMPILED, edit)
    cause, code = caused(now, base, tmp_path / "now")
    assert (cause.kind, cause.before, cause.after) == (CauseKind.RECOMPILATION, 0, 1)
    assert ".item()" in code
    assert "does not support tracing `Tensor.item" in cause.what
