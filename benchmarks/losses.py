"""Losses to put into the Med-DDPM step on purpose, and what has to be blamed for each.

The ten of `CAUSES` say what the comparison of kernels has to name. That was written before it was
measured, from the kernels of the step as recorded on an H200 (tests/data/h200-tables, h200-kernels)
and from what ATen and cuDNN launch. Times beside them are what they were expected to cost of the
235 ms that the tf32 step takes on 128 x 128 x 128 voxels there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import changes
from pytest_gpuperf.model.result import ChangeKind

if TYPE_CHECKING:
    from suites.meddpm.step import TrainingStep

_INSTRUCTIONS_OF_THE_STEP = 61.6e9
"""Of the tf32 configuration on 128 x 128 x 128 voxels (docs/runs/h200-meddpm.json)."""


@dataclass(frozen=True)
class Guilty:
    """What a comparison of kernels has to name."""

    kinds: tuple[ChangeKind, ...]
    families: tuple[str, ...]
    """Of `kernels.FAMILIES`; "" for the gap, which is no kernel."""
    kernel: str
    """A regular expression, searched for in the short name."""
    slower: bool = True
    """Whether it has to take longer than before: a change of algorithm may go either way."""

    @property
    def text(self) -> str:
        """For people: "added, layout: ^elementwise direct_copy"."""
        kinds = " or ".join(kind.value for kind in self.kinds)
        families = " or ".join(filter(None, self.families))
        return f"{kinds}, {families}: {self.kernel}" if families else kinds


@dataclass(frozen=True)
class Loss:
    """A change of the training step that makes it slower."""

    name: str
    summary: str
    """One sentence: what it changes."""
    configuration: str
    """Where it is a loss: a name of `optimizations.py`."""
    applied: Callable[[TrainingStep], AbstractContextManager[None]]
    """Puts it into a step for a block."""
    guilty: Guilty | None = None


CAUSES = (
    Loss(  # 7 ms
        "conv-fp32",
        "one convolution computed without TF32, in forward only",
        "tf32",
        changes.convolution_in_float32,
        Guilty((ChangeKind.REPLACED,), ("convolution-forward",), r"^sm\d+_xmma_fprop f32"),
    ),
    Loss(  # 20 ms of 335
        "contiguous",
        "a redundant `.contiguous()` at the end of every residual block",
        "tf32_channels_last",
        changes.contiguous_blocks,
        # Copies of its own, and those of others take longer where they now change the layout.
        Guilty(
            (ChangeKind.ADDED, ChangeKind.SLOWER), ("layout",), r"^elementwise direct_copy f32$"
        ),
    ),
    Loss(
        "conv-algorithm",
        "cuDNN takes the fastest deterministic plan of those it tries, not what its heuristics say",
        "tf32",
        changes.other_plans,
        # Which plans differ is not known beforehand, nor that they are slower. Kernels that only
        # prepare or finish a convolution are not its algorithm.
        Guilty(
            (ChangeKind.REPLACED,),
            (
                "convolution-forward",
                "convolution-data-gradient",
                "convolution-weight-gradient",
            ),
            r"^(?!init_|reduce_).*(fprop|dgrad|wgrad).*tf32",
            slower=False,
        ),
    ),
    Loss(  # 2.3 ms
        "extra-kernel",
        "one more elementwise operation at the end of the step, over 4.8 GB",
        "tf32",
        changes.extra_kernel,
        Guilty(
            (ChangeKind.ADDED,), ("elementwise",), r"^vectorized_elementwise [AB]Unary Mul f32$"
        ),
    ),
    Loss(  # 4 to 10 ms
        "norm-layout",
        "one norm given its volume in channels_last, where all others are contiguous",
        "tf32",
        changes.norm_in_channels_last,
        # There, and back inside ATen, which takes contiguous volumes; back once more in backward.
        Guilty((ChangeKind.ADDED,), ("layout",), r"^elementwise direct_copy f32$"),
    ),
    Loss(  # 2.5 ms
        "attention-fp32",
        "the attention without TF32, in forward, recomputation and backward",
        "tf32",
        changes.attention_in_float32,
        Guilty((ChangeKind.REPLACED,), ("gemm",), r"simt_sgemm|_xmma_gemm f32"),
    ),
    Loss(  # 1.5 ms, and 4 ms in which the GPU waits
        "adam-loop",
        "Adam goes over the weights one by one (`foreach=False`)",
        "tf32",
        changes.adam_without_foreach,
        # Of its operations, those that no other part of the step has.
        Guilty(
            (ChangeKind.ADDED,), ("elementwise",), r"^vectorized_elementwise (addcdiv|addcmul|lerp)"
        ),
    ),
    Loss(  # 2 to 8 ms
        "host-copy",
        "the network's input, 25 MB, copied to the host in every step",
        "tf32",
        changes.host_copy,
        Guilty((ChangeKind.ADDED,), ("copy",), r"^Memcpy DtoH"),
    ),
    Loss(  # 1 to 5 ms
        "synchronise",
        "the host waits for the GPU after each layer of the forward pass",
        "tf32",
        changes.synchronised,
        Guilty((ChangeKind.GAP,), ("",), ""),
    ),
    Loss(  # 1.7 ms
        "conv-twice",
        "one convolution computed a second time in forward, for nothing",
        "tf32",
        changes.convolution_twice,
        Guilty((ChangeKind.ADDED,), ("convolution-forward",), r"^sm\d+_xmma_fprop tf32"),
    ),
)
"""The ten whose cause has to be found, each in one configuration."""


def instructions(share: float) -> Loss:
    """One more kernel of this share of the tf32 step's instructions.

    For the judge of the step's counters: in a comparison of times there is nothing to see.
    """
    return Loss(
        "instructions",
        f"one more kernel of {share:.3g} of the step's instructions, which takes no time",
        "tf32",
        partial(changes.extra_instructions, count=share * _INSTRUCTIONS_OF_THE_STEP),
    )
