"""On which nights levels changed: exactly, at their night, and not by noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.change_points import Nights, Trend, segmented, trends

CYCLES, INSTRUCTIONS, IPC, HITS = (
    catalogue().metrics[name] for name in ("cycles", "instructions", "ipc", "l2_hit_rate")
)


def noisy(nights: int, seed: int = 1, sigma: float = 1e-3) -> list[float]:
    """Cycles of so many nights on which nothing changes."""
    return [*(4e8 * np.exp(np.random.default_rng(seed).normal(size=nights) * sigma))]


def trend(values: list[float], gpus: list[str] | None = None) -> Trend:
    """Of cycles, where nothing else is known."""
    return trends([(CYCLES, Nights(values, gpus or ["a"] * len(values)))])[0]


def test_the_segments_are_those_that_ruptures_finds_without_a_jump() -> None:
    ruptures = pytest.importorskip("ruptures", reason='needs pip install "pytest-gpuperf[test]"')
    rng = np.random.default_rng(3)
    for length in (*range(4, 9), 40, 120):
        moves = (rng.random((6, length)) < 0.1) * rng.normal(size=(6, length)) * 4
        series = [*(np.cumsum(moves, axis=1) + rng.normal(size=(6, length)))]
        oracle = ruptures.KernelCPD(kernel="linear", min_size=2, jump=1)
        theirs = [oracle.fit(z.reshape(-1, 1)).predict(pen=9.0)[:-1] for z in series]
        assert segmented(series, 9.0) == theirs


@pytest.mark.parametrize(("change", "nights"), [(0.01, 2), (-0.01, 2), (0.006, 6), (0.5, 2)])
def test_a_step_is_found_at_its_night_when_a_few_have_seen_it(change: float, nights: int) -> None:
    values = noisy(60 + nights)
    values[60:] = [value * (1 + change) for value in values[60:]]
    (one,) = trend(values).changes
    assert (one.before, one.at) == (59, 60)
    assert one.change == pytest.approx(change, abs=4 * one.error)
    assert one.worse is (change > 0)
    assert one.matters


def test_nothing_is_found_in_noise() -> None:
    years = [(CYCLES, Nights(noisy(365, seed), ["a"] * 365)) for seed in range(60)]
    changes = [change for one in trends(years) for change in one.changes]
    assert len(changes) <= 1
    assert not any(change.matters for change in changes)


@pytest.mark.parametrize("at", [0, 17, 59])
def test_one_night_that_stands_apart_is_no_change(at: int) -> None:
    values = noisy(60)
    values[at] *= 1.05
    one = trend(values)
    assert (one.changes, one.set_aside) == ((), (at,))
    assert (one.pending is not None) is (at == 59)  # the next night will tell


def device(
    slow: Mapping[int, float], days: Mapping[int, range] = MappingProxyType({})
) -> list[Trend]:
    """Of twelve tests on one machine, which is slower on some nights; of some not every night."""
    asked = []
    for test in range(12):
        values = noisy(60, 100 + test)
        of = days.get(test, range(60))
        of_machine = [values[day] * (1 + slow.get(day, 0.0)) for day in of]
        asked.append((CYCLES, Nights(of_machine, ["a"] * len(of), of)))
    return trends(asked)


def test_a_machine_that_is_slow_on_two_nights_of_three_has_no_other_level() -> None:
    slow = {30: 0.012, 31: 0.008, 33: 0.016}
    for one in device(slow):
        assert (one.changes, one.set_aside) == ((), (30, 31, 33))
    alone = [
        trend([v * (1 + slow.get(n, 0)) for n, v in enumerate(noisy(60, s))]) for s in range(4)
    ]
    assert any(one.changes for one in alone)  # which one series cannot know


def test_a_machine_that_is_slow_from_a_night_on_has() -> None:
    for one in device(dict.fromkeys(range(30, 60), 0.01)):
        assert [(change.before, change.at) for change in one.changes] == [(29, 30)]
    for one in device({59: 0.01}):
        assert (one.changes, one.set_aside, one.pending is not None) == ((), (59,), True)


def test_tests_that_take_turns_tell_of_their_own_nights() -> None:
    days = {test: range(test % 4, 60, 4) for test in range(12)}
    for test, one in enumerate(device(dict.fromkeys(range(30, 60), 0.02), days)):
        assert [days[test][change.at] >= 30 for change in one.changes] == [True]
        assert not one.set_aside


def test_what_is_within_the_tolerance_is_known_and_does_not_matter() -> None:
    values = [
        value * (1 if night < 40 else 1.003) for night, value in enumerate(noisy(80, 2, 2e-4))
    ]
    (one,) = trend(values).changes
    assert (one.at, one.matters) == (40, False)


def test_counts_that_go_to_and_fro_between_two_values_are_noise() -> None:
    modes = np.where(np.random.default_rng(5).random(200) < 0.3, 1.0002e9, 1e9)
    (one,) = trends([(INSTRUCTIONS, Nights([*modes], ["a"] * 200))])
    assert one.changes == ()


def test_one_more_instruction_in_a_thousand_is_found_in_exact_counts() -> None:
    values = [1e9] * 30 + [1.001e9] * 2
    (one,) = trends([(INSTRUCTIONS, Nights(values, ["a"] * 32))])
    assert [change.at for change in one.changes] == [30]


def test_percentages_change_in_points_and_neutral_metrics_are_neither_worse_nor_better() -> None:
    rng = np.random.default_rng(4)
    hits = [*(60 + rng.normal(size=40) * 0.1 - 3 * (np.arange(40) >= 20))]
    ipc = [*(0.6 * np.exp(rng.normal(size=40) * 1e-3 + 0.05 * (np.arange(40) >= 20)))]
    gpus = ["a"] * 40
    first, second = trends([(HITS, Nights(hits, gpus)), (IPC, Nights(ipc, gpus))])
    assert first.points
    assert first.changes[0].change == pytest.approx(-3, abs=0.2)
    assert first.changes[0].worse
    assert second.changes[0].worse is None


def test_gpus_of_a_pool_differ_and_that_is_no_change() -> None:
    gpus = ["a" if night % 3 else "b" for night in range(60)]
    values = [v * (1.02 if gpu == "b" else 1) for v, gpu in zip(noisy(60), gpus, strict=True)]
    one = trend(values, gpus)
    assert one.changes == ()
    assert one.offsets["b"] == pytest.approx(math.log(1.02), abs=3e-3)


def test_a_gpu_that_takes_the_place_of_another_may_be_the_change() -> None:
    values = [value * (1 if night < 30 else 1.02) for night, value in enumerate(noisy(60))]
    (one,) = trend(values, ["a"] * 30 + ["b"] * 30).changes
    assert one.at == 30


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [0.0] * 9, [5.0] * 9])
def test_few_values_and_zeros_have_no_change(values: list[float]) -> None:
    assert trend(values).changes == ()
