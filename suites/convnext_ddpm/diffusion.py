"""The diffusion process of the ConvNeXt DDPM, and the noise that all configurations share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from suites.convnext_ddpm.marks import Mark, unmarked
from suites.gaussian import Foreseen, GaussianProcess
from suites.schedule import cosine_betas, linear_betas

TIMESTEPS = 100
"""Length of the reports' sampling, in steps."""

Schedule = Literal["cosine", "linear"]

_BETAS: dict[Schedule, Callable[[int], Tensor]] = {"cosine": cosine_betas, "linear": linear_betas}


class Diffusion(GaussianProcess):
    """Noising and sampling of images [N, C, H, W]. Holds no network: that is asked elsewhere."""

    def __init__(
        self,
        timesteps: int = TIMESTEPS,
        schedule: Schedule = "cosine",
        mark: Mark = unmarked,
    ) -> None:
        super().__init__(_BETAS[schedule](timesteps))
        self.mark = mark

    def extract(self, values: Tensor, t: Tensor, images: Tensor) -> Tensor:
        """See GaussianProcess."""
        with self.mark("extract"):
            return super().extract(values, t, images)

    def foreseen(self, x_t: Tensor, t: Tensor, drawn: Tensor) -> Foreseen:
        """See GaussianProcess."""
        with self.mark("p_sample"):
            return super().foreseen(x_t, t, drawn)

    def sampled(self, foreseen: Foreseen, t: Tensor, noise: Tensor) -> Tensor:
        """See GaussianProcess."""
        with self.mark("p_sample"):
            return super().sampled(foreseen, t, noise)

    def normalize_to_neg_one_to_one(self, images: Tensor) -> Tensor:
        """From [0, 1] to [-1, 1]."""
        with self.mark("normalize"):
            return images * 2 - 1

    def unnormalize_to_zero_to_one(self, images: Tensor) -> Tensor:
        """From [-1, 1] to [0, 1]."""
        with self.mark("unnormalize"):
            return (images + 1) * 0.5


def seeded_noise(timesteps: int, images: tuple[int, int, int, int], seed: int = 1) -> Tensor:
    """All the noise [T + 1, N, C, H, W] of one sampling, on the CPU: N(0, 1) by `seed`.

    Entry t is what p_sample adds at step t, and the last is the image that sampling begins with.
    Drawn before, so that every configuration draws the same image, wherever it adds its noise.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((timesteps + 1, *images), generator=generator)
