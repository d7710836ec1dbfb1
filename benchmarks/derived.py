"""The quantities that are derived from a committed run, as parts of the documentation.

Each function returns Markdown; `script/docs` puts it in place.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_gpuperf.analysis import launch_totals, priority, roofline
from pytest_gpuperf.catalogue import kernel_families, units
from pytest_gpuperf.model.result import Run


def known_devices() -> str:
    """The devices whose published peaks are known."""
    return f"{_listed(sorted(roofline.published()))}.\n"


def example(run: Run, configuration: str) -> str:
    """One kernel, the one with the highest score, step by step."""
    (table,) = (m.kernels for m in run.measurements if m.configuration == configuration)
    assert table is not None, configuration
    score = priority.priorities(table, kernel_families.family).kernels[0]
    rate = next(
        k
        for k in launch_totals.of_kernels(table, kernel_families.family).kernels
        if k.name == score.name
    )
    whole = launch_totals.total(
        launch.duration for launch in launch_totals.Counters(table).whole().launches
    )
    time = units.value(score.nanoseconds, "ns")
    assert score.throughput
    every = units.value(whole, "ns")
    return (
        f"{_code(score.name)}, {score.launches} launches in {time}:\n\n"
        f"- share of kernel time: {time} / {every} = {_percent(score.nanoseconds / whole)}\n"
        f"- IPC: {_number(rate.ipc)} of its launches together, geometric mean over them "
        f"{_number(rate.geometric_mean)}\n"
        f"- bottleneck: `{score.bottleneck}`, at {score.throughput:.2f} % of its peak\n"
        f"- estimated speedup: 100 / {score.throughput:.2f} - 1 = "
        f"{100 / score.throughput - 1:.3g}; of each launch clamped to 1, and weighed by time, "
        f"{_number(score.speedup)}\n"
        f"- priority score: {time} x {_number(score.speedup)} = "
        f"{units.value(score.score, 'ns')}, {_percent(score.share)} of the step's\n"
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _code(name: str) -> str:
    return f"`{kernel_families.short_name(name)}`"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
