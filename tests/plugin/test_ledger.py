"""What becomes of what a session measured: the run file, reports, baselines and the summary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuperf.model.result import Outcome, Result, Run
from pytest_gpuperf.model.settings import Settings
from pytest_gpuperf.plugin.ledger import Ledger
from pytest_gpuperf.plugin.session import ProcessOrigin, Session
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.storage import baseline_files, run_files
from pytest_gpuperf.storage.files import to_json
from tests.examples import H200, default_settings, measurement, result, verdict

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


def ledger_of(settings: Settings, *results: Result) -> Ledger:
    """A ledger that was told these."""
    ledger = Ledger(settings, COMMAND)
    ledger.add([to_json(entry) for entry in results])
    return ledger


def saved(settings: Settings, *results: Result) -> Ledger:
    """A ledger that was told these, and has written them."""
    ledger = ledger_of(settings, *results)
    ledger.save(lambda _: CommandContext(COMMAND))
    return ledger


def shown(ledger: Ledger, settings: Settings, width: int = 200) -> list[str]:
    """The lines of its summary, for a session that was started in the root directory."""
    context = CommandContext(COMMAND, root=str(settings.root), folder=str(settings.root))
    lines = (*ledger.summary(width, context), *ledger.closing(width, context))
    return [line.text for line in lines]


# The run file, and reports


def test_drafts_take_a_second_and_a_fiftieth_of_the_session(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes 0.4 s, of tests of a second: the fourth waits until there is time for it."""
    now = 0.0
    written = []

    def save_draft(run: Run, _: Path) -> None:
        nonlocal now
        now += 0.4
        written.append((round(now, 1), len(run.measurements)))

    monkeypatch.setattr(run_files, "save_draft", save_draft)
    ledger = Ledger(settings, COMMAND, clock=lambda: now)
    for _ in range(40):
        now += 1
        ledger.add([to_json(PASSED)])
        ledger.save_draft(1, 40)
    assert written == [
        (1.4, 1),
        (2.8, 2),
        (4.2, 3),
        (10.6, 9),
        (31.0, 29),
    ]


def test_where_nothing_was_measured_nothing_is_written(settings: Settings) -> None:
    saved(replace(settings, missing="record", reports=(settings.root / "x.md",)))
    assert list(settings.root.iterdir()) == []


def test_results_stand_in_the_order_of_their_tests_whoever_is_done_first(
    settings: Settings,
) -> None:
    """What belongs to one of them still does: of a test that failed, no baseline is recorded."""
    settings = replace(settings, missing="record")
    ledger = Ledger(settings, COMMAND)
    for name in ("last", "first", "second"):
        test = f"a.py::test_{name}"
        made = result(measurement(test=test), replace(MISSING.verdicts[0], test=test))
        ledger.add([to_json(made)], failed=name == "second")
    ledger.arrange([f"a.py::test_{name}" for name in ("first", "second", "last")])
    ledger.save(lambda _: CommandContext(COMMAND))
    assert ledger.saved
    tests = [one.test.partition("::test_")[2] for one in run_files.load(ledger.saved).measurements]
    assert tests == ["first", "second", "last"]
    known = baseline_files.load(baseline_files.path_for(settings.baselines, H200, "meddpm"))
    assert known
    assert list(known.tests) == ["a.py::test_first", "a.py::test_last"]


# Recording what is missing


def test_missing_baselines_are_recorded_when_asked_for(settings: Settings) -> None:
    settings = replace(settings, missing="record")
    ledger = saved(settings, PASSED, MISSING, OTHER_WORKLOAD)
    known = baseline_files.load(baseline_files.path_for(settings.baselines, H200, "meddpm"))
    assert known is not None
    assert list(known.tests) == ["a.py::test_new"]
    (log,) = known.tests["a.py::test_new"]["step"].log
    assert log.reason == "recorded by --gpuperf-missing record"
    lines = shown(ledger, settings)
    note = "baseline recorded: a.py::test_new in baselines/sm90/nvidia-h200/meddpm.yaml"
    assert note in lines
    # That of another workload is still missing; what was just recorded is not asked for.
    assert any("gpuperf record" in line for line in lines)
    other = measurement(test="a.py::test_other")
    also = result(other, replace(MISSING.verdicts[0], test=other.test))
    assert not any("gpuperf record" in line for line in shown(saved(settings, also), settings))
    # Nor is anything recorded of what has regressed beside it.
    worse = replace(MISSING, verdicts=(*MISSING.verdicts, verdict(test="a.py::test_new")))
    file = baseline_files.path_for(settings.baselines, H200, "meddpm")
    file.unlink()
    saved(settings, worse)
    assert not file.exists()


# The summary


def test_what_went_wrong_while_judging_is_a_note_of_one_line_said_once(settings: Settings) -> None:
    first = "the test could not be repeated: a fresh process ended with pytest's exit code 2:"
    noted = replace(PASSED, notes=(f"{first}\nTraceback\n  ...", "another"))
    lines = shown(ledger_of(settings, PASSED, noted, noted), settings)
    assert [line for line in lines if line.startswith("note: ")] == [
        f"note: {first}",
        "note: another",
    ]
    assert not any("Traceback" in line for line in lines)


def test_refusals_are_said_once_and_in_full_where_no_test_has_said_them(settings: Settings) -> None:
    for told, said in ((False, ["usage error: first line", "second line"]), (True, [])):
        ledger = ledger_of(settings, PASSED)
        for _ in range(2):
            ledger.add([], "first line\n  second line", told=told)
        lines = ledger.closing(80, CommandContext(COMMAND))
        assert [line.text.strip() for line in lines if line.tone == "bad"] == said
        assert ledger.refusals == ["first line\n  second line"] * 2


# What to type next


def test_files_are_named_as_one_would_type_them() -> None:
    root = Path("/root")
    cases: tuple[tuple[dict[str, Any], str, dict[str, Any]], ...] = (
        ({}, ".", {}),
        ({"processes": 3}, ".", {"processes": 3}),
        ({"run": root / "x/run.json"}, ".", {"run": "x/run.json"}),
        ({"run": root / "x/run.json"}, "x", {"run": "run.json", "baselines": "../baselines"}),
        ({}, "x", {"run": "../saved.json", "baselines": "../baselines"}),
        ({"run": Path("/y/run.json")}, ".", {"run": "/y/run.json"}),
        ({"baselines": root / "perf"}, ".", {"baselines": "perf"}),
        ({"replay": root / "old.json"}, ".", {"run": "old.json", "replayed": True}),
    )
    for changes, folder, expected in cases:
        settings = replace(default_settings(root), **changes)
        config: Any = SimpleNamespace(
            invocation_params=SimpleNamespace(args=[COMMAND], dir=root / folder),
            option=SimpleNamespace(file_or_dir=[COMMAND]),
        )
        context = Session(config, settings, ProcessOrigin()).context(root / "saved.json")
        expected |= {"root": str(root), "folder": str(root / folder), "flags": ""}
        assert context == CommandContext(COMMAND, **expected), (changes, folder)


def test_a_missing_baseline_that_fails_no_test_is_no_cause(settings: Settings) -> None:
    passing = Ledger(replace(settings, missing="warn"), COMMAND)
    for _ in range(2):
        passing.add([to_json(MISSING)])
        assert passing.repeated(80) == []
