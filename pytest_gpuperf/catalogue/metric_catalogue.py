"""The metric catalogue, `metrics.yaml`, loaded once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from pytest_gpuperf.catalogue import yaml_table
from pytest_gpuperf.catalogue.architectures import CPU
from pytest_gpuperf.errors import UsageFailure, meant
from pytest_gpuperf.model.measurement import STEP, grouped
from pytest_gpuperf.model.metric import Direction, Metric, MetricClass

ALWAYS = "core"
"""The set of metrics that is always measured."""
WARPS_ACTIVE = "sm__warps_active.sum"
"""Warp-cycles: the numerator of `active_warps`, which is no metric of its own."""
_RATES = {"ipc": ("instructions", "active_cycles"), "active_warps": (WARPS_ACTIVE, "active_cycles")}
"""Numerator and denominator: names of the catalogue, or NVIDIA's."""
_WHILE_ACTIVE = ("tensor_utilization", "fma_utilization", "int_alu_utilization")
"""Shares of a peak per active cycle: weighed by those cycles, they are the share of the whole."""


@dataclass(frozen=True)
class Catalogue:
    """All metrics by name, in the order they are shown, and the named sets that are chosen by."""

    metrics: dict[str, Metric]
    sets: dict[str, tuple[str, ...]]
    retired: frozenset[str] = frozenset()
    """Metrics that are measured no more; files of older versions have them."""

    def hardware_set(self, name: str) -> tuple[Metric, ...]:
        """The counters of the set `name` (core, paper). Raises KeyError for an unknown set."""
        members = (self.metrics[metric] for metric in self.sets[name])
        return tuple(metric for metric in members if metric.hardware)

    @property
    def counter_sets(self) -> tuple[str, ...]:
        """The sets of hardware counters; each has all of the one before it, and takes passes."""
        return tuple(name for name in self.sets if self.hardware_set(name))

    def selected(self, wanted: str) -> tuple[Metric, ...]:
        """The metrics of "reference,pipe_lsu": sets and metrics, separated by commas.

        In the catalogue's order, each once; those of the set core are always among them, so that
        no choice takes the verdict away. Raises UsageFailure for a name that is neither, and for
        metrics that neither a hardware counter nor a trace gives.
        """
        names = [ALWAYS, *(name.strip() for name in wanted.split(","))]
        for name in names:
            self._check(name)
        return tuple(self.metrics[name] for name in _members(names, self.sets, self.metrics))

    def _check(self, name: str) -> None:
        if name in self.sets:
            return
        known = self.metrics.get(name)
        if known is None:
            close = meant(name, [*self.sets, *self.metrics])
            raise UsageFailure(
                f'"{name}" is neither a set nor a metric.{close} Sets are {", ".join(self.sets)}. '
                "`gpuperf metrics` lists all metrics"
            )
        if not (known.traced or known.hardware):
            raise UsageFailure(
                f'"{name}" is not a hardware counter, so it cannot be chosen. gpuperf always '
                "measures it where it exists. Leave it out"
            )


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """The catalogue of this package. A set may name sets before it."""
    data = yaml_table(Path(__file__).with_name("metrics.yaml"))
    metrics = {name: _metric(name, entry) for name, entry in data["metrics"].items()}
    sets: dict[str, tuple[str, ...]] = {}
    for name, members in data["sets"].items():
        sets[name] = _members(members, sets, metrics)
    return Catalogue(metrics, sets, frozenset(data["retired"]))


def no_metric(name: str) -> str:
    """The message for an unknown metric name."""
    return f"no such metric.{meant(name, catalogue().metrics)} `gpuperf metrics` lists them"


def _members(
    names: Sequence[str], sets: Mapping[str, tuple[str, ...]], metrics: Mapping[str, Metric]
) -> tuple[str, ...]:
    members = {metric for name in names for metric in sets.get(name, (name,))}
    return tuple(sorted(members, key=list(metrics).index))


MOST_PERCENT = 1000
"""The largest valid percentage. Hardware sometimes reports slightly more than 100."""
_LAUNCHES, _COLLECTIVES = "launches", "collectives"


def impossible(phase: str, series: Mapping[str, Sequence[float]]) -> Iterator[tuple[str, str]]:
    """Metrics of `series` with impossible values, and why they are impossible.

    `series` are all values of a phase, by metric. No value is negative; a whole step takes time;
    launched kernels execute instructions; a share is at most 100 %. Collectives do not count as
    launched kernels: their time is not the step's own.
    """
    collectives = max(series.get(_COLLECTIVES, ()), default=0)
    launched = min(series.get(_LAUNCHES, ()), default=0) > collectives
    for name, values in series.items():
        metric = catalogue().metrics.get(name)
        if metric is None or not values:
            continue
        zero_is_wrong = metric.positive == "always" or (metric.positive == "launched" and launched)
        most = 100.01 if metric.traced else MOST_PERCENT
        if min(values) < 0:
            yield name, f"{min(values):g} {metric.unit}, which cannot be negative"
        elif phase == STEP and zero_is_wrong and not min(values):
            yield name, f"0 {metric.unit}, which is impossible for an executed step"
        elif metric.percentage and max(values) > most:
            yield name, f"{max(values):g}, which is not a percentage"


def other_units(written: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Metrics that a file has in another unit than the catalogue, and what is wrong with it."""
    for name, unit in written.items():
        metric = catalogue().metrics.get(name)
        if metric is not None and metric.unit != unit:
            yield name, f'measured in "{unit}", but this version measures it in "{metric.unit}"'


def over_launches(metric: str, launches: Sequence[Mapping[str, float]]) -> float | str:
    """The metric's value over several launches together, or why it has none.

    A launch has its values by the catalogue's names, and counts by NVIDIA's. Counts add up. A rate
    is recomputed from its counts if present: an average over launches would weigh a kernel of 3 us
    like one of 3 ms.
    """
    missing = sum(metric not in launch for launch in launches)
    if len(launches) == 1 and not missing:
        return launches[0][metric]
    if metric in _RATES:
        over, under = (_sum(name, launches) for name in _RATES[metric])
        if over is not None and under:
            return over / under
        needed = " and ".join(_hardware(name) for name in _RATES[metric])
        return f"the rate of several kernels needs {needed}, which were not counted"
    if metric in _WHILE_ACTIVE:
        return _weighed(metric, launches)
    if not catalogue().metrics[metric].additive:
        return "this rate is known for single kernels only"
    if missing:
        return f"the value is missing for {missing} of {len(launches)} kernels"
    return math.fsum(launch[metric] for launch in launches)


def _weighed(metric: str, launches: Sequence[Mapping[str, float]]) -> float | str:
    both = [one for one in launches if "active_cycles" in one and metric in one]
    known = [(one["active_cycles"], one[metric]) for one in both]
    weight = math.fsum(c for c, _ in known)
    if len(known) < len(launches) or not weight:
        return f"the rate of several kernels needs {_hardware('active_cycles')} of each"
    return math.fsum(c * s for c, s in known) / weight


def _sum(name: str, launches: Sequence[Mapping[str, float]]) -> float | None:
    """The sum of a count; None where a launch lacks it."""
    values = [launch[name] for launch in launches if name in launch]
    return math.fsum(values) if len(values) == len(launches) else None


def _hardware(name: str) -> str:
    metric = catalogue().metrics.get(name)
    return name if metric is None else metric.hardware["default"] or name


def _metric(name: str, entry: Mapping[str, Any]) -> Metric:
    hardware = entry.get("hardware", {})
    read = {
        "direction": Direction(entry["direction"]),
        "metric_class": MetricClass(entry["class"]),
        "hardware": {"default": hardware} if isinstance(hardware, str) else hardware,
    }
    own = {key: value for key, value in entry.items() if key != "class"}
    return Metric(name=name, **{**own, **read})


def hardware(metric: Metric, architecture: str) -> str | None:
    """NVIDIA's name of a metric, or None where it does not exist; nothing is counted on a CPU."""
    return None if architecture == CPU else metric.hardware_name(architecture)


def hardware_names(metric: Metric, architectures: Sequence[str]) -> dict[str | None, list[str]]:
    """NVIDIA's names of a counter, None for "absent", each with the architectures that have it."""
    return grouped(architectures if metric.hardware else (), partial(hardware, metric))
