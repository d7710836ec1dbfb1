"""The summary as Markdown, for pull requests and job summaries."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pytest_gpuperf.model import STEP, Measurement, Run, Verdict
from pytest_gpuperf.report import expectations, table, window


def markdown(run: Run) -> str:
    """The verdicts of `run`, one table per measurement, and one of what was expected.

    Everything from outside is escaped.
    """
    parts = ["# gpuperf", "", f"{_cell(run.created)}, `{_code(run.command)}`", ""]
    # Several processes of one test were judged together.
    first_of: dict[tuple[str, str], Measurement] = {}
    for measurement in run.measurements:
        first_of.setdefault((measurement.test, measurement.name), measurement)
    for key, measurement in first_of.items():
        device = measurement.fingerprint.device
        rows = [v for v in run.verdicts if (v.test, v.name) == key and v.phase == STEP]
        name = "" if measurement.name == STEP else f", {_cell(measurement.name)}"
        parts += [f"## {_cell(measurement.test)}{name}", ""]
        parts += [f"{_cell(device.name)} ({_cell(device.arch)})", ""]
        parts += ["| " + " | ".join(table.HEADINGS) + " |"]
        parts += ["| --- | ---: | ---: | ---: | ---: | ---: | --- |"]
        parts += [_row(verdict) for verdict in rows] or ["| not judged | | | | | | |"]
        parts.append("")
        if measurement.window:
            parts += [_cell(window.line(measurement)), ""]
    if run.expectations:
        parts += ["## Expected", ""]
        parts += ["| metric | of | expected | measured | outcome |"]
        parts += ["| --- | --- | --- | ---: | --- |"]
        parts += [_cells(expectations.row(expectation)) for expectation in run.expectations]
        parts.append("")
    return "\n".join(parts)


def _row(verdict: Verdict) -> str:
    return _cells(table.cells(verdict))


def _cells(cells: Iterable[str]) -> str:
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#&~$])", r"\\\1", _one_line(text))


def _code(text: str) -> str:
    return _one_line(text).replace("`", "'")


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())
