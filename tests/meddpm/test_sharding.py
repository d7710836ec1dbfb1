"""Steps over ranks of the Med-DDPM suite: their work, and what is left of one for the next."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed

from pytest_gpuperf.storage import run_files
from suites.meddpm.model import GaussianDiffusion3D
from suites.meddpm.optimizations import composed
from suites.meddpm.sharding import SHARDINGS, ShardedStep
from tests import ROOT
from tests.meddpm import small
from tests.plugin.test_conditions import AT_NIGHT

pytestmark = pytest.mark.filterwarnings(
    "ignore:Please use the new API settings",
    "ignore:FSDP2-wrapped module",
    "ignore:Grad strides do not match bucket view strides",
)

CONFIGURATION = "tf32+channels_last+separable_upsampling+sdpa"


@pytest.fixture(autouse=True, scope="module")
def _one_rank() -> Iterator[None]:
    """A process group of this process alone."""
    threads = torch.get_num_threads()
    store = distributed.HashStore()  # type: ignore[attr-defined]
    distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    yield
    distributed.destroy_process_group()
    torch.set_num_threads(threads)


def sharded(sharding: str, diffusion: GaussianDiffusion3D, configuration: str) -> ShardedStep:
    return ShardedStep(
        sharding, diffusion, small.volumes(), composed(configuration), small.unmarked, "cpu"
    )


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_it_learns_what_a_step_of_one_process_does(sharding: str) -> None:
    """One rank shares with nobody, and draws the first rank's noise."""
    diffusion = small.network()
    with composed("tf32").applied(diffusion):
        step = sharded(sharding, diffusion, "tf32")
        losses = [float(step()), float(step())]
        step.reset()
        assert [float(step()), float(step())] == losses
    with small.training_step("tf32") as alone:
        torch.manual_seed(0)
        assert losses == pytest.approx([float(alone()), float(alone())], rel=1e-5)


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_nothing_of_it_is_left_for_the_next_in_the_process(sharding: str) -> None:
    """Under torchrun one follows the other, and a peak of memory would have the weights of both."""
    diffusion = small.network()
    with composed(CONFIGURATION).applied(diffusion):
        step = sharded(sharding, diffusion, CONFIGURATION)
        step()
    left = [weakref.ref(weight) for weight in (*diffusion.parameters(), *step._weights)]
    del diffusion, step
    gc.collect()
    assert {weight() for weight in left} == {None}


@AT_NIGHT
def test_torchruns_ranks_measure_the_whole_file(tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    measuring = ("--gpu-arch=cpu", "--gpuperf-missing=warn", f"--gpuperf-run={run}")
    small_volumes = ("--meddpm-data=synthetic", "--meddpm-size=16")
    apart = ("-p", "no:randomly", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'pytest'}")
    pytest_of_it = ("-m", "pytest", "suites/meddpm/test_ranks.py", *small_volumes, *apart)
    done = subprocess.run(
        [sys.executable, *torchrun, *pytest_of_it, *measuring],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = run_files.load(run).measurements
    assert (first.workload["sharding"], second.workload["sharding"]) == SHARDINGS
    assert [len(measured.peers) for measured in (first, second)] == [2, 2]
