"""The ledger of a session: its results as they come, and what is written of them at its end."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.baselines import acceptance, judgement
from pytest_gpuperf.baselines.judgement import RECORDABLE
from pytest_gpuperf.baselines.reference import forerunner
from pytest_gpuperf.errors import GpuperfError
from pytest_gpuperf.measure.instrument import PROVING
from pytest_gpuperf.model.measurement import title_of
from pytest_gpuperf.model.result import (
    FAULTS,
    TEST_FAILED,
    TEST_NOT_FAILED,
    Outcome,
    Result,
    Run,
    Unfinished,
)
from pytest_gpuperf.report import github, interchange, view
from pytest_gpuperf.report.text import failure
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.summary import summary
from pytest_gpuperf.report.text.table import Line, wrapped_lines
from pytest_gpuperf.storage import files, run_files

if TYPE_CHECKING:
    from pytest_gpuperf.model.settings import Settings

_DRAFTS_S, _DRAFTS_SHARE = 1.0, 0.02
"""The most seconds, and the largest share of a session, that drafts of the run may take: they grow
each of a thousand measurements."""


@dataclass(frozen=True)
class _Kept:
    """A result, until the session's end."""

    test: str
    put: bytes
    failed: bool
    """Whether its test has failed."""
    told: bool
    """Whether a failing test's message says all of this result."""
    place: tuple[str, int | None]
    """The test's file, relative to the root, and its line from 0 on."""


class Ledger:
    """Gathers results; lives in the one process that writes. `command` is what pytest was given."""

    def __init__(
        self, settings: Settings, command: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.refusals: list[str] = []
        """Usage failures that came up inside tests; the session then exits with 4."""
        self.annotations: list[str] = []
        """Lines for GitHub Actions, to be printed as they are."""
        self.collected: Collection[str] = ()
        """The node ids of all tests that were found, selected or not."""
        self.skipped: Mapping[str, str] = {}
        """Tests that were skipped or failed, each with its reason."""
        self.unmeasured: dict[str, Sequence[str]] = {}
        """Of tests that ran, the names of entries in the baseline that they have not measured."""
        self._settings = settings
        self._command = command
        self._clock = clock
        self._begun = clock()
        self._drafts_s = 0.0
        self.saved: Path | None = None
        """The run's file, once it was written."""
        self._kept: list[_Kept] = []
        self._said: set[str] = set()
        """Refusals that are already in the message of a failing test."""
        self._notes: list[str] = []
        self._recorded: set[tuple[str, str]] = set()
        self._causes: dict[str, Result] = {}
        """The reasons for which tests have failed, each with its first result."""

    def add(
        self,
        texts: Iterable[str],
        refusal: str = "",
        *,
        failed: bool = False,
        told: bool = False,
        place: tuple[str, int | None] = ("", None),
    ) -> None:
        """Takes the results of one test, as JSON, and the usage failure that ended it.

        `told`: pytest prints a message of ours, which says all of the last result or the failure.
        """
        results = [files.adapter(Result).validate_json(text) for text in texts]
        for result in results:
            said = told and result is results[-1]
            self._kept.append(_Kept(result.test, files.put_away(result), failed, said, place))
            if not said:
                self._notes += [f"note: {note.splitlines()[0]}" for note in result.notes]
        if refusal:
            self.refusals.append(refusal)
            self._said.update([refusal] if told else [])

    def repeated(self, width: int) -> list[str]:
        """The lines instead of the message of the test added last; [] where its cause is new.

        They are two lines of at most `width` characters, where another test failed for this cause.
        """
        result = files.taken_out(Result, self._kept[-1].put)
        failing = [entry for entry in result.said if judgement.fails(entry, self._settings)]
        key = failure.cause(result) if failing else ""
        first = self._causes.setdefault(key, result) if key else result
        return (
            failure.again(result, failing, first.title, width) if first.test != result.test else []
        )

    def arrange(self, order: Sequence[str]) -> None:
        """Puts the results into this order of their tests.

        Workers finish the tests in a different order each time, and a table of configurations is
        relative to the first.
        """
        places = {test: place for place, test in enumerate(order)}
        self._kept.sort(key=lambda kept: places.get(kept.test, len(places)))

    def save_draft(self, ran: int, collected: int) -> None:
        """Writes the run so far: a session that is killed then loses one test at most.

        The draft says that `ran` tests of `collected` have run, until `save` is called.

        Where drafts took a fiftieth of the session and a second, no draft is written for a while. A
        killed session then loses all tests since the last. `save` reports errors of drafts.
        """
        before = self._clock()
        allowed = _DRAFTS_S + _DRAFTS_SHARE * (before - self._begun)
        if self._kept and self._settings.replay is None and self._drafts_s < allowed:
            with suppress(GpuperfError):
                run = self._run_of([files.taken_out(Result, kept.put) for kept in self._kept])
                run = replace(run, unfinished=Unfinished(ran, collected))
                run_files.save_draft(run, self._file)
            self._drafts_s += self._clock() - before

    def save(self, context: Callable[[Path], CommandContext]) -> None:
        """Writes the run file and the reports, and records missing baselines where asked to.

        `context` is what commands in reports depend on, by the run's file. Raises BadFile, before
        anything is overwritten.
        """
        if not self._kept:
            return
        settings, run = self._settings, self._run_of(self._results)
        if settings.replay is None:
            run_files.save(run, self._file)
            self.saved = self._file
        with suppress(GpuperfError):  # a file that nobody was judged by
            self._notes += self._moved()
        # Their reader is anywhere, some days later: the newest run is another one then.
        file = files.short(self.saved, settings.root) if self.saved else ""
        typed = context(self._file)
        typed = replace(typed, run=typed.run or file)
        self._tell_github(run, typed)
        for report in settings.reports:
            files.write_atomically(report, interchange.report_text(run, report, file, typed))
            self._notes.append(f"report written: {files.short(report, settings.root)}")
        if settings.missing == "record":
            self._record(run)

    def summary(self, width: int, context: CommandContext, *, verbose: bool = False) -> list[Line]:
        """The terminal summary in lines of at most `width` characters, but for `closing`.

        `verbose`: with a table for every measurement and a row for every metric.
        """
        context = replace(context, recorded=frozenset(self._recorded))
        if self.saved and sum(result.outcome in FAULTS for result in self._results) > 1:
            # Once the worst is measured again, the newest run has that test alone.
            context = replace(context, run=context.typed(self.saved))
        pairs = zip(self._results, self._kept, strict=True)
        known = [result for result, kept in pairs if kept.told]
        return summary(
            self._results, width, context, notes=self._notes, told=known, verbose=verbose
        )

    @property
    def nothing_judged(self) -> str:
        """Why the session fails although no test did, as a sentence; "" where it does not."""
        in_vain = judgement.none_judged(self._results, self._settings)
        return view.none_judged(in_vain) if in_vain else ""

    @property
    def fails(self) -> bool:
        """Whether the session fails although no test did."""
        required = self._settings.require_judged
        return bool(self.nothing_judged or (required and any(self._lacking())))

    def closing(self, width: int, context: CommandContext) -> list[Line]:
        """The summary's last lines: why the session fails though no test did, and the totals."""
        refused = dict.fromkeys(entry for entry in self.refusals if entry not in self._said)
        texts = [line for refusal in refused for line in f"usage error: {refusal}".splitlines()]
        uncompared = "" if self._settings.judge else "--gpuperf-no-judge"
        run = context.typed(self.saved) if self.saved else ""
        totals = view.totals(self._results, run, uncompared)
        tone = "bad" if self._settings.require_judged else "doubtful"
        return [
            *(line for text in texts for line in wrapped_lines(text, width, "bad")),
            *wrapped_lines(self.nothing_judged, width, "bad"),
            *(line for text in self._lacking() for line in wrapped_lines(text, width, tone)),
            *wrapped_lines(totals, width),
        ]

    def _lacking(self) -> Iterator[str]:
        """Sentences on code that is not the checkout's, and on entries that were not measured."""
        fails = "failed: " if self._settings.require_judged else ""
        if said := view.other_code(self._results):
            yield f"{fails}{said}. Their revision is unknown. Type `pip install -e .`"
        titles = [
            title_of(test, name) + (f" ({self.skipped[test]})" if test in self.skipped else "")
            for test, names in self.unmeasured.items()
            for name in names
        ]
        if titles:
            yield f"{fails}the baseline has tests that were not measured: {', '.join(titles)}"

    @cached_property
    def _results(self) -> list[Result]:
        """All results, at the session's end."""
        return [files.taken_out(Result, kept.put) for kept in self._kept]

    def _run_of(self, results: Sequence[Result]) -> Run:
        measured = {kept.test for kept in self._kept}
        skipped = {
            test: why
            for test, why in self.skipped.items()
            if test not in measured or why == TEST_FAILED
        }
        if PROVING in os.environ:
            red = {result.test for result in results if result.outcome in FAULTS}
            spared = red - {kept.test for kept in self._kept if kept.failed}
            skipped |= dict.fromkeys(spared, TEST_NOT_FAILED)
        run = Run(run_files.SCHEMA, files.utc_now(), self._command, (), skipped=skipped)
        return run.with_results(results)

    @cached_property
    def _file(self) -> Path:
        return self._settings.run or run_files.new_file(self._settings.root)

    def _moved(self) -> Iterator[str]:
        """Lines on tests without an entry, each with the removed test that had an equal entry."""
        settings = self._settings
        for result in self._results:
            if not any(verdict.reason in RECORDABLE for verdict in result.verdicts):
                continue
            new = result.test
            old = forerunner(result.first, settings.baselines, self.collected, settings.root)
            if old:
                yield (
                    f"note: {title_of(new)} has no baseline, but {old}, which no longer exists, "
                    "has one with the same workload. If the test was renamed, type:"
                )
                yield f"  {shlex.join(('gpuperf', 'baseline', 'rename', old, new))}"

    def _tell_github(self, run: Run, context: CommandContext) -> None:
        settings = self._settings
        actions = github.actions(os.environ) if settings.github == "auto" else None
        if actions is None:
            return
        note = actions.append(run, context)
        self._notes += [note] if note else []
        places = {kept.test: actions.place(settings.root, *kept.place) for kept in self._kept}
        failed = {kept.test for kept in self._kept if kept.failed}
        spared = dict.fromkeys(places.keys() - failed, "the test did not fail")
        self.annotations += github.workflow_commands(run.results(), places, spared)

    def _record(self, run: Run) -> None:
        new = [
            result
            for result, kept in zip(self._results, self._kept, strict=True)
            if not kept.failed
            and any(verdict.reason in RECORDABLE for verdict in result.verdicts)
            and not any(verdict.outcome is Outcome.REGRESSED for verdict in result.verdicts)
        ]
        measurements = [m for result in new for m in result.measurements]
        # One process is what there is. The log says so, by what it was forced over.
        request = acceptance.AcceptanceRequest(
            self._settings.baselines,
            "recorded by --gpuperf-missing record",
            run.created,
            force=True,
            only_new=True,
        )
        for proposal in acceptance.accept(acceptance.proposals(measurements, request)):
            test, file = proposal.first.test, files.short(proposal.file, self._settings.root)
            self._recorded.add((test, proposal.first.name))
            self._notes.append(f"baseline recorded: {test} in {file}")
