"""The Gaussian diffusion process around the U-Net: noising, the training loss, a sampling step."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from suites.meddpm.model.schedule import TIMESTEPS, cosine_betas, diffusion_buffers
from suites.meddpm.model.unet import UNet3D

MASK_CHANNELS = 2
"""Channels of the condition: one per tissue label."""


class GaussianDiffusion3D(nn.Module):
    """A conditional DDPM over volumes: the mask is concatenated after the noisy volume.

    Volumes are [B, C, D, H, W] in [-1, 1], time steps [B] integers from 0 to `timesteps` - 1.
    Everything random is drawn on the volume's device from its global generator.
    """

    sqrt_alphas_cumprod: Tensor
    sqrt_one_minus_alphas_cumprod: Tensor
    sqrt_recip_alphas_cumprod: Tensor
    sqrt_recipm1_alphas_cumprod: Tensor
    posterior_log_variance_clipped: Tensor
    posterior_mean_coef1: Tensor
    posterior_mean_coef2: Tensor

    def __init__(self, denoise_fn: nn.Module, timesteps: int = TIMESTEPS) -> None:
        """`denoise_fn(x, t)` predicts the noise in the first channels of `x`."""
        super().__init__()
        self.denoise_fn = denoise_fn
        self.timesteps = timesteps
        for name, values in diffusion_buffers(cosine_betas(timesteps)).items():
            self.register_buffer(name, values)

    def q_sample(self, x_0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """The noisy volume x_t = sqrt(alphas_cumprod) x_0 + sqrt(1 - alphas_cumprod) noise."""
        return (
            at(self.sqrt_alphas_cumprod, t) * x_0
            + at(self.sqrt_one_minus_alphas_cumprod, t) * noise
        )

    def predict_x_0(self, x_t: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """The clean volume that `noise` turns into `x_t`: the inverse of `q_sample`."""
        return (
            at(self.sqrt_recip_alphas_cumprod, t) * x_t
            - at(self.sqrt_recipm1_alphas_cumprod, t) * noise
        )

    def predict_noise(self, x_t: Tensor, t: Tensor, condition: Tensor) -> Tensor:
        """The network's answer: the noise [B, C, D, H, W] in `x_t`, given the mask `condition`."""
        noise: Tensor = self.denoise_fn(torch.cat([x_t, condition], dim=1), t)
        return noise

    def forward(self, x_0: Tensor, condition: Tensor) -> Tensor:
        """The training loss, a scalar: L1 between drawn and predicted noise, at random steps."""
        t = torch.randint(0, self.timesteps, (x_0.shape[0],), device=x_0.device)
        noise = torch.randn_like(x_0)
        x_t = self.q_sample(x_0, t, noise)
        return functional.l1_loss(self.predict_noise(x_t, t, condition), noise)

    @torch.no_grad()
    def p_sample(self, x_t: Tensor, t: Tensor, condition: Tensor) -> Tensor:
        """One step of sampling: x_{t-1} drawn from p(x_{t-1} | x_t), with x_0 clamped to [-1, 1].

        At t = 0 the posterior's mean is returned, without noise.
        """
        x_0 = self.predict_x_0(x_t, t, self.predict_noise(x_t, t, condition)).clamp(-1, 1)
        mean = at(self.posterior_mean_coef1, t) * x_0 + at(self.posterior_mean_coef2, t) * x_t
        deviation = torch.exp(0.5 * at(self.posterior_log_variance_clipped, t))
        # A factor, not a branch: a branch would wait for the device.
        noisy = (t > 0).to(x_t.dtype).reshape(-1, 1, 1, 1, 1)
        return mean + noisy * deviation * torch.randn_like(x_t)


def at(values: Tensor, t: Tensor) -> Tensor:
    """`values` [T] at the time steps `t` [B], shaped [B, 1, 1, 1, 1] to go with volumes."""
    return values.gather(0, t).reshape(-1, 1, 1, 1, 1)


def med_ddpm(image_size: int = 128, *, model_channels: int = 64) -> GaussianDiffusion3D:
    """Med-DDPM as published for `image_size`: one MRI channel, two mask channels, 250 steps.

    A smaller volume than `image_size` may be given to it; the network stays the published one.
    """
    network = UNet3D.published(image_size, 1 + MASK_CHANNELS, 1, model_channels=model_channels)
    return GaussianDiffusion3D(network)
