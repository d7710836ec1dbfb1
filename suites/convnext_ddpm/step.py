"""What the suite measures: a training step, a time step of sampling, a chain of them."""

from __future__ import annotations

import torch
from torch import Tensor

from suites.convnext_ddpm.diffusion import Diffusion, seeded_noise
from suites.convnext_ddpm.marks import Mark, unmarked
from suites.convnext_ddpm.model import Network, seeded_network
from suites.convnext_ddpm.shape import Shape
from suites.convnext_ddpm.transfers import Model, Sampler
from suites.training import ModelTraining, Phase

LEARNING_RATE = 1e-3
"""Adam's learning rate."""


def seeded_model(
    shape: Shape, batch: int = 1, timesteps: int = 100, mark: Mark = unmarked
) -> Model:
    """A network, a process and its noise, all from fixed seeds and on the CPU."""
    return Model(
        seeded_network(shape),
        Diffusion(timesteps, mark=mark),
        seeded_noise(timesteps, shape.images(batch)),
    )


def seeded_images(shape: Shape, batch: int) -> Tensor:
    """Images [N, C, H, W] in [0, 1], uniform noise by a fixed seed."""
    return torch.rand(shape.images(batch), generator=torch.Generator().manual_seed(2))


class TrainingStep(ModelTraining):
    """A training step on `images` [N, C, H, W] in [0, 1]: forward, backward, optimizer.

    Use it inside `configuration.applied(network)`.
    """

    def __init__(
        self,
        network: Network,
        diffusion: Diffusion,
        images: Tensor,
        phase: Phase,
        device: torch.device | str,
    ) -> None:
        self.network = network.to(device)
        self.diffusion = diffusion.to(device)
        self.images = images.to(device)
        super().__init__(self.network, self._forward, LEARNING_RATE, phase, device)

    def _forward(self) -> Tensor:
        normalized = self.diffusion.normalize_to_neg_one_to_one(self.images)
        return self.diffusion.loss(normalized, self.network)


class SamplingStep:
    """One time step of sampling: the network, and p_sample."""

    def __init__(self, sampler: Sampler, image: Tensor, t: int) -> None:
        """`image` [N, C, H, W] is on the host."""
        self._sampler = sampler
        self._image = image
        self._t = t

    def __call__(self) -> None:
        """Takes the step. May return before the device is done."""
        self._sampler.step()

    def reset(self) -> None:
        """Puts the image of the time step back."""
        self._sampler.start(self._image, self._t)


class Chain:
    """Samples an image from noise, over all the steps of the process."""

    def __init__(self, sampler: Sampler, model: Model) -> None:
        """The sampler is one of this model."""
        self._sampler = sampler
        self._diffusion = model.diffusion
        self._image = model.first_image

    def __call__(self) -> Tensor:
        """The image [N, C, H, W] in [0, 1], on the host: the work is done when it is there."""
        self._sampler.start(self._image, self._diffusion.timesteps - 1)
        for _ in range(self._diffusion.timesteps):
            self._sampler.step()
        return self._diffusion.unnormalize_to_zero_to_one(self._sampler.image())
