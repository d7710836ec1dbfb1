"""Faults that are put into the training step, which the quality gates must catch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from suites.meddpm.model.layers import ResidualBlock
from suites.meddpm.norm import fused
from suites.meddpm.parts import fusion


def wrong_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """1e-6 in the norms, which is other frameworks' default, in place of torch's 1e-5."""

    def with_a_tenth(function: Any) -> Any:
        def other(x: Tensor, *arguments: Any, **keywords: Any) -> Any:
            *others, eps = arguments
            return function(x, *others, eps / 10, **keywords)

        return other

    monkeypatch.setattr(functional, "group_norm", with_a_tenth(functional.group_norm))
    monkeypatch.setattr(fused, "group_norm", with_a_tenth(fused.group_norm))


def bf16_accumulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that is summed up in bfloat16, row by row."""

    def accumulated(prediction: Tensor, noise: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.bfloat16, device=noise.device)
        for row in (prediction - noise).abs().flatten(0, -2).bfloat16():
            total = total + row.sum()
        return (total / noise.numel()).float()

    monkeypatch.setattr(functional, "l1_loss", accumulated)


def dropped_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A residual block without what it is named after."""

    def forward(self: ResidualBlock, x: Tensor, embedding: Tensor) -> Tensor:
        hidden = self.in_layers(x)
        hidden = hidden + self.emb_layers(embedding).to(hidden.dtype)[..., None, None, None]
        result: Tensor = self.out_layers(hidden)
        return result

    def fused_forward(self: ResidualBlock, x: Tensor, embedding: Tensor) -> Tensor:
        result: Tensor = self.out_layers(self.in_layers(x), self.emb_layers(embedding))
        return result

    monkeypatch.setattr(ResidualBlock, "forward", forward)
    monkeypatch.setattr(fusion._FusedResidualBlock, "forward", fused_forward)


def stale_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of the first step in every step."""
    original = torch.optim.Adam.step

    def step(adam: torch.optim.Adam) -> None:
        for group in adam.param_groups:
            group["lr"] = 0.0
        original(adam)

    monkeypatch.setattr(torch.optim.Adam, "step", step)
