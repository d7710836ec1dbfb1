"""Options and fixtures of the Med-DDPM suite."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf.catalogue import architectures

if TYPE_CHECKING:
    from pytest_gpuperf.model.measurement import Scalar
    from pytest_gpuperf.plugin.fixture import GpuPerf
    from suites.meddpm.data import Volumes
    from suites.meddpm.model import GaussianDiffusion3D
    from suites.meddpm.optimizations import Optimization
    from suites.meddpm.step import TrainingStep

SIZE_ON_A_GPU = 128
"""The paper's input: 128 x 128 x 128 (section 3)."""
SIZE_ON_A_CPU = 16
"""The same network on a volume that a CPU trains in seconds."""
CHAIN_STEPS = 25
"""Of the 250 steps of sampling: enough for what a chain costs to show, a tenth of the time."""
CURVE_STEPS_ON_A_GPU = 60
"""Weights that a cache keeps stale show after 12 (tests/meddpm/test_quality.py)."""
CURVE_STEPS_ON_A_CPU = 10
QUALITY_SIZE_ON_A_GPU = 32
"""That on which faults are put in on purpose (tests/gpu/test_quality.py)."""
QUALITY_SIZE_ON_A_CPU = 16
TIMESTEPS = 250  # model/diffusion.py, which is not imported before a test needs it
NETWORK_SIZE = 128
"""The published network of this image size, whatever the volume's: it is fully convolutional."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers the suite's own flags."""
    group = parser.getgroup("meddpm", "Med-DDPM suite")
    group.addoption(
        "--meddpm-data",
        metavar="SOURCE",
        default="mni152",
        help="mni152 (the template of nilearn), synthetic (a seeded phantom), or a "
        "folder with NIfTI image and mask pairs; default: %(default)s",
    )
    group.addoption(
        "--meddpm-weights",
        metavar="FILE",
        help="train the `ema` weights of this released checkpoint; default: seeded weights",
    )
    group.addoption(
        "--meddpm-configuration",
        metavar="NAME",
        action="append",
        default=[],
        help="also train with this combination of parts, for example bf16+compile+sdpa; repeatable",
    )
    group.addoption(
        "--meddpm-size",
        metavar="N",
        type=int,
        help=f"edge of the volume, a multiple of 16; default: {SIZE_ON_A_GPU} on a GPU, "
        f"{SIZE_ON_A_CPU} without one",
    )
    group.addoption(
        "--meddpm-steps",
        metavar="N",
        type=int,
        default=CHAIN_STEPS,
        help="sampling steps to measure, at most 250; default: %(default)s",
    )
    group.addoption(
        "--meddpm-curve-steps",
        metavar="N",
        type=int,
        help="training steps of the loss curve; default: "
        f"{CURVE_STEPS_ON_A_GPU} on a GPU, {CURVE_STEPS_ON_A_CPU} without one",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Checks the suite's flags before anything runs."""
    size = config.getoption("--meddpm-size", None)
    if size is not None and (size < 16 or size % 16):
        raise pytest.UsageError(f"--meddpm-size {size}: a multiple of 16 is needed, from 16 on")
    steps = config.getoption("--meddpm-steps", CHAIN_STEPS)
    if not 1 <= steps <= TIMESTEPS:
        raise pytest.UsageError(f"--meddpm-steps {steps}: the process has 1 to {TIMESTEPS}")
    curve = config.getoption("--meddpm-curve-steps", None)
    if curve is not None and curve < 1:
        raise pytest.UsageError(f"--meddpm-curve-steps {curve}: at least 1 is needed")
    asked = config.getoption("--meddpm-configuration", [])
    if asked:
        # Here, because it imports torch.
        from pytest_gpuperf.errors import UsageFailure
        from suites.meddpm.optimizations import composed

        try:
            for name in asked:
                composed(name)
        except UsageFailure as failure:
            raise pytest.UsageError(f"--meddpm-configuration: {failure}") from None


@pytest.fixture
def volumes(request: pytest.FixtureRequest, gpuperf: GpuPerf) -> Volumes:
    """The image and its mask, prepared and cached under `.gpuperf/data`."""
    from suites.meddpm import data

    size = request.config.getoption("--meddpm-size")
    if size is None:
        size = SIZE_ON_A_CPU if gpuperf.torch_device.type == "cpu" else SIZE_ON_A_GPU
    source = request.config.getoption("--meddpm-data")
    return data.load(source, size, request.config.rootpath / ".gpuperf" / "data")


@pytest.fixture
def optimization(configuration: str, gpuperf: GpuPerf) -> Optimization:
    """The configuration that the test is parametrised with; skips where it cannot run."""
    from suites.meddpm.optimizations import composed

    chosen = composed(configuration)
    unavailable = chosen.unavailable(gpuperf.device.arch)
    if unavailable:
        pytest.skip(unavailable)
    return chosen


@pytest.fixture(scope="session")
def network(request: pytest.FixtureRequest) -> GaussianDiffusion3D:
    """The network on the host, with the weights that every configuration begins with.

    Drawing 40 million of them takes several times as long as a copy does.
    """
    import torch

    from suites.meddpm.model import load_weights, med_ddpm

    torch.manual_seed(0)
    diffusion = med_ddpm(NETWORK_SIZE)
    weights = request.config.getoption("--meddpm-weights")
    if weights:
        load_weights(diffusion, Path(weights))
    return diffusion


@pytest.fixture
def optimized(
    network: GaussianDiffusion3D, gpuperf: GpuPerf, optimization: Optimization
) -> Iterator[GaussianDiffusion3D]:
    """The network and its diffusion process, with the optimization applied."""
    import torch

    from suites.meddpm.optimizations import PAPER

    if gpuperf.device.arch == architectures.CPU and optimization.name not in PAPER:
        pytest.skip(
            f"{optimization.name}: what it changes is how a GPU works; a CPU counts "
            f"{', '.join(PAPER)} only"
        )
    torch.manual_seed(0)
    diffusion = _copied(network, gpuperf.torch_device.type)
    with optimization.applied(diffusion):
        yield diffusion
    # The next configuration needs the memory that this one's allocator still holds; a step and
    # its graph are a cycle.
    del diffusion
    if gpuperf.torch_device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def _copied(network: GaussianDiffusion3D, device: str) -> GaussianDiffusion3D:
    """A copy of the network on the device, which is not copied on the host first."""
    from torch import nn

    if device == "cpu":
        return copy.deepcopy(network)
    weights = {id(weight): nn.Parameter(weight.detach()) for weight in network.parameters()}
    buffers = {id(buffer): buffer.detach() for buffer in network.buffers()}
    return copy.deepcopy(network, {**weights, **buffers}).to(device)


@pytest.fixture
def training_step(
    gpuperf: GpuPerf,
    volumes: Volumes,
    optimized: GaussianDiffusion3D,
    optimization: Optimization,
) -> TrainingStep:
    """One training step under the test's optimization."""
    from suites.meddpm.step import TrainingStep

    return TrainingStep(optimized, volumes, optimization, gpuperf.phase, gpuperf.torch_device.type)


@pytest.fixture
def workload(request: pytest.FixtureRequest, volumes: Volumes) -> dict[str, Scalar]:
    """What is run, for the measurement: baselines of another size or data do not apply."""
    weights = "checkpoint" if request.config.getoption("--meddpm-weights") else "seeded"
    size = volumes.image.shape[-1]
    return {"size": size, "batch": 1, "data": volumes.source, "weights": weights}
