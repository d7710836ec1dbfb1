"""The meeting: everybody goes on together, or everybody hears who does not, and where that was."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuperf.errors import MeasurementError, UnsoundStep, UsageFailure
from pytest_gpuperf.measure import meeting
from pytest_gpuperf.measure.meeting import Meeting, Participant, connect
from tests.waiting import wait_for

PATIENCE = 20.0


@dataclass
class Table:
    """A meeting in this process, and its participants, which threads stand for."""

    stack: ExitStack
    name: str = field(default_factory=lambda: f"gpuperf-test-{os.getpid()}-{uuid.uuid4().hex}")

    def holds(self, count: int, time_limit: float = PATIENCE, **more: Any) -> Meeting:
        held = Meeting(self.name, count, time_limit, **more)
        self.stack.callback(held.close)
        return held

    def seats(self, count: int) -> list[Participant]:
        return [self.seat(number) for number in range(count)]

    def seat(self, number: int) -> Participant:
        taken = Participant(self.name, number, PATIENCE)
        self.stack.callback(taken.leave)
        return taken


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    monkeypatch.setattr(meeting, "_TICK", 0.01)
    monkeypatch.setattr(meeting, "_SETTLING", 0.05)
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


def test_all_go_on_when_all_have_arrived_and_rank_0_decides(table: Table) -> None:
    held = table.holds(3)
    seats = table.seats(3)
    for execution in ("the first", "the second"):
        assert at_once(*(partial(seat.arrive, execution) for seat in seats)) == [None] * 3
    said = [partial(seat.agreed, "enough", seat.number + 7) for seat in seats]
    assert at_once(*said) == [7, 7, 7]
    for seat in seats:
        seat.say(f"brought by {seat.number}")
    assert held.said() == ["brought by 0", "brought by 1", "brought by 2"]
    assert held.problem == ""


def test_ranks_at_different_places_would_wait_for_each_other_forever(table: Table) -> None:
    table.holds(2)
    zero, one = table.seats(2)
    said = at_once(lambda: zero.arrive("round 2"), lambda: one.arrive("timing 1"))
    assert said[0] == said[1]
    assert "rank 0 has come to round 2, and rank 1 to timing 1" in said[0]
    assert "one seed for all" in said[0]


def test_a_rank_that_fails_is_named_with_its_phase_and_the_others(table: Table) -> None:
    held = table.holds(2)
    zero, one = table.seats(2)
    at_once(lambda: zero.arrive("round 1"), lambda: one.arrive("round 1"))
    one.entered("backward")
    why = one.failed(ValueError("boom"))
    assert why.splitlines() == [
        'rank 1 failed, last in round 1, in phase "backward": ValueError: boom',
        "rank 0: last in round 1",
    ]
    with pytest.raises(MeasurementError, match="boom"):
        zero.arrive("round 2")
    with pytest.raises(UnsoundStep, match="the ranks stopped: rank 1 failed"):
        held.said()
    assert (held.at_fault, held.hangs) == ((1,), False)


def test_one_that_is_gone_is_at_fault_and_not_who_complains_of_it(table: Table) -> None:
    ends: dict[int, str] = {}
    held = table.holds(2, ended=lambda number: ends.get(number, ""))
    zero = table.seat(0)
    line = connect(table.name, PATIENCE)  # as a process that a signal ends
    line.send({"is": "joined", "number": 1})
    line.send({"is": "at", "place": "round 1", "value": None})
    zero.arrive("round 1")
    line.send({"is": "in", "phase": "optimizer"})
    ends[1] = "was ended by SIGKILL"
    line.close()
    why = zero.failed(RuntimeError("Connection closed by peer"))
    assert 'was ended by SIGKILL; last in round 1, in phase "optimizer"' in why
    assert held.at_fault == (1,)


def ends_before_its_child(name: str, until: int, mine: int) -> None:
    """Rank 1 of a meeting, which dies in the step; a child of it lives on until `until` is shut."""
    os.close(mine)
    line = connect(name, PATIENCE)
    line.send({"is": "joined", "number": 1})
    line.send({"is": "at", "place": "round 1", "value": None})
    line.receive()
    if not os.fork():
        os.read(until, 1)
    os._exit(9)


def test_one_that_has_ended_is_gone_though_its_child_has_its_line(table: Table) -> None:
    until, mine = os.pipe()
    process = multiprocessing.get_context("fork").Process(
        target=ends_before_its_child, args=(table.name, until, mine)
    )
    process.start()
    held = table.holds(2)
    zero = table.seat(0)
    zero.arrive("round 1")
    with pytest.raises(UnsoundStep, match=r"rank 1 .* has ended; last in round 1"):
        held.said()
    os.close(mine)
    process.join()
    os.close(until)


def test_who_is_told_to_end_knows_why_all_of_them_stop(table: Table) -> None:
    table.holds(2)
    zero, one = table.seats(2)
    assert zero.stops() == ""
    one.failed(ValueError("boom"))
    assert "rank 1 failed" in zero.stops()


def test_one_that_ends_before_it_has_come_is_not_waited_for(table: Table) -> None:
    held = table.holds(2, ended=lambda number: "has ended with exit code 2" * number)
    with pytest.raises(UnsoundStep, match="rank 1 has ended with exit code 2 before it began"):
        held.said()


def test_who_does_not_get_on_within_the_time_limit_is_named(table: Table) -> None:
    held = table.holds(3, time_limit=0.2)
    zero, one, _ = table.seats(3)
    said = at_once(lambda: zero.arrive("round 1"), lambda: one.arrive("round 1"))
    assert "rank 2 (process" in said[0]
    assert "does not come out, it had not begun to measure" in said[0]
    assert "rank 0 is waiting for the others before round 1" in said[0]
    assert (held.at_fault, held.hangs) == ((2,), True)


def test_between_measurements_ranks_do_not_have_to_get_on(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests that measure nothing may take any time, and so may imports before the first."""
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now, sleep=time.sleep)
    monkeypatch.setattr(meeting, "time", clock)
    held = table.holds(2, time_limit=60)

    def late() -> str:
        with held._changed:
            return held._late()

    zero, one = table.seats(2)
    wait_for(lambda: len(held._places) == 2, "both ranks")
    now = 100.0
    assert late() == ""
    verdict = "the verdict"
    assert at_once(*(partial(seat.agreed, verdict, "passed") for seat in (zero, one)))
    for seat in (zero, one):
        seat.rests()
    wait_for(lambda: all(place.rests for place in held._places.values()), "both to rest")
    now = 200.0
    assert late() == ""
    with ThreadPoolExecutor(1) as threads:
        arrived = threads.submit(at_once, lambda: zero.arrive("round 1"))
        wait_for(lambda: held._places[0].waits, "rank 0 to arrive")
        now = 300.0
        assert "does not come out, last in the verdict" in arrived.result(PATIENCE)[0]
    assert held.at_fault == (1,)


def test_who_waits_for_a_good_reason_says_so(table: Table) -> None:
    held = table.holds(1)
    (zero,) = table.seats(1)
    zero.arrive("round 1")
    before = held._moved
    zero.goes_on()
    zero.say("done")
    assert held.said() == ["done"]
    assert held._moved > before


def test_a_name_is_held_once_and_nobody_waits_forever_where_nobody_is(table: Table) -> None:
    with pytest.raises(MeasurementError, match="nobody answered at the socket"):
        connect(table.name, 0.0)
    table.holds(2)
    with pytest.raises(UsageFailure, match="another --master-port"):
        table.holds(2)


def test_who_has_left_is_not_missed(table: Table) -> None:
    held = table.holds(2)
    zero, one = table.seats(2)
    at_once(lambda: zero.arrive("round 1"), lambda: one.arrive("round 1"))
    one.say("b")
    one.leave()
    zero.say("a")
    assert held.said() == ["a", "b"]
    assert held.problem == ""


def test_who_leaves_without_having_measured_is_not_waited_for(table: Table) -> None:
    held = table.holds(2)
    zero, one = table.seats(2)
    with ThreadPoolExecutor(1) as threads:
        arrived = threads.submit(at_once, lambda: zero.arrive("round 1"))
        one.leave()
        with pytest.raises(UnsoundStep, match=r"rank 1 .* has ended its test without measuring"):
            held.said()
        assert "rank 0: waiting for the others before round 1" in arrived.result(PATIENCE)[0]
    assert (held.at_fault, held.hangs) == ((1,), False)


@pytest.mark.parametrize("rests", [True, False])
def test_who_leaves_while_another_is_inside_is_missed(
    table: Table, monkeypatch: pytest.MonkeyPatch, *, rests: bool
) -> None:
    """It may wait there for the one that has left; unless its measurement is over."""
    monkeypatch.setattr(meeting, "_GRACE", 0.0)
    held = table.holds(2)
    zero, one = table.seats(2)
    at_once(lambda: zero.arrive("the entry"), lambda: one.arrive("the entry"))
    if rests:
        zero.rests()
    one.leave()
    why = zero.stops()
    assert ("rank 1 (process" in why, "rank 0: last in the entry" in why) == (not rests, not rests)
    assert held.problem == why


def test_a_rank_at_a_barrier_hears_of_who_has_left(table: Table) -> None:
    """Under torchrun, where nobody asks yet."""
    table.holds(2)
    zero, one = table.seats(2)
    one.leave()
    assert "has ended its test without measuring" in at_once(lambda: zero.arrive("round 1"))[0]


def test_who_has_done_its_part_waits_for_the_end_of_the_session(table: Table) -> None:
    held = table.holds(2)
    zero, one = table.seats(2)
    with ThreadPoolExecutor(1) as threads:
        left = threads.submit(one.leave, wait=True)
        zero.leave()
        held.close()
        left.result(PATIENCE)
    assert "has ended" in one.why
