"""What becomes of what a session measured: the run file, reports, baselines and the summary."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.judge.attribution import attribute
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.model.result import Attributed, Outcome, Result, Verdict
from pytest_gpuperf.model.result import Attribution as Blame
from pytest_gpuperf.model.settings import Settings
from pytest_gpuperf.plugin.session import Ledger, session_of
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.table import Line
from pytest_gpuperf.storage import baseline_files, run_files
from pytest_gpuperf.storage.files import adapter, to_json
from tests import strategies
from tests.corruption import refusal
from tests.examples import A100, H200, TEST, default_settings, measurement, result, verdict
from tests.kernel_steps import NAMING, table

COMMAND = "suites/meddpm"
PASSED = result(measurement(), verdict(outcome=Outcome.UNCHANGED, reason="within-tolerance"))
MISSING = result(
    measurement(test="a.py::test_new"),
    verdict(outcome=Outcome.NO_BASELINE, reason="no-file", test="a.py::test_new"),
)
OTHER_WORKLOAD = result(
    measurement(), verdict(outcome=Outcome.NO_BASELINE, reason="other-workload")
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The default settings, in a folder of their own."""
    return default_settings(tmp_path)


def ledger_of(*judged: Result) -> Ledger:
    """A ledger that was told these."""
    ledger = Ledger()
    ledger.add([to_json(entry) for entry in judged])
    return ledger


def texts(lines: list[Line]) -> list[str]:
    """The lines without their tone."""
    return [line.text for line in lines]


# The way from a worker


@given(
    measurements=st.lists(strategies.measurements, max_size=2),
    verdicts=st.lists(strategies.verdicts, max_size=2),
    blamed=st.none() | strategies.blames,
)
def test_what_a_worker_sends_arrives_the_same(
    measurements: list[Measurement], verdicts: list[Verdict], blamed: Blame | None
) -> None:
    judged = Result(TEST, "step", tuple(measurements), tuple(verdicts), attribution=blamed)
    text = to_json(judged)
    assert "\n" not in text
    assert adapter(Result).validate_json(text) == judged


# The run file


def test_a_run_has_all_measurements_and_verdicts_in_their_order(settings: Settings) -> None:
    ledger = ledger_of(PASSED, MISSING)
    ledger.save(settings, COMMAND)
    saved = run_files.load(run_files.newest(settings.root))
    assert saved.measurements == (*PASSED.measurements, *MISSING.measurements)
    assert saved.verdicts == (*PASSED.verdicts, *MISSING.verdicts)
    assert saved.command == COMMAND
    file = run_files.newest(settings.root).relative_to(settings.root)
    assert f"run saved: {file}" in texts(ledger.summary(200, COMMAND))


def test_a_run_is_saved_where_it_was_asked_for(settings: Settings) -> None:
    file = settings.root / "folder" / "x.json"
    ledger_of(PASSED).save(replace(settings, run=file), COMMAND)
    assert run_files.load(file).measurements == PASSED.measurements
    assert not (settings.root / ".gpuperf").exists()


def test_a_replayed_run_is_not_saved_again(settings: Settings) -> None:
    ledger = ledger_of(PASSED)
    ledger.save(replace(settings, replay=settings.root / "run.json"), COMMAND)
    assert list(settings.root.iterdir()) == []
    assert not any(text.startswith("run saved") for text in texts(ledger.summary(80, "")))


def test_without_measurements_nothing_is_written(settings: Settings) -> None:
    ledger = Ledger()
    ledger.add([], "refused")
    ledger.save(replace(settings, missing="record", reports=(settings.root / "x.md",)), COMMAND)
    assert list(settings.root.iterdir()) == []


def test_a_run_that_cannot_be_saved_is_a_usage_failure(settings: Settings) -> None:
    with pytest.raises(UsageFailure, match="cannot be written"):
        ledger_of(PASSED).save(replace(settings, run=settings.root), COMMAND)


def test_a_run_says_which_kernels_a_change_comes_from(settings: Settings) -> None:
    found = attribute(table(("conv", 900.0)), table(("conv", 300.0)), NAMING)
    blamed = replace(PASSED, attribution=found)
    ledger = ledger_of(MISSING, blamed)
    ledger.save(replace(settings, reports=(settings.root / "x.json",)), COMMAND)
    for file in (run_files.newest(settings.root), settings.root / "x.json"):
        assert run_files.load(file).attributions == (Attributed(TEST, "step", found),)


def test_a_run_of_an_earlier_version_blames_nothing(settings: Settings) -> None:
    ledger_of(PASSED).save(settings, COMMAND)
    file = run_files.newest(settings.root)
    data = json.loads(file.read_text())
    del data["blames"]
    file.write_text(json.dumps(data))
    assert run_files.load(file).attributions == ()


# Reports


def test_reports_are_written_by_their_suffix(settings: Settings) -> None:
    reports = (settings.root / "out" / "x.md", settings.root / "out" / "x.json")
    ledger = ledger_of(PASSED)
    ledger.save(replace(settings, reports=reports), COMMAND)
    assert reports[0].read_text().startswith("# gpuperf: 1 unchanged\n")
    assert run_files.load(reports[1]).measurements == PASSED.measurements
    assert json.loads(reports[1].read_text())["command"] == COMMAND
    lines = texts(ledger.summary(80, COMMAND))
    assert "report written: out/x.md" in lines
    assert "report written: out/x.json" in lines


# Recording what is missing


def test_missing_baselines_are_recorded_when_asked_for(settings: Settings) -> None:
    ledger = ledger_of(PASSED, MISSING, OTHER_WORKLOAD)
    ledger.save(replace(settings, missing="record"), COMMAND)
    known = baseline_files.load(baseline_files.path_for(settings.baselines, H200, "meddpm"))
    assert known is not None
    assert list(known.tests) == ["a.py::test_new"]
    assert known.accepted[0].reason == "recorded by --gpuperf-missing record"
    assert "baseline recorded: a.py::test_new in baselines/sm90/nvidia-h200/meddpm.yaml" in texts(
        ledger.summary(80, COMMAND)
    )


@pytest.mark.parametrize("missing", ["fail", "warn"])
def test_otherwise_nothing_is_recorded(settings: Settings, missing: str) -> None:
    ledger_of(MISSING).save(replace(settings, missing=missing), COMMAND)
    assert not settings.baselines.exists()


def test_what_also_regressed_is_not_recorded(settings: Settings) -> None:
    mixed = replace(MISSING, verdicts=(*MISSING.verdicts, verdict(test="a.py::test_new")))
    ledger_of(mixed).save(replace(settings, missing="record"), COMMAND)
    assert not settings.baselines.exists()


def test_what_a_failed_test_measured_is_not_recorded(settings: Settings) -> None:
    ledger = Ledger()
    ledger.add([to_json(MISSING)], failed=True)
    ledger.save(replace(settings, missing="record"), COMMAND)
    assert not settings.baselines.exists()
    assert run_files.load(run_files.newest(settings.root)).measurements == MISSING.measurements


def test_a_damaged_baseline_is_not_overwritten_by_recording(settings: Settings) -> None:
    file = baseline_files.path_for(settings.baselines, H200, "meddpm")
    file.parent.mkdir(parents=True)
    file.write_text("schema: 1\ntests: {}\n")

    def save(_: Path) -> None:
        ledger_of(MISSING).save(replace(settings, missing="record"), COMMAND)

    assert "arch: Field required" in refusal(save, file, BadFile)


# The summary


def test_what_went_wrong_while_judging_is_a_note_of_one_line() -> None:
    said = "not looked at again: a fresh process ended with pytest's exit code 2:"
    noted = replace(PASSED, notes=(f"{said}\nTraceback\n  ...", "another"))
    lines = texts(ledger_of(PASSED, noted).summary(200, COMMAND))
    assert [line for line in lines if line.startswith("note: ")] == [
        f"note: {said}",
        "note: another",
    ]
    assert not any("Traceback" in line for line in lines)


def test_a_note_of_several_tests_is_said_once() -> None:
    noted = replace(PASSED, notes=("no kernel can be named: x.kernels.json.xz: no such file",))
    lines = texts(ledger_of(noted, noted).summary(200, COMMAND))
    assert sum(line.startswith("note: no kernel") for line in lines) == 1


def test_refusals_are_said_once_and_in_full(settings: Settings) -> None:
    ledger = ledger_of(PASSED)
    ledger.add([], "first line\n  second line")
    ledger.add([], "first line\n  second line")
    ledger.save(settings, COMMAND)
    assert [line.text.strip() for line in ledger.summary(80, COMMAND) if line.tone == "bad"] == [
        "refused: first line",
        "second line",
    ]
    assert ledger.refusals == ["first line\n  second line"] * 2


@given(width=st.integers(20, 200), refusal=st.text(max_size=300))
def test_no_line_of_the_summary_is_too_wide(width: int, refusal: str) -> None:
    ledger = ledger_of(PASSED, MISSING, OTHER_WORKLOAD)
    ledger.add([], refusal)
    assert all(len(line.text) <= width for line in ledger.summary(width, COMMAND))


@pytest.mark.parametrize("width", [20, 33, 80])
def test_notes_do_not_exceed_the_width(settings: Settings, width: int) -> None:
    ledger = ledger_of(MISSING)
    report = settings.root / ("long-" * 20 + ".md")
    ledger.save(replace(settings, missing="record", reports=(report,)), COMMAND)
    lines = texts(ledger.summary(width, COMMAND))
    assert all(len(line) <= width for line in lines)
    assert "baseline recorded:" in " ".join(lines)


def test_the_configurations_come_before_the_rows() -> None:
    def of(name: str) -> Result:
        test = f"x.py::test[{name}]"
        found = measurement(test=test, configuration=name)
        return result(found, verdict(test=test))

    lines = texts(ledger_of(of("baseline"), of("tf32")).summary(80, COMMAND))
    assert lines[0] == "configurations, relative to the first"
    assert lines.index("test[baseline] on NVIDIA H200 (sm90)") > 0
    assert TEST not in lines


# What to type next


REGRESSED = result(measurement(), verdict())


@pytest.mark.parametrize(
    ("changes", "folder", "expected"),
    [
        ({}, ".", CommandContext(COMMAND)),
        ({"processes": 3}, ".", CommandContext(COMMAND, processes=3)),
        ({"run": "x/run.json"}, ".", CommandContext(COMMAND, run="x/run.json")),
        (
            {"run": "x/run.json"},
            "x",
            CommandContext(COMMAND, run="run.json", baselines="/root/baselines"),
        ),
        ({}, "x", CommandContext(COMMAND, run="/root/saved.json", baselines="/root/baselines")),
        ({"baselines": "perf"}, ".", CommandContext(COMMAND, baselines="perf")),
        ({"replay": "old.json"}, ".", CommandContext(COMMAND, run="old.json", replayed=True)),
    ],
)
def test_files_are_named_as_one_would_type_them(
    changes: dict[str, str | int], folder: str, expected: CommandContext
) -> None:
    root = Path("/root")
    paths = {k: root / v if isinstance(v, str) else v for k, v in changes.items()}
    settings = replace(default_settings(root), **paths)  # type: ignore[arg-type]
    assert session_of(settings, COMMAND, root / folder, root / "saved.json") == expected


def saved_earlier(settings: Settings, *judged: Result) -> None:
    """Another session, which ended before."""
    ledger_of(*judged).save(settings, COMMAND)


def compared(settings: Settings, *judged: Result) -> list[str]:
    """The two runs that the summary of a session has compared."""
    ledger = ledger_of(*judged)
    ledger.save(settings, COMMAND)
    lines = [text.strip() for text in texts(ledger.summary(300, COMMAND))]
    return next((t.split()[2:] for t in lines if t.startswith("gpuperf compare")), [])


def test_a_regression_is_compared_with_the_last_run_that_had_none(settings: Settings) -> None:
    elsewhere = result(measurement(test="a.py::test_other"), verdict(test="a.py::test_other"))
    for earlier in (PASSED, PASSED, REGRESSED, elsewhere):
        saved_earlier(settings, earlier)
    files = sorted((settings.root / run_files.FOLDER).iterdir())
    before, after = compared(settings, PASSED, REGRESSED)
    assert before == str(files[1].relative_to(settings.root))
    assert after == str(run_files.newest(settings.root).relative_to(settings.root))


@pytest.mark.parametrize(
    "earlier",
    [
        REGRESSED,
        MISSING,
        result(measurement(device=A100), verdict(outcome=Outcome.UNCHANGED)),
        result(measurement(workload={"size": 64}), verdict(outcome=Outcome.UNCHANGED)),
    ],
)
def test_what_cannot_be_compared_is_not(earlier: Result, settings: Settings) -> None:
    assert compared(settings, REGRESSED) == []
    saved_earlier(settings, earlier)
    assert compared(settings, REGRESSED) == []


def test_without_a_regression_nothing_is_compared(settings: Settings) -> None:
    saved_earlier(settings, PASSED)
    assert compared(settings, PASSED) == []


def test_a_damaged_run_from_before_is_passed_over(settings: Settings) -> None:
    saved_earlier(settings, PASSED)
    (settings.root / run_files.FOLDER / "20990101T000000.000000Z-1.json").write_text("{")
    assert compared(settings, REGRESSED)


def test_a_baseline_that_was_just_recorded_is_not_asked_for(settings: Settings) -> None:
    ledger = ledger_of(MISSING)
    ledger.save(replace(settings, missing="record"), COMMAND)
    lines = texts(ledger.summary(200, COMMAND))
    assert any(line.startswith("baseline recorded: a.py::test_new") for line in lines)
    assert not any("gpuperf record" in line for line in lines)
