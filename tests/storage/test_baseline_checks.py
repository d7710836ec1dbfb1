"""What the types of a baseline file cannot say, and is refused with the name of the entry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import BadFile
from pytest_gpuperf.model.entry import Anchor, BaselineFile, Calibration, Entry, Spread
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.storage import baseline_files, files
from tests import strategies
from tests.corruption import changed, refusal
from tests.examples import H200, TEST, processes

ENTRY = replace(
    baseline_files.entry_of(processes("cycles", [[1.0, 2.0], [3.0, 4.0]]), "2026-03-02"),
    anchor=Anchor(
        recorded="2026-03-01",
        revision="",
        samples={"cycles": ((5.0,), (6.0,), (7.0,))},
        units=("u", "u", "v"),
        days=("2026-03-01", "2026-03-01", "2026-03-02"),
    ),
)
CALIBRATION = Calibration("2026-03-01", 20, 4, 2, 100, 0, {"cycle": Spread(1e-4, 5e-4, 0.0, None)})
KNOWN = replace(
    baseline_files.empty(H200, "meddpm"),
    tests={TEST: {STEP: ENTRY}},
    tolerance={"cycles": "1%", "l2_hit_rate": "2pt"},
    calibration=CALIBRATION,
)
PLAIN: Any = files.to_plain(KNOWN)
HERE = ("tests", TEST, STEP)
ANCHOR = (*HERE, "anchor", "samples", "cycles")
CLASSES = ("calibration", "classes")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the baselines are."""
    return tmp_path / "meddpm.yaml"


def test_what_is_right_is_read(file: Path) -> None:
    baseline_files.save(KNOWN, file)
    assert baseline_files.load(file) == KNOWN


@pytest.mark.parametrize(
    ("path", "value", "entry", "problem"),
    [
        ((*HERE, "days"), ["2026-03-01"], (*HERE, "samples/step/cycles"), "days has 1"),
        ((*HERE, "units"), ["a"] * 3, (*HERE, "samples/step/cycles"), "units has 3"),
        (ANCHOR, [[1], [2]], ANCHOR, "2 processes, and units has 3"),
        (
            (*HERE, "kernels"),
            {"digest": "", "launches": [["gemm", "nvjet", 1], ["gemm", "sgemm", 0]]},
            (*HERE, "kernels", "launches", "1"),
            "0 launches",
        ),
        ((*HERE, "anchor", "days"), ["2026-03-01"] * 2, ANCHOR, "3 processes, and days has 2"),
        ((*ANCHOR, 1), [], ANCHOR, "a process without values"),
        (ANCHOR, [], ANCHOR, "a process without values"),
        ((*ANCHOR[:-1], "cycels"), [[1]] * 3, (*ANCHOR[:-1], "cycels"), "no such metric"),
        ((*ANCHOR, 1, 0), None, (*ANCHOR, 1, 0), "valid number"),
        (("tolerance", "cycels"), "1%", ("tolerance/cycels",), "write one of cycles, inst"),
        (("tolerance", "cycles"), "1", ("tolerance/cycles",), 'a share such as "1%"'),
        (("tolerance", "cycles"), "0%", ("tolerance/cycles",), "above zero"),
        (("tolerance", "cycles"), "1pt", ("tolerance/cycles",), 'in cycles: "1%"'),
        (("tolerance", "l2_hit_rate"), "2%", ("tolerance/l2_hit_rate",), 'in points: "2pt"'),
        (("tolerance", "cycles"), 0.01, ("tolerance/cycles",), "valid string"),
        (
            (*CLASSES, "cycles"),
            PLAIN["calibration"]["classes"]["cycle"],
            (*CLASSES, "cycles"),
            "no such class of metrics: one of deterministic, cycle, ratio",
        ),
        (
            (*CLASSES, "cycle", "processes"),
            -1e-9,
            (*CLASSES, "cycle/processes"),
            "cannot be negative",
        ),
        ((*CLASSES, "cycle", "units"), -0.5, (*CLASSES, "cycle/units"), "-0.5 is no spread"),
        (
            (*CLASSES, "cycle", "rounds"),
            float("inf"),
            (*CLASSES, "cycle/rounds"),
            "finite number",
        ),
    ],
)
def test_a_wrong_entry_is_named(
    file: Path,
    path: tuple[str | int, ...],
    value: object,
    entry: tuple[str | int, ...],
    problem: str,
) -> None:
    import yaml

    file.write_text(yaml.safe_dump(changed(PLAIN, path, value), sort_keys=False))
    message = refusal(baseline_files.load, file, BadFile)
    assert message.startswith(f"{file}: {'/'.join(map(str, entry))}: ")
    assert problem in message


@pytest.mark.parametrize("name", ["units", "days"])
def test_gpus_and_days_may_be_unknown(file: Path, name: str) -> None:
    plain = changed(changed(PLAIN, (*HERE, name), []), (*HERE, "anchor", name), [])
    known = files.validate(plain, BaselineFile, file, 1, "")
    baseline_files.save(known, file)
    assert baseline_files.load(file) == known


# The anchor of an entry


def test_an_entry_without_an_anchor_is_its_own() -> None:
    entry = replace(ENTRY, anchor=None)
    anchor = baseline_files.anchor_of(entry)
    assert anchor.samples == {"cycles": entry.samples[STEP]["cycles"]}
    assert (anchor.recorded, anchor.revision) == (entry.recorded, entry.revision)
    assert (anchor.units, anchor.days) == (entry.units, entry.days)


@given(entry=strategies.entries)
def test_an_anchor_is_that_of_the_entry_or_its_gated_metrics(entry: Entry) -> None:
    anchor = baseline_files.anchor_of(entry)
    known = catalogue().metrics
    if entry.anchor is not None:
        assert anchor == entry.anchor
    else:
        step = entry.samples.get(STEP, {})
        assert anchor.samples == {name: step[name] for name in step if known[name].gated}
    again = replace(entry, anchor=anchor)
    assert baseline_files.anchor_of(again) == anchor
