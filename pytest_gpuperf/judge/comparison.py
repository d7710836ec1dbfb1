"""Two runs side by side: by how much each metric changed, and which kernels.

The sides are called a and b. b is judged against a as against a baseline, and any change is
tolerated: by design nothing fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from pytest_gpuperf.judge.attribution import Naming, attribute
from pytest_gpuperf.judge.tolerance import ANY
from pytest_gpuperf.judge.verdict import Reference, judge, samples_by_phase
from pytest_gpuperf.model.measurement import STEP, WALL, KernelTable, Measurement, Scalar
from pytest_gpuperf.model.metric import Metric
from pytest_gpuperf.model.result import Result, Verdict

LEAST_FOR_INTERVAL = 3
"""The least number of processes of each side: of two that differ, the usual one is unknown."""
_SECONDS = "_s"
"""The end of the settings that hold the cost of measuring: these values never repeat."""


class DeviceRelation(str, Enum):
    """The relation of the devices that the two sides were measured on."""

    SAME = "same"
    """The sides were measured on the very same GPUs, or CPU."""
    OTHER = "other"
    """Other ones of one name: cycles of one step differ by some per cent between such GPUs."""
    KINDS = "kinds"
    """DeviceRelation of two names: what changes is the device, whatever the code."""


Measurements = tuple[Measurement, ...]
"""One measurement, of all processes that made it."""


@dataclass(frozen=True)
class Chosen:
    """The measurements of one side that were asked for."""

    run: Path
    measurements: Measurements


@dataclass(frozen=True)
class Pair:
    """A measurement of both sides."""

    before: Measurements
    """The measurements of side a."""
    result: Result
    """Side b compared with side a: verdicts on the whole step first, and kernels where both sides
    have tables and they were asked for."""

    @property
    def sides(self) -> tuple[Measurements, Measurements]:
        """The measurements of a, and of b."""
        return self.before, self.result.measurements

    @property
    def devices(self) -> DeviceRelation:
        """How the devices of the sides are related."""
        one, other = ({m.fingerprint.device.slug for m in side} for side in self.sides)
        if one != other:
            return DeviceRelation.KINDS
        one, other = ({m.fingerprint.device.identity for m in side} for side in self.sides)
        return DeviceRelation.SAME if one == other else DeviceRelation.OTHER

    @property
    def differing(self) -> Iterator[tuple[str, str, str | None, str | None]]:
        """The differences beside the numbers that may explain different numbers.

        Each has workload, software or settings, the key, and the values of either side's processes,
        joined by commas; None for a side without a value.
        """
        prints = [[m.fingerprint for m in side] for side in self.sides]
        for what, (one, other) in (
            ("workload", [[m.workload for m in side] for side in self.sides]),
            ("software", [[f.software for f in side] for side in prints]),
            ("settings", [[f.settings for f in side] for side in prints]),
        ):
            for key in dict.fromkeys(key for mapping in (*one, *other) for key in mapping):
                old, new = _values(one, key), _values(other, key)
                costs = what == "settings" and (key == WALL or key.endswith(_SECONDS))
                if set(old) != set(new) and not costs:
                    yield what, key, ", ".join(old) or None, ", ".join(new) or None


@dataclass(frozen=True)
class Comparison:
    """A comparison of two runs, or of two configurations."""

    a: Chosen
    b: Chosen
    pairs: tuple[Pair, ...]
    only_a: tuple[Measurements, ...]
    """The measurements that only side a has."""
    only_b: tuple[Measurements, ...]


def pair(
    a: Measurements, b: Measurements, metrics: Mapping[str, Metric], naming: Naming | None
) -> Pair:
    """Compares `b` with `a`.

    `metrics` is the catalogue; without `naming`, kernels are left out.
    """
    made = Pair(a, Result(b[0].test, b[0].name, b))
    old, new = tables(a), tables(b)
    attribution = attribute(new, old, naming) if naming and old and new else None
    verdicts = tuple(_verdicts(made, metrics))
    return replace(made, result=replace(made.result, verdicts=verdicts, attribution=attribution))


def tables(side: Measurements) -> list[KernelTable]:
    """The kernel tables of those processes that have one."""
    return [m.kernels for m in side if m.kernels is not None]


def _values(side: Sequence[Mapping[str, Scalar]], key: str) -> list[str]:
    return list(dict.fromkeys(str(mapping[key]) for mapping in side if key in mapping))


def _verdicts(compared: Pair, metrics: Mapping[str, Metric]) -> Iterator[Verdict]:
    """A verdict on every metric that a side has, the step's first, without processes that lack it.

    An interval is given if both sides have enough processes, on devices of one name.
    """
    a, b = compared.sides
    old, new = samples_by_phase(a), samples_by_phase(b)
    # Where all processes of a have all metrics, it is known which GPU each value is of.
    gpus = tuple({one.process: one.fingerprint.device.identity for one in a}.values())
    whole = all(len(rounds) == len(gpus) for of in old.values() for rounds in of.values())
    judged = _judged(b, Reference(old, gpus=gpus if whole else ()), metrics)
    alone = _judged(a, Reference(None), metrics)
    keys = {(phase, name): 0 for side in (old, new) for phase in side for name in side[phase]}
    of_one_name = compared.devices is not DeviceRelation.KINDS
    for phase, name in sorted(keys, key=lambda key: key[0] != STEP):
        before, after = (len(side.get(phase, {}).get(name, ())) for side in (old, new))
        if not after:
            verdict = alone[phase, name]
            yield replace(verdict, baseline=verdict.measured, measured=None)
        elif of_one_name and min(before, after) >= LEAST_FOR_INTERVAL:
            yield judged[phase, name]
        else:
            yield replace(judged[phase, name], low=None, high=None)


def _judged(
    measurements: Measurements, reference: Reference, metrics: Mapping[str, Metric]
) -> dict[tuple[str, str], Verdict]:
    """The judge's verdicts by phase and metric, with any change tolerated."""
    verdicts = judge(measurements, reference, metrics, dict.fromkeys(metrics, ANY))
    return {(verdict.phase, verdict.metric): verdict for verdict in verdicts}
