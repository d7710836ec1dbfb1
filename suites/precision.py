"""How float32 multiplications are rounded on the tensor cores, set for a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import torch

Float32Precision = Literal["ieee", "tf32"]
"""ieee: full float32. tf32: 10 bits of mantissa in the factors of convolutions and products."""


def float32_precision(precision: Float32Precision) -> AbstractContextManager[None]:
    """Sets the precision of float32 matrix products and convolutions on a GPU, for a block.

    TF32 is on for cuDNN unless switched off, so "ieee" has to say so too.
    """
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        return _by_fp32_precision(precision)
    return _by_allow_tf32(precision)


@contextmanager
def _by_fp32_precision(precision: Float32Precision) -> Iterator[None]:
    """By the settings of torch 2.9 and later, without touching the older ones.

    Each operation's setting, when it was never made, follows the backend's, and that the one
    for everything. "Never made" cannot be set again once an operation's own setting was
    written (cuDNN starts out in such a state), so only those are written that stand against the
    backend's setting. Older setters write several settings at once and older getters raise where
    the two disagree; neither is called here, so a program that uses either finds it unchanged.
    """
    # typed Any: these attributes are made at run time, in part by replaced modules
    everything: Any = torch.backends
    backend: Any = torch.backends.cudnn  # in spite of its name the setting of all of CUDA
    operations: list[Any] = [
        torch.backends.cuda.matmul,
        torch.backends.cudnn.conv,  # type: ignore[attr-defined]
        torch.backends.cudnn.rnn,
    ]

    # A getter answers for the backend with what it inherits; its own value shows without parent.
    everything_before = everything.fp32_precision
    everything.fp32_precision = "none"
    backend_before = backend.fp32_precision
    everything.fp32_precision = everything_before

    own_before: list[tuple[Any, str]] = []
    try:
        backend.fp32_precision = precision
        for operation in operations:
            if operation.fp32_precision != precision:
                own_before.append((operation, operation.fp32_precision))
                operation.fp32_precision = precision
        yield
    finally:
        for operation, before in own_before:
            operation.fp32_precision = before
        backend.fp32_precision = backend_before


@contextmanager
def _by_allow_tf32(precision: Float32Precision) -> Iterator[None]:
    """By the settings of torch before 2.9."""
    # Not `cuda.matmul.allow_tf32`: that would lose the difference between "high" and "medium".
    matmul_before = torch.get_float32_matmul_precision()
    cudnn_before = torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        yield
    finally:
        torch.set_float32_matmul_precision(matmul_before)
        torch.backends.cudnn.allow_tf32 = cudnn_before
