"""The network is the published one, tensor by tensor, and loads its checkpoints strictly."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from pytest_gpuperf.errors import UsageFailure
from suites.meddpm.model import GaussianDiffusion3D, UNet3D, load_weights, med_ddpm
from suites.meddpm.model.layers import (
    GroupNorm32,
    ResidualBlock,
    SelfAttention,
    Upsample,
)

Weights = dict[str, Tensor]


def narrow_unet() -> UNet3D:
    """Two levels, with attention in the lower one."""
    return UNet3D(3, 1, model_channels=64, channel_multipliers=(0.5, 1), attention_factors=(2,))


def published_shapes() -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in a checkpoint's `ema` entry."""
    with torch.device("meta"):
        state = med_ddpm(128).state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def randomised(model: nn.Module) -> nn.Module:
    """Replaces the zero initialisation, behind which nothing would be seen."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


class TestPublishedLayout:
    def test_every_name_and_shape_is_the_published_one(self) -> None:
        with torch.device("meta"):
            network = UNet3D.published(128, 3, 1)
        layout = repr(sorted(published_shapes().items()))
        # Of a table that was written by hand of the released checkpoints.
        assert hashlib.sha256(layout.encode()).hexdigest()[:16] == "d0b6b2fa339827b9"
        # The published counts, of the network and of the table.
        assert len(network.state_dict()) == 246
        assert sum(parameter.numel() for parameter in network.parameters()) == 40_226_433

    @pytest.mark.parametrize(
        ("image_size", "widths", "block"),
        [
            (64, [64, 128, 192, 256], 5),
            (128, [64, 64, 128, 192, 256], 7),
            (256, [64, 64, 128, 128, 256, 256], 9),
            (512, [32, 64, 64, 128, 128, 256, 256], 11),
        ],
    )
    def test_levels_by_image_size_with_attention_at_16_voxels_and_in_the_middle(
        self, image_size: int, widths: list[int], block: int
    ) -> None:
        with torch.device("meta"):
            network = UNet3D.published(image_size, 3, 1)

        def residual(blocks: nn.Module) -> list[Any]:
            layers = (layer for layer in blocks.modules() if isinstance(layer, ResidualBlock))
            return [layer.in_layers[2].out_channels for layer in layers]

        assert residual(network.input_blocks) == widths
        assert residual(network.output_blocks) == [w for w in reversed(widths) for _ in range(2)]
        assert network.input_blocks[0].get_parameter("0.weight").shape[0] == widths[0]
        assert network.out[2].in_channels == widths[0]
        names = [name for name, m in network.named_modules() if isinstance(m, SelfAttention)]
        assert [name for name in names if name.startswith("input")] == [f"input_blocks.{block}.1"]
        assert "middle_block.1" in names
        assert len([name for name in names if name.startswith("output")]) == 2

    def test_other_image_sizes_are_refused(self) -> None:
        with pytest.raises(ValueError, match="image size 100; there are 64, 128, 256, 512"):
            UNet3D.published(100, 3, 1)

    def test_a_forward_pass_at_128_takes_5_54_teraflop(self) -> None:
        """And makes no tensor on the host, which could not meet those on the meta device."""
        with torch.device("meta"):
            diffusion = med_ddpm(128)
            image = torch.empty(1, 1, 128, 128, 128)
            mask = torch.empty(1, 2, 128, 128, 128)
        with FlopCounterMode(display=False) as counter:
            diffusion(image, mask)
        assert counter.get_total_flops() == pytest.approx(5.54e12, rel=1e-3)


class TestForward:
    def test_keeps_the_shape_and_starts_out_predicting_zero(self) -> None:
        predicted = narrow_unet()(torch.randn(2, 3, 8, 8, 8), torch.tensor([0, 249]))
        assert predicted.shape == (2, 1, 8, 8, 8)
        assert not predicted.any()

    def test_an_edge_that_the_levels_cannot_halve_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"\(8, 7, 8\) voxels .* multiple of 2"):
            narrow_unet()(torch.randn(1, 3, 8, 7, 8), torch.tensor([0]))

    def test_gradients_reach_every_parameter(self) -> None:
        network = randomised(narrow_unet())
        network(torch.randn(1, 3, 8, 8, 8), torch.tensor([17])).square().mean().backward()
        without = [
            name
            for name, parameter in network.named_parameters()
            if parameter.grad is None or not parameter.grad.any()
        ]
        assert without == []


def test_time_embedding_is_cosines_then_sinusoids_with_period_up_to_1000() -> None:
    with torch.device("meta"):
        network = UNet3D.published(128, 3, 1)
    assert network.frequencies.shape == (32,)
    small = narrow_unet()
    frequencies = [1000.0 ** (-i / 32) for i in range(32)]
    expected = [math.cos(123 * f) for f in frequencies] + [math.sin(123 * f) for f in frequencies]
    embedding = small.time_embedding(torch.tensor([123]))
    torch.testing.assert_close(embedding[0], torch.tensor(expected), rtol=0, atol=1e-4)
    assert "frequencies" not in small.state_dict()


class TestLayers:
    def test_group_norm_computes_in_float32(self) -> None:
        layer = GroupNorm32(64)
        x = (100 + torch.randn(1, 64, 4, 4, 4)).to(torch.bfloat16)
        expected = functional.group_norm(x.float(), 32, layer.weight, layer.bias)
        assert torch.equal(layer(x), expected.to(torch.bfloat16))

    def test_the_skip_is_a_convolution_where_channels_differ(self) -> None:
        block = ResidualBlock(64, 32, 256)
        x = torch.randn(1, 64, 4, 4, 4)
        assert torch.equal(block(x, torch.randn(1, 256)), block.skip_connection(x))

    def test_attention_is_softmax_over_all_voxels(self) -> None:
        attention = randomised(SelfAttention(32))
        assert isinstance(attention, SelfAttention)
        x = torch.randn(2, 32, 2, 3, 4)
        voxels = x.reshape(2, 32, 24)
        query, key, value = (
            part.transpose(1, 2) for part in attention.qkv(attention.norm(voxels)).split(32, dim=1)
        )
        attended = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)
        expected = x + attention.proj_out(attended).reshape(x.shape)
        torch.testing.assert_close(attention(x), expected)

    def test_attention_is_recomputed_in_backward_and_its_weights_are_not_kept(self) -> None:
        attention = randomised(SelfAttention(32))
        calls: list[int] = []
        attention.get_submodule("qkv").register_forward_hook(lambda *_: calls.append(1))
        kept: list[torch.Size] = []

        def keep(tensor: Tensor) -> Tensor:
            kept.append(tensor.shape)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            result = attention(torch.randn(1, 32, 2, 2, 2, requires_grad=True))
        assert len(calls) == 1
        assert (1, 8, 8) not in kept
        result.sum().backward()
        assert len(calls) == 2

    def test_upsampling_is_trilinear_without_aligned_corners(self) -> None:
        layer = Upsample(1)
        with torch.no_grad():
            layer.conv.weight.zero_()[0, 0, 1, 1, 1] = 1
            layer.conv.bias.zero_()  # type: ignore[union-attr]
        ramp = torch.tensor([0.0, 4.0]).reshape(1, 1, 2, 1, 1)
        assert layer(ramp)[0, 0, :, 0, 0].tolist() == [0.0, 1.0, 3.0, 4.0]


@pytest.fixture(scope="module")
def published_weights() -> Weights:
    generator = torch.Generator().manual_seed(1)
    return {
        name: 0.02 * torch.randn(shape, generator=generator)
        for name, shape in published_shapes().items()
    }


@pytest.fixture
def small() -> GaussianDiffusion3D:
    return GaussianDiffusion3D(narrow_unet())


def test_a_published_checkpoint_loads_strictly(published_weights: Weights, tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    torch.save({"step": 50_000, "ema": published_weights}, file)
    diffusion = med_ddpm(128)
    load_weights(diffusion, file)
    loaded = diffusion.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in published_weights.items())


Written = Callable[[Path, Weights], object]
"""Writes a file of the network's own weights, or of something else."""


def saved(content: object) -> Written:
    return lambda file, _: torch.save(content, file)


def of_bytes(content: bytes) -> Written:
    return lambda file, _: file.write_bytes(content)


def changed(change: Callable[[Weights], object]) -> Written:
    def write(file: Path, weights: Weights) -> None:
        change(weights)
        torch.save({"ema": weights}, file)

    return write


def with_betas(betas: Tensor) -> Written:
    return changed(lambda weights: weights.update(betas=betas))


ODD = r"1 without finite numbers of their kind: betas \("
REFUSED: dict[str, tuple[Written, str]] = {
    "one missing": (changed(lambda w: w.pop("betas")), "1 missing: betas"),
    "one too many": (changed(lambda w: w.update(extra=torch.ones(1))), "1 unexpected: extra"),
    "several missing": (
        changed(lambda w: [w.pop(name) for name in list(w) if name.startswith("posterior")]),
        "5 missing: posterior_log_variance_clipped, ",
    ),
    "shape": (
        with_betas(torch.ones(1000)),
        r"1 of another shape: betas is \(1000,\), not \(250,\)",
    ),
    "NaN": (with_betas(torch.full((250,), torch.nan)), f"{ODD}torch.float32, torch.strided"),
    "complex": (with_betas(torch.ones(250, dtype=torch.complex64)), f"{ODD}torch.complex64"),
    "integers": (with_betas(torch.ones(250, dtype=torch.int64)), f"{ODD}torch.int64"),
    "sparse": (with_betas(torch.ones(250).to_sparse()), f"{ODD}torch.float32, torch.sparse_coo"),
    "no ema": (saved({"model": {}}), r'the entry "ema" is missing \(found: model\)'),
    "a list": (saved([1, 2]), r'the entry "ema" is missing \(found: list\)'),
    "no state dict": (saved({"ema": [1]}), 'the entry "ema" is not a state dict'),
    "no tensor": (saved({"ema": {"betas": 1}}), 'the entry "ema" is not a state dict'),
    "code": (saved({"ema": Path("harmless")}), "cannot be read as weights"),
    "empty": (of_bytes(b""), "cannot be read as weights"),
    "text": (of_bytes(b"not a checkpoint"), "cannot be read as weights"),
    "cut off": (of_bytes(b"PK\x03\x04 cut off"), "cannot be read as weights"),
    "no file": (lambda *_: None, "there is no such file"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_checkpoint_that_does_not_fit_is_refused_by_file_and_tensor(
    kind: str, small: GaussianDiffusion3D, tmp_path: Path
) -> None:
    write, said = REFUSED[kind]
    file = tmp_path / "model.pt"
    before = {name: tensor.clone() for name, tensor in small.state_dict().items()}
    write(file, {name: torch.ones_like(tensor) for name, tensor in before.items()})
    with pytest.raises(UsageFailure, match=f"{re.escape(str(file))}: .*{said}"):
        load_weights(small, file)
    assert all(torch.equal(tensor, before[name]) for name, tensor in small.state_dict().items())


def test_a_packed_checkpoint_is_refused_before_it_is_unpacked(
    small: GaussianDiffusion3D, tmp_path: Path
) -> None:
    plain, file = tmp_path / "plain.pt", tmp_path / "model.pt"
    torch.save({"ema": {"betas": torch.zeros(1_000_000)}}, plain)
    with ZipFile(plain) as read, ZipFile(file, "w", ZIP_DEFLATED) as written:
        for entry in read.infolist():
            written.writestr(entry.filename, read.read(entry))
    said = r"cannot be read as weights: its entries have 4,\S+ bytes, and the file \d"
    with pytest.raises(UsageFailure, match=f"{re.escape(str(file))}: {said}"):
        load_weights(small, file)
