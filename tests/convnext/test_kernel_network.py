"""The whole network under every kernel configuration, run on the CPU thread by thread."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor

from suites.convnext_ddpm.configurations import CONFIGURATIONS
from suites.convnext_ddpm.crossing import Crossing
from suites.convnext_ddpm.kernels import operators
from suites.convnext_ddpm.kernels.launches import Launcher
from suites.convnext_ddpm.model import seeded_network
from suites.convnext_ddpm.shape import Shape
from suites.convnext_ddpm.step import seeded_model
from suites.convnext_ddpm.transfers import CopiedActivations
from tests.convnext.emulation import Emulator, Recorder
from tests.convnext.small import error, exact, images

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

NAMES = (
    *("naive", "tiled", "naive_norm", "three_kernel_norm", "im2col_bf16", "fused"),
    *("fused_block", "preallocated_skip"),
)
SHAPE, PROCESSORS = Shape(8, (6, 10)), 4
X, T = images(SHAPE, 2), torch.arange(2)


def answer(name: str, launcher: Launcher, patch: pytest.MonkeyPatch) -> Tensor:
    """The network's, where kernels are launched by this launcher."""
    patch.setattr(operators, "DeviceLauncher", lambda: launcher)
    with CONFIGURATIONS[name].applied(seeded_network(SHAPE)) as network, torch.no_grad():
        computed: Tensor = network(X, T)
        return computed


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    """An emulated device that has every kernel of the configurations."""
    recorder = Recorder(PROCESSORS)
    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            answer(name, recorder, patch)
    return Emulator(recorder.launches, tmp_path_factory, PROCESSORS)


def test_all_kernel_configurations_are_here() -> None:
    others = {"compile", "graph", "resident_graph", "resident_pageable"}
    of_a_gpu = {name for name in CONFIGURATIONS if CONFIGURATIONS[name].unavailable("cpu")}
    assert {name for name in of_a_gpu - others if not name.startswith("copy_")} == {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_is_within_the_configurations_bound(
    name: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = error(answer(name, emulator, monkeypatch), exact(SHAPE, X, T))
    assert computed < CONFIGURATIONS[name].bound


def test_activations_may_cross_around_every_kernel(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the transfers on a GPU do it."""
    monkeypatch.setattr(operators, "DeviceLauncher", lambda: emulator)
    images = []
    for name in ("fused", "baseline"):
        model = seeded_model(SHAPE, 2, 3)
        with CONFIGURATIONS[name].applied(model.network):
            crossing = Crossing(torch.device("cpu"), pinned=False, non_blocking=False)
            sampler = CopiedActivations(model, crossing)
            sampler.start(model.first_image, 1)
            sampler.step()
            images.append(sampler.image())
    torch.testing.assert_close(images[0], images[1], rtol=0, atol=1e-4)
