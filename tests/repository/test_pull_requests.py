"""Pull requests on a GPU: who may start what, and what the code of a stranger gets.

The workflows are read, and their commands run in a checkout as GitHub makes it; `gpuperf` is a
stand-in. The attacks are listed in docs/pull-requests.md.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = {file.stem: yaml.safe_load(file.read_text("utf-8")) for file in FOLDER.glob("*.yml")}
EXAMPLE = ROOT / "examples" / "nightly" / "gpu-pull-request.yml"
PAGE = ROOT / "docs" / "pull-requests.md"
OF_MAINTAINERS = {"schedule", "push", "workflow_dispatch", "workflow_call"}
"""Events that need the right to write here."""
JOBS = [(name, job) for name, made in WORKFLOWS.items() for job in made["jobs"].values()]
AB = WORKFLOWS["ab"]["jobs"]["ab"]
OURS = "${{ job.workflow_sha }}"
"""The commit of the workflow itself, whichever project called it."""
GPUPERF = """#!/bin/sh
printf '%s|' "$@" >>"$CALLS"
cat conftest.py
"""


def events(workflow: dict[Any, Any]) -> set[str]:
    """What starts it; YAML takes the key "on" for true."""
    started = workflow[True]
    return {started} if isinstance(started, str) else {*started}


def may_write(job: dict[str, Any]) -> bool:
    return "write" in job.get("permissions", {}).values()


def steps(job: dict[str, Any], action: str) -> list[dict[str, Any]]:
    """What the job's steps tell that action."""
    listed = job.get("steps", [])
    return [step.get("with", {}) for step in listed if step.get("uses", "").startswith(action)]


def test_no_event_of_a_stranger_reaches_our_runners() -> None:
    """GitHub takes the file of such an event from the pull request: a condition in it is none."""
    assert "gpu-once" in AB["runs-on"]
    opened = {name for name, made in WORKFLOWS.items() if events(made) - OF_MAINTAINERS}
    assert opened == {"tests"}
    assert WORKFLOWS["tests"]["permissions"] == {"contents": "read"}
    for job in WORKFLOWS["tests"]["jobs"].values():
        assert job["runs-on"] == "ubuntu-latest"
        assert "permissions" not in job


def test_no_label_starts_or_ends_a_measurement() -> None:
    assert events(WORKFLOWS["ab"]) == {"workflow_dispatch", "workflow_call"}
    assert not any("label" in file.read_text("utf-8").split("jobs:")[0] for file in [EXAMPLE])
    assert "concurrency" not in WORKFLOWS["ab"]
    assert AB["concurrency"]["group"] == "ab-${{ inputs.pull }}"


def test_the_measuring_job_has_no_right_and_no_secret() -> None:
    assert WORKFLOWS["ab"]["permissions"] == {}
    assert AB["permissions"] == {"contents": "read"}
    assert [step["persist-credentials"] for step in steps(AB, "actions/checkout")] == [False]
    text = (FOLDER / "ab.yml").read_text("utf-8")
    assert not re.search(r"secrets|github\.token|id-token", text)


def test_jobs_that_may_write_run_our_code_alone_and_no_cache() -> None:
    """A job that runs another's code may have written to the cache of the branch."""
    writing = [(name, job) for name, job in JOBS if may_write(job)]
    assert len(writing) >= 4
    for name, job in writing:
        if "uses" in job:
            assert job["uses"] == "./.github/workflows/ab-comment.yml"
            continue
        assert job["runs-on"] == "ubuntu-latest", name
        assert all(one.get("ref") in (None, OURS) for one in steps(job, "actions/checkout"))
        assert all("cache" not in one for one in steps(job, "actions/setup-python"))
        assert steps(job, "actions/cache") == []


def test_the_comment_comes_of_the_code_that_the_project_has_pinned() -> None:
    """Not of the calling project's, and what was left lies outside of it."""
    (job,) = WORKFLOWS["ab-comment"]["jobs"].values()
    (checkout,) = steps(job, "actions/checkout")
    assert checkout["repository"] == "${{ job.workflow_repository }}"
    assert checkout["ref"] == OURS
    (left,) = steps(job, "actions/download-artifact")
    assert left["path"] == "${{ runner.temp }}/left"
    assert job["steps"][-2]["run"] == 'python3 -m pytest_gpuperf pull-comment "$RUNNER_TEMP/left"'


@pytest.mark.parametrize(("result", "state"), [("success", "success"), ("failure", "failure")])
def test_the_head_that_was_read_has_a_status(result: str, state: str, tmp_path: Path) -> None:
    (job,) = WORKFLOWS["ab-comment"]["jobs"].values()
    gh = tmp_path / "gh"
    gh.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/asked\n')
    gh.chmod(0o755)
    known = {"GITHUB_REPOSITORY": "o/r", "MEASURED": "f" * 40, "RESULT": result, "JOB": "https://x"}
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    script = ["bash", "-ec", job["steps"][-1]["run"]]
    subprocess.run(script, env={**known, "PATH": path}, check=True)
    asked = (tmp_path / "asked").read_text("utf-8").splitlines()
    assert asked[1] == f"repos/o/r/statuses/{'f' * 40}"
    assert f"state={state}" in asked


def test_nothing_of_an_event_or_an_input_is_in_a_command() -> None:
    """Titles, names of branches and labels are others' words."""
    action = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
    listed = [step for _, job in JOBS for step in job.get("steps", [])]
    commands = [step["run"] for step in [*listed, *action["runs"]["steps"]] if "run" in step]
    assert len(commands) > 20
    inserted = {found for text in commands for found in re.findall(r"\$\{\{.*?\}\}", text)}
    assert {*re.findall(r"[a-z]+\.[\w.]+", " ".join(inserted))} <= {"matrix.loader", "matrix.room"}


def git(folder: Path, *words: str) -> str:
    me = ("-c", "user.name=me", "-c", "user.email=me@home", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", *me, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@dataclass(frozen=True)
class Runner:
    """The checkout of pull request 7 on a runner, and what a job's commands do there."""

    checkout: Path
    base: str

    @property
    def head(self) -> str:
        return git(self.checkout, "rev-parse", "HEAD")

    @property
    def calls(self) -> list[str]:
        """What gpuperf was told, word by word."""
        file = self.checkout.parent / "calls"
        return file.read_text("utf-8").split("|")[:-1] if file.exists() else []

    def ab(self, head: str, **inputs: str) -> subprocess.CompletedProcess[str]:
        """The commands of the measuring job, up to the first that fails."""
        given = {"pull": "7", "head": head, "tests": "tests/perf", "install": "", **inputs}
        place = self.checkout.parent
        for step in (step for step in AB["steps"] if "run" in step):
            values = {"github.sha": self.base} | {f"inputs.{key}": v for key, v in given.items()}
            environment = {
                name: values[found[1]]
                if (found := re.match(r"\$\{\{ ([\w.]+)", str(value)))
                else ""
                for name, value in step["env"].items()
            }
            environment |= {"PATH": f"{place / 'programs'}:/usr/bin:/bin"}
            environment |= {"CALLS": str(place / "calls"), "RUNNER_TEMP": "temp"}
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=self.checkout,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                break
        return done


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    server, checkout = tmp_path / "server", tmp_path / "checkout"
    for folder in (server, tmp_path / "programs"):
        folder.mkdir()
    (tmp_path / "programs" / "gpuperf").write_text(GPUPERF)
    (tmp_path / "programs" / "gpuperf").chmod(0o755)
    git(server, "init", "--quiet")
    (server / "conftest.py").write_text("base\n")
    git(server, "add", "-A")
    git(server, "commit", "--quiet", "-m", "base")
    base = git(server, "rev-parse", "HEAD")
    git(server, "checkout", "--quiet", "-b", "fork;touch${IFS}pwned")
    (server / "conftest.py").write_text("of the pull request\n")
    for name in ("-x", "--output=pwned", "a\nb", "$(touch pwned)"):
        (server / name).write_text("")
    git(server, "add", "-A")
    git(server, "commit", "--quiet", "-m", "$(touch pwned)")
    git(server, "update-ref", "refs/pull/7/head", "HEAD")
    git(server, "checkout", "--quiet", "main")
    git(tmp_path, "clone", "--quiet", str(server), "checkout")
    git(checkout, "fetch", "--quiet", "origin", "refs/pull/7/head")
    git(checkout, "checkout", "--quiet", "FETCH_HEAD")
    return Runner(checkout, base)


def test_the_head_that_was_read_is_measured_against_where_it_left(runner: Runner) -> None:
    done = runner.ab(runner.head)
    assert (done.returncode, done.stdout) == (0, "of the pull request\n")
    assert runner.calls == ["ab", runner.base, "--output", "temp/ab.md", "--", "tests/perf"]


@pytest.mark.parametrize("head", ["0" * 40, "main", "HEAD", "", "$(git rev-parse HEAD)"])
def test_another_head_than_the_one_that_was_read_is_not_measured(head: str, runner: Runner) -> None:
    """It has moved since, or what was given is no hash."""
    done = runner.ab(head)
    assert done.returncode == 1
    assert done.stdout == (
        f"pull request 7 is at {runner.head}, and {head} was read: read it again\n"
    )
    assert runner.calls == []
    assert runner.ab(runner.head[:12]).returncode == 1


@pytest.mark.parametrize(
    "text", ["$(touch pwned)", "`touch pwned`", "x; touch pwned", "'\"&>pwned"]
)
def test_no_input_is_executed(text: str, runner: Runner) -> None:
    assert runner.ab(text).returncode == 1
    assert runner.ab(runner.head, tests=text, install=text, pull=text).returncode == 0
    told = ["ab", runner.base, "--output", "temp/ab.md", "--install", text, "--", *text.split()]
    assert runner.calls == told
    assert [*runner.checkout.parent.rglob("pwned")] == []


def test_another_project_has_it_in_ten_lines() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 10
    (job,) = yaml.safe_load(text)["jobs"].values()
    called = WORKFLOWS["ab"][True]["workflow_call"]["inputs"]
    needed = {name for name, entry in called.items() if entry.get("required")}
    assert needed <= {*job["with"]} <= {*called}
    # What a called workflow may is what its caller may.
    comment = WORKFLOWS["ab"]["jobs"]["comment"]
    assert yaml.safe_load(text)["permissions"] == comment["permissions"]
    (writing,) = WORKFLOWS["ab-comment"]["jobs"].values()
    assert writing["permissions"] == comment["permissions"]


def test_each_attack_on_the_page_has_its_test() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE.read_text("utf-8"))
    assert len({*named}) >= 20
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text("utf-8"), name
