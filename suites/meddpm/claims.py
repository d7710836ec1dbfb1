"""What is claimed of the configurations, per architecture: the paper's findings and our own.

A claim is about whole training steps. The paper's numbers are of a window of 100 kernels from
process start, so each bound leaves room for both, and says on which architectures somebody has seen
it hold.
"""

from __future__ import annotations

from suites.claim import Claim

_EVERY_GPU = ("sm70+",)
_TRITON = ("sm80+",)
_RUN = "docs/runs/h200-optimizations.json.xz"

CLAIMS = (
    Claim(
        "tf32_changes_nothing",
        "before Ampere there is no TF32 hardware, so switching it on changes nothing",
        metric="cycles",
        numerator="tf32",
        denominator="baseline",
        above=0.97,
        below=1.03,
        architectures=("sm70", "sm75"),
        verified=(),
        source="ICPE '26, section 6.1: unchanged on V100",
    ),
    Claim(
        "tf32_takes_fewer_cycles",
        "TF32 takes about a third of the cycles, or fewer",
        metric="cycles",
        numerator="tf32",
        denominator="baseline",
        below=0.35,
        architectures=("sm80+",),
        verified=("sm90",),
        source="docs/runs/h200-meddpm.json: 0.177; ICPE '26, section 6.1: 0.18 on A100, and 0.39 "
        "on H100 of its window, which is not the step",
    ),
    Claim(
        "tf32_takes_fewer_instructions",
        "one tensor-core instruction does the work of many on the FMA pipe",
        metric="instructions",
        numerator="tf32",
        denominator="baseline",
        below=0.25,
        architectures=("sm80+",),
        verified=("sm90",),
        source="docs/runs/h200-meddpm.json: 0.117; ICPE '26, section 6.1: 0.09 on A100, 0.18 on "
        "H100",
    ),
    Claim(
        "tf32_uses_the_tensor_cores",
        "TF32 keeps the tensor pipe busier than full float32 does",
        metric="tensor_utilization",
        numerator="tf32",
        denominator="baseline",
        above=1.5,
        architectures=("sm80+",),
        verified=("sm90",),
        source="docs/runs/h200-paper.json.xz: 0.86 to 23.08 %; ICPE '26, figure 10: 1.4 to 9.98 % "
        "on A100, 1.44 to 7.81 % on H100",
    ),
    Claim(
        "channels_last_alone_is_not_faster",
        "the 3D norms take contiguous volumes, so each is copied there and back",
        metric="cycles",
        numerator="channels_last",
        denominator="baseline",
        above=0.98,
        architectures=_EVERY_GPU,
        verified=("sm90",),
        source="docs/runs/h200-meddpm.json: 1.11; ICPE '26, section 6.1 has it lower, of a window "
        "that ends before the first convolution",
    ),
    Claim(
        "fused_norms_make_channels_last_pay",
        "norms that take channels-last volumes as they are leave no copies around them",
        metric="cycles",
        numerator="tf32+channels_last+fused_norm",
        denominator="tf32",
        below=0.9,
        architectures=_TRITON,
        verified=("sm90",),
        source=f"{_RUN}: 0.747, and 0.73 to 0.81 by process: the host launches it; ICPE "
        "'26, section 1, expects it of fusion",
    ),
    Claim(
        "bf16_is_faster_than_tf32",
        "half the bytes, and twice the rate of the tensor cores",
        metric="cycles",
        numerator="bf16",
        denominator="tf32",
        below=0.85,
        architectures=_TRITON,
        verified=("sm90",),
        source=f"{_RUN}: 0.776",
    ),
    Claim(
        "compiling_removes_elementwise_kernels",
        "torch.compile fuses what surrounds the convolutions",
        metric="cycles",
        numerator="bf16_compile",
        denominator="bf16",
        below=0.7,
        architectures=_TRITON,
        verified=("sm90",),
        source=f"{_RUN}: 0.612",
    ),
    Claim(
        "a_graph_changes_nothing_of_long_kernels",
        "the host is ahead of the device anyway",
        metric="cycles",
        numerator="tf32+cuda_graph",
        denominator="tf32",
        above=0.97,
        below=1.03,
        architectures=_TRITON,
        verified=("sm90",),
        source=f"{_RUN}: 0.995",
    ),
    Claim(
        "best_is_twenty_times_faster",
        "than full float32",
        metric="cycles",
        numerator="best",
        denominator="baseline",
        below=0.05,
        architectures=_TRITON,
        verified=("sm90",),
        source=f"{_RUN}: 0.0368",
    ),
)
"""In the order in which they are judged."""
