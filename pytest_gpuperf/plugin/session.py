"""What a session has measured, and what becomes of it: run file, reports, summary."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.baselines import acceptance
from pytest_gpuperf.baselines.judgement import RECORDABLE
from pytest_gpuperf.errors import GpuperfError
from pytest_gpuperf.model.result import Outcome, Result, Run, Verdict
from pytest_gpuperf.report import formats, github, interchange, order
from pytest_gpuperf.report.github import workflow_commands
from pytest_gpuperf.report.order import Judgement
from pytest_gpuperf.report.text import table
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.progress import Below, Occasional, Outlet, obeys
from pytest_gpuperf.report.text.step_tables import configurations
from pytest_gpuperf.report.text.summary import summary
from pytest_gpuperf.report.text.table import Line
from pytest_gpuperf.storage import run_files
from pytest_gpuperf.storage.files import adapter, short, utc_now, write_atomically

if TYPE_CHECKING:
    from pytest_gpuperf.model.settings import Settings

if TYPE_CHECKING:
    pass


_LOOKED_THROUGH = 3
"""Earlier runs that are read to find one to compare a regression with."""


def session_of(
    settings: Settings, command: str, folder: Path, saved: Path | None = None
) -> CommandContext:
    """What the commands to type next depend on, for somebody in `folder`.

    `command` are the arguments of pytest that say what is measured; `saved` is the run's file.
    """
    # Elsewhere than in the root, `gpuperf update-baseline` does not find the newest run.
    run = settings.replay or settings.run or (saved if folder != settings.root else None)
    known = settings.baselines == folder / "baselines"
    return CommandContext(
        command=command,
        run=short(run, folder) if run else "",
        replayed=settings.replay is not None,
        baselines="" if known else short(settings.baselines, folder),
        processes=settings.processes,
        missing_passes=settings.missing == "warn",
    )


class Ledger:
    """Gathers judged measurements; lives in the one process that writes."""

    def __init__(self) -> None:
        self.refusals: list[str] = []
        """Usage failures that came up inside tests; the session then exits with 4."""
        self.annotations: list[str] = []
        """Lines for GitHub Actions, to be printed as they are."""
        self._judged: list[Result] = []
        self._passed: list[Result] = []
        self._notes: list[str] = []
        self._locations: dict[str, tuple[str, int | None]] = {}
        self._spared: dict[str, str] = {}
        self._settings: Settings | None = None
        self._saved: Path | None = None
        self._recorded: set[tuple[str, str]] = set()

    def locate(self, test: str, file: str, line: int | None) -> None:
        """Notes where a test is written: its file, relative to the root, and its line from 0 on."""
        self._locations[test] = (file, line)

    def spare(self, test: str, why: str) -> None:
        """Notes why a test did not fail, whatever it measured; "" for one that has failed."""
        self._spared[test] = why

    def add(self, texts: Iterable[str], refusal: str = "", *, failed: bool = False) -> None:
        """Takes the judged measurements of one test, as JSON."""
        judged = [adapter(Result).validate_json(text) for text in texts]
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
        self._settings = settings
        run = Run(run_files.SCHEMA, utc_now(), command, ()).with_results(self._judged)
        if settings.replay is None:
            file = settings.run or run_files.new_file(settings.root)
            run_files.save(run, file)
            self._saved = file
        self._tell_github(run, settings)
        saved = short(self._saved, settings.root) if self._saved else ""
        for report in settings.reports:
            write_atomically(report, formats.text(run, report, saved))
            self._notes.append(f"report written: {short(report, settings.root)}")
        if settings.missing == "record":
            self._record(settings.baselines, run, settings.root)

    def summary(
        self, width: int, command: str, folder: Path | None = None, *, verbose: bool = False
    ) -> list[Line]:
        """The terminal summary, in lines of at most `width` characters.

        `command` are the arguments of pytest that say what is measured, typed in `folder`, the root
        if not given. `verbose`: with a table for every measurement and a row for every metric,
        however many there are.
        """
        judged = [
            (entry.measurements, entry.verdicts) for entry in self._judged if entry.measurements
        ]
        expected = [expectation for entry in self._judged for expectation in entry.expectations]
        session, run = CommandContext(command), ""
        if self._settings is not None:
            root = self._settings.root
            session = self._session(self._settings, command, folder or root, judged)
            run = short(self._saved, root) if self._saved else ""
        side_by_side = configurations(judged, width, verbose=verbose)
        lines = summary(judged, width, session, run, expected, notes=self._notes, verbose=verbose)
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
        self.annotations += workflow_commands(run, places, self._spared)

    def _session(
        self, settings: Settings, command: str, folder: Path, judged: Sequence[Judgement]
    ) -> CommandContext:
        session = session_of(settings, command, folder, self._saved)
        before = self._before(settings.root, judged)
        compared = None
        if before and self._saved:
            compared = (short(before, folder), short(self._saved, folder))
        return replace(session, compared=compared, recorded=frozenset(self._recorded))

    def _before(self, root: Path, judged: Sequence[Judgement]) -> Path | None:
        """An earlier run in which the worst of the regressed tests was measured and had not."""
        measurements, verdicts = next(iter(order.worst_first(judged)), ((), ()))
        if self._saved is None or not _regressed(verdicts):
            return None
        worst = measurements[0]
        files = sorted((root / run_files.FOLDER).glob("*.json"), reverse=True)
        for file in [file for file in files if file != self._saved][:_LOOKED_THROUGH]:
            with suppress(GpuperfError):
                run = run_files.load(file)
                same = [
                    m.fingerprint.device.name == worst.fingerprint.device.name
                    for m in run.measurements
                    if (m.test, m.name, m.workload) == (worst.test, worst.name, worst.workload)
                ]
                found = [v for v in run.verdicts if (v.test, v.name) == (worst.test, worst.name)]
                if any(same) and not _regressed(found):
                    return file
        return None

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
        request = acceptance.AcceptanceRequest(
            folder, reason, run.created, force=True, only_new=True
        )
        for proposal in acceptance.accept(acceptance.proposals(measurements, request)):
            self._recorded.add((proposal.test, proposal.name))
            self._notes.append(
                f"baseline recorded: {proposal.test} in {short(proposal.file, root)}"
            )


def _regressed(verdicts: Iterable[Verdict]) -> bool:
    return any(verdict.outcome is Outcome.REGRESSED for verdict in verdicts)


# What files of other plugins get of a test: properties in JUnit's, counters in benchmarks.

_BENCHMARK = "benchmark"
"""The fixture of pytest-benchmark."""


def share(
    judged: Sequence[Result],
    user_properties: list[tuple[str, object]],
    fixtures: Mapping[str, object],
) -> None:
    """Puts what a test measured so far into its properties, and into its benchmark's extra_info.

    `fixtures` are the values of the test's fixtures, by name. What an earlier execution of the test
    has put there is replaced.
    """
    others = [entry for entry in user_properties if not entry[0].startswith(interchange.PREFIX)]
    ours: list[interchange.Property] = []
    for entry in judged:
        if entry.measurements:
            ours += interchange.of_measurement(entry.measurements, entry.verdicts)
        ours += interchange.of_expectations(entry.expectations)
    user_properties[:] = [*others, *ours]
    extra = getattr(fixtures.get(_BENCHMARK), "extra_info", None)
    if isinstance(extra, dict) and judged:
        extra[interchange.KEY] = {
            entry.measurements[0].name: interchange.extra_info(entry.measurements, entry.verdicts)
            for entry in judged
            if entry.measurements
        }


# pytest's terminal, as far as progress appears there.


def outlet(config: Any) -> Outlet:
    """Where progress appears in the session of this pytest.Config, past the capture of output.

    None under -q, and in a worker of xdist, which has no reporter.
    """
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or config.get_verbosity() < 0:
        return Outlet()

    def columns() -> int:
        with _uncaptured(config):  # the size is asked of stdout
            return int(reporter._tw.fullwidth)

    def write(text: str) -> None:
        with _uncaptured(config):
            sys.stdout.write(text)
            sys.stdout.flush()

    def say(text: str) -> None:
        with _uncaptured(config):
            reporter.ensure_newline()
            reporter.write_line(text)

    if obeys(reporter.isatty) and not _others_print(config):
        return Below(write, columns, lambda: int(reporter._tw.width_of_current_line))
    return Occasional(say, columns)


def _uncaptured(config: Any) -> AbstractContextManager[None]:
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    return capture.global_and_fixture_disabled() if capture else nullcontext()


def _others_print(config: Any) -> bool:
    """Whether what tests print, or log, appears while they run: then no line can be erased."""
    logged = config.pluginmanager.hasplugin("logging") and (
        config.getini("log_cli") or config.getoption("log_cli_level") is not None
    )
    return bool(logged) or config.getoption("capture", "no") not in ("fd", "sys")
