"""Which rank is called a straggler: the slow one, and almost never another."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import cache
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.baselines.judgement import slower_ranks
from pytest_gpuperf.judge.machine import kind_of
from pytest_gpuperf.judge.noise import ALIKE, Kind
from pytest_gpuperf.judge.stragglers import (
    ALPHA,
    BETWEEN_GPUS,
    FREEDOM,
    LEAST,
    NOISE,
    WAITING,
    stragglers,
)
from pytest_gpuperf.measure.trace.activity import TRACES_OF_RANKS
from pytest_gpuperf.model.measurement import STEP, Measurement, Peer
from pytest_gpuperf.storage import run_files
from tests import ROOT
from tests.examples import H200, measurement, samples_of
from tests.plugin.test_conditions import AT_NIGHT
from tests.strategies import few

KIND: Kind = (15.16, 14.41)
OTHER_KIND: Kind = (15.184, 14.41)
DRAWS = 400
TRACES = TRACES_OF_RANKS


def steady(*ranks: float) -> list[list[float]]:
    """Times of ranks whose executions all take as long."""
    return [[one] * TRACES for one in ranks]


def test_the_slow_rank_is_named_with_how_much_longer_it_works() -> None:
    (found,) = stragglers([[10.0] * 4, [10.21, 10.19] * 2, [10.0] * 4], [KIND] * 3)
    assert found.rank == 1
    assert found.slower == pytest.approx(0.02, rel=1e-4)
    assert (found.own, found.peers) == pytest.approx((10.2, 10.0))


WAITED = [6.0, 0.0, 9.0, 1.0, 4.0, 0.0, 2.0]
"""How long collectives took in each execution of a rank."""


def test_a_rank_that_waited_is_not_slower_for_it() -> None:
    waits = [[0.0] * TRACES, WAITED]
    faster, lengthened, slow = ([at + WAITING * wait for wait in WAITED] for at in (9.8, 10, 10.2))
    assert stragglers([[10.0] * TRACES, lengthened], [KIND] * 2, waits) == ()
    for times, rank, own in ((slow, 1, 10.2), (faster, 0, 10.0)):
        (found,) = stragglers([[10.0] * TRACES, times], [KIND] * 2, waits)
        assert found.rank == rank
        assert found.own == pytest.approx(own)


def test_a_gpu_of_another_kind_is_compared_with_its_like() -> None:
    kinds = [KIND, OTHER_KIND, KIND, OTHER_KIND]
    assert stragglers(steady(10, 10.2, 10, 10.2), kinds) == ()
    (found,) = stragglers(steady(10, 10.4, 10, 10.2), kinds)
    assert found.rank == 1
    assert found.peers == pytest.approx(10.2)


def test_a_gpu_of_no_known_kind_is_compared_as_one_that_may_be_of_any() -> None:
    """Two of six are slower by 2 %, which two GPUs of no known kind may be by themselves."""
    kinds = [KIND, KIND, None, KIND, None, KIND]
    found = stragglers(steady(10.2, 10, 10.2, 10, 10, 10), kinds)
    assert [one.rank for one in found] == [0]


@pytest.mark.parametrize(
    ("slow", "ranks", "named"),
    [(2, 4, True), (3, 4, False), (3, 5, True), (4, 5, False)],
    ids=["two of three", "one of three", "two of four", "one of four"],
)
def test_a_rank_is_named_that_is_slower_than_half_of_its_peers(
    slow: int, ranks: int, *, named: bool
) -> None:
    """By the peers of a slow rank that are not slow themselves."""
    times = steady(*[10.3] * slow, *[10.0] * (ranks - slow))
    found = [one.rank for one in stragglers(times, [KIND] * ranks)]
    assert found == ([*range(slow)] if named else [])


def test_less_than_a_hundredth_is_nobodys_concern() -> None:
    assert stragglers(steady(10, 10 * (1 + LEAST) - 0.001), [KIND] * 2) == ()
    assert stragglers(steady(10, 10 * (1 + LEAST) + 0.01), [KIND] * 2) != ()


@pytest.mark.parametrize(
    "times",
    [
        [],
        steady(1),
        [*steady(1), []],
        [[1.0] * (FREEDOM - 3), [2.0] * 4],  # two means take two
        [[1.0] * 9, [2.0]],
        steady(1, 0),
    ],
)
def test_of_nothing_to_compare_nobody_is_named(times: list[list[float]]) -> None:
    assert stragglers(times) == ()


@few
@given(
    st.lists(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=9), min_size=2, max_size=8),
    st.floats(1e-3, 1e6),
)
def test_the_unit_of_the_times_names_nobody_else(times: list[list[float]], unit: float) -> None:
    scaled = [[unit * value for value in values] for values in times]
    before, after = stragglers(times), stragglers(scaled)
    assert {one.rank for one in before} == {one.rank for one in after}
    fastest = min(range(len(times)), key=lambda rank: fmean(map(math.log, times[rank])))
    assert fastest not in {one.rank for one in before}


def assert_seldom(named: int) -> None:
    """At most as often as is allowed in ten times DRAWS, and what chance adds to that."""
    expected = ALPHA * 10 * DRAWS
    assert named <= expected + 3 * math.sqrt(expected)


@AT_NIGHT
@pytest.mark.parametrize(("ranks", "executions"), [(2, 5), (2, TRACES), (4, 3)])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("shape", ["normal", "exponential"])
@pytest.mark.parametrize("noise", [NOISE, 0.02])
def test_alike_ranks_are_called_stragglers_as_seldom_as_is_allowed(
    ranks: int, executions: int, shape: str, noise: float, *, known: bool
) -> None:
    """Drawn with the spread between GPUs that the rule goes by, and about FREEDOM executions."""
    chance = random.Random(7)
    between = ALIKE * 0.01 if known else BETWEEN_GPUS
    kinds = [KIND] * ranks if known else []
    named = 0
    for _ in range(10 * DRAWS):
        times = []
        for _ in range(ranks):
            gpu = chance.gauss(0, between)
            drawn = (
                chance.gauss(0, 1) if shape == "normal" else chance.expovariate(1)
                for _ in range(executions)
            )
            times.append([math.exp(gpu + noise * one) for one in drawn])
        named += bool(stragglers(times, kinds))
    assert_seldom(named)


@AT_NIGHT
@pytest.mark.parametrize(("ranks", "noise"), [(2, 0.05), (4, 0.05), (8, 0.02), (8, 0.05)])
def test_a_rank_that_is_noisier_than_others_is_named_as_seldom(ranks: int, noise: float) -> None:
    chance = random.Random(9)
    deviations = [noise] + [0.0005] * (ranks - 1)
    named = 0
    for _ in range(10 * DRAWS):
        times = [[math.exp(chance.gauss(0, of)) for _ in range(TRACES)] for of in deviations]
        named += bool(stragglers(times, [KIND] * ranks))
    assert_seldom(named)


def test_a_note_names_the_rank_and_both_times() -> None:
    times = [10e6, 10e6, 12e6, 10e6]
    peers = tuple(
        Peer(f"rank {number}", H200, samples_of({"own_time": [own] * TRACES}))
        for number, own in enumerate(times)
    )
    (note,) = slower_ranks(replace(measurement(), peers=peers))
    assert note == (
        "rank 2 is a straggler: it works 20.0 % longer than the other ranks (12 ms, they take 10 "
        "ms)"
    )
    assert slower_ranks(measurement()) == ()


HOSTS = (
    "docs/runs/ranks/trials.json.xz",
    *(f"tests/data/h100-ranks/{host}-host.json.xz" for host in ("second", "third")),
)
"""Seven traces of each rank in each trial of the first, three in those of the others."""


@cache
def over_ranks(file: str) -> tuple[Measurement, ...]:
    """Med-DDPM's step under DistributedDataParallel on two H100s of one host, at 96^3.

    The workload says which rank had a kernel more that takes 2 % of its own time, or -1.
    """
    return run_files.load(ROOT / file).measurements


@AT_NIGHT
@pytest.mark.parametrize("host", HOSTS)
def test_on_two_h100s_whoever_was_slowed_is_named_and_nobody_else(host: str) -> None:
    """Seven executions drawn from those of all trials in which a rank had as much to do."""
    executions: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for measured in over_ranks(host):
        kinds = [kind_of(peer.conditions) for peer in measured.peers]
        for rank, peer in enumerate(measured.peers):
            of_step = {s.metric: s.values for s in peer.samples if s.phase == STEP}
            both = zip(of_step["own_time"], of_step["collective_time"], strict=True)
            executions.setdefault((int(measured.workload["slowed"]), rank), []).extend(both)
    chance = random.Random(11)
    right = 0
    for number in range(DRAWS):
        slowed = number % 3 - 1
        drawn = [chance.choices(executions[slowed, rank], k=TRACES) for rank in range(2)]
        times, waits = ([[one[at] for one in own] for own in drawn] for at in (0, 1))
        found = [one.rank for one in stragglers(times, kinds, waits)]
        assert found in ([], [slowed])
        right += found == ([] if slowed == -1 else [slowed])
    assert right >= 0.95 * DRAWS


def test_of_twenty_ranks_that_were_slowed_nineteen_are_named_and_nobody_else() -> None:
    """The trials of seven traces, ten of them without one; the bar is 19 of 20."""
    named = []
    for measured in over_ranks(HOSTS[0]):
        slowed = measured.workload["slowed"]
        found = [note.split(" is a straggler")[0] for note in slower_ranks(measured)]
        assert found in ([], [f"rank {slowed}"])
        named += found
    assert len(over_ranks(HOSTS[0])) == 30
    assert len(named) == 19
