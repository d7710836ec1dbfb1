"""Med-DDPM's quality gates: no configuration may cost more than its precision does.

What was found is a property of each test in `--junit-xml`, also where it is within the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf.catalogue import architectures
from suites.meddpm.optimizations import ALONE, OPTIMIZATIONS

if TYPE_CHECKING:
    from pytest_gpuperf.plugin.fixture import GpuPerf
    from suites.meddpm.limits import Limits
    from suites.meddpm.optimizations import Optimization
    from suites.meddpm.quality import Configured, Quality

pytestmark = pytest.mark.beyond(last=True)


def _each(*names: str) -> pytest.MarkDecorator:
    """All that is asked of a configuration comes in a row: its network is made once for it.

    In one worker where those have GPUs, or under `--dist loadgroup`: it is compiled once.
    """
    return pytest.mark.parametrize(
        "configuration",
        [
            pytest.param(
                name,
                marks=[
                    pytest.mark.optimization(name),
                    pytest.mark.xdist_group(f"quality of {name}"),
                ],
            )
            for name in names
        ],
        scope="module",
    )


class Compared:
    """What is compared with, and the configuration that was asked last.

    Float64 and the baseline answer once for all tests, on each device.
    """

    def __init__(self) -> None:
        self._by_device: dict[str, Quality] = {}
        self._last = ""
        self._kept = ExitStack()

    def configured(
        self, device: str, made: Callable[[], Quality], optimization: Optimization
    ) -> Configured:
        """The network under `optimization`; `made` makes what there is to compare on `device`."""
        if device not in self._by_device:
            self._by_device[device] = made()
        if self._last != optimization.name:
            self.close()
            quality = self._by_device[device]
            self._answers = self._kept.enter_context(quality.configured(optimization))
            self._last = optimization.name
        return self._answers

    def close(self) -> None:
        """Lets the configuration go."""
        self._last = ""
        self._kept.close()


@pytest.fixture(scope="module")
def compared() -> Iterator[Compared]:
    """One for all tests."""
    compared = Compared()
    yield compared
    compared.close()


@pytest.fixture
def configured(
    request: pytest.FixtureRequest,
    gpuperf: GpuPerf,
    compared: Compared,
    optimization: Optimization,
) -> Configured:
    """The published network on a GPU, a small one without, on a volume of reduced size."""
    device = gpuperf.torch_device.type
    if device == "cpu" and gpuperf.device.arch != architectures.CPU:
        pytest.skip("a recorded run has no numbers of the network: only a device computes them")
    if device == "cpu" and optimization.precision == "bf16":
        pytest.skip(f"{optimization.name}: a CPU emulates bfloat16, which takes it minutes")
    return compared.configured(device, lambda: _quality(request.config, device), optimization)


@pytest.fixture
def limits(optimization: Optimization) -> Limits:
    """Those of the configuration's precision."""
    from suites.meddpm.limits import LIMITS

    return LIMITS[optimization.precision]


@_each(*OPTIMIZATIONS, *ALONE)  # parts by themselves too: float32 shows what TF32 rounds away
def test_errors_against_float64(
    configured: Configured,
    optimization: Optimization,
    limits: Limits,
    request: pytest.FixtureRequest,
    configuration: str,  # noqa: ARG001 -- it names the test
) -> None:
    """Loss, output and gradients on the same weights and noise."""
    from suites.meddpm.limits import excess

    errors = configured.errors()
    request.node.user_properties += asdict(errors).items()
    problems = excess(errors, limits)
    if problems:
        pytest.fail(f"{optimization.name}: " + "\n".join(problems), pytrace=False)


@_each(*OPTIMIZATIONS)
def test_loss_curve(
    configured: Configured,
    optimization: Optimization,
    limits: Limits,
    request: pytest.FixtureRequest,
    configuration: str,  # noqa: ARG001 -- it names the test
) -> None:
    """Training goes the way that it goes under the baseline."""
    deviation = configured.deviation()
    request.node.user_properties.append(("curve", deviation))
    if not deviation <= limits.curve:
        pytest.fail(
            f"{optimization.name}: in some tenth of the training the mean loss is {deviation:.2g} "
            f"from the baseline's, relative, and {limits.curve:.2g} is allowed",
            pytrace=False,
        )


@_each(*OPTIMIZATIONS)
def test_samples_look_alike(
    configured: Configured,
    optimization: Optimization,
    limits: Limits,
    request: pytest.FixtureRequest,
    configuration: str,  # noqa: ARG001 -- it names the test
) -> None:
    """A sample drawn with the same noise as the baseline's looks like it."""
    pytest.importorskip("torchmetrics", reason="pip install torchmetrics, for SSIM of volumes")
    alike = configured.similarity()
    request.node.user_properties += asdict(alike).items()
    if not min(alike.ssim, alike.ms_ssim) >= 1 - limits.dissimilarity:
        pytest.fail(
            f"{optimization.name}: SSIM with the baseline's sample is {alike.ssim:.8f}, MS-SSIM "
            f"of {alike.scales} scales {alike.ms_ssim:.8f}; {1 - limits.dissimilarity:.8f} is "
            "needed",
            pytrace=False,
        )


def _quality(config: pytest.Config, device: str) -> Quality:
    from pathlib import Path

    import torch

    from suites.meddpm import data
    from suites.meddpm.conftest import (
        CURVE_STEPS_ON_A_CPU,
        CURVE_STEPS_ON_A_GPU,
        NETWORK_SIZE,
        QUALITY_SIZE_ON_A_CPU,
        QUALITY_SIZE_ON_A_GPU,
    )
    from suites.meddpm.model import GaussianDiffusion3D, UNet3D, load_weights, med_ddpm
    from suites.meddpm.quality import Quality, with_live_branches

    on_cpu = device == "cpu"
    source, cache = config.getoption("--meddpm-data"), config.rootpath / ".gpuperf" / "data"
    # Where it is missing each test says so, and no network is made for that.
    volumes = data.load(source, QUALITY_SIZE_ON_A_CPU if on_cpu else QUALITY_SIZE_ON_A_GPU, cache)
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
    return Quality(
        with_live_branches(diffusion),
        volumes,
        device,
        curve_steps=curve or (CURVE_STEPS_ON_A_CPU if on_cpu else CURVE_STEPS_ON_A_GPU),
        chain_steps=config.getoption("--meddpm-steps"),
    )
