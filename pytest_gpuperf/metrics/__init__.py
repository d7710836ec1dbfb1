"""The metric catalogue: `metrics.yaml`, loaded once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pytest_gpuperf.model import Direction, Metric, MetricClass


@dataclass(frozen=True)
class Catalogue:
    """All metrics by name, in the order they are shown, and the named sets of hardware metrics."""

    metrics: dict[str, Metric]
    sets: dict[str, tuple[str, ...]]

    def hardware_set(self, name: str) -> tuple[Metric, ...]:
        """The metrics of the set `name` (core, paper). Raises KeyError for an unknown set."""
        return tuple(self.metrics[metric] for metric in self.sets[name])

    def order(self, name: str) -> int:
        """The position of a metric in the catalogue, for sorting."""
        return list(self.metrics).index(name)


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """The catalogue of this package."""
    import yaml

    text = Path(__file__).with_name("metrics.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.safe_load(text)
    metrics = {name: _metric(name, entry) for name, entry in data["metrics"].items()}
    return Catalogue(metrics, {name: tuple(members) for name, members in data["sets"].items()})


def _metric(name: str, entry: dict[str, Any]) -> Metric:
    hardware = entry.get("hardware", {})
    return Metric(
        name=name,
        unit=entry["unit"],
        direction=Direction(entry["direction"]),
        metric_class=MetricClass(entry["class"]),
        gated=entry.get("gated", False),
        additive=entry.get("additive", False),
        percentage=entry.get("percentage", False),
        summary=entry["summary"],
        hardware={"default": hardware} if isinstance(hardware, str) else hardware,
    )
