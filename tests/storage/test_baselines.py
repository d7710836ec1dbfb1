"""Baseline files: what is accepted comes back, reads well, and is refused when it is damaged."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.measure.device.nvml import portable_device
from pytest_gpuperf.model.entry import Acceptance, BaselineFile, Change, Entry, KernelList
from pytest_gpuperf.model.measurement import Scalar
from pytest_gpuperf.storage import baseline_files, files
from tests import strategies
from tests.corruption import changed, refusal, unreadable, without
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
    units=("aaaa00000001", "bbbb00000002"),
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
    baseline_files.SCHEMA, "sm90", "NVIDIA H200", "meddpm", {TEST: {"step": ENTRY}}, (ACCEPTED,)
)
PLAIN: Any = files.to_plain(BASELINES)
SAMPLES = ("tests", TEST, "step", "samples", "step")


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


def text_of(baselines_file: BaselineFile, file: Path) -> str:
    """What saving writes."""
    baseline_files.save(baselines_file, file)
    return file.read_text(encoding="utf-8")


# Where they are kept


def test_the_device_is_the_key() -> None:
    file = baseline_files.path_for(Path("baselines"), H200, "meddpm")
    assert file == Path("baselines/sm90/nvidia-h200/meddpm.yaml")
    assert baseline_files.path_for(Path("baselines"), OTHER_H200, "meddpm") == file
    assert baseline_files.path_for(Path("baselines"), A100, "meddpm") == Path(
        "baselines/sm80/nvidia-a100-sxm4-40gb/meddpm.yaml"
    )


def test_a_file_that_is_not_there_is_none(file: Path) -> None:
    assert baseline_files.load(file) is None
    assert baseline_files.load(file.parent / "no" / "folder" / "x.yaml") is None


def test_an_empty_file_names_its_device(file: Path) -> None:
    empty = baseline_files.empty(H200, "meddpm")
    assert (empty.arch, empty.device, empty.suite) == ("sm90", "NVIDIA H200", "meddpm")
    assert (empty.tests, empty.accepted) == ({}, ())
    baseline_files.save(empty, file)
    assert baseline_files.load(file) == empty


# Round trip


@given(known=strategies.baselines)
@example(known=BASELINES)
def test_what_was_saved_comes_back_the_same(shared: Path, known: BaselineFile) -> None:
    baseline_files.save(known, shared)
    assert baseline_files.load(shared) == known


@given(values=st.lists(strategies.numbers, min_size=1, max_size=20))
def test_numbers_come_back_with_every_bit(shared: Path, values: list[float]) -> None:
    entry = Entry("", "", {}, {}, {}, "", {"step": {"cycles": (tuple(values),)}})
    known = BaselineFile(baseline_files.SCHEMA, "sm90", "x", "y", {"t": {"step": entry}}, ())
    baseline_files.save(known, shared)
    loaded = baseline_files.load(shared)
    assert loaded is not None
    (found,) = loaded.tests["t"]["step"].samples["step"]["cycles"]
    assert list(found) == values
    assert all(type(value) is float for value in found)


def test_saving_what_was_loaded_changes_nothing(file: Path) -> None:
    before = text_of(BASELINES, file)
    loaded = baseline_files.load(file)
    assert loaded is not None
    assert text_of(loaded, file) == before


# Reading it in a pull request


def test_a_file_says_what_it_is_and_who_writes_it(file: Path) -> None:
    first, second, third, fourth, *_ = text_of(BASELINES, file).splitlines()
    assert first.startswith("# Baselines of pytest-gpuperf")
    assert "`gpuperf update-baseline` and `gpuperf calibrate`" in second
    assert third == "# Only `tolerance` is yours."
    assert fourth == "schema: 1"


def test_each_process_has_a_line_of_its_own(file: Path) -> None:
    lines = [line.strip() for line in text_of(BASELINES, file).splitlines()]
    at = lines.index("cycles:")
    assert lines[at + 1 : at + 3] == ["- [437821234, 437821235.5]", "- [437900000, 437900001]"]


@pytest.mark.parametrize("rounds", [1, 5, 200])
def test_a_process_stays_on_its_line_however_many_rounds_it_has(file: Path, rounds: int) -> None:
    values = tuple(437_821_234.123456 + number for number in range(rounds))
    samples = {"step": {"cycles": (values, values)}}
    entry = Entry("2026-03-01", "", {}, {}, {}, "", samples)
    known = BaselineFile(1, "sm90", "x", "y", {"t": {"step": entry}}, ())
    processes = [line for line in text_of(known, file).splitlines() if "437821234.123456" in line]
    assert len(processes) == 2
    assert all(line.count(",") == rounds - 1 for line in processes)


def test_whole_numbers_have_no_fraction_and_others_all_of_theirs(file: Path) -> None:
    text = text_of(BASELINES, file)
    assert ".0" not in text.replace("2.12.0", "")
    assert "0.3333333333333333" in text


def test_the_text_is_that_of_people(file: Path) -> None:
    known = changed(PLAIN, ("accepted", 0, "reason"), "Größe geändert")
    loaded = files.validate(known, BaselineFile, file, 1, "")
    assert "reason: Größe geändert\n" in text_of(loaded, file)


def test_a_reason_is_one_line_however_long(file: Path) -> None:
    reason = "words " * 60 + "end"
    loaded = files.validate(
        changed(PLAIN, ("accepted", 0, "reason"), reason), BaselineFile, file, 1, ""
    )
    assert f"reason: {reason}\n" in text_of(loaded, file)


@pytest.mark.parametrize("character", ["\n", "\r", "\x85", "\u2028", "\u2029", "\t"])
def test_line_breaks_are_escaped_and_not_folded(file: Path, character: str) -> None:
    reason = f"one{character}two"
    known = files.validate(
        changed(PLAIN, ("accepted", 0, "reason"), reason), BaselineFile, file, 1, ""
    )
    assert (
        sum("reason: " in line and "two" in line for line in text_of(known, file).split("\n")) == 1
    )
    assert baseline_files.load(file) == known


def test_each_kernel_has_a_line_of_its_own(file: Path) -> None:
    kernels = KernelList(
        "1234567890123456", (("gemm", "sm90_xmma_gemm tf32 nt", 24), ("layout", "yes: #1", 1))
    )
    known = replace(BASELINES, tests={TEST: {"step": replace(ENTRY, kernels=kernels)}})
    text = text_of(known, file)
    assert text.count("[gemm, sm90_xmma_gemm tf32 nt, 24]\n") == 1
    assert "digest: '1234567890123456'\n" in text
    assert baseline_files.load(file) == known


def test_what_has_no_kernels_says_so_and_need_not(file: Path) -> None:
    text = text_of(BASELINES, file)
    file.write_text(re.sub(r"\n +kernels: null", "", text, count=1), encoding="utf-8")
    assert "kernels" not in file.read_text(encoding="utf-8")
    assert baseline_files.load(file) == BASELINES


def test_keys_keep_their_order(file: Path) -> None:
    keys = re.findall(r"^(\w+):", text_of(BASELINES, file), re.MULTILINE)
    assert keys == [
        *("schema", "arch", "device", "suite", "tolerance", "calibration", "tests", "accepted"),
    ]


def test_a_new_process_changes_one_line_per_metric(file: Path) -> None:
    one = changed(PLAIN, ("tests", TEST, "step", "units"), [])
    two = changed(
        one,
        (*SAMPLES, "cycles"),
        [*one["tests"][TEST]["step"]["samples"]["step"]["cycles"], [5, 6]],
    )
    before, after = (
        text_of(files.validate(plain, BaselineFile, file, 1, ""), file).splitlines()
        for plain in (one, two)
    )
    assert [line.strip() for line in after if line not in before] == ["- [5, 6]"]
    assert len(after) == len(before) + 1


# What people may write


def test_days_need_no_quotes(file: Path) -> None:
    text = text_of(BASELINES, file)
    assert "recorded: '2026-03-01'" in text
    file.write_text(text.replace("'2026-03-01'", "2026-03-01"))
    assert baseline_files.load(file) == BASELINES


def test_another_layout_is_read_the_same(file: Path) -> None:
    written(file, PLAIN)
    assert baseline_files.load(file) == BASELINES


# What is refused


def test_a_folder_is_no_baseline(tmp_path: Path) -> None:
    with pytest.raises(UsageFailure, match=re.escape(f"{tmp_path}: cannot be read (Is a dir")):
        baseline_files.load(tmp_path)


def test_a_file_in_the_folder_s_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "sm90").touch()
    with pytest.raises(UsageFailure, match=r"meddpm\.yaml: cannot be read"):
        baseline_files.load(tmp_path / "sm90" / "meddpm.yaml")


def test_a_file_that_may_not_be_read_is_named(file: Path) -> None:
    baseline_files.save(BASELINES, file)
    with (
        unreadable(file),
        pytest.raises(UsageFailure, match=r"yaml: cannot be read \(Permission denied\)"),
    ):
        baseline_files.load(file)


@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_that_was_cut_short_is_refused(shared: Path, share: float) -> None:
    text = text_of(BASELINES, shared)
    shared.write_text(text[: int(share * text.index("accepted:"))])
    refusal(baseline_files.load, shared, BadFile)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a mapping, found NoneType"),
        (b"# nothing\n", "expected a mapping, found NoneType"),
        (b"- a\n", "expected a mapping, found list"),
        (b"{}", "schema: schema version None is not 1"),
        (b"schema: 1\narch: \xff", "byte 16: not UTF-8 text"),
        (b"schema: [1", "line 2 column 1: not YAML"),
        (b"schema: 1\n\tarch: x", "line 2 column 1: not YAML"),
        (b"schema: 1\n--- \nschema: 1\n", "not YAML"),
        (b"schema: 1\nschema: 1\n", 'line 2 column 1: not YAML: the key "schema" is there twice'),
        (b"schema: 1\n1: x\n", "line 2 column 1: not YAML: a key that is not text"),
        (b"schema: 1\n2026-03-01: x\n", "line 2 column 1: not YAML: a key that is not text"),
        (b"schema: 1\n<<: {arch: x}\n", "line 2 column 1: not YAML: a key that is not text"),
        (b"schema: 1\n? [a]\n: x\n", "line 2 column 3: not YAML: a key that is not text"),
        (b"schema: 1\narch: \x01", "not YAML: unacceptable character"),
        (b"schema: 1\narch: 2026-13-45", "not YAML: month must be in 1..12"),
        (b"schema: 1\narch: !!python/name:os.system", "line 2 column 7: not YAML: could not"),
        (b"schema: 1\ntests: &all {x: *all}", "contains itself"),
        (b"schema: 1\ntests: {x: *all}", "line 2 column 12: not YAML: found undefined alias"),
        # What a merge in git leaves behind.
        (b"<<<<<<< HEAD\nschema: 1\n=======\nschema: 1\n>>>>>>> x\n", "not YAML"),
    ],
)
def test_what_is_no_baseline_file_is_refused(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    assert message in refusal(baseline_files.load, file, BadFile)


def test_a_test_that_is_there_twice_is_refused(file: Path) -> None:
    text = text_of(BASELINES, file)
    entries = text[text.index(f"  {TEST}:") : text.index("accepted:")]
    file.write_text(text.replace(entries, entries * 2))
    assert f'the key "{TEST}" is there twice' in refusal(baseline_files.load, file, BadFile)


@pytest.mark.parametrize(
    ("path", "value", "entry", "problem"),
    [
        (("schema",), 2, "schema", "Install the version of pytest-gpuperf that wrote it"),
        (("schema",), "1", "schema", "schema version '1' is not 1"),
        (("extra",), 1, "extra", "Unexpected keyword"),
        (("arch",), 90, "arch", "valid string"),
        (("tests",), [], "tests", "object"),
        (("tests", TEST), None, f"tests/{TEST}", "object"),
        (("tests", TEST, "step", "revision"), 1234, f"tests/{TEST}/step/revision", "valid string"),
        (
            ("tests", TEST, "step", "software", "torch"),
            2.12,
            f"tests/{TEST}/step/software/torch",
            "valid string",
        ),
        (
            ("tests", TEST, "step", "workload", "size"),
            None,
            f"tests/{TEST}/step/workload/size",
            "valid string or a valid integer",
        ),
        ((*SAMPLES, "cycles", 1, 0), "437", "/".join((*SAMPLES, "cycles/1/0")), "valid number"),
        ((*SAMPLES, "cycles", 1, 0), None, "/".join((*SAMPLES, "cycles/1/0")), "valid number"),
        (
            (*SAMPLES, "cycles", 1, 0),
            float("nan"),
            "/".join((*SAMPLES, "cycles/1/0")),
            "finite number",
        ),
        (
            (*SAMPLES, "cycles", 0, 1),
            float("inf"),
            "/".join((*SAMPLES, "cycles/0/1")),
            "finite number",
        ),
        ((*SAMPLES, "cycles", 1), 437.0, "/".join((*SAMPLES, "cycles/1")), "array"),
        ((*SAMPLES, "cycles", 1), [], "/".join((*SAMPLES, "cycles")), "a process without values"),
        ((*SAMPLES, "cycles"), [], "/".join((*SAMPLES, "cycles")), "a process without values"),
        (
            (*SAMPLES, "cycles"),
            [[1], [2], [3]],
            "/".join((*SAMPLES, "cycles")),
            "3 processes, and units has 2",
        ),
        ((*SAMPLES, "cycels"), [[1]], "/".join((*SAMPLES, "cycels")), "no such metric"),
        (("accepted", 0, "processes"), 2.5, "accepted/0/processes", "valid integer"),
        (
            ("accepted", 0, "changes", "cycles", "new"),
            float("inf"),
            "accepted/0/changes/cycles/new",
            "finite number",
        ),
    ],
)
def test_a_wrong_entry_is_named(
    file: Path, path: tuple[str | int, ...], value: object, entry: str, problem: str
) -> None:
    written(file, changed(PLAIN, path, value))
    message = refusal(baseline_files.load, file, BadFile)
    assert message.startswith(f"{file}: {entry}: ")
    assert problem in message


@pytest.mark.parametrize(
    "path",
    [("device",), ("accepted",), ("tests", TEST, "step", "samples"), ("accepted", 0, "date")],
)
def test_a_missing_entry_is_named(file: Path, path: tuple[str | int, ...]) -> None:
    written(file, without(PLAIN, path))
    entry = "/".join(map(str, path))
    assert refusal(baseline_files.load, file, BadFile).startswith(
        f"{file}: {entry}: Field required"
    )


# Entries


def test_an_entry_has_the_samples_of_each_process() -> None:
    entry = baseline_files.entry_of(
        [
            measurement(
                {"cycles": [1.0, 2.0]}, process="p1", phases={"forward": {"cycles": [0.5]}}
            ),
            measurement({"cycles": [3.0]}, process="p2", phases={"forward": {"cycles": [0.75]}}),
        ],
        "2026-03-01",
    )
    assert entry.samples == {
        "step": {"cycles": ((1.0, 2.0), (3.0,))},
        "forward": {"cycles": ((0.5,), (0.75,))},
    }
    assert (entry.recorded, entry.configuration) == ("2026-03-01", "tf32")
    assert (entry.workload, entry.revision) == ({"size": 128}, "0123456789ab")


def test_what_only_some_processes_have_is_no_baseline() -> None:
    both = [
        measurement({"cycles": [1.0], "ipc": [2.0]}, process="p1"),
        measurement({"cycles": [3.0]}, process="p2"),
    ]
    assert baseline_files.entry_of(both, "").samples["step"] == {"cycles": ((1.0,), (3.0,))}


def test_a_component_that_has_but_times_of_some_cpu_is_in_no_baseline() -> None:
    parts = {"forward": {"flops": [8.0], "wall_time": [1.0]}, "conv2d": {"wall_time": [2.0]}}
    cpu = measurement({"flops": [8.0]}, phases=parts, device=portable_device())
    assert baseline_files.entry_of([cpu], "").samples == {
        "step": {"flops": ((8.0,),)},
        "forward": {"flops": ((8.0,),)},
    }
    gpu = measurement({"cycles": [8.0]}, phases={"conv2d": {"kernel_time": [2.0]}})
    assert baseline_files.entry_of([gpu], "").samples["conv2d"] == {"kernel_time": ((2.0,),)}


def test_an_entry_says_which_gpu_each_process_ran_on() -> None:
    both = [
        measurement({"cycles": [1.0]}, process="p1", device=OTHER_H200),
        measurement({"cycles": [2.0]}, process="p2", device=H200),
    ]
    assert baseline_files.entry_of(both, "").units == (OTHER_H200.identity, H200.identity)


def test_what_a_process_measured_twice_is_one_process() -> None:
    again = [measurement({"cycles": [1.0, 2.0]}), measurement({"cycles": [3.0]})]
    assert baseline_files.entry_of(again, "").samples == {"step": {"cycles": ((1.0, 2.0, 3.0),)}}


def test_how_long_the_measuring_took_is_not_kept() -> None:
    settings: dict[str, Scalar] = {
        "rounds": 5,
        "collector": "cupti",
        "cost_s": 4.5,
        "warmup_s": 1.0,
    }
    entry = baseline_files.entry_of([measurement(settings=settings)], "")
    assert entry.settings == {"rounds": 5, "collector": "cupti"}


def test_an_entry_is_added_beside_the_others_and_logged() -> None:
    other = Entry("2026-03-02", "", {}, {}, {}, "", {})
    log = Acceptance("2026-03-02", "again", "a.py::test", "step", "", 1, {})
    found = baseline_files.with_entry(BASELINES, "a.py::test", "step", other, log)
    assert list(found.tests) == ["a.py::test", TEST]
    assert found.tests[TEST] == BASELINES.tests[TEST]
    assert found.accepted == (ACCEPTED, log)
    assert list(BASELINES.tests) == [TEST]


def test_an_entry_takes_the_place_of_the_one_of_its_name_only() -> None:
    other = Entry("2026-03-02", "", {}, {}, {}, "", {})
    log = Acceptance("2026-03-02", "again", TEST, "sampling", "", 1, {})
    both = baseline_files.with_entry(BASELINES, TEST, "sampling", other, log)
    assert both.tests[TEST] == {"step": ENTRY, "sampling": other}
    assert baseline_files.with_entry(both, TEST, "step", other, log).tests[TEST] == {
        "step": other,
        "sampling": other,
    }


@pytest.mark.parametrize("entry", ["arch", "device", "suite"])
def test_a_file_of_another_device_in_this_ones_place_is_refused(tmp_path: Path, entry: str) -> None:
    file = baseline_files.path_for(tmp_path, H200, "meddpm")
    changes: dict[str, Any] = {entry: "another"}
    baseline_files.save(replace(baseline_files.empty(H200, "meddpm"), **changes), file)
    with pytest.raises(BadFile, match="another") as refused:
        baseline_files.load_for(tmp_path, H200, "meddpm")
    assert refused.value.entry == entry


# Metrics that are measured no more


def test_what_an_older_file_says_of_a_retired_metric_is_dropped(file: Path) -> None:
    anchored = replace(ENTRY, anchor=baseline_files.anchor_of(ENTRY))
    kept = replace(BASELINES, tests={TEST: {"step": anchored}}, tolerance={"cycles": "1%"})
    older: Any = files.to_plain(kept)
    entry = older["tests"][TEST]["step"]
    older["tolerance"]["cpu_ipc"] = "1%"
    for series in (entry["samples"]["step"], entry["anchor"]["samples"]):
        series["cpu_cycles"] = [[1.0], [2.0]]
    file.write_text(yaml.safe_dump(older, sort_keys=False))
    loaded = baseline_files.load(file)
    assert loaded == kept
