"""What a step does elsewhere: counted where it hands work to threads, and else refused or said."""

from __future__ import annotations

import asyncio
import atexit
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.pool import ThreadPool

import pytest
import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from pytest_gpuperf.errors import UnsoundStep
from pytest_gpuperf.measure.collector import Collected, Phases, Plan, Work
from pytest_gpuperf.measure.cpu.cpu_collector import CpuCollector
from pytest_gpuperf.measure.cpu.dispatch import (
    LOADERS,
    NOTHING,
    OUTSIDE,
    PROCESSES,
    THREADS,
    Operators,
    StepCounter,
    Unseen,
    part_unseen,
)
from pytest_gpuperf.model.measurement import STEP, UNSEEN
from tests import ROOT
from tests.measure.stand_ins import line_of, values

WEIGHT = torch.ones(16, 16)
PRODUCT = 2 * 16**3
MS = 1_000_000
BUSY = "import time\nwhile time.process_time() < 0.15: pass"


def product(_: object = None) -> None:
    """Two operators."""
    torch.relu(WEIGHT @ WEIGHT)


def training() -> None:
    """Of a block that is computed again for its backward pass."""
    values = checkpoint(
        lambda v: (v @ WEIGHT).exp(), WEIGHT.clone().requires_grad_(), use_reentrant=False
    )
    assert isinstance(values, torch.Tensor)
    torch.autograd.backward(values.sum())


def busy(seconds: float = 0.15) -> None:
    """Takes so much time of the processor, in nothing of PyTorch."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def collected(step: Callable[[], object]) -> Collected:
    return CpuCollector().collect(Work(step, Phases()), Plan(metrics=(), repetitions=1))


def joined(thread: threading.Thread) -> None:
    thread.start()
    thread.join()


class Product(threading.Thread):
    def run(self) -> None:
        product()


POOL, WORKERS = ThreadPoolExecutor(1), ThreadPool(1)
"""They are older than any step, and so are their threads."""
POOL.submit(int).result()
atexit.register(WORKERS.terminate)
REPLACED = (
    (threading.Thread, "start"),
    (ThreadPoolExecutor, "submit"),
    (ThreadPool, "apply_async"),
    (ThreadPool, "_guarded_task_generation"),
)

HANDED = {
    "thread": lambda: joined(threading.Thread(target=product)),
    "subclass of a thread": lambda: joined(Product()),
    "timer": lambda: joined(threading.Timer(0, product)),
    "pool": lambda: POOL.submit(product).result(),
    "pool of the step": lambda: list(ThreadPoolExecutor(1).map(product, [None])),
    "pool of threads": lambda: WORKERS.apply(product),
    "mapped lazily": lambda: list(WORKERS.imap(product, [None])),
    "executor of asyncio": lambda: asyncio.run(asyncio.to_thread(product)),
}


@pytest.mark.parametrize("way", HANDED)
def test_work_that_is_handed_to_another_thread_counts(way: str) -> None:
    found = collected(HANDED[way])
    assert [entry.metric for entry in found.unsupported] == ["peak_memory"]
    counts = {metric: numbers for (_, metric), numbers in values(found).items()}
    assert (counts["operators"], counts["flops"]) == ((2, 2), (PRODUCT,) * 2)
    assert counts["kept_memory"] == (0, 0)
    assert UNSEEN not in (found.settings or {})


def test_a_thread_counts_as_the_step_itself_does() -> None:
    """In the phase in which it is started, with what is saved and computed again."""

    def counts(run: Callable[[Callable[[], None]], object]) -> dict[tuple[str, str], object]:
        phases = Phases()

        def step() -> None:
            with phases.mark("training"):
                run(training)
            product()

        found = CpuCollector().collect(Work(step, phases), Plan(metrics=(), repetitions=1))
        left_out = ("wall_time", "peak_memory")
        return {key: n for key, n in values(found).items() if key[1] not in left_out}

    itself = counts(lambda work: work())
    assert counts(lambda work: joined(threading.Thread(target=work))) == itself
    assert counts(lambda work: POOL.submit(work).result()) == itself
    assert itself["training", "operators"] == (11, 11)


def test_a_thread_that_refuses_hooks_has_no_saved_bytes() -> None:
    def step() -> None:
        joined(threading.Thread(target=lambda: torch.func.grad(torch.sum)(WEIGHT)))

    unsupported = [entry.metric for entry in collected(step).unsupported]
    assert unsupported == ["saved_bytes", "peak_memory"]


def exponentials() -> None:
    torch.autograd.backward(WEIGHT.clone().requires_grad_().exp().sum())


def sines() -> None:
    torch.autograd.backward(WEIGHT.clone().requires_grad_().sin().sum())


def test_an_operator_of_a_thread_has_its_line_in_backward_too() -> None:
    """Though each thread numbers its nodes from 0 on."""
    operators = Operators(ROOT)
    with StepCounter(operators).watching():
        joined(threading.Thread(target=exponentials))
        joined(threading.Thread(target=sines))
    table = operators.table()
    lines = [table.sites[site].line for site in table.site_of]
    middle = len(lines) // 2 - 1  # the sine has one more, the cosine in its backward
    assert {*lines[:middle]} == {line_of(exponentials, "exp()")}
    assert {*lines[middle + 1 :]} == {line_of(sines, "sin()")}


def test_after_the_step_threads_and_pools_are_as_they_were() -> None:
    def replaced() -> list[object]:
        return [vars(owner).get(name) for owner, name in REPLACED]

    before, within = replaced(), list[object]()
    with suppress(ZeroDivisionError), StepCounter().watching():
        within = replaced()
        raise ZeroDivisionError
    assert replaced() == before
    assert all(one is not other for one, other in zip(within, before, strict=True))


def test_a_thread_that_goes_on_after_the_step_leaves_compilation_as_it_was() -> None:
    ended = threading.Event()

    def works() -> None:
        ended.wait()
        product()

    thread = threading.Thread(target=works)
    counter = StepCounter()
    with counter.watching():
        thread.start()
        product()
    ended.set()
    thread.join()
    assert counter.step.operators == 2
    assert not is_in_torch_dispatch_mode()


# What is not counted


TASKS: queue.Queue[Callable[[], None]] = queue.Queue()
DONE: queue.Queue[None] = queue.Queue()


def _works() -> None:
    while True:
        TASKS.get()()
        DONE.put(None)


threading.Thread(target=_works, daemon=True).start()


def queued() -> None:
    """Done by a thread that nobody can be told of: it looks into a queue of its own."""
    TASKS.put(busy)
    DONE.get()


@pytest.mark.parametrize(
    ("elsewhere", "place"),
    [
        (queued, THREADS),
        (lambda: subprocess.run([sys.executable, "-c", BUSY], check=True), PROCESSES),
    ],
)
def test_a_step_most_of_which_is_elsewhere_is_refused(
    elsewhere: Callable[[], object], place: str
) -> None:
    with pytest.raises(UnsoundStep, match=f"ms in {place}, where gpuperf counts no operator"):
        collected(lambda: [work() for work in (product, elsewhere)])


@pytest.mark.parametrize("elsewhere", [busy, lambda: joined(threading.Thread(target=busy))])
def test_python_and_numpy_beside_operators_are_said(elsewhere: Callable[[], object]) -> None:
    """They are most of many small steps, whose operators are counted all the same."""
    found = collected(lambda: [work() for work in (product, elsewhere)])
    assert (found.settings or {})[UNSEEN] == OUTSIDE
    assert values(found)[STEP, "flops"] == (PRODUCT,) * 2


class Slow(TensorDataset):
    """Whose elements take their time."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        busy(0.005)
        return (self.tensors[0][index],)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(("workers", "persistent"), [(2, True), (0, False)])
def test_what_a_loader_does_is_said(workers: int, persistent: bool) -> None:
    loader = DataLoader(Slow(WEIGHT), num_workers=workers, persistent_workers=persistent)

    def step() -> None:
        for (batch,) in loader:
            (batch @ WEIGHT).relu()

    found = collected(step)
    assert (found.settings or {})[UNSEEN] == (LOADERS if workers else OUTSIDE)
    assert values(found)[STEP, "flops"] == (PRODUCT,) * 2


@pytest.mark.parametrize(
    ("operators", "rounds", "expected"),
    [
        (9, [{OUTSIDE: 40}, {OUTSIDE: 40}], ""),
        (9, [{OUTSIDE: 60}, {OUTSIDE: 60}], OUTSIDE),
        (9, [{OUTSIDE: 60, THREADS: 20, PROCESSES: 5}] * 2, f"{OUTSIDE}, {THREADS}"),
        # Something else than the step does, once.
        (9, [{THREADS: 95}, {THREADS: 5}], ""),
        (9, [{OUTSIDE: 50, PROCESSES: 45}] * 2, f"{OUTSIDE}, {PROCESSES}"),
        (9, [{THREADS: 50, PROCESSES: 45}] * 2, None),
        (0, [{OUTSIDE: 5}, {OUTSIDE: 5}], NOTHING),
        (0, [{OUTSIDE: 95}, {OUTSIDE: 95}], None),
    ],
)
def test_what_is_said_of_the_part_that_is_not_seen(
    operators: int, rounds: list[dict[str, int]], expected: str | None
) -> None:
    counter = StepCounter()
    counter.step.operators = operators
    spent = [Unseen(counter, 100 * MS, {at: n * MS for at, n in one.items()}) for one in rounds]
    if expected is None:
        with pytest.raises(UnsoundStep):
            part_unseen(spent)
    else:
        assert part_unseen(spent) == expected
