"""The parts that configurations are composed of, by name."""

from __future__ import annotations

from suites.meddpm.parts.arithmetic import BFloat16, Ieee, Tf32
from suites.meddpm.parts.base import Part
from suites.meddpm.parts.execution import Compile, CudaGraph, FusedAdam
from suites.meddpm.parts.fusion import FusedNorm, ScaledDotProductAttention
from suites.meddpm.parts.layout import ChannelsLast, Contiguous
from suites.meddpm.parts.products import PaddedChannels, SeparableUpsampling

PARTS: dict[str, Part] = {
    part.name: part
    for part in (
        Ieee(),
        Tf32(),
        BFloat16(),
        Contiguous(),
        ChannelsLast(),
        FusedNorm(),
        PaddedChannels(),
        SeparableUpsampling(),
        ScaledDotProductAttention(),
        FusedAdam(),
        Compile(),
        CudaGraph(),
    )
}
"""In the order in which they are applied and named."""

__all__ = ["PARTS", "Part"]
