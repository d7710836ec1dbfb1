"""The Gaussian diffusion process around the U-Net: noising, the training loss, a sampling step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from suites.gaussian import GaussianProcess
from suites.meddpm.model.unet import UNet3D
from suites.schedule import cosine_betas

TIMESTEPS = 250
"""Length of Med-DDPM's diffusion process, in steps."""

MASK_CHANNELS = 2
"""Channels of the condition: one per tissue label."""


class GaussianDiffusion3D(GaussianProcess):
    """A conditional DDPM over volumes: the mask is concatenated after the noisy volume.

    Volumes are [B, C, D, H, W] in [-1, 1], time steps [B] integers from 0 to `timesteps` - 1.
    Everything random is drawn on the volume's device from its global generator.
    """

    def __init__(self, denoise_fn: nn.Module, timesteps: int = TIMESTEPS) -> None:
        """`denoise_fn(x, t)` predicts the noise in the first channels of `x`."""
        super().__init__(cosine_betas(timesteps))
        self.denoise_fn = denoise_fn

    def predict_noise(self, x_t: Tensor, t: Tensor, condition: Tensor) -> Tensor:
        """The network's answer: the noise [B, C, D, H, W] in `x_t`, given the mask `condition`."""
        noise: Tensor = self.denoise_fn(torch.cat([x_t, condition], dim=1), t)
        return noise

    def forward(self, x_0: Tensor, condition: Tensor) -> Tensor:
        """The training loss, a scalar: L1 between drawn and predicted noise, at random steps."""
        return self.loss(x_0, lambda x_t, t: self.predict_noise(x_t, t, condition))

    def loss_with(self, x_0: Tensor, condition: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """The training loss at the time steps `t` [B], with this `noise` of the volume's shape."""
        return self.loss_at(x_0, t, noise, lambda x_t, t: self.predict_noise(x_t, t, condition))

    @torch.no_grad()
    def p_sample(self, x_t: Tensor, t: Tensor, condition: Tensor) -> Tensor:
        """One step of sampling: x_{t-1} drawn from p(x_{t-1} | x_t), with x_0 clamped to [-1, 1].

        At t = 0 the posterior's mean is returned, without noise.
        """
        noise = self.predict_noise(x_t, t, condition)
        return self.sampled(self.foreseen(x_t, t, torch.randn_like(x_t)), t, noise)


def med_ddpm(image_size: int = 128, *, model_channels: int = 64) -> GaussianDiffusion3D:
    """Med-DDPM as published for `image_size`: one MRI channel, two mask channels, 250 steps.

    A smaller volume than `image_size` may be given to it; the network stays the published one.
    """
    network = UNet3D.published(image_size, 1 + MASK_CHANNELS, 1, model_channels=model_channels)
    return GaussianDiffusion3D(network)
