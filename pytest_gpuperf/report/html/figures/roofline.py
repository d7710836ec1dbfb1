"""Kernels under the roofs of the device: arithmetic and DRAM bandwidth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_gpuperf.derived import peaks
from pytest_gpuperf.derived.roofline import DRAM_BYTES, OPCODES, TENSOR, Point, Roofline, roofline
from pytest_gpuperf.report.html import missing
from pytest_gpuperf.report.html.figure import (
    Cell,
    Figure,
    Plot,
    Quantity,
    Roof,
    Shape,
    quantity,
)
from pytest_gpuperf.report.html.launched import family, short_name
from pytest_gpuperf.report.html.subject import Subject

_MOST = 40
"""Kernels per configuration, those that take longest."""
_STEP = "all kernels"
_METRICS = (*(name for weights in OPCODES.values() for name in weights), *TENSOR.values())


def under_roofs(subjects: Sequence[Subject]) -> Figure:
    """A chart per configuration, a point per kernel, its area the kernel's time."""
    rows: list[tuple[Cell, ...]] = []
    notes: list[str] = []
    said: list[str] = []
    roofs: dict[str, Roof] = {}
    for subject in subjects:
        if subject.kernels is None:
            continue
        found = roofline(subject.kernels, family, peaks.of_device(subject.device.slug))
        points = [(_STEP, "step", found.step)]
        points += [(short_name(p.name), p.family, p) for p in found.kernels[:_MOST]]
        drawn = [entry for entry in points if entry[2].flop_per_byte]
        rows += [(subject.label, *_row(*entry)) for entry in drawn]
        if not drawn:
            continue
        notes += found.missing
        roofs.update((roof.name, roof) for roof in _roofs(found))
        if found.step.roof is not None and found.step.share_of_roof is not None:
            said.append(
                f"the kernels of {subject.label} reach {100 * found.step.share_of_roof:.0f} % of "
                f"their roof, {found.step.roof}"
            )
    first = "; ".join(said)
    return Figure(
        key="roofline",
        title="Roofline: FLOP/s of each kernel against its FLOP per byte of DRAM traffic",
        conclusion=(f"{first[0].upper()}{first[1:]}. " if first else "")
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
            logarithmic=True,
            roofs=tuple(roofs.values()),
            sizes="time",
        )
        if rows
        else None,
        notes=tuple(dict.fromkeys(notes)),
        missing=missing.metrics(subjects, (*_METRICS, DRAM_BYTES), per_kernel=True),
    )  # fmt: skip


def _row(name: str, group: str, point: Point) -> tuple[Cell, ...]:
    return (
        name,
        group,
        quantity(point.flop_per_byte, "FLOP/byte"),
        quantity(point.flop_per_second, "FLOP/s"),
        quantity(None if point.share_of_roof is None else 100 * point.share_of_roof, "%"),
        point.roof,
        Quantity(point.nanoseconds, "ns"),
        quantity(point.dram_bytes, "bytes"),
    )


def _roofs(found: Roofline) -> Iterator[Roof]:
    """A roof for each kind of arithmetic that the kernels do."""
    if found.peaks is None:
        return
    for kind, work in found.step.flop.items():
        top = found.peaks.flop_per_second.get(kind)
        if work and top:
            yield Roof(f"{found.peaks.device}, {kind}", found.peaks.bytes_per_second, top)
