"""The ConvNeXt DDPM on a real GPU: how exact, the same image for all, weights that have arrived."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pytest_gpuperf.measure.collector import Phases
from suites.convnext_ddpm.configurations import CONFIGURATIONS, FLOAT32, LOADINGS, Configuration
from suites.convnext_ddpm.model import seeded_network
from suites.convnext_ddpm.shape import Shape
from suites.convnext_ddpm.step import Chain, TrainingStep, seeded_images, seeded_model
from tests.convnext.small import error, exact, images

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # of the compiler, about itself
]

SHAPES = {
    "the reports'": (Shape(64), 1),
    "CIFAR's": (Shape(32), 1),
    "a batch": (Shape(32, (32, 64)), 3),
    "no multiples of 32": (Shape(20, (10, 33, 50)), 2),
}


@pytest.fixture
def cuda() -> Iterator[torch.device]:
    yield torch.device("cuda")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def configured(name: str) -> Configuration:
    """The configuration, or a skip where this GPU has none of it."""
    configuration = CONFIGURATIONS[name]
    reason = configuration.unavailable("sm{}{}".format(*torch.cuda.get_device_capability()))
    if reason:
        pytest.skip(reason)
    return configuration


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_answer_is_within_the_configurations_bound(
    shape: str, name: str, cuda: torch.device
) -> None:
    configuration = configured(name)
    of, batch = SHAPES[shape]
    x, t = images(of, batch), torch.arange(batch)
    with configuration.applied(seeded_network(of).to(cuda)) as network, torch.no_grad():
        answer = network(x.to(cuda), t.to(cuda))
    assert error(answer.cpu(), exact(of, x, t)) < configuration.bound


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_two_time_steps_are_those_of_a_cpu_in_float64(name: str, cuda: torch.device) -> None:
    """Begun twice: what the first sampling left behind is no part of the second."""
    configuration = configured(name)
    if configuration.bound > FLOAT32:
        pytest.skip("its products are rounded: the first steps' clean images show little else")
    of, process = (seeded_model(Shape(32, (10, 32, 50)), 1, 10) for _ in range(2))
    diffusion, network = process.diffusion.double(), process.network.double()
    image = of.first_image.double()
    for step in (9, 8):
        t = torch.tensor([step])
        foreseen = diffusion.foreseen(image, t, of.noise[step].double())
        with torch.no_grad():
            image = diffusion.sampled(foreseen, t, network(image, t))
    first = of.first_image
    with configuration.sampling(of, cuda) as sampler:
        for _ in range(2):
            sampler.start(first, 9)
            sampler.step()
            sampler.step()
            # The first steps' clean images hold an error of the answer many times as large.
            sampled = sampler.image().double()
            torch.testing.assert_close(sampled, image, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", ["copy_sync", "copy_async", "resident", "overlap", "graph"])
def test_transfers_change_no_image(name: str, cuda: torch.device) -> None:
    """All time steps, with the same kernels in the same order."""

    def sampled(name: str) -> torch.Tensor:
        of = seeded_model(Shape(32, (32, 64)), 1, 20)
        with CONFIGURATIONS[name].sampling(of, cuda) as sampler:
            return Chain(sampler, of)()

    torch.testing.assert_close(sampled(name), sampled("resident_pageable"), rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", LOADINGS)
def test_the_first_step_uses_no_weights_that_have_not_arrived(
    name: str, cuda: torch.device
) -> None:
    expected = seeded_model(Shape(64), 1, 10)
    with CONFIGURATIONS["baseline"].sampling(expected, cuda) as sampler:
        sampler.step()
        image = sampler.image()
    of = seeded_model(Shape(64), 1, 10)
    with LOADINGS[name].loading(of, cuda) as weights:
        for _ in range(10):
            weights.reset()
            torch.cuda.synchronize()
            weights()
            torch.testing.assert_close(weights.image(), image, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["baseline", "tf32", "compile"])
def test_reset_brings_back_the_loss(name: str, cuda: torch.device) -> None:
    shape = Shape(32, (32, 64))
    of = seeded_model(shape, 2)
    torch.manual_seed(0)
    with CONFIGURATIONS[name].applied(of.network):
        step = TrainingStep(of.network, of.diffusion, seeded_images(shape, 2), Phases().mark, cuda)
        losses = []
        for _ in range(2):
            step.reset()
            losses.append([float(step()) for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


def test_nothing_waits_for_the_device_between_graphs(cuda: torch.device) -> None:
    of = seeded_model(Shape(32, (32, 64)), 1, 10)
    with CONFIGURATIONS["resident_graph"].sampling(of, cuda) as sampler:
        sampler.start(of.first_image, 9)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(10):
                sampler.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert sampler.image().isfinite().all()
