"""How long a training and a sampling step take under each configuration of Med-DDPM, by a run."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from benchmarks.medians import ABSENT, of_processes
from pytest_gpuperf.catalogue import units
from pytest_gpuperf.model.result import Run

BASELINE = "baseline"
SAMPLING = "_sampling"
"""Behind a configuration's name: the measurement of its sampling step."""
_HEADINGS = (
    *("configuration", "training step", "faster", "peak memory", "first step"),
    *("sampling step", "faster"),
)


def table(run: Run, configurations: Iterable[str]) -> str:
    """A row per configuration that the run has, and how many times as fast as the baseline it is.

    The first step has in it what was compiled or captured; it is not measured otherwise.
    """
    rows = [
        f"| {' | '.join(_HEADINGS)} |",
        f"| --- |{' ---: |' * (len(_HEADINGS) - 1)}",
    ]
    rows += [
        f"| `{name}` | {' | '.join(_cells(run, name))} |"
        for name in configurations
        if of_processes(run, name, "step_time")
    ]
    return "\n".join(rows) + "\n"


def _cells(run: Run, name: str) -> tuple[str, ...]:
    training, sampling = (_time(run, f"{name}{what}") for what in ("", SAMPLING))
    bases = (_time(run, f"{BASELINE}{what}") for what in ("", SAMPLING))
    faster = [
        f"{base / time:.1f}x" if base and time else ABSENT
        for base, time in zip(bases, (training, sampling), strict=True)
    ]
    memory = of_processes(run, name, "peak_memory").values()
    return (
        units.value(training, "ms"),
        faster[0],
        units.value(median(memory), "bytes") if memory else ABSENT,
        _first_call(run, name),
        units.value(sampling, "ms"),
        faster[1],
    )


def _time(run: Run, configuration: str) -> float | None:
    values = of_processes(run, configuration, "step_time").values()
    return median(values) if values else None


def _first_call(run: Run, configuration: str) -> str:
    """The longest of the processes: others may have found compiled code in a cache."""
    seconds = [
        float(value)
        for measurement in run.measurements
        if measurement.configuration == configuration
        and (value := measurement.fingerprint.settings.get("first_call_s")) is not None
    ]
    return f"{max(seconds):.1f} s" if seconds else ABSENT
