"""Ranks' states: which of them keeps the others waiting, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_gpuperf.measure import rank_states
from pytest_gpuperf.measure.rank_states import RankGroup

JOIN, ENTER, GO, REST, LEAVE, END = "join", "arrive", "go", "rest", "leave", "end"
IN = (JOIN, ENTER, GO)
LATE = "nobody got on for 0 s, the time limit (--gpuperf-time-limit SECONDS allows more): "


def known(*events: Sequence[str], started: bool = False, limit: float = 60.0) -> RankGroup:
    """Ranks to which these events have happened; with `started`, this process has started them."""
    ranks = RankGroup(len(events), limit, (lambda _: "") if started else None)
    for number, (rank, of_rank) in enumerate(zip(ranks.ranks, events, strict=True)):
        for event in of_rank:
            fields = {"at": "round 1"} if event == ENTER else {}
            rank.happens(event, **fields)
        rank.pid = number + 40
    return ranks


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([IN, IN], ""),
        ([IN, (*IN, REST)], ""),
        ([IN, (JOIN, ENTER)], ""),
        # Whoever has ended goes before whoever has failed.
        ([(*IN, "fail"), (*IN, END)], "rank 1 (process 41) has ended; last in round 1"),
        ([(*IN, "fail"), IN], "rank 0 failed, last in round 1: "),
        # One that has said goodbye may end; but not while others wait for it.
        ([(*IN, REST), (*IN, REST, LEAVE, END)], ""),
        ([IN, (JOIN, LEAVE)], ""),
        (
            [(JOIN, ENTER), (JOIN, LEAVE)],
            "rank 1 (process 41) has ended its test without measuring; it had not begun to measure",
        ),
    ],
)
def test_the_rank_at_fault_is_named_with_what_it_did_last(
    events: list[tuple[str, ...]], problem: str
) -> None:
    assert known(*events).problem().partition("\n")[0] == problem


def test_one_that_waits_in_the_step_for_one_that_has_left_may_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rank_states, "_GRACE", -1.0)
    assert "has ended its test without measuring" in known(IN, (*IN, REST, LEAVE)).problem()
    assert known((*IN, REST), (*IN, REST, LEAVE)).problem() == ""


def test_one_that_was_started_is_waited_for_from_the_beginning() -> None:
    ranks = RankGroup(2, 60.0, lambda number: "has ended with exit code 2" * number)
    assert ranks.problem().startswith(
        "rank 1 has ended with exit code 2 before it began to measure"
    )
    assert ranks.at_fault == [1]
    assert "has ended its test" in known((JOIN,), (JOIN, LEAVE), started=True).problem()


@pytest.mark.parametrize(
    ("events", "started", "late", "at_fault"),
    [
        (
            [(JOIN, ENTER), (), IN],
            False,
            "rank 1 has not begun to measure; rank 2 (process 42) does not come out, last in round "
            "1; rank 0 is waiting for the others before round 1",
            [1, 2],
        ),
        # Between measurements they may take any time, and before the first.
        ([(*IN, REST), (JOIN,), ()], False, "", []),
        ([()], True, "rank 0 has not begun to measure", [0]),
    ],
)
def test_one_that_is_not_there_in_time_is_late(
    events: list[tuple[str, ...]], *, started: bool, late: str, at_fault: list[int]
) -> None:
    ranks = known(*events, started=started, limit=0.0)
    assert ranks.problem().removeprefix(LATE) == late
    assert (ranks.at_fault, ranks.hang) == (at_fault, bool(late))


def test_what_ranks_say_after_they_have_failed_or_left_changes_nothing() -> None:
    for end in ("fail", LEAVE, END):
        (rank,) = known((*IN, end)).ranks
        state = rank.state
        for event in (JOIN, ENTER, GO, REST, "fail", LEAVE, END):
            rank.happens(event)
            assert rank.state is state
