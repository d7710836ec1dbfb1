"""The map in docs/how-it-works.md: its stops are modules that a call passes."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from tests import ROOT
from tests.plugin.projects import Project

PACKAGE = ROOT / "pytest_gpuperf"
STEP = """
    import torch

    X = torch.ones(8, 8)

    def test_step(gpuperf):
        gpuperf.measure(lambda: X @ X)
"""
ELSEWHERE = {"measure/cupti/cupti_collector.py", "measure/replica.py"}
"""On a GPU; where the first process leaves the verdict open."""


def stops(heading: str) -> list[str]:
    """The module that each entry of the list under this heading begins with."""
    text = (ROOT / "docs" / "how-it-works.md").read_text("utf-8")
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\d+\. `([\w/]+\.py)`", section, re.MULTILINE)


def passed(run: Callable[[], object], within: tuple[str, str] | None = None) -> list[str]:
    """The modules of the package whose functions `run` calls, by their first call.

    Those called in this function of this module alone, where one is given.
    """
    files: dict[str, None] = {}
    inside = [not within]

    def called(frame: FrameType, event: str, _: object) -> None:
        file, code = Path(frame.f_code.co_filename), frame.f_code
        function = code.co_flags & inspect.CO_OPTIMIZED  # a module or a class is none
        if not function or not file.is_relative_to(PACKAGE):
            return
        module = file.relative_to(PACKAGE).as_posix()
        outermost = (module, code.co_name) == within
        if event == "call":
            inside[0] = inside[0] or outermost
            if inside[0]:
                files.setdefault(module)
        elif event == "return" and outermost:
            inside[0] = False

    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(None)
    return [*files]


def test_the_map_is_what_a_trace_shows(project: Project) -> None:
    project.tests(STEP)
    options = ("--gpu-arch=cpu", "--gpuperf-missing=record", "--gpuperf-run=first.json")
    assert project.run(*options).ret == 0
    accepting = passed(lambda: project.update("first.json"))
    measuring = passed(lambda: project.run("--gpu-arch=cpu"))
    for heading, modules in {
        "From `measure(step)` to the verdict": measuring,
        "From a run to the YAML": accepting,
    }.items():
        named = [stop for stop in stops(heading) if stop not in ELSEWHERE]
        assert named
        assert {*named} <= {*modules}

    # For whoever follows a call: so many modules are read for it.
    assert len(accepting) <= 25
    inside = passed(lambda: project.run("--gpu-arch=cpu"), within=("plugin/fixture.py", "measure"))
    assert len(inside) <= 30
