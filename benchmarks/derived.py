"""The quantities that are derived from a committed run, as the tables of docs/derived.md.

Each function returns Markdown; `script/docs` puts it in place. The run has one measurement, with a
kernel table, unless a configuration is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from pytest_gpuperf.analysis import launch_totals, mix, priority, roofline
from pytest_gpuperf.analysis.launch_totals import Counters, Group
from pytest_gpuperf.analysis.mix import PAPER_CLASSES
from pytest_gpuperf.catalogue import kernel_families, units
from pytest_gpuperf.model.measurement import STEP, KernelTable, Measurement
from pytest_gpuperf.storage import run_files

_SHOWN = 6
"""Rows of kernels."""
_LARGEST = 10
"""Rows of those that take longest."""
_TENSOR, _BYTES = "tensor_utilization", "dram_bytes"


def classes() -> str:
    """The paper's classes of instructions, and what they are made of here."""
    rows = (
        (c.name, c.meaning, _listed(c.pipes) or "none", _listed(c.sass) or "none", c.caveat)
        for c in PAPER_CLASSES
    )
    return _table(("class", "what", "pipes", "SASS classes", "but"), rows, range(5))


def known_peaks() -> str:
    """The published peaks, TFLOP/s and GB/s."""
    kinds = list(dict.fromkeys(k for p in roofline.PEAKS.values() for k in p.flop_per_second))
    rows = (
        (
            f"`{slug}`",
            *(f"{p.flop_per_second[k] / 1e12:g}" if k in p.flop_per_second else "" for k in kinds),
            f"{p.bytes_per_second / 1e9:g}",
            p.source,
        )
        for slug, p in roofline.PEAKS.items()
    )
    return _table(("device", *kinds, "DRAM GB/s", "source"), rows, (0, len(kinds) + 2))


def of_ipc(run: Path, configuration: str = "") -> str:
    """IPC three ways, and of the kernels that take longest."""
    measured, table = _measured(run, configuration)
    found = launch_totals.of_kernels(table, kernel_families.family)
    step = launch_totals.of_step(_values(measured))
    rows = [
        ("the step, by its own counters", "", _number(step), ""),
        ("all kernels together", f"{found.launches:,}", _number(found.whole), ""),
        ("geometric mean over launches", f"{found.launches:,}", "", _number(found.geometric_mean)),
    ]
    rows += [
        (_code(k.name), f"{k.launches:,}", _number(k.ipc), _number(k.geometric_mean))
        for k in found.kernels[:_SHOWN]
    ]
    headings = ("", "launches", "instructions / cycles", "geometric mean")
    return _table(headings, rows, (0,)) + _said(found.missing)


def of_kernels(run: Path, configuration: str = "") -> str:
    """The kernel mix, without and with copies."""
    _, table = _measured(run, configuration)
    without, with_copies = (
        mix.kernel_mix(table, kernel_families.family, copies=copies) for copies in (False, True)
    )
    shares = {part.family: part.share for part in without.parts}
    rows = [
        (
            part.family,
            f"{part.launches:,}",
            units.value(part.nanoseconds, with_copies.unit),
            _percent(shares.get(part.family)),
            _percent(part.share),
        )
        for part in with_copies.parts
    ]
    rows.append(
        (
            "all",
            f"{sum(part.launches for part in with_copies.parts):,}",
            units.value(with_copies.total, with_copies.unit),
            _percent(1.0),
            _percent(1.0),
        )
    )
    headings = ("family", "launches", "time", "of kernels", "of kernels and copies")
    return _table(headings, rows, (0,)) + _said(without.missing)


def of_instructions(run: Path, configuration: str = "") -> str:
    """The instruction mix of the step and of the dominant kernel, in the paper's classes."""
    measured, table = _measured(run, configuration)
    arch = measured.fingerprint.device.arch
    found = mix.instruction_mixes(table, kernel_families.family, arch)
    mixes = [mix.instruction_mix(_values(measured), arch), *found.families]
    mixes += [found.dominant] if found.dominant else []
    names = [c.name for c in PAPER_CLASSES]
    rows = [
        (
            one.of if one is not found.dominant else _code(one.of),
            *(_percent(shares.get(name)) for name in names),
            _number(one.ipc),
        )
        for one in mixes
        if (shares := {part.name: part.share for part in one.pipe_classes.parts})
    ]
    missing = dict.fromkeys((*found.missing, *mixes[0].pipe_classes.missing))
    shown = _table(("of", *names, "IPC"), rows, (0,)) if rows else ""
    return shown + _said(tuple(missing))


def of_priority(run: Path, configuration: str = "") -> str:
    """Families, and the kernels with the highest scores."""
    _, table = _measured(run, configuration)
    found = priority.priorities(table, kernel_families.family)
    rows = [
        (
            name,
            units.value(p.nanoseconds, found.unit),
            f"`{p.bottleneck}`",
            "-" if p.throughput is None else f"{p.throughput:.1f} %",
            "-" if p.speedup is None else f"{p.speedup:.3f}",
            units.value(p.score, found.unit),
            _percent(p.share),
        )
        for name, p in (
            *((p.name, p) for p in found.families),
            *((_code(p.name), p) for p in found.kernels[:_SHOWN]),
        )
    ]
    headings = ("", "time", "bottleneck", "of its peak", "speedup", "score", "share")
    return _table(headings, rows, (0, 2)) + _said(found.missing)


def of_roofline(run: Path, configuration: str = "") -> str:
    """The step and the families under the roofs."""
    measured, table = _measured(run, configuration)
    device = measured.fingerprint.device
    known = roofline.of_device(device.slug)
    found = roofline.roofline(table, kernel_families.family, known, device.arch)
    step = roofline.of_step(_values(measured), known, device.arch)
    rows = [
        (
            name,
            units.value(p.nanoseconds, "ns"),
            units.value(p.dram_bytes, "bytes"),
            "-" if p.bytes_per_second is None else f"{p.bytes_per_second / 1e12:.2f} TB/s",
            _percent(p.shares.get(roofline.DRAM)),
            units.value(p.total_flop, "FLOP"),
            _number(p.flop_per_byte),
            "-" if p.flop_per_second is None else f"{p.flop_per_second / 1e12:.2f} TFLOP/s",
            p.roof or "-",
            _percent(p.share_of_roof),
        )
        for name, p in (
            ("the step, by its own counters", step),
            ("all kernels together", found.step),
            *((p.name, p) for p in found.families),
        )
    ]
    headings = (
        *("", "time", "DRAM bytes", "bandwidth", "of its peak"),
        *("FLOP", "FLOP/byte", "FLOP/s", "roof", "of the roof"),
    )
    return _table(headings, rows, (0, 8)) + _said((*found.missing, *found.step.missing))


def of_largest(run: Path, configuration: str) -> str:
    """The ten kernels that take longest, and how near each is to what limits it.

    By what the hardware counts itself: the share of the time in which the tensor pipe was busy (of
    an SM's active cycles), and the bytes that DRAM moved over its published bandwidth. The roof is
    the larger of both.
    """
    measured, table = next(
        (m, m.kernels)
        for m in run_files.load(run).measurements
        if m.configuration == configuration and m.kernels and _TENSOR in m.kernels.metrics
    )
    known = roofline.of_device(measured.fingerprint.device.slug)
    assert known is not None, f"{run}: no peaks are known of its device"
    counters = Counters(table)

    def row(name: str, group: Group) -> tuple[str, ...]:
        nanoseconds = sum(launch.duration for launch in group.launches)
        found = [(x.duration, counters.values(x, (_TENSOR, _BYTES))) for x in group.launches]
        arithmetic = sum(time * values.get(_TENSOR, 0.0) / 100 for time, values in found)
        moved = sum(values.get(_BYTES, 0.0) for _, values in found)
        traffic = moved / known.bytes_per_second * 1e9
        return (
            name,
            f"{len(group.launches):,}",
            units.value(nanoseconds, "ns"),
            _percent(nanoseconds / everything),
            _percent(arithmetic / nanoseconds),
            units.value(moved, "bytes"),
            _percent(traffic / nanoseconds),
            _percent(max(arithmetic, traffic) / nanoseconds),
        )

    whole = counters.whole()
    everything = sum(launch.duration for launch in whole.launches)
    groups = sorted(
        counters.by_kernel(kernel_families.family),
        key=lambda g: -sum(x.duration for x in g.launches),
    )
    rows = [row(_code(group.name), group) for group in groups[:_LARGEST]]
    rest = Group("", "", tuple(x for group in groups[_LARGEST:] for x in group.launches))
    rows += [row("all others", rest), row("all kernels", whole)]
    headings = (
        *("kernel", "launches", "time", "of kernels", "tensor cores busy"),
        *("DRAM bytes", "of the bandwidth", "of the roof"),
    )
    return _table(headings, rows, (0,))


def example(run: Path, configuration: str = "") -> str:
    """One kernel, the one with the highest score, step by step."""
    _, table = _measured(run, configuration)
    score = priority.priorities(table, kernel_families.family).kernels[0]
    rate = next(
        k
        for k in launch_totals.of_kernels(table, kernel_families.family).kernels
        if k.name == score.name
    )
    whole = mix.kernel_mix(table, lambda name: name)
    part = next(part for part in whole.parts if part.family == score.name)
    time = units.value(score.nanoseconds, "ns")
    assert score.throughput
    every = units.value(whole.total, "ns")
    return (
        f"{_code(score.name)}, {score.launches} launches in {time}:\n\n"
        f"- share of kernel time: {time} / {every} = {_percent(part.share)}\n"
        f"- IPC: {_number(rate.ipc)} of its launches together, geometric mean over them "
        f"{_number(rate.geometric_mean)}\n"
        f"- bottleneck: `{score.bottleneck}`, at {score.throughput:.2f} % of its peak\n"
        f"- estimated speedup: 100 / {score.throughput:.2f} - 1 = "
        f"{100 / score.throughput - 1:.3g}; of each launch clamped to 1, and weighed by time, "
        f"{_number(score.speedup)}\n"
        f"- priority score: {time} x {_number(score.speedup)} = "
        f"{units.value(score.score, 'ns')}, {_percent(score.share)} of the step's\n"
    )


def _measured(run: Path, configuration: str) -> tuple[Measurement, KernelTable]:
    found = run_files.load(run).measurements
    (one,) = (m for m in found if configuration in ("", m.configuration))
    assert one.kernels is not None, f"{run} has no kernels"
    return one, one.kernels


def _values(measured: Measurement) -> dict[str, float]:
    return {s.metric: median(s.values) for s in measured.samples if s.phase == STEP}


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int]) -> str:
    """A table; the columns of these positions are text, the others numbers."""
    lines = ["| " + " | ".join(headings) + " |"]
    lines.append(
        "|" + "|".join(" --- " if n in left else " ---: " for n in range(len(headings))) + "|"
    )
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def _said(missing: Sequence[str]) -> str:
    return "".join(f"\n{sentence[0].upper()}{sentence[1:]}.\n" for sentence in missing)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _code(name: str) -> str:
    return f"`{kernel_families.short_name(name)}`"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
