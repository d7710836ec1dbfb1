"""The cosine and the linear noise schedule, and the coefficients that follow from one.

Notation of the DDPM literature: beta_t is the variance of the noise added at step t,
alpha_t = 1 - beta_t, and alphas_cumprod_t is the product of the alphas up to t.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

OFFSET = 0.008
"""The cosine schedule's s: keeps the first betas from vanishing."""

MAX_BETA = 0.999
"""The cosine schedule's last beta would be 1, which leaves nothing to invert."""

SMALLEST_VARIANCE = 1e-20
"""Stands in for the posterior variance at t = 0, which is 0 and has no logarithm."""


def cosine_betas(timesteps: int) -> Tensor:
    """The betas [T] of the cosine schedule, float64.

    alphas_cumprod(x) is proportional to cos^2(pi/2 (x / (T + 1) + s) / (1 + s)), taken at T + 1
    points spaced linearly from 0 to T + 1. (The spacing is (T + 1) / T, not 1: the published
    implementation's choice, which a released checkpoint's buffers hold.)
    """
    points = torch.linspace(0, timesteps + 1, timesteps + 1, dtype=torch.float64)
    angles = (points / (timesteps + 1) + OFFSET) / (1 + OFFSET) * (math.pi / 2)
    alphas_cumprod = torch.cos(angles) ** 2
    return (1 - alphas_cumprod[1:] / alphas_cumprod[:-1]).clamp(0, MAX_BETA)


def linear_betas(timesteps: int) -> Tensor:
    """The betas [T] of the linear schedule, float64: from 0.0001 to 0.02 over 1,000 steps.

    Of fewer steps each adds as much more, so that the last one ends in noise as well.
    """
    scale = 1000 / timesteps
    betas = torch.linspace(scale * 0.0001, scale * 0.02, timesteps, dtype=torch.float64)
    return betas.clamp(max=MAX_BETA)


def diffusion_buffers(betas: Tensor) -> dict[str, Tensor]:
    """The float32 buffers [T] of the released checkpoints, by name, from float64 `betas`.

    Computed in float64 and rounded once. The posterior q(x_{t-1} | x_t, x_0) is normal with mean
    coef1 x_0 + coef2 x_t. `posterior_mean_coef3` = 1 - coef2 is the weight of a constant that
    shifts every x_t; Med-DDPM concatenates its condition instead, so nothing here reads it.
    """
    alphas = 1 - betas
    alphas_cumprod = torch.cumprod(alphas, dim=0)
    previous = torch.cat([torch.ones_like(alphas_cumprod[:1]), alphas_cumprod[:-1]])
    variance = betas * (1 - previous) / (1 - alphas_cumprod)
    exact = {
        "betas": betas,
        "alphas_cumprod": alphas_cumprod,
        "alphas_cumprod_prev": previous,
        "sqrt_alphas_cumprod": alphas_cumprod.sqrt(),
        "sqrt_one_minus_alphas_cumprod": (1 - alphas_cumprod).sqrt(),
        "log_one_minus_alphas_cumprod": (1 - alphas_cumprod).log(),
        "sqrt_recip_alphas_cumprod": alphas_cumprod.rsqrt(),
        "sqrt_recipm1_alphas_cumprod": (1 / alphas_cumprod - 1).sqrt(),
        "posterior_variance": variance,
        "posterior_log_variance_clipped": variance.clamp(min=SMALLEST_VARIANCE).log(),
        "posterior_mean_coef1": betas * previous.sqrt() / (1 - alphas_cumprod),
        "posterior_mean_coef2": (1 - previous) * alphas.sqrt() / (1 - alphas_cumprod),
        "posterior_mean_coef3": 1 - (1 - previous) * alphas.sqrt() / (1 - alphas_cumprod),
    }
    return {name: values.to(torch.float32) for name, values in exact.items()}
