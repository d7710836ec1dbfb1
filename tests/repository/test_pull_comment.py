"""The comment under a pull request, by a stand-in of GitHub's API and what a job has left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import ROOT
from tests.repository.conftest import HEAD, GitHub

SCRIPT = ROOT / "script" / "pull-comment"
MARK = "<!-- gpuperf ab -->"


def commented(
    github: GitHub, folder: Path, report: str | None = "# gpuperf: 1 regressed", number: str = "7"
) -> subprocess.CompletedProcess[str]:
    """Runs the script on what a job left."""
    folder.mkdir(exist_ok=True)
    (folder / "number").write_text(number)
    (folder / "ab.md").unlink(missing_ok=True)
    if report is not None:
        (folder / "ab.md").write_text(report)
    return run(github, folder)


def run(github: GitHub, folder: Path) -> subprocess.CompletedProcess[str]:
    """The script, as the workflow starts it."""
    environment = {
        "GITHUB_API_URL": github.url,
        "GITHUB_REPOSITORY": "somebody/project",
        "GITHUB_TOKEN": "secret",
        "MEASURED": HEAD,
    }
    return subprocess.run(
        [sys.executable, SCRIPT, folder],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_one_comment_is_made_and_then_brought_up_to_date(github: GitHub, tmp_path: Path) -> None:
    github.comment("looks good", "a-person")
    github.comment(f"{MARK} not ours: anybody may write that", "a-person")
    for report, said in (("# first", "made"), ("# second", "brought up to date")):
        done = commented(github, tmp_path / "left", report)
        assert (done.returncode, done.stdout) == (0, f"pull request 7: comment {said}\n")
    assert [one["body"] for one in github.comments][2:] == [
        f"{MARK}\n# second\n\nMeasured at {HEAD[:12]}."
    ]
    assert {line.split(" ", 1)[1] for line in github.requests} == {"Bearer secret"}


def test_it_is_known_again_among_any_number_of_others(github: GitHub, tmp_path: Path) -> None:
    for number in range(150):
        github.comment(f"{number}", "a-person")
    github.comment(f"{MARK}\nolder")
    assert commented(github, tmp_path / "left").returncode == 0
    assert len(github.comments) == 151
    assert "1 regressed" in github.comments[-1]["body"]


def test_what_was_measured_is_said_of_nothing_else(github: GitHub, tmp_path: Path) -> None:
    """The job ran somebody's code, which may have left any number."""
    github.head = "f" * 40
    done = commented(github, tmp_path / "left")
    assert done.returncode == 1
    assert "is at ffffffffffff, and 0123456789ab was measured" in done.stderr
    for number in ("", "8; rm", "-1", "../7", "9", "\u0667"):
        assert commented(github, tmp_path / "left", number=number).returncode == 1, number
    assert github.comments == []


def test_a_report_calls_nobody_by_name_and_fits(github: GitHub, tmp_path: Path) -> None:
    report = f"@everybody look <!-- gpuperf ab --> {'x' * 100_000}"
    assert commented(github, tmp_path / "left", report).returncode == 0
    body = github.comments[0]["body"]
    assert "@everybody" not in body
    assert body.count("<!--") == 1
    assert len(body) < 65_536
    assert "The report is longer" in body


def test_without_a_report_it_says_so_and_a_link_is_none(github: GitHub, tmp_path: Path) -> None:
    folder, secret = tmp_path / "left", tmp_path / "secret"
    secret.write_text("hidden")
    folder.mkdir()
    assert commented(github, folder, None).returncode == 0
    assert "Nothing was measured" in github.comments[0]["body"]
    github.comments.clear()
    (folder / "number").write_text("7")
    (folder / "ab.md").symlink_to(secret)
    assert run(github, folder).returncode == 0
    assert "hidden" not in github.comments[0]["body"]


def test_where_github_refuses_it_says_so(github: GitHub, tmp_path: Path) -> None:
    github.refuses = 403
    done = commented(github, tmp_path / "left")
    assert done.returncode == 1
    assert "/pulls/7: 403 Forbidden" in done.stderr
    assert "secret" not in done.stderr
