"""The baseline of a measurement: its suite's file, looked up once for all that is said of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import BadFile, GpuperfError
from pytest_gpuperf.judge.tolerance import is_judged, tolerance_for
from pytest_gpuperf.judge.verdict import Reference, Samples, samples_by_phase
from pytest_gpuperf.model.entry import BaselineFile, Calibration, Entry, EntryData
from pytest_gpuperf.model.measurement import STEP, UNEQUAL, KernelTable, Measurement, Scalar
from pytest_gpuperf.model.result import JudgedBy
from pytest_gpuperf.storage import baseline_files, data_files, files

_REPEATED = (
    *("launches", "stream_synchronizations", "device_synchronizations", "driver_allocations"),
    *("collectives", "copies", "flops", "operators", "layout_copies", "layout_copy_bytes"),
    "saved_bytes",
)
"""Counts that were the same in every execution of one code, in all but one of 980 measurements that
are recorded. Not the waits for events, which NCCL's watchdog adds to as it comes by."""


@dataclass(frozen=True)
class Baseline:
    """The baseline that one measurement, in all its processes, is compared with."""

    measurement: Measurement
    """The measurement of the first process."""
    file: Path
    """The path of the suite's baseline file, whether the file exists or not."""
    exists: bool
    """Whether there is that file."""
    suite: BaselineFile
    """The content of the suite's file; no entries if the file does not exist."""
    root: Path
    """The folder to which paths in messages are relative."""

    @property
    def reference(self) -> Reference:
        """The samples that the measurement is compared with, or the reason why none exist."""
        entry = self.entry
        if entry is None:
            missing, detail = self._missing
            return Reference(None, missing=missing, detail=detail)
        shown: Samples = {}
        # What is only shown decides nothing: the test is judged without it.
        with suppress(GpuperfError):
            shown = self._data(entry).samples
        return replace(
            reference_of(entry, self.suite.calibration),
            samples={**shown, STEP: {**shown.get(STEP, {}), **entry.step}},
            tests=sum(map(len, self.suite.tests.values())),
        )

    @property
    def _missing(self) -> tuple[str, str]:
        """The reason code why no entry applies, "" if one does, and a text for messages."""
        file = files.short(self.file, self.root)
        if not self.exists:
            return "no-file", f"{file} does not exist"
        entry = self._entry
        if entry is None:
            return "no-entry", f"{file} has no entry for this test"
        measurement = self.measurement
        if dict(entry.workload) != dict(measurement.workload):
            differing = units.differences(entry.workload, measurement.workload)
            detail = f"the entry in {file} has another workload: {differing}"
            return "other-workload", detail
        before, now = _manner(entry.settings), _manner(measurement.fingerprint.settings)
        if before != now and before and now:
            detail = (
                f"the entry in {file} was measured by {before}, this run by {now}, and the two do "
                "not count the same things"
            )
            return "other-collector", detail
        return "", ""

    @property
    def judged_by(self) -> JudgedBy | None:
        """The identity of the entry that applies; None if no entry applies."""
        entry = self.entry
        if entry is None:
            return None
        first = self.measurement
        return JudgedBy(first.test, first.name, entry.recorded, entry.revision)

    @property
    def entry(self) -> Entry | None:
        """The entry that applies; None if no entry applies."""
        return None if self._missing[0] else self._entry

    def kernels(self) -> KernelTable | None:
        """The step's launches when the baseline was made; None without a baseline that applies.

        Raises UsageFailure when the baseline has no kernel table, or one that cannot be trusted.
        """
        entry = self.entry
        if entry is None:
            return None
        if (kernels := self._data(entry).kernels) is None:
            problem = "the entry has no kernel table"
            remedy = "Accept a run of gpuperf record, which makes one"
            raise BadFile(Path(files.short(self.file, self.root)), self._place, problem, remedy)
        return kernels

    @property
    def _place(self) -> str:
        """The place of the entry in its file."""
        return f"tests/{self.measurement.test}/{self.measurement.name}"

    def _data(self, entry: Entry) -> EntryData:
        """The data that the entry has beside the YAML. Files are named relative to the root."""
        try:
            return data_files.load(self.file, entry.data, self._place)
        except BadFile as error:
            file = Path(files.short(error.file, self.root))
            raise BadFile(file, error.entry, error.problem, error.remedy) from None

    @property
    def _entry(self) -> Entry | None:
        return self.suite.tests.get(self.measurement.test, {}).get(self.measurement.name)


def reference_of(entry: Entry, calibration: Calibration | None) -> Reference:
    """What the judge compares with: the step of this entry, and how its values vary."""
    return Reference(
        {STEP: entry.step},
        gpus=entry.gpus,
        days=entry.days,
        calibration=calibration,
        canary=entry.canary,
    )


def baseline_of(measurement: Measurement, baselines: Path, root: Path) -> Baseline:
    """The baseline of a measurement in the folder `baselines`; messages are for people in `root`.

    Raises BadFile for one that cannot be trusted.
    """
    device, suite = measurement.fingerprint.device, measurement.suite
    file = baseline_files.path_for(baselines, device, suite)
    known = baseline_files.load_for(baselines, device, suite)
    read = known or baseline_files.empty(device, suite)
    return Baseline(measurement, file, known is not None, read, root)


def is_gone(test: str, collected: Collection[str], root: Path) -> bool:
    """Whether the test of this node id was removed, as far as `collected` and the files tell.

    Its file is gone, or was collected without the test. For a file not collected, this is unknown.
    """
    file = test.split("::")[0]
    if test in collected:
        return False
    return not (root / file).exists() or any(one.split("::")[0] == file for one in collected)


def forerunner(
    measurement: Measurement, baselines: Path, collected: Collection[str], root: Path
) -> str:
    """The removed test, by node id, that this test may have been; "" if several may, or no test.

    Its entry is of the same name, configuration and workload, on the same device, in any suite. Of
    several it is the one whose name is the same in another file, or else whose parameters are.
    Raises BadFile.
    """
    file = baseline_files.path_for(baselines, measurement.fingerprint.device, measurement.suite)
    known = (baseline_files.load(suite) for suite in sorted(file.parent.glob("*.yaml")))
    found = [
        test
        for one in known
        for test, entries in (one.tests if one else {}).items()
        if (entry := entries.get(measurement.name)) is not None
        and entry.configuration == measurement.configuration
        and dict(entry.workload) == dict(measurement.workload)
        and is_gone(test, collected, root)
    ]
    for part in ("::", "["):
        own = measurement.test.partition(part)[2]
        alike = [test for test in found if test.partition(part)[2] == own]
        if alike:
            return alike[0] if len(alike) == 1 else ""
    return ""


def _manner(settings: Mapping[str, Scalar]) -> str:
    """The way counters were read, as far as it decides their meaning; "" if the settings lack it.

    ncu's kernel replay adds up kernels that ran one at a time, a range has the gaps between them.
    """
    replay = "kernel replay" if settings.get("replay") == "kernel" else "range replay"
    collector = str(settings.get("collector", ""))
    return f"{collector}, {replay}" if collector == "ncu" else collector


def other_work(measurements: Sequence[Measurement]) -> str:
    """A note that the step does other work each time, by counts that identical code repeats, or "".

    Between executions or processes of one revision they differ by more than the test tolerates.
    """
    first, known = measurements[0], catalogue().metrics
    revision = first.fingerprint.revision
    alike = [m for m in measurements if m.fingerprint.revision == revision]
    whole = samples_by_phase(alike).get(STEP, {})
    said = []
    for name in filter(whole.__contains__, _REPEATED):
        values = [value for rounds in whole[name] for value in rounds]
        least, most = min(values), max(values)
        written = first.tolerance.get(name)
        allowed = tolerance_for(known[name], written).floor
        if is_judged(known[name], written) and most - least > allowed * least:
            unit = known[name].unit
            said.append(f"{name} {units.value(least, unit)} to {units.value(most, unit)}")
    if not said:
        return ""
    settings = [m.fingerprint.settings for m in alike]
    operators = next((f" ({one[UNEQUAL]})" for one in settings if UNEQUAL in one), "")
    return (
        f"the step of {first.title} does other work each time: {', '.join(said)}{operators}. Give "
        "measure a reset that restores all that the step changes and seeds the random generators. "
        "Or tolerate it: @pytest.mark.gpuperf(tolerance={...})"
    )
