"""The training steps that causes are put into: our suites' and those of models of others.

Each is forward, backward and Adam in TF32, with the phases of suites/training.py, of random weights
and data. On a GPU they take some 20 to 100 ms; on a CPU they are as small as they can be. Packages
of others (MONAI, transformers) are imported where they are used, and need not be there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_gpuperf.model.measurement import Scalar
from suites.precision import float32_precision
from suites.training import ModelTraining, Phase

LEARNING_RATE = 1e-4


@contextmanager
def step(name: str, phase: Phase, device: str) -> Iterator[ModelTraining]:
    """The step of this name, as long as the block lasts."""
    torch.manual_seed(0)
    with float32_precision("tf32"):
        try:
            yield STEPS[name](phase, device)
        finally:
            torch.compiler.reset()


def workload(name: str, device: str) -> dict[str, Scalar]:
    """What is run, for the measurement: those of a CPU are others."""
    return {"step": name, "sizes": "small" if device == "cpu" else "large"}


def _meddpm(phase: Phase, device: str) -> ModelTraining:
    from suites.meddpm.data import Volumes
    from suites.meddpm.model import GaussianDiffusion3D, UNet3D, med_ddpm
    from suites.meddpm.optimizations import composed
    from suites.meddpm.step import TrainingStep

    size = 8 if device == "cpu" else 80
    with torch.device(device):
        if device == "cpu":
            levels = partial(UNet3D, channel_multipliers=(1, 2, 3), attention_factors=(4,))
            diffusion = GaussianDiffusion3D(levels(3, 1, model_channels=32))
        else:
            diffusion = med_ddpm(128)
        image = torch.rand(1, 1, size, size, size) * 2 - 1
        mask = torch.where(torch.rand(1, 2, size, size, size) > 0.5, 1.0, -1.0)
    volumes = Volumes(image, mask, "synthetic")
    return TrainingStep(diffusion, volumes, composed("tf32"), phase, device)


def _convnext(phase: Phase, device: str, *, compiled: bool = False) -> ModelTraining:
    from suites.convnext_ddpm.configurations import CONFIGURATIONS
    from suites.convnext_ddpm.shape import Shape
    from suites.convnext_ddpm.step import TrainingStep, seeded_images, seeded_model

    shape = Shape(8, (4, 8)) if device == "cpu" else Shape(64, (32, 64, 128, 256))
    if compiled and device != "cpu":
        shape = Shape(64, (64, 128))
    batch = 1 if device == "cpu" else 32
    model = seeded_model(shape, batch)
    # No more than this is entered: its precision is the block's around the step.
    with CONFIGURATIONS["tf32"].applied(model.network, device=torch.device(device)):
        made = TrainingStep(
            model.network, model.diffusion, seeded_images(shape, batch), phase, device
        )
    if compiled:
        model.network.compile(backend=_backend(device))
    return made


def _backend(device: str) -> str:
    """Of torch.compile: on a CPU no code is written, the graphs are those of a GPU."""
    return "eager" if device == "cpu" else "inductor"


class _Of(ABC):
    """A model of others with what it is trained on."""

    model: nn.Module
    device: str

    @abstractmethod
    def loss(self) -> Tensor:
        """One forward pass, a scalar."""

    def training(self, phase: Phase) -> ModelTraining:
        """Its training step."""
        self.model.train()
        return ModelTraining(self.model, self.loss, LEARNING_RATE, phase, self.device)


class Segmentation(_Of):
    """MONAI's U-Net with residual units and its Dice loss, of volumes with four labels."""

    def __init__(self, device: str) -> None:
        unet: Any = import_module("monai.networks.nets.unet")
        dice: Any = import_module("monai.losses.dice")
        self.device = device
        size, channels = (16, (4, 8, 16)) if device == "cpu" else (96, (32, 64, 128, 256))
        strides = (2,) * (len(channels) - 1)
        with torch.device(device):
            self.model = unet.UNet(3, 1, 4, channels, strides, num_res_units=2)
            self.volumes = torch.randn(2, 1, size, size, size)
            self.labels = torch.randint(0, 4, (2, 1, size, size, size))
        self.on_host = self.volumes.cpu()
        self._dice = dice.DiceLoss(to_onehot_y=True, softmax=True)

    def loss(self) -> Tensor:
        """The Dice loss of two volumes."""
        volumes, labels = self.volumes, self.labels
        loss: Tensor = self._dice(self.model(volumes), labels)
        return loss


class Denoising(_Of):
    """MONAI's diffusion model of 2D images, which predicts the noise in them."""

    def __init__(self, device: str) -> None:
        nets: Any = import_module("monai.networks.nets.diffusion_model_unet")
        self.device = device
        small = device == "cpu"
        channels = (8, 16) if small else (128, 256, 256)
        with torch.device(device):
            self.model = nets.DiffusionModelUNet(
                spatial_dims=2,
                in_channels=3,
                out_channels=3,
                num_res_blocks=1,
                channels=channels,
                attention_levels=tuple(width == channels[-1] for width in channels),
                norm_num_groups=4 if small else 32,
                num_head_channels=8 if small else 64,
            )
            size = (2, 3, 8, 8) if small else (16, 3, 64, 64)
            self._images, self._noise = torch.randn(size), torch.randn(size)
            self._times = torch.randint(0, 1000, size[:1])

    def loss(self) -> Tensor:
        """The mean squared error of the noise."""
        return functional.mse_loss(self.model(self._images, self._times), self._noise)


class Language(_Of):
    """GPT-2 of transformers, which predicts the next token."""

    def __init__(self, device: str, *, compiled: bool = False) -> None:
        gpt2: Any = import_module("transformers.models.gpt2.modeling_gpt2")
        self.device = device
        small = device == "cpu"
        vocabulary, length = (64, 16) if small else (16384, 512)
        config = gpt2.GPT2Config(
            vocab_size=vocabulary,
            n_positions=length,
            n_embd=16 if small else 768,
            n_layer=2 if small or compiled else 6,
            n_head=2 if small else 12,
            bos_token_id=None,
            eos_token_id=None,
            use_cache=False,
            attn_implementation="sdpa",
        )
        with torch.device(device):
            self.model = gpt2.GPT2LMHeadModel(config)
            self._tokens = torch.randint(0, vocabulary, (2 if small else 8, length))
        if compiled:
            self.model.compile(backend=_backend(device))

    def loss(self) -> Tensor:
        """The cross entropy."""
        loss: Tensor = self.model(input_ids=self._tokens, labels=self._tokens).loss
        return loss


class Classification(_Of):
    """A vision transformer of transformers, of images in a thousand classes."""

    def __init__(self, device: str) -> None:
        vit: Any = import_module("transformers.models.vit.modeling_vit")
        self.device = device
        small = device == "cpu"
        size, batch = (16, 2) if small else (224, 32)
        config = vit.ViTConfig(
            image_size=size,
            patch_size=8 if small else 16,
            hidden_size=16 if small else 768,
            num_hidden_layers=2 if small else 6,
            num_attention_heads=2 if small else 12,
            intermediate_size=32 if small else 3072,
            num_labels=1000,
            attn_implementation="sdpa",
        )
        with torch.device(device):
            self.model = vit.ViTForImageClassification(config)
            self._labels = torch.randint(0, 1000, (batch,))
        self.stored = list(torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8))
        self.pixels = (torch.stack(self.stored) / 255).to(device)

    def loss(self) -> Tensor:
        """The cross entropy."""
        pixels = self.pixels
        loss: Tensor = self.model(pixel_values=pixels, labels=self._labels).loss
        return loss


STEPS: dict[str, Callable[[Phase, str], ModelTraining]] = {
    "meddpm": _meddpm,
    "convnext": _convnext,
    "convnext-compiled": lambda phase, device: _convnext(phase, device, compiled=True),
    "segmentation": lambda phase, device: Segmentation(device).training(phase),
    "diffusion": lambda phase, device: Denoising(device).training(phase),
    "gpt2": lambda phase, device: Language(device).training(phase),
    "gpt2-compiled": lambda phase, device: Language(device, compiled=True).training(phase),
    "vit": lambda phase, device: Classification(device).training(phase),
}
"""By name; each is given what marks its phases, and the device."""
