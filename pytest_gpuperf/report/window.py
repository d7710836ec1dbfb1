"""The paper's window beside the whole step: what it saw, and how little of the step that is."""

from __future__ import annotations

from collections import Counter

from pytest_gpuperf import kernels
from pytest_gpuperf.judge.interval import centre
from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.model import STEP, Measurement, Window
from pytest_gpuperf.report import numbers

SHOWN = ("cycles", "instructions")
"""What the paper compares configurations by (section 6.1). Both add up, and so have shares."""


def values(measurement: Measurement) -> dict[str, float]:
    """What was counted in the window, by metric; {} where it was not counted."""
    window = measurement.window
    return {s.metric: s.values[0] for s in window.samples} if window else {}


def line(measurement: Measurement) -> str:
    """One sentence on the window of a measurement; "" where it was not counted."""
    window = measurement.window
    if window is None:
        return ""
    last = window.skipped + window.counted
    step = {s.metric: centre([s.values]) for s in measurement.samples if s.phase == STEP}
    parts = []
    for name, value in values(measurement).items():
        if name in SHOWN:
            part = f"{name} {numbers.value(value, catalogue().metrics[name].unit)}"
            if step.get(name):
                part += f", {_percent(value / step[name])} of the step's"
            parts.append(part)
    parts += _families(window)
    return (
        f"paper window, launches {window.skipped + 1} to {last} of a process ({window.collector}): "
        + "; ".join(parts)
    )


def _families(window: Window) -> list[str]:
    """What its launches are, the most frequent first; nothing where their names are not known."""
    table = window.kernels
    if table is None or table.mismatch:
        return []
    found = Counter(kernels.family(table.names[launch.name]) for launch in table.launches)
    return ["its launches: " + ", ".join(f"{n} {family}" for family, n in found.most_common())]


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 1 else f"{100 * share:.0f} %"
