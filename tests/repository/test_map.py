"""The map in docs/how-it-works.md: its stops are modules that a call passes."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

from tests import ROOT
from tests.plugin.projects import Project

PACKAGE = ROOT / "pytest_gpuperf"
STEP = """
    import torch

    X = torch.ones(8, 8)

    def test_step(gpuperf):
        gpuperf.measure(lambda: X @ X)
"""
ELSEWHERE = {"measure/gpu_collector.py", "measure/replica.py"}
"""On a GPU; where the first process leaves the verdict open."""


def stops(heading: str) -> list[str]:
    """The module that each entry of the list under this heading begins with."""
    text = (ROOT / "docs" / "how-it-works.md").read_text("utf-8")
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\d+\. `([\w/]+\.py)`", section, re.MULTILINE)


@cache
def module_of(code: CodeType) -> str:
    """The module of the package that has this function; "" for any other code."""
    file = Path(code.co_filename)
    function = code.co_flags & inspect.CO_OPTIMIZED  # a module or a class is none
    return file.relative_to(PACKAGE).as_posix() if function and PACKAGE in file.parents else ""


def passed(run: Callable[[], object]) -> tuple[set[str], set[str]]:
    """The modules of the package whose functions `run` calls; those within `gpuperf.measure`."""
    files: set[str] = set()
    inside: set[str] = set()
    depth = [0]

    def called(frame: FrameType, event: str, _: object) -> None:
        if not (module := module_of(frame.f_code)):
            return
        outermost = (module, frame.f_code.co_name) == ("plugin/fixture.py", "measure")
        if event == "call":
            depth[0] += outermost
            files.add(module)
            if depth[0]:
                inside.add(module)
        elif event == "return":
            depth[0] -= outermost

    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(None)
    return files, inside


def test_the_map_is_what_a_trace_shows(project: Project) -> None:
    project.tests(STEP)
    options = ("--gpu-arch=cpu", "--gpuperf-missing=record", "--gpuperf-run=first.json")
    assert project.run(*options).ret == 0
    accepting, _ = passed(lambda: project.update("first.json"))
    measuring, inside = passed(lambda: project.run("--gpu-arch=cpu"))
    for heading, modules in {
        "From `measure(step)` to the verdict": measuring,
        "From a run to the YAML": accepting,
    }.items():
        named = [stop for stop in stops(heading) if stop not in ELSEWHERE]
        assert named
        assert {*named} <= modules

    # For whoever follows a call: so many modules are read for it.
    assert len(accepting) <= 25
    assert 0 < len(inside) <= 30
