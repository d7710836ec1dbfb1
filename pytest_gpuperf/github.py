"""GitHub Actions: the step's job summary, and where its checkout lies."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.model import Run
from pytest_gpuperf.report import messages
from pytest_gpuperf.report.annotations import Place
from pytest_gpuperf.report.markdown import markdown

SUMMARY_LIMIT = 1024 * 1024
"""Bytes of a step's job summary; GitHub drops one that is longer as a whole."""


@dataclass(frozen=True)
class Actions:
    """What GitHub Actions tells the steps of a job."""

    summary: Path | None
    """The file that a step appends its job summary to."""
    workspace: Path | None
    """The checkout."""

    def place(self, root: Path, file: str, line: int | None) -> Place:
        """A test's file and line (from 0 on), as pytest gives them, as GitHub wants them."""
        path = Path(os.path.normpath(root.resolve() / file))
        short = messages.short(path, self.workspace.resolve()) if self.workspace else file
        return Place(short, None if line is None else line + 1)

    def append(self, run: Run) -> str:
        """Appends the Markdown of `run` to the job summary, and says in a sentence what came of it.

        Returns "" where GitHub asks for none. Never raises: a summary is worth no failed session.
        """
        if self.summary is None:
            return ""
        try:
            with self.summary.open("a+b") as stream:
                there = stream.seek(0, os.SEEK_END)
                # What stands there may have come without a line's end.
                start = "\n\n" if there else ""
                text = markdown(run, SUMMARY_LIMIT - there - len(start))
                if not text:
                    return (
                        f"note: no job summary: {self.summary} has {there:,} of the "
                        f"{SUMMARY_LIMIT:,} bytes that GitHub shows"
                    )
                stream.write((start + text).encode(errors="replace"))
        except OSError as error:
            return f"note: no job summary: {self.summary} cannot be written ({error.strerror})"
        return "job summary: written"


def actions(environment: Mapping[str, str]) -> Actions | None:
    """What this environment tells of GitHub Actions; None elsewhere."""
    if environment.get("GITHUB_ACTIONS") != "true":
        return None
    return Actions(
        _path(environment, "GITHUB_STEP_SUMMARY"), _path(environment, "GITHUB_WORKSPACE")
    )


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    value = environment.get(name)
    return Path(value) if value else None
