"""Parts that do several operations in one kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

from torch import Tensor, nn
from torch.nn import functional

from pytest_gpuperf.catalogue import architectures
from suites.meddpm.model.layers import GroupNorm32, ResidualBlock, SelfAttention
from suites.meddpm.norm import fused
from suites.meddpm.parts.base import Part, classes_changed


class FusedNorm(Part):
    """GroupNorm, the SiLU after it and the time embedding before it, in whatever layout comes.

    torch's own takes contiguous volumes only, so that in channels_last each is copied there and
    back, and gives a group to one block of threads.
    """

    name = "fused_norm"
    summary = "GroupNorm, SiLU and time embedding as one Triton operator, in either layout."
    least_arch = "sm80"  # Triton's
    triton = True

    def unavailable(self, arch: str) -> str | None:
        """Why it cannot run on `arch`: on a CPU only in Triton's interpreter."""
        reason = super().unavailable(arch)
        if reason is None and arch == architectures.CPU and not fused.interpreted():
            return f"{self.name}: needs a GPU"
        return reason

    def applied(self, model: nn.Module) -> AbstractContextManager[None]:
        """The norms of `model`, and what they are fused with, get classes that call it."""
        return classes_changed(_fused(model))


def _fused(model: nn.Module) -> Iterator[tuple[nn.Module, type[nn.Module]]]:
    for module in model.modules():
        if type(module) is GroupNorm32:
            yield module, _FusedGroupNorm32
        elif type(module) is ResidualBlock:
            yield module, _FusedResidualBlock
        elif type(module) is nn.Sequential and [type(m) for m in module][:2] == [
            GroupNorm32,
            nn.SiLU,
        ]:
            yield module, _FusedSequential


class _FusedGroupNorm32(GroupNorm32):
    def forward(self, x: Tensor) -> Tensor:
        return self.fused(x)

    def fused(self, x: Tensor, *, silu: bool = False, shift: Tensor | None = None) -> Tensor:
        return fused.group_norm(
            x, self.weight, self.bias, self.num_groups, self.eps, silu=silu, shift=shift
        )


class _FusedSequential(nn.Sequential):
    """Begins with GroupNorm and SiLU."""

    def forward(self, x: Tensor, shift: Tensor | None = None) -> Tensor:
        norm, _, *others = self
        assert isinstance(norm, _FusedGroupNorm32)
        x = norm.fused(x, silu=True, shift=shift)
        for layer in others:
            x = layer(x)
        return x


class _FusedResidualBlock(ResidualBlock):
    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        hidden = self.out_layers(self.in_layers(x), self.emb_layers(embedding))
        result: Tensor = self.skip_connection(x) + hidden
        return result


class ScaledDotProductAttention(Part):
    """torch's fused attention: the weights of N x N voxels are never in memory."""

    name = "sdpa"
    summary = "Attention by torch's scaled_dot_product_attention."

    def applied(self, model: nn.Module) -> AbstractContextManager[None]:
        """The attentions of `model` get a class that calls it."""
        return classes_changed(
            (module, _FusedSelfAttention)
            for module in model.modules()
            if type(module) is SelfAttention
        )


class _FusedSelfAttention(SelfAttention):
    def forward(self, x: Tensor) -> Tensor:
        voxels = x.flatten(2)
        # Voxels before channels, as the kernels take them.
        normed = self.norm(voxels).transpose(1, 2)
        projected = functional.linear(normed, self.qkv.weight[..., 0], self.qkv.bias)
        query, key, value = (part[:, None] for part in projected.chunk(3, dim=-1))
        attended = functional.scaled_dot_product_attention(query, key, value)[:, 0]
        update = functional.linear(attended, self.proj_out.weight[..., 0], self.proj_out.bias)
        result: Tensor = voxels + update.transpose(1, 2)
        return result.reshape(x.shape)
