"""The comment under a pull request, by a stand-in of GitHub's API and what a job has left.

The attacks on it are in docs/pull-requests.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from cmarkgfm import github_flavored_markdown_to_html  # type: ignore[import-untyped]
from cmarkgfm.cmark import Options  # type: ignore[import-untyped]

from tests import ROOT
from tests.repository.conftest import HEAD, GitHub, ran

MARK = "<!-- gpuperf ab -->"
WHOSE = "The pull request's code ran while this text was made, and may have written any of it:"
BEGIN = f"{MARK}\nMeasured at {HEAD[:12]}. "


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Job:
    """The job that comments on what another has left."""

    folder: Path
    github: GitHub
    capture: pytest.CaptureFixture[str]

    def comments(self, report: str | bytes = "1 regressed") -> Done:
        """With this report in the folder."""
        written = report if isinstance(report, bytes) else report.encode()
        (self.folder / "ab.md").write_bytes(written)
        return self.as_is()

    def as_is(self) -> Done:
        """With what is in the folder."""
        return Done(ran("pull-comment", str(self.folder)), *self.capture.readouterr())

    def shown(self, report: str | bytes) -> str:
        """The comment on this report, as Markdown."""
        assert self.comments(report).code == 0
        body: str = self.github.comments[-1]["body"]
        return body


@pytest.fixture
def job(
    github_job: GitHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Job:
    monkeypatch.setenv("MEASURED", HEAD)
    monkeypatch.setenv("PULL", "7")
    folder = tmp_path / "left"
    folder.mkdir()
    return Job(folder, github_job, capsys)


def test_one_comment_is_made_and_then_brought_up_to_date(job: Job, github: GitHub) -> None:
    github.comment("looks good", "a-person")
    github.comment(f"{MARK} not ours: anybody may write that", "a-person")
    for report, said in (("first", "made"), ("second\\_\n  row\\x", "brought up to date")):
        done = job.comments(report)
        assert (done.code, done.out) == (0, f"pull request 7: comment {said}\n")
    assert [one["body"] for one in github.comments][2:] == [
        f"{BEGIN}{WHOSE}\n\n    second_\n      row\\x"
    ]
    assert {line.split(" ", 1)[1] for line in github.requests} == {"Bearer secret"}


def test_it_is_known_again_among_any_number_of_others(job: Job, github: GitHub) -> None:
    for number in range(150):
        github.comment(f"{number}", "a-person")
    github.comment(f"{MARK}\nolder")
    assert job.comments().code == 0
    assert len(github.comments) == 151
    assert "1 regressed" in github.comments[-1]["body"]


def test_what_was_measured_is_said_of_no_other_head(job: Job, github: GitHub) -> None:
    github.head = "f" * 40
    done = job.comments()
    assert done.code == 1
    assert "is at ffffffffffff, and 0123456789ab was measured" in done.err
    assert github.comments == []


def test_the_number_is_the_maintainer_s_and_no_file_s(
    job: Job, github: GitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measured code may leave any number."""
    (job.folder / "number").write_text("8")
    assert job.comments().out.startswith("pull request 7: ")
    github.comments.clear()
    github.requests.clear()
    for number in ("", "8; rm", "-1", "../7", "7/../8", "\u0667"):
        monkeypatch.setenv("PULL", number)
        assert job.comments().err == f"gpuperf: PULL: {number!r} is no number of a pull request\n"
    assert github.requests == []


ATTACKS = {
    "markdown": "# Approved\n\n**All 12 unchanged**\n\n---",
    "a link": "[Approve](https://evil.example) https://evil.example www.evil.example",
    "an image": "![](https://evil.example/x.png)\n\n<img src=https://evil.example/x.png>",
    "HTML": "<details><summary>1 unchanged</summary>\n\n<script>alert(1)</script>",
    "a comment that hides the rest": "<!--\n",
    "the end of a block": "```\n\n~~~\n\n</code></pre>\n# Approved\nMeasured at ffffffffffff.",
    "the end of a line": "\r# a\v# b\f# c\x1c# d\x85# e\u2028# f\u2029# g\r\n# h",
    "a mention": "@everybody and @org/team, #1, GH-1",
    "an order to a bot": "/merge\n@dependabot merge\nbors r+",
    "a terminal's codes": "\x1b[2J\x1b]8;;https://evil.example\x07x\x1b]8;;\x07",
    "another direction of writing": "\u202edegnahcnu 1\u202c \u200b \u2066",
    "a runner's command": "::error::x\n::set-env name=PATH::/tmp\n##[add-path]/tmp",
    "a mark of ours": f"{MARK}\nMeasured at ffffffffffff.",
    "escapes": "\\<!-- \\@everybody \\\n\\# a \\::error\\::x",
    "a tab": "\t\t# a\n \t# b",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_report_is_a_block_of_text_and_no_more(attack: str, job: Job) -> None:
    """As GitHub renders it: one paragraph of ours, and one block."""
    body = job.shown(f"1 regressed\n\n{attack}\n\nlast line")
    page = github_flavored_markdown_to_html(body, Options.CMARK_OPT_UNSAFE)
    shape = re.findall(r"</?\w+", page)
    assert shape == ["<p", "</p", "<pre", "<code", "</code", "</pre"]
    assert page.startswith(f"{MARK}\n<p>{BEGIN.partition(chr(10))[2]}{WHOSE}</p>\n")
    assert "1 regressed" in page
    assert "last line" in page


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_no_other_program_takes_a_report_for_its_own(attack: str, job: Job) -> None:
    """They look for marks, names and orders in the text as it was written."""
    _, _, text = job.shown(attack).partition("\n\n")
    assert "<!--" not in text
    assert not re.search(r"@\w", text)
    assert all(line.startswith("    ") for line in text.split("\n"))
    assert text.replace("\n", "").replace("\u200b", "").isprintable()


@pytest.mark.parametrize("size", [2**16, 2**24])
@pytest.mark.parametrize("part", ["x", "\n", "x\n", "@", "<!--", "\x1b", "\u202e"])
def test_a_report_fits_whatever_its_size(part: str, size: int, job: Job) -> None:
    body = job.shown(f"1 regressed\n{part * (size // len(part))}")
    assert body.startswith(f"{BEGIN}{WHOSE}\n\n    1 regressed\n")
    assert body.endswith("\n\nThe text is longer: the job's artifacts have it.")
    assert len(body) < 65_536
    assert body.count("\n") < 520


def test_what_is_no_text_is_shown_as_such(job: Job) -> None:
    assert job.shown(bytes(range(256)) + b"\xff\xfe\x00").startswith(f"{BEGIN}{WHOSE}\n\n")


def test_without_a_report_it_says_so(job: Job, github: GitHub) -> None:
    nothing = f"{BEGIN}Nothing was measured: the job ended before it had a report."
    assert job.as_is().code == 0
    assert github.comments[0]["body"] == nothing
    assert job.shown(" \n\n") == nothing


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "device", "link to a folder"])
def test_what_is_no_file_is_not_read(kind: str, job: Job, github: GitHub) -> None:
    """Neither another file of the machine, nor a pipe that has no end."""
    file, secret = job.folder / "ab.md", job.folder.parent / "secret"
    secret.write_text("hidden")
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to({"link": secret, "device": Path("/dev/zero")}.get(kind, job.folder))
    assert job.as_is().code == 0
    assert github.comments[0]["body"].startswith(f"{BEGIN}Nothing was measured")


def test_it_needs_nothing_but_python(github: GitHub, tmp_path: Path) -> None:
    """The job that may write installs nothing."""
    environment = {
        "GITHUB_API_URL": github.url,
        "GITHUB_REPOSITORY": "somebody/project",
        "GITHUB_TOKEN": "secret",
        "MEASURED": HEAD,
        "PULL": "7",
    }
    command = [sys.executable, "-S", "-m", "pytest_gpuperf", "pull-comment", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("pull request 7: comment made\n", "")


def test_where_github_refuses_it_says_so(job: Job, github: GitHub) -> None:
    github.refuses = 403
    done = job.comments()
    assert done.code == 1
    assert "/pulls/7: 403 Forbidden" in done.err
    assert "secret" not in done.err
