"""Med-DDPM's training step on a real GPU: reset brings the same work back."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf.measure.collector import Phases
from pytest_gpuperf.measure.device import nvml
from suites.meddpm.optimizations import ALONE, BEST, OPTIMIZATIONS, composed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # of the compiler, about itself
]


def detected_arch() -> str:
    """Of this machine's GPU."""
    device = nvml.detect_device()
    assert device is not None
    return device.arch


# Each part of the fastest composition alone with the capture too: what breaks it is then named.
CAPTURED = [f"{part}+cuda_graph" for part in BEST.split("+") if part != "cuda_graph"]


@pytest.mark.parametrize("name", [*OPTIMIZATIONS, *ALONE, *CAPTURED])
def test_reset_brings_back_the_loss(name: str, tmp_path: Path) -> None:
    import torch

    from suites.meddpm import data
    from suites.meddpm.model import med_ddpm
    from suites.meddpm.step import TrainingStep

    torch.manual_seed(0)
    diffusion = med_ddpm(128).to("cuda")
    volumes = data.load("synthetic", 32, tmp_path)
    optimization = composed(name)
    reason = optimization.unavailable(detected_arch())
    if reason:
        pytest.skip(reason)
    with optimization.applied(diffusion):
        step = TrainingStep(diffusion, volumes, optimization, Phases().mark, "cuda")
        losses = []
        for _ in range(2):
            step.reset()
            losses.append([float(step()) for _ in range(3)])
    # The weights' gradients are summed in no fixed order, so only the first loss is exact.
    assert losses[0][0] == losses[1][0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_a_captured_step_trains_as_the_eager_one_does(tmp_path: Path) -> None:
    """Its random numbers move on from replay to replay, and its weights with them."""
    import torch

    from suites.meddpm import data
    from suites.meddpm.model import med_ddpm
    from suites.meddpm.step import TrainingStep

    volumes = data.load("synthetic", 32, tmp_path)
    losses = []
    for name in ("baseline", "cuda_graph"):
        torch.manual_seed(0)
        diffusion = med_ddpm(128).to("cuda")
        optimization = composed(name)
        with optimization.applied(diffusion):
            step = TrainingStep(diffusion, volumes, optimization, Phases().mark, "cuda")
            losses.append([float(step()) for _ in range(5)])
    assert len(set(losses[0])) == 5
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
