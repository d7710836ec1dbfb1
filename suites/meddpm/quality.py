"""What a configuration does to the numbers: the paper's "without degrading synthesis quality".

Three questions, each against something that rounds less or is known to be right: how far loss,
output and gradients are from float64, on the same weights and noise; whether training goes the same
way as under the baseline; and how much samples look like the baseline's, drawn with the same noise.
`limits.py` says what is allowed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from suites.meddpm.data import Volumes
from suites.meddpm.limits import Errors, Similarity
from suites.meddpm.model.diffusion import GaussianDiffusion3D
from suites.meddpm.optimizations import OPTIMIZATIONS, Optimization
from suites.meddpm.sampling import SamplingStep
from suites.meddpm.step import TrainingStep

DRAWS = (1, 2, 3)
"""Seeds of the time steps and the noise that errors are measured with."""
LEARNING_RATE = 1e-4
"""Of the loss curves: ten times the training's, so that 200 steps get somewhere."""
WINDOWS = 10
"""Stretches of a loss curve that are compared by their means: single steps have their own noise."""
DATA_RANGE = 2.0
"""Volumes are in [-1, 1]."""
MS_SSIM_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""Of the scales, the finest first (Wang, Simoncelli, Bovik 2003)."""
SMALLEST_EDGE = {1: 11, 2: 12, 3: 44, 4: 99, 5: 176}
"""The edge in voxels from which torchmetrics takes so many scales: its window has 11 voxels."""
NO_GRADIENT = 1e-3
"""A weight whose gradient is smaller than this share of all is measured against that share: of a
bias before a norm it is rounding errors only."""


@dataclass(frozen=True)
class _Exact:
    """One draw, and what float64 answers to it."""

    t: Tensor
    noise: Tensor
    """float32, as configurations get it."""
    loss: float
    output: Tensor
    slope: Tensor
    """The loss's gradient with respect to the output."""
    gradients: dict[str, Tensor]


class Quality:
    """Compares configurations of one network on one volume."""

    def __init__(
        self,
        diffusion: GaussianDiffusion3D,
        volumes: Volumes,
        device: torch.device | str,
        *,
        curve_steps: int,
        chain_steps: int,
        curve_volumes: Volumes | None = None,
        draws: Sequence[int] = DRAWS,
    ) -> None:
        """Loss curves are of `curve_volumes`, or of `volumes` too."""
        self.diffusion = diffusion.to(device)
        self.image = volumes.image.to(device)
        self.mask = volumes.mask.to(device)
        self.volumes = volumes
        self.curve_volumes = curve_volumes or volumes
        self.device = device
        self.curve_steps = curve_steps
        self.chain_steps = chain_steps
        self.draws = draws

    @contextmanager
    def configured(self, optimization: Optimization) -> Iterator[Configured]:
        """A copy of the network under `optimization`, which is compiled once for all questions."""
        diffusion = copy.deepcopy(self.diffusion)
        with optimization.applied(diffusion):
            yield Configured(self, diffusion, optimization)

    @cached_property
    def exact(self) -> tuple[_Exact, ...]:
        """The answers of float64, one per draw."""
        exact = copy.deepcopy(self.diffusion).double()
        draws = []
        for seed in self.draws:
            torch.manual_seed(seed)
            t = torch.randint(0, exact.timesteps, (1,), device=self.image.device)
            noise = torch.randn_like(self.image)
            # The way of `GaussianDiffusion3D.loss`, with the slope in between.
            x_t = exact.q_sample(self.image.double(), t, noise.double())
            output = exact.predict_noise(x_t, t, self.mask.double())
            loss = nn.functional.l1_loss(output, noise.double())
            (slope,) = torch.autograd.grad(loss, output, retain_graph=True)
            gradients = _gradients(exact, output, slope)
            draws.append(_Exact(t, noise, loss.item(), output.detach(), slope, gradients))
        return tuple(draws)

    @cached_property
    def baseline_curve(self) -> list[float]:
        """The baseline's losses."""
        with self.configured(OPTIMIZATIONS["baseline"]) as baseline:
            return baseline.curve()

    @cached_property
    def baseline_sample(self) -> Tensor:
        """The baseline's sample, [1, 1, S, S, S]."""
        with self.configured(OPTIMIZATIONS["baseline"]) as baseline:
            return baseline.sample()


class Configured:
    """One configuration's network, to be asked while it is configured; see `Quality.configured`."""

    def __init__(
        self, quality: Quality, diffusion: GaussianDiffusion3D, optimization: Optimization
    ) -> None:
        self._quality = quality
        self._diffusion = diffusion
        self._optimization = optimization

    def errors(self) -> Errors:
        """How far it is from float64."""
        return _largest([self._error(draw) for draw in self._quality.exact])

    def deviation(self) -> float:
        """How far the loss curve is from the baseline's, relative: of all stretches, the most.

        NaN where the curve has a loss that is none.
        """
        baseline = self._quality.baseline_curve  # first: it is another configuration's turn
        return _furthest_apart(self.curve(), baseline)

    def similarity(self) -> Similarity:
        """How much a sample looks like the baseline's."""
        baseline = self._quality.baseline_sample
        return similarity(self.sample(), baseline)

    def curve(self) -> list[float]:
        """The losses of a training, the same noise at the same step whatever the configuration.

        The weights are afterwards what they were.
        """
        quality = self._quality
        self._diffusion.zero_grad(set_to_none=True)
        torch.manual_seed(quality.draws[0])
        step = TrainingStep(
            self._diffusion,
            quality.curve_volumes,
            self._optimization,
            lambda _: nullcontext(),
            quality.device,
        )
        for group in step.adam.param_groups:
            group["lr"] = LEARNING_RATE
        losses = [step() for _ in range(quality.curve_steps)]
        step.reset()
        return [float(loss) for loss in losses]

    def sample(self) -> Tensor:
        """The end of a chain, [1, 1, S, S, S]."""
        quality = self._quality
        chain = SamplingStep(
            self._diffusion,
            quality.volumes,
            self._optimization,
            quality.device,
            begin=quality.chain_steps,
            steps=quality.chain_steps,
        )
        chain.reset()
        return chain().float()

    def _error(self, exact: _Exact) -> Errors:
        quality, diffusion, optimization = self._quality, self._diffusion, self._optimization
        image, mask = optimization.prepare(quality.image), optimization.prepare(quality.mask)
        with torch.no_grad():
            loss = diffusion.loss_with(image, mask, exact.t, exact.noise).item()
        x_t = diffusion.q_sample(image, exact.t, exact.noise)
        output = diffusion.predict_noise(x_t, exact.t, mask)
        # Of L1, the slope is the sign of a difference: where that is small it flips by the least
        # error, and the gradients would differ by its root. All get the slope of float64.
        computed = _gradients(diffusion, output, exact.slope.to(output.dtype))
        total = _norm(exact.gradients.values())
        apart = {
            # A weight that the loss does not depend on has a gradient of zeros.
            name: computed[name].double() - gradient if name in computed else gradient
            for name, gradient in exact.gradients.items()
        }
        weights = {
            name: _norm([apart[name]]) / max(_norm([gradient]), NO_GRADIENT * total)
            for name, gradient in exact.gradients.items()
        }
        worst = max(weights, key=lambda name: (math.isnan(weights[name]), weights[name]))
        return Errors(
            loss=abs(loss - exact.loss) / abs(exact.loss),
            output=_norm([output.detach().double() - exact.output]) / _norm([exact.output]),
            gradients=_norm(apart.values()) / total,
            weight=weights[worst],
            worst=worst,
        )


def with_live_branches(diffusion: GaussianDiffusion3D) -> GaussianDiffusion3D:
    """`diffusion`, with convolutions of zeros drawn anew from torch's generator.

    As published the network's residual branches and its output begin as zeros: whatever a
    configuration did to them would not show. A trained network has none and stays as it is.
    """
    for layer in diffusion.modules():
        if isinstance(layer, (nn.Conv1d, nn.Conv3d)) and not layer.weight.any():
            layer.reset_parameters()
    return diffusion


def scales_of(edge: int) -> int:
    """How many scales of MS-SSIM a volume of so many voxels along an edge has room for."""
    return max((count for count, least in SMALLEST_EDGE.items() if edge >= least), default=0)


def similarity(sample: Tensor, other: Tensor) -> Similarity:
    """3D SSIM and MS-SSIM of two volumes [1, 1, S, S, S] in [-1, 1], in float64.

    With fewer scales than five, the weights of those that there are add up to one. Raises
    ValueError for volumes of fewer than 11 voxels along an edge, the window of SSIM.
    """
    from torchmetrics.functional.image import (
        multiscale_structural_similarity_index_measure as ms_ssim,
    )
    from torchmetrics.functional.image import structural_similarity_index_measure as ssim

    edge = min(sample.shape[2:])
    scales = scales_of(edge)
    if not scales:
        raise ValueError(
            f"SSIM looks at windows of {SMALLEST_EDGE[1]} voxels along an edge, and the volumes "
            f"have {edge}: sample larger ones"
        )
    pair = sample.double(), other.double()
    weights = MS_SSIM_WEIGHTS[:scales]
    exponents = tuple(weight / sum(weights) for weight in weights)
    return Similarity(
        ssim=float(ssim(*pair, data_range=DATA_RANGE)),  # type: ignore[arg-type]
        ms_ssim=float(ms_ssim(*pair, data_range=DATA_RANGE, betas=exponents)),
        scales=scales,
    )


def _gradients(diffusion: GaussianDiffusion3D, output: Tensor, slope: Tensor) -> dict[str, Tensor]:
    """The gradients of the network's weights, for this slope of the loss at its output."""
    diffusion.zero_grad(set_to_none=True)
    output.backward(slope)  # type: ignore[no-untyped-call]
    return {
        name: weight.grad.clone()
        for name, weight in diffusion.named_parameters()
        if weight.grad is not None
    }


def _norm(parts: Iterable[Tensor]) -> float:
    return math.sqrt(math.fsum(float(part.square().sum()) for part in parts))


def _largest(every: Sequence[Errors]) -> Errors:
    worst = max(every, key=lambda errors: (math.isnan(errors.weight), errors.weight))
    return Errors(
        loss=_most(errors.loss for errors in every),
        output=_most(errors.output for errors in every),
        gradients=_most(errors.gradients for errors in every),
        weight=worst.weight,
        worst=worst.worst,
    )


def _most(values: Iterable[float]) -> float:
    """The largest; NaN where there is one."""
    return max(values, key=lambda value: (math.isnan(value), value))


def _furthest_apart(curve: Sequence[float], baseline: Sequence[float]) -> float:
    length = max(len(baseline) // WINDOWS, 1)
    return _most(
        abs(math.fsum(ours) - math.fsum(theirs)) / math.fsum(theirs)
        for at in range(0, len(baseline), length)
        for ours, theirs in [(curve[at : at + length], baseline[at : at + length])]
    )
