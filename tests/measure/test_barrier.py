"""Barriers: all ranks go on together, or all hear which one does not, and where it was last."""

from __future__ import annotations

import multiprocessing
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from pytest_gpuperf.errors import MeasurementError, UnsoundStep, UsageFailure
from pytest_gpuperf.measure import barrier, rank_states
from pytest_gpuperf.measure.barrier import ENDED, RankClient, Rendezvous
from tests.waiting import wait_for

PATIENCE = 20.0


@dataclass
class Table:
    """A rendezvous in this process, and its ranks, which threads stand for."""

    stack: ExitStack
    name: str = field(default_factory=lambda: f"gpuperf-test-{os.getpid()}-{uuid.uuid4().hex}")

    def holds(self, count: int, time_limit: float = PATIENCE, **more: Any) -> Rendezvous:
        held = Rendezvous(self.name, count, time_limit, **more)
        self.stack.callback(held.close)
        return held

    def ranks(self, count: int) -> list[RankClient]:
        return [RankClient(self.name, number, PATIENCE) for number in range(count)]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    monkeypatch.setattr(barrier, "_TICK", 0.01)
    monkeypatch.setattr(rank_states, "SETTLING", 0.05)
    before = threading.active_count()
    with ExitStack() as stack:
        yield Table(stack)
    for thread in threading.enumerate()[before:]:
        thread.join(PATIENCE)


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """What each returned, or the error that it raised."""

    def tried(act: Callable[[], Any]) -> Any:
        try:
            return act()
        except MeasurementError as error:
            return str(error)

    with ThreadPoolExecutor(len(acts)) as threads:
        return list(threads.map(tried, acts))


def entered(rank: RankClient, execution: str) -> Any:
    """Goes into the step with the others."""
    return rank.arrive(execution, enters=True)


def test_all_go_on_when_all_have_arrived_and_rank_0_decides(table: Table) -> None:
    held = table.holds(3)
    ranks = table.ranks(3)
    for execution in ("the first", "the second"):
        assert at_once(*(partial(entered, rank, execution) for rank in ranks)) == [None] * 3
    agreed = [partial(rank.arrive, "enough", rank.number + 7) for rank in ranks]
    assert at_once(*agreed) == [7, 7, 7]
    at_once(*(partial(rank.arrive, "the end", f"of {rank.number}", last=True) for rank in ranks))
    assert held.brought() == ["of 0", "of 1", "of 2"]
    assert held.problem == ""


def test_ranks_at_different_places_would_wait_for_each_other_forever(table: Table) -> None:
    table.holds(2)
    zero, one = table.ranks(2)
    said = at_once(lambda: entered(zero, "round 2"), lambda: entered(one, "timing 1"))
    assert said[0] == said[1]
    assert "rank 0 has come to round 2, and rank 1 to timing 1" in said[0]


def test_a_rank_that_fails_is_named_with_its_phase_and_the_others(table: Table) -> None:
    held = table.holds(2)
    zero, one = table.ranks(2)
    at_once(lambda: entered(zero, "round 1"), lambda: entered(one, "round 1"))
    one.says("enter", phase="backward")
    assert one.fails(ValueError("boom")).splitlines() == [
        'rank 1 failed, last in round 1, in phase "backward": ValueError: boom',
        "rank 0: last in round 1",
    ]
    assert "rank 1 failed" in zero.stops()
    with pytest.raises(MeasurementError, match="boom"):
        entered(zero, "round 2")
    with pytest.raises(UnsoundStep, match="the ranks stopped: rank 1 failed"):
        held.brought()


def dies(name: str, until: int, mine: int) -> None:
    """Rank 1, which dies in the step; a child of it lives on until `until` is shut."""
    os.close(mine)
    rank = RankClient(name, 1, PATIENCE)
    entered(rank, "round 1")
    rank.says("enter", phase="optimizer")
    if not os.fork():
        os.read(until, 1)
    os._exit(9)


def test_a_rank_that_dies_is_at_fault_and_not_one_that_complains_of_it(table: Table) -> None:
    until, mine = os.pipe()
    process = multiprocessing.get_context("fork").Process(
        target=dies, args=(table.name, until, mine)
    )
    process.start()
    held = table.holds(2, ended=lambda number: "was ended by SIGKILL" * number)
    zero = RankClient(table.name, 0, PATIENCE)
    entered(zero, "round 1")
    process.join()
    why = zero.fails(RuntimeError("Connection closed by peer"))
    assert 'was ended by SIGKILL; last in round 1, in phase "optimizer"' in why
    assert held.known.at_fault == [1]
    os.close(mine)
    os.close(until)


def test_a_rank_that_is_not_there_in_time_is_named(table: Table) -> None:
    held = table.holds(3, time_limit=0.2)
    zero, one, _ = table.ranks(3)
    said = at_once(lambda: entered(zero, "round 1"), lambda: entered(one, "round 1"))
    assert "rank 2 (process" in said[0]
    assert (held.known.at_fault, held.known.hang) == ([2], True)


def test_a_rank_that_is_stuck_in_the_step_when_all_stop_is_ended(table: Table) -> None:
    """Nothing else gets it out."""
    table.holds(2)
    read, write = os.pipe()

    def stuck() -> None:
        barrier._GRACE = 0.01
        rank = RankClient(table.name, 1, PATIENCE, tell=lambda why: os.write(write, why.encode()))
        entered(rank, "round 1")
        threading.Event().wait()

    process = multiprocessing.get_context("fork").Process(target=stuck)
    process.start()
    zero = RankClient(table.name, 0, PATIENCE)
    entered(zero, "round 1")
    zero.fails(ValueError("boom"))
    process.join(PATIENCE)
    assert process.exitcode == 1
    assert os.read(read, 999).startswith(b"rank 0 failed, last in round 1: ValueError: boom")
    os.close(read)
    os.close(write)


def test_a_name_is_held_once_and_no_rank_waits_forever_where_none_holds_it(table: Table) -> None:
    with pytest.raises(MeasurementError, match="nobody answered at the socket"):
        RankClient(table.name, 0, 0.0)
    table.holds(2)
    with pytest.raises(UsageFailure, match="another --master-port"):
        table.holds(2)


def test_a_rank_is_one_process(table: Table) -> None:
    held = table.holds(1)
    first = RankClient(table.name, 0, PATIENCE)
    wait_for(lambda: held.known.has_come(0), "the first to come")
    second = RankClient(table.name, 0, PATIENCE)
    said = at_once(lambda: entered(second, "round 1"), lambda: entered(first, "round 1"))
    assert said == [ENDED, None]


def test_a_rank_that_has_done_its_part_waits_for_the_end_of_the_session(table: Table) -> None:
    held = table.holds(2)
    zero, one = table.ranks(2)
    with ThreadPoolExecutor(1) as threads:
        left = threads.submit(one.leaves, wait=True)
        zero.leaves(wait=False)
        held.close()
        left.result(PATIENCE)
    assert one.why == ENDED
