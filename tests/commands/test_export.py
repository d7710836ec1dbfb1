"""`gpuperf export`: what it writes is read by Prometheus' own parser."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pytest_gpuperf import __main__
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import run_files
from tests import ROOT, strategies
from tests.examples import measurement, run

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
    (family,) = text_string_to_metric_families(written(file, tmp_path))
    assert len(family.samples) == 1


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
