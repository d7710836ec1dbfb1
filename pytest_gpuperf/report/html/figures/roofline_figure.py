"""Kernels under the roofs of the device: arithmetic and DRAM bandwidth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_gpuperf.analysis.roofline import DRAM_BYTES, OPCODES, TENSOR, Point, Roofline, roofline
from pytest_gpuperf.analysis.roofline import of_device as peaks_of_device
from pytest_gpuperf.report.html import overview
from pytest_gpuperf.report.html.figure import (
    Cell,
    Figure,
    Plot,
    Roof,
    Shape,
    cell_text,
    of_each,
    quantity,
)
from pytest_gpuperf.report.html.subject import FigureSubject, family, short_name

_MOST = 40
"""Kernels per configuration, those that take longest."""
_METRICS = (*(name for weights in OPCODES.values() for name in weights), *TENSOR.values())


def under_roofs(subjects: Sequence[FigureSubject]) -> Figure:
    """A chart per configuration, a point per kernel, its area the kernel's time."""
    rows: list[tuple[Cell, ...]] = []
    notes: list[str] = []
    said: list[tuple[str, str]] = []
    roofs: dict[str, Roof] = {}
    for subject in subjects:
        if subject.kernels is None:
            continue
        device = subject.device
        found = roofline(subject.kernels, family, peaks_of_device(device.slug), device.arch)
        drawn = [point for point in found.kernels[:_MOST] if point.flop_per_byte]
        rows += [_row(subject.label, point) for point in drawn]
        if not drawn:
            continue
        notes += [*_together(subject.label, found.step), *found.missing]
        roofs.update((roof.name, roof) for roof in _roofs(found))
        if found.step.roof is not None and found.step.share_of_roof is not None:
            share = f"{100 * found.step.share_of_roof:.0f} %"
            said.append((f"{share} of {found.step.roof}", subject.label))
    return Figure(
        key="roofline",
        title="Roofline: FLOP/s of each kernel against its FLOP per byte of DRAM traffic",
        conclusion=(f"The kernels together reach {of_each(said)}. " if said else "")
        + "Under the slope, fewer bytes make a kernel faster; under the flat roof, fewer FLOP or "
        "another data type; far below both, neither is the limit.",
        columns=(
            "configuration", "kernel", "family", "FLOP per byte", "FLOP/s", "share of roof",
            "roof", "time", "DRAM bytes",
        ),
        rows=tuple(rows),
        plot=Plot(
            Shape.POINTS,
            name="kernel",
            values=("FLOP per byte", "FLOP/s"),
            series="family",
            panel="configuration",
            logarithmic=(True, True),
            roofs=tuple(roofs.values()),
            sizes="time",
        )
        if rows
        else None,
        notes=tuple(dict.fromkeys(notes)),
        missing=overview.missing_metrics(subjects, (*_METRICS, DRAM_BYTES), per_kernel=True),
    )  # fmt: skip


def _row(label: str, point: Point) -> tuple[Cell, ...]:
    return (
        label,
        short_name(point.name),
        point.family,
        quantity(point.flop_per_byte, "FLOP/byte"),
        quantity(point.flop_per_second, "FLOP/s"),
        quantity(None if point.share_of_roof is None else 100 * point.share_of_roof, "%"),
        point.roof,
        quantity(point.nanoseconds, "ns"),
        quantity(point.dram_bytes, "bytes"),
    )


def _together(label: str, step: Point) -> Iterator[str]:
    """Where all kernels of a step stand."""
    if step.flop_per_second is not None and step.flop_per_byte is not None:
        rate = cell_text(quantity(step.flop_per_second, "FLOP/s"))
        yield f"All kernels of {label} together: {rate} at {step.flop_per_byte:.3g} FLOP per byte."


def _roofs(found: Roofline) -> Iterator[Roof]:
    """A roof for each kind of arithmetic that the kernels do, at the device's published peak."""
    if found.peaks is None:
        return
    for kind, work in found.step.flop.items():
        top = found.peaks.flop_per_second.get(kind)
        if work and top:
            yield Roof(kind, found.peaks.bytes_per_second, top)
