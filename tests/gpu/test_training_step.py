"""Med-DDPM's steps on a real GPU: reset brings the same work back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from pytest_gpuperf.measure.collector import Phases
from pytest_gpuperf.measure.device import nvml
from suites.meddpm import data
from suites.meddpm.model import med_ddpm
from suites.meddpm.optimizations import ALONE, BEST, OPTIMIZATIONS, PAPER, composed
from suites.meddpm.sampling import SamplingStep
from suites.meddpm.step import TrainingStep

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # of the compiler, about itself
]

# Each part of the fastest composition alone with the capture too: what breaks it is then named.
CAPTURED = [f"{part}+cuda_graph" for part in BEST.split("+") if part != "cuda_graph"]


@contextmanager
def training_step(name: str, folder: Path) -> Iterator[TrainingStep]:
    """Of the published network, under a configuration; skips where this GPU has none of it."""
    device = nvml.detect_device()
    assert device is not None
    optimization = composed(name)
    if reason := optimization.unavailable(device.arch):
        pytest.skip(reason)
    torch.manual_seed(0)
    diffusion = med_ddpm(128).to("cuda")
    volumes = data.load("synthetic", 32, folder)
    with optimization.applied(diffusion):
        yield TrainingStep(diffusion, volumes, optimization, Phases().mark, "cuda")


@pytest.mark.parametrize("name", [*OPTIMIZATIONS, *ALONE, *CAPTURED])
def test_reset_brings_back_the_loss(name: str, tmp_path: Path) -> None:
    losses = []
    with training_step(name, tmp_path) as step:
        for _ in range(2):
            step.reset()
            losses.append([float(step()) for _ in range(3)])
    # The weights' gradients are summed in no fixed order, so only the first loss is exact.
    assert losses[0][0] == losses[1][0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_a_captured_step_trains_as_the_eager_one_does(tmp_path: Path) -> None:
    """Its random numbers move on from replay to replay, and its weights with them."""
    losses = []
    for name in ("baseline", "cuda_graph"):
        with training_step(name, tmp_path) as step:
            losses.append([float(step()) for _ in range(5)])
    assert len(set(losses[0])) == 5
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.parametrize("name", PAPER)
def test_sampling_is_the_same_after_every_reset(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    diffusion, optimization = med_ddpm(128).to("cuda"), OPTIMIZATIONS[name]
    with optimization.applied(diffusion):
        volumes = data.load("synthetic", 32, tmp_path)
        chain = SamplingStep(diffusion, volumes, optimization, "cuda", begin=3, steps=3)
        chain.reset()
        first = chain()
        chain.reset()
        assert torch.equal(chain(), first)
