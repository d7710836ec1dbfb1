"""Losses put into the Med-DDPM step on purpose, to see whether the judge finds them.

    pytest suites/meddpm -p benchmarks.seeds --seed conv-fp32 -k "[tf32]"

A pytest plugin, so that the step is measured, judged and repeated exactly as without a loss.

    none              identical code
    extra-kernel      one more elementwise kernel per step, of about 1 % of the tf32 step's time
    conv-fp32         one convolution of the widest blocks computed without TF32
    contiguous        a redundant `.contiguous()` at the end of every residual block
    instructions      one more kernel of `--seed-share` of the tf32 step's instructions, which takes
                      next to no time
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

SEEDS = ("none", "extra-kernel", "conv-fp32", "contiguous", "instructions")
_EXTRA_ELEMENTS = 1_200_000_000
"""float32, read and written: 9.6 GB, 2.3 ms at the 4.2 TB/s that an H200 copies with."""
_INSTRUCTIONS_OF_THE_STEP = 61.6e9
"""Of the tf32 configuration on 128 x 128 x 128 voxels (docs/runs/h200-meddpm.json)."""
_INSTRUCTIONS_PER_ELEMENT = 0.83
"""Warp instructions of `lgamma` per element, as an H200 counted them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers the flags."""
    group = parser.getgroup("seeds", "losses on purpose")
    group.addoption("--seed", choices=SEEDS, default="none", help="which loss")
    group.addoption(
        "--seed-share",
        type=float,
        default=0.005,
        help="of the step's instructions, for --seed instructions; default: %(default)s",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Puts the loss into the step's class, before any step is made."""
    seed = config.getoption("--seed")
    if seed == "conv-fp32":
        _on_construction(_slow_convolution)
    elif seed == "contiguous":
        _on_construction(_redundant_copies)
    elif seed == "extra-kernel":
        _after_the_step(_extra_kernel)
    elif seed == "instructions":
        share = config.getoption("--seed-share")
        elements = int(share * _INSTRUCTIONS_OF_THE_STEP / _INSTRUCTIONS_PER_ELEMENT)
        _after_the_step(lambda device: _extra_instructions(device, elements))


def _on_construction(change: Callable[[Any], None]) -> None:
    """Has `change` called with the network of every step."""
    from suites.meddpm.step import TrainingStep

    original = TrainingStep.__init__

    def changed(step: TrainingStep, *arguments: Any, **options: Any) -> None:
        original(step, *arguments, **options)
        change(step.diffusion)

    setattr(TrainingStep, "__init__", changed)  # noqa: B010 -- a method is not assigned to


def _after_the_step(make: Callable[[Any], Callable[[], object]]) -> None:
    """Has what `make(device)` returns called at the end of every step."""
    from suites.meddpm.step import TrainingStep

    original = TrainingStep.__call__
    made: dict[Any, Callable[[], object]] = {}

    def changed(step: TrainingStep) -> Any:
        loss = original(step)
        if step.device not in made:
            made[step.device] = make(step.device)
        made[step.device]()
        return loss

    setattr(TrainingStep, "__call__", changed)  # noqa: B010


def _extra_kernel(device: Any) -> Callable[[], object]:
    import torch

    size = _EXTRA_ELEMENTS if device.type == "cuda" else 1000
    buffer = torch.ones(size, device=device)
    return lambda: buffer.mul_(1.0)


def _extra_instructions(device: Any, elements: int) -> Callable[[], object]:
    import torch

    buffer = torch.full((elements if device.type == "cuda" else 1000,), 3.7, device=device)
    result = torch.empty_like(buffer)
    return lambda: torch.lgamma(buffer, out=result)


def _slow_convolution(diffusion: Any) -> None:
    from torch import nn

    from suites.meddpm.optimizations import float32_precision

    widest = next(
        m
        for m in diffusion.modules()
        if isinstance(m, nn.Conv3d) and m.in_channels == m.out_channels and m.kernel_size[0] == 3
    )
    forward = widest.forward

    def slow(batch: Any) -> Any:
        with float32_precision("ieee"):
            return forward(batch)

    setattr(widest, "forward", slow)  # noqa: B010


def _redundant_copies(diffusion: Any) -> None:
    from suites.meddpm.model.layers import ResidualBlock

    for module in diffusion.modules():
        if isinstance(module, ResidualBlock):
            module.register_forward_hook(lambda _module, _inputs, output: output.contiguous())
