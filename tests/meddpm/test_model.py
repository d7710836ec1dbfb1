"""The network is the published one, tensor by tensor, and loads its checkpoints strictly."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from pytest_gpuperf.errors import UsageFailure
from suites.meddpm.model import GaussianDiffusion3D, UNet3D, load_weights, med_ddpm
from suites.meddpm.model.layers import GroupNorm32, SelfAttention
from tests.meddpm import published

Weights = dict[str, Tensor]


def narrow_unet() -> UNet3D:
    """Two levels, with attention in the lower one."""
    return UNet3D(3, 1, model_channels=64, channel_multipliers=(0.5, 1), attention_factors=(2,))


class TestPublished:
    """Against what the published code answered."""

    RECORDED = json.loads(published.FILE.read_text(encoding="utf-8"))

    @pytest.mark.parametrize("size", published.SIZES)
    def test_every_tensor_of_a_checkpoint_has_its_name_and_its_shape(self, size: int) -> None:
        with torch.device("meta"):
            assert published.layout(med_ddpm(size)) == self.RECORDED["layouts"][str(size)]

    def test_the_answers_are_the_same(self) -> None:
        """Of network, loss, backward pass and sampling step, each volume at its own time step."""
        diffusion = GaussianDiffusion3D(published.waved(narrow_unet()))
        image, mask, noise = published.volumes()
        loss = diffusion.loss_with(image, mask, published.TIMES, noise)
        answered = published.answers(diffusion, loss)
        for name in ("predicted", "loss", "sampled"):
            # Processors round sums otherwise: by 1.4e-5 where the largest element is 2.2.
            expected = torch.tensor(self.RECORDED[name])
            apart = (torch.tensor(answered[name]) - expected).abs().max()
            assert apart <= 1e-4 * expected.abs().max(), name
        gradients = self.RECORDED["gradients"]
        assert answered["gradients"] == pytest.approx(gradients, rel=1e-2, abs=1e-6)
        coefficients = self.RECORDED["coefficients"]
        assert answered["coefficients"].keys() == coefficients.keys()
        for name, values in coefficients.items():
            assert answered["coefficients"][name] == pytest.approx(values, rel=1e-5), name

    def test_a_forward_pass_at_128_takes_5_54_teraflop_of_40_million_weights(self) -> None:
        """And makes no tensor on the host, which could not meet those on the meta device."""
        with torch.device("meta"):
            diffusion = med_ddpm(128)
            image = torch.empty(1, 1, 128, 128, 128)
            mask = torch.empty(1, 2, 128, 128, 128)
        with FlopCounterMode(display=False) as counter:
            diffusion(image, mask)
        assert counter.get_total_flops() == pytest.approx(5.54e12, rel=1e-3)
        assert sum(weight.numel() for weight in diffusion.parameters()) == 40_226_433


def test_it_starts_out_predicting_zero() -> None:
    predicted = narrow_unet()(torch.randn(2, 3, 8, 8, 8), torch.tensor([0, 249]))
    assert predicted.shape == (2, 1, 8, 8, 8)
    assert not predicted.any()


def test_what_the_network_is_not_made_for_is_refused() -> None:
    with pytest.raises(ValueError, match="image size 100; there are 64, 128, 256, 512"):
        UNet3D.published(100, 3, 1)
    with pytest.raises(ValueError, match=r"\(8, 7, 8\) voxels .* multiple of 2"):
        narrow_unet()(torch.randn(1, 3, 8, 7, 8), torch.tensor([0]))


def test_group_norm_computes_in_float32() -> None:
    layer = GroupNorm32(64)
    x = (100 + torch.randn(1, 64, 4, 4, 4)).to(torch.bfloat16)
    expected = functional.group_norm(x.float(), 32, layer.weight, layer.bias)
    assert torch.equal(layer(x), expected.to(torch.bfloat16))


def test_attention_is_recomputed_in_backward_and_its_weights_are_not_kept() -> None:
    attention = published.waved(SelfAttention(32))
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


@pytest.fixture
def small() -> GaussianDiffusion3D:
    return GaussianDiffusion3D(narrow_unet())


def test_a_checkpoint_loads_strictly(small: GaussianDiffusion3D, tmp_path: Path) -> None:
    weights = {name: torch.randn(tensor.shape) for name, tensor in small.state_dict().items()}
    torch.save({"step": 50_000, "ema": weights}, tmp_path / "model.pt")
    load_weights(small, tmp_path / "model.pt")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in small.state_dict().items())


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
    "shape": (with_betas(torch.ones(9)), r"1 of another shape: betas is \(9,\), not \(250,\)"),
    "NaN": (with_betas(torch.full((250,), torch.nan)), f"{ODD}torch.float32, torch.strided"),
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
