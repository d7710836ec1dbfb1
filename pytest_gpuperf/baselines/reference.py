"""Which kernels a judged measurement's change comes from: its kernel table against the baseline's.

Between the fixture, which speaks pytest, and the judge, which sees tables only. It adds to what was
judged and never keeps a verdict from being reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.judge.attribution import Naming, attribute
from pytest_gpuperf.judge.verdict import Reference
from pytest_gpuperf.model.entry import BaselineFile
from pytest_gpuperf.model.measurement import STEP, Device, KernelTable, Measurement, Scalar
from pytest_gpuperf.model.result import Attribution, Outcome, Verdict
from pytest_gpuperf.plugin.session import Judged
from pytest_gpuperf.storage import baseline_files, files, kernel_files

if TYPE_CHECKING:
    pass

if TYPE_CHECKING:
    pass


METRIC = "kernels"
"""What stands in a metric's place in the verdict on kernels; the catalogue does not have it."""
_UNIT = "launches"


def attributed(judged: Judged, folders: Folders, device: Device) -> Judged:
    """The same, with the kernels that the change comes from, where a process has a kernel table.

    Where other kernels were launched than the baseline's, the verdict that says so comes first. A
    regression of which no kernel can be named gets a note that says why, and what to do.
    """
    measured = _tables(judged.measurements)
    outcomes = {verdict.outcome for verdict in judged.verdicts}
    if not (measured and outcomes) or Outcome.UNFIT in outcomes:
        return judged
    try:
        known = _baseline(judged.measurements[0], folders, device)
    except UsageFailure as error:
        if Outcome.REGRESSED not in outcomes:
            return judged
        note = f"no kernel can be named: {_shortened(error, folders.root)}"
        return replace(judged, notes=(*judged.notes, note))
    if known is None:
        return judged
    found = attribute(measured, known, Naming(kernel_families.family, kernel_families.short_name))
    notes = judged.notes
    if measured[0].mismatch and Outcome.REGRESSED in outcomes:
        notes = (*notes, f"kernels were not counted, which would say more: {measured[0].mismatch}")
    verdicts = (*_changed(judged.measurements[0], found), *judged.verdicts)
    return replace(judged, verdicts=verdicts, notes=notes, blame=found)


def _tables(measurements: Sequence[Measurement]) -> list[KernelTable]:
    """The tables of these processes; those without counters only where no other is there."""
    tables = [m.kernels for m in measurements if m.kernels is not None]
    return [table for table in tables if not table.mismatch] or tables


def _baseline(measurement: Measurement, folders: Folders, device: Device) -> KernelTable | None:
    """The table of the baseline that applies; None without such a baseline.

    Raises UsageFailure when the baseline has no table, or one that cannot be trusted.
    """
    file = baseline_files.path_for(folders.baselines, device, measurement.suite)
    known = baseline_files.load_for(folders.baselines, device, measurement.suite)
    if known is None or find_reference(known, measurement, "").samples is None:
        return None
    test, name = measurement.test, measurement.name
    expected = known.tests[test][name].kernels
    return kernel_files.table_of(file, device, measurement.suite, test, name, expected)


def _shortened(error: UsageFailure, root: Path) -> str:
    """What went wrong, in one line, with the file as one would type it in the root directory."""
    if isinstance(error, BadFile):
        file = Path(files.short(error.file, root))
        error = BadFile(file, error.entry, error.problem, error.remedy)
    return " ".join(str(error).split())


def _changed(first: Measurement, found: Attribution) -> tuple[Verdict, ...]:
    """The verdict on the sequence of kernels, where it is another than the baseline's."""
    launched = found.launched
    if not launched.changed:
        return ()
    said = {
        "added": launched.added,
        "removed": launched.removed,
        "replaced": launched.replaced,
        "moved": launched.moved,
    }
    only_moved = not (launched.added or launched.removed or launched.replaced)
    return (
        Verdict(
            test=first.test,
            name=first.name,
            phase=STEP,
            metric=METRIC,
            unit=_UNIT,
            outcome=Outcome.KERNELS_CHANGED,
            reason="other-order" if only_moved else "other-kernels",
            baseline=float(sum(family.launches_before for family in found.families)),
            measured=float(sum(family.launches_after for family in found.families)),
            detail=", ".join(f"{count} {what}" for what, count in said.items() if count),
        ),
    )


class Folders(Protocol):
    """Where baselines are: what of the settings a judgement depends on."""

    @property
    def root(self) -> Path:
        """What paths in messages are relative to."""

    @property
    def baselines(self) -> Path:
        """The folder of the baselines."""


def find_reference(known: BaselineFile | None, measurement: Measurement, file: str) -> Reference:
    """What `measurement` is compared with, or the reason why there is nothing."""
    if known is None:
        return Reference(None, missing="no-file", detail=f"{file} does not exist")
    entry = known.tests.get(measurement.test, {}).get(measurement.name)
    if entry is None:
        return Reference(None, missing="no-entry", detail=f"{file} has no entry for this test")
    if dict(entry.workload) != dict(measurement.workload):
        return Reference(
            None,
            missing="other-workload",
            detail=f"the entry in {file} is of another workload: "
            + files.differences(entry.workload, measurement.workload),
        )
    before, now = _manner(entry.settings), _manner(measurement.fingerprint.settings)
    if before != now and before and now:
        return Reference(
            None,
            missing="other-collector",
            detail=f"the entry in {file} was measured by {before}, this by {now}: they count "
            "different things",
        )
    return Reference(
        entry.samples, units=entry.units, days=entry.days, calibration=known.calibration
    )


def _manner(settings: Mapping[str, Scalar]) -> str:
    """How counters were read, as far as it decides what they mean; "" where nobody says.

    ncu's kernel replay adds up kernels that ran one at a time, a range has the gaps between them.
    """
    replay = "kernel replay" if settings.get("replay") == "kernel" else "range replay"
    collector = str(settings.get("collector", ""))
    return f"{collector}, {replay}" if collector == "ncu" else collector
