"""The formats of a run's report, by the suffix of its file."""

from __future__ import annotations

import json
from pathlib import Path

from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import files

SUFFIXES = (".html", ".md", ".json")


def text(run: Run, report: Path, file: str = "") -> str:
    """The report of `run` in the format that the suffix of `report` names, one of SUFFIXES.

    `file` is where the run is saved, "" where it is not; commands in the report name it.
    """
    if report.suffix == ".html":
        from pytest_gpuperf.report.html.page import page

        return page(run, file)
    if report.suffix == ".md":
        from pytest_gpuperf.report.markdown import markdown

        return markdown(run)
    return json.dumps(files.to_plain(run), indent=1, ensure_ascii=False) + "\n"
