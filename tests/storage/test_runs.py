"""Run files: what is saved comes back, and what cannot be trusted is refused and left alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.catalogue.metric_catalogue import timeline_metrics
from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.measure.trace import timelines
from pytest_gpuperf.model.measurement import Conditions, Reading, Timeline
from pytest_gpuperf.model.result import Expectation, Outcome, Run
from pytest_gpuperf.storage import files, run_files
from pytest_gpuperf.storage.run_files import MOST_POINTS
from tests import strategies
from tests.corruption import changed, refusal, unreadable, without
from tests.examples import TEST, measurement, run, verdict

SAVED = run(
    [
        measurement(
            {"cycles": [437_000_000.0, 437_000_100.5], "ipc": [2.5, 2.25]},
            phases={"forward": {"cycles": [100.0]}},
            unsupported={"l2_hit_rate": "no counters"},
            conditions=Conditions(Reading(sm_clock_mhz=1980), Reading(power_watts=500.5)),
        ),
        measurement(process="p2"),
    ],
    [verdict()],
)
PLAIN: Any = files.to_plain(SAVED)
FIRST = ("measurements", 0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a run may be kept."""
    return tmp_path / "run.json"


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for property tests, which write it many times."""
    return tmp_path_factory.mktemp("runs") / "run.json"


# Round trip


@given(run=strategies.run_files)
def test_a_run_that_was_saved_comes_back_the_same(shared: Path, run: Run) -> None:
    run_files.save(run, shared)
    assert run_files.load(shared) == run


def test_numbers_come_back_with_every_bit(file: Path) -> None:
    values = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, 2.0**53 + 2, -0.0]
    run_files.save(run([measurement({"cycles": values})]), file)
    found = run_files.load(file).measurements[0].samples[0].values
    assert [value.hex() for value in found] == [value.hex() for value in values]


def test_a_saved_run_is_readable_text(file: Path) -> None:
    run_files.save(run([measurement(test="test_größe.py::test_x")]), file)
    text = file.read_text(encoding="utf-8")
    assert "größe" in text
    assert text.count("\n") > 20
    assert text.endswith("}\n")
    assert list(file.parent.iterdir()) == [file]


def test_a_saved_run_takes_the_place_of_the_old_one(file: Path) -> None:
    file.write_text("something else")
    run_files.save(SAVED, file)
    assert run_files.load(file) == SAVED


# What is refused


def test_a_file_that_is_not_there_is_named(file: Path) -> None:
    with pytest.raises(UsageFailure, match=re.escape(f"{file}: no such run file")):
        run_files.load(file)


def test_a_folder_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageFailure, match=re.escape(f"{tmp_path}: cannot be read (Is a dir")):
        run_files.load(tmp_path)


def test_a_run_that_may_not_be_read_is_named(file: Path) -> None:
    run_files.save(SAVED, file)
    with (
        unreadable(file),
        pytest.raises(UsageFailure, match=r"run.json: cannot be read \(Permission denied\)"),
    ):
        run_files.load(file)


@given(share=st.floats(0, 1, exclude_max=True))
def test_a_run_that_was_cut_short_is_refused(shared: Path, share: float) -> None:
    text = json.dumps(PLAIN)
    shared.write_text(text[: int(share * len(text))])
    assert re.search(r"line 1 column \d+: not JSON", refusal(run_files.load, shared, BadFile))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1 column 1: not JSON"),
        (b"[" * 200_000, "cannot be read: "),
        (b'{"schema": 1,\n "command": "\xff"}', "byte 27: not UTF-8 text"),
        (b"\xef\xbb\xbf{}", "not JSON: Unexpected UTF-8 BOM"),
        (b"[]", "expected a mapping, found list"),
        (b"null", "expected a mapping, found NoneType"),
        (b"{}", "schema: schema version None is not 1"),
        (b'{"schema": 1, "schema": 1}', 'the key "schema" is there twice'),
    ],
)
def test_what_is_no_run_is_refused(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    assert message in refusal(run_files.load, file, BadFile)


@pytest.mark.parametrize(
    ("path", "value", "entry", "problem"),
    [
        (("schema",), 2, "schema", "Install the version of pytest-gpuperf that wrote it"),
        (("schema",), 0, "schema", "schema version 0 is not 1"),
        (("extra",), 1, "extra", "Unexpected keyword"),
        (("created",), 5, "created", "valid string"),
        (("measurements",), {}, "measurements", "valid array"),
        ((*FIRST, "workload", "size"), [128], "measurements/0/workload/size", "valid string or"),
        ((*FIRST, "fingerprint", "device"), "H200", "measurements/0/fingerprint/device", ""),
        (
            (*FIRST, "fingerprint", "conditions", "before", "sm_clock_mhz"),
            "fast",
            "measurements/0/fingerprint/conditions/before/sm_clock_mhz",
            "valid integer",
        ),
        (
            (*FIRST, "samples", 0, "values", 1),
            "437",
            "measurements/0/samples/0/values/1",
            "valid number",
        ),
        (
            (*FIRST, "samples", 0, "values", 1),
            True,
            "measurements/0/samples/0/values/1",
            "valid number",
        ),
        (
            (*FIRST, "samples", 0, "values", 1),
            float("nan"),
            "measurements/0/samples/0/values/1",
            "finite number",
        ),
        (
            (*FIRST, "samples", 0, "values", 0),
            float("inf"),
            "measurements/0/samples/0/values/0",
            "finite number",
        ),
        ((*FIRST, "samples", 1, "values"), [], "measurements/0/samples/1/values", "no value for"),
        (
            (*FIRST, "samples", 1, "metric"),
            "cycels",
            "measurements/0/samples/1/metric",
            "no such metric in the catalogue: cycels",
        ),
        (
            (*FIRST, "samples", 1, "metric"),
            "cycles",
            "measurements/0/samples/1",
            "a second sample of cycles of step",
        ),
        (
            (*FIRST, "unsupported", 0, "metric"),
            "cycels",
            "measurements/0/unsupported/0/metric",
            "no such metric",
        ),
        (("verdicts", 0, "outcome"), "fine", "verdicts/0/outcome", "'regressed'"),
        (("verdicts", 0, "change"), float("-inf"), "verdicts/0/change", "finite number"),
    ],
)
def test_a_wrong_entry_is_named(
    file: Path, path: tuple[str | int, ...], value: object, entry: str, problem: str
) -> None:
    file.write_text(json.dumps(changed(PLAIN, path, value)))
    message = refusal(run_files.load, file, BadFile)
    assert message.startswith(f"{file}: {entry}: ")
    assert problem in message


@pytest.mark.parametrize(
    "path",
    [
        ("created",),
        ("measurements",),
        (*FIRST, "samples"),
        (*FIRST, "samples", 0, "values"),
        (*FIRST, "fingerprint", "device", "arch"),
    ],
)
def test_a_missing_entry_is_named(file: Path, path: tuple[str | int, ...]) -> None:
    file.write_text(json.dumps(without(PLAIN, path)))
    entry = "/".join(map(str, path))
    assert refusal(run_files.load, file, BadFile).startswith(f"{file}: {entry}: Field required")


def test_a_number_beyond_all_floats_is_refused(file: Path) -> None:
    file.write_text(json.dumps(PLAIN).replace("437000100.5", "1e400"))
    assert "measurements/0/samples/0/values/1: " in refusal(run_files.load, file, BadFile)


@given(data=st.data())
def test_no_single_broken_entry_goes_unnoticed_or_raises_anything_else(
    shared: Path, data: st.DataObject
) -> None:
    path: list[str | int] = []
    here: Any = PLAIN
    while isinstance(here, dict | list) and here and (not path or data.draw(st.booleans())):
        children = here if isinstance(here, dict) else dict(enumerate(here))
        part = data.draw(st.sampled_from(list(children)))
        path.append(part)
        here = children[part]
    shared.write_text(json.dumps(changed(PLAIN, path, {"": [None]})))
    assert ": ".join((str(shared), str(path[0]))) in refusal(run_files.load, shared, BadFile)


# Names and merging


def test_the_newest_run_is_the_last_by_name(tmp_path: Path) -> None:
    folder = tmp_path / run_files.FOLDER
    folder.mkdir(parents=True)
    for name in ("20260301T120000Z-9.json", "20260302T000000Z-1.json", "20260228T235959Z-5.json"):
        (folder / name).touch()
    (folder / "notes.txt").touch()
    assert run_files.newest(tmp_path).name == "20260302T000000Z-1.json"


def test_without_runs_the_commands_that_make_one_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageFailure, match=r"no run under .*runs.*`gpuperf record`"):
        run_files.newest(tmp_path)


def test_a_new_file_lies_where_the_newest_is_looked_for(tmp_path: Path) -> None:
    file = run_files.new_file(tmp_path)
    assert re.fullmatch(r"\d{8}T\d{6}\.\d{6}Z-\d+\.json", file.name)
    run_files.save(SAVED, file)
    assert run_files.newest(tmp_path) == file


def test_the_moment_is_utc_to_the_second() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", files.utc_now())


def test_merged_runs_keep_every_measurement_and_no_verdict() -> None:
    one, other = run([measurement(process="p1")], [verdict()]), run([measurement(process="p2")])
    merged = run_files.merged([one, other], "gpuperf record")
    assert merged.measurements == (*one.measurements, *other.measurements)
    assert merged.verdicts == ()
    assert (merged.schema, merged.command) == (run_files.SCHEMA, "gpuperf record")


def test_a_timeline_that_cannot_be_is_refused_with_its_entry(file: Path) -> None:
    sampled = Timeline(1, 1e5, 1e5, 0.0, 1e5, {"sm_active": (1.0,), "tensor_active": ()}, ())
    run_files.save(run([replace(measurement(), timeline=sampled)]), file)
    with pytest.raises(BadFile, match="measurements/0/timeline/series/tensor_active: 0 values"):
        run_files.load(file)


def test_a_timeline_of_too_many_points_is_refused(file: Path) -> None:
    values = (1.0,) * (MOST_POINTS + 1)
    sampled = Timeline(1, 1e5, 1e5, 0.0, 1e9, {"sm_active": values}, ())
    run_files.save(run([replace(measurement(), timeline=sampled)]), file)
    with pytest.raises(BadFile, match="series/sm_active: 4,001 values: more than 4,000"):
        run_files.load(file)


def test_a_run_without_timelines_is_read_as_before(file: Path) -> None:
    data = files.to_plain(SAVED)
    for entry in data["measurements"]:
        del entry["timeline"]
    file.write_text(json.dumps(data), encoding="utf-8")
    assert run_files.load(file) == SAVED


def test_timelines_of_long_steps_stay_small(file: Path) -> None:
    readings = [
        timelines.TimelineReading(number * 1e5, (number + 1) * 1e5, (number % 100 / 3,) * 4)
        for number in range(12_500)
    ]
    names = [metric.name for metric in timeline_metrics()]
    sampled = timelines.of_readings(readings, names, 1.25e9)
    run_files.save(run([replace(measurement(), timeline=sampled)]), file)
    assert file.stat().st_size < 300_000


# Metrics that are measured no more


def test_what_an_older_run_says_of_a_retired_metric_is_dropped(file: Path) -> None:
    said = {"cpu_cycles": [1.0], "cpu_ipc": [2.0]}
    older = replace(
        SAVED,
        measurements=(
            measurement({"cycles": [1.0], **said}, phases={"forward": said}),
            measurement({"cycles": [1.0]}, process="p2", unsupported={"cpu_instructions": "none"}),
        ),
        verdicts=(verdict(), replace(verdict(), metric="cpu_ipc")),
        expectations=(
            Expectation(
                TEST, "cpu_ipc", "instructions/cycle", "step", 1, None, Outcome.HOLDS, "within"
            ),
        ),
    )
    run_files.save(older, file)
    kept = (measurement({"cycles": [1.0]}), measurement({"cycles": [1.0]}, process="p2"))
    assert run_files.load(file) == replace(
        older, measurements=kept, verdicts=(verdict(),), expectations=()
    )
