"""Peak memory, memory that runs out, and losses on a real GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import UnsoundStep
from pytest_gpuperf.measure.collector import Phases, Plan, Work
from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector
from pytest_gpuperf.measure.device.memory import suffices
from pytest_gpuperf.model.measurement import STEP

pytestmark = pytest.mark.gpu

PLAN = Plan(metrics=catalogue().hardware_set("core"), rounds=2)
BLOCK = 64 * 2**20


def peak(step: Callable[[], object]) -> tuple[float, ...]:
    """The peak memory of each execution of `step`."""
    collected = CuptiCollector().collect(Work(step, Phases()), PLAN)
    (sample,) = (s for s in collected.samples if (s.phase, s.metric) == (STEP, "peak_memory"))
    return sample.values


def test_the_peak_is_what_the_step_adds_to_what_is_there() -> None:
    import torch

    kept = torch.zeros(BLOCK, dtype=torch.uint8, device="cuda")

    def step() -> None:
        first = torch.zeros_like(kept)
        second = first + kept
        del first
        second.add_(kept)

    assert peak(step) == (2 * BLOCK, 2 * BLOCK)


def test_a_graphs_pool_is_part_of_the_peak() -> None:
    import torch

    kept = torch.zeros(BLOCK // 4, device="cuda")  # a sum of integers would first make wider ones

    def work() -> torch.Tensor:
        return (kept + 1).sum()

    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    peaks = peak(graph.replay)
    assert min(peaks) >= BLOCK
    assert max(peaks) < 1.5 * BLOCK


def test_the_graph_of_an_earlier_step_is_not_part_of_the_peak() -> None:
    """Though it is in a cycle, and a matrix product in it has made cuBLAS take a workspace."""
    import torch

    class Earlier:
        def __init__(self) -> None:
            self.factor = torch.ones(1024, 1024, device="cuda")
            self.graph = torch.cuda.CUDAGraph()
            self.itself = self
            self.factor @ self.factor  # cuBLAS cannot be initialized while capturing
            with torch.cuda.graph(self.graph):
                self.result = self.factor @ self.factor + torch.zeros(BLOCK // 4, device="cuda")[0]

    Earlier().graph.replay()
    kept = torch.zeros(BLOCK // 4, device="cuda")
    assert peak(lambda: kept + 1) == (BLOCK, BLOCK)


def test_running_out_while_counting_leaves_the_device_as_it_was() -> None:
    import torch

    executions = 0

    def step() -> torch.Tensor:
        nonlocal executions
        executions += 1
        work = torch.zeros(BLOCK, dtype=torch.uint8, device="cuda")
        if executions > PLAN.warmup:  # in a pass of the first round
            free, _ = torch.cuda.mem_get_info()
            work = torch.empty(2 * free, dtype=torch.uint8, device="cuda")
        return work

    before = torch.cuda.memory_allocated()
    with pytest.raises(UnsoundStep, match=r"it asked for [\d.]+ GiB; .* free, .* in use by"):
        with suffices():
            CuptiCollector().collect(Work(step, Phases()), PLAN)
    assert torch.cuda.memory_allocated() == before
    collected = CuptiCollector().collect(Work(lambda: torch.ones(8, device="cuda"), Phases()), PLAN)
    assert collected.unsupported == ()


@pytest.mark.parametrize("name", ["baseline", "tf32", "channels_last", "tf32_channels_last"])
def test_sampling_is_the_same_after_every_reset(name: str, tmp_path: Path) -> None:
    import torch

    from suites.meddpm import data
    from suites.meddpm.model import med_ddpm
    from suites.meddpm.optimizations import OPTIMIZATIONS
    from suites.meddpm.sampling import SamplingStep

    torch.manual_seed(0)
    diffusion = med_ddpm(128).to("cuda")
    volumes = data.load("synthetic", 32, tmp_path)
    optimization = OPTIMIZATIONS[name]
    with optimization.applied(diffusion):
        chain = SamplingStep(diffusion, volumes, optimization, "cuda", begin=3, steps=3)
        chain.reset()
        first = chain()
        chain.reset()
        assert torch.equal(chain(), first)
