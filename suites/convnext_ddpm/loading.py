"""Bringing the weights to the device, up to the end of the first time step."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from suites.convnext_ddpm.crossing import CopyStream, Crossing
from suites.convnext_ddpm.model import Network
from suites.convnext_ddpm.transfers import Model, OnDevice

Waiting = Literal["for all", "for its own"]
"""What a module computes after: the arrival of all weights, or of its own."""


class WeightLoading:
    """Uploads all weights, module by module in the order of execution, and takes one time step.

    The device's memory for them is there before, as in a program that loads another model's. The
    copies are enqueued on a stream of their own where the crossing is non-blocking.
    """

    def __init__(self, model: Model, crossing: Crossing, waiting: Waiting = "for all") -> None:
        """Raises ValueError for a module that is to wait for copies that block the host."""
        if waiting == "for its own" and not crossing.non_blocking:
            raise ValueError("a module can only wait for its own weights if copies do not block")
        self._model = model
        self._crossing = crossing
        self._copies = CopyStream(crossing.device)
        self._arrivals: dict[str, torch.cuda.Event | None] = {}
        pins = crossing.pinned and crossing.device.type == "cuda"
        self._host: dict[str, list[Tensor]] = {
            name: [
                parameter.detach().pin_memory() if pins else parameter.detach().clone()
                for parameter in _own(model.network, name)
            ]
            for name in execution_order(model.network)
        }
        self._sampler = OnDevice(model, crossing.device)
        if waiting == "for its own":
            for name in self._host:
                self._waits_for_its_own(name)
        self._waiting = waiting

    @torch.no_grad()
    def __call__(self) -> None:
        """Loads the weights and takes the step. May return before that is done."""
        if self._crossing.non_blocking:
            with self._copies.copying():
                self._upload()
            if self._waiting == "for all":
                self._copies.wait_for(self._copies.arrival())
        else:
            self._upload()
        self._sampler.step()

    @torch.no_grad()
    def reset(self) -> None:
        """Takes the weights away from the device, so that none is used that has not arrived."""
        torch._foreach_zero_(list(self._model.network.parameters()))
        self._sampler.start(self._model.first_image, self._model.diffusion.timesteps - 1)

    def image(self) -> Tensor:
        """The image after the step, on the host."""
        return self._sampler.image()

    def _upload(self) -> None:
        for name, weights in self._host.items():
            for parameter, weight in zip(_own(self._model.network, name), weights, strict=True):
                self._crossing.up(weight, out=parameter)
            if self._waiting == "for its own":
                self._arrivals[name] = self._copies.arrival()

    def _waits_for_its_own(self, name: str) -> None:
        def wait(*_: object) -> None:
            self._copies.wait_for(self._arrivals[name])

        self._model.network.get_submodule(name).register_forward_pre_hook(wait)


def execution_order(network: Network) -> tuple[str, ...]:
    """The names of the modules that have parameters, in the order in which they are executed.

    A network of the same shape is executed for it, without data.
    """
    with torch.device("meta"):
        shapes = Network(network.shape)
        image = torch.empty(network.shape.images(1))
        t = torch.empty(1)
    order: list[str] = []
    for name, module in shapes.named_modules():
        if _own(shapes, name):
            module.register_forward_pre_hook(lambda *_, name=name: order.append(name))
    with torch.no_grad():
        shapes(image, t)
    return tuple(order)


def _own(network: Network, name: str) -> list[Tensor]:
    """The parameters that a module has itself, not in modules within."""
    return list(network.get_submodule(name).parameters(recurse=False))
