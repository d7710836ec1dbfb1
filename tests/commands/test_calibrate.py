"""`gpuperf calibrate`: a table that fits, false alarms, notes on what is lacking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf import __main__, errors
from pytest_gpuperf.baselines.calibration import Finding
from pytest_gpuperf.commands import calibrate
from pytest_gpuperf.model.entry import Calibration, Spread
from pytest_gpuperf.storage import baseline_files, run_files
from tests.examples import H200, processes, run

CLASSES = {
    "deterministic": Spread(0.0, 1.234e-6, 4.01e-7, 0.0),
    "cycle": Spread(2.98e-4, 9.48e-4, 6.62e-4, 0.00614),
    "ratio": Spread(7.19e-4, 0.0023, None, None),
}


def finding(
    classes: Mapping[str, Spread] = CLASSES,
    *,
    trials: tuple[int, int, int] = (76, 0, 0),
    processes: int = 36,
    allocations: int = 6,
    revisions: tuple[str, ...] = (),
) -> Finding:
    """A sound finding of 36 processes unless told otherwise; trials, alarms and inconclusive."""
    count, alarms, inconclusive = trials
    calibration = Calibration("2026-03-01", processes, allocations, 3, count, alarms, classes)
    return Finding("meddpm", H200, calibration, inconclusive, revisions)


def shown(one: Finding, width: int = 100) -> list[str]:
    return [line.text for line in calibrate.lines(one, width)]


def test_a_sound_finding() -> None:
    for width in (80, 100):
        assert shown(finding(), width)[-5:] == [
            "  class           rounds  processes  allocations      GPUs   default     scale",
            "  deterministic    0 ppm   1.23 ppm    0.401 ppm     0 ppm    20 ppm     2 ppm",
            "  cycle          298 ppm    948 ppm      662 ppm  6140 ppm  1000 ppm   948 ppm",
            "  ratio          719 ppm   2300 ppm            -         -  1500 ppm  2300 ppm",
            "false alarms: 0 of 76 A/A trials (at most 3.9 % with 95 % confidence)",
        ]
        assert " ".join(shown(finding(), width)[:-5]) == (
            "meddpm on NVIDIA H200 (sm90): 36 processes, 6 allocations (a GPU on a day), 3 GPUs"
        )


def test_shares_are_short_and_never_rounded_to_nothing() -> None:
    numbers = (None, 0.0, 1e-17, 1.234e-6, 4.99e-5, 5e-5, 9.994e-4, 9.996e-4, 1.5e-3, 0.5)
    assert ", ".join(map(calibrate.share, numbers)) == (
        "-, 0 ppm, 1e-11 ppm, 1.23 ppm, 49.9 ppm, 50 ppm, 999 ppm, 1000 ppm, 1500 ppm, 500000 ppm"
    )


def test_false_alarms() -> None:
    for trials, text, tone in (
        ((1, 0, 0), "0 of 1 A/A trial (at most 95.0 % with 95 % confidence)", "good"),
        (
            (76, 0, 2),
            "0 of 76 A/A trials (at most 3.9 % with 95 % confidence); 2 trials were inconclusive",
            "doubtful",
        ),
        ((76, 3, 0), "3 of 76 A/A trials (at most 9.9 % with 95 % confidence)", "bad"),
        ((0, 0, 0), "unknown, as no test has 6 processes or more", "doubtful"),
    ):
        lines = calibrate.lines(finding(trials=trials), 100)
        (line,) = [line for line in lines if line.text.startswith("false alarms")]
        assert (line.text, line.tone) == (f"false alarms: {text}", tone)


def test_what_is_lacking_or_odd_is_noted() -> None:
    enough = ": a sound estimate needs 20 processes or more, of 3 allocations or more"
    for one, expected in (
        (finding(processes=20, allocations=3), []),
        (finding(processes=19), ["note: 19 processes of 6 allocations" + enough]),
        (finding(allocations=1), ["note: 36 processes of 1 allocation" + enough]),
        (finding(revisions=("r1", "r2")), ["warning: the runs are from 2 revisions"]),
        (finding(revisions=("r1",)), []),
    ):
        notes = [line for line in shown(one, 300) if line.startswith(("note:", "warning:"))]
        assert len(notes) == len(expected)
        assert all(note.startswith(start) for note, start in zip(notes, expected, strict=True))


# The command


def test_it_prints_and_writes_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    kept = Path("kept")
    file = baseline_files.path_for(kept, H200, "meddpm")
    baseline_files.save(baseline_files.empty(H200, "meddpm"), file)
    measured = processes("cycles", [[4e8 + 1e4 * (n % 3)] * 2 for n in range(8)])
    run_files.save(replace(run(measured), created="2026-03-01T12:00:00Z"), Path("run.json"))

    assert __main__.main(["calibrate", "run.json"]) == errors.OK
    said = capsys.readouterr().out
    assert said.startswith("meddpm on NVIDIA H200 (sm90): 8 processes, 1 allocation (a GPU on a")
    assert max(map(len, said.splitlines())) <= 80
    loaded = baseline_files.load(file)
    assert loaded is not None
    assert loaded.calibration is None

    assert __main__.main(["calibrate", "run.json", "--write", "--baselines", "kept"]) == errors.OK
    assert capsys.readouterr().out == f"{said}written: {file}\n"
    loaded = baseline_files.load(file)
    assert loaded is not None
    assert loaded.calibration is not None
