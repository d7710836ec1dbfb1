"""The losses that benchmarks/seeds.py puts into the step: each is what it says, nothing else."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from benchmarks import seeds
from pytest_gpuperf.collect.base import Phases, Plan, Work
from pytest_gpuperf.collect.cpu import CpuCollector
from pytest_gpuperf.model import STEP
from suites.meddpm.data import load
from suites.meddpm.model import GaussianDiffusion3D, UNet3D
from suites.meddpm.model.layers import ResidualBlock
from suites.meddpm.optimizations import OPTIMIZATIONS
from suites.meddpm.step import TrainingStep


def configure(seed: str) -> None:
    """Loads the plugin with this loss."""
    options = {"--seed": seed, "--seed-share": 1e-9}
    seeds.pytest_configure(cast(Any, SimpleNamespace(getoption=options.__getitem__)))


def counts(seed: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The portable counts of a small channels-last step with this loss."""
    # Put back afterwards: the plugin changes the class for the rest of its process.
    for method in ("__init__", "__call__"):
        monkeypatch.setattr(TrainingStep, method, getattr(TrainingStep, method))
    configure(seed)
    torch.manual_seed(11)
    diffusion = GaussianDiffusion3D(
        UNet3D(3, 1, model_channels=32, channel_multipliers=(1, 2), attention_factors=(2,))
    )
    optimization = OPTIMIZATIONS["tf32_channels_last"]
    with optimization.applied(diffusion):
        volumes = load("synthetic", 8, folder)
        step = TrainingStep(diffusion, volumes, optimization, lambda _: nullcontext(), "cpu")
        found = CpuCollector().collect(
            Work(step, Phases(), step.reset), Plan((), rounds=1, repetitions=1, warmup=1)
        )
    monkeypatch.undo()
    return {s.metric: s.values[0] for s in found.samples if s.phase == STEP}


@pytest.mark.parametrize(
    ("seed", "operators"),
    [("none", 0), ("extra-kernel", 1), ("instructions", 1), ("conv-fp32", 0)],
)
def test_a_kernel_more_is_one_operator_more(
    seed: str,
    operators: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = counts("none", tmp_path, monkeypatch)
    seeded = counts(seed, tmp_path, monkeypatch)
    assert seeded["operators"] - plain["operators"] == operators
    assert seeded["layout_copies"] == plain["layout_copies"]
    assert seeded["flops"] == plain["flops"]


def test_a_redundant_contiguous_ends_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    block = ResidualBlock(32, 32, embedding_size=8)
    x = torch.randn(1, 32, 4, 4, 4).to(memory_format=torch.channels_last_3d)
    embedding = torch.randn(1, 8)
    before = block(x, embedding)
    assert before.is_contiguous(memory_format=torch.channels_last_3d)
    monkeypatch.setattr(
        TrainingStep, "__init__", lambda step, diffusion: setattr(step, "diffusion", diffusion)
    )
    configure("contiguous")
    TrainingStep(torch.nn.Sequential(block))  # type: ignore[call-arg, arg-type]
    after = block(x, embedding)
    assert after.is_contiguous()
    assert torch.equal(before, after)
