"""What a figure has a bar or a point for: one measurement of a test, of all its processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from pytest_gpuperf.analysis.mix import InstructionMixes, instruction_mixes
from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.judge.interval import centre
from pytest_gpuperf.model.measurement import STEP, Device, KernelTable, Measurement
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.report.text import failure

FIRST = "baseline"
"""The configuration that the others are held against, as the paper does."""


@dataclass(frozen=True)
class FigureSubject:
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


def subjects(run: Run) -> list[FigureSubject]:
    """The subjects of a run, the one to hold others against first.

    A label is the configuration where each test has another, else the test's name with what tells
    it from others.
    """
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in run.measurements:
        groups.setdefault((measurement.test, measurement.name), []).append(measurement)
    found = [FigureSubject("", tuple(group)) for group in groups.values()]
    found.sort(key=lambda subject: subject.configuration != FIRST)
    labels = _unique(
        [[s.configuration, _title(s), f"{s.first.test}, {s.first.name}"] for s in found]
    )
    return [
        FigureSubject(label, subject.measurements)
        for label, subject in zip(labels, found, strict=True)
    ]


def _title(subject: FigureSubject) -> str:
    return failure.subject(subject.first).removesuffix(",")


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


# A step's launches added up by kernel and by family: what figures of kernels are made of.

MOST_NAMES = 2000
"""So many names of a table are told apart, those that took most time: a step has about a hundred,
and reading names takes time."""
MOST_LAUNCHES = 30_000
"""So many launches of a table are in figures, the longest: a step has some thousand."""
OTHERS = "others"
"""The name of the rest, whose family is "other"."""

family: Callable[[str], str] = lru_cache(maxsize=1 << 14)(kernel_families.family)
"""`kernels.family`, each name read once."""
short_name: Callable[[str], str] = lru_cache(maxsize=1 << 14)(kernel_families.short_name)
"""`kernels.short_name`, the same way."""


@dataclass(frozen=True, slots=True)
class LaunchedGroup:
    """The launches of kernels that read the same."""

    name: str
    """The short name, or the family when families were added up."""
    family: str
    full: str
    """The whole name, of one of them."""
    launches: int
    duration: float
    """Nanoseconds in all."""


def bounded(table: KernelTable) -> KernelTable:
    """The same with MOST_LAUNCHES launches and MOST_NAMES names at most.

    The shortest launches are left out; of the names that took least time, the last is OTHERS.
    """
    launches = table.launches
    if len(launches) > MOST_LAUNCHES:
        longest = sorted(range(len(launches)), key=lambda at: -launches[at].duration)
        launches = tuple(launches[at] for at in sorted(longest[:MOST_LAUNCHES]))
        table = replace(table, launches=launches)
    if len(table.names) <= MOST_NAMES:
        return table
    _, duration = _sums(table)
    order = sorted(range(len(table.names)), key=lambda index: -duration[index])
    kept = order[: MOST_NAMES - 1]
    places = {index: place for place, index in enumerate(kept)}
    return replace(
        table,
        names=(*(table.names[index] for index in kept), OTHERS),
        launches=tuple(
            replace(launch, name=places.get(launch.name, len(kept))) for launch in launches
        ),
    )


def by_kernel(table: KernelTable) -> list[LaunchedGroup]:
    """The kernels, copies and fills of a table, those that took most time first.

    Kernels that read the same are one: those of one algorithm in several variants.
    """
    launches, duration = _sums(table)
    return _added(
        LaunchedGroup(short_name(name), family(name), name, launches[index], duration[index])
        for index, name in enumerate(table.names)
    )


def by_family(table: KernelTable) -> list[LaunchedGroup]:
    """The same by family, the one that took most time first."""
    return _added(replace(one, name=one.family) for one in by_kernel(table))


def _sums(table: KernelTable) -> tuple[list[int], list[float]]:
    """Launches and nanoseconds per name."""
    launches = [0] * len(table.names)
    duration = [0.0] * len(table.names)
    for launch in table.launches:
        launches[launch.name] += 1
        duration[launch.name] += launch.duration
    return launches, duration


def _added(found: Iterable[LaunchedGroup]) -> list[LaunchedGroup]:
    groups: dict[tuple[str, str], list[LaunchedGroup]] = {}
    for one in found:
        groups.setdefault((one.name, one.family), []).append(one)
    sums = [
        replace(
            group[0],
            launches=sum(one.launches for one in group),
            duration=sum(one.duration for one in group),
        )
        for group in groups.values()
    ]
    return sorted(sums, key=lambda one: -one.duration)
