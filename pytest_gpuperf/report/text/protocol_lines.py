"""A measurement's timeline in words."""

from __future__ import annotations

from collections import Counter

from pytest_gpuperf.catalogue import kernel_families, units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.interval import centre
from pytest_gpuperf.measure.trace import timelines
from pytest_gpuperf.model.measurement import STEP, Measurement, Timeline, Window

NAMES = {
    "tensor_active": "tensor pipe",
    "fma_active": "FMA pipe",
    "dram_active": "DRAM",
    "sm_active": "SMs",
}
"""What is spoken of, in this order, and how."""

_SLOWER = 0.05
"""Share by which the sampled step has to differ from the step by itself to be spoken of: sampling
may keep the clocks at another frequency."""


def timeline_line(measurement: Measurement) -> str:
    """One sentence on the timeline of a measurement; "" where none was asked for."""
    found = measurement.timeline
    if found is None:
        return ""
    if found.obstacle:
        return f"timeline: not sampled: {found.obstacle}"
    parts = [
        sampling(found),
        *_means(found),
        *_idle(found),
        *_unsupported(found),
        *slower(found, measurement),
    ]
    return "timeline: " + "; ".join(parts)


def sampling(found: Timeline, drawn: float = 0.0) -> str:
    """How it was sampled, and what the points are where they are no samples: "2,300 samples of
    100 us". `drawn` is the time of a point in a figure, in ns, where that is more.
    """
    means = []
    if found.interval > 1.5 * found.sampling_interval:
        means.append(f"kept as means of {_time(found.interval)}")
    if drawn > found.interval:
        means.append(f"drawn as means of {_time(drawn)}")
    told = f" ({', '.join(means)})" if means else ""
    return f"{found.samples:,} samples of {_time(found.sampling_interval)}{told}"


def slower(found: Timeline, measurement: Measurement) -> list[str]:
    """That the step took another time while it was sampled, where that is so."""
    times = [s.values for s in measurement.samples if (s.phase, s.metric) == (STEP, "step_time")]
    usual = centre(times) * 1e6 if times else 0.0
    if usual <= 0 or abs(change := found.duration / usual - 1) < _SLOWER:
        return []
    took = units.value(found.duration, "ns")
    return [f"the step took {took} while it was sampled ({units.moved(change)})"]


def _means(found: Timeline) -> list[str]:
    means = {name: timelines.mean(found, metric) for metric, name in NAMES.items()}
    said = [f"{name} {value:.0f} %" for name, value in means.items() if value is not None]
    return [", ".join(said) + " on average"] if said else []


def _idle(found: Timeline) -> list[str]:
    share = timelines.idle(found)
    return [] if share is None else [f"idle {share:.0%} of the time".replace("%", " %")]


def _unsupported(found: Timeline) -> list[str]:
    return [f"{entry.metric}: {entry.reason}" for entry in found.unsupported]


def _time(nanoseconds: float) -> str:
    milliseconds = nanoseconds / 1e6
    return f"{milliseconds:.3g} ms" if milliseconds >= 1 else f"{nanoseconds / 1e3:.3g} us"


# The paper's window beside the whole step: what it saw, and how little of the step that is.

SHOWN = ("cycles", "instructions")
"""What the paper compares configurations by (section 6.1). Both add up, and so have shares."""


def window_values(measurement: Measurement) -> dict[str, float]:
    """What was counted in the window, by metric; {} where it was not counted."""
    window = measurement.window
    return {s.metric: s.values[0] for s in window.samples} if window else {}


def window_line(measurement: Measurement) -> str:
    """One sentence on the window of a measurement; "" where it was not counted."""
    window = measurement.window
    if window is None:
        return ""
    last = window.skipped + window.counted
    step = {s.metric: centre([s.values]) for s in measurement.samples if s.phase == STEP}
    parts = []
    for name, value in window_values(measurement).items():
        if name in SHOWN:
            part = f"{name} {units.value(value, catalogue().metrics[name].unit)}"
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
    found = Counter(kernel_families.family(table.names[launch.name]) for launch in table.launches)
    return ["its launches: " + ", ".join(f"{n} {family}" for family, n in found.most_common())]


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 1 else f"{100 * share:.0f} %"
