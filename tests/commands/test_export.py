"""`gpuperf export`: what it writes is read by its consumers' own parsers, or fits their schemas."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from pytest_benchmark import cli

from pytest_gpuperf import __main__
from pytest_gpuperf.commands import export as export_command
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.model.result import Outcome, Run
from pytest_gpuperf.report import interchange
from pytest_gpuperf.storage import run_files
from tests import ROOT, strategies
from tests.examples import A100, TEST, measurement, run, verdict

H200 = ROOT / "docs" / "runs" / "h200-meddpm.json"
BROKEN = ROOT / "docs" / "runs" / "h200-tf32-broken.json.xz"
TF32 = "suites/meddpm/test_training.py::test_training_step[tf32]"


def exported(measurements: Sequence[Measurement], **changes: Any) -> list[dict[str, Any]]:
    """The benchmarks of a run of these measurements."""
    data, _ = interchange.exported(run(measurements, **changes))
    benchmarks: list[dict[str, Any]] = data["benchmarks"]
    return benchmarks


def export(file: Path, output: Path) -> None:
    """Runs the command."""
    assert __main__.main(["export", str(file), "--output", str(output)]) == 0


# What pytest-benchmark makes of it


def test_its_compare_its_histogram_and_its_csv_read_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("NO_COLOR", "1")
    names = ["a\nb", "<script>alert(1)</script>]]>", "x::y%s{0}", "\x1b[31mred"]
    series = {"step_time": [1.0, 2.0, 3.0]}
    run_files.save(run([measurement(series, name=name) for name in names]), Path("saved.json"))
    for source, target in ((H200, "before"), (BROKEN, "after"), (Path("saved.json"), "hostile")):
        export(source, Path(f"{target}.json"))
        assert capsys.readouterr().out == f"written: {target}.json\n"

    flags = ("--group-by=fullname", "--columns=median,rounds", "--csv=run.csv", "--histogram=steps")
    words = ("compare", "before.json", "after.json", "hostile.json", *flags)
    monkeypatch.setattr(sys, "argv", ["pytest-benchmark", *words])
    cli.main()  # type: ignore[no-untyped-call]
    text = capsys.readouterr().out
    (group,) = (part for part in re.split(r"\n\n", text) if f"{TF32}': 2 tests" in part)
    assert re.search(r"test_training_step\[tf32\] \(before\)\s+231\.5446 \(1\.0\)", group)
    assert re.search(r"\(after\)\s+1,063\.0847 \(4\.59\)", group)
    assert text.count("(hostile)") == len(names)  # a row each
    assert "\x1b[31mred" not in text
    rows = Path("run.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0].endswith("median,rounds")
    pictures = [file.read_text(encoding="utf-8") for file in Path().glob("steps*.svg")]
    assert any("test_training_step[tf32]" in picture for picture in pictures)
    assert not any("<script>alert" in picture for picture in pictures)


# What it says


def test_a_benchmark_has_every_round_of_every_process_in_seconds() -> None:
    both = [
        measurement({"step_time": [250.0, 252.0], "wall_time": [1.0]}, process="p1"),
        measurement({"step_time": [251.0, 255.0], "wall_time": [1.0]}, process="p2"),
    ]
    (benchmark,) = exported(both)
    stats = benchmark["stats"]
    assert stats["data"] == pytest.approx([0.250, 0.252, 0.251, 0.255])
    assert (stats["min"], stats["max"]) == pytest.approx((0.250, 0.255))
    assert stats["mean"] == pytest.approx(fmean(stats["data"]))
    assert stats["median"] == pytest.approx(0.2515)
    assert (stats["rounds"], stats["iterations"]) == (4, 1)


def test_the_time_is_the_best_that_was_measured_by_all_processes() -> None:
    for series, time, seconds in (
        ({"wall_time": [3.0], "step_time": [2.0], "duration": [1e6]}, "step_time", 0.002),
        ({"wall_time": [3.0], "duration": [1e6]}, "wall_time", 0.003),
        ({"duration": [1e6], "cycles": [5.0]}, "duration", 0.001),
    ):
        (benchmark,) = exported([measurement(series)])
        assert benchmark["extra_info"]["gpuperf"]["step"]["time"] == time
        assert benchmark["stats"]["data"] == pytest.approx([seconds])
    first = measurement({"step_time": [2.0], "wall_time": [3.0]}, process="p1")
    second = measurement({"wall_time": [4.0]}, process="p2")
    (benchmark,) = exported([first, second])
    assert benchmark["stats"]["data"] == pytest.approx([0.003, 0.004])


def test_a_benchmark_carries_the_counters_and_what_was_said_of_them() -> None:
    series = {"step_time": [2.0], "cycles": [4e8, 5e8, 6e8], "ipc": [0.8]}
    phases = {"forward": {"cycles": [1.0]}}
    said = [verdict(), verdict("ipc", Outcome.REPORTED, change=0.1), verdict(phase="forward")]
    (benchmark,) = exported([measurement(series, phases=phases)], verdicts=said)
    info = benchmark["extra_info"]["gpuperf"]["step"]
    assert info["metrics"] == {
        "step_time": {"value": 2.0, "unit": "ms"},
        "cycles": {"value": 5e8, "unit": "cycles", "outcome": "regressed", "change": 0.02517},
        "ipc": {"value": 0.8, "unit": info["metrics"]["ipc"]["unit"], "change": 0.1},
    }
    del info["metrics"]
    assert info == {
        "time": "step_time",
        "device": "NVIDIA H200",
        "arch": "sm90",
        "gpus": ["aaaa00000001"],
        "configuration": "tf32",
        "workload": {"size": 128},
        "revision": "0123456789ab",
        "processes": 1,
    }


def test_names_are_those_that_pytest_benchmark_gives() -> None:
    series = {"step_time": [2.0]}
    plain, sampling = exported([measurement(series), measurement(series, name="sampling")])
    assert (plain["fullname"], plain["name"]) == (TEST, "test_training_step[tf32]")
    assert (plain["param"], plain["params"], plain["group"]) == ("tf32", None, None)
    assert sampling["fullname"] == f"{TEST}/sampling"
    (bare,) = exported([measurement(series, test="a.py::TestX::test_y")])
    assert (bare["name"], bare["param"]) == ("test_y", None)


def test_the_entries_are_those_of_a_file_of_pytest_benchmark(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # its pytest is not our worker's
    pytester.makepyfile("def test_x(benchmark): benchmark(lambda: None)")
    pytester.runpytest_subprocess(
        *("-p", "no:gpuperf", "-p", "no:hypothesispytest"),
        *("--benchmark-json=theirs.json", "--benchmark-max-time=0.01"),
    )
    theirs = json.loads((pytester.path / "theirs.json").read_text(encoding="utf-8"))
    ours = interchange.exported(run([measurement({"step_time": [1.0]})]))[0]
    assert set(ours) == set(theirs)
    (our_benchmark,), (their_benchmark,) = ours["benchmarks"], theirs["benchmarks"]
    assert set(our_benchmark) == set(their_benchmark)
    assert set(our_benchmark["stats"]) == set(their_benchmark["stats"])
    assert set(ours["commit_info"]) <= set(theirs["commit_info"])


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for a property test, which writes many files of one name."""
    return tmp_path_factory.mktemp("exported")


@settings(max_examples=12)
@given(written=strategies.run_files)
@example(written=run([measurement({"step_time": [1e-309]})]))
@example(written=run([measurement({"step_time": [1.7e308, -1.7e308]})]))
def test_any_run_is_exported_or_refused(shared: Path, written: Run) -> None:
    file, output = shared / "run.json", shared / "out.json"
    run_files.save(written, file)
    output.unlink(missing_ok=True)
    code = __main__.main(["export", str(file), "--output", str(output)])
    assert code in (0, 4)
    assert output.exists() is (code == 0)
    if code == 0:
        assert "Infinity" not in output.read_text(encoding="utf-8")
        assert json.loads(output.read_text(encoding="utf-8"))["benchmarks"]


# The command


def test_it_prints_where_no_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["export", str(BROKEN), "--format", "pytest-benchmark"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["machine_info"]["gpu"] == "NVIDIA H200"
    assert data["commit_info"] == {"id": "9cd6d1a35f11", "dirty": True}
    assert data["datetime"] == run_files.load(BROKEN).created


def test_what_has_no_time_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.json"
    timed = measurement({"step_time": [1.0]}, device=A100)
    run_files.save(run([timed, measurement(name="counted")]), file)
    export(file, tmp_path / "out.json")
    assert capsys.readouterr().err == (
        f"gpuperf: 1 measurement left out, without a time: {TEST}/counted\n"
    )
    assert len(json.loads((tmp_path / "out.json").read_text("utf-8"))["benchmarks"]) == 1


def test_nothing_to_export_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, output = tmp_path / "run.json", tmp_path / "out.json"
    for measurements in ([], [measurement()]):  # none at all, and none with a time
        run_files.save(run(measurements), file)
        assert __main__.main(["export", str(file), "--output", str(output)]) == 4
        assert "no measurement has a time to export (step_time," in capsys.readouterr().err
        assert not output.exists()


def test_without_pytest_benchmark_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pytest_benchmark"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pytest_benchmark", None)
    assert __main__.main(["export", str(BROKEN)]) == 4
    assert 'pip install "pytest-gpuperf[benchmark]"' in capsys.readouterr().err


# Records that services collect

_TEXT, _NUMBER = {"type": "string"}, {"type": "number"}
SCHEMAS: dict[str, dict[str, Any]] = {
    # https://bencher.dev/bmf.json, and the lengths of
    # https://bencher.dev/docs/reference/bencher-metric-format
    "bencher": {
        "type": "object",
        "propertyNames": {"maxLength": 1024},
        "additionalProperties": {
            "type": "object",
            "propertyNames": {"maxLength": 64},
            "additionalProperties": {
                "type": "object",
                "properties": {"value": _NUMBER, "lower_value": _NUMBER, "upper_value": _NUMBER},
                "required": ["value"],
                "additionalProperties": False,
            },
        },
    },
    # https://github.com/benchmark-action/github-action-benchmark#customsmallerisbetter
    "benchmark-action": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "name": _TEXT,
                "unit": _TEXT,
                "value": _NUMBER,
                "range": _TEXT,
                "extra": _TEXT,
            },
            "required": ["name", "unit", "value"],
            "additionalProperties": False,
        },
    },
    # https://github.com/pytorch/pytorch/wiki/PyTorch-OSS-benchmark-infra#benchmark-results-format
    "pytorch": {
        "type": "object",
        "properties": {
            "benchmark": {"type": "object", "required": ["name"]},
            "model": {"type": "object", "required": ["name"]},
            "runners": {"type": "array", "items": {"type": "object"}},
            "dependencies": {"type": "object", "additionalProperties": {"type": "object"}},
            "metric": {
                "type": "object",
                "properties": {
                    "name": _TEXT,
                    "benchmark_values": {"type": "array", "items": _NUMBER, "minItems": 1},
                    "target_value": _NUMBER,
                    "extra_info": {"type": "object"},
                },
                "required": ["name", "benchmark_values"],
            },
        },
        "required": ["benchmark", "model", "metric"],
        "additionalProperties": False,
    },
}


def written(form: str, run_file: Path, folder: Path) -> str:
    """What `gpuperf export --format` writes."""
    output = folder / form
    words = ["export", str(run_file), "--format", form, "--output", str(output)]
    assert __main__.main(words) == 0
    return output.read_text(encoding="utf-8")


def test_bencher_reads_values_with_their_range_unit_and_direction(tmp_path: Path) -> None:
    data = json.loads(written("bencher", H200, tmp_path))
    jsonschema.validate(data, SCHEMAS["bencher"])
    measures = data[TF32]
    assert {"cycles [cycles, lower is better]", "ipc [instructions/cycle]"} <= {*measures}
    cycles = measures["cycles [cycles, lower is better]"]
    assert cycles["lower_value"] <= cycles["value"] <= cycles["upper_value"]


@pytest.mark.parametrize(("better", "metric"), [("smaller", "cycles"), ("bigger", "l2_hit_rate")])
def test_benchmark_action_reads_one_direction_a_file(
    better: str, metric: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.json"
    run_files.save(run([measurement({"cycles": [5.0], "l2_hit_rate": [60.0], "ipc": [1.0]})]), file)
    data = json.loads(written(f"benchmark-action-{better}", file, tmp_path))
    jsonschema.validate(data, SCHEMAS["benchmark-action"])
    assert [entry["name"] for entry in data] == [f"{TEST} / {metric}"]


def test_pytorchs_database_reads_a_record_of_each_metric(tmp_path: Path) -> None:
    records = [json.loads(line) for line in written("pytorch", H200, tmp_path).splitlines()]
    for record in records:
        jsonschema.validate(record, SCHEMAS["pytorch"])
    (cycles,) = (
        record["metric"]
        for record in records
        if record["model"]["name"] == TF32 and record["metric"]["name"] == "cycles"
    )
    assert cycles["extra_info"] == {"unit": "cycles", "direction": "lower"}
    assert len(cycles["benchmark_values"]) == 5


def test_prometheus_own_parser_reads_openmetrics(tmp_path: Path) -> None:
    families = {
        family.name: family
        for family in text_string_to_metric_families(written("openmetrics", H200, tmp_path))
    }
    times = families["gpuperf_step_time_seconds"]
    assert (times.type, times.unit) == ("gauge", "seconds")
    (sample,) = (sample for sample in times.samples if sample.labels["test"] == TF32)
    assert sample.value == pytest.approx(0.2319, rel=0.01)
    assert (sample.labels["device"], sample.labels["better"]) == ("NVIDIA H200", "lower")
    assert families["gpuperf_cycles"].unit == "cycles"


def test_hostile_names_do_not_break_openmetrics(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    test = 'x.py::t["\\ \n{}]'
    run_files.save(run([measurement({"cycles": [5.0]}, test=test)]), file)
    (family,) = text_string_to_metric_families(written("openmetrics", file, tmp_path))
    assert len(family.samples) == 1


@pytest.mark.parametrize("form", export_command.FORMATS)
def test_a_run_without_measurements_has_nothing_to_export(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.json"
    run_files.save(run([]), file)
    assert __main__.main(["export", str(file), "--format", form]) == 4
    assert str(file) in capsys.readouterr().err
