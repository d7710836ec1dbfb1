"""What a session has measured, and what becomes of it: run file, reports, summary."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf import acceptance, clock, files, github, reporting, runs
from pytest_gpuperf.judge.blamed import Blame
from pytest_gpuperf.model import Expectation, KernelBlame, Measurement, Outcome, Run, Verdict
from pytest_gpuperf.report import messages, table
from pytest_gpuperf.report.annotations import workflow_commands
from pytest_gpuperf.report.configurations import configurations
from pytest_gpuperf.report.line import Line
from pytest_gpuperf.report.summary import summary

if TYPE_CHECKING:
    from pytest_gpuperf.options import Settings


RECORDABLE = ("no-file", "no-entry")
"""Reasons for which `--gpuperf-missing record` makes a baseline: there is none to be replaced."""


@dataclass(frozen=True)
class Judged:
    """A measurement of a test, one entry per process, and what the judge said of it.

    Without measurements, what a test expects of those that others made.
    """

    measurements: tuple[Measurement, ...]
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()
    """What went wrong on the way, as sentences."""
    expectations: tuple[Expectation, ...] = ()
    blame: Blame | None = None
    """Which kernels a change comes from, where they are known now and in the baseline."""


def to_text(judged: Judged) -> str:
    """A judged measurement as text, for the way from an xdist worker to its controller."""
    return files.to_json(judged)


class Ledger:
    """Gathers judged measurements; lives in the one process that writes."""

    def __init__(self) -> None:
        self.refusals: list[str] = []
        """Usage failures that came up inside tests; the session then exits with 4."""
        self.annotations: list[str] = []
        """Lines for GitHub Actions, to be printed as they are."""
        self._judged: list[Judged] = []
        self._passed: list[Judged] = []
        self._notes: list[str] = []
        self._locations: dict[str, tuple[str, int | None]] = {}
        self._run = ""

    def locate(self, test: str, file: str, line: int | None) -> None:
        """Notes where a test is written: its file, relative to the root, and its line from 0 on."""
        self._locations[test] = (file, line)

    def add(self, texts: Iterable[str], refusal: str = "", *, failed: bool = False) -> None:
        """Takes the judged measurements of one test, written by `to_text`."""
        judged = [files.adapter(Judged).validate_json(text) for text in texts]
        self._judged += judged
        self._notes += [f"note: {note.splitlines()[0]}" for j in judged for note in j.notes]
        if not failed:
            self._passed += judged
        if refusal:
            self.refusals.append(refusal)

    def save(self, settings: Settings, command: str) -> None:
        """Writes the run file and the reports, and records missing baselines where asked to.

        Raises BadFile, before anything is overwritten.
        """
        if not self._judged:
            return
        run = Run(
            schema=runs.SCHEMA,
            created=clock.now(),
            command=command,
            measurements=tuple(m for judged in self._judged for m in judged.measurements),
            verdicts=tuple(v for judged in self._judged for v in judged.verdicts),
            expectations=tuple(e for judged in self._judged for e in judged.expectations),
            blames=tuple(
                KernelBlame(judged.measurements[0].test, judged.measurements[0].name, judged.blame)
                for judged in self._judged
                if judged.blame
            ),
        )
        if settings.replay is None:
            file = settings.run or runs.new_file(settings.root)
            runs.save(run, file)
            self._run = messages.short(file, settings.root)
        self._tell_github(run, settings)
        for report in settings.reports:
            files.write_atomically(report, reporting.text(run, report, self._run))
            self._notes.append(f"report written: {messages.short(report, settings.root)}")
        if settings.missing == "record":
            self._record(settings.baselines, run, settings.root)

    def summary(self, width: int, command: str) -> list[Line]:
        """The terminal summary, in lines of at most `width` characters."""
        judged = [
            (entry.measurements, entry.verdicts) for entry in self._judged if entry.measurements
        ]
        expected = [expectation for entry in self._judged for expectation in entry.expectations]
        side_by_side = configurations(judged, width)
        lines = summary(judged, width, command, self._run, expected)
        for note in dict.fromkeys(self._notes):
            lines += [Line(text) for text in table.wrapped([note], width, "")]
        for refusal in dict.fromkeys(self.refusals):
            for text in f"refused: {refusal}".splitlines():
                lines += [Line(part, "bad") for part in table.wrapped([text], width, "")]
        return side_by_side + lines

    def _tell_github(self, run: Run, settings: Settings) -> None:
        actions = github.actions(os.environ) if settings.github == "auto" else None
        if actions is None:
            return
        note = actions.append(run)
        self._notes += [note] if note else []
        places = {
            test: actions.place(settings.root, *location)
            for test, location in self._locations.items()
        }
        self.annotations += workflow_commands(run, places)

    def _record(self, folder: Path, run: Run, root: Path) -> None:
        new = [
            judged
            for judged in self._passed
            if any(verdict.reason in RECORDABLE for verdict in judged.verdicts)
            and not any(verdict.outcome is Outcome.REGRESSED for verdict in judged.verdicts)
        ]
        measurements = [m for judged in new for m in judged.measurements]
        reason = "recorded by --gpuperf-missing record"
        # One process is what there is. The log says so, by what it was forced over.
        request = acceptance.Request(folder, reason, run.created, force=True, only_new=True)
        for proposal in acceptance.accept(acceptance.proposals(measurements, request)):
            self._notes.append(
                f"baseline recorded: {proposal.test} in {messages.short(proposal.file, root)}"
            )
