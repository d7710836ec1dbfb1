"""The roofline: floating-point work and DRAM traffic, compared with the GPU's peaks.

The roofline model (Williams, Waterman, Patterson, CACM 2009): at an arithmetic intensity of I FLOP
per byte of DRAM traffic, the limit is min(peak FLOP/s, I x peak bytes/s). The paper refers to Yang
et al. (SC 2020) for it.

FLOP come from SASS opcodes, by thread: additions and multiplications count one, fused multiply-adds
two. Half precision has only packed opcodes (HADD2, HMUL2, HFMA2), so each counts twice, as in
Nsight Compute. Work on one half of a pair counts as both, and so may constants that compilers load
by HFMA2. Blackwell's packed FP32 opcodes count the same way. bfloat16 without tensor cores uses the
opcodes of half precision and is in "fp16". Not counted: special functions (MUFU), comparisons,
minima, conversions, and all integer work. The chip counts operations of tensor cores by the type of
their inputs. Other types (fp64, int8) are not collected, so a kernel with tensor work in those
types only has no total.

Peaks are NVIDIA's published figures: dense, per second, at the clocks that it states. A GPU that
runs faster can have a share above 1 (the tensor figures of an H100 are at 1.83 GHz, and it boosts
to 1.98 GHz). Figures with sparsity are halved. A MIG instance has its own name, so it does not get
the peaks of the whole GPU. `peaks.yaml` names NVIDIA's documents; figures without one are left
out. Half precision without tensor cores, where not stated, follows from single precision. The ratio
is that of results per clock and SM in the CUDA C++ Programming Guide ("Throughput of Native
Arithmetic Instructions").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pytest_gpuperf.analysis.launch_totals import (
    Family,
    Group,
    existing,
    groups,
    lacking,
    ratio,
    whole,
)
from pytest_gpuperf.catalogue import yaml_table
from pytest_gpuperf.model.measurement import KernelTable

_TERA, _GIGA = 1e12, 1e9


Peaks = Mapping[str, float]
"""The peak performance of one GPU, per second: the FLOP of "fp16", "fp32" and "fp64" without tensor
cores, of "tensor fp16", ..., and the bytes of DRAM."""


@cache
def published() -> Mapping[str, Peaks]:
    """The peaks that NVIDIA publishes (`peaks.yaml`), by device slug (`model.Device.slug`)."""
    data = yaml_table(Path(__file__).with_name("peaks.yaml"))
    peaks = {}
    for slug, device in data["devices"].items():
        figures = dict(data["figures"][device["figures"]])
        figures["fp16"] = figures.pop("half") * figures["fp32"]
        by_kind = {kind: value * _TERA for kind, value in figures.items()}
        peaks[slug] = {**by_kind, DRAM: device["DRAM"] * _GIGA}
    return peaks


OPCODES: Mapping[str, Mapping[str, int]] = {
    "fp32": {
        "sass_fadd": 1, "sass_fmul": 1, "sass_ffma": 2,
        "sass_fadd2": 2, "sass_fmul2": 2, "sass_ffma2": 4,
    },
    "fp16": {"sass_hadd": 2, "sass_hmul": 2, "sass_hfma": 4},
    "fp64": {"sass_dadd": 1, "sass_dmul": 1, "sass_dfma": 2},
}  # fmt: skip
"""FLOP per thread instruction, by kind of arithmetic and metric."""
TENSOR: Mapping[str, str] = {
    "tensor fp16": "tensor_ops_fp16",
    "tensor bf16": "tensor_ops_bf16",
    "tensor tf32": "tensor_ops_tf32",
    "tensor fp8": "tensor_ops_fp8",
}
"""The metric of each kind, which is in FLOP."""
DRAM_BYTES = "dram_bytes"
DRAM = "DRAM"
"""The roof of the bandwidth, among those of the kinds of arithmetic."""
_PIPE, _UTILIZATION = "pipe_tensor", "tensor_utilization"
_BESIDES = 10.0
"""% of tensor_utilization that a kernel can have without tensor operations. Compilers load
constants by HFMA2.MMA, which that pipe executes: elementwise kernels reach 4.3 % on an H200
(docs/runs/collectors/cupti.json.xz)."""
_SECOND = 1e9
"""Nanoseconds."""
_SASS = tuple(metric for weights in OPCODES.values() for metric in weights)


@dataclass(frozen=True, slots=True)
class Point:
    """The position of a kernel or a step under the roofs."""

    name: str
    """The kernel's name, or STEP."""
    family: str
    """The kernel's; "" for STEP."""
    nanoseconds: float
    """Time in which the work was done."""
    flop: Mapping[str, float]
    """FLOP by kind of arithmetic ("fp32", "tensor tf32", ...): those that were counted."""
    dram_bytes: float | None
    """Bytes; None unless they were counted in every launch."""
    flop_per_byte: float | None
    """Arithmetic intensity. None without DRAM traffic or a total."""
    flop_per_second: float | None
    """None unless every launch has all counts: all opcodes, and the operations of tensor cores that
    worked or may have."""
    shares: Mapping[str, float]
    """The shares of the published peaks, 0 to 1, by kind of arithmetic and DRAM. Empty for a device
    without known peaks."""
    roof: str | None
    """The limit: the key of the largest of `shares`. None if a count or a peak is missing."""
    share_of_roof: float | None
    """Achieved / attainable, 0 to 1: the largest of `shares`. The rest of the time, neither
    arithmetic nor DRAM is the limit."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """A step's kernels under the roofs of its device."""

    peaks: Peaks
    """The peaks of the device; empty if unknown."""
    step: Point
    """All kernels together, without gaps and copies."""
    kernels: tuple[Point, ...]
    """Kernels by name; the longest first."""
    missing: tuple[str, ...]


def roofline(table: KernelTable, family: Family, peaks: Peaks, arch: str) -> Roofline:
    """The roofline of a table's kernels.

    flop_per_byte = FLOP / DRAM bytes; rates are per second of the launches' durations without
    counters; a share is a rate over its peak; the roof is the largest share. With one kind of
    arithmetic this is the model's achieved / min(peak, intensity x bandwidth). With several, each
    has its own roof, assumed to overlap. Metrics absent on `arch` are not reported missing.
    """
    opcodes, tensor = existing(_SASS, arch), existing(TENSOR.values(), arch)
    missing = [*lacking(table, (*opcodes, *tensor, DRAM_BYTES))]
    if not peaks:
        missing += ["gpuperf does not know the peaks of this device, so there are no shares"]
    return Roofline(
        peaks=peaks,
        step=_point(whole(table), peaks, opcodes),
        kernels=tuple(_point(group, peaks, opcodes) for group in groups(table, family)),
        missing=tuple(missing),
    )


def _point(group: Group, peaks: Peaks, opcodes: Sequence[str]) -> Point:
    """The position of a group's launches; FLOP are complete where all `opcodes` have values."""
    counts = [one.values for one in group.launches]
    seconds = group.time / _SECOND
    flop = _flop(counts, opcodes)
    complete = counts and all(
        all(metric in values for metric in opcodes) and not _lacks_tensor(values)
        for values in counts
    )
    every = sum(flop.values()) if complete else None
    sums, uncounted = group.sums([DRAM_BYTES])
    moved = None if uncounted else sums.get(DRAM_BYTES)
    rates = {kind: ratio(work, seconds) for kind, work in flop.items()}
    rates[DRAM] = None if moved is None else ratio(moved, seconds)
    shares = _shares(rates, peaks)
    known = all(kind in shares for kind, work in flop.items() if work)
    roof = None
    if every is not None and DRAM in shares and known and any(shares.values()):
        roof = max(shares, key=shares.__getitem__)
    return Point(
        name=group.name,
        family=group.family,
        nanoseconds=group.time,
        flop=flop,
        dram_bytes=moved,
        flop_per_byte=None if every is None or moved is None else ratio(every, moved),
        flop_per_second=None if every is None else ratio(every, seconds),
        shares=shares,
        roof=roof,
        share_of_roof=None if roof is None else shares[roof],
    )


def _flop(counts: Sequence[Mapping[str, float]], opcodes: Sequence[str]) -> dict[str, float]:
    """FLOP by kind; only kinds whose counts all these launches have."""
    flop = {}
    for kind, weights in {**OPCODES, **{kind: {name: 1} for kind, name in TENSOR.items()}}.items():
        needed = [metric for metric in weights if metric in opcodes or metric not in _SASS]
        if counts and all(metric in values for values in counts for metric in needed):
            flop[kind] = sum(
                weight * values.get(metric, 0.0)
                for values in counts
                for metric, weight in weights.items()
            )
    return flop


def _lacks_tensor(values: Mapping[str, float]) -> bool:
    """Whether work of tensor cores may be missing from a launch's counts."""
    counted = [values[metric] for metric in TENSOR.values() if metric in values]
    if counted:
        return not any(counted) and values.get(_UTILIZATION, 0.0) > _BESIDES
    activity = [values[metric] for metric in (_PIPE, _UTILIZATION) if metric in values]
    return not activity or any(activity)


def _shares(rates: Mapping[str, float | None], peaks: Peaks) -> dict[str, float]:
    """The shares of the peaks, by kind of arithmetic and DRAM, where rate and peak are known."""
    rated = [(kind, rate) for kind, rate in rates.items() if rate is not None and kind in peaks]
    shares = ((kind, ratio(rate, peaks[kind])) for kind, rate in rated)
    return {kind: share for kind, share in shares if share is not None}
