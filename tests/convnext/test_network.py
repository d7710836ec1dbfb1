"""The network: its shape, what each part computes, and how exact it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from suites.convnext_ddpm.configurations import CONFIGURATIONS
from suites.convnext_ddpm.execution import Execution
from suites.convnext_ddpm.model import Network, seeded_network
from suites.convnext_ddpm.operators import BlockParameters, TorchOperators
from suites.convnext_ddpm.shape import Shape
from tests.convnext.kernel_cases import Whole
from tests.convnext.small import SHAPE, error, exact, images

SHAPES = {
    "small": (SHAPE, 1, 8, 8),
    "a batch": (SHAPE, 3, 8, 8),
    "other rows than columns": (SHAPE, 1, 4, 12),
    "one level": (Shape(5, (6,)), 1, 5, 7),
    "odd channels": (Shape(6, (4, 33)), 2, 6, 10),
    "one channel": (Shape(4, (4, 5), channels=1), 1, 4, 4),
}
T = torch.tensor([3])


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


def test_weights_are_the_same_on_every_machine_and_leave_torchs_own_generator_alone() -> None:
    before = torch.get_rng_state()
    digest = hashlib.sha256()
    for name, parameter in seeded_network(SHAPE).named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().numpy().tobytes())
    assert digest.hexdigest()[:16] == "652053d064edefef"
    assert torch.equal(torch.get_rng_state(), before)


def test_the_answer_is_as_it_was_when_each_part_was_compared_with_its_formula() -> None:
    """In float64: of blocks, up- and downsampling, gates, and the embedding of the time."""
    answer = exact(SHAPE, images(SHAPE, 2), torch.tensor([1, 4])).flatten()[::37]
    recorded = [
        *(0.4112076, 0.8106962, 0.2740112, 1.5527107, 0.5296756, 0.7553284),
        *(0.0834929, 0.2034139, -0.0034962, -0.190511, -0.0076359),
    ]
    torch.testing.assert_close(answer.tolist(), recorded, rtol=1e-5, atol=1e-6)


def test_operators_that_have_whole_blocks_are_given_them() -> None:
    given: list[tuple[torch.Size, bool]] = []

    class Blocks(Whole):
        def block(self, x: Tensor, shift: Tensor | None, parameters: BlockParameters) -> Tensor:
            given.append((x.shape, parameters.residual_weight is not None))
            return super().block(x, shift, parameters)

    x, t = images(SHAPE, 2), torch.tensor([1, 2])
    with torch.no_grad():
        answer = seeded_network(SHAPE, how=Execution(Blocks()))(x, t)
        torch.testing.assert_close(answer, seeded_network(SHAPE)(x, t))
    assert given[0] == ((2, 4, 8, 8), False)
    # Where a joined map has twice the channels the input is no residual as it is.
    assert [residual for _, residual in given].count(True) == 2
    assert len(given) == 11


class TestJoining:
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
        of, batch, rows, columns = SHAPES[shape]
        x, t = images(of, batch, rows, columns), torch.arange(batch)
        wanted = exact(of, x, t)
        for name, configuration in CONFIGURATIONS.items():
            if not configuration.unavailable("cpu"):
                with configuration.applied(seeded_network(of)) as network, torch.no_grad():
                    answer = network(x, t)
                assert answer.shape == x.shape
                assert error(answer, wanted) < configuration.bound, name

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
