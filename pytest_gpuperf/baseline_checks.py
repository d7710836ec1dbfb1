"""What the types of a baseline file cannot say: known metrics, processes that fit together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from pytest_gpuperf.baseline_file import BaselineFile, Processes
from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.judge import tolerance
from pytest_gpuperf.model import Calibration, Device, MetricClass

Problem = tuple[str, str]
"""The path of an entry, and what is wrong with it."""


class Placed(Protocol):
    """A file that says where it belongs."""

    @property
    def arch(self) -> str:
        """Of its device."""

    @property
    def device(self) -> str:
        """The device's name."""

    @property
    def suite(self) -> str:
        """What its entries are of."""


def check(baselines: BaselineFile, file: Path, remedy: str) -> None:
    """Raises BadFile for the first entry of `file` that cannot be true; `remedy` ends its message.

    Every metric is known; every process has values; a GPU and a day per process, where they are
    given; kernels that are listed were launched; tolerances can be read; a calibration has spreads
    of known classes, none negative.
    """
    for where, problem in _problems(baselines):
        raise BadFile(file, where, problem, remedy)


def check_place(found: Placed, device: Device, suite: str, file: Path, remedy: str) -> None:
    """Raises BadFile for a file of another device or suite that lies where this one's belongs."""
    for entry, inside, wanted in (
        ("arch", found.arch, device.arch),
        ("device", found.device, device.name),
        ("suite", found.suite, suite),
    ):
        if inside != wanted:
            problem = f'"{inside}", in a file that lies where those of "{wanted}" belong'
            raise BadFile(file, entry, problem, remedy)


def _problems(baselines: BaselineFile) -> Iterator[Problem]:
    yield from _tolerances(baselines.tolerance)
    if baselines.calibration:
        yield from _calibration(baselines.calibration)
    for test, entries in baselines.tests.items():
        for name, entry in entries.items():
            where = f"tests/{test}/{name}"
            for phase, series in entry.samples.items():
                inside = f"{where}/samples/{phase}"
                yield from _samples(series, inside, entry.units, entry.days)
            for number, row in enumerate(entry.kernels.launches if entry.kernels else ()):
                if row[-1] < 1:
                    yield f"{where}/kernels/launches/{number}", f"{row[-1]} launches"
            if entry.anchor:
                anchor, inside = entry.anchor, f"{where}/anchor/samples"
                yield from _samples(anchor.samples, inside, anchor.units, anchor.days)


def _samples(
    series: Mapping[str, Processes], where: str, units: tuple[str, ...], days: tuple[str, ...]
) -> Iterator[Problem]:
    from pytest_gpuperf.metrics import catalogue

    known = catalogue().metrics
    for metric, processes in series.items():
        here = f"{where}/{metric}"
        if metric not in known:
            yield here, "no such metric in the catalogue"
        if not processes or not all(processes):
            yield here, "a process without values"
        for name, per_process in (("units", units), ("days", days)):
            if per_process and len(processes) != len(per_process):
                yield here, f"{len(processes)} processes, and {name} has {len(per_process)}"


def _tolerances(written: Mapping[str, str]) -> Iterator[Problem]:
    from pytest_gpuperf.metrics import catalogue

    known = catalogue().metrics
    for name, text in written.items():
        where = f"tolerance/{name}"
        if name not in known:
            gated = ", ".join(metric.name for metric in known.values() if metric.gated)
            yield where, f'no such metric: write one of {gated}, as in cycles: "1%"'
        else:
            try:
                tolerance.parse(text, known[name])
            except UsageFailure as failure:
                yield where, str(failure)


def _calibration(calibration: Calibration) -> Iterator[Problem]:
    classes = [metric_class.value for metric_class in MetricClass]
    for name, spread in calibration.classes.items():
        where = f"calibration/classes/{name}"
        if name not in classes:
            yield where, f"no such class of metrics: one of {', '.join(classes)}"
        for part in ("rounds", "processes", "allocations", "units"):
            value: float | None = getattr(spread, part)
            # Zero is one: counts that never vary, or days that explain nothing.
            if value is not None and value < 0:
                yield f"{where}/{part}", f"{value:g} is no spread, which cannot be negative"
