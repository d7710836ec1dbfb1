"""A chain of sampling steps: the same noise after every reset, and the published step inside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from suites.meddpm.optimizations import OPTIMIZATIONS, composed
from suites.meddpm.quality import with_live_branches
from suites.meddpm.sampling import SamplingStep
from tests.meddpm.small import network, volumes


@contextmanager
def chain(
    configuration: str = "baseline", begin: int = 3, steps: int = 3
) -> Iterator[SamplingStep]:
    """The last three steps of a small network, if nothing else is asked for."""
    diffusion, optimization = with_live_branches(network()), composed(configuration)
    with optimization.applied(diffusion):
        yield SamplingStep(diffusion, volumes(), optimization, "cpu", begin=begin, steps=steps)


def test_a_reset_brings_back_the_noise_and_so_the_sample() -> None:
    with chain() as step:
        step.reset()
        first = step()
        again = step()  # without a reset, other noise is drawn
        step.reset()
        assert torch.equal(step(), first)
    assert not torch.allclose(again, first, rtol=1e-3)


def test_it_is_the_published_step_over_and_over() -> None:
    with chain(begin=5, steps=2) as step:
        step.reset()
        sample = step()
        step.reset()
        expected = step.first
        for t in (4, 3):
            expected = step.diffusion.p_sample(expected, torch.tensor([t]), step.mask)
    assert torch.equal(sample, expected)


def test_a_chain_of_all_steps_begins_with_noise_and_a_short_one_with_the_volume() -> None:
    image = volumes().image.flatten()

    def likeness(begin: int) -> float:
        with chain(begin=begin, steps=1) as step:
            return float(torch.corrcoef(torch.stack([step.first.flatten(), image]))[0, 1])

    assert abs(likeness(250)) < 0.1
    assert likeness(3) > 0.95


def test_every_configuration_that_a_cpu_runs_draws_the_same_sample() -> None:
    """But for the fused norm, which is compared layer by layer: its interpreter takes seconds."""
    with chain(steps=1) as step:
        step.reset()
        expected = step()
    for name in OPTIMIZATIONS:
        if composed(name).unavailable("cpu") or "fused_norm" in name:
            continue
        with chain(name, steps=1) as step:
            step.reset()
            sample = step()
        assert sample.dtype == torch.float32
        assert (sample - expected).norm() < 0.02 * expected.norm(), name


def test_nothing_is_learnt_and_nothing_kept_for_a_backward_pass() -> None:
    with chain() as step:
        before = [weight.clone() for weight in step.diffusion.parameters()]
        assert not step().requires_grad
        assert all(map(torch.equal, step.diffusion.parameters(), before))


@pytest.mark.parametrize(("begin", "steps"), [(3, 4), (3, 0), (251, 1)])
def test_a_chain_that_the_process_has_not_is_refused(begin: int, steps: int) -> None:
    with pytest.raises(ValueError, match=rf"{steps} steps from time step {begin - 1} down: the"):
        with chain(begin=begin, steps=steps):
            pass
