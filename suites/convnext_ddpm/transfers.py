"""Samplers that differ in what crosses between the host and the device, and when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from suites.convnext_ddpm.crossing import CopyStream, Crossing, HostActivations
from suites.convnext_ddpm.diffusion import Diffusion
from suites.convnext_ddpm.model import Network

_WARM_UP = 3
"""Executions before a capture: what is loaded or chosen at first use cannot be captured."""


@dataclass(frozen=True)
class Model:
    """What images are sampled from. A sampler takes it over, and moves it where it needs it."""

    network: Network
    diffusion: Diffusion
    noise: Tensor
    """All the noise of a sampling, see `diffusion.seeded_noise`."""

    @property
    def first_image(self) -> Tensor:
        """The noise [N, C, H, W] that sampling begins with, on the host."""
        return self.noise[-1]


class Sampler(Protocol):
    """Takes an image from time step to time step, down to 0."""

    def start(self, image: Tensor, t: int) -> None:
        """Has `image` [N, C, H, W] of the host be what is there at time step `t`."""
        ...

    def step(self) -> None:
        """One step of p_sample, to the time step before. May return before it is done."""
        ...

    def image(self) -> Tensor:
        """The image, on the host, when all steps are done."""
        ...


class _HostSampler(ABC):
    """Keeps the image on the host, where p_sample is computed too."""

    def __init__(self, model: Model) -> None:
        self._network = model.network
        self._diffusion = model.diffusion
        self._noise = model.noise
        self._times = torch.arange(model.diffusion.timesteps)[:, None].repeat(
            1, model.noise.shape[1]
        )
        self._image = model.first_image
        self._index = model.diffusion.timesteps - 1

    def start(self, image: Tensor, t: int) -> None:
        """See Sampler."""
        self._image, self._index = image, t

    @torch.no_grad()
    def step(self) -> None:
        """See Sampler."""
        t = self._times[self._index]
        noise = self._predicted(self._image)
        foreseen = self._diffusion.foreseen(self._image, t, self._noise[self._index])
        self._image = self._diffusion.sampled(foreseen, t, noise)
        self._index -= 1

    def image(self) -> Tensor:
        """See Sampler."""
        return self._image

    @abstractmethod
    def _predicted(self, image: Tensor) -> Tensor:
        """The noise in `image` at the present time step, on the host, when it is there."""


class CopiedActivations(_HostSampler):
    """Weights are on the device; every operator's activations go there and come back."""

    def __init__(self, model: Model, crossing: Crossing) -> None:
        super().__init__(model)
        self._crossing = crossing
        how = model.network.how
        operators = HostActivations(how.operators, crossing)
        model.network.how = replace(how, operators=operators, concatenate=operators.concatenate)
        for parameter in model.network.parameters():
            parameter.data = parameter.data.to(crossing.device)

    def _predicted(self, image: Tensor) -> Tensor:
        noise: Tensor = self._network(image, self._times[self._index])
        self._crossing.wait()
        return noise


class Resident(_HostSampler):
    """Weights and activations stay on the device; an image crosses each way per time step."""

    def __init__(self, model: Model, crossing: Crossing) -> None:
        super().__init__(model)
        self._crossing = crossing
        self._network.to(crossing.device)
        self._device_times = self._times.to(crossing.device)

    def _predicted(self, image: Tensor) -> Tensor:
        noise = self._network(self._crossing.up(image), self._device_times[self._index])
        return self._down(noise)

    def _down(self, noise: Tensor) -> Tensor:
        predicted = self._crossing.down(noise)
        self._crossing.wait()
        return predicted


class Overlapping(Resident):
    """While the image moves, the device embeds the time; the host does its part of p_sample."""

    def __init__(self, model: Model, crossing: Crossing) -> None:
        super().__init__(model, crossing)
        self._copies = CopyStream(crossing.device)
        self._moved = torch.empty_like(model.first_image, device=crossing.device)

    @torch.no_grad()
    def step(self) -> None:
        """See Sampler."""
        t = self._times[self._index]
        with self._copies.copying():
            self._crossing.up(self._image, out=self._moved)
        arrival = self._copies.arrival()
        time = self._network.time(self._device_times[self._index])
        self._copies.wait_for(arrival)
        noise = self._crossing.down(self._network.noise(self._moved, time))
        foreseen = self._diffusion.foreseen(self._image, t, self._noise[self._index])
        self._crossing.wait()
        self._image = self._diffusion.sampled(foreseen, t, noise)
        self._index -= 1


class GraphedNetwork(Resident):
    """As resident, with the network as a CUDA graph: one launch per time step."""

    @torch.no_grad()
    def __init__(self, model: Model, crossing: Crossing) -> None:
        super().__init__(model, crossing)
        self._given = torch.empty_like(model.first_image, device=crossing.device)
        self._time = torch.zeros_like(self._device_times[0])
        self._answer = torch.empty_like(self._given)
        self._given.zero_()
        self._graph = _captured(self._compute)

    def _compute(self) -> None:
        self._answer.copy_(self._network(self._given, self._time))

    def _predicted(self, image: Tensor) -> Tensor:
        self._crossing.up(image, out=self._given)
        self._time.copy_(self._device_times[self._index])
        self._graph.replay()
        return self._down(self._answer)


class OnDevice:
    """Everything is on the device, p_sample and its noise too. Nothing crosses while it samples."""

    def __init__(self, model: Model, device: torch.device) -> None:
        self._network = model.network.to(device)
        self._diffusion = model.diffusion.to(device)
        self._noise = model.noise.to(device)
        self._image = model.first_image.to(device, copy=True)
        self._t = torch.full((model.noise.shape[1],), self._diffusion.timesteps - 1, device=device)

    def start(self, image: Tensor, t: int) -> None:
        """See Sampler."""
        self._image.copy_(image)
        self._t.fill_(t)

    @torch.no_grad()
    def step(self) -> None:
        """See Sampler."""
        noise = self._network(self._image, self._t)
        drawn = self._noise.index_select(0, self._t[:1])[0]
        foreseen = self._diffusion.foreseen(self._image, self._t, drawn)
        self._image.copy_(self._diffusion.sampled(foreseen, self._t, noise))
        self._t.sub_(1)

    def image(self) -> Tensor:
        """See Sampler."""
        return self._image.to("cpu", copy=True)


class GraphedStep(OnDevice):
    """The whole time step as a CUDA graph."""

    def __init__(self, model: Model, device: torch.device) -> None:
        super().__init__(model, device)
        last = self._diffusion.timesteps - 1
        self._graph = _captured(super().step, before=lambda: self._t.fill_(last))
        self.start(model.first_image, last)

    def step(self) -> None:
        """See Sampler."""
        self._graph.replay()


def _captured(
    work: Callable[[], object], before: Callable[[], object] = lambda: None
) -> torch.cuda.CUDAGraph:
    """`work` as a CUDA graph; it is executed some times, each after `before`."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            before()
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph
