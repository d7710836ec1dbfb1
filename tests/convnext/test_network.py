"""The network: its shape, what each part computes, and how exact it is."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from suites.convnext_ddpm.configurations import CONFIGURATIONS
from suites.convnext_ddpm.execution import Execution
from suites.convnext_ddpm.model import Network, seeded_network
from suites.convnext_ddpm.model.blocks import AttentionGate, ConvNeXtBlock, Downsample, Upsample
from suites.convnext_ddpm.operators import BlockParameters, TorchOperators
from suites.convnext_ddpm.shape import Shape
from tests.convnext.small import SHAPE, error, exact, images

HOW = Execution()
SHAPES = {
    "small": (SHAPE, 1, 8, 8),
    "a batch": (SHAPE, 3, 8, 8),
    "other rows than columns": (SHAPE, 1, 4, 12),
    "one level": (Shape(5, (6,)), 1, 5, 7),
    "odd channels": (Shape(6, (4, 33)), 2, 6, 10),
    "one channel": (Shape(4, (4, 5), channels=1), 1, 4, 4),
}
T = torch.tensor([3])


def drawn(module: nn.Module) -> nn.Module:
    """The module with random parameters, in float64."""
    torch.manual_seed(2)
    for parameter in module.double().parameters():
        nn.init.normal_(parameter, std=0.3)
    return module


def noise(*size: int) -> Tensor:
    return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


class TestShape:
    def test_the_reports_maps_are_64_32_16_and_8(self) -> None:
        maps: list[tuple[int, int]] = []
        with torch.device("meta"):
            network = Network(Shape())
            for blocks in network.down:
                blocks.get_submodule("1").register_forward_hook(
                    lambda _, __, result: maps.append((result.shape[1], result.shape[2]))
                )
            network(torch.empty(1, 3, 64, 64), torch.empty(1))
        assert maps == [(32, 64), (64, 32), (128, 16), (256, 8)]

    def test_parameters_and_work(self) -> None:
        """9.2 million parameters; of CIFAR's size a quarter of the work."""
        counted = []
        for size in (64, 32):
            with torch.device("meta"):
                network = Network(Shape(size))
                with FlopCounterMode(display=False) as counter:
                    network(torch.empty(1, 3, size, size), torch.empty(1))
            counted.append(counter.get_total_flops())
        assert sum(parameter.numel() for parameter in network.parameters()) == 9_222_630
        assert counted[0] == pytest.approx(4 * counted[1], rel=1e-3)

    def test_what_cannot_be_a_network_is_refused(self) -> None:
        refused: list[tuple[int, tuple[int, ...], str]] = [
            (60, (32, 64, 128, 256), "size 60: 4 levels need a multiple of 8"),
            (0, (32,), "size 0"),
            (8, (), "at least one"),
            (8, (4, 0), "each 1 or more"),
            (8, (5, 8), "width 5: the first must be even"),
            (8, (2, 8), "width 2: the first must be even and 4 or more"),
        ]
        for size, widths, says in refused:
            with pytest.raises(ValueError, match=says):
                Shape(size, widths)


class TestWeights:
    def test_are_the_same_on_every_machine(self) -> None:
        digest = hashlib.sha256()
        for name, parameter in seeded_network(SHAPE).named_parameters():
            digest.update(name.encode())
            digest.update(parameter.detach().numpy().tobytes())
        assert digest.hexdigest()[:16] == "652053d064edefef"

    def test_leave_torchs_own_generator_alone(self) -> None:
        before = torch.get_rng_state()
        seeded_network(SHAPE)
        assert torch.equal(torch.get_rng_state(), before)


class TestParts:
    """Against torch's plain functions, in float64."""

    def test_a_block_is_that_of_the_reports(self) -> None:
        block = drawn(ConvNeXtBlock(6, 5, 8))
        x, time = noise(2, 6, 7, 9), noise(2, 8)
        p = dict(block.named_parameters())

        def convolution(name: str, x: Tensor, padding: int, groups: int = 1) -> Tensor:
            return functional.conv2d(
                x, p[f"{name}.weight"], p[f"{name}.bias"], padding=padding, groups=groups
            )

        def norm(name: str, x: Tensor) -> Tensor:
            mean = x.mean((1, 2, 3), keepdim=True)
            variance = x.var((1, 2, 3), keepdim=True, correction=0)
            scale, shift = (p[f"{name}.{of}"][:, None, None] for of in ("weight", "bias"))
            return (x - mean) / (variance + 1e-5).sqrt() * scale + shift

        def gelu(x: Tensor) -> Tensor:
            return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))

        hidden = convolution("depthwise", x, 3, groups=6)
        hidden = hidden + (gelu(time) @ p["time.weight"].T + p["time.bias"])[:, :, None, None]
        hidden = gelu(convolution("conv1", norm("norm1", hidden), 1))
        expected = convolution("conv2", norm("norm2", hidden), 1) + convolution("residual", x, 0)
        torch.testing.assert_close(block(x, time, HOW), expected)

    def test_a_block_that_keeps_its_channels_adds_its_input_as_it_is(self) -> None:
        block = drawn(ConvNeXtBlock(6, 6, 8))
        with torch.no_grad():
            block.get_parameter("conv2.weight").zero_()
            block.get_parameter("conv2.bias").zero_()
        x = noise(1, 6, 3, 3)
        assert torch.equal(block(x, noise(1, 8), HOW), x)

    def test_operators_that_have_whole_blocks_are_given_them(self) -> None:
        class Blocks(TorchOperators):
            given: list[tuple[torch.Size, torch.Size, BlockParameters]]

            def block(self, x: Tensor, shift: Tensor | None, parameters: BlockParameters) -> Tensor:
                assert shift is not None
                self.given.append((x.shape, shift.shape, parameters))
                return x.new_zeros(x.shape[0], parameters.conv2_weight.shape[0], *x.shape[2:])

        operators = Blocks()
        operators.given = []
        network = seeded_network(SHAPE, how=Execution(operators))
        with torch.no_grad():
            network(images(SHAPE, 2), torch.tensor([1, 2]))
        blocks = [module for module in network.modules() if isinstance(module, ConvNeXtBlock)]
        assert len(operators.given) == len(blocks) == 11
        x, shift, parameters = operators.given[0]
        assert (x, shift) == ((2, 4, 8, 8), (2, 4))
        assert parameters.residual_weight is None
        assert [computed.residual_weight is not None for _, _, computed in operators.given].count(
            True
        ) == 2  # where a joined map has twice the channels

    def test_downsampling_makes_channels_of_pixels(self) -> None:
        half = drawn(Downsample(2, 8))
        with torch.no_grad():
            half.get_parameter("mix.weight").copy_(torch.eye(8)[:, :, None, None])
            half.get_parameter("mix.bias").zero_()
        x = noise(1, 2, 4, 6)
        result = half(x, HOW)
        assert result.shape == (1, 8, 2, 3)
        for channel in range(8):
            c, p, q = channel // 4, channel // 2 % 2, channel % 2
            assert torch.equal(result[:, channel], x[:, c, p::2, q::2])

    def test_upsampling_repeats_pixels_and_smooths(self) -> None:
        double = drawn(Upsample(3, 2))
        x = noise(1, 3, 2, 3)
        expected = functional.conv2d(
            x.repeat_interleave(2, 2).repeat_interleave(2, 3),
            double.get_parameter("smooth.weight"),
            double.get_parameter("smooth.bias"),
            padding=1,
        )
        torch.testing.assert_close(double(x, HOW), expected)

    def test_a_gate_weighs_pixels(self) -> None:
        gate = drawn(AttentionGate(4))
        skip, below = noise(2, 4, 3, 5), noise(2, 4, 3, 5)
        p = dict(gate.named_parameters())
        both = sum(
            functional.conv2d(x, p[f"{name}.weight"], p[f"{name}.bias"])
            for name, x in (("of_skip", skip), ("of_gate", below))
        )
        assert isinstance(both, Tensor)
        score = functional.conv2d(both.clamp(min=0), p["attention.weight"], p["attention.bias"])
        torch.testing.assert_close(gate(skip, below, HOW), skip / (1 + torch.exp(-score)))

    def test_the_time_is_sines_and_cosines_of_16_frequencies(self) -> None:
        network = Network(Shape())
        given: list[Tensor] = []
        network.time1.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
        for parameter in network.parameters():
            nn.init.zeros_(parameter)
        network.time(torch.tensor([0, 7]))
        frequencies = [10_000 ** (-i / 15) for i in range(16)]
        expected = [
            [f(t * frequency) for f in (math.sin, math.cos) for frequency in frequencies]
            for t in (0, 7)
        ]
        torch.testing.assert_close(given[0], torch.tensor(expected), rtol=0, atol=1e-5)


class TestJoining:
    @pytest.mark.parametrize("batch", [1, 3])
    def test_a_preallocated_map_holds_what_concatenation_copies(self, batch: int) -> None:
        network = seeded_network(SHAPE)
        x, t = images(SHAPE, batch), torch.arange(batch)
        with torch.no_grad():
            concatenated = network(x, t)
            network.joining = "preallocated"
            assert torch.equal(network(x, t), concatenated)

    def test_both_halves_are_written_where_they_belong(self) -> None:
        targets: list[Tensor | None] = []

        class Watched(TorchOperators):
            def gate(self, x: Tensor, attention: Tensor, *, out: Tensor | None = None) -> Tensor:
                targets.append(out)
                return super().gate(x, attention, out=out)

            def convolution(  # type: ignore[no-untyped-def]
                self, x: Tensor, weight: Tensor, bias: Tensor | None, *, out=None, **how
            ) -> Tensor:
                targets.append(out)
                return super().convolution(x, weight, bias, out=out, **how)

        network = seeded_network(SHAPE, how=Execution(Watched()), joining="preallocated")
        with torch.no_grad():
            network(images(SHAPE, 1), T)
        given = [target for target in targets if target is not None]
        assert [target.shape[1] for target in given] == [6, 6, 4, 4]
        for below, gated in (given[:2], given[2:]):
            assert below.untyped_storage().data_ptr() == gated.untyped_storage().data_ptr()
            assert (gated.storage_offset(), below.storage_offset()) == (0, gated[0].numel())

    def test_is_refused_where_gradients_are_wanted(self) -> None:
        network = seeded_network(SHAPE, joining="preallocated")
        with pytest.raises(ValueError, match="writes in place, which autograd cannot follow"):
            network(images(SHAPE, 1), T)


def test_gradients_reach_every_parameter() -> None:
    network = seeded_network(SHAPE)
    network(images(SHAPE, 1), T).square().mean().backward()
    without = [
        name
        for name, parameter in network.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    ]
    assert without == []


class Rounded(TorchOperators):
    """Convolutions of factors that are rounded as tensor cores have them."""

    def __init__(self, rounded: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._rounded = rounded

    def convolution(  # type: ignore[no-untyped-def]
        self, x: Tensor, weight: Tensor, bias: Tensor | None, **how
    ) -> Tensor:
        return super().convolution(self._rounded(x), self._rounded(weight), bias, **how)


def tf32(values: Tensor) -> Tensor:
    """Rounded to 10 bits of mantissa."""
    bits = values.detach().contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


class TestAgainstFloat64:
    @pytest.mark.parametrize("shape", SHAPES)
    def test_every_configuration_is_within_its_bound(self, shape: str) -> None:
        for name in CONFIGURATIONS:
            if not CONFIGURATIONS[name].unavailable("cpu"):
                self.is_within_its_bound(shape, name)

    @staticmethod
    def is_within_its_bound(shape: str, name: str) -> None:
        of, batch, rows, columns = SHAPES[shape]
        x, t = images(of, batch, rows, columns), torch.arange(batch)
        with CONFIGURATIONS[name].applied(seeded_network(of)) as network, torch.no_grad():
            answer = network(x, t)
        assert answer.shape == x.shape
        assert error(answer, exact(of, x, t)) < CONFIGURATIONS[name].bound

    @pytest.mark.parametrize(
        ("name", "rounded"),
        [("tf32", tf32), ("im2col_bf16", lambda values: values.bfloat16().float())],
    )
    @pytest.mark.parametrize("shape", SHAPES)
    def test_the_bounds_hold_for_rounded_factors_and_tell_them_from_float32(
        self, shape: str, name: str, rounded: Callable[[Tensor], Tensor]
    ) -> None:
        of, batch, rows, columns = SHAPES[shape]
        x, t = images(of, batch, rows, columns), torch.arange(batch)
        network = seeded_network(of, how=Execution(Rounded(rounded)))
        with torch.no_grad():
            computed = error(network(x, t), exact(of, x, t))
        assert CONFIGURATIONS["baseline"].bound < computed < CONFIGURATIONS[name].bound
