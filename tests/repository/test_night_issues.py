"""Issues of a night: one per cause, told when it gets worse, closed when it is gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pytest_gpuperf.model.result import TEST_FAILED, Attribution, Outcome, Run, Unfinished, Upgrade
from pytest_gpuperf.report.conclusion import findings
from pytest_gpuperf.storage import run_files
from tests import ROOT
from tests.repository.conftest import DROPPED, HTML, GitHub, ran

RED = run_files.load(ROOT / "docs" / "runs" / "first-test-slower.json")
"""One test of a CPU, which a line of its own made slower."""
TEST = "tests/perf/test_step.py::test_training_step"
TITLE = (
    "test_training_step: saved_bytes +99.61 % (and 3 more metrics) on portable (cpu): "
    "tests/perf/test_step.py:14 test_training_step.step calls 1 more operator (aten.clone); were 36"
)
GREEN = ROOT / "docs" / "runs" / "h200-night.json.xz"
"""Both suites and all of them, on an H200: nothing got worse."""


def all_of(outcome: Outcome, run: Run = RED) -> Run:
    """The same night, in which every verdict is this one."""
    return replace(run, verdicts=tuple(replace(v, outcome=outcome) for v in run.verdicts))


def of_tests(*tests: str, run: Run = RED) -> Run:
    """The same night of these tests, all as the first is."""
    return replace(
        run,
        measurements=tuple(replace(e, test=t) for t in tests for e in run.measurements),
        verdicts=tuple(replace(e, test=t) for t in tests for e in run.verdicts),
        attributions=tuple(replace(e, test=t) for t in tests for e in run.attributions),
        judged_by=tuple(replace(e, test=t) for t in tests for e in run.judged_by),
    )


def attributed(run: Run, change: Callable[[Attribution], Attribution]) -> Run:
    """The night with other attributions."""
    changed = (replace(a, attribution=change(a.attribution)) for a in run.attributions)
    return replace(run, attributions=tuple(changed))


def worse(run: Run, by: float) -> Run:
    """The night with changes that are so many times as large."""
    changed = (replace(v, change=v.change and v.change * by) for v in run.verdicts)
    return replace(run, verdicts=tuple(changed))


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
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were waited for, none of which pass."""
    seconds: list[float] = []
    monkeypatch.setattr("time.sleep", seconds.append)
    return seconds


@pytest.fixture
def night(
    github_job: GitHub,  # noqa: ARG001
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Night:
    return Night(tmp_path, capsys)


def states(github: GitHub) -> list[str]:
    return [issue["state"] for issue in github.issues]


def test_an_issue_is_opened_once_and_closed_when_it_is_gone(github: GitHub, night: Night) -> None:
    github.issue("a person's", "a-person")
    assert night(RED).out == f"opened: {TITLE}\n"
    issue = github.issues[1]
    assert (issue["title"], issue["state"]) == (TITLE, "open")
    for said in ("819cde9800b3", "2 commits by ada, bo", "https://example.org/night"):
        assert said in issue["body"]
    assert f"`gpuperf bisect 819cde9800b3 68a04f1e8090 -- {TEST}`" in issue["body"]
    before = dict(issue)
    for _ in range(3):
        assert night(RED).out == f"still there, #2: {TITLE}\n"
    assert issue == before  # nobody is told again
    assert night(all_of(Outcome.UNFIT)).out == "opened: The night compared no test\n"
    assert states(github) == ["open", "open", "open"]
    assert night(all_of(Outcome.UNCHANGED)).out == "closed, #2\nclosed, #3\n"
    assert states(github) == ["open", "closed", "closed"]
    assert issue["comments"] == [f"Gone in the night of {RED.created}: https://example.org/night"]
    # It came again: the old one stays closed.
    assert night(RED).out.startswith("opened: ")
    assert len(github.issues) == 4


def test_seventy_tests_of_one_upgrade_share_an_issue(github: GitHub, night: Night) -> None:
    """And those of one function, whatever the number of its line."""
    run = of_tests(*(f"{TEST}[{n}]" for n in range(70)))
    torch = Upgrade("torch", "2.12", "2.13", 0, 0)
    assert night(attributed(run, lambda one: replace(one, upgrades=(torch,)))).code == 0
    assert len(github.issues) == 1
    title = github.issues[0]["title"]
    assert title.startswith("versions changed: torch 2.12 -> 2.13: 70 tests, the worst test_")
    assert "and 40 more" in github.issues[0]["body"]
    cause = RED.attributions[0].attribution.cause
    assert cause
    lower = replace(cause, line="tests/perf/test_step.py:99")
    keys = [
        findings(one)[0].key for one in (run, attributed(RED, lambda a: replace(a, cause=lower)))
    ]
    assert keys == [findings(RED)[0].key] * 2
    assert keys[0][0] == "function"
    # Another test of the same cause joins: it is told, as is a change that grew by a tenth.
    assert night(RED).out.startswith("opened: ")
    assert night(of_tests(TEST, f"{TEST}_2")).out.startswith("1 more of the tests, #2: ")
    assert night(of_tests(TEST, f"{TEST}_2", run=worse(RED, 1.5))).out.startswith("worse, #2: ")
    assert len(github.issues[1]["comments"]) == 2


def test_what_people_write_stays(github: GitHub, night: Night) -> None:
    night(RED)
    issue = github.issues[0]
    issue["body"] = f"It is known.\n{issue['body']}\nSee the plan."
    issue["title"] = "Clone in the step"
    assert night(worse(RED, 2.0)).out.startswith("worse, #1: ")
    assert issue["title"] == "Clone in the step"
    assert issue["body"].startswith("It is known.\n<!-- gpuperf night: ")
    assert issue["body"].endswith("\nSee the plan.")
    assert "x2.99" in issue["body"]


@pytest.mark.parametrize("labelled", [True, False])
def test_what_a_person_has_closed_or_labelled_stays_until_it_gets_worse(
    labelled: bool, github: GitHub, night: Night
) -> None:
    night(RED)
    issue = github.issues[0]
    if labelled:
        issue["labels"].append({"name": "known"})
    else:
        issue["state"] = "closed"
    assert night(RED).out == f"known, #1: {TITLE}\n"
    assert night(of_tests(TEST, f"{TEST}_2")).out.startswith("known, #1: ")
    assert (len(github.issues), issue["comments"]) == (1, [])
    assert night(worse(RED, 1.5)).out.startswith("worse, #1: ")
    assert (states(github), len(issue["comments"])) == (["open"], 1)


def test_only_our_own_issues_are_ours(github: GitHub, night: Night) -> None:
    """Anybody may write the mark; pull requests are listed with issues; keys do not collide."""
    night(RED)
    (ours,) = github.issues
    github.issues.clear()
    github.issue(ours["body"], "mallory")
    github.issue(ours["body"], pull_request={})
    github.issue("<!-- gpuperf night: {broken -->")
    kept = [dict(issue) for issue in github.issues]
    assert night(RED).out.startswith("opened: ")
    assert github.issues[:3] == kept
    one, other = (findings(of_tests(f"a.py::t[a{sign}b]", run=bare()))[0].key for sign in "-_")
    assert one != other


def bare() -> Run:
    """The night without causes."""
    return replace(RED, attributions=())


def test_a_killed_night_and_failed_tests_and_broken_limits_have_issues(
    github: GitHub, night: Night
) -> None:
    killed = replace(
        all_of(Outcome.UNCHANGED),
        unfinished=Unfinished(6, 7, 9),
        skipped={"a.py::test_nan": TEST_FAILED},
    )
    assert night(killed).out.splitlines() == [
        "opened: The night is incomplete: signal 9 ended pytest after 6 of 7 tests",
        "opened: 1 test failed before a comparison: a.py::test_nan",
    ]
    # A later night that was killed too says nothing of what is gone.
    assert "closed" not in night(replace(killed, skipped={})).out
    assert night(all_of(Outcome.UNCHANGED)).out == "closed, #1\nclosed, #2\n"
    limits = [f for f in findings(all_of(Outcome.BROKEN)) if f.results]
    assert [one.results[0].outcome for one in limits] == [Outcome.BROKEN]
    assert len(github.issues) == 2


def test_another_kind_of_device_has_an_issue_of_its_own(github: GitHub, night: Night) -> None:
    device = replace(RED.measurements[0].fingerprint.device, name="other", slug="other")
    other = replace(
        RED,
        measurements=tuple(
            replace(m, fingerprint=replace(m.fingerprint, device=device)) for m in RED.measurements
        ),
    )
    assert night(RED, other).code == 0
    assert len(github.issues) == 2
    assert night(all_of(Outcome.UNCHANGED)).code == 0
    assert states(github) == ["closed", "open"]


def test_a_green_night_of_both_suites_opens_nothing(github: GitHub, night: Night) -> None:
    assert night.of(GREEN).out == ""
    assert github.issues == []


@pytest.mark.parametrize("fault", [403, 429, 500, 502])
def test_a_fault_that_passes_is_waited_for(
    fault: int, github: GitHub, night: Night, waited: list[float]
) -> None:
    github.faults, github.waits = [("GET", fault), ("POST", fault)], "3"
    done = night(RED)
    assert (done.code, len(github.issues), waited) == (0, 1, [3.0, 3.0])


@pytest.mark.parametrize("fault", [DROPPED, HTML])
def test_a_question_without_an_answer_is_asked_again(
    fault: int, github: GitHub, night: Night, waited: list[float]
) -> None:
    github.faults = [("GET", fault)] * 2
    assert night(RED).code == 0
    assert (len(github.issues), waited) == (1, [2.0, 4.0])


def test_one_refusal_does_not_end_the_others(
    github: GitHub, night: Night, waited: list[float]
) -> None:
    """One that names no time is no limit, and a POST without an answer may have been done."""
    github.faults, github.waits = [("POST", 403), ("POST", DROPPED)], None
    tests = [f"a.py::test_{n}" for n in range(3)]
    done = night(of_tests(*tests, run=bare()))
    assert (done.code, len(github.issues), waited) == (1, 1, [])
    assert done.err.count("not told, ") == 2
    assert "403 Forbidden" in done.err
    assert "secret" not in done.err


def test_a_run_that_cannot_be_read_and_no_access_are_said(github: GitHub, night: Night) -> None:
    github.refuses = 401
    done = night(RED)
    assert (done.code, "401 Unauthorized" in done.err) == (1, True)
    done = night.of(Path("missing.json"))
    assert done.code == 4
    assert "missing.json" in done.err
