"""The schedules, noising and sampling, against numbers by hand."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from suites.convnext_ddpm.diffusion import TIMESTEPS, Diffusion, Schedule
from suites.convnext_ddpm.marks import COMPONENTS
from suites.schedule import linear_betas
from tests.convnext.heard import Heard

IMAGE = torch.tensor([0.5, -0.25, 1.0, 0.0]).reshape(1, 1, 2, 2)
NOISE = torch.tensor([0.1, -2.0, 0.3, 1.5]).reshape(1, 1, 2, 2)
DRAWN = torch.tensor([1.0, -1.0, 0.5, 2.0]).reshape(1, 1, 2, 2)


class TestSchedule:
    def test_the_linear_one_goes_from_0_001_to_0_2_in_100_steps(self) -> None:
        betas = linear_betas(100).tolist()
        assert (betas[0], betas[-1]) == pytest.approx((0.001, 0.2))
        steps = [after - before for before, after in itertools.pairwise(betas)]
        assert steps == pytest.approx([0.199 / 99] * 99)

    @pytest.mark.parametrize("schedule", ["cosine", "linear"])
    def test_ends_in_noise(self, schedule: Schedule) -> None:
        diffusion = Diffusion(schedule=schedule)
        assert diffusion.timesteps == TIMESTEPS == 100
        assert diffusion.sqrt_alphas_cumprod[0].item() > 0.99
        assert diffusion.sqrt_alphas_cumprod[-1].item() < 0.01


def by_hand(x: float, noise: float, drawn: float, t: int) -> float:
    """p_sample of one pixel in plain floats, of the linear schedule over 100 steps."""
    betas = [0.001 + i * 0.199 / 99 for i in range(100)]
    now = math.prod(1 - beta for beta in betas[: t + 1])
    before = math.prod(1 - beta for beta in betas[:t])
    x_0 = (x - math.sqrt(1 - now) * noise) / math.sqrt(now)
    x_0 = min(max(x_0, -1.0), 1.0)
    beta = betas[t]
    mean = (math.sqrt(before) * beta * x_0 + math.sqrt(1 - beta) * (1 - before) * x) / (1 - now)
    deviation = math.sqrt(beta * (1 - before) / (1 - now))
    return mean + (deviation * drawn if t > 0 else 0)


def p_sample(t: int) -> Tensor:
    diffusion, step = Diffusion(schedule="linear"), torch.tensor([t])
    return diffusion.sampled(diffusion.foreseen(IMAGE, step, DRAWN), step, NOISE)


@pytest.mark.parametrize("t", [0, 1, 50, 99])
def test_p_sample_is_its_formula(t: int) -> None:
    pixels = torch.stack([IMAGE.flatten(), NOISE.flatten(), DRAWN.flatten()], dim=1).tolist()
    expected = [by_hand(x, noise, drawn, t) for x, noise, drawn in pixels]
    assert p_sample(t).flatten().tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_each_image_of_a_batch_has_its_own_time_step() -> None:
    diffusion = Diffusion(schedule="linear")
    steps = torch.tensor([3, 70])
    images, noise, drawn = (torch.cat([part, part]) for part in (IMAGE, NOISE, DRAWN))
    both = diffusion.sampled(diffusion.foreseen(images, steps, drawn), steps, noise)
    torch.testing.assert_close(both, torch.cat([p_sample(3), p_sample(70)]))


def test_images_are_normalized_and_back() -> None:
    diffusion = Diffusion()
    images = torch.tensor([0.0, 0.25, 1.0])
    normalized = diffusion.normalize_to_neg_one_to_one(images)
    assert normalized.tolist() == [-1, -0.5, 1]
    assert torch.equal(diffusion.unnormalize_to_zero_to_one(normalized), images)


def test_its_parts_are_marked() -> None:
    heard = Heard()
    diffusion, t = Diffusion(mark=heard.mark), torch.tensor([1])
    diffusion.sampled(diffusion.foreseen(IMAGE, t, DRAWN), t, NOISE)
    diffusion.unnormalize_to_zero_to_one(diffusion.normalize_to_neg_one_to_one(IMAGE))
    assert set(heard.names) == {"p_sample", "extract", "normalize", "unnormalize"} & set(COMPONENTS)
    assert ("p_sample", "extract") in heard.nested
