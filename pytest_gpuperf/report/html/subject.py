"""The subject of figures: one measurement of a test, of all its processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from pytest_gpuperf.analysis.mix import MixBreakdown, instruction_mixes
from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.model.measurement import STEP, Device, KernelTable, Measurement
from pytest_gpuperf.model.result import Result, Run
from pytest_gpuperf.report.text.step_tables import (
    FIRST,
    ComponentTable,
    Values,
    component_table,
    measured_values,
)

KERNELS = "--gpuperf-kernels always"

family: Callable[[str], str] = cache(kernel_families.family)
"""`kernels.family`, each name read once."""
short_name: Callable[[str], str] = cache(kernel_families.short_name)
"""`kernels.short_name`, the same way."""


@dataclass(frozen=True)
class FigureSubject:
    """One measurement in a figure: a bar or a point."""

    label: str
    """Its configuration, or the test's name if several tests have that configuration."""
    result: Result

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """The measurements, one per process."""
        return self.result.measurements

    @property
    def device(self) -> Device:
        """The device of the measurement."""
        return self.result.first.fingerprint.device

    @property
    def phases(self) -> list[str]:
        """The phases of the step, in their order; the whole step is none of them."""
        names = dict.fromkeys(sample.phase for sample in self.result.first.samples)
        return [phase for phase in names if phase != STEP]

    @cached_property
    def _values(self) -> Values:
        return measured_values(self.measurements)

    def value(self, metric: str, phase: str = STEP) -> float | None:
        """The value of a metric, as the judge takes it; None where it was not measured."""
        return self._values.get((phase, metric))

    @property
    def values(self) -> dict[str, float]:
        """The values of the whole step by metric."""
        return {metric: value for (phase, metric), value in self._values.items() if phase == STEP}

    @cached_property
    def kernels(self) -> KernelTable | None:
        """The kernels of the step, from the first process with counters, else from the first with a
        table; None if no process has one.
        """
        tables = [
            m.kernels
            for m in self.measurements
            if m.kernels is not None and not m.kernels.of_operators
        ]
        counted = [table for table in tables if table.metrics and not table.mismatch]
        return next(iter([*counted, *tables]), None)

    @cached_property
    def instructions(self) -> MixBreakdown | None:
        """The instruction mixes of its kernels; None without a table."""
        if self.kernels is None:
            return None
        return instruction_mixes(self.kernels, family, self.device.arch)

    @cached_property
    def components(self) -> ComponentTable | None:
        """The components of its step; None where it has none."""
        return component_table(self.measurements)


def subjects(run: Run) -> list[FigureSubject]:
    """The subjects of a run, with the reference for comparisons first.

    The label is the configuration if every test has a different one. Otherwise it is the test's
    name, with enough to be unique.
    """
    results = [result for result in run.results() if result.measurements]
    results.sort(key=lambda result: result.first.configuration != FIRST)
    labels = _unique(
        [
            [
                result.first.configuration,
                result.title,
                f"{result.test}, {result.name}",
            ]
            for result in results
        ]
    )
    return [FigureSubject(*entry) for entry in zip(labels, results, strict=True)]


def _unique(choices: Sequence[Sequence[str]]) -> list[str]:
    """For each entry the first choice that is unique at its position."""
    columns = list(zip(*choices, strict=True))
    counts = [Counter(column) for column in columns]
    return [
        next(
            (text for text, count in zip(entry, counts, strict=True) if text and count[text] == 1),
            entry[-1],
        )
        for entry in choices
    ]


def portable(subjects: Sequence[FigureSubject]) -> bool:
    """True if all was measured on a CPU: no flag adds a GPU's metrics."""
    return bool(subjects) and all(subject.device.arch == "cpu" for subject in subjects)
