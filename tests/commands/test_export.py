"""`gpuperf export`: what it writes is read by Prometheus' own parser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pytest_gpuperf import __main__
from pytest_gpuperf.model.result import Expectation, Outcome, Run
from pytest_gpuperf.storage import run_files
from tests import ROOT, strategies
from tests.examples import TEST, measurement, run, verdict

H200 = ROOT / "docs" / "runs" / "h200-meddpm.json"
TF32 = "suites/meddpm/test_training.py::test_training_step[tf32]"


def written(run_file: Path, folder: Path) -> str:
    """What `gpuperf export` writes."""
    output = folder / "run.prom"
    assert __main__.main(["export", str(run_file), "--output", str(output)]) == 0
    return output.read_text(encoding="utf-8")


def test_prometheus_own_parser_reads_openmetrics(tmp_path: Path) -> None:
    families = {
        family.name: family for family in text_string_to_metric_families(written(H200, tmp_path))
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
    code, cycles = text_string_to_metric_families(written(file, tmp_path))
    assert (code.name, len(cycles.samples)) == ("gpuperf_run", 1)


def test_another_commit_makes_no_new_series_but_of_what_says_which(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    series = []
    for revision in ("r1", "r2"):
        one = measurement({"cycles": [5.0]})
        under = replace(one.fingerprint, revision=revision, project="train")
        run_files.save(run([replace(one, fingerprint=under)], [verdict()]), file)
        code, *others = text_string_to_metric_families(written(file, tmp_path))
        assert [one.labels for one in code.samples] == [{"project": "train", "revision": revision}]
        series.append([(one.name, one.labels) for family in others for one in family.samples])
    assert series[0] == series[1]


def test_an_alert_can_ask_for_regressed_metrics_and_broken_limits_and_ratios(
    tmp_path: Path,
) -> None:
    file = tmp_path / "run.json"
    broken = (None, 1.0, Outcome.BROKEN, "beyond")
    limit = Expectation(TEST, "cycles", "cycles", "step", *broken)
    ratio = Expectation(TEST, "cycles", "", "tf32 / baseline", *broken)
    judged = run([measurement({"cycles": [5.0]})], [verdict()])
    run_files.save(replace(judged, expectations=(limit, ratio, ratio)), file)
    families = {
        family.name: family for family in text_string_to_metric_families(written(file, tmp_path))
    }
    alerts = [
        (one.labels["test"], one.labels["measurement"], one.labels["outcome"], one.value)
        for one in families["gpuperf_verdict"].samples
        if one.labels["metric"] == "cycles"
    ]
    assert alerts == [
        (TEST, "step", "regressed", 1),
        (TEST, "step", "broken", 1),
        (TEST, "tf32 / baseline", "broken", 1),
    ]


def test_a_run_without_measurements_has_nothing_to_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.json"
    run_files.save(run([]), file)
    assert __main__.main(["export", str(file)]) == 4
    assert str(file) in capsys.readouterr().err


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for a property test, which writes many files of one name."""
    return tmp_path_factory.mktemp("exported")


@settings(max_examples=5)
@given(written=strategies.run_files)
def test_any_run_is_exported_or_refused(shared: Path, written: Run) -> None:
    file, output = shared / "run.json", shared / "out.prom"
    run_files.save(written, file)
    output.unlink(missing_ok=True)
    code = __main__.main(["export", str(file), "--output", str(output)])
    assert code in (0, 4)
    assert output.exists() is (code == 0)
    if code == 0:
        assert [*text_string_to_metric_families(output.read_text(encoding="utf-8"))]


def test_it_prints_openmetrics_where_nothing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["export", str(H200)]) == 0
    assert capsys.readouterr().out.endswith("# EOF\n")
