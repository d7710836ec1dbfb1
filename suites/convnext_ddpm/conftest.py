"""Options and fixtures of the ConvNeXt DDPM suite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from suites.convnext_ddpm.shape import Shape

if TYPE_CHECKING:
    import torch

    from pytest_gpuperf.model.measurement import Scalar
    from pytest_gpuperf.plugin.fixture import GpuPerf
    from suites.convnext_ddpm.configurations import Configuration
    from suites.convnext_ddpm.loading import WeightLoading
    from suites.convnext_ddpm.step import Chain, SamplingStep, TrainingStep
    from suites.convnext_ddpm.transfers import Model, Sampler

ON_A_GPU = Shape(64, (32, 64, 128, 256))
"""The reports' image and network."""
ON_A_CPU = Shape(32, (16, 32, 64, 128))
"""CIFAR's image size, and half the channels: what a CPU computes in a fraction of a second."""
STEPS_ON_A_GPU = 100
STEPS_ON_A_CPU = 5


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers the suite's own flags."""
    group = parser.getgroup("convnext", "ConvNeXt DDPM suite")
    group.addoption(
        "--convnext-size",
        metavar="N",
        type=int,
        help="edge of the image, a multiple of 8 with four widths; "
        f"default: {ON_A_GPU.size} on a GPU, {ON_A_CPU.size} without one",
    )
    group.addoption(
        "--convnext-widths",
        metavar="N,N,...",
        help=f"channels of each level; default: {_written(ON_A_GPU.widths)} on a GPU, "
        f"{_written(ON_A_CPU.widths)} without one",
    )
    group.addoption(
        "--convnext-batch",
        metavar="N",
        type=int,
        default=1,
        help="images per batch; default: %(default)s",
    )
    group.addoption(
        "--convnext-steps",
        metavar="N",
        type=int,
        help=f"time steps of a sampling chain; default: {STEPS_ON_A_GPU} on a GPU, "
        f"{STEPS_ON_A_CPU} without one",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Checks the suite's flags before anything runs."""
    try:
        for default in (ON_A_GPU, ON_A_CPU):
            _shape(config, default)
    except ValueError as error:
        raise pytest.UsageError(f"--convnext-size, --convnext-widths: {error}") from None
    for flag, least in (("--convnext-batch", 1), ("--convnext-steps", 2)):
        number = config.getoption(flag, None)
        if number is not None and number < least:
            raise pytest.UsageError(f"{flag} {number}: {least} or more are needed")


@pytest.fixture
def shape(request: pytest.FixtureRequest, gpuperf: GpuPerf) -> Shape:
    """The size of images and network."""
    return _shape(request.config, ON_A_CPU if gpuperf.torch_device.type == "cpu" else ON_A_GPU)


@pytest.fixture
def batch(request: pytest.FixtureRequest) -> int:
    """How many images there are at a time."""
    number: int = request.config.getoption("--convnext-batch")
    return number


@pytest.fixture
def steps(request: pytest.FixtureRequest, gpuperf: GpuPerf) -> int:
    """Time steps of a whole sampling."""
    asked: int | None = request.config.getoption("--convnext-steps")
    return asked or (STEPS_ON_A_CPU if gpuperf.torch_device.type == "cpu" else STEPS_ON_A_GPU)


@pytest.fixture
def workload(shape: Shape, batch: int) -> dict[str, Scalar]:
    """What is run, for the baselines."""
    return {"size": shape.size, "batch": batch, "widths": _written(shape.widths)}


@pytest.fixture
def device(gpuperf: GpuPerf) -> Iterator[torch.device]:
    """Where tensors belong.

    A CPU computes with one thread: at these sizes threads wait for each other for longer than they
    work, and far longer where something else runs beside them. Of a GPU, the next configuration
    is given the memory that this one's allocator still holds.
    """
    import torch

    threads = torch.get_num_threads()
    if gpuperf.torch_device.type == "cpu":
        torch.set_num_threads(1)
    yield torch.device(gpuperf.torch_device.type)
    torch.set_num_threads(threads)
    if gpuperf.torch_device.type == "cuda":
        torch.cuda.empty_cache()


@pytest.fixture
def model(gpuperf: GpuPerf, shape: Shape, batch: int, steps: int) -> Model:
    """Seeded network, process and noise, on the CPU; what samples from it takes it over."""
    from suites.convnext_ddpm.step import seeded_model

    return seeded_model(shape, batch, steps, gpuperf.component)


@pytest.fixture
def wanted(gpuperf: GpuPerf, configuration: str) -> Configuration:
    """The configuration that the test is parametrised with; skips where there is none of it.

    Of a GPU's run that is replayed without one, nothing executes: the baseline stands in.
    """
    from suites.convnext_ddpm.configurations import CONFIGURATIONS

    chosen = CONFIGURATIONS[configuration]
    _skip_for(chosen.unavailable(gpuperf.device.arch))
    replayed = gpuperf.torch_device.type == "cpu" and chosen.without_gpu is not None
    return CONFIGURATIONS["baseline"] if replayed else chosen


@pytest.fixture
def training_step(
    gpuperf: GpuPerf, wanted: Configuration, model: Model, device: torch.device
) -> Iterator[TrainingStep]:
    """One training step under the test's configuration."""
    import torch

    from suites.convnext_ddpm.step import TrainingStep, seeded_images

    network, diffusion = model.network, model.diffusion
    images = seeded_images(network.shape, model.first_image.shape[0])
    torch.manual_seed(0)
    with wanted.applied(network, gpuperf.component):
        yield TrainingStep(network, diffusion, images, gpuperf.phase, device)


@pytest.fixture
def sampler(
    gpuperf: GpuPerf, wanted: Configuration, model: Model, device: torch.device
) -> Iterator[Sampler]:
    """Samples from the model under the test's configuration."""
    with wanted.sampling(model, device, gpuperf.component) as chosen:
        yield chosen


@pytest.fixture
def sampling_step(sampler: Sampler, model: Model) -> SamplingStep:
    """One time step of sampling, from the middle of the process."""
    from suites.convnext_ddpm.step import SamplingStep

    return SamplingStep(sampler, model.first_image, model.diffusion.timesteps // 2)


@pytest.fixture
def chain(sampler: Sampler, model: Model) -> Chain:
    """A whole sampling."""
    from suites.convnext_ddpm.step import Chain

    return Chain(sampler, model)


@pytest.fixture
def weight_loading(
    gpuperf: GpuPerf, model: Model, loading: str, device: torch.device
) -> Iterator[WeightLoading]:
    """Weights to the device and the first time step, in the way that the test names."""
    from suites.convnext_ddpm.configurations import LOADINGS

    chosen = LOADINGS[loading]
    _skip_for(chosen.unavailable(gpuperf.device.arch))
    with chosen.loading(model, device, gpuperf.component) as loaded:
        yield loaded


def _skip_for(unavailable: str | None) -> None:
    if unavailable:
        pytest.skip(unavailable)


def _shape(config: pytest.Config, default: Shape) -> Shape:
    """What the flags say, else `default`'s. Raises ValueError."""
    size = config.getoption("--convnext-size", None)
    widths = config.getoption("--convnext-widths", None)
    return Shape(
        default.size if size is None else size,
        default.widths if widths is None else tuple(map(int, widths.split(","))),
    )


def _written(widths: tuple[int, ...]) -> str:
    return ",".join(map(str, widths))
