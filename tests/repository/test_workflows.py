"""Workflows for GitHub, ours and the documented one, which does what the page says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_gpuperf import __main__
from tests import ROOT
from tests.plugin.projects import Project


def documented(page: str) -> list[str]:
    """The YAML on a page."""
    return re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


DOCUMENTED = documented("docs/reports.md")
ON_A_CPU = documented("README.md")
OURS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTION = ROOT / "action.yml"
NIGHTLY = ROOT / "examples" / "nightly"
EXAMPLES = sorted(NIGHTLY.glob("gpu-*.yml"))
GITLAB, JENKINS = NIGHTLY / "gitlab-ci.yml", NIGHTLY / "Jenkinsfile"


def steps(text: str) -> list[dict[str, Any]]:
    """The steps of a workflow's only job."""
    (job,) = yaml.safe_load(text)["jobs"].values()
    listed: list[dict[str, Any]] = job["steps"]
    return listed


def test_workflows_are_valid(tmp_path: Path) -> None:
    shown = [*DOCUMENTED, *ON_A_CPU]
    from_docs = [tmp_path / f"docs-{number}.yml" for number, _ in enumerate(shown)]
    for file, text in zip(from_docs, shown, strict=True):
        file.write_text(text, encoding="utf-8")
    # The schema comes with the program: nothing is fetched.
    for schema, files in (
        ("github-workflows", [*from_docs, *OURS, *EXAMPLES]),
        ("github-actions", [ACTION]),
        ("gitlab-ci", [GITLAB]),
    ):
        command = [sys.executable, "-m", "check_jsonschema"]
        command += ["--builtin-schema", f"vendor.{schema}", *map(str, files)]
        checked = subprocess.run(command, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_other_services_type_what_there_is_and_read_what_it_leaves() -> None:
    for file in (GITLAB, JENKINS):
        text = file.read_text(encoding="utf-8")
        commands = re.findall(r"\b(gpuperf (?:night|export) [^'\n]*)", text)
        assert commands
        for _, *words in map(shlex.split, commands):
            __main__.parser(words[:1]).parse_args(words)
        (junit,) = {*re.findall(r"--junitxml=(\S+?\.xml)", text)}
        assert re.search(rf"\b(junit|testResults): '?{junit}\b", text)
        assert re.search(r"night/night\.md|paths: \[night\]", text)
    job = yaml.safe_load(GITLAB.read_text("utf-8"))["gpuperf-night"]
    assert job["artifacts"]["reports"]["metrics"] == job["after_script"][0].split()[-1]


def test_what_is_tested_at_night_is_in_the_night_s_workflow() -> None:
    night = (ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8")
    asked = {*re.findall(r"tests/[\w/.]+", night)}
    at_night = re.compile(r"^from .* import .*\b(AT_NIGHT|EVERY)\b", re.MULTILINE)
    files = [
        file.relative_to(ROOT)
        for file in (ROOT / "tests").rglob("test_*.py")
        if at_night.search(file.read_text(encoding="utf-8"))
    ]
    assert len(files) > 5
    assert [file for file in files if not asked & {*map(str, (file, *file.parents))}] == []


def test_nothing_in_workflows_lets_somebody_in(tmp_path: Path) -> None:
    """Actions are pinned by hash, credentials are not kept, nothing of an event is a command."""
    program = Path(sys.executable).with_name("zizmor")
    if not program.exists():
        pytest.skip("zizmor is not installed: the extra lint has it")
    for example in EXAMPLES:
        filled_in = example.read_text(encoding="utf-8").replace("COMMIT", "0" * 40)
        (tmp_path / example.name).write_text(filled_in, encoding="utf-8")
    files = [ROOT / ".github" / "workflows", ACTION, *tmp_path.iterdir()]
    command = [str(program), "--offline", "--quiet", *map(str, files)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_workflow_for_an_ordinary_runner_has_twelve_lines_and_pins_actions() -> None:
    (text,) = ON_A_CPU
    assert len(text.splitlines()) == 12
    *actions, install, _, measure = steps(text)
    pins = [step["uses"].partition("@") for step in actions]
    assert [name for name, _, _ in pins] == ["actions/checkout", "actions/setup-python"]
    assert all(re.fullmatch(r"[0-9a-f]{40}", pin) for _, _, pin in pins)
    known = (ROOT / "script" / "constraints.txt").read_text(encoding="utf-8")
    torch = re.search(r"torch==\S+", install["run"])
    assert torch is not None
    assert torch[0] in known.splitlines()
    assert measure["run"] == "pytest tests/perf --gpuperf-require-judged"


def test_the_documented_workflow_measures_and_leaves_what_it_uploads(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    (text,) = DOCUMENTED
    *_, measure, upload = steps(text)
    summary = project.root / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.root))
    project.device(name="NVIDIA H200", arch="sm90")
    folder = project.root / "tests" / "perf"
    folder.mkdir(parents=True)
    (folder / "test_step.py").write_text(
        "def test_step(gpuperf): gpuperf.measure(lambda: None)\n", encoding="utf-8"
    )
    program, *arguments = shlex.split(measure["run"])
    assert program == "pytest"
    result = project.run(*arguments)
    result.assert_outcomes(failed=1)  # it has no baseline yet
    result.stdout.fnmatch_lines(["::warning file=tests/perf/test_step.py,line=1,title=gpuperf*"])
    uploaded = upload["with"]["path"].split()
    assert uploaded == ["run.json.xz", "report.md", "junit.xml"]
    assert all((project.root / name).is_file() for name in uploaded)
    assert summary.read_text(encoding="utf-8").startswith("# gpuperf: 1 no-baseline\n")
    assert project.update("run.json.xz") == 0
    project.run(*arguments).assert_outcomes(passed=1)
