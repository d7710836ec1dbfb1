"""The cosine schedule, and noising and denoising with it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from suites.meddpm.model import GaussianDiffusion3D
from suites.schedule import cosine_betas, diffusion_buffers


def betas_by_the_formula(timesteps: int) -> list[float]:
    """In plain floats: T + 1 points from 0 to T + 1, s = 0.008, clipped to 0.999."""

    def signal(i: int) -> float:
        x = i * (timesteps + 1) / timesteps
        return math.cos((x / (timesteps + 1) + 0.008) / 1.008 * math.pi / 2) ** 2

    return [min(1 - signal(i + 1) / signal(i), 0.999) for i in range(timesteps)]


class Fixed(nn.Module):
    """A network that answers with a fixed noise and notes what it was given."""

    def __init__(self, noise: Tensor) -> None:
        super().__init__()
        self.noise = noise
        self.given: list[tuple[Tensor, Tensor]] = []

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self.given.append((x, t))
        return self.noise.expand(x.shape[0], 1, *x.shape[2:])


def diffusion_with(noise: Tensor) -> GaussianDiffusion3D:
    return GaussianDiffusion3D(Fixed(noise))


def volume(seed: int) -> Tensor:
    return torch.rand(1, 1, 4, 4, 4, generator=torch.Generator().manual_seed(seed)) * 2 - 1


MASK = torch.ones(1, 2, 4, 4, 4)


class TestSchedule:
    @pytest.mark.parametrize("timesteps", [10, 250, 1000])
    def test_betas_are_the_cosine_formula(self, timesteps: int) -> None:
        expected = betas_by_the_formula(timesteps)
        assert cosine_betas(timesteps).tolist() == pytest.approx(expected, rel=1e-9)

    def test_buffers_are_their_formulas(self) -> None:
        betas = betas_by_the_formula(250)
        buffers = diffusion_buffers(cosine_betas(250))
        before = 1.0
        for t, beta in enumerate(betas):
            alpha = 1 - beta
            now = before * alpha
            variance = beta * (1 - before) / (1 - now)
            expected = {
                "betas": beta,
                "alphas_cumprod": now,
                "alphas_cumprod_prev": before,
                "sqrt_alphas_cumprod": math.sqrt(now),
                "sqrt_one_minus_alphas_cumprod": math.sqrt(1 - now),
                "log_one_minus_alphas_cumprod": math.log(1 - now),
                "sqrt_recip_alphas_cumprod": math.sqrt(1 / now),
                "sqrt_recipm1_alphas_cumprod": math.sqrt(1 / now - 1),
                "posterior_variance": variance,
                "posterior_log_variance_clipped": math.log(max(variance, 1e-20)),
                "posterior_mean_coef1": beta * math.sqrt(before) / (1 - now),
                "posterior_mean_coef2": (1 - before) * math.sqrt(alpha) / (1 - now),
                "posterior_mean_coef3": 1 - (1 - before) * math.sqrt(alpha) / (1 - now),
            }
            computed = {name: values[t].item() for name, values in buffers.items()}
            assert computed == pytest.approx(expected, rel=1e-5, abs=1e-12), f"at t = {t}"
            before = now


class TestNoising:
    def test_each_volume_of_a_batch_has_its_own_time_step(self) -> None:
        diffusion = diffusion_with(torch.zeros(1))
        x_0 = torch.cat([volume(1), volume(2)])
        noise = torch.cat([volume(3), volume(4)])
        both = diffusion.q_sample(x_0, torch.tensor([10, 200]), noise)
        for i, t in enumerate((10, 200)):
            alone = diffusion.q_sample(x_0[i : i + 1], torch.tensor([t]), noise[i : i + 1])
            assert torch.equal(both[i : i + 1], alone)

    @pytest.mark.parametrize("t", [0, 100, 240])
    def test_predict_x_0_inverts_q_sample(self, t: int) -> None:
        diffusion = diffusion_with(torch.zeros(1))
        x_0, noise, step = volume(1), volume(2), torch.tensor([t])
        x_t = diffusion.q_sample(x_0, step, noise)
        torch.testing.assert_close(
            diffusion.predict_x_0(x_t, step, noise), x_0, rtol=1e-3, atol=1e-4
        )


class TestTrainingLoss:
    def test_is_l1_on_the_noise(self) -> None:
        """A network that predicts no noise misses by the mean of |noise|."""
        diffusion = diffusion_with(torch.zeros(1))
        torch.manual_seed(5)
        loss = diffusion(volume(1), MASK)
        torch.manual_seed(5)
        torch.randint(0, 250, (1,))
        assert loss.item() == pytest.approx(torch.randn(1, 1, 4, 4, 4).abs().mean().item())

    def test_the_mask_follows_the_noisy_volume(self) -> None:
        network = Fixed(torch.zeros(1))
        GaussianDiffusion3D(network)(volume(1), MASK)
        (given, t) = network.given[0]
        assert given.shape == (1, 3, 4, 4, 4)
        assert torch.equal(given[:, 1:], MASK)
        assert t.shape == (1,)
        assert 0 <= t.item() < 250


class TestSampling:
    def test_the_last_step_returns_the_predicted_volume_without_noise(self) -> None:
        x_0, noise, t = volume(1), volume(2), torch.tensor([0])
        diffusion = diffusion_with(noise)
        sample = diffusion.p_sample(diffusion.q_sample(x_0, t, noise), t, MASK)
        torch.testing.assert_close(sample, x_0, rtol=1e-4, atol=1e-5)

    def test_predicted_volumes_are_clamped(self) -> None:
        diffusion = diffusion_with(torch.full((1,), -1e6))
        sample = diffusion.p_sample(volume(1), torch.tensor([0]), MASK)
        torch.testing.assert_close(sample, torch.ones_like(sample))

    def test_draws_from_the_posterior(self) -> None:
        x_0, noise, t = volume(1), volume(2), torch.tensor([120])
        diffusion = diffusion_with(noise)
        x_t = diffusion.q_sample(x_0, t, noise)
        torch.manual_seed(7)
        many = diffusion.p_sample(
            x_t.expand(4000, -1, -1, -1, -1), t.expand(4000), MASK.expand(4000, -1, -1, -1, -1)
        )
        buffers = diffusion.state_dict()
        mean = (
            buffers["posterior_mean_coef1"][120] * x_0 + buffers["posterior_mean_coef2"][120] * x_t
        )
        torch.testing.assert_close(many.mean(0, keepdim=True), mean, rtol=0, atol=0.01)
        deviation = buffers["posterior_variance"][120].sqrt()
        assert many.std(0).mean().item() == pytest.approx(deviation.item(), rel=0.01)
