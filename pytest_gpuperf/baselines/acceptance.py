"""The acceptance of measurements as baselines: what `gpuperf update-baseline` writes, and why.

Works from saved runs; needs no GPU and runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
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
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import GpuperfError, UsageFailure, printable
from pytest_gpuperf.judge.interval import centre
from pytest_gpuperf.judge.verdict import NEW_METRIC
from pytest_gpuperf.model.entry import Acceptance, BaselineFile, Entry
from pytest_gpuperf.model.measurement import SLOWDOWN, Device, KernelTable, Measurement
from pytest_gpuperf.model.result import Outcome, Run
from pytest_gpuperf.storage import baseline_files, data_files, entry_values, files, schema_1

_ASKING = (
    *(Outcome.REGRESSED, Outcome.IMPROVED, Outcome.OUTWEIGHED),
    *(Outcome.NO_BASELINE, Outcome.MACHINE),
)
_SETTLED = (Outcome.UNCHANGED, Outcome.INCONCLUSIVE, Outcome.UNFIT)

_RESTORE = "Restore it from git; nothing was written"
Change = tuple[float | None, float | None]
"""The centre of one metric before and after an acceptance; None where no centre is known."""


class Refused(GpuperfError):
    """Objections that nothing overrules; nothing was written. Exit code 1: the input is good."""


@dataclass(frozen=True)
class AcceptanceRequest:
    """The options of an acceptance of measurements."""

    folder: Path
    """The folder of the baselines."""
    reason: str
    created: str
    """The time of the measurements: UTC, ISO 8601."""
    force: bool = False
    """Objections are overruled, and the log says so."""
    only_new: bool = False
    """Tests that already have an entry keep that entry."""
    new_origin: bool = False
    """The new entries start over as their own origins."""


@dataclass(frozen=True)
class Proposal:
    """One measurement of one test, from one or more processes, to be accepted."""

    file: Path
    measurements: tuple[Measurement, ...]
    request: AcceptanceRequest
    entry: Entry
    data: bytes
    """The content to write into the file of the entry's data."""
    changes: Mapping[str, Change]
    """The old and new centre of each metric of the whole step."""
    objections: tuple[Objection, ...]
    notes: tuple[str, ...]

    @property
    def first(self) -> Measurement:
        """The measurement of the first process."""
        return self.measurements[0]

    @property
    def refused(self) -> bool:
        """Whether the proposal cannot be accepted as it is."""
        return bool(self.objections) and not self.request.force


def settled(runs: Iterable[Run]) -> set[tuple[str, str]]:
    """The test and name of measurements that these runs judged and that need no other baseline.

    Such a measurement is unchanged, undecided, or from an unfit device, each time, and has no
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
    """The changes that accepting `measurements` would make, test by test, in their order.

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
        if slowdown := first.fingerprint.settings.get(SLOWDOWN):
            raise UsageFailure(
                f"{first.test} was measured with a slowdown in it ({slowdown}): it is no baseline"
            )
        if any(dict(other.workload) != dict(first.workload) for other in others):
            raise UsageFailure(
                f'the measurements "{first.name}" of {first.test} have different workloads, so '
                "they cannot form one baseline. Record the test again, with one workload"
            )
        proposed.append(_proposed((first, *others), _known(first, request), request))
    return [proposal for proposal in proposed if proposal]


def accept(shown: Sequence[Proposal]) -> tuple[Proposal, ...]:
    """Writes proposals into their files: all of them, or none.

    A process that is killed here leaves each suite's files either unchanged or completely new.
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
        after: dict[Path, BaselineFile] = {}
        for file, group in by_file.items():
            _migrate(file)
            known = _known(group[0].first, group[0].request)
            for proposal in group:
                if now := _proposed(proposal.measurements, known, proposal.request):
                    first = now.first
                    known = baseline_files.with_entry(known, first.test, first.name, now.entry)
                    after[file] = known
                    done.append(now)
        objected = [
            f"\n  {printable(proposal.first.test)}: {printable(objection.text)}"
            for proposal in done
            if proposal.refused
            for objection in proposal.objections
        ]
        if objected:
            raise Refused(f"nothing was written, because of these objections:{''.join(objected)}")
        data = [(data_files.folder_beside(one.file) / one.entry.data, one.data) for one in done]
        texts = [(file, baseline_files.to_text(known, file)) for file, known in after.items()]
        # In this order every entry has its data at any moment, even if this process is killed.
        _write([*data, *((file, text.encode()) for file, text in texts)])
        for file, known in after.items():
            _clear(file, known)
    return tuple(done)


def rename(file: Path, tests: Mapping[str, str], date: str) -> None:
    """Gives the entries of a baseline file to other tests: new node ids by old ones.

    They keep samples, origin and kernel table, and the log says whose they were, on this `date`.
    The new ids are of one folder: if that is another suite's, the entries go to its file. A process
    killed here leaves files that can be read, with each entry in one of them at least. Raises
    UsageFailure for an old test without an entry, or a new one with one, and BadFile.
    """
    folder = file.parent.parent.parent
    with files.changing(folder.resolve()):
        _migrate(file)
        known = baseline_files.load(file)
        if known is None:
            raise UsageFailure(f"{file}: no such baseline file")
        device = Device(known.arch, known.device, file.parent.name)
        (suite,) = {baseline_files.suite_of(new) for new in tests.values()}
        target = baseline_files.path_for(folder, device, suite)
        _migrate(target)
        left = {test: own for test, own in known.tests.items() if test not in tests}
        kept = replace(known, tests=left)
        there = kept if target == file else baseline_files.load(target)
        there = there or baseline_files.empty(device, suite)
        came: dict[str, dict[str, Entry]] = {}
        for old, new in tests.items():
            if old not in known.tests or new in {**known.tests, **there.tests}:
                which = f"{new} has an entry" if old in known.tests else f"{old} has no entry"
                raise UsageFailure(f"{file}: cannot rename {old} to {new}, as {which}")
            came[new] = {
                name: replace(one, log=(*one.log, _renamed(one, old, date)))
                for name, one in known.tests[old].items()
            }
        made = replace(there, tests=dict(sorted({**there.tests, **came}.items())))
        beside, other = map(data_files.folder_beside, (file, target))
        data = {beside / one.data for entries in came.values() for one in entries.values()}
        moved = [(other / one.name, one.read_bytes()) for one in sorted(data) if one.is_file()]
        _write([*moved, (target, baseline_files.to_text(made, target).encode())])
        if target != file:
            _write([(file, baseline_files.to_text(kept, file).encode())])
            _clear(file, kept)


def _renamed(entry: Entry, old: str, date: str) -> Acceptance:
    return Acceptance(date, f"renamed from {old}", entry.revision, entry.processes)


def migrate(folder: Path) -> list[Path]:
    """Writes the baseline files of older versions in `folder` anew, and returns those.

    Raises BadFile for one that cannot be trusted: it stays as it is.
    """
    with files.changing(folder.resolve()):
        return [file for file in sorted(folder.glob("*/*/*.yaml")) if _migrate(file)]


def _migrate(file: Path) -> bool:
    """Writes a baseline file of schema 1 anew, with the data of its entries beside it.

    Call while its folder is held. A process killed here leaves the old file, or the new one.
    """
    try:
        text = files.decoded(files.read_bytes(file), file, _RESTORE)
    except FileNotFoundError:
        return False
    plain = files.parse_yaml(text, file, _RESTORE)
    if not schema_1.is_written_so(plain):
        return False
    known = baseline_files.parsed(file, text)
    kernels = file.with_name(file.stem + schema_1.SUFFIX)
    tables = files.read_json(kernels, _RESTORE) if kernels.exists() else {}
    data: list[tuple[Path, bytes]] = []
    tests: dict[str, dict[str, Entry]] = {}
    for test, entries in known.tests.items():
        for name, entry in entries.items():
            content = data_files.content(schema_1.entry_data(plain, tables, test, name))
            called = data_files.name_of(test, name, content)
            data.append((data_files.folder_beside(file) / called, content))
            tests.setdefault(test, {})[name] = replace(entry, data=called)
    made = replace(known, tests=tests)
    _write([*data, (file, baseline_files.to_text(made, file).encode())])
    files.remove(kernels)
    return True


def _clear(file: Path, known: BaselineFile) -> None:
    """Removes the data beside a baseline file that none of its entries names any more."""
    for left in data_files.unnamed(file, known):
        files.remove(left)


def _known(first: Measurement, request: AcceptanceRequest) -> BaselineFile:
    device = first.fingerprint.device
    known = baseline_files.load_for(request.folder, device, first.suite)
    return known or baseline_files.empty(device, first.suite)


def _proposed(
    group: tuple[Measurement, ...], known: BaselineFile, request: AcceptanceRequest
) -> Proposal | None:
    """The proposal for one measurement; None if only new entries are wanted and one exists."""
    first = group[0]
    old = known.tests.get(first.test, {}).get(first.name)
    if old is not None and request.only_new:
        return None
    file = baseline_files.path_for(request.folder, first.fingerprint.device, first.suite)
    new = baseline_files.entry_of(group, request.created[:10])
    kernels, about_kernels = _kernels(group, new, old, file)
    data = data_files.content(baseline_files.data_of(group, kernels))
    tolerances = {**known.tolerance, **first.tolerance}
    creep = creep_since(new, old, tolerances, known.calibration, new_origin=request.new_origin)
    objections = (*about_measurements(group), *creep.objections)
    forced = [objection.short for objection in objections] if request.force else []
    changes = _changes(old, new)
    about = new.recorded, request.reason, new.revision, new.processes
    log = Acceptance(*about, _moved(changes), (*forced, *creep.forced))
    notes = (*limitations(group, new), *about_kernels, *creep.notes)
    new = replace(
        new,
        origin=creep.origin,
        data=data_files.name_of(first.test, first.name, data),
        log=(*(old.log if old else ()), log),
    )
    return Proposal(
        file=file,
        measurements=group,
        request=request,
        entry=new,
        data=data,
        changes=changes,
        objections=objections,
        notes=notes,
    )


def _kernels(
    group: Sequence[Measurement], new: Entry, old: Entry | None, file: Path
) -> tuple[KernelTable | None, tuple[str, ...]]:
    """The kernel table of the new entry, and the notes about that table."""
    table = data_files.chosen(group)
    if table is not None:
        return table, ()
    if old is not None and old.data and counts_as_before(old, new):
        with suppress(GpuperfError):  # where its file is gone there is none to keep
            table = data_files.load(file, old.data, f"tests/{group[0].test}").kernels
    if table is not None:
        return table, ("the old kernel table stays, because the counts have not changed",)
    if group[0].fingerprint.device.arch == architectures.CPU:
        return None, ()
    return None, (without_kernels(group, old),)


def _moved(changes: Mapping[str, Change]) -> dict[str, str]:
    """The changes of gated metrics, as the log has them."""
    known = catalogue().metrics
    return {
        metric: text
        for metric, (old, now) in changes.items()
        if known[metric].gated and old is not None and now is not None and old != now
        if (text := entry_values.moved(metric, old, now)) not in ("0 %", "+0 %", "-0 %")
    }


def _changes(old: Entry | None, new: Entry) -> dict[str, Change]:
    """Old and new centres of the whole step's metrics."""
    before, after = old.step if old else {}, new.step
    return {
        metric: (
            centre(before[metric]) if metric in before else None,
            centre(after[metric]) if metric in after else None,
        )
        for metric in dict.fromkeys((*after, *before))
    }


def _write(contents: Sequence[tuple[Path, bytes]]) -> None:
    """Writes all files in this order. When one cannot be written, the others are as they were."""
    with ExitStack() as undo:
        for file, content in contents:
            if file.exists():
                restore = partial(files.write_atomically, file, file.read_bytes())
            else:
                restore = partial(files.remove, file)
            files.write_atomically(file, content)
            undo.callback(restore)
        undo.pop_all()
