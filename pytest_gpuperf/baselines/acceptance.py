"""The acceptance of measurements as baselines: what `gpuperf update-baseline` writes, and why.

Works from saved runs; needs no GPU and runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_gpuperf.baselines.objections import (
    Objection,
    about_measurements,
    counts_as_before,
    creep_since,
    limitations,
    without_kernels,
)
from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.errors import GpuperfError, UsageFailure, printable
from pytest_gpuperf.judge.drift import Drift
from pytest_gpuperf.judge.interval import centre
from pytest_gpuperf.judge.verdict import NEW_METRIC
from pytest_gpuperf.model.entry import (
    Acceptance,
    BaselineFile,
    Change,
    Entry,
    KernelList,
    Origin,
)
from pytest_gpuperf.model.measurement import STEP, Device, KernelTable, Measurement
from pytest_gpuperf.model.result import Outcome, Run
from pytest_gpuperf.storage import baseline_files, files, kernel_files

_ASKING = (
    *(Outcome.REGRESSED, Outcome.IMPROVED, Outcome.OUTWEIGHED),
    *(Outcome.NO_BASELINE, Outcome.MACHINE),
)
_SETTLED = (Outcome.UNCHANGED, Outcome.INCONCLUSIVE, Outcome.UNFIT)

Content = tuple[Path, bytes | None]
"""A file and what it is to hold; None for no file."""


class Refused(GpuperfError):
    """Objections that nothing overrules; nothing was written. Exit code 1: the input is good."""


@dataclass(frozen=True)
class AcceptanceRequest:
    """How measurements are to be accepted."""

    folder: Path
    """The folder of the baselines."""
    reason: str
    created: str
    """When they were measured: UTC, ISO 8601."""
    force: bool = False
    """Objections are overruled, and the log says so."""
    only_new: bool = False
    """What has an entry is left as it is."""
    new_origin: bool = False
    """The new entries start over as their own origins."""


@dataclass(frozen=True)
class Proposal:
    """One measurement of one test, from one or more processes, to be accepted."""

    file: Path
    device: Device
    measurements: tuple[Measurement, ...]
    request: AcceptanceRequest
    entry: Entry
    acceptance: Acceptance
    origin: Origin | None
    """What the replaced entry was held against besides itself; None where it was the first."""
    since: tuple[Drift, ...]
    """How the new entry stands against that origin."""
    objections: tuple[Objection, ...]
    notes: tuple[str, ...]
    table: KernelTable | None
    """What the step launched, where a process has it; kept beside the entry's file."""

    @property
    def test(self) -> str:
        """The node id of the test."""
        return self.measurements[0].test

    @property
    def name(self) -> str:
        """The name of the measurement within its test."""
        return self.measurements[0].name

    @property
    def files(self) -> tuple[Path, ...]:
        """What is written of it: the baseline file, and that of the kernel tables."""
        return (self.file, kernel_files.path_beside(self.file)) if self.table else (self.file,)

    @property
    def refused(self) -> bool:
        """Whether it cannot be accepted as it is."""
        return bool(self.objections) and not self.request.force


def settled(runs: Iterable[Run]) -> set[tuple[str, str]]:
    """Test and name of what these runs judged without asking for another baseline.

    It is unchanged, or undecided, or was measured on an unfit device: in all of them, and with no
    metric that the baseline lacks.
    """
    left: set[tuple[str, str]] = set()
    asking: set[tuple[str, str]] = set()
    for run in runs:
        for result in run.results():
            outcomes = {verdict.outcome for verdict in result.verdicts}
            has_new = any(verdict.reason == NEW_METRIC for verdict in result.verdicts)
            is_settled = outcomes & {*_SETTLED} and not (has_new or outcomes & {*_ASKING})
            (left if is_settled else asking).add((result.test, result.name))
    return left - asking


def proposals(measurements: Iterable[Measurement], request: AcceptanceRequest) -> list[Proposal]:
    """What accepting `measurements` would change, test by test, in their order.

    Raises BadFile when a baseline file that would be changed cannot be read: it is not overwritten;
    UsageFailure when processes measured different workloads.
    """
    groups: dict[tuple[str, str, Device], list[Measurement]] = {}
    for measurement in measurements:
        # Several machines of the same device share a baseline: identity is not part of the key.
        device = replace(measurement.fingerprint.device, identity="")
        groups.setdefault((measurement.test, measurement.name, device), []).append(measurement)
    proposed = []
    for first, *others in groups.values():
        if any(dict(other.workload) != dict(first.workload) for other in others):
            raise UsageFailure(
                f'the measurements "{first.name}" of {first.test} are of different workloads, so '
                "they are no baseline: record them anew, with one workload"
            )
        proposed.append(_proposed((first, *others), _known(first, request), request))
    return [proposal for proposal in proposed if proposal]


def accept(shown: Sequence[Proposal]) -> tuple[Proposal, ...]:
    """Writes proposals into their files: all of them, or none.

    Whoever is killed at it leaves each suite's files as they were, or as they are to be.
    Under locks, since others may be accepting beside us: what each proposal replaces is looked up
    again, and the ones returned say what was really replaced. Raises Refused when there are
    objections and no force, BadFile and UsageFailure when a file cannot be read or written.
    """
    by_file: dict[Path, list[Proposal]] = {}
    for proposal in shown:
        by_file.setdefault(proposal.file, []).append(proposal)
    done: list[Proposal] = []
    with ExitStack() as locks:
        # In one order, so that two who accept into the same folders do not wait for each other.
        for folder in sorted({proposal.request.folder.resolve() for proposal in shown}):
            locks.enter_context(files.changing(folder))
        baselines: list[Content] = []
        tables: list[Content] = []
        cleared: list[Content] = []
        for file, group in by_file.items():
            before = known = _known(group[0].measurements[0], group[0].request)
            accepted = []
            for proposal in group:
                if now := _proposed(proposal.measurements, known, proposal.request):
                    known = baseline_files.with_entry(
                        known,
                        now.test,
                        now.name,
                        now.entry,
                        now.acceptance,
                        baseline_files.machines_of(now.measurements),
                    )
                    accepted.append(now)
            if accepted:
                baselines.append((file, baseline_files.to_text(known, file).encode()))
                made = {(p.test, p.name): p.table for p in accepted if p.table is not None}
                first, last = _kernels(file, accepted[0].device, before, known, made)
                tables += first
                cleared += last
                done += accepted
        objected = [
            f"\n  {printable(proposal.test)}: {printable(objection.text)}"
            for proposal in done
            if proposal.refused
            for objection in proposal.objections
        ]
        if objected:
            raise Refused(f"refused, nothing was written:{''.join(objected)}")
        # In this order a reader finds an entry's table at any moment, whoever is killed in between.
        _write([*tables, *baselines, *cleared])
    return tuple(done)


def rename(file: Path, tests: Mapping[str, str], date: str) -> None:
    """Gives the entries of a baseline file to other tests: new node ids by old ones.

    They keep samples, origin and kernel table, and the log says whose they were, on this `date`.
    The new ones are of one folder: where that is another suite's, they go to its file. Whoever is
    killed at it leaves files that can be read, with each entry in one of them at least. Raises
    UsageFailure for an old test without an entry, or a new one with one, and BadFile.
    """
    folder = file.parent.parent.parent
    with files.changing(folder.resolve()):
        known = baseline_files.load(file)
        if known is None:
            raise UsageFailure(f"{file}: no such baseline file")
        device = Device(known.arch, known.device, file.parent.name)
        (suite,) = {baseline_files.suite_of(new) for new in tests.values()}
        target = baseline_files.path_for(folder, device, suite)
        there = baseline_files.load(target) or baseline_files.empty(device, suite)
        for old, new in tests.items():
            if old not in known.tests or new in there.tests:
                which = f"{new} has one" if old in known.tests else f"{old} has none"
                raise UsageFailure(f"{file}: an entry goes from {old} to {new}, and {which}")
        known_tables = kernel_files.load_for(file, device, known.suite)
        tables = {
            (new, name): table
            for old, new in tests.items()
            for name, one in known.tests[old].items()
            if known_tables
            and one.kernels
            and (table := kernel_files.accepted_table(known_tables, old, name, one.kernels))
        }
        stay = {test: own for test, own in there.tests.items() if test not in tests}
        log = [
            Acceptance(date, f"renamed from {old}", new, name, one.revision, len(one.days), {})
            for old, new in tests.items()
            for name, one in known.tests[old].items()
        ]
        came = {new: known.tests[old] for old, new in tests.items()}
        made = baseline_files.with_tests(there, {**stay, **came}, known.machines)
        made = replace(made, accepted=(*there.accepted, *log))
        _rewrite(target, device, there, made, tables)
        if target != file:
            left = {test: own for test, own in known.tests.items() if test not in tests}
            _rewrite(file, device, known, baseline_files.with_tests(known, left), {})


def _rewrite(
    file: Path,
    device: Device,
    before: BaselineFile,
    after: BaselineFile,
    new: Mapping[tuple[str, str], KernelTable],
) -> None:
    first, last = _kernels(file, device, before, after, new)
    _write([*first, (file, baseline_files.to_text(after, file).encode()), *last])


def _known(first: Measurement, request: AcceptanceRequest) -> BaselineFile:
    device = first.fingerprint.device
    known = baseline_files.load_for(request.folder, device, first.suite)
    return known or baseline_files.empty(device, first.suite)


def _proposed(
    group: tuple[Measurement, ...], known: BaselineFile, request: AcceptanceRequest
) -> Proposal | None:
    """The proposal for one measurement of one test; None where only new ones are wanted."""
    first = group[0]
    old = known.tests.get(first.test, {}).get(first.name)
    if old is not None and request.only_new:
        return None
    table = kernel_files.chosen(group)
    plain = baseline_files.entry_of(group, request.created[:10])
    listed, about_kernels = _kernel_list(group, plain, old, table)
    new = replace(plain, kernels=listed)
    tolerances = {**known.tolerance, **first.tolerance}
    creep = creep_since(new, old, tolerances, known.calibration, new_origin=request.new_origin)
    objections = (*about_measurements(group), *creep.objections)
    new = replace(new, origin=creep.origin)
    forced = [objection.short for objection in objections] if request.force else []
    return Proposal(
        file=baseline_files.path_for(request.folder, first.fingerprint.device, first.suite),
        device=first.fingerprint.device,
        measurements=group,
        request=request,
        entry=new,
        acceptance=_accepted(group, old, new, request.reason, (*forced, *creep.forced)),
        origin=old.origin if old and creep.since else None,
        since=creep.since,
        objections=objections,
        notes=(*limitations(group, plain), *about_kernels, *creep.notes),
        table=table,
    )


def _kernel_list(
    group: Sequence[Measurement], new: Entry, old: Entry | None, table: KernelTable | None
) -> tuple[KernelList | None, tuple[str, ...]]:
    """The kernels that the new entry has, and what there is to say of them."""
    if table is not None:
        return kernel_files.listed(table), ()
    if old is not None and old.kernels and counts_as_before(old, new):
        kept = "the kernel table of before is kept: what is counted has not changed"
        return old.kernels, (kept,)
    if group[0].fingerprint.device.arch == architectures.CPU:
        return None, ()
    return None, (without_kernels(group, old),)


def _accepted(
    group: Sequence[Measurement],
    old: Entry | None,
    new: Entry,
    reason: str,
    forced: tuple[str, ...],
) -> Acceptance:
    """The line of the log."""
    first = group[0]
    return Acceptance(
        date=new.recorded,
        reason=reason,
        test=first.test,
        name=first.name,
        revision=first.fingerprint.revision,
        processes=len({measurement.process for measurement in group}),
        changes=_changes(old, new),
        forced=forced,
    )


def _changes(old: Entry | None, new: Entry) -> dict[str, Change]:
    """Old and new centres of the whole step's metrics, for the log."""
    before = old.samples.get(STEP, {}) if old else {}
    after = new.samples.get(STEP, {})
    return {
        metric: Change(
            old=centre(before[metric]) if metric in before else None,
            new=centre(after[metric]) if metric in after else None,
        )
        for metric in dict.fromkeys((*after, *before))
    }


def _kernels(
    baseline: Path,
    device: Device,
    before: BaselineFile,
    after: BaselineFile,
    new: Mapping[tuple[str, str], KernelTable],
) -> tuple[list[Content], list[Content]]:
    """What the file of the kernel tables is to hold before the baselines are written, and after.

    First it has the tables of the entries as they are and as they will be, then the latter alone:
    None for no file, as without tables. Nothing where it stays as it is. `new` are those that it
    has not yet, by test and name. Raises UsageFailure and BadFile for tables of other entries that
    cannot be read: they are not overwritten.
    """
    if not new and before.kernels == after.kernels:
        return [], []
    suite = after.suite
    old = kernel_files.load_for(baseline, device, suite)

    def tables(entries: Mapping[tuple[str, str], KernelList]) -> dict[str, dict[str, KernelTable]]:
        by_test: dict[str, dict[str, KernelTable]] = {}
        for (test, name), listed in entries.items():
            table = new.get((test, name))
            if table is None or kernel_files.digest(table) != listed.digest:
                table = kernel_files.accepted_table(old, test, name, listed) if old else None
            if table is not None:
                by_test.setdefault(test, {})[name] = table
        return by_test

    kept = tables(after.kernels)
    replaced = tables({k: v for k, v in before.kernels.items() if after.kernels.get(k) != v})
    file = kernel_files.path_beside(baseline)
    alone: Content = (file, kernel_files.content(kept, device, suite) if kept else None)
    if not (kept and replaced):
        return ([alone], []) if kept else ([], [alone])
    return [(file, kernel_files.content(kept, device, suite, replaced))], [alone]


def _write(contents: Sequence[Content]) -> None:
    """Writes all files in this order, and removes those without content.

    When one cannot be written, those before it are as they were.
    """
    with ExitStack() as undo:
        for file, content in contents:
            before = file.read_bytes() if file.exists() else None
            _put(file, content)
            undo.callback(_put, file, before)
        undo.pop_all()


def _put(file: Path, content: bytes | None) -> None:
    if content is not None:
        files.write_atomically(file, content)
    else:
        files.remove(file)
