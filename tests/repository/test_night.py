"""A night as a job has it: doctor, pytest, what is kept, the summary, the issues.

The device is scripted and GitHub a stand-in; all else is real.
"""

from __future__ import annotations

import argparse
import json
import lzma
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_gpuperf import __main__
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.commands import prove
from pytest_gpuperf.commands.night import message
from pytest_gpuperf.measure.device import checks
from pytest_gpuperf.measure.device.checks import Check
from pytest_gpuperf.report.conclusion import Conclusion
from pytest_gpuperf.report.proof import proof_of
from pytest_gpuperf.report.text import proof_lines
from pytest_gpuperf.storage import run_files
from tests import ROOT
from tests.plugin.projects import STEP, Project
from tests.repository.conftest import GitHub, ran

FIT = [Check("GPU", True, "NVIDIA A100-SXM4-80GB")]
UNFIT = [Check("GPU", False, "none is visible", "Look for one")]
LEFT = {"doctor.json", "night.md", "report.html", "run.json.xz"}


@dataclass(frozen=True)
class Job:
    """The steps of action.yml, in a project."""

    root: Path
    capture: pytest.CaptureFixture[str]

    def night(self, *arguments: str) -> int:
        """The first step."""
        flags = ["--into", "night", "--nights", "nights", "--", "--gpu-arch", "auto"]
        return ran("night", *flags, *arguments)

    def issues(self, run: Path | None = None) -> str:
        """The last step; what it printed."""
        self.capture.readouterr()
        assert ran("night-issues", str(run or self.root / "night" / "run.json.xz")) == 0
        return self.capture.readouterr().out

    @property
    def left(self) -> set[str]:
        """What is uploaded."""
        return {file.name for file in (self.root / "night").iterdir()}

    @property
    def kept(self) -> list[Path]:
        """The runs of all nights."""
        return sorted((self.root / "nights").glob("*.json.xz"))

    def summary(self) -> str:
        """What the job's summary says; the next step begins a new one."""
        file = self.root / "summary.md"
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        file.unlink(missing_ok=True)
        return text


@pytest.fixture
def job(
    project: Project,
    github_job: GitHub,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Job:
    for name, value in {
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(project.root / "summary.md"),
        "GITHUB_WORKSPACE": str(project.root),
        "GITHUB_EVENT_NAME": "schedule",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(checks, "examine", lambda: FIT)
    project.device()
    project.tests(STEP)
    return Job(project.root, capfd)


def test_a_green_night_and_a_red_one(job: Job, project: Project, github: GitHub) -> None:
    project.accept()
    job.summary()
    assert job.night() == 0
    assert job.left == LEFT
    assert json.loads((job.root / "night" / "doctor.json").read_text("utf-8"))["measurable"]
    summary = job.summary()
    assert summary.startswith("# gpuperf: 1 unchanged\n")
    assert "## Nothing got worse in the last 30 days" in summary
    (green,) = job.kept
    assert job.issues(green) == ""
    assert github.issues == []

    project.device(factors={"": {"cycles": 1.05, "step_time": 1.05}})
    assert job.night() == 1
    assert job.left == LEFT
    assert len(job.kept) == 2
    assert job.summary().startswith("# gpuperf: 1 regressed\n")
    report = (job.root / "night" / "report.html").read_text(encoding="utf-8")
    assert '<svg class="nights spark"' in report
    assert job.issues().startswith("opened: test_step: step_time +5.00 % (and 1 more metric)")
    assert job.issues().startswith("still there, #1: ")
    assert "step\\_time +5.00 %" in github.issues[0]["body"]
    assert job.issues(green) == "closed, #1\n"
    assert [issue["state"] for issue in github.issues] == ["closed"]


def test_a_night_that_judged_nothing_is_red(job: Job) -> None:
    """All tests were skipped: pytest is content, and nobody would know."""
    (job.root / "test_steps.py").write_text(
        "import pytest\n\n@pytest.mark.skip(reason='later')\ndef test_step(gpuperf): ...\n"
    )
    (job.root / "night").mkdir()
    (job.root / "night" / "run.json.xz").write_bytes(lzma.compress(b"last night's"))
    assert job.night() == 1
    assert job.left == LEFT - {"report.html"}
    said = "# gpuperf: a night that judged nothing; pytest's exit code was 0"
    assert job.summary().strip() == said


KILLED = """
    import os, signal

    def test_step(gpuperf):
        gpuperf.measure(lambda: None)

    def test_out_of_memory(gpuperf):
        os.kill(os.getpid(), signal.SIGKILL)

    def test_last(gpuperf):
        gpuperf.measure(lambda: None)
"""


@pytest.mark.parametrize("nights", [True, False])
def test_a_night_whose_pytest_was_killed_says_so_first(
    nights: bool, job: Job, project: Project
) -> None:
    """Report and summary, which pytest has not written; what it had measured is kept."""
    project.accept()
    job.summary()
    project.tests(KILLED)
    says = "signal 9 ended pytest after 1 of 3 tests"
    if nights:
        assert job.night() == 137
    else:
        assert ran("night", "--into", "night", "--", "--gpu-arch", "auto") == 137
    assert job.left == LEFT
    summary = job.summary()
    assert summary.lstrip().startswith(f"# gpuperf: {says}; 1 unchanged\n")
    assert ("is partial: " in summary) is nights
    report = (job.root / "night" / "report.html").read_text(encoding="utf-8")
    assert f"<h1>{says}; 1 unchanged</h1>" in report
    # And whatever is made of the run.
    for run in [job.root / "night" / "run.json.xz", *job.kept]:
        job.capture.readouterr()
        assert __main__.main(["report", str(run), "--output", "again.md"]) == 0
        assert f"gpuperf: {run}: {says}\n" in job.capture.readouterr().err
        text = (job.root / "again.md").read_text(encoding="utf-8")
        assert text.startswith(f"# gpuperf: {says}; ")
    assert len(job.kept) == nights


ON_CPU = """
    import pytest
    import torch

    @pytest.mark.gpuperf(tolerance=dict.fromkeys({tolerated}, "any"))
    def test_step(gpuperf):
        model = torch.nn.Linear(64, 64)
        batch = torch.ones(64, 64)
        gpuperf.measure(lambda: model(batch).sum().backward(), reset=gpuperf.reset_of(model))
"""
PROVING = ("--into", "night", "--prove", "--", "--gpu-arch", "auto")
GATED = [metric.name for metric in catalogue().metrics.values() if metric.gated]


def test_a_night_whose_gates_cannot_fire_is_red(job: Job, project: Project) -> None:
    """Really: a CPU's step with three slowdowns, which its tolerances allow."""
    (job.root / "conftest.py").unlink()
    project.tests(ON_CPU.format(tolerated=[name for name in GATED if name != "graph_breaks"]))
    project.run("--gpuperf-missing=record").assert_outcomes(passed=1)
    job.summary()
    job.capture.readouterr()
    assert ran("night", "--nights", "nights", *PROVING) == 1
    assert job.left == {*LEFT, "proof.json.xz"}
    proof = proof_of(run_files.load(job.root / "night" / "proof.json.xz"))
    assert proof
    assert (len(proof.trials), len(proof.dead)) == (3, 3)
    total = proof_lines.total(proof)
    assert total in job.capture.readouterr().out
    report = (job.root / "night" / "report.html").read_text(encoding="utf-8")
    assert f"{total}</p>" in report
    summary = job.summary()
    assert summary.startswith("# gpuperf: 1 unchanged\n")
    assert "`gpuperf prove` ended with exit code 1" in summary
    # Slowdowns are in no history, and were no runs of their own.
    assert len(job.kept) == len(project.run_files()) == 1


def test_a_night_whose_gates_fire_is_green(
    job: Job, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.accept()
    job.summary()
    proven = ROOT / "docs" / "runs" / "prove-first-test.json.xz"
    proof = proof_of(run_files.load(proven))
    assert proof

    def act(options: argparse.Namespace) -> int:
        assert options.pytest_args == ["--gpu-arch", "auto"]
        shutil.copyfile(proven, options.output)
        return 0

    monkeypatch.setattr(prove, "act", act)
    assert ran("night", *PROVING) == 0
    report = (job.root / "night" / "report.html").read_text(encoding="utf-8")
    assert f"{proof_lines.total(proof)}</p>" in report
    assert "prove" not in job.summary()
    # The proof of another night is not this one's.
    assert job.night() == 0
    assert job.left == LEFT


def test_a_night_that_could_prove_nothing_is_red(
    job: Job, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though pytest was content; where pytest was not, its exit code stays."""
    project.accept()
    job.summary()

    def act(_: argparse.Namespace) -> int:
        raise RuntimeError("a defect")

    monkeypatch.setattr(prove, "act", act)
    assert ran("night", *PROVING) == 1
    assert job.left == LEFT
    assert "a defect" in job.capture.readouterr().err
    summary = job.summary()
    assert summary.startswith("# gpuperf: 1 unchanged\n")
    assert "`gpuperf prove` ended with exit code 1" in summary

    monkeypatch.setattr(prove, "act", lambda _: 4)
    project.device(factors={"": {"cycles": 1.05, "step_time": 1.05}})
    assert ran("night", *PROVING) == 1


def test_where_the_doctor_says_no_nothing_is_measured(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job.root / "night").mkdir()
    (job.root / "night" / "run.json.xz").write_bytes(lzma.compress(b"last night's"))
    monkeypatch.setattr(checks, "examine", lambda: UNFIT)
    assert job.night() == 1
    assert job.left == LEFT - {"report.html"}
    assert "this machine cannot be measured" in job.summary()
    assert "-> Look for one" in job.capture.readouterr().out
    assert job.issues() == "opened: The night compared no test\n"


def test_a_cpu_needs_no_gpu(
    job: Job, project: Project, monkeypatch: pytest.MonkeyPatch, github: GitHub
) -> None:
    """Counts are judged there. Where a GPU was expected, its absence stays red."""
    monkeypatch.setattr(checks, "examine", lambda: UNFIT)
    monkeypatch.setenv("GPUPERF_NOTIFY", f"{github.url}/hook")
    (job.root / "conftest.py").unlink()
    project.tests(ON_CPU.format(tolerated=[]))
    project.run("--gpuperf-missing=record").assert_outcomes(passed=1)
    job.summary()
    assert ran("night", "--into", "night", "--", "--gpu-arch=cpu") == 0
    assert job.summary().startswith("# gpuperf: 1 unchanged\n")
    assert github.messages == []
    assert ran("night", "--into", "night", "--", "--gpu-arch=auto") == 1
    (told,) = github.messages
    assert told["headline"].startswith("this machine cannot be measured")
    (finding,) = told["findings"]
    assert (finding["title"], told["exit_code"]) == ("The night compared no test", 1)


def test_a_red_night_that_nobody_can_be_told_of_stays_red(
    job: Job, github: GitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address is a secret, and is in no log."""
    monkeypatch.setattr(checks, "examine", lambda: UNFIT)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    secret = f"{github.url}/hook"
    flags = ("--into", "night", "--notify", secret, "--")
    assert ran("night", *flags) == 1
    assert [told["headline"] for told in github.messages] == [
        "this machine cannot be measured: the job's log has what gpuperf doctor says"
    ]
    github.refuses = 500
    assert ran("night", *flags) == 1
    assert ran("night", "--into", "night", "--notify", "nowhere", "--") == 1
    err = job.capture.readouterr().err
    assert "gpuperf: --notify: 127.0.0.1 took no message: 500 Internal Server Error\n" in err
    assert "took no message: this is no URL\n" in err
    assert "/hook" not in err


def test_each_service_gets_its_form() -> None:
    run = run_files.merged((), "pytest")
    night = Conclusion(1, "2 regressed <@all>", (), run)
    assert message("hooks.slack.com", night, "https://x/1") == {
        "text": "gpuperf: 2 regressed &lt;@all&gt;\nhttps://x/1"
    }
    card: Any = message("a.webhook.office.com", night, "")
    assert card["attachments"][0]["content"]["body"][0]["text"] == "gpuperf: 2 regressed <@all>"
    assert message("example.org", night, "") == {
        "headline": "2 regressed <@all>",
        "exit_code": 1,
        "findings": [],
        "night": "",
    }


@pytest.mark.parametrize("event", ["pull_request", "pull_request_target"])
def test_nobody_elses_code_is_measured(
    event: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_EVENT_NAME", event)
    assert job.night() == 4
    assert not (job.root / "night").exists()


def loaded(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_another_project_has_it_in_ten_lines() -> None:
    text = (ROOT / "examples" / "nightly" / "gpu-nightly.yml").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 10
    called = yaml.safe_load(text)["jobs"]["night"]["steps"][-1]
    assert {*called["with"]} <= {*loaded("action.yml")["inputs"]}
    # Else a runner measures the copy that was installed on it once.
    assert called["with"]["install"] == "pip install -e ."
    (ours,) = (
        one
        for one in loaded(".github/workflows/gpu-nightly.yml")["jobs"]["measure"]["steps"]
        if one["uses"] == "./"
    )
    assert {*ours["with"]} <= {*loaded("action.yml")["inputs"]}


def test_gates_are_proven_once_a_week() -> None:
    workflow = loaded(".github/workflows/gpu-nightly.yml")
    # YAML takes the key "on" for true.
    nights = {entry["cron"].split()[-1]: entry["cron"] for entry in workflow[True]["schedule"]}
    assert [*nights] == ["1-6", "0"]
    (ours,) = (one for one in workflow["jobs"]["measure"]["steps"] if one["uses"] == "./")
    asked = f"github.event.schedule == '{nights['0']}'"
    assert asked in ours["with"]["prove"]
    assert asked in workflow["jobs"]["measure"]["timeout-minutes"]
    assert "--prove" in loaded("action.yml")["runs"]["steps"][0]["run"]
