"""Two runs side by side: by how much each metric changed, and which kernels.

The sides are called a and b. b is judged against a as against a baseline, and any change is
tolerated: by design there is no verdict. The dataclasses are what `gpuperf compare --format json`
writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pytest_gpuperf.judge.attribution import Naming, attribute
from pytest_gpuperf.judge.interval import centre
from pytest_gpuperf.judge.tolerance import ANY
from pytest_gpuperf.judge.verdict import Reference, judge, samples_by_phase
from pytest_gpuperf.model.measurement import STEP, KernelTable, Measurement, Scalar, checked
from pytest_gpuperf.model.metric import Metric
from pytest_gpuperf.model.result import Attribution, Verdict

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
    """DeviceRelation of two names: what changes is the device, whatever the code."""


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
    devices = _devices(a, b)
    tables = [[m.kernels for m in side if m.kernels is not None] for side in (a, b)]
    return Pair(
        a=_side(a, tables[0]),
        b=_side(b, tables[1]),
        devices=devices,
        differing=tuple(_differing(a, b)),
        metrics=tuple(_changes(a, b, metrics, devices)),
        attribution=attribute(tables[1], tables[0], naming) if naming and all(tables) else None,
    )


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
    a: Sequence[Measurement],
    b: Sequence[Measurement],
    metrics: Mapping[str, Metric],
    devices: DeviceRelation,
) -> Iterator[MetricChange]:
    """Every metric that a side has, the step's first. Processes that lack it do not count."""
    sides = [samples_by_phase(side) for side in (a, b)]
    keys = dict.fromkeys((phase, name) for side in sides for phase in side for name in side[phase])
    there, back = _judged(a, b, metrics), _judged(b, a, metrics)
    for phase, name in sorted(keys, key=lambda key: key[0] != STEP):
        metric = metrics[name]
        rounds = [side.get(phase, {}).get(name, ()) for side in sides]
        old, new = (centre(side) if side else None for side in rounds)
        low = high = None
        if min(map(len, rounds)) >= LEAST_FOR_INTERVAL and devices is not DeviceRelation.KINDS:
            low, high = _interval(there[phase, name], back[phase, name])
        change = _change(old, new, metric)
        yield MetricChange(
            phase, name, metric.unit, metric.percentage, old, new, change, low=low, high=high
        )


def _change(a: float | None, b: float | None, metric: Metric) -> float | None:
    if a is None or b is None:
        return None
    if metric.percentage:
        return b - a
    if a == 0:
        return 0.0 if b == 0 else None
    return (b - a) / abs(a)


def _judged(
    a: Sequence[Measurement], b: Sequence[Measurement], metrics: Mapping[str, Metric]
) -> dict[tuple[str, str], Verdict]:
    """What the judge says of b against a, by phase and metric, where nothing would fail.

    Where all of a's processes have all metrics, it is known which GPU each value is of.
    """
    samples = samples_by_phase(a)
    gpus = {one.process: one.fingerprint.device.identity for one in a}
    whole = all(len(each) == len(gpus) for series in samples.values() for each in series.values())
    reference = Reference(samples, gpus=tuple(gpus.values()) if whole else ())
    verdicts = judge(b, reference, metrics, dict.fromkeys(metrics, ANY))
    return {(verdict.phase, verdict.metric): verdict for verdict in verdicts}


def _interval(there: Verdict, back: Verdict) -> tuple[float, float] | tuple[None, None]:
    """The interval of a change, as wide as the noisier side makes it.

    `back` is what is said of a against b.
    """
    ends = [_ends(there.change, one) for one in (there, back)]
    known = [end for end in ends if end is not None]
    return max(known, key=lambda end: end[1] - end[0]) if len(known) == len(ends) else (None, None)


def _ends(change: float | None, noise: Verdict) -> tuple[float, float] | None:
    """The ends of a change that is as sure as that of another verdict.

    None where one of them is not known, or is of a share of nothing.
    """
    middle, low, high = noise.change, noise.low, noise.high
    if change is None or middle is None or low is None or high is None:
        return None
    if noise.points:
        return change + low - middle, change + high - middle
    if middle == -1:
        return None
    low, high = ((1 + change) * (1 + end) / (1 + middle) for end in (low, high))
    return low - 1, high - 1
