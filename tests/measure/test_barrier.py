"""Barriers: all ranks go on together, or all hear which one does not, and where it was last."""

from __future__ import annotations

import multiprocessing
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from pytest_gpuperf.errors import UnsoundStep, UsageFailure
from pytest_gpuperf.measure import barrier
from pytest_gpuperf.measure.barrier import ENDED, VERDICT, RankClient, RankGroup, Rendezvous

PATIENCE = 20.0
JOIN, ENTER, GO, REST, LEAVE, END = "join", "arrive", "go", "rest", "leave", "end"
JUDGED = f"{ENTER} {VERDICT}"
PLACES = {ENTER: "round 1", JUDGED: VERDICT}
IN = (JOIN, ENTER, GO)


@dataclass
class Table:
    """A rendezvous in this process, and its ranks, which threads stand for."""

    stack: ExitStack
    name: str = field(default_factory=lambda: f"gpuperf-test-{os.getpid()}-{uuid.uuid4().hex}")

    def holds(self, known: RankGroup | None = None, **more: Any) -> Rendezvous:
        held = Rendezvous(self.name, known or RankGroup(2, PATIENCE), **more)
        self.stack.callback(held.close)
        return held

    def ranks(self, count: int) -> list[RankClient]:
        return [RankClient(self.name, number, PATIENCE) for number in range(count)]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    monkeypatch.setattr(barrier, "_TICK", 0.01)
    monkeypatch.setattr(barrier, "_SETTLING", 0.05)
    with ExitStack() as stack:
        yield Table(stack)


def at_once(place: str, *ranks: RankClient) -> list[Any]:
    """What each hears at this barrier."""
    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(lambda rank: rank.arrive(place), ranks))


def test_all_go_on_when_all_have_arrived_and_rank_0_decides(table: Table) -> None:
    held = table.holds(RankGroup(3, PATIENCE))
    ranks = table.ranks(3)
    for execution in ("the first", "the second"):
        assert at_once(execution, *ranks) == [None] * 3
    for last, heard in ((False, [7, 7, 7]), (True, [None] * 3)):
        with ThreadPoolExecutor(3) as threads:
            agreed = [
                threads.submit(rank.arrive, "enough", number + 7, last=last)
                for number, rank in enumerate(ranks)
            ]
            assert [one.result() for one in agreed] == heard
    assert held.brought() == [7, 8, 9]
    assert held.problem == ""


def test_a_rank_that_fails_is_named_with_its_place_and_the_others(table: Table) -> None:
    held = table.holds()
    zero, one = table.ranks(2)
    at_once("round 1", zero, one)
    head, *doing = one.fails(ValueError("boom")).splitlines()
    assert head == "rank 1 failed: ValueError: boom"
    said = [line.partition(") ")[2] for line in doing]
    assert said == ["was last in round 1"] * 2
    assert zero.stops(PATIENCE).startswith(head)
    for waits in (partial(zero.arrive, "round 2"), held.brought):
        with pytest.raises(UnsoundStep, match="all ranks stopped because rank 1 failed"):
            waits()
    assert held.stops().startswith(head)


def dies(name: str, until: int, mine: int) -> None:
    """Rank 1, which dies in the step; a child of it lives on until `until` is shut."""
    os.close(mine)
    rank = RankClient(name, 1, PATIENCE)
    rank.arrive("round 1")
    if not os.fork():
        os.read(until, 1)
    os._exit(9)


def test_a_rank_that_dies_is_at_fault_and_not_one_that_complains_of_it(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(barrier, "_SETTLING", 0.5)  # its child closes the line when it first runs
    until, mine = os.pipe()
    process = multiprocessing.get_context("fork").Process(
        target=dies, args=(table.name, until, mine)
    )
    process.start()
    known = RankGroup(2, PATIENCE, [str, lambda: "was ended by SIGKILL"])
    table.holds(known)
    zero = RankClient(table.name, 0, PATIENCE)
    zero.arrive("round 1")
    process.join()
    why = zero.fails(RuntimeError("Connection closed by peer"))
    assert why.startswith("rank 1 was ended by SIGKILL\n")
    assert why.endswith("was last in round 1")
    assert known.at_fault == [1]
    os.close(mine)
    os.close(until)


def test_a_rank_that_is_stuck_in_the_step_when_all_stop_is_ended(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else gets it out."""
    monkeypatch.setattr(barrier, "_GRACE", 0.01)
    told: list[str] = []

    def stuck() -> None:
        RankClient(table.name, 1, PATIENCE).arrive("round 1")
        threading.Event().wait()

    process = multiprocessing.get_context("fork").Process(target=stuck)
    process.start()
    table.holds(tell=told.append)
    zero = RankClient(table.name, 0, PATIENCE)
    zero.arrive("round 1")
    zero.says("fail", why="boom")
    process.join(PATIENCE)
    assert process.exitcode == -9
    assert told[0].startswith("rank 0 failed: boom")


def test_a_name_is_held_once_and_no_rank_waits_forever_where_none_holds_it(table: Table) -> None:
    with pytest.raises(UsageFailure, match="did not answer within"):
        RankClient(table.name, 0, 0.0)
    table.holds()
    with pytest.raises(UsageFailure, match="another --master-port"):
        table.holds()


def test_a_rank_of_a_larger_job_is_sent_away_and_the_others_go_on(table: Table) -> None:
    table.holds()
    stranger = RankClient(table.name, 2, PATIENCE)
    assert stranger.stops(PATIENCE) == ENDED
    assert at_once("the first", *table.ranks(2)) == [None] * 2


def test_a_rank_that_has_done_its_part_waits_for_the_end_of_the_session(table: Table) -> None:
    held = table.holds()
    zero, one = table.ranks(2)
    with ThreadPoolExecutor(1) as threads:
        left = threads.submit(partial(one.leaves, wait=True))
        zero.leaves(wait=False)
        held.close()
        left.result(PATIENCE)
    assert one.why == ENDED


# States


def known(*events: Sequence[str], started: bool = False, limit: float = 60.0) -> RankGroup:
    """Ranks to which these events have happened; with `started`, this process has started them."""
    ranks = RankGroup(len(events), limit, [str] * len(events) if started else ())
    for number, (rank, of_rank) in enumerate(zip(ranks.ranks, events, strict=True)):
        for event in of_rank:
            fields = {"at": PLACES[event]} if event in PLACES else {}
            rank.happens(event.split()[0], **fields)
        rank.pid = number + 40
    return ranks


@pytest.mark.parametrize(
    ("events", "started", "problem"),
    [
        ([IN, IN], False, ""),
        ([IN, (*IN, REST)], False, ""),
        ([IN, (JOIN, ENTER)], False, ""),
        # Whoever has ended goes before whoever has failed.
        ([(*IN, "fail"), (*IN, END)], False, "rank 1 ended"),
        ([(*IN, "fail"), IN], False, "rank 0 failed: "),
        # One that is in no measurement may end; but not while others wait for it.
        ([(*IN, REST), (*IN, REST, LEAVE, END)], False, ""),
        ([IN, (JOIN, END)], False, ""),
        ([(JOIN, ENTER), (JOIN, LEAVE)], False, "rank 1 ended its test without measuring"),
        ([(JOIN,), (JOIN, END)], True, "rank 1 ended its test without measuring"),
    ],
)
def test_the_rank_at_fault_is_named(
    events: list[tuple[str, ...]], *, started: bool, problem: str
) -> None:
    assert known(*events, started=started).problem().partition("\n")[0] == problem


def test_one_that_has_left_is_named_where_others_stay_in_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = known(IN, (*IN, LEAVE))
    assert ranks.problem() == ""
    monkeypatch.setattr(barrier, "_GRACE", 0.0)
    assert ranks.problem().startswith("rank 1 ended its test without measuring")


def test_ranks_at_different_places_would_wait_for_each_other_forever() -> None:
    ranks = known((JOIN, ENTER), (JOIN, ENTER))
    assert ranks.problem() == ""
    ranks.ranks[1].at = "timing 1"
    head, *doing = ranks.problem().splitlines()
    assert head.startswith("the ranks do not execute the step equally often")
    assert [line.rpartition(" before ")[2] for line in doing] == ["round 1", "timing 1"]


def test_one_that_was_started_is_waited_for_from_the_beginning() -> None:
    ranks = RankGroup(2, 60.0, [str, lambda: "ended with exit code 2"])
    assert ranks.problem().startswith("rank 1 ended with exit code 2")
    assert ranks.at_fault == [1]


@pytest.mark.parametrize(
    ("events", "started", "doing", "at_fault"),
    [
        (
            [(JOIN, ENTER), (), IN],
            False,
            [
                "rank 0 (process 40) waited for the other ranks before round 1",
                "rank 1 (process 41) had not begun to measure",
                "rank 2 (process 42) was last in round 1",
            ],
            [1, 2],
        ),
        # Between measurements they may take any time, and before the first.
        ([(*IN, REST), (JOIN,), ()], False, [], []),
        # And for the verdict, for which one may start fresh ranks.
        ([(*IN, REST), (*IN, REST, JUDGED)], False, [], []),
        ([()], True, ["rank 0 (process 40) had not begun to measure"], [0]),
    ],
)
def test_one_that_is_not_there_in_time_is_late(
    events: list[tuple[str, ...]], *, started: bool, doing: list[str], at_fault: list[int]
) -> None:
    ranks = known(*events, started=started, limit=0.0)
    assert ranks.problem().splitlines()[1:] == doing
    assert ranks.at_fault == at_fault


def test_what_ranks_say_after_they_have_failed_or_left_changes_nothing() -> None:
    for end in ("fail", LEAVE, END):
        (rank,) = known((*IN, end)).ranks
        state = rank.state
        for event in (JOIN, ENTER, GO, REST, "fail", LEAVE, END):
            rank.happens(event)
            assert rank.state is state
