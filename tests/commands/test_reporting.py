"""`gpuperf report` and --gpuperf-report: the format by the suffix of the file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pytest_gpuperf import __main__, errors
from pytest_gpuperf.report import interchange
from pytest_gpuperf.report.proof import proof_of
from pytest_gpuperf.report.text import proof_lines
from pytest_gpuperf.storage import run_files
from tests.report.html.pages import DOCS

MEASURED = DOCS / "h200-meddpm.json"


def test_reports_are_written_by_their_suffixes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / f"report{suffix}" for suffix in interchange.SUFFIXES]
    words = [word for file in files for word in ("--output", str(file))]
    assert __main__.main(["report", str(MEASURED), *words]) == errors.OK
    page, markdown, data = (file.read_text(encoding="utf-8") for file in files)
    assert page.startswith("<!DOCTYPE html>")
    assert markdown.startswith("# gpuperf: ")
    assert run_files.load(files[2]) == run_files.load(MEASURED)
    assert json.loads(data)["schema"] == run_files.SCHEMA
    assert capsys.readouterr().out.splitlines() == [f"report written: {file}" for file in files]


def test_without_words_it_is_html_of_the_newest_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target = tmp_path / run_files.FOLDER / "20261121T000000.json"
    target.parent.mkdir(parents=True)
    shutil.copy(MEASURED, target)
    assert __main__.main(["report"]) == errors.OK
    assert "20261121T000000" not in (tmp_path / "report.html").read_text(encoding="utf-8")[:300]
    assert (tmp_path / "report.html").stat().st_size > 700_000


def test_an_html_report_shows_what_prove_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proven = DOCS / "prove-first-test.json.xz"
    outputs = [tmp_path / "report.html", tmp_path / "report.md"]
    words = [word for output in outputs for word in ("--output", str(output))]
    assert __main__.main(["report", str(MEASURED), "--prove", str(proven), *words]) == errors.OK
    page, markdown = (output.read_text(encoding="utf-8") for output in outputs)
    proof = proof_of(run_files.load(proven))
    assert proof
    total = proof_lines.total(proof)
    assert (total in page, "slowdown" in markdown) == (True, False)
    outputs[0].unlink()
    for place, output, says in (
        (proven, outputs[1], "--prove is only for HTML"),
        (MEASURED, outputs[0], f"{MEASURED}: `gpuperf prove` did not write"),
        (tmp_path / "no.json", outputs[0], "no.json: no such run file"),
    ):
        command = ["report", str(MEASURED), "--prove", str(place), "--output", str(output)]
        assert __main__.main(command) == errors.BAD_CONFIGURATION
        assert says in capsys.readouterr().err
        assert not outputs[0].exists()


def test_what_cannot_be_done_is_refused_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for flag, word, says in (
        ("--output", "x.pdf", '".pdf" is not a report format. Use the suffix .html, .md, .json'),
        ("--output", "report", '"" is not a report format'),
        ("--output", str(MEASURED), "is the run itself. Name another file"),
    ):
        assert __main__.main(["report", str(MEASURED), flag, word]) == errors.BAD_CONFIGURATION
        assert says in capsys.readouterr().err
        assert not list(tmp_path.iterdir())
