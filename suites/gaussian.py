"""The Gaussian process around a diffusion model's network: noising, and one step back."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from suites.schedule import diffusion_buffers


class Foreseen(NamedTuple):
    """What a step of sampling needs of x_t, and can have before the network has answered."""

    x_0: Tensor
    """The clean image's part that x_t gives; the predicted noise is taken from it."""
    mean: Tensor
    """The posterior mean's part that x_t gives."""
    drawn: Tensor
    """The noise that is added, of the posterior's deviation; nothing at t = 0."""


class GaussianProcess(nn.Module):
    """Adds noise to images, and takes one step of it away again, given the noise in them.

    Images are [B, C, ...] in [-1, 1], time steps [B] integers from 0 to `timesteps` - 1.
    """

    sqrt_alphas_cumprod: Tensor
    sqrt_one_minus_alphas_cumprod: Tensor
    sqrt_recip_alphas_cumprod: Tensor
    sqrt_recipm1_alphas_cumprod: Tensor
    posterior_log_variance_clipped: Tensor
    posterior_mean_coef1: Tensor
    posterior_mean_coef2: Tensor

    def __init__(self, betas: Tensor) -> None:
        """`betas` [T] of a schedule, float64."""
        super().__init__()
        self.timesteps = len(betas)
        for name, values in diffusion_buffers(betas).items():
            self.register_buffer(name, values)

    def q_sample(self, x_0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """The noisy image x_t = sqrt(alphas_cumprod) x_0 + sqrt(1 - alphas_cumprod) noise."""
        return (
            self.extract(self.sqrt_alphas_cumprod, t, x_0) * x_0
            + self.extract(self.sqrt_one_minus_alphas_cumprod, t, x_0) * noise
        )

    def foreseen(self, x_t: Tensor, t: Tensor, drawn: Tensor) -> Foreseen:
        """What `sampled` takes; `drawn` is noise N(0, 1) of the image's shape."""
        deviation = torch.exp(0.5 * self.extract(self.posterior_log_variance_clipped, t, x_t))
        # A factor, not a branch: a branch would wait for the device.
        noisy = _to_go_with((t > 0).to(x_t.dtype), x_t)
        return Foreseen(
            x_0=self.extract(self.sqrt_recip_alphas_cumprod, t, x_t) * x_t,
            mean=self.extract(self.posterior_mean_coef2, t, x_t) * x_t,
            drawn=noisy * deviation * drawn,
        )

    def sampled(self, foreseen: Foreseen, t: Tensor, noise: Tensor) -> Tensor:
        """x_{t-1} drawn from p(x_{t-1} | x_t), with x_0 clamped to [-1, 1].

        `noise` is what the network found in x_t. At t = 0 the posterior's mean is returned.
        """
        x_0 = self._without(foreseen.x_0, t, noise).clamp(-1, 1)
        mean = self.extract(self.posterior_mean_coef1, t, x_0) * x_0 + foreseen.mean
        return mean + foreseen.drawn

    def loss(self, x_0: Tensor, predicted: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The training loss, a scalar: L1 between drawn and predicted noise, at random steps.

        `predicted(x_t, t)` is the network's answer. Everything random is drawn on the image's
        device from its global generator.
        """
        t = torch.randint(0, self.timesteps, (x_0.shape[0],), device=x_0.device)
        return self.loss_at(x_0, t, torch.randn_like(x_0), predicted)

    def loss_at(
        self, x_0: Tensor, t: Tensor, noise: Tensor, predicted: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """The same at the time steps `t` [B], with this `noise` of the image's shape."""
        return functional.l1_loss(predicted(self.q_sample(x_0, t, noise), t), noise)

    def extract(self, values: Tensor, t: Tensor, images: Tensor) -> Tensor:
        """`values` [T] at the time steps `t` [B], shaped [B, 1, ...] to go with `images`."""
        return _to_go_with(values.gather(0, t), images)

    def _without(self, scaled: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        return scaled - self.extract(self.sqrt_recipm1_alphas_cumprod, t, scaled) * noise


def _to_go_with(values: Tensor, images: Tensor) -> Tensor:
    return values.reshape(-1, *(1 for _ in images.shape[1:]))
