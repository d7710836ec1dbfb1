"""Changes of the Med-DDPM training step that make it slower, each for a block.

A change is put into a step that exists already, and is gone after the block. All of them go through
hooks and settings of torch, so that the step's class stays as it is. What is about one layer takes
the first of its kind: it works at full resolution, where a volume of 64 channels has 537 MB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from suites.meddpm.step import TrainingStep

_EXTRA_ELEMENTS = 1_200_000_000
"""float32, read and written: 9.6 GB, 2.3 ms at the 4.2 TB/s that an H200 copies with."""
_ONE_PER_CENT = 0.01
"""Which that is of the tf32 step."""
_ELEMENTS_ON_A_CPU = 1000
_INSTRUCTIONS_PER_ELEMENT = 0.83
"""Warp instructions of `lgamma` per element, as an H200 counted them."""
_PLANS = 4
"""How many of its plans cuDNN tries for a convolution; ten, its default, take long at this size."""


@contextmanager
def convolution_in_float32(step: TrainingStep) -> Iterator[None]:
    """One convolution without TF32, in forward."""
    with ExitStack() as stack:
        _in_float32(stack, _convolution(step), backward=False)
        yield


@contextmanager
def contiguous_blocks(step: TrainingStep) -> Iterator[None]:
    """`.contiguous()` at the end of every residual block."""
    from suites.meddpm.model.layers import ResidualBlock

    with ExitStack() as stack:
        for block in _every(step, ResidualBlock):
            hook = block.register_forward_hook(lambda _block, _inputs, output: output.contiguous())
            stack.callback(hook.remove)
        yield


@contextmanager
def other_plans(step: TrainingStep) -> Iterator[None]:  # noqa: ARG001 -- of the whole process
    """The fastest of some deterministic plans of cuDNN, not the one that its heuristics name."""
    import torch

    settings: Any = torch.backends.cudnn  # benchmark_limit exists where there is CUDA
    # torch keeps the plans it has chosen, and tells them by `deterministic` but not by `benchmark`:
    # alone, the latter changes nothing in a process that has run the step before.
    with ExitStack() as stack:
        for name, value in (
            ("deterministic", True),
            ("benchmark", True),
            ("benchmark_limit", _PLANS),
        ):
            stack.callback(setattr, settings, name, getattr(settings, name))
            setattr(settings, name, value)
        yield


@contextmanager
def extra_kernel(step: TrainingStep, share: float = _ONE_PER_CENT) -> Iterator[None]:
    """One more elementwise kernel at the end of the step, of this share of the tf32 step's time."""
    import torch

    elements = int(share / _ONE_PER_CENT * _EXTRA_ELEMENTS)
    buffer = torch.ones(_elements(step, elements), device=step.device)
    with _after_the_step(step, lambda: buffer.mul_(1.0)):
        yield


@contextmanager
def norm_in_channels_last(step: TrainingStep) -> Iterator[None]:
    """One norm is given its volume in channels_last."""
    import torch

    from suites.meddpm.model.layers import GroupNorm32

    norm = _every(step, GroupNorm32)[0]
    hook = norm.register_forward_pre_hook(
        lambda _norm, inputs: inputs[0].contiguous(memory_format=torch.channels_last_3d)
    )
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def attention_in_float32(step: TrainingStep) -> Iterator[None]:
    """Every attention without TF32, in forward and backward."""
    from suites.meddpm.model.layers import SelfAttention

    with ExitStack() as stack:
        for attention in _every(step, SelfAttention):
            _in_float32(stack, attention, backward=True)
        yield


@contextmanager
def adam_without_foreach(step: TrainingStep) -> Iterator[None]:
    """Adam updates one weight after the other."""
    # Read in every step, so that its state can stay as it is.
    groups = step.adam.param_groups
    before = [group["foreach"] for group in groups]
    try:
        for group in groups:
            group["foreach"] = False
        yield
    finally:
        for group, foreach in zip(groups, before, strict=True):
            group["foreach"] = foreach


@contextmanager
def host_copy(step: TrainingStep) -> Iterator[None]:
    """What the network is given is copied to the host."""

    def copied(_network: nn.Module, inputs: tuple[Any, ...]) -> None:
        inputs[0].to("cpu", copy=True)

    hook = step.diffusion.denoise_fn.register_forward_pre_hook(copied)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def synchronised(step: TrainingStep) -> Iterator[None]:
    """The host waits for the device after every layer of the forward pass."""
    import torch

    from suites.meddpm.model import layers

    device = torch.get_device_module(step.device)

    def wait(_layer: nn.Module, _inputs: object, _output: object) -> None:
        device.synchronize()

    between = (layers.ResidualBlock, layers.SelfAttention, layers.Downsample, layers.Upsample)
    with ExitStack() as stack:
        for layer in _every(step, *between):
            stack.callback(layer.register_forward_hook(wait).remove)
        yield


@contextmanager
def convolution_twice(step: TrainingStep) -> Iterator[None]:
    """One convolution is computed a second time in forward, without a gradient."""
    import torch

    @torch.no_grad()
    def again(convolution: nn.Module, inputs: tuple[Any, ...], _output: object) -> None:
        convolution.forward(*inputs)

    hook = _convolution(step).register_forward_hook(again)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def extra_instructions(step: TrainingStep, count: float) -> Iterator[None]:
    """One more kernel of so many warp instructions, which takes next to no time."""
    import torch

    elements = _elements(step, int(count / _INSTRUCTIONS_PER_ELEMENT))
    buffer = torch.full((elements,), 3.7, device=step.device)
    result = torch.empty_like(buffer)
    with _after_the_step(step, lambda: torch.lgamma(buffer, out=result)):
        yield


def _in_float32(stack: ExitStack, module: nn.Module, *, backward: bool) -> None:
    """Has a module compute without TF32 until `stack` is closed; its backward too, if asked for.

    What is recomputed in backward belongs to it.
    """
    from suites.precision import float32_precision

    entered = stack.enter_context(ExitStack())

    def enter(*_: object) -> None:
        entered.enter_context(float32_precision("ieee"))

    def leave(*_: object) -> None:
        entered.close()

    stack.callback(module.register_forward_pre_hook(enter).remove)
    stack.callback(module.register_forward_hook(leave, always_call=True).remove)
    if backward:
        stack.callback(module.register_full_backward_pre_hook(enter).remove)
        stack.callback(module.register_full_backward_hook(leave).remove)


@contextmanager
def _after_the_step(step: TrainingStep, run: Callable[[], object]) -> Iterator[None]:
    """Calls `run` when Adam is done."""

    def after(*_: object) -> None:
        run()

    hook = step.adam.register_step_post_hook(after)
    try:
        yield
    finally:
        hook.remove()


def _elements(step: TrainingStep, on_a_gpu: int) -> int:
    return on_a_gpu if step.device.type == "cuda" else _ELEMENTS_ON_A_CPU


def _every(step: TrainingStep, *types: type[nn.Module]) -> list[nn.Module]:
    """The modules of these types, in the order of the forward pass."""
    return [module for module in step.diffusion.modules() if isinstance(module, types)]


def _convolution(step: TrainingStep) -> nn.Module:
    """The first that has as many channels before as after."""
    from torch import nn

    return next(
        module
        for module in step.diffusion.modules()
        if isinstance(module, nn.Conv3d)
        and module.in_channels == module.out_channels
        and module.kernel_size[0] == 3
    )
