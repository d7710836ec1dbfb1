"""The quality gates on a real GPU: what is put into the fused configurations, they catch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from suites.meddpm import data
from suites.meddpm.conftest import CURVE_STEPS_ON_A_GPU, QUALITY_SIZE_ON_A_GPU
from suites.meddpm.limits import LIMITS, excess
from suites.meddpm.model import med_ddpm
from suites.meddpm.optimizations import OPTIMIZATIONS, composed
from suites.meddpm.quality import Configured, Quality, with_live_branches
from tests.meddpm.asked import asked
from tests.meddpm.faults import bf16_accumulation, dropped_skip, stale_weights, wrong_epsilon

pytestmark = pytest.mark.gpu

FUSED = ("fused_norm", "tf32+channels_last+fused_norm", "bf16_fused")


@pytest.fixture(scope="module")
def quality(tmp_path_factory: pytest.TempPathFactory) -> Quality:
    """The published network on the suite's volume; float64 and the baseline have answered."""
    torch.manual_seed(0)
    volumes = data.load("synthetic", QUALITY_SIZE_ON_A_GPU, Path(tmp_path_factory.mktemp("data")))
    diffusion = with_live_branches(med_ddpm(128))
    quality = Quality(diffusion, volumes, "cuda", curve_steps=5, chain_steps=8, draws=(1, 2))
    asked(Configured.errors, quality, OPTIMIZATIONS["baseline"])
    asked(Configured.similarity, quality, OPTIMIZATIONS["baseline"])
    return quality


@pytest.mark.parametrize("name", FUSED)
def test_without_a_fault_they_are_within_their_limits(name: str, quality: Quality) -> None:
    optimization = composed(name)
    assert (
        excess(asked(Configured.errors, quality, optimization), LIMITS[optimization.precision])
        == []
    )


@pytest.mark.parametrize(
    ("fault", "names", "says"),
    [
        # Where products are rounded to 10 bits, an epsilon of 1e-5 more or less is lost.
        (wrong_epsilon, FUSED[:1], "the output"),
        (bf16_accumulation, FUSED, "the loss"),
        (dropped_skip, FUSED, "the output"),
    ],
)
def test_errors_catch_a_fault(
    fault: Callable[[pytest.MonkeyPatch], None],
    names: tuple[str, ...],
    says: str,
    quality: Quality,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault(monkeypatch)
    for name in names:
        optimization = composed(name)
        problems = excess(
            asked(Configured.errors, quality, optimization), LIMITS[optimization.precision]
        )
        assert any(problem.startswith(says) for problem in problems), (name, problems)


def test_a_curve_catches_what_no_single_step_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of the first step in every step, on as many steps as the suite's curve has."""
    torch.manual_seed(0)
    quality = Quality(
        with_live_branches(med_ddpm(128)),
        data.load("synthetic", QUALITY_SIZE_ON_A_GPU, tmp_path),
        "cuda",
        curve_steps=CURVE_STEPS_ON_A_GPU,
        chain_steps=8,
        draws=(1,),
    )
    baseline = OPTIMIZATIONS["baseline"]
    asked(Configured.deviation, quality, baseline)  # what it is compared with, without the fault
    stale_weights(monkeypatch)
    assert excess(asked(Configured.errors, quality, baseline), LIMITS["ieee"]) == []
    assert asked(Configured.deviation, quality, baseline) > LIMITS["bf16"].curve


def test_a_sample_catches_a_dropped_skip_connection(
    quality: Quality, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torchmetrics")
    dropped_skip(monkeypatch)
    optimization = composed(FUSED[-1])
    similarity = asked(Configured.similarity, quality, optimization)
    allowed = LIMITS[optimization.precision].dissimilarity
    assert min(similarity.ssim, similarity.ms_ssim) < 1 - allowed
