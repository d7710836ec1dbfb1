"""How far a configuration may be from exact: the quality gates' limits, one row per precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suites.meddpm.optimizations import Precision


@dataclass(frozen=True)
class Errors:
    """How far loss, output and gradients are from float64: of several draws, the largest."""

    loss: float
    output: float
    gradients: float
    weight: float
    """Of the weight whose gradient is furthest away."""
    worst: str = ""
    """That weight's name."""


@dataclass(frozen=True)
class Similarity:
    """How much two volumes look alike: 1 is identical."""

    ssim: float
    ms_ssim: float
    scales: int
    """Of MS-SSIM: as many as fit the volume; with one it is SSIM."""


@dataclass(frozen=True)
class Limits:
    """How far a configuration of some precision may be from exact, or from the baseline.

    Errors are relative. Those of the loss are of its value; those of output and gradients are
    norms of differences over norms.
    """

    loss: float
    output: float
    gradients: float
    weight: float
    """Of the gradient of any one weight."""
    curve: float
    """Of the mean loss of any tenth of a loss curve, to the baseline's."""
    dissimilarity: float
    """1 - SSIM, and 1 - MS-SSIM, of a sample and the baseline's."""
    why: str


LIMITS: dict[Precision, Limits] = {
    "ieee": Limits(
        loss=1e-6,
        output=2e-5,
        gradients=2e-5,
        weight=2e-4,
        curve=5e-2,
        dissimilarity=1e-6,
        why="Ten times the spread of float32 around float64 that was measured: 7.7e-8, 1.8e-6, "
        "2.0e-6 and 2.6e-5. Sums of up to 7,000 products in another order decide it, and a norm "
        "with another epsilon (1e-6 for 1e-5) is at 1.2e-4.",
    ),
    "tf32": Limits(
        loss=2e-4,
        output=1e-2,
        gradients=2e-2,
        weight=5e-2,
        curve=1e-1,
        dissimilarity=1e-4,
        why="Factors are rounded to 2^-11. Three times that, by the root of the products that an "
        "error passes: 60 to the output, 120 to a gradient. Measured: 2.8e-5, 1.2e-3, 1.5e-3 and "
        "4.4e-3.",
    ),
    "bf16": Limits(
        loss=2e-3,
        output=5e-2,
        gradients=7e-2,
        weight=2e-1,
        curve=1e-1,
        dissimilarity=1e-3,
        why="The same of 2^-9, to which every result is rounded. Measured: 3.9e-4, 1.6e-2, 1.9e-2 "
        "and 3.8e-2.",
    ),
}
"""The finest first.

By the least exact arithmetic in a configuration, not by its name: kernels that are fused, compiled,
captured or of another layout only add up in another order, and get no more room than what they
replace. What was measured: loss, output, gradients and the gradient furthest away, the largest of
three draws and of two networks on a CPU (the published one and that of the tests), TF32 emulated.

Loss curves part because training amplifies any difference, and a GPU adds up gradients in no fixed
order: after 200 steps on an H200 the baseline was 7.4e-3 from itself, ten configurations with TF32
6.7e-3 to 4.5e-2, four with bfloat16 6.6e-3 to 2.5e-2 (docs/runs/meddpm-quality.json). More bits
are not nearer: a curve shows steps that do not train, not how exact they are. Samples of 25 steps
were 0, 6e-8 and 7e-6 from looking the same; the limits leave room for all 250, and stay where
nobody sees a difference.
"""


def excess(errors: Errors, limits: Limits) -> list[str]:
    """What of `errors` is beyond `limits`, as sentences; NaN is beyond any."""
    measured = {
        "the loss": (errors.loss, limits.loss),
        "the output": (errors.output, limits.output),
        "the gradients": (errors.gradients, limits.gradients),
        f"the gradient of {errors.worst}": (errors.weight, limits.weight),
    }
    return [
        f"{what} is {error:.2g} from float64, relative, and {limit:.2g} is allowed"
        for what, (error, limit) in measured.items()
        if not error <= limit
    ]
