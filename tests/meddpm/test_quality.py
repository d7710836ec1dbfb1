"""The quality gates let every precision pass, and catch faults that were put in on purpose."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from suites.meddpm import data
from suites.meddpm.limits import LIMITS, Errors, excess
from suites.meddpm.optimizations import OPTIMIZATIONS, Precision, composed
from suites.meddpm.quality import (
    Configured,
    Quality,
    scales_of,
    similarity,
    with_live_branches,
)
from tests.meddpm.asked import asked
from tests.meddpm.faults import bf16_accumulation, dropped_skip, wrong_epsilon
from tests.meddpm.small import network, volumes

BASELINE = OPTIMIZATIONS["baseline"]
EXACT = Errors(0.0, 0.0, 0.0, 0.0)


class Tf32(TorchFunctionMode):
    """Rounds the factors of convolutions and products to TF32's 10 bits, as the hardware does."""

    ROUNDED = (
        *(functional.conv3d, torch.conv3d, functional.conv1d, torch.conv1d),
        *(functional.linear, torch.bmm),
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.ROUNDED:
            args = (*map(self._rounded, args[:2]), *args[2:])
        return func(*args, **(kwargs or {}))

    @staticmethod
    def _rounded(factor: Tensor) -> Tensor:
        if factor.dtype != torch.float32:
            return factor
        bits = factor.detach().contiguous().view(torch.int32)
        rounded = (((bits + (1 << 12)) >> 13) << 13).view(torch.float32)
        return factor + (rounded - factor).detach()  # the gradient passes


ARITHMETIC: dict[Precision, Callable[[], AbstractContextManager[Any]]] = {
    "ieee": nullcontext,
    "tf32": Tf32,
    # Without its cache: around several steps, it would keep the weights of the first.
    "bf16": lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
}
"""Each precision on a CPU, which has no TF32."""


def looked_at(size: int, folder: Path, curve_steps: int) -> Quality:
    """The small network on so many voxels along an edge, and curves on 8."""
    return Quality(
        with_live_branches(network()),
        data.load("synthetic", size, folder),
        "cpu",
        curve_volumes=volumes(),
        curve_steps=curve_steps,
        chain_steps=8,
        draws=(1,),
    )


@pytest.fixture(scope="module")
def quality(tmp_path_factory: pytest.TempPathFactory) -> Quality:
    """Float64 and the baseline have answered already."""
    quality = looked_at(12, tmp_path_factory.mktemp("data"), curve_steps=5)
    asked(Configured.errors, quality, BASELINE)
    asked(Configured.deviation, quality, BASELINE)
    asked(Configured.similarity, quality, BASELINE)
    return quality


@pytest.mark.parametrize("precision", LIMITS)
def test_every_precision_is_within_its_limits_and_beyond_those_of_a_finer_one(
    precision: Precision, quality: Quality
) -> None:
    with ARITHMETIC[precision]():
        errors = asked(Configured.errors, quality, BASELINE)
        alike = asked(Configured.similarity, quality, BASELINE)
        deviation = asked(Configured.deviation, quality, BASELINE)
    limits = LIMITS[precision]
    assert excess(errors, limits) == []
    assert deviation <= limits.curve
    assert min(alike.ssim, alike.ms_ssim) >= 1 - limits.dissimilarity
    finer = [LIMITS[other] for other in list(LIMITS)[: list(LIMITS).index(precision)]]
    assert all(excess(errors, other) for other in finer)


@pytest.mark.parametrize(
    "name",
    [
        *("channels_last", "padded_channels", "separable_upsampling", "sdpa"),
        "bf16+channels_last+padded_channels+separable_upsampling+sdpa",
    ],
)
def test_other_layouts_and_operations_are_as_exact(name: str, quality: Quality) -> None:
    optimization = composed(name)
    errors = asked(Configured.errors, quality, optimization)
    assert excess(errors, LIMITS[optimization.precision]) == []


@pytest.mark.parametrize(
    ("fault", "precisions", "says"),
    [
        # Where products are rounded to 10 bits, an epsilon of 1e-5 more or less is lost: it is
        # in float32 that a norm shows what it is.
        (wrong_epsilon, ["ieee"], "the output"),
        (bf16_accumulation, ["ieee", "tf32", "bf16"], "the loss"),
        (dropped_skip, ["ieee", "tf32", "bf16"], "the output"),
    ],
)
def test_errors_catch_a_fault(
    fault: Callable[[pytest.MonkeyPatch], None],
    precisions: list[Precision],
    says: str,
    quality: Quality,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault(monkeypatch)
    for precision in precisions:
        with ARITHMETIC[precision]():
            problems = excess(asked(Configured.errors, quality, BASELINE), LIMITS[precision])
        assert any(problem.startswith(says) for problem in problems), (precision, problems)


def test_a_curve_catches_what_no_single_step_shows(tmp_path: Path) -> None:
    """Weights of the first step in every step, which is what a cache of bfloat16 ones comes to."""
    quality = looked_at(8, tmp_path, curve_steps=12)
    asked(Configured.deviation, quality, BASELINE)  # what it is compared with, without the fault
    with torch.autocast("cpu", torch.bfloat16):
        assert excess(asked(Configured.errors, quality, BASELINE), LIMITS["bf16"]) == []
        stale = asked(Configured.deviation, quality, BASELINE)
    assert stale > LIMITS["bf16"].curve


def test_a_sample_catches_a_dropped_skip_connection(
    quality: Quality, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped_skip(monkeypatch)
    alike = asked(Configured.similarity, quality, BASELINE)
    assert min(alike.ssim, alike.ms_ssim) < 1 - LIMITS["bf16"].dissimilarity


@pytest.mark.parametrize("field", ["loss", "output", "gradients", "weight"])
def test_each_error_has_its_limit_and_nan_is_beyond_any(field: str) -> None:
    limits = LIMITS["ieee"]
    allowed = getattr(limits, field)
    assert excess(replace(EXACT, **{field: allowed}), limits) == []
    for error in (2 * allowed, math.nan, math.inf):
        (problem,) = excess(replace(EXACT, worst="conv.weight", **{field: error}), limits)
        assert problem.endswith(f"from float64, relative, and {allowed:.2g} is allowed")


def test_convolutions_of_zeros_are_made_live() -> None:
    diffusion = network()
    assert any(not weight.any() for name, weight in diffusion.named_parameters() if "out" in name)
    with_live_branches(diffusion)
    layers = [m for m in diffusion.modules() if isinstance(m, (nn.Conv1d, nn.Conv3d))]
    assert all(layer.weight.any() for layer in layers)


def test_similarity_is_one_for_the_same_volume_and_less_for_another() -> None:
    torch.manual_seed(0)
    volume = torch.rand(1, 1, 12, 12, 12) * 2 - 1
    same = similarity(volume, volume)
    assert [same.ssim, same.ms_ssim] == pytest.approx([1, 1])
    assert same.scales == 2
    noisy = similarity(volume, (volume + 0.2 * torch.randn_like(volume)).clamp(-1, 1))
    assert 0.5 < noisy.ssim < 0.97
    assert 0.5 < noisy.ms_ssim < 0.99


@pytest.mark.parametrize(("edge", "scales"), [(8, 0), (16, 2), (64, 3), (128, 4), (256, 5)])
def test_a_volume_has_room_for_so_many_scales(edge: int, scales: int) -> None:
    assert scales_of(edge) == scales


def test_a_volume_smaller_than_the_window_is_refused() -> None:
    volume = torch.zeros(1, 1, 8, 8, 8)
    with pytest.raises(ValueError, match="windows of 11 voxels along an edge, and the volumes hav"):
        similarity(volume, volume)
