"""The summary as Markdown, for pull requests and job summaries."""

from __future__ import annotations

from pytest_gpuperf.model import STEP, Run, Verdict
from pytest_gpuperf.report import table


def markdown(run: Run) -> str:
    """The verdicts of `run`, one table per measurement. Everything from outside is escaped."""
    parts = ["# gpuperf", "", f"{run.created}, `{_code(run.command)}`", ""]
    for measurement in run.measurements:
        device = measurement.fingerprint.device
        key = (measurement.test, measurement.name)
        rows = [v for v in run.verdicts if (v.test, v.name) == key and v.phase == STEP]
        name = "" if measurement.name == STEP else f", {_cell(measurement.name)}"
        parts += [f"## {_cell(measurement.test)}{name}", ""]
        parts += [f"{_cell(device.name)} ({device.arch})", ""]
        parts += ["| " + " | ".join(table.HEADINGS) + " |"]
        parts += ["| --- | ---: | ---: | ---: | ---: | --- |"]
        parts += [_row(verdict) for verdict in rows] or ["| not judged | | | | | |"]
        parts.append("")
    return "\n".join(parts)


def _row(verdict: Verdict) -> str:
    return "| " + " | ".join(_cell(cell) for cell in table.cells(verdict)) + " |"


def _cell(text: str) -> str:
    for character in "\\`*_[]<>|#":
        text = text.replace(character, "\\" + character)
    return text.replace("\n", " ")


def _code(text: str) -> str:
    return text.replace("`", "'").replace("\n", " ")
