"""Published peaks of GPUs, for the roofline: dense, per second, at the clocks that NVIDIA states.

Where a GPU runs faster than that (the tensor figures of an H100 are at 1.83 GHz, and it boosts to
1.98 GHz), a share of peak can exceed 1. Figures with sparsity are halved. A MIG instance has a name
of its own, so the peaks of the whole GPU are not taken for it.

Every figure is one of NVIDIA's own documents, which `Peaks.source` names; what none of them states
has no place here, and its share of peak is not known. Half precision without tensor cores is stated
for some products only: it follows from single precision by the results per clock and SM that the
CUDA C++ Programming Guide has for both ("Throughput of Native Arithmetic Instructions").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_TERA, _GIGA = 1e12, 1e9

FP16, FP32, FP64 = "fp16", "fp32", "fp64"
TENSOR_FP16, TENSOR_BF16 = "tensor fp16", "tensor bf16"
TENSOR_TF32, TENSOR_FP8 = "tensor tf32", "tensor fp8"


@dataclass(frozen=True, slots=True)
class Peaks:
    """What one GPU could do at most."""

    device: str
    flop_per_second: Mapping[str, float]
    """By kind of arithmetic: "fp16", "fp32" and "fp64" without tensor cores, "tensor fp16", ..."""
    bytes_per_second: float
    """Of DRAM."""
    source: str
    """The documents that state the figures, and what follows from them."""


def of_device(slug: str) -> Peaks | None:
    """The peaks of the device of that slug (`model.Device.slug`); None where it is not known."""
    return PEAKS.get(slug)


def _peaks(device: str, source: str, gigabytes: float, half: float, **teraflops: float) -> Peaks:
    """`half` is how many times `fp32` half precision is, without tensor cores."""
    figures = {FP16: half * teraflops[FP32], **teraflops}
    return Peaks(
        device,
        {kind.replace("_", " "): value * _TERA for kind, value in figures.items()},
        gigabytes * _GIGA,
        f"{source}; fp16 is {half} x fp32 by the CUDA C++ Programming Guide",
    )


_VOLTA = "NVIDIA V100 data sheet (2020)"
_AMPERE = "NVIDIA A100 data sheet (2021)"
_HOPPER = "NVIDIA H100 architecture whitepaper (v1.04), DRAM: H100 data sheet (2023)"
_H200 = "NVIDIA H200 data sheet (2024)"

# Results of half and of single precision per clock and SM: 128 and 64 on sm70, 256 and 64 on sm80,
# 256 and 128 on sm90.
_V100_SXM: Mapping[str, float] = {"half": 2, "fp32": 15.7, "fp64": 7.8, "tensor_fp16": 125}
_V100_PCIE: Mapping[str, float] = {"half": 2, "fp32": 14, "fp64": 7, "tensor_fp16": 112}
_A100: Mapping[str, float] = {
    "half": 4, "fp32": 19.5, "fp64": 9.7, "tensor_fp16": 312, "tensor_bf16": 312,
    "tensor_tf32": 156,
}  # fmt: skip
_H100_SXM: Mapping[str, float] = {
    "half": 2, "fp32": 66.9, "fp64": 33.5, "tensor_fp16": 989.4, "tensor_bf16": 989.4,
    "tensor_tf32": 494.7, "tensor_fp8": 1978.9,
}  # fmt: skip
_H100_PCIE: Mapping[str, float] = {
    "half": 2, "fp32": 51.2, "fp64": 25.6, "tensor_fp16": 756, "tensor_bf16": 756,
    "tensor_tf32": 378, "tensor_fp8": 1513,
}  # fmt: skip
_H200_SXM: Mapping[str, float] = {
    "half": 2, "fp32": 67, "fp64": 34, "tensor_fp16": 989.5, "tensor_bf16": 989.5,
    "tensor_tf32": 494.5, "tensor_fp8": 1979,
}  # fmt: skip

PEAKS: Mapping[str, Peaks] = {
    "tesla-v100-sxm2-16gb": _peaks("V100 SXM2 16 GB", _VOLTA, 900, **_V100_SXM),
    "tesla-v100-sxm2-32gb": _peaks("V100 SXM2 32 GB", _VOLTA, 900, **_V100_SXM),
    "tesla-v100-pcie-16gb": _peaks("V100 PCIe 16 GB", _VOLTA, 900, **_V100_PCIE),
    "tesla-v100-pcie-32gb": _peaks("V100 PCIe 32 GB", _VOLTA, 900, **_V100_PCIE),
    "nvidia-a100-sxm4-40gb": _peaks("A100 SXM4 40 GB", _AMPERE, 1555, **_A100),
    "nvidia-a100-pcie-40gb": _peaks("A100 PCIe 40 GB", _AMPERE, 1555, **_A100),
    "nvidia-a100-sxm4-80gb": _peaks("A100 SXM4 80 GB", _AMPERE, 2039, **_A100),
    "nvidia-a100-80gb-pcie": _peaks("A100 PCIe 80 GB", _AMPERE, 1935, **_A100),
    "nvidia-h100-80gb-hbm3": _peaks("H100 SXM5", _HOPPER, 3350, **_H100_SXM),
    "nvidia-h100-pcie": _peaks("H100 PCIe", _HOPPER, 2000, **_H100_PCIE),
    "nvidia-h200": _peaks("H200 SXM", _H200, 4800, **_H200_SXM),
}
"""By device slug."""
