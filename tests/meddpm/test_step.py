"""The training step: its phases, what a reset restores, and that it does not wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from suites.meddpm.optimizations import composed
from suites.meddpm.step import LEARNING_RATE, TrainingStep
from tests.meddpm import small


@pytest.fixture(
    params=[
        *("baseline", "channels_last+fused_adam"),
        "bf16+padded_channels+separable_upsampling+sdpa",
    ]
)
def step(request: pytest.FixtureRequest) -> Iterator[TrainingStep]:
    """A step under each of the configurations."""
    with small.training_step(request.param) as made:
        yield made


def changing(step: TrainingStep) -> list[Tensor]:
    """All tensors that a step may change."""
    adam = [value for state in step.adam.state.values() for value in state.values()]
    return [*step.diffusion.parameters(), *step.diffusion.buffers(), *adam]


def everything(step: TrainingStep) -> list[Tensor]:
    """All that a step may change, copied."""
    return [*(tensor.detach().clone() for tensor in changing(step)), torch.get_rng_state()]


class Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that are dispatched inside the block, in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def operators(step: TrainingStep) -> list[str]:
    """The operators that one step dispatches, in order."""
    dispatched = Dispatched()
    with dispatched:
        step()
    return dispatched.names


def test_the_phases_are_forward_backward_optimizer() -> None:
    marks: list[tuple[str, bool, bool]] = []

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        yield
        marks.append((name, weight.grad is not None, not torch.equal(weight, initial)))

    with small.training_step(phase=phase) as step:
        weight = step.diffusion.get_parameter("denoise_fn.out.2.weight")
        initial = weight.detach().clone()
        step()
    # phase, has a gradient after it, has moved after it
    assert marks == [
        ("forward", False, False),
        ("backward", True, False),
        ("optimizer", False, True),
    ]


def test_training_lowers_the_loss() -> None:
    with small.training_step() as step:
        for group in step.adam.param_groups:
            group["lr"] = 1e-3
        losses = [step().item() for _ in range(12)]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


def test_a_loss_is_detached_and_the_mean_of_the_noise_at_first_and_comes_back_bit_for_bit(
    step: TrainingStep,
) -> None:
    losses = [step() for _ in range(3)]
    assert all(loss.shape == () and not loss.requires_grad for loss in losses)
    # An untrained network predicts 0, and the mean of |N(0, 1)| is 0.80.
    assert losses[0].item() == pytest.approx(0.80, abs=0.1)
    assert len({loss.item() for loss in losses}) == 3
    assert [group["lr"] for group in step.adam.param_groups] == [LEARNING_RATE] == [1e-5]
    step.diffusion(step.image, step.mask).backward()  # broken off
    step.reset()
    assert torch.equal(torch.stack([step() for _ in range(2)]), torch.stack(losses[:2]))


def test_a_reset_restores_in_place_everything_that_a_step_changes(step: TrainingStep) -> None:
    def places() -> list[tuple[int, tuple[int, ...]]]:
        return [(tensor.data_ptr(), tensor.stride()) for tensor in changing(step)]

    step.reset()
    before, there = everything(step), places()
    first, second = operators(step), operators(step)
    assert not all(map(torch.equal, everything(step), before))
    step.reset()
    assert all(map(torch.equal, everything(step), before))
    assert all(parameter.grad is None for parameter in step.diffusion.parameters())
    assert places() == there
    # Every step does the same work.
    assert first == second == operators(step)


def test_constructing_a_step_computes_nothing_and_none_waits_for_the_device() -> None:
    """The paper's window counts from the start of the process: what is launched first matters.

    Reading a value back is `_local_scalar_dense`; Adam's step count lives on the host.
    """
    diffusion, volumes = small.network(), small.volumes()
    before = [parameter.detach().clone() for parameter in diffusion.parameters()]
    baseline = composed("baseline")
    with Dispatched() as made:
        step = TrainingStep(diffusion, volumes, baseline, small.unmarked, "cpu")
    assert set(made.names) <= {"aten.clone.default", "aten.detach.default"}
    assert all(map(torch.equal, diffusion.parameters(), before))
    with Dispatched() as computed:
        diffusion(step.image, step.mask).backward()
    assert computed.names
    waiting = ("_local_scalar_dense", "nonzero")
    assert not [name for name in computed.names if any(word in name for word in waiting)]


def test_the_batch_is_converted_inside_the_step() -> None:
    """As in the paper, where batches come contiguous and are converted before the model."""
    given: list[Tensor] = []
    with small.training_step("channels_last") as step:
        assert step.mask.is_contiguous()
        step.diffusion.register_forward_pre_hook(lambda _, inputs: given.extend(inputs))
        step()
    assert len(given) == 2
    assert all(batch.is_contiguous(memory_format=torch.channels_last_3d) for batch in given)
