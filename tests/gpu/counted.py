"""What the CUPTI collector brings back from a step on a real GPU."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.measure.collector import Collected, Phases, Plan, Work
from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector
from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.model.measurement import STEP
from tests import ROOT

CORE = catalogue().hardware_set("core")


def collector() -> CuptiCollector:
    """What counts on the GPU of this machine."""
    device = nvml.detect_device()
    assert device is not None
    return CuptiCollector(device, ROOT)


def collect(step: Callable[[], object], plan: Plan, phases: Phases | None = None) -> Collected:
    """What is collected of a step without components."""
    return collector().collect(Work(step, phases or Phases()), plan)


def captured(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of it; what is loaded at its first use cannot be captured."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def series(collected: Collected, part: str = STEP) -> dict[str, tuple[float, ...]]:
    """The values of a phase or component, by metric."""
    return {s.metric: s.values for s in collected.samples if s.phase == part}


def medians(collected: Collected, part: str = STEP) -> dict[str, float]:
    """The medians of a phase or component, by metric."""
    return {metric: median(values) for metric, values in series(collected, part).items()}
