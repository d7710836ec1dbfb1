"""README and docs: generated parts as the code gives them, links that lead somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests import ROOT
from tests.plugin.projects import Project

PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "deploy" / "README.md"),
    *(page for folder in ("docs", "examples") for page in sorted((ROOT / folder).rglob("*.md"))),
]
_ROOMS = (ROOT, ROOT / "pytest_gpuperf")
"""Where a path in backticks may begin."""
_WORKFLOWS = (".github/workflows/performance.yml", ".github/workflows/gpu-performance.yml")
_A_PROJECTS_OWN = ("tests/perf", ".gpuperf/", *_WORKFLOWS)
"""In examples: files of a project that uses us."""


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """The relative links that name no file, or no heading of it."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" in link:
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


def missing_files(page: Path) -> list[str]:
    """The paths in backticks, from the root or from the package on, that are not there."""
    missing = []
    for code in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")):
        for word in re.findall(r"(?<![\w/.<>-])[\w.-]+/[\w./*-]+(?![\w<>:.])", code):
            ours = any((room / word.split("/")[0]).exists() for room in _ROOMS)
            if (ours or word.endswith(".py")) and not word.startswith(_A_PROJECTS_OWN):
                there = any([*room.glob(word.rstrip("/."))] for room in _ROOMS)
                missing += [] if there else [word]
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_named_files_exist(page: Path) -> None:
    assert (broken_links(page), missing_files(page)) == ([], [])


def test_the_first_test_of_the_readme_is_measured_and_judged_as_it_stands(project: Project) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("## A first test")[1]
    (source,) = re.findall(r"```python\n(.*?)```", text.split("\n## ")[0], re.DOTALL)
    place = project.root / "tests" / "perf" / "test_step.py"
    place.parent.mkdir(parents=True)
    place.write_text(source, encoding="utf-8")
    project.ini()
    project.run("--gpuperf-missing=record").assert_outcomes(passed=1)
    assert (project.root / "baselines/cpu/portable/perf.yaml").exists()
    project.run("--gpuperf-require-judged").assert_outcomes(passed=1)


def test_generated_parts_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    code = runpy.run_path(str(ROOT / "script" / "docs"))["main"](["--check"])
    assert code == 0, capsys.readouterr().out
