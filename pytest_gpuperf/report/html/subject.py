"""What a figure has a bar or a point for: one measurement of a test, of all its processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pytest_gpuperf.derived.mix import InstructionMixes, instruction_mixes
from pytest_gpuperf.judge.interval import centre
from pytest_gpuperf.model import STEP, Device, KernelTable, Measurement, Run
from pytest_gpuperf.report import messages
from pytest_gpuperf.report.html.launched import bounded, family

FIRST = "baseline"
"""The configuration that the others are held against, as the paper does."""


@dataclass(frozen=True)
class Subject:
    """A test's measurement, of all its processes."""

    label: str
    """Its configuration, or the test's name where that says too little."""
    measurements: tuple[Measurement, ...]

    @property
    def first(self) -> Measurement:
        """That of the first process, for what is the same in all of them."""
        return self.measurements[0]

    @property
    def configuration(self) -> str:
        """The optimization's name, or ""."""
        return self.first.configuration

    @property
    def device(self) -> Device:
        """What it was measured on."""
        return self.first.fingerprint.device

    @property
    def phases(self) -> list[str]:
        """The phases of the step, in their order; the whole step is none of them."""
        found = dict.fromkeys(sample.phase for sample in self.first.samples)
        return [phase for phase in found if phase != STEP]

    @cached_property
    def _values(self) -> Mapping[tuple[str, str], float]:
        rounds: dict[tuple[str, str], list[tuple[float, ...]]] = {}
        for measurement in self.measurements:
            for sample in measurement.samples:
                rounds.setdefault((sample.phase, sample.metric), []).append(sample.values)
        return {key: centre(values) for key, values in rounds.items()}

    def value(self, metric: str, phase: str = STEP) -> float | None:
        """The value of a metric, as the judge takes it; None where it was not measured."""
        return self._values.get((phase, metric))

    @property
    def values(self) -> dict[str, float]:
        """The values of the whole step by metric."""
        return {metric: value for (phase, metric), value in self._values.items() if phase == STEP}

    @cached_property
    def kernels(self) -> KernelTable | None:
        """What the step launched, as far as figures take it (`bounded`); None without a table."""
        return None if self._table is None else bounded(self._table)

    @property
    def sampled(self) -> Measurement | None:
        """That of the first process with a timeline, else of the first that says why it has none;
        None where none was asked for.
        """
        found = [m for m in self.measurements if m.timeline is not None]
        drawn = [m for m in found if m.timeline and not m.timeline.obstacle]
        return next(iter([*drawn, *found]), None)

    @property
    def left_out(self) -> int:
        """Launches that are in no figure, since there are too many."""
        if self._table is None or self.kernels is None:
            return 0
        return len(self._table.launches) - len(self.kernels.launches)

    @cached_property
    def instructions(self) -> InstructionMixes | None:
        """The instruction mixes of its kernels; None without a table."""
        if self.kernels is None:
            return None
        return instruction_mixes(self.kernels, family, self.device.arch)

    @property
    def _table(self) -> KernelTable | None:
        """That of the first process with counters, else of the first with a table."""
        tables = [m.kernels for m in self.measurements if m.kernels is not None]
        counted = [table for table in tables if table.metrics and not table.mismatch]
        return next(iter([*counted, *tables]), None)


def subjects(run: Run) -> list[Subject]:
    """The subjects of a run, the one to hold others against first.

    A label is the configuration where each test has another, else the test's name with what tells
    it from others.
    """
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in run.measurements:
        groups.setdefault((measurement.test, measurement.name), []).append(measurement)
    found = [Subject("", tuple(group)) for group in groups.values()]
    found.sort(key=lambda subject: subject.configuration != FIRST)
    labels = _unique(
        [[s.configuration, _title(s), f"{s.first.test}, {s.first.name}"] for s in found]
    )
    return [
        Subject(label, subject.measurements) for label, subject in zip(labels, found, strict=True)
    ]


def _title(subject: Subject) -> str:
    return messages.subject(subject.first).removesuffix(",")


def _unique(choices: Sequence[Sequence[str]]) -> list[str]:
    """Of each entry the first choice that no other entry has, of the choices at its position."""
    columns = list(zip(*choices, strict=True))
    counts = [Counter(column) for column in columns]
    return [
        next(
            (text for text, count in zip(entry, counts, strict=True) if text and count[text] == 1),
            entry[-1],
        )
        for entry in choices
    ]
