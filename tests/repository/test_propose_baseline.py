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
    assert github.requests == ["POST Bearer secret"]


def test_what_is_refused_is_proposed_nowhere(
    remote: Path, project: Project, github: GitHub, capsys: pytest.CaptureFixture[str]
) -> None:
    project.measure_processes("recorded.json", 1.0)
    assert ran("propose-baseline", "recorded.json") == 1
    assert "1 process of 3" in "".join(capsys.readouterr())
    assert (github.pulls, git(remote, "branch").split()) == ([], ["main"])


def test_where_the_branch_is_there_or_github_refuses_it_says_so(
    remote: Path, project: Project, github: GitHub, capsys: pytest.CaptureFixture[str]
) -> None:
    project.measure_processes("recorded.json", *[1.0] * 3)
    github.refuses = 403
    assert ran("propose-baseline", "recorded.json") == 1
    assert "/pulls: 403 Forbidden" in capsys.readouterr().err
    git(project.root, "reset", "--quiet", "--hard", "main~1")
    project.measure_processes("recorded.json", *[2.0] * 3)
    assert ran("propose-baseline", "recorded.json") == 1
    assert "git push: " in capsys.readouterr().err
    assert github.pulls[1:] == []
    assert git(remote, "branch").split() == [BRANCH, "main"]
