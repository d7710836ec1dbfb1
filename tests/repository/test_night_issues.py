"""Issues of a night: a recorded regression of an H200 comes, stays, and goes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf.model.result import Outcome, Run
from pytest_gpuperf.storage import run_files
from tests import ROOT
from tests.repository.conftest import GitHub

RED = run_files.load(ROOT / "docs" / "runs" / "h200-tf32-broken.json.xz")
TITLE = "test\\_training\\_step\\[tf32\\] regressed on NVIDIA H200 (sm90)"


def all_of(outcome: Outcome) -> Run:
    """The same night, in which every verdict is this one."""
    return replace(RED, verdicts=tuple(replace(v, outcome=outcome) for v in RED.verdicts))


def night(github: GitHub, folder: Path, *runs: Run) -> subprocess.CompletedProcess[str]:
    """What the workflow does with these runs."""
    files = [folder / f"{number}.json" for number, _ in enumerate(runs)]
    for file, run in zip(files, runs, strict=True):
        run_files.save(run, file)
    environment = {
        "GITHUB_API_URL": github.url,
        "GITHUB_REPOSITORY": "somebody/project",
        "GITHUB_TOKEN": "secret",
        "NIGHT": "https://example.org/night",
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        [sys.executable, ROOT / "script" / "night-issues", *files],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_issue_is_opened_once_kept_up_to_date_and_closed(github: GitHub, tmp_path: Path) -> None:
    github.issues.append(
        {"number": 1, "title": "x", "state": "open", "labels": ["gpuperf"], "body": "a person's"}
    )
    for said in (f"opened: {TITLE}\n", f"still there, #2: {TITLE}\n"):
        done = night(github, tmp_path, RED)
        assert (done.returncode, done.stdout) == (0, said), done.stderr
    issue = github.issues[1]
    assert (issue["title"], issue["state"], issue["labels"]) == (TITLE, "open", ["gpuperf"])
    assert "cycles x4.83" in issue["body"]
    assert "https://example.org/night" in issue["body"]
    # Of what was not judged nothing is known.
    assert night(github, tmp_path, all_of(Outcome.UNFIT)).stdout == ""
    assert issue["state"] == "open"
    done = night(github, tmp_path, all_of(Outcome.UNCHANGED))
    assert done.stdout.startswith("closed, #2: ")
    assert (issue["state"], issue["state_reason"]) == ("closed", "completed")
    assert issue["comments"] == [f"Gone in the night of {RED.created}: https://example.org/night"]
    assert github.issues[0]["state"] == "open"
    # It came again: the old one stays closed.
    assert night(github, tmp_path, RED).stdout.startswith("opened: ")
    assert len(github.issues) == 3


@pytest.mark.parametrize("outcome", [Outcome.UNCHANGED, Outcome.IMPROVED, Outcome.UNFIT])
def test_where_nothing_got_worse_there_is_no_issue(
    github: GitHub, tmp_path: Path, outcome: Outcome
) -> None:
    assert night(github, tmp_path, all_of(outcome)).returncode == 0
    assert github.issues == []


def test_another_kind_of_device_has_an_issue_of_its_own(github: GitHub, tmp_path: Path) -> None:
    first = RED.measurements[0].fingerprint
    device = replace(first.device, name="NVIDIA H100", slug="nvidia-h100")
    other = replace(
        RED,
        measurements=tuple(
            replace(m, fingerprint=replace(m.fingerprint, device=device)) for m in RED.measurements
        ),
    )
    assert night(github, tmp_path, RED, other).returncode == 0
    assert [("H100" in issue["title"], issue["state"]) for issue in github.issues] == [
        (False, "open"),
        (True, "open"),
    ]
    assert night(github, tmp_path, all_of(Outcome.UNCHANGED)).returncode == 0
    assert [issue["state"] for issue in github.issues] == ["closed", "open"]


def test_a_run_that_cannot_be_read_and_a_refusal_are_said(github: GitHub, tmp_path: Path) -> None:
    github.refuses = 403
    done = night(github, tmp_path, RED)
    assert (done.returncode, "403 Forbidden" in done.stderr) == (1, True)
    script = str(ROOT / "script" / "night-issues")
    command = [sys.executable, script, str(tmp_path / "missing.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "missing.json" in done.stderr
