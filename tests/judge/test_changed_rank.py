"""Against a baseline: the rank that changed is the one that is looked at, and named where alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpuperf.judge.attribution import attribute
from pytest_gpuperf.judge.stragglers import changed_rank, of_rank
from pytest_gpuperf.model.measurement import KernelTable, Measurement
from pytest_gpuperf.model.result import CauseKind
from pytest_gpuperf.report.text import kernel_lines
from pytest_gpuperf.storage import data_files
from tests.examples import measurement, verdict
from tests.kernel_steps import NAMING, operators, sited

NET, CHECK = "train.py:9 Net.forward", "train.py:20 check"


def step(*more: tuple[str, float, str], idle: float = 50.0, faster: float = 1.0) -> KernelTable:
    """A rank's step of 1000 us in two kernels; `faster` is its GPU than others."""
    rows = ("conv", 900.0 / faster, NET), ("add", 50.0 / faster, NET), *more
    return sited(*rows, idle=idle, idle_at=[(CHECK, idle - 45.0)] if idle > 50 else ())


def ranks(first: KernelTable, *peers: KernelTable) -> KernelTable:
    """The table of a step of several ranks."""
    return replace(first, peers=peers)


def accepted(table: KernelTable) -> KernelTable:
    """What a baseline keeps of it."""
    made: Measurement = measurement(kernels=table)
    kept = data_files.chosen([made])
    assert kept is not None
    return kept


GEMM = ("gemm", 7.0, CHECK)
MORE = [GEMM] * 3
BEFORE = ranks(step(), step(faster=1.02))
"""Two ranks, of which the second's GPU is faster by 2 %."""
UNSTEADY = replace(step(idle=90.0), busy=(9.5e5,) * 3, idles=(7e4, 9e4, 11e4))
"""A step whose three traces differ."""


@pytest.mark.parametrize(
    ("now", "rank", "alone"),
    [
        (ranks(step(), step(*MORE, faster=1.02)), 1, True),
        (ranks(step(*MORE), step(faster=1.02)), 0, True),
        (ranks(step(GEMM), step(faster=1.02)), 0, True),
        (ranks(step(idle=70.0), step(faster=1.02)), 0, True),
        (ranks(step(), step(idle=70.0, faster=1.02)), 1, True),
        # Beside a collective that waits on its GPU, a peer's kernels take longer.
        (ranks(step(faster=0.985), step(idle=70.0, faster=1.02)), 1, True),
        # What differs between executions by as much is chance's.
        (ranks(UNSTEADY, step(faster=1.02)), 0, False),
        # What all ranks do more of is of none.
        (ranks(step(*MORE), step(*MORE, faster=1.02)), 0, False),
        (ranks(step(GEMM), step(*MORE, faster=1.02)), 1, True),
        (ranks(step(idle=70.0), step(idle=71.0, faster=1.02)), 1, False),
        # Less than a hundredth by time alone is nobody's, and neither are other GPUs.
        (ranks(step(), step(idle=55.0, faster=1.02)), 1, False),
        (ranks(step(faster=0.98), step(faster=0.99)), 1, False),
        (BEFORE, 0, False),
    ],
)
def test_the_rank_that_changed_is_named_where_its_peers_did_not(
    now: KernelTable, rank: int, alone: bool
) -> None:
    for before in (BEFORE, accepted(BEFORE)):
        assert changed_rank([now], [before]) == (rank, alone)


def test_one_process_has_no_rank() -> None:
    assert changed_rank([step(*MORE)], [step()]) == (0, False)
    assert attribute(step(*MORE), step(), NAMING).rank is None


def test_of_a_baseline_without_peers_each_rank_is_compared_with_the_one_there_is() -> None:
    assert changed_rank([ranks(step(), step(*MORE))], [step()]) == (1, True)


def test_a_baseline_keeps_the_table_of_each_rank() -> None:
    kept = accepted(ranks(step(), step(faster=1.02), step(*MORE)))
    assert of_rank(kept, 1) == step(faster=1.02)
    assert of_rank(kept, 2) == step(*MORE)
    assert [of_rank(kept, rank).peers for rank in range(3)] == [()] * 3


SLOWER = [verdict("step_time", baseline=1.0, measured=1.021, change=0.021)]


def test_the_sentence_names_rank_line_and_kernels() -> None:
    found = attribute(ranks(step(), step(*MORE, faster=1.02)), BEFORE, NAMING, SLOWER)
    assert found.rank == 1
    assert found.cause is not None
    assert (found.cause.kind, found.cause.line) == (CauseKind.LAUNCHES, "train.py:20")
    assert "rank 1: train.py:20 check launches 3 more kernels" in kernel_lines.sentence(found)
    assert kernel_lines.heading(found).startswith("kernels of rank 1: ")


def test_operators_of_a_rank_are_told_by_their_number() -> None:
    before = operators(("mm", NET), ("add", NET))
    more = operators(("mm", NET), ("add", NET), ("mm", CHECK))
    found = attribute(ranks(before, more), accepted(ranks(before, before)), NAMING)
    assert (found.rank, found.lines[0].line) == (1, "train.py:20")
    assert kernel_lines.heading(found) == "operators of rank 1: 2 -> 3 in a step"
    assert attribute(ranks(more, more), ranks(before, before), NAMING).rank is None
