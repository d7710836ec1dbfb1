"""Workers on a real GPU: what another process counts is what the same work counts here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.measure.attached_workers import Workers
from pytest_gpuperf.measure.attachment import attached
from pytest_gpuperf.measure.collector import Collected, Phases, Plan, Work
from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector
from pytest_gpuperf.measure.device import guard, nvml
from pytest_gpuperf.model.measurement import STEP, Peer
from tests.serving import Asked, serving

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = pytest.mark.gpu

EDGE, ITEMS = 1024, 4
PLAN = Plan(
    catalogue().hardware_set("core"),
    rounds=3,
    activity=tuple(m for m in catalogue().selected("core") if m.traced),
)
AGREED = ("instructions", "active_cycles", "launches", "copies", "copy_bytes_h2d_pageable")
"""By the last digits or within 1e-4; active cycles depend on clocks and neighbours."""


def product(number: int) -> Tensor:
    """What a worker is asked for: a copy to the device, products, and the result there."""
    import torch

    given = torch.full((EDGE, EDGE), float(number)).to("cuda")
    for _ in range(5):
        given = (given @ given).clamp(-1, 1)
    return given


def serve(pipe: Any) -> None:
    """An inference worker: answers until it gets None."""
    import torch

    while (number := pipe.recv()) is not None:
        with attached("server"):
            product(number)
            torch.cuda.synchronize()
        pipe.send(None)


class Products:
    """A dataset that computes on the device."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, number: int) -> int:
        import torch

        with attached("loader"):
            product(number)
            torch.cuda.synchronize()
        return number


def served() -> AbstractContextManager[Asked]:
    """A spawned inference worker."""
    return serving(serve)


def collect(step: Callable[[], object], workers: Workers | None = None) -> Collected:
    if workers:
        workers.begin()
    return CuptiCollector().collect(Work(step, Phases(), workers=workers), PLAN)


def values(of: Collected | Peer) -> dict[str, tuple[float, ...]]:
    return {s.metric: s.values for s in of.samples if s.phase == STEP}


def agree(here: dict[str, tuple[float, ...]], there: dict[str, tuple[float, ...]]) -> None:
    print({name: (here[name], there[name]) for name in AGREED})
    for name in AGREED:
        within = 0.5 if name == "active_cycles" else 1e-4
        assert max(there[name]) == pytest.approx(max(here[name]), rel=within), name
        assert min(there[name]) == pytest.approx(min(here[name]), rel=within), name


def test_a_spawned_worker_counts_what_the_same_work_counts_here() -> None:
    here = values(collect(lambda: product(3)))
    device = nvml.detect_device()
    assert device
    with Workers() as workers, served() as ask:
        ask(3)
        there = collect(lambda: ask(3), workers)
        (server,) = workers.peers(device)
        assert guard.read(workers=workers.pids).other_processes == ()
    agree(here, values(server))
    # This process did nothing: the step has what the worker did.
    agree(here, values(there))
    counted = values(there)
    assert counted["ipc"] == pytest.approx(here["ipc"], rel=0.5)
    assert min(counted["kernel_time"]) == pytest.approx(min(here["kernel_time"]), rel=0.2)


def test_what_the_test_s_own_process_does_is_added() -> None:
    here = values(collect(lambda: product(3)))
    with Workers() as workers, served() as ask:

        def step() -> None:
            product(3)
            ask(3)

        both = values(collect(step, workers))
    doubled = {name: tuple(2 * value for value in here[name]) for name in AGREED}
    agree(doubled, both)


def test_a_loader_whose_workers_compute_on_the_gpu() -> None:
    from torch.utils.data import DataLoader

    here = values(collect(lambda: [product(number) for number in range(ITEMS)]))
    with Workers() as workers:
        loader: Any = DataLoader(
            Products(),  # type: ignore[arg-type]
            num_workers=2,
            persistent_workers=True,
            multiprocessing_context="spawn",
        )
        there = values(collect(partial(list, loader), workers))
        names = [peer.name for peer in workers.peers(nvml.portable_device())]
        del loader
    assert names == ["loader", "loader 2"]
    agree(here, there)


def test_a_program_that_every_step_starts(tmp_path: Path) -> None:
    import subprocess

    program = tmp_path / "infer.py"
    program.write_text(
        "import torch\nfrom tests.gpu.test_workers import product\n"
        "product(3)\ntorch.cuda.synchronize()\n"
    )
    command = [sys.executable, "-m", "pytest_gpuperf", "attach", "--name", "infer", str(program)]
    here = values(collect(lambda: product(3)))
    with Workers() as workers:
        there = values(collect(lambda: subprocess.run(command, check=True), workers))
    # A process that begins makes a handle of cuBLAS, which fills its workspace.
    assert min(there["instructions"]) == pytest.approx(min(here["instructions"]), rel=0.01)
