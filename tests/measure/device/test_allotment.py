"""Allotments: which worker has which GPU, beside whom, on which processors; who waits for whom."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_gpuperf.measure.device import allotment
from pytest_gpuperf.measure.device.allotment import Allotment
from pytest_gpuperf.measure.device.nvml import VisibleGpu
from pytest_gpuperf.storage import files
from tests import allotting
from tests.waiting import wait_for


def dealt(
    folder: Path, gpus: int, workers: int, cores: Sequence[Sequence[int]] = ((0,),)
) -> list[Allotment]:
    """The allotments, on a host with so many GPUs."""
    return allotment.deal(
        allotting.gpus(gpus), workers, folder, [frozenset(core) for core in cores]
    )


def is_held(place: Path) -> bool:
    """Whether somebody holds it."""
    try:
        with files.locked(place, patience=0):
            return False
    except files.Locked:
        return True


def test_each_worker_has_the_next_gpu_and_after_the_last_they_share(tmp_path: Path) -> None:
    four = dealt(tmp_path, 4, 4)
    assert [own.own for own in four] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert four[2].gpus == ("GPU-2", "GPU-0", "GPU-1", "GPU-3")
    assert {own.controller for own in four} == {os.getpid()}
    # Who needs several has those of no worker first.
    assert dealt(tmp_path, 4, 2)[1].gpus == ("GPU-1", "GPU-2", "GPU-3", "GPU-0")
    five = dealt(tmp_path, 2, 5)
    assert [(own.own, own.beside) for own in five] == [
        *[("GPU-0", 2), ("GPU-1", 1), ("GPU-0", 2), ("GPU-1", 1), ("GPU-0", 2)]
    ]


def test_what_a_worker_is_told_it_hears_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = dealt(tmp_path, 3, 2, [(0, 8), (1, 9), (2, 10)])[1]
    assert (told.cpus, told.threads) == ((1, 2, 9, 10), 2)
    monkeypatch.setenv(allotment.VARIABLE, told.to_text())
    assert allotment.own() == told
    assert allotment.own() is None


def test_cores_are_split_among_the_workers_of_one_node(tmp_path: Path) -> None:
    """Processors 0 to 3 are on the first node, with a second thread each from 8 on."""
    cores = [frozenset({number, number + 8}) for number in range(8)]
    device = allotting.DEVICE
    near, far = (frozenset({*range(n, n + 4), *range(n + 8, n + 12)}) for n in (0, 4))
    gpus = [
        VisibleGpu(f"GPU-{n}", device, cpus) for n, cpus in enumerate((near, near, far, far, far))
    ]
    split = allotment.deal(gpus, 5, tmp_path, cores)
    assert [own.cpus for own in split] == [
        *[(0, 1, 8, 9), (2, 3, 10, 11), (4, 12), (5, 13), (6, 7, 14, 15)]
    ]
    assert [own.threads for own in split] == [2, 2, 1, 1, 2]
    # One alone, and more than there are cores, have them as they are.
    assert [own.cpus for own in allotment.deal(gpus, 1, tmp_path, cores)] == [()]
    assert {own.cpus for own in allotment.deal(gpus[:1], 5, tmp_path, cores)} == {()}
    # A GPU of which nobody says where it is, or whose node is not for us, is near to all.
    unknown = [VisibleGpu("GPU-x", device, cpus) for cpus in (frozenset[int](), frozenset({99}))]
    assert [own.threads for own in allotment.deal(unknown, 2, tmp_path, cores)] == [4, 4]
    # Beside it the others' cores are not theirs alone.
    split = allotment.deal([*gpus[:3:2], unknown[1]], 3, tmp_path, cores)
    assert [own.threads for own in split] == [2, 3, 3]
    assert len({cpu for own in split for cpu in own.cpus}) == sum(len(own.cpus) for own in split)


def test_the_processors_of_this_process_are_all_in_some_core() -> None:
    cores = allotment.own_cores()
    assert frozenset().union(*cores) == os.sched_getaffinity(0)
    assert sum(map(len, cores)) == len(os.sched_getaffinity(0))


def test_who_wants_several_has_the_first_that_are_free_and_keeps_nobody_else(
    tmp_path: Path,
) -> None:
    """It has the own one and waits for one of two more; the third worker goes on meanwhile."""
    one, two, three = dealt(tmp_path, 3, 3)
    has, done = threading.Event(), threading.Event()
    held: list[tuple[str, ...]] = []

    def several() -> None:
        with one.holding(2) as gpus:
            held.append(gpus)
            has.set()
            done.wait()

    thread = threading.Thread(target=several)
    with two.holding() as own:
        assert own == ("GPU-1",)
        with three.holding():
            thread.start()
            wait_for(lambda: is_held(tmp_path / "GPU-0"), "its own")
        assert has.wait(60)
        assert held == [("GPU-0", "GPU-2")]
    with two.holding():  # nobody is in front of it
        done.set()
    thread.join()


def test_who_waits_for_its_own_gpu_keeps_no_other(tmp_path: Path) -> None:
    """Four workers on three GPUs: the last shares that of the first."""
    one, two, _, last = dealt(tmp_path, 3, 4)
    held: list[tuple[str, ...]] = []

    def several() -> None:
        with last.holding(2) as gpus:
            held.append(gpus)

    thread = threading.Thread(target=several)
    with one.holding():
        thread.start()
        wait_for(lambda: is_held(tmp_path / "GPU-0.next"), "its place in the line")
        with two.holding(2) as both:
            assert both == ("GPU-1", "GPU-2")
        assert held == []
    thread.join()
    assert held == [("GPU-0", "GPU-1")]


def test_what_a_test_holds_its_processes_have(tmp_path: Path) -> None:
    (own,) = dealt(tmp_path, 3, 1)
    with own.holding(2) as gpus, own.passed_on(gpus).holding(2) as passed_on:
        assert passed_on == gpus


def test_names_of_old_drivers_name_no_folders(tmp_path: Path) -> None:
    old = VisibleGpu("MIG-GPU-1/2/0", allotting.DEVICE, frozenset())
    (own,) = allotment.deal([old], 1, tmp_path, [])
    with own.holding() as held:
        assert held == ("MIG-GPU-1/2/0",)


@pytest.mark.parametrize("seed", range(5))
def test_no_gpu_is_given_twice(seed: int) -> None:
    """Four workers at once, of which some die; a thousand times by `python -m tests.allotting`."""
    assert {*allotting.start(seed)} <= {0, allotting.KILLED}
