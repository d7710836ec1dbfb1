"""Loading weights: in the order of execution, and what waits for what."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from suites.convnext_ddpm import loading
from suites.convnext_ddpm.configurations import CONFIGURATIONS, LOADINGS
from suites.convnext_ddpm.crossing import Crossing
from suites.convnext_ddpm.loading import WeightLoading, execution_order
from suites.convnext_ddpm.model import Network, seeded_network
from suites.convnext_ddpm.step import SamplingStep
from tests.convnext.heard import noted_copies
from tests.convnext.small import SHAPE, TIMESTEPS, model

CPU = torch.device("cpu")
HERE = [name for name in LOADINGS if not LOADINGS[name].unavailable("cpu")]


def first_step() -> Tensor:
    """The image after the first time step of a model whose weights are there."""
    of = model()
    with CONFIGURATIONS["baseline"].sampling(of, CPU) as sampler:
        step = SamplingStep(sampler, of.first_image, TIMESTEPS - 1)
        step.reset()
        step()
        return sampler.image()


@pytest.mark.parametrize("name", HERE)
def test_after_it_the_first_step_is_done(name: str) -> None:
    of = model()
    with LOADINGS[name].loading(of, CPU) as weights:
        for _ in range(2):
            weights.reset()
            assert not any(parameter.any() for parameter in of.network.parameters())
            weights()
            assert torch.equal(weights.image(), first_step())
    expected = seeded_network(SHAPE).parameters()
    assert all(map(torch.equal, of.network.parameters(), expected))


def test_the_order_is_that_of_execution() -> None:
    network = seeded_network(SHAPE)
    executed: list[Network] = []
    for module in network.modules():
        if next(module.parameters(recurse=False), None) is not None:
            module.register_forward_pre_hook(lambda module, _: executed.append(module))
    with torch.no_grad():
        network(torch.zeros(SHAPE.images(1)), torch.tensor([0]))
    assert [network.get_submodule(name) for name in execution_order(network)] == executed
    parameters = {name.rpartition(".")[0] for name, _ in network.named_parameters()}
    assert {*execution_order(network)} == parameters


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return noted_copies(monkeypatch, loading)


class TestWaiting:
    def test_early_start_each_module_for_its_own_weights(self, noted: list[str]) -> None:
        of = model()
        for name in execution_order(of.network):
            module = of.network.get_submodule(name)
            module.register_forward_hook(lambda *_, name=name: noted.append(name))
        with LOADINGS["early_start"].loading(of, CPU) as weights:
            weights()
        order = execution_order(of.network)
        copied, computed = noted[: len(order)], noted[len(order) :]
        assert copied == [f"copied {number + 1}" for number in range(len(order))]
        assert computed == [
            event
            for number, name in enumerate(order)
            for event in (f"waits for {number + 1}", name)
        ]

    @pytest.mark.parametrize(
        ("name", "told"), [("load_async", ["copied 1", "waits for 1"]), ("load_sync", [])]
    )
    def test_others_for_all_or_nothing_but_the_copies(
        self, name: str, told: list[str], noted: list[str]
    ) -> None:
        with LOADINGS[name].loading(model(), CPU) as weights:
            weights()
        assert noted == told

    def test_modules_cannot_wait_for_copies_that_block(self) -> None:
        with pytest.raises(ValueError, match="if copies do not block"):
            WeightLoading(model(), Crossing(CPU, pinned=False, non_blocking=False), "for its own")


def test_each_runs_or_says_why_not() -> None:
    for name, loaded in LOADINGS.items():
        assert loaded.name == name
        assert loaded.summary
        assert loaded.unavailable("sm90") is None
        assert (loaded.unavailable("cpu") is None) == (name in HERE)
        assert loaded.non_blocking or loaded.waiting == "for all"
