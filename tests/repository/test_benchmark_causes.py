"""Thirty causes of slower steps: each patch applies, and what is said of it is scored.

Of models of others only what is written down is looked at: their packages are not here.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import recorded
from benchmarks.causes import __main__ as command
from benchmarks.causes import patches, scores, steps
from benchmarks.causes.patches import BadPatch, Cause, Expected
from benchmarks.causes.scores import Score
from pytest_gpuperf.judge.attribution import attribute
from pytest_gpuperf.measure.collector import Phases, Work
from pytest_gpuperf.measure.cpu.cpu_collector import CpuCollector
from pytest_gpuperf.model.measurement import KernelTable
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import run_files
from pytest_gpuperf.storage.files import to_plain
from tests import ROOT
from tests.examples import verdict
from tests.kernel_steps import NAMING, counted

CAUSES = patches.causes()
OURS = {name: cause for name, cause in CAUSES.items() if (ROOT / cause.file).exists()}
SEVEN = (
    *("channels-last", "norm-float64", "attention-twice", "item-in-blocks", "times-one"),
    *("dropout", "adam-loop"),
)
"""Those that were tried by hand."""


def test_there_are_thirty_of_ten_kinds_and_ten_more_that_shaped_no_rule() -> None:
    """Half of each in steps of others."""
    shaping = [cause for cause in CAUSES.values() if not cause.held_out]
    held_out = [cause for cause in CAUSES.values() if cause.held_out]
    assert (len(shaping), len(held_out)) == (30, 10)
    assert set(Counter(cause.kinds[0] for cause in shaping).values()) == {3}
    assert len({cause.kinds[0] for cause in held_out}) >= 7
    assert {*SEVEN} < {*OURS}
    for causes, ours in ((shaping, 15), (held_out, 5)):
        assert sum(cause.file.startswith("suites/") for cause in causes) == ours
    assert {cause.step for cause in shaping} == {*steps.STEPS}


@pytest.mark.parametrize("cause", OURS.values(), ids=list(OURS))
def test_a_patch_stands_in_its_file_once_and_its_line_is_the_one_expected(cause: Cause) -> None:
    expected = patches.expected(cause)
    source = (ROOT / cause.file).read_text("utf-8")
    lines = patches.patched(source, cause).splitlines()
    assert source != "\n".join(lines)
    shown = [line.strip() for line in lines[expected.first - 1 : expected.last]]
    assert shown == [cause.line] if cause.line else shown[0].startswith("def ")
    re.compile(cause.modules)


MODULE = '''
"""What is patched."""

from functools import wraps


def traced(function):
    @wraps(function)
    def inner(*arguments):
        return function(*arguments)

    return inner


class Model:
    def __init__(self):
        self.scale = 2

    @traced
    def forward(self, x):
        y = x + 1
        return self.scale * y

    @property
    def double(self):
        return 2 * self.scale


def step(x, times=1):
    return [Model().forward(x) for _ in range(times)]
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of somebody's."""
    (tmp_path / "somebodys.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "somebodys", raising=False)
    return importlib.import_module("somebodys")


def cause(old: str, new: str, **fields: Any) -> Cause:
    """A patch of that module."""
    known = {"function": "Model.forward", "line": "", "modules": "", "summary": ""}
    return Cause(
        **{
            "name": "seed",
            "kinds": ("precision",),
            "step": "convnext",
            "file": "somebodys.py",
            "at": "somebodys.py",
            "old": old,
            "new": new,
            **known,
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        ("y = x + 1", "y = x + 10", 22),
        # Further lines have the margin of the first.
        ("y = x + 1", "y = x\ny = y + 3", 8),
        ("self.scale = 2", "self.scale = 5", 10),
        ("y = x + 1\nreturn self.scale * y", "return x", 1),
        ("for _ in range(times)", "for _ in range(times)][:1] + [7", 4),
    ],
)
def test_functions_run_the_patched_code_within_the_block(
    module: Any, old: str, new: str, result: int
) -> None:
    with patches.applied(cause(old, new)):
        assert module.step(1)[0] == result
    assert module.step(1) == [4]


def test_it_is_taken_out_when_the_block_fails(module: Any) -> None:
    def fails() -> None:
        with patches.applied(cause("y = x + 1", "y = x / 0")):
            module.step(1)

    with pytest.raises(ZeroDivisionError):
        fails()
    assert module.step(1) == [4]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("y = x + 2", "y = x", "has the old text 0 times, once is needed: y = x [+] 2"),
        ("self.scale", "self.size", "has the old text 3 times"),
        ("y = x + 1", "y = x + 1  # here", "does anything else with it"),
        ("times=1", "times=2", "changes more of somebodys.py than bodies"),
        ("    @traced\n", "", "changes more"),
    ],
)
@pytest.mark.usefixtures("module")
def test_a_patch_that_is_none_is_refused(old: str, new: str, said: str) -> None:
    def apply() -> None:
        with patches.applied(cause(old, new)):
            pass

    with pytest.raises(BadPatch, match=said):
        apply()


@pytest.mark.usefixtures("module")
def test_an_expected_line_has_to_be_there_once() -> None:
    place = patches.expected(cause("y = x + 1", "y = x\ny = y + 1", line="y = y + 1"))
    assert (place.first, place.last) == (22, 22)
    whole = patches.expected(cause("y = x + 1", "y = x"))
    assert (whole.first, whole.last) == (20, 22)
    with pytest.raises(BadPatch, match="has the line 0 times"):
        patches.expected(cause("y = x + 1", "y = x", line="y = x + 1"))
    with pytest.raises(BadPatch, match=r"has no Model\.backward"):
        patches.expected(cause("y = x + 1", "y = x", function="Model.backward"))
    with pytest.raises(BadPatch, match="is its package installed"):
        patches.expected(cause("y = x + 1", "y = x", at="nobodys.py"))


@cache
def as_it_is(step: str) -> KernelTable:
    """The same of a step without a cause."""
    return operators(next(name for name in OURS if CAUSES[name].step == step), patched=False)


def operators(name: str, *, patched: bool) -> KernelTable:
    """What the step of a cause asks of torch on a CPU."""
    cause, phases = CAUSES[name], Phases()
    with patches.applied(cause) if patched else nullcontext():
        with steps.step(cause.step, phases.mark, "cpu") as step:
            return CpuCollector(ROOT).kernels(Work(step, phases, step.reset), ())


@pytest.mark.parametrize("name", ["gelu-float64", "repeated-pixels"])
def test_a_cause_is_put_into_a_step_and_its_line_named(name: str) -> None:
    before, after = as_it_is(CAUSES[name].step), operators(name, patched=True)
    assert len(after.launches) > len(before.launches)
    blame = to_plain(attribute([after], [before], NAMING))
    (score,) = scores.scores(report(name, blame), [patches.expected(CAUSES[name])])
    assert score.right_place, score.said


EXPECTED = Expected(
    *("seed", ("precision",), "convnext", "", "models/layers.py"),
    *(118, 118, "Block.forward", r"blocks\.\d"),
)
HEADLINE = {
    "kind": "precision",
    "line": "models/layers.py:118",
    "function": "Block.forward",
    "modules": ["blocks.0", "blocks.1"],
    "change": 2e6,
}
FAMILIES = [
    {"after": 3e6, "launches_after": 2},
    {"after": 1e6, "launches_after": 1},
]
MODULES = [
    {"after": 1e6, "launches_after": 1},
    {"after": 3e6, "launches_after": 2},
]
STEP_TIME = {
    "test": "test_causes.py::test_cause[seed]",
    "phase": "step",
    "metric": "step_time",
    "outcome": "regressed",
    "baseline": 100.0,
    "measured": 102.0,
    "change": 0.02,
    "low": 0.015,
    "high": 0.025,
}


def report(name: str, blame: Any = None, **step_time: Any) -> dict[str, Any]:
    """What was said of the time of one cause's step, and of what it comes from."""
    test = f"test_causes.py::test_cause[{name}]"
    verdicts = [{**STEP_TIME, "test": test, **step_time}]
    return {"verdicts": verdicts, "blames": [{"test": test, "blame": blame}] if blame else []}


def scored(blame: Any = None, **step_time: Any) -> Score:
    (score,) = scores.scores(report("seed", blame, **step_time), [EXPECTED])
    return score


def blamed(sums: Any = MODULES, **headline: Any) -> dict[str, Any]:
    return {
        "headline": {**HEADLINE, **headline},
        "families": FAMILIES,
        "modules": sums,
    }


def test_a_headline_is_right_where_it_says_what_was_expected() -> None:
    score = scored(blamed())
    assert (score.regressed, score.cost, score.due) == (True, 0.02, True)
    assert (score.right_place, score.right_kind, score.sums, score.in_interval) == (True,) * 4
    assert score.said == (
        "+2 ms: precision: models/layers.py:118 Block.forward (blocks.0, blocks.1)"
    )


COUNT = {"change": 0.0, "metric": "launches", "baseline": 10.0}


@pytest.mark.parametrize(
    ("score", "field", "value"),
    [
        # A place is a line and its modules.
        (lambda: scored(blamed(line="src/models/layers.py:118")), "right_place", True),
        (lambda: scored(blamed(line="my_models/layers.py:118")), "right_place", False),
        (lambda: scored(blamed(line="models/layers.py:117")), "right_place", False),
        (lambda: scored(blamed(line="models/layers.py:119")), "right_place", False),
        (lambda: scored(blamed(line="")), "right_place", False),
        (lambda: scored(blamed(modules=["blocks.0"])), "right_place", True),
        (lambda: scored(blamed(modules=["blocks.0", "head"])), "right_place", False),
        (lambda: scored(blamed(modules=[])), "right_place", False),
        # Milliseconds are within the interval of the step.
        (lambda: scored(blamed(change=1.4e6)), "in_interval", False),
        (lambda: scored(blamed(change=1.6e6)), "in_interval", True),
        (lambda: scored(blamed(change=None)), "in_interval", True),
        # Sums over modules are those of all launches.
        (lambda: scored(blamed([MODULES[0], {**MODULES[1], "after": 2.97e6}])), "sums", True),
        (lambda: scored(blamed([MODULES[0], {**MODULES[1], "after": 2.95e6}])), "sums", False),
        (lambda: scored(blamed([])), "sums", False),
        # What costs nothing and changes no count need not be found.
        (lambda: scored(change=0.0031), "due", True),
        (lambda: scored(change=0.0029), "due", False),
        (lambda: scored(**COUNT, measured=11.0), "due", True),
        (lambda: scored(**COUNT, measured=10.0), "due", False),
        # A counter of the hardware is not counted exactly.
        (lambda: scored(change=0.0, metric="instructions", measured=101.0), "due", False),
    ],
)
def test_what_is_scored(score: Callable[[], Score], field: str, value: bool) -> None:
    assert getattr(score(), field) is value


SEEN = ROOT / "tests" / "data" / "h200-causes"
"""Seven losses on one H200, with their kernels, and the step as it is on another."""
SEVEN_EXPECTED = [Expected(**e) for e in json.loads((SEEN / "expected.json").read_text("utf-8"))]


@cache
def seen(side: str, *, counters: bool) -> dict[str, KernelTable]:
    """What was launched, by cause."""
    run = run_files.load(SEEN / f"{side}.json.xz")
    run = run if counters else scores.without_counters(run)
    tables = {m.test.partition("[")[2].rstrip("]"): m.kernels for m in run.measurements}
    return {name: table for name, table in tables.items() if table is not None}


@pytest.mark.parametrize("counters", [True, False], ids=["counted", "without counters"])
@pytest.mark.parametrize("expected", SEVEN_EXPECTED, ids=lambda expected: str(expected.name))
def test_losses_on_an_h200_have_their_line_module_and_kind(
    expected: Expected, counters: bool
) -> None:
    (before,) = seen("clean", counters=counters).values()
    after = seen("patched", counters=counters)[expected.name]
    # Of an exact count, which a process more would have settled: times are of two GPUs.
    count = replace(verdict("launches", unit="launches"), baseline=1541.0, measured=1560.0)
    blame = to_plain(attribute(after, before, NAMING, [count]))
    (score,) = scores.scores(report(expected.name, blame), [expected])
    assert (score.right_place, score.right_kind, score.sums) == (True,) * 3, score.said


def test_identical_code_has_nothing_said_of_it() -> None:
    unchanged = {"outcome": "unchanged", "change": 0.0}
    quiet = {**blamed(), "headline": None}
    assert scores.blamed(report("seed", quiet, **unchanged), [EXPECTED]) == ([], 1)
    assert scores.blamed(report("seed", blamed(), **unchanged), [EXPECTED]) == (["seed"], 1)
    assert scores.blamed(report("seed"), [EXPECTED]) == (["seed"], 1)
    assert scores.blamed(report("other"), [EXPECTED]) == ([], 0)


def test_without_counters_a_run_has_times_alone() -> None:
    recording = recorded.run("docs/runs/h200-meddpm.json")
    measured = replace(recording.measurements[0], kernels=counted("tf32-core"))
    run = replace(recording, measurements=(measured,))
    (left,) = scores.without_counters(run).measurements
    gone = {sample.metric for sample in measured.samples} - {s.metric for s in left.samples}
    assert "cycles" in gone
    assert "step_time" not in gone
    assert gone <= {entry.metric for entry in left.unsupported}
    assert left.kernels
    assert not any(launch.values for launch in left.kernels.launches)


def test_a_step_as_it_is_is_measured_once_for_all_of_its_causes() -> None:
    once = scores.one_of_each_step(CAUSES)
    assert sorted(CAUSES[name].step for name in once) == sorted(steps.STEPS)
    one = recorded.run("docs/runs/h200-meddpm.json").measurements[0]
    measured = [replace(one, test=f"test_cause[{name}]", process=p) for name in once for p in "ab"]
    # That process has measured another cause of the first one's step itself.
    own = next(n for n, c in CAUSES.items() if c.step == CAUSES[once[0]].step and n != once[0])
    itself = replace(one, test=f"test_cause[{own}]", process="a", samples=())
    run = scores.of_every_cause(Run(1, "", "", (*measured, itself)))
    made = {(m.test, m.process): m for m in run.measurements}
    assert len(made) == len(run.measurements) == 2 * len(CAUSES)
    assert made[itself.test, "a"] == itself
    assert made[itself.test, "b"].samples == one.samples


def outcome(**changes: Any) -> dict[str, Any]:
    right = scored(blamed())
    each = [to_plain(replace(right, **changes)), to_plain(right)]
    return {
        "counted": each,
        "uncounted": each,
        "counted, identical code": {"blamed": [], "of": 2},
    }


@pytest.mark.parametrize(
    ("results", "enough"),
    [
        (outcome(), True),
        (outcome(regressed=False), False),
        (outcome(regressed=False, cost=0.0), True),
        (outcome(apart=0.02), False),
        (outcome(in_interval=False), False),
        ({**outcome(), "counted, identical code": {"blamed": ["seed"], "of": 2}}, False),
    ],
)
def test_when_as_much_is_found_as_has_to_be(results: Any, enough: bool) -> None:
    assert command.enough(results) is enough
