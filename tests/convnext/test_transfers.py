"""What crosses between host and device, when, and that it changes no image."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from suites.convnext_ddpm import transfers
from suites.convnext_ddpm.configurations import CONFIGURATIONS
from suites.convnext_ddpm.crossing import Crossing, HostActivations
from suites.convnext_ddpm.execution import Execution
from suites.convnext_ddpm.marks import COMPONENTS
from suites.convnext_ddpm.model import seeded_network
from suites.convnext_ddpm.operators import TorchOperators
from suites.convnext_ddpm.step import Chain, SamplingStep
from suites.convnext_ddpm.transfers import (
    CopiedActivations,
    OnDevice,
    Overlapping,
    Resident,
)
from tests.convnext.heard import Heard, noted_copies
from tests.convnext.small import SHAPE, TIMESTEPS, exact, images, model

CPU = torch.device("cpu")
HERE = [name for name in CONFIGURATIONS if not CONFIGURATIONS[name].unavailable("cpu")]


def sampled(name: str, batch: int = 1) -> Tensor:
    """The image of a whole sampling."""
    of = model(batch=batch)
    with CONFIGURATIONS[name].sampling(of, CPU) as sampler:
        return Chain(sampler, of)()


@pytest.mark.parametrize("batch", [1, 2])
def test_every_configuration_draws_the_same_image_bit_for_bit(batch: int) -> None:
    expected = sampled("baseline", batch)
    assert expected.shape == SHAPE.images(batch)
    assert 0 <= expected.min() <= expected.max() <= 1
    for name in HERE:
        assert torch.equal(sampled(name, batch), expected), name


@pytest.mark.parametrize("name", HERE)
def test_a_time_step_is_the_networks_answer_and_p_sample_and_reset_brings_it_back(
    name: str,
) -> None:
    """In float64, from the middle of the process."""
    of, t = model(), torch.tensor([3])
    x = images(SHAPE, 1)
    process = model().diffusion.double()
    foreseen = process.foreseen(x.double(), t, of.noise[3].double())
    expected = process.sampled(foreseen, t, exact(SHAPE, x, t))
    drawn = []
    with CONFIGURATIONS[name].sampling(of, CPU) as sampler:
        step = SamplingStep(sampler, x, 3)
        for _ in range(2):
            step.reset()
            step()
            drawn.append(sampler.image().clone())
            step()  # and on, so that there is something to put back
    torch.testing.assert_close(drawn[0].double(), expected, rtol=0, atol=1e-4)
    assert torch.equal(*drawn)
    assert torch.equal(x, images(SHAPE, 1))


@dataclass(frozen=True)
class Counted(Crossing):
    """Counts what crosses."""

    crossed: Counter[str] = field(default_factory=Counter)

    def up(self, tensor: Tensor, out: Tensor | None = None) -> Tensor:
        self.crossed["up"] += 1
        self.crossed["bytes up"] += tensor.nbytes
        return super().up(tensor, out)

    def down(self, tensor: Tensor, out: Tensor | None = None) -> Tensor:
        self.crossed["down"] += 1
        self.crossed["bytes down"] += tensor.nbytes
        return super().down(tensor, out)

    def wait(self) -> None:
        self.crossed["waits"] += 1
        super().wait()


def crossed(kind: type[CopiedActivations | Resident], steps: int = 1) -> Counter[str]:
    counted = Counted(CPU, pinned=True, non_blocking=True)
    sampler = kind(model(), counted)
    sampler.start(images(SHAPE, 1), TIMESTEPS - 1)
    for _ in range(steps):
        sampler.step()
    return counted.crossed


class TestWhatCrosses:
    @pytest.mark.parametrize("kind", [Resident, Overlapping])
    def test_resident_an_image_each_way_per_time_step(self, kind: type[Resident]) -> None:
        image = images(SHAPE, 1).nbytes
        assert crossed(kind, steps=3) == {
            "up": 3,
            "bytes up": 3 * image,
            "down": 3,
            "bytes down": 3 * image,
            "waits": 3,
        }

    def test_copied_every_operators_maps_both_ways(self) -> None:
        heard = Heard()
        network = seeded_network(SHAPE, how=Execution(TorchOperators(), heard.mark))
        with torch.no_grad():
            network(images(SHAPE, 1), torch.tensor([1]))
        operators = [name for name in heard.names if name != "time_embedding"]
        counts = crossed(CopiedActivations)
        assert counts["down"] == len(operators)
        assert counts["up"] > counts["down"]  # residuals and skips go up beside what they join
        assert counts["waits"] == 1
        assert counts["bytes up"] > 50 * images(SHAPE, 1).nbytes

    def test_on_the_device_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not even the time step, which a value read back would wait for."""
        sampler = OnDevice(model(), CPU)
        sampler.start(images(SHAPE, 1), 3)

        def refused(*_: object) -> None:
            raise AssertionError("a value was read")

        for reading in ("item", "cpu", "tolist", "__bool__", "__int__", "__float__"):
            monkeypatch.setattr(Tensor, reading, refused)
        sampler.step()


def test_the_time_is_embedded_while_the_image_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    of, noted = model(), noted_copies(monkeypatch, transfers)

    class Noted(Crossing):
        def up(self, tensor: Tensor, out: Tensor | None = None) -> Tensor:
            noted.append("image up")
            return super().up(tensor, out)

        def down(self, tensor: Tensor, out: Tensor | None = None) -> Tensor:
            noted.append("noise down")
            return super().down(tensor, out)

        def wait(self) -> None:
            noted.append("host waits")

    of.network.time2.register_forward_hook(lambda *_: noted.append("time"))
    of.network.first.register_forward_pre_hook(lambda *_: noted.append("network"))
    Overlapping(of, Noted(CPU, pinned=True, non_blocking=True)).step()
    assert noted == [
        *("image up", "copied 1", "time", "waits for 1", "network", "noise down", "host waits")
    ]


def test_what_is_computed_into_a_map_of_the_host_is_written_there() -> None:
    operators = HostActivations(TorchOperators(), Crossing(CPU, pinned=False, non_blocking=False))
    x, attention = images(SHAPE, 2), images(SHAPE, 2)[:, :1]
    joined = torch.zeros(2, 6, 8, 8)
    result = operators.gate(x, attention, out=joined[:, 3:])
    assert result.data_ptr() == joined[:, 3:].data_ptr()
    assert torch.equal(joined[:, 3:], x * torch.sigmoid(attention))
    assert not joined[:, :3].any()


def test_all_that_is_computed_is_marked() -> None:
    heard = Heard()
    of = model()
    of.diffusion.mark = heard.mark
    with CONFIGURATIONS["baseline"].sampling(of, CPU, heard.mark) as sampler:
        Chain(sampler, of)()
    unheard = {*COMPONENTS} - {*heard.names}
    assert unheard == {"block", "normalize"}  # of fused blocks, and of training
    assert {*heard.names} <= {*COMPONENTS}
    assert {("conv2d", "gelu"), ("conv2d", "relu"), ("linear", "gelu")} <= heard.nested


def test_a_compiled_network_is_not_marked() -> None:
    network = seeded_network(SHAPE)
    heard = Heard()
    network.compile = lambda: None  # type: ignore[method-assign, misc]
    with CONFIGURATIONS["compile"].applied(network, heard.mark), torch.no_grad():
        network(images(SHAPE, 1), torch.tensor([0]))
    assert heard.names == []


def test_each_runs_or_says_why_not() -> None:
    for name, configuration in CONFIGURATIONS.items():
        assert configuration.name == name
        assert configuration.summary
        for arch in ("cpu", "sm70", "sm80", "sm90", "sm100"):
            reason = configuration.unavailable(arch)
            assert reason is None or re.fullmatch(r"\S.{10,}[^.]", reason)
            runs = name in HERE if arch == "cpu" else (name, arch) != ("im2col_bf16", "sm70")
            assert (reason is None) == runs, (name, arch)
