"""Loads released Med-DDPM checkpoints, strictly."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from itertools import islice
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
        *_listed("without finite numbers of their kind", _odd(weights, expected)),
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
        _check_size(file)
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes lead torch to errors of any type
        reason = str(error).strip().splitlines()[0] if str(error) else type(error).__name__
        raise UsageFailure(f"{file}: cannot be read as weights: {reason}. {remedy}") from error
    if not isinstance(content, dict) or ENTRY not in content:
        there = (
            ", ".join(map(str, islice(content, SHOWN)))
            if isinstance(content, dict)
            else type(content).__name__
        )
        raise UsageFailure(f'{file}: the entry "{ENTRY}" is missing (found: {there}). {remedy}')
    weights = content[ENTRY]
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in weights.items()
    ):
        raise UsageFailure(f'{file}: the entry "{ENTRY}" is not a state dict. {remedy}')
    return weights


def _check_size(file: Path) -> None:
    """Raises ValueError for a file out of which comes more than it has: torch.save packs nothing.

    Files of torch before 1.6 are no zip, and packed neither.
    """
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > (there := file.stat().st_size):
        raise ValueError(f"its entries have {unpacked:,} bytes, and the file {there:,}")


def _odd(weights: dict[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    """Tensors that cannot be copied into the network's, or are no numbers."""
    return [
        f"{name} ({weights[name].dtype}, {weights[name].layout})"
        for name, tensor in expected.items()
        if name in weights and not _plain(weights[name], tensor)
    ]


def _plain(given: Tensor, expected: Tensor) -> bool:
    if given.layout is not torch.strided or given.device.type != "cpu":
        return False
    if given.is_floating_point() != expected.is_floating_point() or given.is_complex():
        return False
    # What has another shape may be a few bytes that are repeated beyond all memory.
    return given.shape != expected.shape or bool(torch.isfinite(given).all())


def _listed(kind: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [f"{len(names)} {kind}: {', '.join(names[:SHOWN])}{more}"]
