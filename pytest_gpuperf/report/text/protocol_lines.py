"""The sentences on a measurement's timeline, and on the paper's window beside the whole step."""

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
SHOWN = ("cycles", "instructions")
"""What the paper compares configurations by (section 6.1). Both add up, and so have shares."""
_SLOWER = 0.05
"""Share by which the sampled step has to differ from the step by itself to be spoken of: sampling
may keep the clocks at another frequency."""


def timeline_line(measurement: Measurement) -> str:
    """One sentence on the timeline of a measurement; "" where none was asked for."""
    timeline = measurement.timeline
    if timeline is None:
        return ""
    if timeline.obstacle:
        return f"timeline: not sampled: {timeline.obstacle}"
    means = {name: timelines.mean(timeline, metric) for metric, name in NAMES.items()}
    known = [f"{name} {value:.0f} %" for name, value in means.items() if value is not None]
    idle = timelines.idle(timeline)
    parts = [
        sampling(timeline),
        *([", ".join(known) + " on average"] if known else []),
        *([] if idle is None else [f"idle {100 * idle:.0f} % of the time"]),
        *(f"{entry.metric}: {entry.reason}" for entry in timeline.unsupported),
        *slower(timeline, measurement),
    ]
    return "timeline: " + "; ".join(parts)


def sampling(timeline: Timeline, drawn: float = 0.0) -> str:
    """How it was sampled, and what the points are where they are no samples: "2,300 samples of
    100 us". `drawn` is the time of a point in a figure, in ns, where that is more.
    """
    means = []
    if timeline.interval > 1.5 * timeline.sampling_interval:
        means.append(f"kept as means of {_time(timeline.interval)}")
    if drawn > timeline.interval:
        means.append(f"drawn as means of {_time(drawn)}")
    told = f" ({', '.join(means)})" if means else ""
    return f"{timeline.samples:,} samples of {_time(timeline.sampling_interval)}{told}"


def slower(timeline: Timeline, measurement: Measurement) -> list[str]:
    """That the step took another time while it was sampled, where that is so."""
    times = [s.values for s in measurement.samples if (s.phase, s.metric) == (STEP, "step_time")]
    usual = centre(times) * 1e6 if times else 0.0
    if usual <= 0 or abs(change := timeline.duration / usual - 1) < _SLOWER:
        return []
    took = units.value(timeline.duration, "ns")
    return [f"the step took {took} while it was sampled ({units.moved(change)})"]


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
    count = Counter(kernel_families.family(table.names[launch.name]) for launch in table.launches)
    return ["its launches: " + ", ".join(f"{n} {family}" for family, n in count.most_common())]


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 1 else f"{100 * share:.0f} %"


def _time(nanoseconds: float) -> str:
    milliseconds = nanoseconds / 1e6
    return f"{milliseconds:.3g} ms" if milliseconds >= 1 else f"{nanoseconds / 1e3:.3g} us"
