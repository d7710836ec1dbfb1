"""The configurations of the training step: the paper's four, and those beyond it.

A configuration is a composition of independent parts (`parts/`). Names compose:
`tf32+channels_last+fused_norm` has these three, and what no part decides is as in the baseline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from pytest_gpuperf.errors import UsageFailure
from suites.meddpm.parts import PARTS, Part
from suites.precision import Float32Precision

BASELINE = "baseline"
"""No part at all."""

_ALONE = {
    "float32_precision": PARTS["ieee"],
    "memory_format": PARTS["contiguous"],
}
"""What only one part of a configuration may decide, and the part that does where none was named."""

Precision = Literal["ieee", "tf32", "bf16"]
"""What limits how exact a configuration is: `limits.LIMITS` has the limits."""


@dataclass(frozen=True)
class Optimization:
    """A named configuration of the training step."""

    name: str
    summary: str
    parts: tuple[Part, ...]

    @property
    def float32_precision(self) -> Float32Precision:
        """For matrix products (cuBLAS) and for convolutions (cuDNN) alike."""
        (precision,) = (p.float32_precision for p in self.parts if p.float32_precision)
        return precision

    @property
    def precision(self) -> Precision:
        """The least exact arithmetic in it, by which its results are judged."""
        return "bf16" if any(part.name == "bf16" for part in self.parts) else self.float32_precision

    @property
    def memory_format(self) -> torch.memory_format:
        """Of the weights and of every batch."""
        (memory_format,) = (p.memory_format for p in self.parts if p.memory_format)
        return memory_format

    @property
    def adam(self) -> dict[str, bool]:
        """Arguments of torch's Adam beside the learning rate."""
        return {name: value for part in self.parts for name, value in part.adam.items()}

    @property
    def captured(self) -> bool:
        """Whether the step is one CUDA graph."""
        return any(part.captured for part in self.parts)

    @property
    def sampling(self) -> tuple[Part, ...]:
        """Its parts that sampling has something of: there is no optimizer in it."""
        return tuple(part for part in self.parts if not part.trains_only)

    def unavailable(self, arch: str) -> str | None:
        """Why this configuration cannot run on `arch`, or None where it can.

        The paper's four run everywhere. Before sm80, and on a CPU, there is no TF32 and the tf32
        configurations do what their counterparts do; the paper reports them on sm70, unchanged.
        """
        return next(filter(None, (part.unavailable(arch) for part in self.parts)), None)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Sets what its parts set and changes `model`, once.

        torch's global state and the model's classes are as they were afterwards, also when the
        block raises, and the model's weights are contiguous again.
        """
        with ExitStack() as stack:
            for part in self.parts:
                stack.enter_context(part.applied(model))
            yield

    def prepare(self, batch: Tensor) -> Tensor:
        """`batch` [B, C, D, H, W] in this configuration's memory layout.

        Called inside the step: the paper converts every batch right before the model. A batch
        of one channel has the same layout either way and is returned as it is.
        """
        return batch.contiguous(memory_format=self.memory_format)


def composed(name: str) -> Optimization:
    """The configuration of this name: parts with "+" between them, in any order.

    Raises UsageFailure for an unknown part, for one named twice, and for parts that contradict
    each other.
    """
    if name in OPTIMIZATIONS:
        return OPTIMIZATIONS[name]
    return _composition(name, name.split("+"))


def _composition(name: str, parts: Iterable[str], summary: str = "") -> Optimization:
    wanted = list(parts)
    for part in wanted:
        if part not in PARTS:
            raise UsageFailure(
                f'configuration "{name}": there is no part "{part}". There are {", ".join(PARTS)}; '
                f"as a whole name also {', '.join(OPTIMIZATIONS)}"
            )
        if wanted.count(part) > 1:
            raise UsageFailure(f'configuration "{name}": names {part} twice')
    chosen = {part.name: part for part in PARTS.values() if part.name in wanted}
    for decided, usual in _ALONE.items():
        deciding = [part.name for part in chosen.values() if getattr(part, decided)]
        if len(deciding) > 1:
            raise UsageFailure(
                f'configuration "{name}": {" and ".join(deciding)} contradict each other: each '
                f"decides the {decided.replace('_', ' ')}. Leave one out"
            )
        if not deciding:
            chosen[usual.name] = usual
    return Optimization(
        name,
        summary or " ".join(PARTS[part].summary for part in PARTS if part in wanted),
        tuple(part for part in PARTS.values() if part.name in chosen),
    )


BF16_FUSED = (
    "bf16+channels_last+fused_norm+padded_channels+separable_upsampling+sdpa+fused_adam+cuda_graph"
)
"""For who does not want to compile. Its kernels take less time than launching them one by one."""

BEST = f"{BF16_FUSED}+compile"
"""The fastest composition that keeps the quality of the samples."""

ALONE = (
    *("compile", "cuda_graph", "fused_norm", "padded_channels", "separable_upsampling"),
    *("sdpa", "fused_adam"),
)
"""Parts that are also measured by themselves."""

OPTIMIZATIONS: dict[str, Optimization] = {}
"""By name: the paper's Baseline, OPT1, OPT2 and OPT12 (section 5), then those beyond it."""

PAPER = (BASELINE, "tf32", "channels_last", "tf32_channels_last")
"""The paper's four: what a CPU's portable baselines are of."""

CHAIN = ("tf32", "bf16_compile", "tf32+channels_last+fused_norm", "best")
"""Those that a chain is sampled with: what somebody would sample with. In full float32 a chain is
ten seconds of what its first step has shown already, and so is a part alone."""

for _name, _parts, _summary in (
    (BASELINE, "", "float32 throughout, TF32 off"),
    ("tf32", "tf32", "TF32 in matrix products and convolutions"),
    ("channels_last", "channels_last", "channels innermost in memory, TF32 off"),
    ("tf32_channels_last", "tf32+channels_last", "TF32, and channels innermost in memory"),
    ("bf16", "bf16", ""),
    ("bf16_compile", "bf16+compile", ""),
    # What one part does alone: with TF32, because a second of float32 convolutions would hide it.
    *((f"tf32+{part}", f"tf32+{part}", "") for part in ALONE),
    ("tf32+channels_last+fused_norm", "tf32+channels_last+fused_norm", ""),
    ("bf16_fused", BF16_FUSED, ""),
    ("best", BEST, ""),
):
    OPTIMIZATIONS[_name] = _composition(_name, filter(None, _parts.split("+")), _summary)


def sampled_by(optimization: Optimization) -> str | None:
    """The suite's other configuration that samples in the same way, or None."""
    if optimization.sampling == optimization.parts:
        return None
    same = (other for other in OPTIMIZATIONS.values() if other.parts == optimization.sampling)
    return next((other.name for other in same), None)


def uncaptured(name: str) -> Optimization:
    """The configuration `name` without its CUDA graph, in which no operator can be told apart."""
    parts = [part.name for part in composed(name).parts if not part.captured]
    return _composition(name, parts)
