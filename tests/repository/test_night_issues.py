"""Issues of a night: a recorded regression of an H200 comes, stays, and goes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pytest_gpuperf.model.result import Outcome, Run
from pytest_gpuperf.storage import run_files
from tests import ROOT
from tests.repository.conftest import GitHub, ran

RED = run_files.load(ROOT / "docs" / "runs" / "h200-tf32-broken.json.xz")
GREEN = ROOT / "docs" / "runs" / "h200-night.json.xz"
"""Both suites and all of them, by script/night on an H200: nothing got worse."""
TITLE = "test\\_training\\_step\\[tf32\\] regressed on NVIDIA H200 (sm90)"


def all_of(outcome: Outcome) -> Run:
    """The same night, in which every verdict is this one."""
    return replace(RED, verdicts=tuple(replace(v, outcome=outcome) for v in RED.verdicts))


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


class Night:
    """What the workflow does with the runs of a night."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys

    def __call__(self, *runs: Run) -> Done:
        files = [self._folder / f"{number}.json" for number, _ in enumerate(runs)]
        for file, run in zip(files, runs, strict=True):
            run_files.save(run, file)
        return self.of(*files)

    def of(self, *files: Path) -> Done:
        """The script on these."""
        code = ran("night-issues", *map(str, files))
        out, err = self._capsys.readouterr()
        return Done(code, out, err)


@pytest.fixture
def night(
    github_job: GitHub,  # noqa: ARG001
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Night:
    return Night(tmp_path, capsys)


def test_an_issue_is_opened_once_kept_up_to_date_and_closed(github: GitHub, night: Night) -> None:
    github.issues.append(
        {"number": 1, "title": "x", "state": "open", "labels": ["gpuperf"], "body": "a person's"}
    )
    for said in (f"opened: {TITLE}\n", f"still there, #2: {TITLE}\n"):
        done = night(RED)
        assert (done.code, done.out) == (0, said), done.err
    issue = github.issues[1]
    assert (issue["title"], issue["state"], issue["labels"]) == (TITLE, "open", ["gpuperf"])
    assert "cycles x4.82" in issue["body"]
    assert "https://example.org/night" in issue["body"]
    # Of what was not judged nothing is known.
    assert night(all_of(Outcome.UNFIT)).out == ""
    assert issue["state"] == "open"
    done = night(all_of(Outcome.UNCHANGED))
    assert done.out.startswith("closed, #2: ")
    assert (issue["state"], issue["state_reason"]) == ("closed", "completed")
    assert issue["comments"] == [f"Gone in the night of {RED.created}: https://example.org/night"]
    assert github.issues[0]["state"] == "open"
    # It came again: the old one stays closed.
    assert night(RED).out.startswith("opened: ")
    assert len(github.issues) == 3


def test_a_night_of_both_suites_opens_nothing_and_closes_what_is_gone(
    github: GitHub, night: Night
) -> None:
    assert night(RED).out == f"opened: {TITLE}\n"
    measured = run_files.load(GREEN).measurements
    assert {one.suite for one in measured} == {"convnext_ddpm", "meddpm"}
    assert night.of(GREEN).out.startswith("closed, #1: ")
    assert night.of(GREEN).out == ""
    assert [issue["state"] for issue in github.issues] == ["closed"]


def test_another_kind_of_device_has_an_issue_of_its_own(github: GitHub, night: Night) -> None:
    first = RED.measurements[0].fingerprint
    device = replace(first.device, name="NVIDIA H100", slug="nvidia-h100")
    other = replace(
        RED,
        measurements=tuple(
            replace(m, fingerprint=replace(m.fingerprint, device=device)) for m in RED.measurements
        ),
    )
    assert night(RED, other).code == 0
    assert [("H100" in issue["title"], issue["state"]) for issue in github.issues] == [
        (False, "open"),
        (True, "open"),
    ]
    assert night(all_of(Outcome.UNCHANGED)).code == 0
    assert [issue["state"] for issue in github.issues] == ["closed", "open"]


def test_a_run_that_cannot_be_read_and_a_refusal_are_said(github: GitHub, night: Night) -> None:
    github.refuses = 403
    done = night(RED)
    assert (done.code, "403 Forbidden" in done.err) == (1, True)
    done = night.of(Path("missing.json"))
    assert done.code == 4
    assert "missing.json" in done.err
