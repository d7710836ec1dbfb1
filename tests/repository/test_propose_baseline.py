"""A baseline that a job records and proposes: a branch, and a pull request with old -> new.

GitHub is a stand-in and the remote a repository beside it; git is real.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.plugin.projects import BASELINE, STEP, Project
from tests.repository.conftest import GitHub, ran

BRANCH = "gpuperf/baseline-42"


def git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def remote(
    project: Project, github_job: GitHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The repository on GitHub, of which the project is a checkout without changes."""
    remote = tmp_path / "server" / "somebody" / "project"
    monkeypatch.setenv("GITHUB_SERVER_URL", (tmp_path / "server").as_uri())
    for name, value in {"REASON": "torch 2.13", "BRANCH": "main", "NUMBER": "42"}.items():
        monkeypatch.setenv(name, value)
    git(tmp_path, "init", "--quiet", "--bare", str(remote))
    project.device()
    project.tests(STEP)
    (project.root / ".gitignore").write_text("recorded.json\n__pycache__/\n.gpuperf/\n")
    git(project.root, "init", "--quiet", "-b", "main")
    git(project.root, "add", "-A")
    me = ("-c", "user.name=me", "-c", "user.email=me@home")
    git(project.root, *me, "commit", "--quiet", "-m", "first")
    git(project.root, "push", "--quiet", remote.as_uri(), "main")
    github_job.requests.clear()
    return remote


def test_a_pull_request_says_old_and_new(
    remote: Path, project: Project, github: GitHub, capsys: pytest.CaptureFixture[str]
) -> None:
    project.measure_processes("recorded.json", *[1.0] * 5)
    assert ran("propose-baseline", "recorded.json") == 0
    assert capsys.readouterr().out.endswith(f"proposed: {BRANCH}\n")
    file = f"{BASELINE}/test_steps.yaml"
    changed, data = git(remote, "diff", "--name-only", "main", BRANCH).split()
    assert changed == file
    assert data.startswith(f"{BASELINE}/test_steps/test_step-step-")
    assert "torch 2.13" in git(remote, "show", f"{BRANCH}:{file}")
    assert git(remote, "log", "-1", "--format=%an: %s", BRANCH) == (
        "github-actions[bot]: Baselines: torch 2.13\n"
    )
    (pull,) = github.pulls
    assert (pull["title"], pull["head"], pull["base"]) == ("Baselines: torch 2.13", BRANCH, "main")
    assert pull["body"].startswith("> torch 2.13\n\n`recorded.json`, accepted:\n\n```\n")
    assert "  cycles                           (new) ->      400.00 M  -\n" in pull["body"]
    # The token is nowhere but in the request.
    assert "secret" not in (project.root / ".git" / "config").read_text("utf-8")
    assert {one.split(" ", 1)[1] for one in github.requests} == {"Bearer secret"}


def test_what_is_refused_is_proposed_nowhere(
    remote: Path, project: Project, github: GitHub, capsys: pytest.CaptureFixture[str]
) -> None:
    project.measure_processes("recorded.json", 1.0)
    assert ran("propose-baseline", "recorded.json") == 1
    assert "1 process of 3" in "".join(capsys.readouterr())
    assert (github.pulls, git(remote, "branch").split()) == ([], ["main"])


def test_a_job_that_was_refused_proposes_when_it_runs_again(
    remote: Path, project: Project, github: GitHub, capsys: pytest.CaptureFixture[str]
) -> None:
    """The branch is there already, and is that job's own."""
    project.measure_processes("recorded.json", *[1.0] * 3)
    github.faults, github.waits = [("POST", 403)], None
    assert ran("propose-baseline", "recorded.json") == 1
    assert "/pulls: 403 Forbidden" in capsys.readouterr().err
    for proposes in (f"proposed: {BRANCH}", f"proposed already: {BRANCH} is brought up to date"):
        git(project.root, "reset", "--quiet", "--hard", "main~1")
        assert ran("propose-baseline", "recorded.json") == 0
        assert capsys.readouterr().out.endswith(f"{proposes}\n")
    assert len(github.pulls) == 1
    assert git(remote, "branch").split() == [BRANCH, "main"]


def test_what_git_refuses_is_said(
    project: Project,
    github: GitHub,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    remote: Path,
) -> None:
    project.measure_processes("recorded.json", *[1.0] * 3)
    monkeypatch.setenv("GITHUB_REPOSITORY", f"{remote.name}/missing")
    assert ran("propose-baseline", "recorded.json") == 4
    assert "gpuperf: git push: " in capsys.readouterr().err
    assert github.pulls == []
