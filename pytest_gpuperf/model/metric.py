"""One row of the metric catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Direction(str, Enum):
    """The direction in which a metric improves."""

    LOWER = "lower"
    HIGHER = "higher"
    NEUTRAL = "neutral"
    """Neither: the metric explains others and is never gated (IPC rises when slow code spins)."""


class MetricClass(str, Enum):
    """The noise model of a metric; the judge has its scales per class (docs/verdict.md)."""

    DETERMINISTIC = "deterministic"
    CYCLE = "cycle"
    RATIO = "ratio"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row of the catalogue."""

    name: str
    unit: str
    direction: Direction
    metric_class: MetricClass
    gated: bool = False
    """Whether a change of this metric may fail a test; the others are reported beside it."""
    additive: bool = False
    """Whether values of consecutive ranges add up to the value of the range that spans them."""
    percentage: bool = False
    """A bounded percentage (0 to 100): its changes are absolute points, not relative."""
    summary: str
    hardware: Mapping[str, str | None] = field(default_factory=dict)
    """NVIDIA's name per architecture, None if the architecture lacks it; "default" for all others.
    Empty: not a counter."""
    practical_floor: float | None = None
    """The smallest relative change that matters, if it differs from that of the metric's class."""
    positive: str = ""
    """The case in which zero is impossible for a whole step: "always", or "launched", if the step
    launched anything. "" if zero is possible, as for copies."""
    traced: bool = False
    """Read from a trace of what the GPU did, not counted; chosen as counters are."""

    portable: bool = False
    """For traced metrics: whether the metric exists on a CPU too."""
    of_gpu: bool = False
    """For metrics that are neither hardware counters nor traced: a CPU does not have it."""

    def hardware_name(self, arch: str) -> str | None:
        """NVIDIA's name for this metric on `arch`, or None where it does not exist."""
        return self.hardware.get(arch, self.hardware.get("default")) or None

    def instrumented(self, arch: str) -> bool:
        """Whether it is counted by instructions added to every kernel, not by hardware.

        NVIDIA says so in the name ("smsp__sass_inst_executed..."): exact, and many times slower.
        """
        return "__sass_" in (self.hardware_name(arch) or "")

    def exists_on(self, arch: str) -> bool:
        """Whether the metric can be measured on `arch`; true if it is always collected."""
        if self.traced or self.of_gpu:
            return self.portable or arch != "cpu"
        return not self.hardware or self.hardware_name(arch) is not None
