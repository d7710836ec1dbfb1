"""Loads released Med-DDPM checkpoints, strictly."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from pytest_gpuperf.errors import UsageFailure

ENTRY = "ema"
"""The checkpoint's entry that holds the weights: their exponential moving average."""

SHOWN = 5
"""How many tensors of a kind an error lists by name."""


def load_weights(diffusion: nn.Module, file: Path) -> None:
    """Loads the `ema` entry of the checkpoint `file` into `diffusion`.

    Every tensor must be there, with its name and shape, and no other. Raises a UsageFailure that
    names the file and the tensors otherwise; the model is then unchanged.
    """
    weights = _read(file)
    expected = diffusion.state_dict()
    problems = [
        *_listed("missing", sorted(expected.keys() - weights.keys())),
        *_listed("unexpected", sorted(weights.keys() - expected.keys())),
        *_listed(
            "of another shape",
            [
                f"{name} is {tuple(weights[name].shape)}, not {tuple(tensor.shape)}"
                for name, tensor in expected.items()
                if name in weights and weights[name].shape != tensor.shape
            ],
        ),
    ]
    if problems:
        raise UsageFailure(
            f'{file}: the entry "{ENTRY}" does not fit the network: {"; ".join(problems)}. '
            "Use a checkpoint that was trained with this image size and these channels"
        )
    diffusion.load_state_dict(weights, strict=True)


def _read(file: Path) -> dict[str, Tensor]:
    remedy = f'Give a Med-DDPM checkpoint: a file of torch.save with the entry "{ENTRY}"'
    if not file.is_file():
        raise UsageFailure(f"{file}: there is no such file. {remedy}")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        reason = str(error).strip().splitlines()[0] if str(error) else type(error).__name__
        raise UsageFailure(f"{file}: cannot be read as weights: {reason}. {remedy}") from error
    if not isinstance(content, dict) or ENTRY not in content:
        there = (
            ", ".join(map(str, content)) if isinstance(content, dict) else type(content).__name__
        )
        raise UsageFailure(f'{file}: the entry "{ENTRY}" is missing (found: {there}). {remedy}')
    weights = content[ENTRY]
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in weights.items()
    ):
        raise UsageFailure(f'{file}: the entry "{ENTRY}" is not a state dict. {remedy}')
    return weights


def _listed(kind: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [f"{len(names)} {kind}: {', '.join(names[:SHOWN])}{more}"]
