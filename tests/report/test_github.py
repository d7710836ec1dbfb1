"""Annotations for GitHub: one line per failure, whatever is in its texts."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuperf.errors import printable, printable_lines
from pytest_gpuperf.model.result import DOUBTS, FAULTS, Outcome
from pytest_gpuperf.report.github import SUMMARY_LIMIT, Actions, Place, actions, workflow_commands
from pytest_gpuperf.report.markdown import markdown
from tests.examples import TEST, measurement, result, run, verdict
from tests.workflow_commands import Command, commands

PLACES = {TEST: Place("suites/meddpm/test_training.py", 12)}


LEVELS = {**dict.fromkeys(FAULTS, "error"), **dict.fromkeys(DOUBTS, "warning")}


def test_what_failed_is_an_error_unless_its_test_is_spared_and_a_doubt_is_a_warning() -> None:
    # Another test excuses nothing, and neither does a reason that is empty.
    for outcome, spared in product(Outcome, ({TEST: "known"}, {"another": "known"}, {TEST: ""})):
        judged = [result(measurement(), verdict(outcome=outcome))]
        said = commands("\n".join(workflow_commands(judged, PLACES, spared)))
        level = LEVELS.get(outcome)
        excused = level == "error" and spared == {TEST: "known"}
        expected = [("notice" if excused else level, excused)] if level else []
        assert [(one.name, "known" in one.message) for one in said] == expected, (outcome, spared)
    assert not list(workflow_commands([result(measurement())], PLACES))


def test_what_is_not_known_of_a_place_is_left_out() -> None:
    for places, expected in (
        ({}, {"title"}),
        ({TEST: Place("a.py", None)}, {"file", "title"}),
        ({TEST: Place("a.py", 1)}, {"file", "line", "title"}),
    ):
        (line,) = workflow_commands([result(measurement(), verdict())], places)
        (command,) = commands(line)
        assert set(command.properties) == expected, places


@given(st.text(max_size=40) | st.text("%:,=\r\n ADa025", max_size=20))
@example("a\n::error::b")
@example("\r\n::stop-commands::x")
@example("a,line=7,b=c::d")
@example("%0A%25%0D%3A%2C")
def test_no_text_ends_a_command_or_begins_another(text: str) -> None:
    name = f"x.py::{text}"
    measured = measurement(test=name, name=f"n{text}")
    missing = verdict(
        outcome=Outcome.NO_BASELINE, test=name, name=measured.name, change=None, detail=f"d{text}"
    )
    places = {name: Place(text or "f", 3)}
    (line,) = workflow_commands([result(measured, missing)], places)
    title = f"gpuperf: {measured.title} has no baseline on NVIDIA H200 (sm90)"
    file = printable_lines(text or "f")
    properties = {"file": file, "line": "3", "title": printable(title)}
    assert commands(line) == [Command("warning", properties, printable_lines(f"d{text}"))]


# The job summary, and places

SLOWER, SAME = "a.py::test_slower", "a.py::test_same"
SAMES = [f"{SAME}[{number}]" for number in range(20)]
RUN = run(
    [measurement(test=name) for name in (SLOWER, *SAMES)],
    [verdict(test=SLOWER), *(verdict(test=name, outcome=Outcome.UNCHANGED) for name in SAMES)],
)


def test_only_github_s_environment_has_its_files() -> None:
    workspace = {"GITHUB_WORKSPACE": "/work", "GITHUB_STEP_SUMMARY": ""}
    assert actions(workspace) is None
    assert actions({**workspace, "GITHUB_ACTIONS": "false"}) is None
    told = actions({**workspace, "GITHUB_ACTIONS": "true"})
    assert told == Actions(None, Path("/work"))
    assert told.append(RUN) == ""


def test_the_summary_comes_after_what_a_step_has_written_before(tmp_path: Path) -> None:
    file = tmp_path / "summary.md"
    assert Actions(file, None).append(RUN) == "job summary: written"
    assert file.read_text(encoding="utf-8") == markdown(RUN)
    file.write_text("# tests", encoding="utf-8")
    Actions(file, None).append(RUN)
    assert file.read_text(encoding="utf-8") == f"# tests\n\n{markdown(RUN)}"


def test_the_summary_stays_below_what_github_shows(tmp_path: Path) -> None:
    file = tmp_path / "summary.md"
    file.write_bytes(b"x" * (SUMMARY_LIMIT - len(markdown(RUN))))
    assert Actions(file, None).append(RUN) == "job summary: written"
    assert file.stat().st_size <= SUMMARY_LIMIT
    text = file.read_text(encoding="utf-8")
    assert "### a.py::test\\_slower" in text
    assert "| test\\_same" not in text
    assert "gpuperf left out tables" in text
    before = b"x" * (SUMMARY_LIMIT - 300)
    file.write_bytes(before)
    assert Actions(file, None).append(RUN) == (
        f"note: no job summary written, as {file} already has 1,048,276 of the 1,048,576 bytes "
        "that GitHub shows"
    )
    assert file.read_bytes() == before


def test_a_summary_that_cannot_be_written_is_a_note(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing" / "summary.md"):
        note = Actions(place, None).append(RUN)
        assert note.startswith(f"note: the job summary {place} cannot be written (")


def test_files_are_named_relative_to_the_checkout_if_they_are_inside(tmp_path: Path) -> None:
    for workspace, file in (
        (".", "perf/test_a.py"),
        ("perf", "test_a.py"),
        ("..", f"{tmp_path.name}/perf/test_a.py"),
        ("elsewhere", f"{tmp_path}/perf/test_a.py"),
    ):
        place = Actions(None, tmp_path / workspace).place(tmp_path, "perf/test_a.py", 0)
        assert place == Place(file, 1)
    assert Actions(None, None).place(tmp_path, "test_a.py", None) == Place("test_a.py", None)
