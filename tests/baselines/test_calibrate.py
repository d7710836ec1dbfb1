"""`gpuperf calibrate`: from run files of identical code to scales in the baseline file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from pytest_gpuperf import __main__, errors
from pytest_gpuperf.model.measurement import Device, Measurement, Scalar
from pytest_gpuperf.storage import baseline_files, run_files
from tests.examples import A100, H200, OTHER_H200, TEST, measurement, run

CREATED = "2026-03-01T12:00:00Z"
FILE = Path("baselines/sm90/nvidia-h200/meddpm.yaml")


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somewhere else, on a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def process(
    name: str,
    cycles: float = 4e8,
    *,
    test: str = TEST,
    suite: str = "meddpm",
    device: Device = H200,
    measured: str = "2026-03-01T06:00:00Z",
    revision: str = "0123456789ab",
    software: Mapping[str, str] | None = None,
    workload: Mapping[str, Scalar] | None = None,
) -> Measurement:
    """What one process measured."""
    made = measurement(
        {"cycles": [cycles] * 3, "instructions": [6e10] * 3},
        test=test,
        suite=suite,
        process=name,
        device=device,
        software=software,
        workload=workload,
    )
    fingerprint = replace(made.fingerprint, measured=measured, revision=revision)
    return replace(made, fingerprint=fingerprint)


def quiet(count: int, **where: str) -> list[Measurement]:
    """Processes that differ by 0.01 % of their cycles."""
    rng = Random(5)
    day = where.get("measured", "")
    return [process(f"{day}p{n}", 4e8 * (1 + rng.gauss(0, 1e-4)), **where) for n in range(count)]  # type: ignore[arg-type]


def saved(measurements: Sequence[Measurement], name: str = "run.json", created: str = "") -> str:
    run_files.save(replace(run(measurements), created=created or CREATED), Path(name))
    return name


def calibrate(*arguments: str) -> int:
    return __main__.main(["calibrate", *arguments])


def accept(measurements: Sequence[Measurement]) -> None:
    file = saved(measurements, "accepted.json")
    assert __main__.main(["update-baseline", file, "--reason", "first", "--yes"]) == errors.OK


def words(text: str) -> str:
    """Without line breaks, which depend on the width."""
    return " ".join(text.split())


def test_the_table_the_false_alarms_and_what_is_lacking_are_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert calibrate(saved(quiet(8))) == errors.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "meddpm on NVIDIA H200 (sm90): 8 processes, 1 allocation (a GPU on a day), 1 GPU"
    )
    assert [line.split()[0] for line in lines[1:4]] == ["class", "deterministic", "cycle"]
    assert lines[2].split()[-4:] == ["20", "ppm", "2", "ppm"]
    assert lines[4] == "false alarms: 0 of 8 A/A trials (at most 31.2 % with 95 % confidence)"
    assert lines[5].startswith("note: 8 processes of 1 allocation: a sound estimate needs 20")
    assert max(map(len, lines)) <= 80


def test_a_narrow_terminal_gets_stacked_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert calibrate(saved(quiet(8))) == errors.OK
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert "  deterministic: scale 2 ppm (default 20" in lines


def test_allocations_are_gpus_and_days(capsys: pytest.CaptureFixture[str]) -> None:
    """Of three runs: two days of one GPU, and a run of version 0.1 that has only its own day."""
    first = [process("a"), process("b", measured="2026-03-01T23:59:59Z")]
    second = [process("c", measured="2026-03-02T00:00:01Z"), process("d", device=OTHER_H200)]
    third = [process(name, measured="") for name in "ef"]
    files = [
        saved(first, "1.json"),
        saved(second, "2.json"),
        saved(third, "3.json", "2026-03-07T01:00:00Z"),
    ]
    assert calibrate(*files) == errors.OK
    assert "6 processes, 4 allocations (a GPU on a day), 2 GPUs" in words(capsys.readouterr().out)


def test_a_process_past_midnight_is_of_one_allocation(capsys: pytest.CaptureFixture[str]) -> None:
    both = [
        process(name, test=test, measured=f"2026-03-0{day}T00:00:00Z")
        for name in "ab"
        for day, test in ((1, "a.py::test_a"), (2, "a.py::test_b"))
    ]
    assert calibrate(saved(both)) == errors.OK
    assert "2 processes, 1 allocation " in capsys.readouterr().out


def test_a_process_in_two_runs_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate(saved(quiet(8), "1.json")) == errors.OK
    alone = capsys.readouterr().out
    assert calibrate("1.json", saved(quiet(8), "2.json"), "1.json") == errors.OK
    assert capsys.readouterr().out == alone


def test_each_suite_has_its_own_table(capsys: pytest.CaptureFixture[str]) -> None:
    both = [*quiet(2), *quiet(3, suite="other")]
    assert calibrate(saved(both)) == errors.OK
    said = capsys.readouterr().out
    assert said.index("meddpm on NVIDIA H200 (sm90): 2 processes") < said.index(
        "other on NVIDIA H200 (sm90): 3 processes"
    )
    assert said.count("  class") == 2


def test_what_is_slow_on_one_day_dominates_but_does_not_alarm(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Three days apart by 0.2 %, eight processes each."""
    rng = Random(11)
    three = [
        process(
            f"{day}-{n}",
            4e8 * (1 + 0.002 * day + rng.gauss(0, 1e-4)),
            measured=f"2026-03-0{day}T06:00:00Z",
        )
        for day in (1, 2, 3)
        for n in range(8)
    ]
    assert calibrate(saved(three)) == errors.OK
    said = words(capsys.readouterr().out)
    assert "24 processes, 3 allocations" in said
    assert "note: cycle: days differ more than processes" in said
    assert "false alarms: 0 of 24 A/A trials (at most 11.7 % with 95 % confidence)" in said
    assert "sound estimate" not in said


def test_other_revisions_are_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    three = [process("a"), process("b", revision="ffff00001111"), process("c", revision="")]
    assert calibrate(saved(three)) == errors.OK
    assert "warning: 2 revisions of the code: 0123456789ab, ffff00001111." in words(
        capsys.readouterr().out
    )


REFUSED: list[tuple[list[Measurement], list[str]]] = [
    ([process("a"), process("b", device=A100)],
     ["different devices: NVIDIA A100-SXM4-40GB (sm80) and NVIDIA H200 (sm90)"]),
    ([process("a"), process("b", device=replace(H200, arch="sm89"))],
     ["NVIDIA H200 (sm89) and NVIDIA H200 (sm90)"]),
    ([process("a"), process("b", workload={"size": 64})],
     [f'the measurements "step" of {TEST}', "size 128 and size 64"]),
    ([process("a", software={"torch": "2.11.0"}), process("b", software={"torch": "2.12.0"})],
     ["meddpm: these runs were measured with torch 2.11.0 and 2.12.0"]),
    ([process("a", software={"cuda": "12.8"}), process("b", software={"cuda": "13.0"})],
     ["with cuda 12.8 and 13.0"]),
    ([process("a", software={"cudnn": "9.1.0"}), process("b", software={"cudnn": "9.2.0"})],
     ["with cudnn 9.1.0 and 9.2.0"]),
    ([process("a")], ["meddpm: 1 process in these runs", "gpuperf record --processes 5"]),
    ([process("a"), process("b", device=OTHER_H200)],
     ["2 processes, and no two of one test on one GPU on one day"]),
    ([], ["no measurements"]),
]  # fmt: skip


@pytest.mark.parametrize(("measurements", "texts"), REFUSED)
def test_what_is_no_a_a_campaign_is_refused(
    measurements: list[Measurement], texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(saved(measurements)) == errors.BAD_CONFIGURATION
    said = capsys.readouterr()
    assert said.out == ""
    for text in texts:
        assert text in said.err


def test_other_drivers_and_another_order_of_the_workload_are_no_difference() -> None:
    two = [
        process("a", software={"driver": "1", "torch": "2.12.0"}, workload={"x": 1, "y": 2}),
        process("b", software={"driver": "2"}, workload={"y": 2, "x": 1}),
    ]
    assert calibrate(saved(two)) == errors.OK


@pytest.mark.parametrize("words", [[], ["--write"], ["run.json", "--reason", "x"]])
def test_bad_words_are_bad_configuration(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(*words) == errors.BAD_CONFIGURATION
    assert "usage: gpuperf" in capsys.readouterr().err


def test_a_missing_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate("other.json") == errors.BAD_CONFIGURATION
    assert "other.json: no such run file" in capsys.readouterr().err


# --write


def test_nothing_is_written_unless_asked() -> None:
    accept(quiet(5))
    before = FILE.read_bytes()
    assert calibrate(saved(quiet(8))) == errors.OK
    assert FILE.read_bytes() == before


def test_the_calibration_is_written_and_the_rest_is_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    accept(quiet(5))
    before = baseline_files.load(FILE)
    capsys.readouterr()
    assert calibrate(saved(quiet(8)), "--write") == errors.OK
    assert capsys.readouterr().out.endswith(f"written: {FILE}\n")
    after = baseline_files.load(FILE)
    assert before is not None
    assert after is not None
    found = after.calibration
    assert found is not None
    assert replace(after, calibration=None) == before
    assert (found.processes, found.allocations, found.gpus) == (8, 1, 1)
    assert (found.trials, found.false_alarms) == (8, 0)
    assert list(found.classes) == ["deterministic", "cycle"]
    cycle = found.classes["cycle"]
    assert 4e-5 < cycle.processes < 2e-4
    assert cycle.processes == float(f"{cycle.processes:.4g}")
    assert (cycle.rounds, cycle.allocations, cycle.gpus) == (0, None, None)


def test_a_second_calibration_replaces_the_first() -> None:
    accept(quiet(5))
    for count in (8, 9):
        assert calibrate(saved(quiet(count)), "--write") == errors.OK
    found = baseline_files.load(FILE)
    assert found is not None
    assert found.calibration is not None
    assert found.calibration.processes == 9


def test_baselines_may_be_kept_elsewhere() -> None:
    accept(quiet(5))
    Path("baselines").rename("kept")
    assert calibrate(saved(quiet(8)), "--write", "--baselines", "kept") == errors.OK
    found = baseline_files.load(Path("kept", *FILE.parts[1:]))
    assert found is not None
    assert found.calibration is not None


def test_without_a_baseline_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    accept(quiet(5))
    before = FILE.read_bytes()
    capsys.readouterr()
    both = saved([*quiet(8), *quiet(8, suite="other")])
    assert calibrate(both, "--write") == errors.BAD_CONFIGURATION
    said = capsys.readouterr()
    assert f"{FILE.with_name('other.yaml')}: no such baseline file" in said.err
    assert "Accept a baseline first: gpuperf update-baseline" in said.err
    assert "written" not in said.out
    assert FILE.read_bytes() == before


def test_a_corrupted_baseline_is_refused_and_not_overwritten(
    capsys: pytest.CaptureFixture[str],
) -> None:
    accept(quiet(5))
    FILE.write_text("schema: 1\n", encoding="utf-8")
    assert calibrate(saved(quiet(8)), "--write") == errors.BAD_CONFIGURATION
    assert "meddpm.yaml" in capsys.readouterr().err
    assert FILE.read_text(encoding="utf-8") == "schema: 1\n"
