"""The subject of figures: one measurement of a test, of all its processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from pytest_gpuperf.model.measurement import STEP, Device, KernelTable, titles
from pytest_gpuperf.model.result import Result, Run
from pytest_gpuperf.report.text.step_tables import FIRST, Values, measured_values


@dataclass(frozen=True)
class FigureSubject:
    """One measurement in a figure: a bar or a point."""

    label: str
    """Its configuration, or the test's name if several tests have that configuration."""
    result: Result

    @property
    def device(self) -> Device:
        """The device of the measurement."""
        return self.result.first.fingerprint.device

    @cached_property
    def values(self) -> Values:
        """The values of the step and its phases, as the judge takes them."""
        return measured_values(self.result.measurements)

    def value(self, metric: str, phase: str = STEP) -> float | None:
        """The value of a metric; None where it was not measured."""
        return self.values.get((phase, metric))

    @cached_property
    def kernels(self) -> KernelTable:
        """The kernels of the step, from the first process with counters, else from the first with a
        table; an empty table if no process has one.
        """
        tables = [
            m.kernels for m in self.result.measurements if m.kernels and not m.kernels.of_operators
        ]
        counted = [table for table in tables if table.metrics and not table.mismatch]
        return next(iter([*counted, *tables]), KernelTable((), (), (), 0.0))


def subjects(run: Run) -> list[FigureSubject]:
    """The subjects of a run, with the reference for comparisons first.

    The label is the configuration, or the test's title if several have that configuration.
    """
    results = [result for result in run.results() if result.measurements]
    results.sort(key=lambda result: result.first.configuration != FIRST)
    counts = Counter(result.first.configuration for result in results)
    called = titles((result.test, result.name) for result in results)
    made = []
    for result in results:
        configuration = result.first.configuration
        is_label = configuration and counts[configuration] == 1
        label = configuration if is_label else called[result.test, result.name]
        made.append(FigureSubject(label, result))
    return made
