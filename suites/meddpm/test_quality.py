"""Med-DDPM's quality gates: no configuration may cost more than its precision does.

What was found is a property of each test in `--junit-xml`, also where it is within the limits.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf.catalogue import architectures
from suites.meddpm.optimizations import ALONE, OPTIMIZATIONS

if TYPE_CHECKING:
    from pytest_gpuperf.plugin.fixture import GpuPerf
    from suites.meddpm.limits import Limits
    from suites.meddpm.optimizations import Optimization
    from suites.meddpm.quality import Quality

SIZE_ON_A_GPU = 48
"""Room for three scales of MS-SSIM."""
CURVE_SIZE_ON_A_GPU = 32
"""Of the loss curves: 200 steps of every configuration take minutes and not half an hour."""
SIZE_ON_A_CPU = 16

pytestmark = pytest.mark.beyond(last=True)


def _each(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "configuration",
        [pytest.param(name, marks=pytest.mark.optimization(name)) for name in names],
    )


@pytest.fixture(scope="module")
def compared() -> dict[str, Quality]:
    """What is compared with, by device: float64 and the baseline answer once for all tests."""
    return {}


@pytest.fixture
def quality(
    request: pytest.FixtureRequest, gpuperf: GpuPerf, compared: dict[str, Quality]
) -> Quality:
    """The published network on a GPU, a small one without, on a volume of reduced size."""
    device = gpuperf.torch_device
    if device == "cpu" and gpuperf.device.arch != architectures.CPU:
        pytest.skip("a recorded run has no numbers of the network: only a device computes them")
    if device not in compared:
        compared[device] = _quality(request.config, device)
    return compared[device]


@pytest.fixture
def limits(optimization: Optimization) -> Limits:
    """Those of the configuration's precision."""
    from suites.meddpm.limits import LIMITS

    return LIMITS[optimization.precision]


@_each(*OPTIMIZATIONS, *ALONE)  # parts by themselves too: float32 shows what TF32 rounds away
def test_errors_against_float64(
    quality: Quality,
    optimization: Optimization,
    limits: Limits,
    request: pytest.FixtureRequest,
    configuration: str,  # noqa: ARG001 -- it names the test
) -> None:
    """Loss, output and gradients on the same weights and noise."""
    from suites.meddpm.limits import excess

    errors = quality.errors(optimization)
    request.node.user_properties += asdict(errors).items()
    problems = excess(errors, limits)
    if problems:
        pytest.fail(f"{optimization.name}: " + "\n".join(problems), pytrace=False)


@_each(*OPTIMIZATIONS)
def test_loss_curve(
    quality: Quality,
    optimization: Optimization,
    limits: Limits,
    request: pytest.FixtureRequest,
    configuration: str,  # noqa: ARG001 -- it names the test
) -> None:
    """Training goes the way that it goes under the baseline."""
    deviation = quality.deviation(optimization)
    request.node.user_properties.append(("curve", deviation))
    if not deviation <= limits.curve:
        pytest.fail(
            f"{optimization.name}: in some tenth of the training the mean loss is {deviation:.2g} "
            f"from the baseline's, relative, and {limits.curve:.2g} is allowed",
            pytrace=False,
        )


@_each(*OPTIMIZATIONS)
def test_samples_look_alike(
    quality: Quality,
    optimization: Optimization,
    limits: Limits,
    request: pytest.FixtureRequest,
    configuration: str,  # noqa: ARG001 -- it names the test
) -> None:
    """A sample drawn with the same noise as the baseline's looks like it."""
    pytest.importorskip("torchmetrics", reason="pip install torchmetrics, for SSIM of volumes")
    found = quality.similarity(optimization)
    request.node.user_properties += asdict(found).items()
    if not min(found.ssim, found.ms_ssim) >= 1 - limits.dissimilarity:
        pytest.fail(
            f"{optimization.name}: SSIM with the baseline's sample is {found.ssim:.8f}, MS-SSIM "
            f"of {found.scales} scales {found.ms_ssim:.8f}; {1 - limits.dissimilarity:.8f} is "
            "needed",
            pytrace=False,
        )


def _quality(config: pytest.Config, device: str) -> Quality:
    from pathlib import Path

    import torch

    from suites.meddpm import data
    from suites.meddpm.conftest import CURVE_STEPS_ON_A_CPU, CURVE_STEPS_ON_A_GPU, NETWORK_SIZE
    from suites.meddpm.model import GaussianDiffusion3D, UNet3D, load_weights, med_ddpm
    from suites.meddpm.quality import Quality, with_live_branches

    on_cpu = device == "cpu"
    torch.manual_seed(0)
    diffusion = (
        GaussianDiffusion3D(
            UNet3D(3, 1, model_channels=32, channel_multipliers=(1, 2), attention_factors=(2,))
        )
        if on_cpu
        else med_ddpm(NETWORK_SIZE)
    )
    weights = config.getoption("--meddpm-weights")
    if weights and not on_cpu:
        load_weights(diffusion, Path(weights))
    curve: int | None = config.getoption("--meddpm-curve-steps")
    source, cache = config.getoption("--meddpm-data"), config.rootpath / ".gpuperf" / "data"
    size, curve_size = (
        (SIZE_ON_A_CPU, SIZE_ON_A_CPU) if on_cpu else (SIZE_ON_A_GPU, CURVE_SIZE_ON_A_GPU)
    )
    return Quality(
        with_live_branches(diffusion),
        data.load(source, size, cache),
        device,
        curve_volumes=data.load(source, curve_size, cache),
        curve_steps=curve or (CURVE_STEPS_ON_A_CPU if on_cpu else CURVE_STEPS_ON_A_GPU),
        chain_steps=config.getoption("--meddpm-steps"),
    )
