"""Med-DDPM's training step on a real GPU: reset brings the same work back."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf.collect.base import Phases

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["baseline", "tf32", "channels_last", "tf32_channels_last"])
def test_reset_brings_back_the_loss(name: str, tmp_path: Path) -> None:
    import torch

    from suites.meddpm import data
    from suites.meddpm.model import med_ddpm
    from suites.meddpm.optimizations import OPTIMIZATIONS
    from suites.meddpm.step import TrainingStep

    torch.manual_seed(0)
    diffusion = med_ddpm(128).to("cuda")
    volumes = data.load("synthetic", 32, tmp_path)
    optimization = OPTIMIZATIONS[name]
    with optimization.applied(diffusion):
        step = TrainingStep(diffusion, volumes, optimization, Phases().mark, "cuda")
        losses = []
        for _ in range(2):
            step.reset()
            losses.append([float(step()) for _ in range(3)])
    # The weights' gradients are summed in no fixed order, so only the first loss is exact.
    assert losses[0][0] == losses[1][0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
