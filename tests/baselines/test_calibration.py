"""Calibration: which runs may teach the judge, what they teach, and where it is stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pytest_gpuperf.baselines import calibration
from pytest_gpuperf.baselines.calibration import Finding
from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import baseline_files
from tests.examples import A100, H200, OTHER_H200, TEST, measurement, run


def process(
    name: str,
    cycles: float = 4e8,
    *,
    measured: str = "2026-03-01T06:00:00Z",
    revision: str = "0123456789ab",
    **others: Any,
) -> Measurement:
    """What one process measured."""
    series = {"cycles": [cycles] * 3, "instructions": [6e10] * 3}
    made = measurement(series, process=name, **others)
    return replace(
        made, fingerprint=replace(made.fingerprint, measured=measured, revision=revision)
    )


def quiet(count: int, suite: str = "meddpm") -> list[Measurement]:
    """Processes that differ by 0.01 % of their cycles."""
    rng = Random(5)
    return [process(f"p{n}", 4e8 * (1 + rng.gauss(0, 1e-4)), suite=suite) for n in range(count)]


def finding(*runs: Run) -> Finding:
    """What runs of one suite say."""
    (one,) = calibration.findings(runs, "2026-03-09")
    return one


def test_a_suite_s_spreads_are_found_and_trials_made() -> None:
    estimated = finding(run(quiet(8)))
    assert (estimated.suite, estimated.device) == ("meddpm", H200)
    learned = estimated.calibration
    assert (learned.date, learned.processes, learned.allocations, learned.gpus) == (
        *("2026-03-09", 8, 1, 1),
    )
    assert (learned.trials, learned.false_alarms) == (8, 0)
    assert list(learned.classes) == ["deterministic", "cycle"]
    cycle = learned.classes["cycle"]
    assert 4e-5 < cycle.processes < 2e-4
    assert (cycle.rounds, cycle.allocations, cycle.gpus) == (0, None, None)
    # A process in two runs counts once.
    assert finding(run(quiet(8)), run(quiet(8)), run(quiet(5))) == estimated


def test_trials_are_judged_with_what_each_test_tolerates() -> None:
    noisy = [process(f"p{n}", 4e8 * (1.08 if n == 4 else 1.0)) for n in range(9)]
    others = [process(f"p{n}", 4e8 * (1 + n * 1e-5), test="other.py::test_it") for n in range(9)]
    seen = finding(run([*noisy, *others]))
    assert (seen.calibration.trials, seen.calibration.false_alarms) == (18, 0)
    assert seen.inconclusive
    tolerant = [replace(one, tolerance={"cycles": "300%"}) for one in noisy]
    assert finding(run([*tolerant, *others])).inconclusive == 0


def test_allocations_are_gpus_and_days() -> None:
    """Of three runs: two days of one GPU, another GPU, and a run that does not say when."""
    first = [process("a"), process("b", measured="2026-03-01T23:59:59Z")]
    second = [process("c", measured="2026-03-02T00:00:01Z"), process("d", device=OTHER_H200)]
    third = [process(name, measured="") for name in "ef"]
    estimated = finding(run(first), run(second), run(third))
    learned = estimated.calibration
    assert (learned.processes, learned.allocations, learned.gpus) == (6, 4, 2)


def test_other_revisions_are_known_and_other_drivers_are_no_other_code() -> None:
    measured = [
        process("a", software={"driver": "1", "torch": "2.12.0"}, workload={"x": 1, "y": 2}),
        process("b", software={"driver": "2"}, workload={"y": 2, "x": 1}, revision="ffff00001111"),
        process("c", workload={"x": 1, "y": 2}, revision=""),
    ]
    assert finding(run(measured)).revisions == ("0123456789ab", "ffff00001111")


REFUSED: list[tuple[list[Measurement], str]] = [
    ([process("a"), process("b", device=A100)],
     "different devices: NVIDIA A100-SXM4-40GB (sm80) and NVIDIA H200 (sm90)"),
    ([process("a"), process("b", device=replace(H200, arch="sm89"))],
     "NVIDIA H200 (sm89) and NVIDIA H200 (sm90)"),
    ([process("a"), process("b", workload={"size": 64})],
     f'the measurements "step" of {TEST} have different workloads'),
    *(([process("a", software={name: "1"}), process("b", software={name: "2"})],
      f"versions of {name}: 1 and 2") for name in ("torch", "cuda", "cudnn")),
    ([process("a"), process("b", device=OTHER_H200)],
     "meddpm: no two processes (of 2) ran one test on one GPU and day"),
    ([], "no measurements"),
]  # fmt: skip


def test_what_is_no_campaign_of_a_a_runs_is_refused() -> None:
    for measurements, text in REFUSED:
        with pytest.raises(UsageFailure) as refused:
            finding(run(measurements))
        assert text in str(refused.value)


# Where it is stored


def accepted(folder: Path, suite: str = "meddpm") -> Path:
    """A baseline file of this suite."""
    file = baseline_files.path_for(folder, H200, suite)
    baseline_files.save(baseline_files.empty(H200, suite), file)
    return file


def test_it_is_stored_with_four_digits_in_place_of_the_one_before(tmp_path: Path) -> None:
    file = accepted(tmp_path)
    before = baseline_files.load(file)
    assert before is not None
    file.write_text(file.read_text(encoding="utf-8") + "# ours\n", encoding="utf-8")
    for count in (8, 9):
        estimated = finding(run(quiet(count)))
        assert calibration.write([estimated], tmp_path) == [file]
        after = baseline_files.load(file)
        assert after is not None
        assert after.calibration is not None
        assert replace(after, calibration=None) == before
        assert after.calibration.processes == count
        assert after.calibration == estimated.calibration
        assert len(str(after.calibration.classes["cycle"].rounds)) < 11
    assert file.read_text(encoding="utf-8").endswith("# ours\n")


def test_nothing_is_written_unless_every_suite_has_a_sound_file(tmp_path: Path) -> None:
    file = accepted(tmp_path)
    before = file.read_bytes()
    both = calibration.findings([run([*quiet(2), *quiet(3, suite="other")])], "")
    assert [(one.suite, one.calibration.processes) for one in both] == [("meddpm", 2), ("other", 3)]
    with pytest.raises(UsageFailure, match=r"other\.yaml does not exist.*Accept a base"):
        calibration.write(both, tmp_path)
    other = accepted(tmp_path, "other")
    other.write_text("schema: 1\n", encoding="utf-8")
    with pytest.raises(BadFile, match=r"other\.yaml"):
        calibration.write(both, tmp_path)
    assert file.read_bytes() == before
    assert other.read_text(encoding="utf-8") == "schema: 1\n"
