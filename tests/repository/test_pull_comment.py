"""The comment under a pull request, by a stand-in of GitHub's API and what a job has left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.repository.conftest import HEAD, GitHub, ran

MARK = "<!-- gpuperf ab -->"


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Job:
    """The job that comments on what another has left."""

    folder: Path
    capture: pytest.CaptureFixture[str]

    def comments(self, report: str | None = "# gpuperf: 1 regressed", number: str = "7") -> Done:
        """With this report and number in the folder."""
        (self.folder / "number").write_text(number)
        (self.folder / "ab.md").unlink(missing_ok=True)
        if report is not None:
            (self.folder / "ab.md").write_text(report)
        return self.as_is()

    def as_is(self) -> Done:
        """With what is in the folder."""
        return Done(ran("pull-comment", str(self.folder)), *self.capture.readouterr())


@pytest.fixture
def job(
    github_job: GitHub,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Job:
    monkeypatch.setenv("MEASURED", HEAD)
    folder = tmp_path / "left"
    folder.mkdir()
    return Job(folder, capsys)


def test_one_comment_is_made_and_then_brought_up_to_date(job: Job, github: GitHub) -> None:
    github.comment("looks good", "a-person")
    github.comment(f"{MARK} not ours: anybody may write that", "a-person")
    for report, said in (("# first", "made"), ("# second", "brought up to date")):
        done = job.comments(report)
        assert (done.code, done.out) == (0, f"pull request 7: comment {said}\n")
    assert [one["body"] for one in github.comments][2:] == [
        f"{MARK}\n# second\n\nMeasured at {HEAD[:12]}."
    ]
    assert {line.split(" ", 1)[1] for line in github.requests} == {"Bearer secret"}


def test_it_is_known_again_among_any_number_of_others(job: Job, github: GitHub) -> None:
    for number in range(150):
        github.comment(f"{number}", "a-person")
    github.comment(f"{MARK}\nolder")
    assert job.comments().code == 0
    assert len(github.comments) == 151
    assert "1 regressed" in github.comments[-1]["body"]


def test_what_was_measured_is_said_of_nothing_else(job: Job, github: GitHub) -> None:
    """The job ran somebody's code, which may have left any number."""
    github.head = "f" * 40
    done = job.comments()
    assert done.code == 1
    assert "is at ffffffffffff, and 0123456789ab was measured" in done.err
    for number in ("", "8; rm", "-1", "../7", "9", "\u0667"):
        assert job.comments(number=number).code == 1, number
    assert github.comments == []


def test_a_report_calls_nobody_by_name_and_fits(job: Job, github: GitHub) -> None:
    report = f"@everybody look <!-- gpuperf ab --> {'x' * 100_000}"
    assert job.comments(report).code == 0
    body = github.comments[0]["body"]
    assert "@everybody" not in body
    assert body.count("<!--") == 1
    assert len(body) < 65_536
    assert "The report is longer" in body


def test_without_a_report_it_says_so_and_a_link_is_none(job: Job, github: GitHub) -> None:
    folder, secret = job.folder, job.folder.parent / "secret"
    secret.write_text("hidden")
    assert job.comments(None).code == 0
    assert "Nothing was measured" in github.comments[0]["body"]
    github.comments.clear()
    (folder / "number").write_text("7")
    (folder / "ab.md").symlink_to(secret)
    assert job.as_is().code == 0
    assert "hidden" not in github.comments[0]["body"]


def test_where_github_refuses_it_says_so(job: Job, github: GitHub) -> None:
    github.refuses = 403
    done = job.comments()
    assert done.code == 1
    assert "/pulls/7: 403 Forbidden" in done.err
    assert "secret" not in done.err
