"""What the published code of Med-DDPM answers to weights and volumes that are the same everywhere.

    python -m tests.meddpm.published FOLDER

asks it, in a checkout of https://github.com/mobaidoctor/med-ddpm, and writes
`tests/data/meddpm-published.json`. That code is under another licence: none of it is here.
"""

from __future__ import annotations

import hashlib
import json
import sys
from importlib import import_module
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # before its imports are replaced
from torch import Tensor, nn

from tests import ROOT

FILE = ROOT / "tests" / "data" / "meddpm-published.json"
SIZES = (64, 128, 256, 512)
"""Voxels along an edge of the images that a network was published for."""
TIMES = torch.tensor([0, 123])
"""The time steps of two volumes."""
COEFFICIENTS = (0, 1, 123, 248, 249)
"""The time steps whose coefficients are recorded."""


def layout(diffusion: nn.Module) -> str:
    """A digest of name and shape of every tensor in a checkpoint's `ema` entry."""
    shapes = {name: tuple(tensor.shape) for name, tensor in diffusion.state_dict().items()}
    return hashlib.sha256(repr(sorted(shapes.items())).encode()).hexdigest()[:16]


def wave(shape: tuple[int, ...], slope: float) -> Tensor:
    """Values from -1 to 1 that no generator draws."""
    steps = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return torch.sin(slope * (steps + 1)).float().reshape(shape)


def volumes() -> tuple[Tensor, Tensor, Tensor]:
    """Two images [2, 1, 8, 8, 8] with their masks [2, 2, 8, 8, 8] and noise."""
    return wave((2, 1, 8, 8, 8), 0.31), wave((2, 2, 8, 8, 8), 1.7), wave((2, 1, 8, 8, 8), 2.3)


def answers(diffusion: Any, loss: Tensor) -> dict[str, Any]:
    """Of a network of two levels, `loss` is that of `volumes` at TIMES."""
    image, mask, _ = volumes()
    with torch.no_grad():
        predicted = diffusion.denoise_fn(torch.cat([image, mask], dim=1), TIMES)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.manual_seed(7)
    return {
        "predicted": predicted.flatten()[::97].tolist(),
        "loss": loss.item(),
        "gradients": {
            name: weight.grad.norm().item()
            for name, weight in diffusion.denoise_fn.named_parameters()
        },
        "sampled": diffusion.p_sample(image, TIMES, mask).flatten()[::97].tolist(),
        "coefficients": {
            name: buffer[list(COEFFICIENTS)].tolist()
            for name, buffer in diffusion.named_buffers()
            if "denoise_fn" not in name
        },
    }


def waved(network: nn.Module) -> nn.Module:
    """The network with weights that no generator draws; none is zero."""
    with torch.no_grad():
        for number, weight in enumerate(network.parameters()):
            drawn = wave(tuple(weight.shape), 0.7 + number)
            fan = weight[0].numel() if weight.dim() > 1 else 0
            weight.copy_(drawn * (2 / fan) ** 0.5 if fan else 0.6 + 0.4 * drawn)
    return network


def main(folder: str) -> None:
    """Asks the published code in this folder."""
    sys.path.insert(0, folder)
    for name in ("apex", "einops", "PIL", "torch.utils.tensorboard", "torchvision", "tqdm"):
        sys.modules[name] = mock.MagicMock()  # of its trainer
    unet, trainer = (import_module(f"diffusion_model.{name}") for name in ("unet", "trainer"))

    def process(network: nn.Module, size: int) -> Any:
        sizes = {"image_size": size, "depth_size": size}
        return trainer.GaussianDiffusion(network, **sizes, timesteps=250, with_condition=True)

    published = {
        size: process(unet.create_model(size, 64, 1, in_channels=3, out_channels=1), size)
        for size in SIZES
    }
    small = unet.UNetModel(8, 3, 64, 1, 1, attention_resolutions=(2,), channel_mult=(0.5, 1))
    diffusion = process(waved(small), 8)
    image, mask, noise = volumes()
    recorded = {
        "layouts": {size: layout(diffusion) for size, diffusion in published.items()},
        **answers(diffusion, diffusion.p_losses(image, TIMES, mask, noise)),
    }
    FILE.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
