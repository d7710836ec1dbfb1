"""Two runs side by side: by how much each metric changed, and which kernels.

The sides are called a and b, and changes are from a to b. By design not a verdict: nothing is gated
here, and the interval is the judge's without what a calibration or a test's marker would add. The
dataclasses are what `gpuperf compare --format json` writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pytest_gpuperf.judge.attribution import Naming, attribute
from pytest_gpuperf.judge.interval import centre, difference
from pytest_gpuperf.judge.noise import BaselineGpus, scales
from pytest_gpuperf.judge.tolerance import tolerance_for
from pytest_gpuperf.judge.verdict import samples_by_phase
from pytest_gpuperf.model.measurement import STEP, KernelTable, Measurement, Scalar, checked
from pytest_gpuperf.model.metric import Metric
from pytest_gpuperf.model.result import Attribution

LEAST_FOR_INTERVAL = 3
"""Processes of each side: of two that differ, nobody can say what is usual."""
_SECONDS = "_s"
"""The end of the settings that say what measuring cost: those never repeat."""


class DeviceRelation(str, Enum):
    """What the two sides were measured on."""

    SAME = "same"
    """The very same GPUs, or CPU."""
    OTHER = "other"
    """Other ones of one name: cycles of one step differ by some per cent between such GPUs."""
    KINDS = "kinds"
    """Devices of two names: what changes is the device, whatever the code."""


@dataclass(frozen=True, slots=True)
class Source:
    """What one side was taken from."""

    run: str
    """The run's file, as it was named."""
    created: str
    """When that run was saved: UTC, ISO 8601."""
    configuration: str | None
    """The one that was asked for; None: all."""
    devices: tuple[str, ...]
    """Such as "NVIDIA H200 (sm90)"."""
    revisions: tuple[str, ...]
    measured: str
    """When the first measurement began: UTC, ISO 8601; "" where nobody kept it."""


@dataclass(frozen=True, slots=True)
class Side:
    """One measurement, of all processes that made it."""

    test: str
    name: str
    configuration: str
    device: str
    """Its name: "NVIDIA H200"."""
    arch: str
    gpus: tuple[str, ...]
    """Digests of the UUIDs of the GPUs that the processes ran on."""
    processes: int
    tables: int
    """How many processes have a kernel table."""
    mismatches: tuple[str, ...]
    """Why kernels of the tables have no counters."""


@dataclass(frozen=True, slots=True)
class Differing:
    """Something beside the numbers that differs, and may be why those do."""

    what: str
    """workload, software or settings."""
    key: str
    a: str | None
    """The values of the processes, joined by commas; None where there is none."""
    b: str | None


@dataclass(frozen=True, slots=True)
class MetricChange:
    """One metric of one phase."""

    phase: str
    metric: str
    unit: str
    """Of `a` and `b`."""
    points: bool
    """`change`, `low` and `high` are percentage points, not shares of `a` (0.01 is 1 %)."""
    a: float | None
    """The median over processes of the medians over their rounds; None where not measured."""
    b: float | None
    change: float | None
    """None where a side has no value, and where `a` is 0 and nothing can be a share of it."""
    low: float | None
    """The 99.5 % interval of the change; None where a side has fewer than three processes."""
    high: float | None


@dataclass(frozen=True, slots=True)
class Pair:
    """One measurement of both sides."""

    __pydantic_config__ = checked(attribution="blame")

    a: Side
    b: Side
    devices: DeviceRelation
    differing: tuple[Differing, ...]
    metrics: tuple[MetricChange, ...]
    """Those of the whole step first."""
    attribution: Attribution | None
    """a is its baseline. None where a side has no kernel table, or kernels were not asked for."""


@dataclass(frozen=True, slots=True)
class Unpaired:
    """A measurement that only one side has."""

    test: str
    name: str
    configuration: str
    processes: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs, or two configurations."""

    schema: int
    a: Source
    b: Source
    pairs: tuple[Pair, ...]
    only_a: tuple[Unpaired, ...]
    only_b: tuple[Unpaired, ...]


def pair(
    a: Sequence[Measurement],
    b: Sequence[Measurement],
    metrics: Mapping[str, Metric],
    naming: Naming | None,
) -> Pair:
    """Compares the measurements of `b` with those of `a`, each of all processes of its side.

    `metrics` is the catalogue; without `naming`, kernels are left out.
    """
    old, new = _Processes.of(a), _Processes.of(b)
    devices = _devices(a, b)
    tables = [[m.kernels for m in side if m.kernels is not None] for side in (a, b)]
    return Pair(
        a=_side(a, tables[0]),
        b=_side(b, tables[1]),
        devices=devices,
        differing=tuple(_differing(a, b)),
        metrics=tuple(_changes(old, new, metrics, devices)),
        attribution=attribute(tables[1], tables[0], naming) if naming and all(tables) else None,
    )


@dataclass(frozen=True)
class _Processes:
    """The values of one side, by process."""

    gpus: dict[str, str]
    """The GPU of each process."""
    values: dict[str, dict[tuple[str, str], Sequence[float]]]
    """Per process, the rounds of each phase and metric."""

    @classmethod
    def of(cls, measurements: Sequence[Measurement]) -> _Processes:
        by_process: dict[str, list[Measurement]] = {}
        for measurement in measurements:
            by_process.setdefault(measurement.process, []).append(measurement)
        return cls(
            gpus={p: own[0].fingerprint.device.identity for p, own in by_process.items()},
            values={
                process: {
                    (phase, metric): rounds
                    for phase, series in samples_by_phase(own).items()
                    for metric, (rounds,) in series.items()
                    if rounds
                }
                for process, own in by_process.items()
            },
        )

    def keys(self) -> dict[tuple[str, str], None]:
        """Every phase and metric that some process has, in order."""
        return dict.fromkeys(key for own in self.values.values() for key in own)

    def having(self, key: tuple[str, str]) -> list[str]:
        return [process for process, own in self.values.items() if key in own]

    def rounds(self, key: tuple[str, str]) -> list[Sequence[float]]:
        return [self.values[process][key] for process in self.having(key)]


def _side(measurements: Sequence[Measurement], tables: Sequence[KernelTable]) -> Side:
    first = measurements[0]
    device = first.fingerprint.device
    return Side(
        test=first.test,
        name=first.name,
        configuration=first.configuration,
        device=device.name,
        arch=device.arch,
        gpus=_gpus(measurements),
        processes=len({m.process for m in measurements}),
        tables=len(tables),
        mismatches=tuple(dict.fromkeys(t.mismatch for t in tables if t.mismatch)),
    )


def _gpus(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(m.fingerprint.device.identity for m in measurements))


def _devices(a: Sequence[Measurement], b: Sequence[Measurement]) -> DeviceRelation:
    one, other = ({m.fingerprint.device.slug for m in side} for side in (a, b))
    if one != other:
        return DeviceRelation.KINDS
    return DeviceRelation.SAME if set(_gpus(a)) == set(_gpus(b)) else DeviceRelation.OTHER


def _differing(a: Sequence[Measurement], b: Sequence[Measurement]) -> Iterator[Differing]:
    for what, one, other in (
        ("workload", [m.workload for m in a], [m.workload for m in b]),
        ("software", [m.fingerprint.software for m in a], [m.fingerprint.software for m in b]),
        ("settings", [m.fingerprint.settings for m in a], [m.fingerprint.settings for m in b]),
    ):
        for key in dict.fromkeys(key for mapping in (*one, *other) for key in mapping):
            if what == "settings" and key.endswith(_SECONDS):
                continue
            old, new = _values(one, key), _values(other, key)
            if set(old) != set(new):
                yield Differing(what, key, ", ".join(old) or None, ", ".join(new) or None)


def _values(side: Sequence[Mapping[str, Scalar]], key: str) -> list[str]:
    return list(dict.fromkeys(str(mapping[key]) for mapping in side if key in mapping))


def _changes(
    a: _Processes, b: _Processes, metrics: Mapping[str, Metric], devices: DeviceRelation
) -> Iterator[MetricChange]:
    for key in sorted({**a.keys(), **b.keys()}, key=lambda key: key[0] != STEP):
        phase, name = key
        metric = metrics[name]
        rounds = a.rounds(key), b.rounds(key)
        one, other = (centre(side) if side else None for side in rounds)
        change = low = high = None
        if one is not None and other is not None:
            change = _change(one, other, metric)
            if change is not None and min(map(len, rounds)) >= LEAST_FOR_INTERVAL:
                low, high = _interval(a, b, key, metric, devices)
        yield MetricChange(
            phase, name, metric.unit, metric.percentage, one, other, change, low=low, high=high
        )


def _change(a: float, b: float, metric: Metric) -> float | None:
    if metric.percentage:
        return b - a
    if a == 0:
        return 0.0 if b == 0 else None
    return (b - a) / abs(a)


def _interval(
    a: _Processes, b: _Processes, key: tuple[str, str], metric: Metric, devices: DeviceRelation
) -> tuple[float, float] | tuple[None, None]:
    """The judge's interval of a change, for as much noise as the noisier side has."""
    if devices is DeviceRelation.KINDS:
        # The spread between GPUs of one name says nothing about those of two names.
        return None, None
    tolerance = tolerance_for(metric)
    gpus = BaselineGpus(tuple(a.gpus[p] for p in a.having(key)), frozenset(b.gpus.values()))
    own = scales({"": a.rounds(key)}, {"": tolerance}, gpus)[""]
    theirs = BaselineGpus(tuple(b.gpus[p] for p in b.having(key)), frozenset())
    other = scales({"": b.rounds(key)}, {"": tolerance}, theirs)[""]
    scale = own
    if other.spread > own.spread:
        scale = replace(own, spread=other.spread, degrees_of_freedom=other.degrees_of_freedom)
    look = difference(b.rounds(key), a.rounds(key), tolerance, gpus, scale)
    if look.from_zero:
        return None, None
    return look.shown(look.change - look.margin), look.shown(look.change + look.margin)
