"""Workers: what other processes count for a step is what this one would."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import pytest_gpuperf
from pytest_gpuperf import __main__
from pytest_gpuperf.errors import (
    BAD_CONFIGURATION,
    CountersUnavailable,
    MeasurementError,
    UnsoundStep,
)
from pytest_gpuperf.measure.attached_workers import BEGINS, CUPTI, ENDS, NAME, VARIABLE, Workers
from pytest_gpuperf.measure.attachment import attached
from pytest_gpuperf.measure.collector import Phases, Plan, Work
from pytest_gpuperf.measure.cpu.cpu_collector import CpuCollector
from pytest_gpuperf.measure.cpu.dispatch import StepCounter
from pytest_gpuperf.measure.device.nvml import portable_device
from pytest_gpuperf.measure.meeting import connect
from pytest_gpuperf.model.measurement import STEP
from tests.plugin.test_conditions import AT_NIGHT

PLAN = Plan(metrics=(), rounds=2, repetitions=1)


class Products(Dataset[Tensor]):
    """Eight items, for each of which a worker multiplies matrices."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> Tensor:
        with attached("loader"):
            return (torch.ones(4, 4) @ torch.full((4, 4), float(number))).sum()


def infer(given: Tensor) -> float:
    """What a worker is asked for."""
    with attached("inference"):
        return float(torch.relu(given @ given).sum())


def consume(loader: DataLoader[Tensor]) -> None:
    """A pass through it: when it is over, nothing is read ahead."""
    for batch in loader:
        batch.sum()


def serve(pipe: Any) -> None:
    """An inference worker: answers until it gets None."""
    while (given := pipe.recv()) is not None:
        pipe.send(infer(given))


def counted(act: Callable[[], object]) -> dict[str, float]:
    """What is counted of it in this process."""
    counter = StepCounter()
    with counter.watching():
        act()
    counter.memory.end()
    return {metric: float(value) for metric, value in asdict(counter.step).items()}


def of_workers(workers: Workers) -> dict[str, dict[str, tuple[float, ...]]]:
    return {
        peer.name: {sample.metric: sample.values for sample in peer.samples}
        for peer in workers.peers(portable_device())
    }


def test_where_no_test_waits_a_block_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert pytest_gpuperf.attached is attached
    with attached():
        assert torch.ones(2).sum() == 2
    with pytest.raises(AttributeError, match="attachd"):
        _ = pytest_gpuperf.attachd


def test_what_a_worker_does_in_a_counted_execution_is_counted_and_nothing_else() -> None:
    given = torch.ones(4, 4)
    with Workers() as workers:
        infer(given)
        with workers.counting() as counts:
            infer(given)
            with attached("inference"), attached("inside of it"):
                given.neg()
        workers.keep([counts])
        infer(given)
    alone, negation = counted(lambda: torch.relu(given @ given).sum()), counted(given.neg)
    total = workers.counted()
    assert total["flops"] == alone["flops"] == 2 * 4**3
    assert of_workers(workers)["inference"]["flops"] == (total["flops"],)
    assert total["operators"] >= alone["operators"] + negation["operators"]
    assert [*of_workers(workers)] == ["inference"]  # a block inside another is a part of that


def test_what_a_step_does_itself_in_a_block_is_counted_once() -> None:
    """A loader without workers computes its items in the test's own process."""
    given = torch.ones(4, 4)
    with Workers() as workers:
        workers.begin()
        work = Work(partial(infer, given), Phases(), workers=workers)
        collected = CpuCollector().collect(work, PLAN)
    of_step = {s.metric: s.values for s in collected.samples if s.phase == STEP}
    assert of_step["flops"] == (2 * 4**3,) * 2
    assert workers.peers(portable_device()) == ()


def test_a_worker_that_refuses_hooks_leaves_the_saved_bytes_of_the_step_unknown() -> None:
    def per_sample() -> None:
        with attached("per sample"):
            torch.func.vmap(torch.func.grad(torch.sum))(torch.ones(4, 4))

    with Workers() as workers, ThreadPoolExecutor(1) as pool:
        workers.begin()
        work = Work(lambda: pool.submit(per_sample).result(), Phases(), workers=workers)
        collected = CpuCollector().collect(work, PLAN)
    assert [entry.metric for entry in collected.unsupported] == ["saved_bytes"]
    assert "saved_bytes" not in {sample.metric for sample in collected.samples}
    assert "saved_bytes" not in of_workers(workers)["per sample"]


def test_on_a_gpu_the_tests_own_process_has_no_turn() -> None:
    """What a GPU does is counted by process, and of this one already."""
    with Workers() as workers:
        with workers.counting({"by": CUPTI}) as counts, attached("loader"):
            pass
        assert (counts, workers.turns()) == ({}, ())


def test_threads_in_blocks_of_one_name_are_two_workers() -> None:
    first, second, together = Event(), Event(), Barrier(2)
    first.set()

    def serve(before: Event, inside: Event) -> None:
        before.wait(20)
        with attached("inference"):
            inside.set()
            (torch.ones(4, 4) @ torch.ones(4, 4)).sum()
            together.wait(20)

    with Workers() as workers, ThreadPoolExecutor(2) as threads:
        with workers.counting() as counts:
            both = [threads.submit(serve, *two) for two in ((first, second), (second, first))]
            for done in both:
                done.result()
        workers.keep([counts])
    flops = {name: counted["flops"] for name, counted in of_workers(workers).items()}
    assert flops == {"inference": (2 * 4**3,), "inference 2": (2 * 4**3,)}


def test_blocks_of_one_name_one_after_another_are_one_worker_whatever_their_threads() -> None:
    """As in a server that has a thread for each request."""
    with Workers() as workers:
        with workers.counting() as counts:
            for _ in range(3):
                with ThreadPoolExecutor(1) as threads:
                    threads.submit(infer, torch.ones(4, 4)).result()
        workers.keep([counts])
    assert [*of_workers(workers)] == ["inference"]
    assert of_workers(workers)["inference"]["flops"] == (3 * 2 * 4**3,)


def works_in_two_threads_at_once(socket: str) -> None:
    """A worker, as the test hears of it."""
    lines = [connect(socket, 20.0) for _ in range(2)]
    for name, line in zip(("encoder", "decoder"), lines, strict=True):
        line.send({NAME: name})
        line.send({"is": BEGINS})
        line.receive()
    for line in lines:
        line.send({"is": ENDS, "counts": {}})
        line.receive()


def test_on_a_gpu_threads_at_work_at_once_cannot_be_told_apart() -> None:
    fork = multiprocessing.get_context("fork")
    with Workers() as workers:
        socket = os.environ[VARIABLE]
        process = fork.Process(target=works_in_two_threads_at_once, args=(socket,))
        counting = workers.counting({"by": CUPTI})
        counting.__enter__()
        process.start()
        process.join()
        with pytest.raises(CountersUnavailable, match="encoder and decoder are threads of one"):
            counting.__exit__(None, None, None)


def forks_between_blocks() -> None:
    """A worker of which a child ends as any program of Python does."""
    atexit._clear()  # what pytest has registered is not this one's
    infer(torch.ones(4, 4))
    child = os.fork()
    if not child:
        atexit._run_exitfuncs()
        os._exit(0)
    os.waitpid(child, 0)
    infer(torch.ones(4, 4))


def test_a_worker_is_heard_after_a_child_that_it_has_forked_has_ended() -> None:
    process = multiprocessing.get_context("fork").Process(target=forks_between_blocks)
    with Workers() as workers:
        with workers.counting() as counts:
            process.start()
            process.join()
        workers.keep([counts])
    assert of_workers(workers)["inference"]["flops"] == (2 * 2 * 4**3,)


def test_work_that_is_not_done_when_the_step_ends_belongs_to_nobody() -> None:
    with Workers() as workers:
        with attached("slow"):
            with (
                pytest.raises(MeasurementError, match="slow was at work already"),
                workers.counting(),
            ):
                pass
        working = attached("slow")
        with (
            pytest.raises(MeasurementError, match="slow was still at work"),
            workers.counting(),
        ):
            working.__enter__()
        working.__exit__(None, None, None)
    assert os.environ.get(VARIABLE) is None


def dies() -> None:
    """A worker that does not come to the end of its block."""
    with attached("dying"):
        os._exit(1)


def test_a_worker_that_dies_at_work_is_no_count() -> None:
    process = multiprocessing.get_context("fork").Process(target=dies)

    def step() -> None:
        process.start()
        process.join()

    with Workers() as workers:
        work = Work(step, Phases(), workers=workers)
        with pytest.raises(UnsoundStep, match="dying ended in the middle"):
            CpuCollector().collect(work, PLAN)


def test_a_worker_that_died_before_a_measurement_does_not_concern_it() -> None:
    process = multiprocessing.get_context("fork").Process(target=dies)
    with Workers() as workers:
        process.start()
        process.join()
        workers.begin()
        with workers.counting() as counts:
            pass
    assert counts == {}


def test_items_that_workers_of_a_loader_compute_count_as_those_computed_here() -> None:
    with Workers() as workers:
        loader = DataLoader(Products(), num_workers=2, persistent_workers=True)
        step = partial(consume, loader)
        workers.begin()
        collected = CpuCollector().collect(Work(step, Phases(), workers=workers), PLAN)
        del step, loader
    here = counted(lambda: [Products()[number] for number in range(8)])
    theirs = of_workers(workers)
    assert sorted(theirs) == ["loader", "loader 2"]
    for metric in ("flops", "operators", "copies"):
        by_worker = [counts[metric] for counts in theirs.values()]
        assert [sum(once) for once in zip(*by_worker, strict=True)] == [here[metric]] * 2
    of_step = {s.metric: s.values for s in collected.samples if s.phase == STEP}
    assert of_step["flops"] == (here["flops"],) * 2


@AT_NIGHT
def test_a_spawned_worker_counts_what_the_same_call_counts_here() -> None:
    given = torch.ones(4, 4)
    with Workers() as workers:
        context = multiprocessing.get_context("spawn")
        mine, its = context.Pipe()
        process = context.Process(target=serve, args=(its,))
        process.start()

        def step() -> None:
            mine.send(given)
            mine.recv()

        workers.begin()
        CpuCollector().collect(Work(step, Phases(), workers=workers), PLAN)
        mine.send(None)
        process.join()
    here = counted(lambda: infer(given))
    assert of_workers(workers)["inference"] == {
        metric: (value, value) for metric, value in here.items()
    }


@AT_NIGHT
def test_a_program_that_the_step_starts_each_time_is_a_worker(tmp_path: Path) -> None:
    program = tmp_path / "infer.py"
    program.write_text(
        "import sys\nimport torch\ngiven = torch.ones(int(sys.argv[1]), 4)\n"
        "if __name__ == '__main__':\n    torch.relu(given @ given.T).sum()\n"
    )
    command = [sys.executable, "-m", "pytest_gpuperf", "attach", "--name", "infer", str(program)]
    with Workers() as workers:
        step = partial(subprocess.run, [*command, "4"], check=True)
        workers.begin()
        CpuCollector().collect(Work(step, Phases(), workers=workers), PLAN)
    given = torch.ones(4, 4)
    here = counted(lambda: torch.relu(given @ given.T).sum())
    assert of_workers(workers)["infer"]["flops"] == (here["flops"],) * 2


def test_a_program_that_fails_fails_as_it_would_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "ends.py"
    program.write_text("import sys\nsys.exit(7)\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [])
        patch.setattr(sys, "path", [*sys.path])
        with pytest.raises(SystemExit) as ended:
            __main__.main(["attach", str(program)])
        assert ended.value.code == 7
        for words in ([], ["--name", "x"], ["-m"], [str(tmp_path / "none.py")]):
            assert __main__.main(["attach", *words]) == BAD_CONFIGURATION
    said = capsys.readouterr().err
    assert "which program? gpuperf attach" in said
    assert "none.py: no such script" in said
