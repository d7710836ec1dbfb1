"""GitHub Actions: marks at the lines of tests that failed, and the job summary.

https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.errors import printable_lines
from pytest_gpuperf.model.result import DOUBTS, FAULTS, Result, Run
from pytest_gpuperf.report import view
from pytest_gpuperf.report.markdown import markdown
from pytest_gpuperf.report.text import kernel_lines, table
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.storage import files

SUMMARY_LIMIT = 1024 * 1024
"""Bytes of a step's job summary; GitHub drops one that is longer as a whole."""
_KERNELS = 6
"""Lines about kernels: an annotation is read beside code."""


@dataclass(frozen=True)
class Place:
    """The file and line of a test."""

    file: str
    """Relative to the checkout, where it lies in it."""
    line: int | None
    """The line, from 1 on."""


@dataclass(frozen=True)
class Actions:
    """The files of a job on GitHub Actions."""

    summary: Path | None
    """The file that a step appends its job summary to."""
    workspace: Path | None
    """The checkout."""

    def place(self, root: Path, file: str, line: int | None) -> Place:
        """A test's file and line (from 0 on), as pytest gives them, as GitHub wants them."""
        path = Path(os.path.normpath(root.resolve() / file))
        short = files.short(path, self.workspace.resolve()) if self.workspace else file
        return Place(short, None if line is None else line + 1)

    def append(self, run: Run, context: CommandContext | None = None) -> str:
        """Appends the Markdown of `run` to the job summary, and returns a sentence on the result.

        `context` is passed to `markdown` for the commands. Returns "" if GitHub asks for no
        summary. Never raises: a summary must not fail the session.
        """
        if self.summary is None:
            return ""
        try:
            with self.summary.open("a+b") as stream:
                there = stream.seek(0, os.SEEK_END)
                # The existing text may lack a final newline.
                start = "\n\n" if there else ""
                text = markdown(run, SUMMARY_LIMIT - there - len(start), context)
                if not text:
                    return (
                        f"note: no job summary written, as {self.summary} already has {there:,} "
                        f"of the {SUMMARY_LIMIT:,} bytes that GitHub shows"
                    )
                stream.write((start + text).encode(errors="replace"))
        except OSError as error:
            return f"note: the job summary {self.summary} cannot be written ({error.strerror})"
        return "job summary: written"


def actions(environment: Mapping[str, str]) -> Actions | None:
    """The files that this environment names; None outside of GitHub Actions."""
    if environment.get("GITHUB_ACTIONS") != "true":
        return None
    summary, workspace = map(environment.get, ("GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"))
    return Actions(Path(summary) if summary else None, Path(workspace) if workspace else None)


def workflow_commands(
    results: Iterable[Result],
    places: Mapping[str, Place],
    spared: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """One line per measurement or ratio that failed or is in doubt, the worst first.

    GitHub shows the first ten errors and the first ten warnings of a step. `places` are by node id;
    a test without a place is named but not marked. `spared` gives, by node id, the reason why a
    test did not fail ("expected to fail"). Its error becomes a notice.
    """
    for result in view.worst_first(results):
        why = (spared or {}).get(result.test, "")
        if result.outcome in FAULTS:
            level = "notice" if why else "error"
            yield _command(level, result, places.get(result.test), why)
        elif result.outcome in DOUBTS:
            yield _command("warning", result, places.get(result.test))


def _command(level: str, result: Result, place: Place | None, why: str = "") -> str:
    said = [*([why] if why else []), *view.reasons(result)]
    if result.attribution:
        said += kernel_lines.lines(result.attribution, table.WIDTH, _KERNELS)
    file, line = (place.file, place.line) if place else ("", None)
    title = f"gpuperf: {view.standing(result)}"
    properties = {"file": file, "line": str(line or ""), "title": title}
    written = ",".join(f"{name}={_property(text)}" for name, text in properties.items() if text)
    return f"::{level} {written}::{_data(chr(10).join(said))}"


def _data(text: str) -> str:
    """`text` as the message of a command: nothing in it ends the line."""
    return printable_lines(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """`text` as the value of a property: nothing in it ends the value, either."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
