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
    BaselineFile,
    Calibration,
    CanarySeries,
    Change,
    Entry,
    KernelList,
    Origin,
    Spread,
)
from pytest_gpuperf.model.measurement import (
    STEP,
    Canary,
    Conditions,
    Machine,
    Measurement,
    Reading,
)
from pytest_gpuperf.storage import baseline_files, files
from tests import ROOT, strategies
from tests.corruption import Wrong, changed, is_named, refusal
from tests.examples import A100, H200, OTHER_H200, TEST, measurement

ENTRY = Entry(
    recorded="2026-03-01",
    configuration="tf32",
    workload={"size": 128, "batch": 1},
    software={"torch": "2.12.0", "driver": "580.159"},
    settings={"rounds": 2},
    revision="0123456789ab",
    samples={
        "step": {
            "cycles": ((437_821_234.0, 437_821_235.5), (437_900_000.0, 437_900_001.0)),
            "ipc": ((2.5, 1 / 3), (2.25, 0.1)),
        }
    },
    gpus=("aaaa00000001", "bbbb00000002"),
    origin=Origin(
        recorded="2026-02-01",
        revision="",
        samples={"cycles": ((5.0,), (6.0,), (7.0,))},
        gpus=("u", "u", "v"),
        days=("2026-02-01", "2026-02-01", "2026-02-02"),
    ),
    kernels=KernelList(
        "1234567890123456", (("gemm", "sm90_xmma_gemm tf32 nt", 24), ("layout", "yes: #1", 1))
    ),
)
ACCEPTED = Acceptance(
    date="2026-03-01",
    reason="first baseline: measured on a quiet machine, as #2 asks",
    test=TEST,
    name="step",
    revision="0123456789ab",
    processes=2,
    changes={"cycles": Change(None, 437_860_617.625), "ipc": Change(None, 1.25)},
)
BASELINES = BaselineFile(
    baseline_files.SCHEMA,
    "sm90",
    "NVIDIA H200",
    "meddpm",
    {TEST: {"step": ENTRY}},
    (ACCEPTED,),
    tolerance={"cycles": "1%", "l2_hit_rate": "2pt"},
    calibration=Calibration(
        "2026-03-01", 20, 4, 2, 100, 0, {"cycle": Spread(1e-4, 5e-4, 0.0, None)}
    ),
)
PLAIN: Any = files.to_plain(BASELINES)
GOLDEN = ROOT / "tests" / "data" / "baseline.yaml"
"""BASELINES as saving writes them."""
HERE = ("tests", TEST, "step")
CYCLES = (*HERE, "samples", "step", "cycles")
ORIGIN = (*HERE, "anchor", "samples", "cycles")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where baselines may be kept."""
    return tmp_path / "meddpm.yaml"


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for property tests, which write it many times."""
    return tmp_path_factory.mktemp("baselines") / "meddpm.yaml"


def written(file: Path, plain: object) -> Path:
    """Writes plain data as YAML, as an editor might."""
    file.write_text(yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")
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
    assert (empty.tests, empty.accepted) == ({}, ())
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


def test_committed_baselines_are_written_as_they_are() -> None:
    file = ROOT / "baselines" / "sm90" / "nvidia-h200" / "meddpm.yaml"
    loaded = baseline_files.load(file)
    assert loaded is not None
    assert baseline_files.to_text(loaded, file) == file.read_text(encoding="utf-8")


def test_comments_stay_when_the_numbers_change(file: Path) -> None:
    text = text_of(BASELINES, file)
    header = "".join(text.splitlines(keepends=True)[:3])
    mine = f"# ours\n{text.removeprefix(header)}".replace(
        "\n  cycles: 1%\n", "\n  # since driver 580\n  cycles: 1%  # noisy\n"
    ).replace(f"\n  {TEST}:", f"\n  # the slow one\n  {TEST}:")
    new = replace(BASELINES, accepted=(ACCEPTED, ACCEPTED))
    rest = baseline_files.to_text(new, file).removeprefix(text)
    # Earlier versions wrote other headers.
    for before in (header, "# Baselines of pytest-gpuperf.\n# Written by us.\n", ""):
        file.write_text(before + mine, encoding="utf-8")
        assert baseline_files.load(file) == BASELINES
        assert text_of(new, file) == header + mine + rest
        assert baseline_files.load(file) == new


# Reading it in a pull request


def test_it_reads_well(file: Path) -> None:
    """Each process has a line of its own and each kernel; what is whole has no fraction."""
    assert text_of(BASELINES, file) == GOLDEN.read_text(encoding="utf-8")


def test_a_reason_is_one_line_of_people_s_text(file: Path) -> None:
    broken = [f"one{character}two" for character in "\n\r\x85\u2028\u2029\t"]
    for reason in ("Größe geändert", "words " * 60 + "end", *broken):
        known = replace(BASELINES, accepted=(replace(ACCEPTED, reason=reason),))
        text = text_of(known, file)
        lines = [line for line in text.split("\n") if "reason: " in line]
        assert len(lines) == 1, repr(reason)
        assert reason in broken or lines[0].endswith(f"reason: {reason}")
        assert lines[0].rstrip('"').endswith(reason[-3:])
        assert baseline_files.load(file) == known


# What people may write, and earlier versions wrote


def test_another_layout_is_read_the_same(file: Path) -> None:
    assert baseline_files.load(written(file, PLAIN)) == BASELINES
    text = text_of(BASELINES, file)
    assert "recorded: '2026-03-01'" in text
    file.write_text(text.replace("'2026-03-01'", "2026-03-01"))
    assert baseline_files.load(file) == BASELINES


def test_kernels_gpus_and_days_need_not_be_known(file: Path) -> None:
    known = replace(BASELINES, tests={TEST: {"step": replace(ENTRY, kernels=None)}})
    text = re.sub(r"\n +kernels: null", "", text_of(known, file), count=1)
    assert "kernels" not in text
    file.write_text(text, encoding="utf-8")
    assert baseline_files.load(file) == known
    for name in ("units", "days"):
        plain = changed(changed(PLAIN, (*HERE, name), []), (*HERE, "anchor", name), [])
        assert files.to_plain(baseline_files.load(written(file, plain))) == plain


def test_what_an_older_file_says_of_a_metric_that_is_measured_no_more_is_dropped(
    file: Path,
) -> None:
    older = changed(PLAIN, ("tolerance", "cpu_ipc"), "1%")
    older = changed(older, (*CYCLES[:-1], "cpu_cycles"), [[1.0], [2.0]])
    older = changed(older, (*ORIGIN[:-1], "cpu_cycles"), [[1.0], [2.0], [3.0]])
    assert baseline_files.load(written(file, older)) == BASELINES


# What is refused


@settings(max_examples=25)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_that_was_cut_short_is_refused(shared: Path, share: float) -> None:
    text = baseline_files.to_text(BASELINES, shared.with_name("none.yaml"))
    shared.write_text(text[: int(share * text.index("accepted:"))])
    refusal(baseline_files.load, shared, BadFile)


def test_what_is_no_baseline_file_is_refused(file: Path) -> None:
    for content, message in (
        (b"", "expected a mapping, found NoneType"),
        (b"# nothing\n", "expected a mapping, found NoneType"),
        (b"- a\n", "expected a mapping, found list"),
        (b"{}", "schema: schema version None is not 1"),
        (b"schema: 1\narch: \xff", "byte 16: not UTF-8 text"),
        (b"schema: 1\n\tarch: x", "line 2 column 1: not YAML"),
        (b"schema: 1\narch: \x01", "not YAML: unacceptable character"),
        # What a merge in git leaves behind.
        (b"<<<<<<< HEAD\nschema: 1\n=======\nschema: 1\n>>>>>>> x\n", "line 1: git has left a"),
        (b"schema: 1\n<<<<<<< HEAD\n", "line 2: git has left a conflict here. Take one"),
    ):
        file.write_bytes(content)
        assert message in refusal(baseline_files.load, file, BadFile), content


INFINITE, NAN = float("inf"), float("nan")
CLASSES = ("calibration", "classes")
WRONG: Wrong = [
    (("schema",), 2, None, "Install the version of pytest-gpuperf that wrote it"),
    (("extra",), 1, None, "Unexpected keyword"),
    ((*CYCLES, 1, 0), NAN, None, "finite number"),
    ((*CYCLES, 0, 1), INFINITE, None, "finite number"),
    ((*CYCLES, 1), [], CYCLES, "a process without values"),
    (CYCLES, [], None, "a process without values"),
    (CYCLES, [[1], [2], [3]], (*CYCLES[:-1], "ipc"), "2 processes, and others have 3"),
    ((*HERE, "days"), ["2026-03-01"], None, "1 values, and there are 2 processes"),
    ((*HERE, "machines"), [""], None, "1 values, and there are 2 processes"),
    ((*CYCLES[:-1], "cycels"), [[1]], None, "no such metric"),
    (ORIGIN, [[1], [2]], (*HERE, "anchor", "units"), "3 values, and there are 2 processes"),
    ((*ORIGIN, 1), [], ORIGIN, "a process without values"),
    ((*ORIGIN[:-1], "cycels"), [[1], [1], [1]], None, "no such metric"),
    ((*CYCLES, 1, 0), -1e9, CYCLES, "-1e+09 cycles, which cannot be negative"),
    ((*CYCLES, 1, 0), 0, CYCLES, "0 cycles, and a step that was executed has more"),
    ((*ORIGIN, 2, 0), -1, ORIGIN, "-1 cycles, which cannot be negative"),
    (("metric_units",), {"cycles": "kcycles"}, ("metric_units", "cycles"), 'in "kcycles", and'),
    (("accepted", 0, "changes", "cycles", "new"), INFINITE, None, "finite number"),
    (("tolerance", "cycels"), "1%", None, "write one of cycles, inst"),
    (("tolerance", "cycles"), "1", None, 'a share such as "1%"'),
    (("tolerance", "cycles"), "0%", None, "above zero"),
    (("tolerance", "cycles"), "1pt", None, 'in cycles: "1%"'),
    (("tolerance", "l2_hit_rate"), "2%", None, 'in points: "2pt"'),
    ((*CLASSES, "cycle", "rounds"), INFINITE, None, "finite number"),
]


def test_a_wrong_entry_is_named(file: Path) -> None:
    is_named(baseline_files.load, partial(written, file), PLAIN, WRONG)


# Entries


def test_an_entry_has_what_each_process_measured_and_where() -> None:
    entry = baseline_files.entry_of(
        [
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
        ],
        "2026-03-01",
    )
    assert entry.samples == {
        # What only some processes have is no baseline.
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
    assert entry.samples["step"] == {"cycles": ((1.0,),) * 3, "launches": ((7.0,),)}
    assert len(entry.gpus) == 3
    empty = baseline_files.empty(H200, "perf")
    known = baseline_files.with_entry(empty, TEST, "step", entry, ACCEPTED)
    text_of(known, file)
    assert baseline_files.load(file) == known


def canary_read(process: str, before: Canary | None, after: Canary | None) -> Measurement:
    """A measurement with these readings, on a machine that is known by its VBIOS."""
    conditions = Conditions(Reading(canary=before), Reading(canary=after))
    made = measurement(process=process, conditions=conditions)
    machine = Machine(vbios="96.00", gpcs=(18, 16)) if before else None
    return replace(made, fingerprint=replace(made.fingerprint, machine=machine))


READ = (
    canary_read(
        "p1", Canary("sm90-1", {"l2_cycles": 9.5, "host_ms": 2.0}), Canary("sm90-1", {"dram_ns": 7})
    ),
    canary_read("p2", None, None),
    canary_read("p3", Canary("sm90-2", {"host_ms": 3.0}), None),
)


def test_an_entry_has_the_machine_and_the_canary_of_each_process(file: Path) -> None:
    entry = baseline_files.entry_of(READ, "2026-03-01")
    ((key, machine),) = baseline_files.machines_of(READ).items()
    assert (machine.vbios, machine.gpcs) == ("96.00", (18, 16))
    assert entry.machines == (key, "", key)
    assert entry.canary == CanarySeries(
        codes=("sm90-1", "", "sm90-2"),
        before={"l2_cycles": (9.5, None, None), "host_ms": (2.0, None, 3.0)},
        after={"dram_ns": (7, None, None)},
    )
    log = Acceptance("2026-03-02", "again", TEST, "step", "", 3, {})
    empty = baseline_files.empty(H200, "meddpm")
    known = baseline_files.with_entry(empty, TEST, "step", entry, log, {key: machine})
    text = text_of(known, file)
    assert f"machines:\n  {key}:\n    gpcs: [18, 16]\n    sm_map: ''\n    vbios: '96.00'\n" in text
    for line in (f"machines: [{key}, '', {key}]", "l2_cycles: [9.5, null, null]"):
        assert line in text
    assert baseline_files.load(file) == known
    # Machines that no entry names any more are left out.
    plain = baseline_files.entry_of([measurement()], "2026-03-02")
    assert (plain.machines, plain.canary) == ((), None)
    later = baseline_files.with_entry(known, TEST, "step", plain, log)
    assert later.machines == {}
    assert "canary" not in text_of(later, file)


def test_machines_and_canaries_of_other_processes_are_refused(file: Path) -> None:
    entry = replace(baseline_files.entry_of(READ, "2026-03-01"), machines=())
    plain = files.to_plain(replace(BASELINES, tests={TEST: {"step": entry}}))
    wrong: Wrong = [
        ((*HERE, "machines"), ["", ""], None, "2 values, and there are 3 processes"),
        ((*HERE, "canary", "codes"), ["x"], None, "1 values, and there are 3 processes"),
        ((*HERE, "canary", "after", "x"), [], None, "0 values, and there are 3 processes"),
    ]
    is_named(baseline_files.load, partial(written, file), plain, wrong)


def test_a_component_that_has_but_times_of_some_cpu_is_in_no_baseline() -> None:
    parts = {"forward": {"flops": [8.0], "wall_time": [1.0]}, "conv2d": {"wall_time": [2.0]}}
    cpu = measurement({"flops": [8.0]}, phases=parts, device=portable_device())
    assert baseline_files.entry_of([cpu], "").samples == {
        "step": {"flops": ((8.0,),)},
        "forward": {"flops": ((8.0,),)},
    }
    gpu = measurement({"cycles": [8.0]}, phases={"conv2d": {"kernel_time": [2.0]}})
    assert baseline_files.entry_of([gpu], "").samples["conv2d"] == {"kernel_time": ((2.0,),)}


def test_an_entry_is_added_beside_the_others_or_in_place_of_its_own_and_logged() -> None:
    other = Entry("2026-03-02", "", {}, {}, {}, "", {})
    log = Acceptance("2026-03-02", "again", "a.py::test", "step", "", 1, {})
    more = baseline_files.with_entry(BASELINES, "a.py::test", "step", other, log)
    assert list(more.tests) == ["a.py::test", TEST]
    assert more.tests[TEST] == BASELINES.tests[TEST]
    assert more.accepted == (ACCEPTED, log)
    assert list(BASELINES.tests) == [TEST]
    both = baseline_files.with_entry(BASELINES, TEST, "sampling", other, log)
    assert both.tests[TEST] == {"step": ENTRY, "sampling": other}
    again = baseline_files.with_entry(both, TEST, "step", other, log)
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
        step = entry.samples.get(STEP, {})
        assert origin.samples == {name: step[name] for name in step if known[name].gated}
        assert (origin.recorded, origin.revision) == (entry.recorded, entry.revision)
        assert (origin.gpus, origin.days) == (entry.gpus, entry.days)
    assert baseline_files.origin_of(replace(entry, origin=origin)) == origin
