"""Ranks on real GPUs, over NCCL: what they count, and what is said when one of them fails."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.projects import project
from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.storage import run_files
from tests.gpu.sessions import session

pytestmark = pytest.mark.gpu

RANKS = 2
TIME_LIMIT_S = 20
DATA_PARALLEL = """
import os
import signal
import time
from datetime import timedelta

executed = [0]


def test_step(gpuperf):
    def entry(rank):
        import torch
        from torch import distributed, nn
        from torch.nn.parallel import DistributedDataParallel

        distributed.init_process_group("nccl", timeout=timedelta(seconds=NCCL_S))
        torch.manual_seed(0)
        layers = [nn.Linear(1024, 1024) for _ in range(8)]
        model = DistributedDataParallel(nn.Sequential(*layers).cuda())
        given = torch.ones(4096, 1024, device="cuda")

        def reset():
            model.zero_grad(set_to_none=True)

        def step():
            executed[0] += 1
            with gpuperf.phase("forward"):
                loss = model(given).sum()
            if rank == 1 and executed[0] == AT_FAULT:
                FAULT
            with gpuperf.phase("backward"):
                loss.backward()

        for _ in range(3):  # in the second it makes its buckets anew
            reset()
            step()
        step.reset = reset
        if rank == 1:
            BEFORE
        return step

    gpuperf.measure_ranks(entry, RANKS)
"""
AT_FAULT = 6
"""The third execution that is measured: the phases are known, and counters are being read."""


@pytest.fixture(autouse=True, scope="module")
def _several_gpus() -> None:
    if len(nvml.visible_gpus()) < RANKS:
        pytest.skip(f"needs {RANKS} GPUs")


def ranks(
    folder: Path,
    *flags: str,
    fault: str = "pass",
    before: str = "pass",
    nccl_s: float = 600.0,
) -> tuple[int, str]:
    """The exit code of a session of ranks and what it printed, in one line.

    `fault` is what happens to rank 1 between its phases, `before` what it does before it measures.
    """
    source = DATA_PARALLEL
    said = {"AT_FAULT": AT_FAULT, "FAULT": fault, "BEFORE": before, "NCCL_S": nccl_s}
    for name, text in {**said, "RANKS": RANKS}.items():
        source = source.replace(name, str(text))
    flags = (f"--gpuperf-time-limit={TIME_LIMIT_S}", "--gpuperf-missing=warn", *flags)
    code, printed = session(project(folder, source), *flags)
    return code, " ".join(printed.split())


def of_rank(measured: Measurement, rank: int) -> dict[str, tuple[float, ...]]:
    """A rank's values of the whole step, by metric."""
    return {s.metric: s.values for s in measured.peers[rank].samples if s.phase == STEP}


def left_behind(folder: Path) -> list[str]:
    """Processes that still run in the folder, and those that have memory of a GPU."""
    found = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True)
    running = [line for line in found.stdout.splitlines() if str(folder) in line]
    query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    on_gpus = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    return [*running, *(pid for pid in on_gpus if pid != str(os.getpid()))]


def test_ranks_bring_their_counters_and_collectives(tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    # Nobody decides after how many rounds it is enough.
    flags = ("--gpuperf-rounds=50", "--gpuperf-no-judge")
    code, _ = ranks(tmp_path, *flags, f"--gpuperf-run={run}")
    assert code == 0
    (measured,) = run_files.load(run).measurements
    by_rank = [of_rank(measured, rank) for rank in range(RANKS)]
    print({name: values[:3] for name, values in by_rank[0].items()})
    assert all(len(one["instructions"]) == 50 for one in by_rank)
    assert all(peer.collectives for peer in measured.peers)
    of_step = {sample.metric for sample in measured.samples if sample.phase == STEP}
    assert {"step_time", "own_time", "collective_time"} <= of_step
    assert left_behind(tmp_path) == []


HANGS = "time.sleep(600)"
PROFILED = "step.profiler = torch.profiler.profile(); step.profiler.start()"
AT_FAULT_ARE: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "killed": (
        {"fault": "os.kill(os.getpid(), signal.SIGKILL)"},
        ("all ranks stopped", "was ended by SIGKILL"),
    ),
    "raises": (
        {"fault": "assert False, 'boom'"},
        ("all ranks stopped", "AssertionError: boom"),
    ),
    "hangs": ({"fault": HANGS}, ("all ranks stopped", "rank 1 made no progress for")),
    "leaves early": (
        {"fault": "return"},
        ("all ranks stopped", " waited for the other ranks before"),
    ),
    "another profiler": ({"before": PROFILED}, ("rank 1 failed", "torch.profiler is recording")),
    # NCCL ends the process that waits, which is not the one that did not come.
    "NCCL's time-out": ({"fault": HANGS, "nccl_s": 5}, ("all ranks stopped",)),
}


@pytest.mark.parametrize("kind", AT_FAULT_ARE)
def test_a_rank_at_fault_is_named_and_nothing_is_left(kind: str, tmp_path: Path) -> None:
    what, said = AT_FAULT_ARE[kind]
    code, printed = ranks(tmp_path, **what)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "rank 1" in printed
    for text in said:
        assert text in printed
    assert left_behind(tmp_path) == []
