"""Marks of the parts of a step by what they compute."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Mark = Callable[[str], AbstractContextManager[None]]
"""Marks a part of the work: `with mark("conv2d"): ...`. What is inside of two is of the inner."""

COMPONENTS = (
    "conv2d",
    "depthwise_conv2d",
    "gelu",
    "relu",
    "add",
    "layer_norm",
    "linear",
    "attention",
    "upsample",
    "downsample",
    "block",
    "concatenate",
    "time_embedding",
    "extract",
    "p_sample",
    "normalize",
    "unnormalize",
)
"""All names. What operators do in one kernel is one component, named by the operator: a fused
convolution's GELU is in conv2d, and a fused block has no parts."""


def unmarked(name: str) -> AbstractContextManager[None]:  # noqa: ARG001
    """Marks nothing."""
    return nullcontext()
