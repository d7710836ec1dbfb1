"""Ranks' states: which of them keeps the others waiting, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_gpuperf.measure import barrier
from pytest_gpuperf.measure.barrier import RankGroup

JOIN, ENTER, GO, REST, LEAVE, END = "join", "arrive", "go", "rest", "leave", "end"
IN = (JOIN, ENTER, GO)


def known(*events: Sequence[str], started: bool = False, limit: float = 60.0) -> RankGroup:
    """Ranks to which these events have happened; with `started`, this process has started them."""
    ranks = RankGroup(len(events), limit, [str] * len(events) if started else ())
    for number, (rank, of_rank) in enumerate(zip(ranks.ranks, events, strict=True)):
        for event in of_rank:
            fields = {"at": "round 1"} if event == ENTER else {}
            rank.happens(event, **fields)
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
