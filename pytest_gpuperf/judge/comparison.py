"""One measurement of two runs side by side: by how much each metric changed, and which kernels.

By design not a verdict: nothing is gated here, and the interval is the judge's without what a
calibration or a test's marker would add.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_gpuperf.judge.blame import Naming, blame
from pytest_gpuperf.judge.compared import Change, Devices, Differing, Pair, Side
from pytest_gpuperf.judge.interval import centre, difference
from pytest_gpuperf.judge.scale import scales
from pytest_gpuperf.judge.tolerance import tolerance_for
from pytest_gpuperf.judge.units import Units
from pytest_gpuperf.judge.verdict import samples_by_phase
from pytest_gpuperf.model import STEP, KernelTable, Measurement, Metric, Scalar

LEAST_FOR_INTERVAL = 3
"""Processes of each side: of two that differ, nobody can say what is usual."""
_SECONDS = "_s"
"""The end of the settings that say what measuring cost: those never repeat."""


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
        blame=blame(tables[1], tables[0], naming) if naming and all(tables) else None,
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
            gpus={p: found[0].fingerprint.device.identity for p, found in by_process.items()},
            values={
                process: {
                    (phase, metric): rounds
                    for phase, series in samples_by_phase(found).items()
                    for metric, (rounds,) in series.items()
                    if rounds
                }
                for process, found in by_process.items()
            },
        )

    def keys(self) -> dict[tuple[str, str], None]:
        """Every phase and metric that some process has, in order."""
        return dict.fromkeys(key for found in self.values.values() for key in found)

    def having(self, key: tuple[str, str]) -> list[str]:
        return [process for process, found in self.values.items() if key in found]

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


def _devices(a: Sequence[Measurement], b: Sequence[Measurement]) -> Devices:
    one, other = ({m.fingerprint.device.slug for m in side} for side in (a, b))
    if one != other:
        return Devices.KINDS
    return Devices.SAME if set(_gpus(a)) == set(_gpus(b)) else Devices.OTHER


def _differing(a: Sequence[Measurement], b: Sequence[Measurement]) -> Iterator[Differing]:
    for what, one, other in (
        ("workload", [m.workload for m in a], [m.workload for m in b]),
        ("software", [m.fingerprint.software for m in a], [m.fingerprint.software for m in b]),
        ("settings", [m.fingerprint.settings for m in a], [m.fingerprint.settings for m in b]),
    ):
        for key in dict.fromkeys(key for found in (*one, *other) for key in found):
            if what == "settings" and key.endswith(_SECONDS):
                continue
            old, new = _values(one, key), _values(other, key)
            if set(old) != set(new):
                yield Differing(what, key, ", ".join(old) or None, ", ".join(new) or None)


def _values(side: Sequence[Mapping[str, Scalar]], key: str) -> list[str]:
    return list(dict.fromkeys(str(found[key]) for found in side if key in found))


def _changes(
    a: _Processes, b: _Processes, metrics: Mapping[str, Metric], devices: Devices
) -> Iterator[Change]:
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
        yield Change(
            phase, name, metric.unit, metric.percentage, one, other, change, low=low, high=high
        )


def _change(a: float, b: float, metric: Metric) -> float | None:
    if metric.percentage:
        return b - a
    if a == 0:
        return 0.0 if b == 0 else None
    return (b - a) / abs(a)


def _interval(
    a: _Processes, b: _Processes, key: tuple[str, str], metric: Metric, devices: Devices
) -> tuple[float, float] | tuple[None, None]:
    """The judge's interval of a change, for as much noise as the noisier side has."""
    if devices is Devices.KINDS:
        # The spread between GPUs of one name says nothing about those of two names.
        return None, None
    tolerance = tolerance_for(metric)
    units = Units(tuple(a.gpus[p] for p in a.having(key)), frozenset(b.gpus.values()))
    own = scales({"": a.rounds(key)}, {"": tolerance}, units)[""]
    theirs = Units(tuple(b.gpus[p] for p in b.having(key)), frozenset())
    other = scales({"": b.rounds(key)}, {"": tolerance}, theirs)[""]
    scale = own
    if other.spread > own.spread:
        scale = replace(own, spread=other.spread, degrees_of_freedom=other.degrees_of_freedom)
    look = difference(b.rounds(key), a.rounds(key), tolerance, units, scale)
    if look.from_zero:
        return None, None
    return look.shown(look.change - look.margin), look.shown(look.change + look.margin)
