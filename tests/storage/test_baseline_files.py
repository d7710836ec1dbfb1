"""Baseline files: what is accepted comes back, reads well, and is refused when it is damaged."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import BadFile
from pytest_gpuperf.measure.device.nvml import portable_device
from pytest_gpuperf.model.entry import (
    Acceptance,
    Accepted,
    BaselineFile,
    Calibration,
    CanarySeries,
    Entry,
    Spread,
    places_text,
)
from pytest_gpuperf.model.measurement import Canary, Conditions, Measurement, Reading
from pytest_gpuperf.storage import baseline_files, data_files, files
from tests import ROOT, strategies
from tests.corruption import Wrong, changed, is_named, refusal
from tests.examples import A100, H200, OTHER_H200, TEST, measurement

ACCEPTED = Acceptance(
    date="2026-03-01",
    reason="first baseline: measured on a quiet machine, as #2 asks",
    revision="0123456789ab",
    processes=2,
    moved={"cycles": "+1.2 %", "copies": "from 0"},
)
ENTRY = Entry(
    recorded="2026-03-01",
    revision="0123456789ab",
    configuration="tf32",
    workload={"size": 128, "batch": 1},
    software={"torch": "2.12.0", "driver": "580.159"},
    settings={"rounds": 2},
    where=("aaaa00000001 2026-03-01", "bbbb00000002 2026-02-28"),
    metrics={
        "cycles": (437_821_200.0, 437_900_000.0),
        "instructions": 5e9,
        "step_time": (2.5, 0.1),
    },
    zero=("copies", "graph_breaks"),
    data="test_step-1234567890ab.json.xz",
    origin=Accepted(
        recorded="2026-02-01",
        revision="",
        where=("u 2026-02-01 x2", "v 2026-02-02"),
        metrics={"cycles": (5.0, 6.0, 7.0)},
    ),
    log=(replace(ACCEPTED, reason="first", moved={}, forced=("1 process of 3",)), ACCEPTED),
)
BASELINES = BaselineFile(
    baseline_files.SCHEMA,
    "sm90",
    "NVIDIA H200",
    "meddpm",
    {TEST: {"step": ENTRY}},
    tolerance={"cycles": "1%", "l2_hit_rate": "2pt"},
    calibration=Calibration(
        "2026-03-01", 20, 4, 2, 100, 0, {"cycle": Spread(1e-4, 5e-4, 0.0, None)}
    ),
)
PLAIN: Any = files.to_plain(BASELINES)
COMMITTED = sorted((ROOT / "baselines").glob("*/*/*.yaml"))
GOLDEN = ROOT / "tests" / "data" / "baseline.yaml"
"""BASELINES as saving writes them."""
HERE = ("tests", TEST, "step")
CYCLES = (*HERE, "metrics", "cycles")
ORIGIN = (*HERE, "anchor", "metrics", "cycles")


def written(file: Path, plain: object) -> Path:
    """Writes plain data as YAML, as an editor might."""
    file.write_text(yaml.safe_dump(plain, sort_keys=False, explicit_end=True), encoding="utf-8")
    return file


def text_of(baselines: BaselineFile, file: Path) -> str:
    """What saving writes."""
    baseline_files.save(baselines, file)
    return file.read_text(encoding="utf-8")


# Where they are kept


def test_the_device_is_the_key_of_a_file_and_what_is_not_there_is_none(tmp_path: Path) -> None:
    place = "sm90/nvidia-h200/meddpm.yaml"
    for device in (H200, OTHER_H200):
        assert baseline_files.path_for(tmp_path, device, "meddpm") == tmp_path / place
    other = baseline_files.path_for(tmp_path, A100, "meddpm")
    assert other == tmp_path / "sm80/nvidia-a100-sxm4-40gb/meddpm.yaml"
    assert baseline_files.load(other) is None
    empty = baseline_files.empty(A100, "meddpm")
    assert empty.tests == {}
    baseline_files.save(empty, other)
    assert baseline_files.load_for(tmp_path, A100, "meddpm") == empty


def test_a_file_of_another_device_in_this_ones_place_is_refused(tmp_path: Path) -> None:
    file = baseline_files.path_for(tmp_path, H200, "meddpm")
    for entry in ("arch", "device", "suite"):
        changes: dict[str, Any] = {entry: "another"}
        baseline_files.save(replace(baseline_files.empty(H200, "meddpm"), **changes), file)
        with pytest.raises(BadFile, match="another") as refused:
            baseline_files.load_for(tmp_path, H200, "meddpm")
        assert refused.value.entry == entry


# Round trip


@strategies.whole_files
@given(known=strategies.baselines)
@example(known=BASELINES)
def test_what_was_saved_comes_back_and_is_written_the_same(
    shared: Path, known: BaselineFile
) -> None:
    shared.unlink(missing_ok=True)
    text = text_of(known, shared)
    assert baseline_files.load(shared) == known
    # No text in it is taken for a comment.
    assert baseline_files.to_text(known, shared) == text


@pytest.mark.parametrize("file", COMMITTED, ids=lambda file: "/".join(file.parts[-3:]))
def test_committed_baselines_are_written_as_they_are_and_can_be_reviewed(file: Path) -> None:
    loaded = baseline_files.load(file)
    assert loaded is not None
    text = file.read_text(encoding="utf-8")
    assert baseline_files.to_text(loaded, file) == text
    of_tests = re.split(r"\n  (?=\S+::)", text)[1:]
    assert len(of_tests) == len(loaded.tests)
    assert max(one.count("\n") for one in of_tests) < 40
    assert data_files.unnamed(file, loaded) == []


def test_comments_stay_when_the_numbers_change(file: Path) -> None:
    text = text_of(BASELINES, file)
    header = "".join(text.splitlines(keepends=True)[:3])
    mine = f"# ours\n{text.removeprefix(header)}".replace(
        "\n  cycles: 1%\n", "\n  # since driver 580\n  cycles: 1%  # noisy\n"
    ).replace(f"\n  {TEST}:", f"\n  # the slow one\n  {TEST}:")
    entry = replace(ENTRY, log=(*ENTRY.log, replace(ACCEPTED, reason="again")))
    new = replace(BASELINES, tests={TEST: {"step": entry}})
    line = baseline_files.to_text(new, file).splitlines()[-2]
    assert "again" in line
    # Earlier versions wrote other headers.
    for before in (header, "# Baselines of pytest-gpuperf.\n# Written by us.\n", ""):
        file.write_text(before + mine, encoding="utf-8")
        assert baseline_files.load(file) == BASELINES
        assert text_of(new, file) == header + mine.replace("\n...\n", f"\n{line}\n...\n")
        assert baseline_files.load(file) == new


# Reading it in a pull request


def test_it_reads_well(file: Path) -> None:
    """Each metric has a line of its own; what is whole has no fraction."""
    assert text_of(BASELINES, file) == GOLDEN.read_text(encoding="utf-8")


def test_a_reason_is_one_line_of_people_s_text(file: Path) -> None:
    broken = [f"one{character}two" for character in "\n\r\x85\u2028\u2029\t"]
    for reason in ("Größe geändert", "words " * 60 + "end", *broken):
        entry = replace(ENTRY, log=(replace(ACCEPTED, reason=reason),))
        known = replace(BASELINES, tests={TEST: {"step": entry}})
        text = text_of(known, file)
        lines = [line for line in text.split("\n") if "reason: " in line]
        assert len(lines) == 1, repr(reason)
        assert reason in broken or f"reason: {reason}, " in lines[0]
        assert baseline_files.load(file) == known


# What people may write, and earlier versions wrote


def test_another_layout_is_read_the_same(file: Path) -> None:
    assert baseline_files.load(written(file, PLAIN)) == BASELINES
    text = text_of(BASELINES, file)
    assert "recorded: '2026-03-01'" in text
    file.write_text(text.replace("'2026-03-01'", "2026-03-01"))
    assert baseline_files.load(file) == BASELINES


def test_what_is_empty_is_not_written_and_gpus_and_days_need_not_be_known(file: Path) -> None:
    entry = replace(ENTRY, where=("- - x2",), zero=(), data="", origin=None, log=(), settings={})
    known = replace(BASELINES, tests={TEST: {"step": entry}}, calibration=None)
    text = text_of(known, file)
    for key in ("zero:", "data:", "anchor:", "accepted:", "canary:", "calibration:"):
        assert key not in text, key
    assert baseline_files.load(file) == known
    assert (entry.processes, entry.gpus, entry.days) == (2, (), ())


def test_where_processes_ran_is_told_by_gpu_and_day() -> None:
    gpus, days = ("a", "a", "b", "a", ""), ("2026-03-01",) * 3 + ("2026-03-02", "")
    text = ("a 2026-03-01 x2", "b 2026-03-01", "a 2026-03-02", "- -")
    assert places_text(gpus, days) == text
    known = replace(ENTRY, where=text)
    assert (known.gpus, known.days, known.processes) == (gpus, days, 5)
    assert ENTRY.step == {
        "cycles": ((437_821_200.0,), (437_900_000.0,)),
        "instructions": ((5e9,),) * 2,
        "step_time": ((2.5,), (0.1,)),
        "copies": ((0.0,),) * 2,
        "graph_breaks": ((0.0,),) * 2,
    }


def test_what_an_older_file_says_of_a_metric_that_is_measured_no_more_is_dropped(
    file: Path,
) -> None:
    older = changed(PLAIN, ("tolerance", "cpu_ipc"), "1%")
    older = changed(older, (*CYCLES[:-1], "cpu_cycles"), [1.0, 2.0])
    older = changed(older, (*HERE, "zero"), ["copies", "cpu_cycles", "graph_breaks"])
    older = changed(older, (*ORIGIN[:-1], "cpu_cycles"), 1.0)
    assert baseline_files.load(written(file, older)) == BASELINES


# What is refused


@settings(max_examples=25)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_that_was_cut_short_is_refused(shared: Path, share: float) -> None:
    text = baseline_files.to_text(BASELINES, shared.with_name("none.yaml"))
    shared.write_text(text[: int(share * text.index("\n...\n"))])
    refusal(baseline_files.load, shared, BadFile)


def test_what_is_no_baseline_file_is_refused(file: Path) -> None:
    for content, message in (
        (b"", "expected a mapping, found NoneType"),
        (b"{}", "cut short"),
        (b"arch: x\n...\n", "schema: schema version None, but this version of gpuperf reads 2"),
        (b"schema: 1\narch: \xff", "byte 16: not UTF-8 text"),
        (b"schema: 1\n\tarch: x", "line 2 column 1: invalid YAML"),
        (b"schema: 1\narch: \x01", "invalid YAML (unacceptable character"),
        # What a merge in git leaves behind.
        (b"<<<<<<< HEAD\nschema: 1\n=======\nschema: 1\n>>>>>>> x\n", "line 1: git left an"),
        (
            b"schema: 1\n<<<<<<< HEAD\n",
            "line 2: git left an unresolved conflict here. Both branches",
        ),
    ):
        file.write_bytes(content)
        assert message in refusal(baseline_files.load, file, BadFile), content


INFINITE, NAN = float("inf"), float("nan")
CLASSES = ("calibration", "classes")
WRONG: Wrong = [
    (("schema",), 3, None, "Install the version of pytest-gpuperf that wrote it"),
    (("extra",), 1, None, "Unexpected keyword"),
    ((*CYCLES, 1), NAN, CYCLES, "finite number"),
    ((*CYCLES, 0), INFINITE, CYCLES, "finite number"),
    (CYCLES, [], None, "no values"),
    (CYCLES, [1, 2, 3], None, "3 values for 2 processes"),
    ((*HERE, "where", 0), "aaaa00000001 2026-03-01 x3", CYCLES, "2 values for 4"),
    ((*HERE, "where", 0), "yesterday", (*HERE, "where"), '"yesterday" must be GPU, day and count'),
    ((*HERE, "where"), [], None, "no process"),
    ((*CYCLES[:-1], "cycels"), 1, None, "unknown metric"),
    ((*HERE, "zero", 0), "cycels", (*HERE, "zero", "cycels"), "unknown metric"),
    ((*HERE, "zero", 0), "cycles", CYCLES, "0 cycles, which is impossible for an executed step"),
    (ORIGIN, [1, 2], None, "2 values for 3 processes"),
    ((*ORIGIN[:-1], "cycels"), 1, None, "unknown metric"),
    ((*CYCLES, 1), -1e9, CYCLES, "-1e+09 cycles, which cannot be negative"),
    ((*CYCLES, 1), 0, CYCLES, "0 cycles, which is impossible for an executed step"),
    ((*ORIGIN, 2), -1, ORIGIN, "-1 cycles, which cannot be negative"),
    (("tolerance", "cycels"), "1%", None, "Use one of cycles, inst"),
    (("tolerance", "cycles"), "1", None, 'is not valid. Write a value above zero: "1%"'),
    (("tolerance", "cycles"), "0%", None, "above zero"),
    (("tolerance", "cycles"), "1pt", None, '"1%", as the metric is in cycles'),
    (("tolerance", "l2_hit_rate"), "2%", None, '"2pt" (percentage points)'),
    ((*CLASSES, "cycle", "rounds"), INFINITE, None, "finite number"),
]


def test_a_wrong_entry_is_named(file: Path) -> None:
    is_named(baseline_files.load, partial(written, file), PLAIN, WRONG)


# Entries


MEASURED = [
    measurement(
        {"cycles": [1.0, 2.0], "ipc": [2.0]},
        process="p1",
        phases={"forward": {"cycles": [0.5]}},
        # How long the measuring took is not kept.
        settings={"rounds": 5, "collector": "cupti", "cost_s": 4.5, "warmup_s": 1.0},
        device=OTHER_H200,
    ),
    measurement({"cycles": [3.0]}, process="p2", phases={"forward": {"cycles": [0.75]}}),
    # What a process measured twice are more rounds of it.
    measurement({"cycles": [4.0]}, process="p2"),
]


def test_an_entry_has_what_each_process_measured_and_where() -> None:
    entry = baseline_files.entry_of(MEASURED, "2026-03-01")
    # What only some processes have is no baseline, and what is not gated only shows.
    assert entry.metrics == {"cycles": (1.5, 3.5)}
    assert baseline_files.data_of(MEASURED, None).samples == {
        "step": {"cycles": ((1.0, 2.0), (3.0, 4.0))},
        "forward": {"cycles": ((0.5,), (0.75,))},
    }
    assert (entry.recorded, entry.configuration) == ("2026-03-01", "tf32")
    assert (entry.workload, entry.revision) == ({"size": 128}, "0123456789ab")
    assert entry.settings == {"rounds": 5, "collector": "cupti"}
    assert entry.gpus == (OTHER_H200.identity, H200.identity)


def test_a_count_of_a_newer_release_joins_what_was_measured_before_it(file: Path) -> None:
    older = [measurement({"cycles": [1.0]}, process=p) for p in ("p1", "p2")]
    newer = measurement({"cycles": [1.0], "launches": [7.0], "kernel_time": [2.0]}, process="p3")
    entry = baseline_files.entry_of([*older, newer], "2026-03-01")
    # It is the same on every GPU; times are not.
    assert entry.metrics == {"cycles": 1.0, "launches": 7.0}
    assert len(entry.gpus) == 3
    empty = baseline_files.empty(H200, "perf")
    known = baseline_files.with_entry(empty, TEST, "step", entry)
    text_of(known, file)
    assert baseline_files.load(file) == known


def canary_read(process: str, before: Canary | None, after: Canary | None) -> Measurement:
    """A measurement with these readings."""
    conditions = Conditions(Reading(canary=before), Reading(canary=after))
    return measurement(process=process, conditions=conditions)


READ = (
    canary_read(
        "p1",
        Canary("sm90-1", {"l2_cycles": 9.0, "host_ms": 2.0}),
        Canary("sm90-1", {"l2_cycles": 4.0, "dram_ns": 7}),
    ),
    canary_read("p2", None, None),
    canary_read("p3", Canary("sm90-2", {"host_ms": 3.0}), None),
)


def test_an_entry_has_what_the_canary_read(file: Path) -> None:
    entry = baseline_files.entry_of(READ, "2026-03-01")
    # Of before and after; what was read at one of them alone says nothing.
    assert entry.canary == CanarySeries(
        code=("sm90-1", "", "sm90-2"), readings={"l2_cycles": (6.0, None, None)}
    )
    assert (entry.canary.of(0, "l2_cycles"), entry.canary.of(1, "l2_cycles")) == (6.0, None)
    assert entry.canary.of(0, "host_ms") is None
    empty = baseline_files.empty(H200, "meddpm")
    known = baseline_files.with_entry(empty, TEST, "step", entry)
    assert "canary: {code: [sm90-1, '', sm90-2], readings: {l2_" in text_of(known, file)
    assert baseline_files.load(file) == known
    wrong = changed(files.to_plain(known), (*HERE, "canary", "readings", "l2_cycles"), [1.0, 2.0])
    with pytest.raises(BadFile, match="2 values for 3 processes"):
        baseline_files.load(written(file, wrong))


def test_times_of_some_cpu_are_in_no_baseline() -> None:
    cpu = measurement({"flops": [8.0], "wall_time": [1.0]}, device=portable_device())
    assert baseline_files.entry_of([cpu], "").metrics == {"flops": 8.0}
    assert baseline_files.data_of([cpu], None).samples == {"step": {"flops": ((8.0,),)}}


def test_an_entry_is_added_beside_the_others_or_in_place_of_its_own() -> None:
    other = Entry("2026-03-02", "", ("- -",), {})
    more = baseline_files.with_entry(BASELINES, "a.py::test", "step", other)
    assert list(more.tests) == ["a.py::test", TEST]
    assert more.tests[TEST] == BASELINES.tests[TEST]
    assert list(BASELINES.tests) == [TEST]
    both = baseline_files.with_entry(BASELINES, TEST, "sampling", other)
    assert both.tests[TEST] == {"step": ENTRY, "sampling": other}
    again = baseline_files.with_entry(both, TEST, "step", other)
    assert again.tests[TEST] == {"step": other, "sampling": other}


@settings(max_examples=25)
@given(entry=strategies.entries)
@example(entry=replace(ENTRY, origin=None))
def test_an_origin_is_that_of_the_entry_or_its_gated_metrics(entry: Entry) -> None:
    origin = baseline_files.origin_of(entry)
    known = catalogue().metrics
    if entry.origin is not None:
        assert origin == entry.origin
    else:
        step = entry.step
        assert origin.step == {name: step[name] for name in step if known[name].gated}
        assert (origin.recorded, origin.revision) == (entry.recorded, entry.revision)
        assert (origin.gpus, origin.days) == (entry.gpus, entry.days)
    assert baseline_files.origin_of(replace(entry, origin=origin)) == origin
