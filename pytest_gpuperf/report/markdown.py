"""The summary as Markdown, for pull requests and job summaries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pytest_gpuperf.judge.blamed import Blame
from pytest_gpuperf.model import STEP, Measurement, Outcome, Run, Verdict
from pytest_gpuperf.report import blame as kernels
from pytest_gpuperf.report import expectations, table, timeline, window

_WIDTH = 96
"""Of the kernels' lines, which are not wrapped by who shows them."""


def markdown(run: Run) -> str:
    """The verdicts of `run`, one table per measurement, and one of what was expected.

    Everything from outside is escaped.
    """
    parts = ["# gpuperf", "", f"{cell(run.created)}, `{code(run.command)}`", ""]
    # Several processes of one test were judged together.
    first_of: dict[tuple[str, str], Measurement] = {}
    for measurement in run.measurements:
        first_of.setdefault((measurement.test, measurement.name), measurement)
    for key, measurement in first_of.items():
        device = measurement.fingerprint.device
        rows = [v for v in run.verdicts if (v.test, v.name) == key and v.phase == STEP]
        name = "" if measurement.name == STEP else f", {cell(measurement.name)}"
        parts += [f"## {cell(measurement.test)}{name}", ""]
        parts += [f"{cell(device.name)} ({cell(device.arch)})", ""]
        parts += ["| " + " | ".join(table.HEADINGS) + " |"]
        parts += ["| --- | ---: | ---: | ---: | ---: | ---: | --- |"]
        parts += [_row(verdict) for verdict in rows] or ["| not judged | | | | | | |"]
        parts.append("")
        if measurement.window:
            parts += [cell(window.line(measurement)), ""]
        if measurement.timeline:
            parts += [cell(timeline.line(measurement)), ""]
        parts += _kernels(rows, [b.blame for b in run.blames if (b.test, b.name) == key])
    if run.expectations:
        parts += ["## Expected", ""]
        parts += ["| metric | of | expected | measured | outcome |"]
        parts += ["| --- | --- | --- | ---: | --- |"]
        parts += [row(expectations.row(expectation)) for expectation in run.expectations]
        parts.append("")
    return "\n".join(parts)


def _kernels(rows: Iterable[Verdict], blames: Iterable[Blame]) -> Iterator[str]:
    """How the kernels changed, and which of them the change in time comes from."""
    for verdict in rows:
        if verdict.outcome is Outcome.KERNELS_CHANGED:
            yield from (f"Kernels: {cell(verdict.detail)}", "")
    for blame in blames:
        yield from ("```", *map(code, kernels.lines(blame, _WIDTH)), "```", "")


def _row(verdict: Verdict) -> str:
    return row(table.cells(verdict))


def row(cells: Iterable[str]) -> str:
    """A row of a table, its cells escaped."""
    return "| " + " | ".join(map(cell, cells)) + " |"


def cell(text: str) -> str:
    """`text` as it stands, in one line: nothing in it is Markdown."""
    return re.sub(r"([\\`*_\[\]<>|#&~$])", r"\\\1", _one_line(text))


def code(text: str) -> str:
    """`text` in one line, to stand between backticks."""
    return _one_line(text).replace("`", "'")


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())
