"""Operations written for fast kernels are the same functions, and so are their gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from suites.meddpm.model.layers import Upsample
from suites.meddpm.parts import PARTS
from suites.meddpm.parts.products import ALIGNMENT, _neighbours
from tests.meddpm import small

EDGES = (3, 5, 2)
LAYOUTS = [torch.contiguous_format, torch.channels_last_3d]
each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=["contiguous", "channels_last"])


def answer(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """The layer's result, and the gradients of its input and its weights."""
    x = x.detach().requires_grad_()
    result = layer(x)
    slope = torch.cos(torch.arange(result.numel(), dtype=result.dtype)).reshape(result.shape)
    return [result, *torch.autograd.grad(result, [x, *layer.parameters()], slope)]


def volume(channels: int, layout: torch.memory_format, images: int = 2) -> Tensor:
    torch.manual_seed(channels)
    made = torch.randn(images, channels, *EDGES, dtype=torch.float64)
    return made.contiguous(memory_format=layout)


def same(layer: nn.Module, part: str, x: Tensor) -> None:
    expected = answer(layer, x)
    kind = type(layer)
    with PARTS[part].applied(layer):
        assert type(layer) is not kind
        answered = answer(layer, x)
    for one, other in zip(answered, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


class TestPaddedChannels:
    @each_layout
    @pytest.mark.parametrize("bias", [True, False])
    def test_computes_what_the_convolution_computes(
        self, bias: bool, layout: torch.memory_format
    ) -> None:
        for inputs, outputs in ((3, 16), (1, 9), (16, 1), (9, 3), (2, 3)):
            for edge in (1, 3, 5):
                layer = nn.Conv3d(inputs, outputs, edge, padding=edge // 2, bias=bias).double()
                same(layer, "padded_channels", volume(inputs, layout))

    def test_others_stay_as_they_are(self) -> None:
        """Wide ones, and all that do not keep the volume's size or are no plain cube."""
        for layer in (
            nn.Conv3d(8, 8, 3, padding=1),
            nn.Conv3d(3, 8, 3, padding=1, stride=2),
            nn.Conv3d(3, 8, 3),
            nn.Conv3d(3, 8, 3, padding=2, dilation=2),
            nn.Conv3d(3, 9, 3, padding=1, groups=3),
            nn.Conv3d(3, 8, (3, 3, 1), padding=(1, 1, 0)),
            nn.Conv3d(3, 8, 3, padding=1, padding_mode="circular"),
            nn.Conv3d(3, 8, 3, padding="same"),
        ):
            with PARTS["padded_channels"].applied(layer):
                assert type(layer) is nn.Conv3d, layer

    def test_of_the_network_the_first_and_the_last_are_changed(self) -> None:
        network = small.network()
        with PARTS["padded_channels"].applied(network):
            changed = [name for name, m in network.named_modules() if "Few" in type(m).__name__]
        assert [name.rsplit("denoise_fn.")[-1] for name in changed] == ["input_blocks.0.0", "out.2"]

    @pytest.mark.parametrize(("channels", "edge"), [(1, 3), (3, 3), (8, 1)])
    def test_a_product_has_columns_that_tensor_cores_take(self, channels: int, edge: int) -> None:
        columns = _neighbours(volume(channels, torch.contiguous_format), edge)
        assert columns.shape[:-1] == (2, *EDGES)
        assert columns.shape[-1] % ALIGNMENT == 0
        assert columns.shape[-1] - channels * edge**3 < ALIGNMENT


class TestSeparableUpsampling:
    @each_layout
    def test_computes_what_interpolation_computes(self, layout: torch.memory_format) -> None:
        same(Upsample(4).double(), "separable_upsampling", volume(4, layout))

    def test_one_voxel_is_repeated(self) -> None:
        x = torch.randn(1, 4, 1, 1, 1, dtype=torch.float64)
        same(Upsample(4).double(), "separable_upsampling", x)

    @each_layout
    def test_the_layout_stays_and_half_precision_is_rounded_once(
        self, layout: torch.memory_format
    ) -> None:
        layer = Upsample(4)
        layer.conv = nn.Identity()  # type: ignore[assignment]
        x = volume(4, layout).bfloat16()
        with PARTS["separable_upsampling"].applied(layer):
            result = layer(x)
        assert result.is_contiguous(memory_format=layout)
        assert torch.equal(result, layer(x.double()).bfloat16())
