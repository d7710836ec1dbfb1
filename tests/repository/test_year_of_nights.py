"""A year of a project's nights: what its people see each morning.

pytest is a stand-in that leaves recorded runs, and so are GitHub and its faults. All else is real:
what is kept, the history, report, summary, exit code, message and issues.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.commands import night
from pytest_gpuperf.measure.device import checks
from pytest_gpuperf.measure.device.checks import Check
from pytest_gpuperf.model.result import Outcome, Run, Unfinished, Upgrade
from pytest_gpuperf.storage import run_files
from tests import ROOT
from tests.repository.conftest import DROPPED, HTML, GitHub, ran
from tests.repository.test_night_issues import TEST, all_of, attributed, of_tests, worse

SUITE = (TEST, f"{TEST}_2", f"{TEST}_3")
FIRST, REAL = date(2026, 1, 1), subprocess.run
NO_GPU = "this machine cannot be measured: the job's log has what gpuperf doctor says"
ALONE = "test_training_step: saved_bytes +99.61 % (and 3 more metrics) on portable (cpu): "
LINE = "tests/perf/test_step.py:14 test_training_step.step calls 1 more operator (aten.clone)"
TWO = f"2 tests, the worst {ALONE}"


@dataclass
class Year:
    """The project's folder, its nights so far, and who reads of them."""

    root: Path
    github: GitHub
    capture: pytest.CaptureFixture[str]
    patch: pytest.MonkeyPatch

    def night(self, day: int, run: Run | None, code: int) -> tuple[int, str, list[str]]:
        """Exit code, first line of the summary, and what `night-issues` printed."""
        when = f"{FIRST + timedelta(days=day)}T02:00:00Z"

        def measured(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
            if command[1:3] != ["-m", "pytest"]:
                return REAL(command, **options)
            if run is not None:
                run_files.save(on(run, when), self.root / "night" / night.RUN)
            return subprocess.CompletedProcess(command, code)

        self.patch.setattr(subprocess, "run", measured)
        self.capture.readouterr()
        hook = f"--notify={self.github.url}/hook"
        ended = ran("night", "--into", "night", "--nights", "nights", hook, "--", "tests")
        first = (self.root / "night" / night.SUMMARY).read_text("utf-8").partition("\n")[0]
        self.capture.readouterr()
        ran("night-issues", f"night/{night.RUN}")
        return ended, first, self.capture.readouterr().out.splitlines()

    def told(self) -> list[str]:
        """The headlines of messages since they were last read."""
        told = [message["headline"] for message in self.github.messages]
        self.github.messages.clear()
        return told


def on(run: Run, when: str) -> Run:
    """The same run of another night."""
    made = (replace(m, fingerprint=replace(m.fingerprint, measured=when)) for m in run.measurements)
    return replace(run, created=when, measurements=tuple(made))


def only(run: Run, *slower: str) -> Run:
    """The suite's run, in which these tests alone are slower."""
    verdicts = (
        v if v.test in slower else replace(v, outcome=Outcome.UNCHANGED) for v in run.verdicts
    )
    (as_it_was, *_) = run_files.load(ROOT / "docs" / "runs" / "first-test.json").measurements
    measurements = (
        m if m.test in slower else replace(as_it_was, test=m.test) for m in run.measurements
    )
    return replace(run, verdicts=tuple(verdicts), measurements=tuple(measurements))


def upgraded(run: Run) -> Run:
    torch = Upgrade("torch", "2.12", "2.13", 0, 0)
    return attributed(run, lambda one: replace(one, upgrades=(torch,)))


@pytest.fixture
def year(
    github_job: GitHub,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Year:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(checks, "examine", lambda: [Check("GPU", True, "one")])
    for number in range(250):
        github_job.issue("somebody's", "a-person", number=1000 + number)
    return Year(tmp_path, github_job, capsys, monkeypatch)


def test_what_is_seen_each_morning(year: Year) -> None:
    """A night that nobody has to look at says nothing, and each cause is told once."""
    suite = of_tests(*SUITE)
    green, red = only(suite), only(suite, *SUITE[:2])
    grown = only(worse(suite, 1.5), *SUITE[:2])
    github = year.github

    assert year.night(0, green, 0) == (0, "# gpuperf: 3 unchanged", [])
    assert year.told() == []
    # A function makes two tests slower; the second night, more so.
    code, first, said = year.night(3, red, 1)
    assert (code, first) == (1, "# gpuperf: 2 regressed, 1 unchanged")
    assert said == [f"opened: {github.issues[-1]['title']}"]
    assert said[0].startswith(f"opened: {TWO}{LINE}")
    number = github.issues[-1]["number"]
    assert year.night(4, red, 1)[2][0].startswith(f"still there, #{number}: ")
    assert year.night(5, grown, 1)[2][0].startswith(f"worse, #{number}: ")
    assert year.told() == ["2 regressed, 1 unchanged"] * 3
    assert "since 2026-01-04" in (year.root / "night" / night.SUMMARY).read_text("utf-8")
    # Fixed, and back again: GitHub limits, fails, and drops what it is asked.
    github.faults = [("GET", 403), ("GET", 500), ("GET", DROPPED), ("PATCH", HTML)]
    assert year.night(9, green, 0) == (0, "# gpuperf: 3 unchanged", [f"closed, #{number}"])
    (again,) = year.night(40, red, 1)[2]
    assert again.startswith(f"opened: {TWO}")
    # Somebody closes it: it is known, until it gets worse.
    github.issues[-1]["state"] = "closed"
    assert year.night(41, red, 1)[2][0].startswith("known, #")
    assert year.night(42, grown, 1)[2][0].startswith("worse, #")
    assert year.night(60, green, 0)[2] == [f"closed, #{github.issues[-1]['number']}"]


def test_old_runs_go_and_each_night_says_what_stays(year: Year) -> None:
    run = all_of(Outcome.UNCHANGED, of_tests(*SUITE))
    year.night(0, run, 0)
    (first,) = (year.root / "nights").iterdir()
    first.rename(first.with_name("20200101T020000.000000-1.json.xz"))
    flags = ("--into", "night", "--nights", "nights", "--keep", "30")
    assert ran("night", *flags, "--", "tests") == 0
    assert "nights: 1 run removed; " in year.capture.readouterr().out
    assert [file.name[:4] for file in (year.root / "nights").iterdir()] != ["2020"]


def test_a_library_is_one_cause_of_seventy_tests_and_another_is_its_own(year: Year) -> None:
    tests = tuple(f"{TEST}[{number}]" for number in range(70))
    library = upgraded(of_tests(*tests))
    assert year.night(0, all_of(Outcome.UNCHANGED, library), 0)[0] == 0
    code, first, said = year.night(1, library, 1)
    assert (code, first) == (1, "# gpuperf: 70 regressed")
    assert [line[:57] for line in said] == [
        "opened: versions changed: torch 2.12 -> 2.13: 70 tests, t"
    ]
    # The next night, somebody's line slows another test.
    both = of_tests(SUITE[1])
    merged = replace(
        library,
        measurements=library.measurements + both.measurements,
        verdicts=library.verdicts + both.verdicts,
        attributions=library.attributions + both.attributions,
        judged_by=library.judged_by + both.judged_by,
    )
    _, first, said = year.night(2, merged, 1)
    assert first == "# gpuperf: 71 regressed"
    assert sorted(line.split(",")[0].split(":")[0] for line in said) == ["opened", "still there"]
    report = (year.root / "night" / night.REPORT).read_text("utf-8")
    assert '<ol class="causes">' in report


def test_nights_that_say_nothing_of_the_code_are_red_and_told(
    year: Year, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = of_tests(*SUITE)
    green = all_of(Outcome.UNCHANGED, suite)
    killed = replace(green, unfinished=Unfinished(1, 3))
    assert year.night(0, green, 0)[0] == 0
    ended = "signal 9 ended pytest after 1 of 3 tests"
    assert year.night(1, killed, -9) == (
        137,
        f"# gpuperf: {ended}; 3 unchanged",
        [f"opened: The night is incomplete: {ended}"],
    )
    nothing = "a night that judged nothing; pytest's exit code was 5"
    assert year.night(2, None, 5) == (
        5,
        f"# gpuperf: {nothing}",
        ["opened: The night compared no test"],
    )
    unfit = all_of(Outcome.UNFIT, suite)
    assert year.night(3, unfit, 1)[2] == [
        "still there, #252: The night compared no test",
        "closed, #251",  # which a night without measurements does not show
    ]
    monkeypatch.setattr(checks, "examine", lambda: [Check("GPU", False, "none")])
    assert year.night(4, green, 0) == (
        1,
        f"# gpuperf: {NO_GPU}",
        ["still there, #252: The night compared no test"],
    )
    assert year.told() == [f"{ended}; 3 unchanged", nothing, "3 unfit", NO_GPU]
    # And a night of a clock that is ahead hides none that follow.
    monkeypatch.setattr(checks, "examine", lambda: [Check("GPU", True, "one")])
    run_files.save(on(green, "2099-01-01T00:00:00Z"), year.root / "nights" / "ahead.json.xz")
    code, first, said = year.night(5, only(suite, SUITE[0]), 1)
    assert (code, first) == (1, "# gpuperf: 1 regressed, 2 unchanged")
    assert said[0].startswith(f"opened: {ALONE}")
    assert said[1:] == ["closed, #252"]
    assert "ahead.json.xz" in (year.root / "night" / night.SUMMARY).read_text("utf-8")
    assert year.night(6, green, 0)[2] == ["closed, #253"]
