"""Which measurements are meant: patterns of tests, and processes that several runs have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.storage import run_files
from tests.examples import TEST, measurement, processes, run

A, B = Path("a.json"), Path("b.json")

node_ids = st.text(st.sampled_from("ab/:[]*?-!"), min_size=1, max_size=12)


# Patterns


@pytest.mark.parametrize(
    "pattern",
    [
        TEST,  # pasted
        "test_training_step[tf32]",  # its end, pasted
        "[tf32]",
        "meddpm",  # a part of it
        "*",
        "*tf32*",
        "suites/*::test_training_step*",
        "*::test_training_step[tf32]",  # brackets as they are written
        "*step[[]tf32]",  # brackets as the shell has them
        "*step?tf32?",
    ],
)
def test_a_pattern_matches(pattern: str) -> None:
    assert run_files.matches(TEST, pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "tf64",
        "test_training_step[tf32_channels_last]",
        "test_*",  # a pattern is about the whole node id
        "*meddpm",
        "TF32",
        "step[channels]",
    ],
)
def test_a_pattern_does_not_match(pattern: str) -> None:
    assert not run_files.matches(TEST, pattern)


def test_a_configuration_is_not_taken_for_the_longer_one() -> None:
    longer = TEST.replace("tf32", "tf32_channels_last")
    assert not run_files.matches(longer, "test_training_step[tf32]")
    assert not run_files.matches(longer, "*::test_training_step[tf32]")
    assert run_files.matches(longer, "*tf32*")


@given(test=node_ids)
def test_every_node_id_matches_itself(test: str) -> None:
    assert run_files.matches(test, test)
    assert run_files.matches(test, "*")


@given(test=node_ids, start=st.integers(0, 12), end=st.integers(0, 12))
def test_every_part_matches_that_is_no_pattern(test: str, start: int, end: int) -> None:
    part = test[start:end]
    if not {"*", "?"} & set(part):
        assert run_files.matches(test, part)


def named(*tests: str) -> list[Measurement]:
    """A measurement per test."""
    return [measurement(test=test) for test in tests]


def test_without_patterns_everything_is_meant() -> None:
    both = named("a", "b")
    assert run_files.matching(both, []) == both


def test_several_patterns_mean_all_that_any_of_them_matches_in_their_order() -> None:
    found = run_files.matching(named("a1", "b1", "c1", "a2"), ["c", "a*"])
    assert [m.test for m in found] == ["a1", "c1", "a2"]


@pytest.mark.parametrize("patterns", [["x"], ["a", "x"], ["x", "*"]])
def test_a_pattern_that_nothing_matches_is_refused_with_what_there_is(patterns: list[str]) -> None:
    with pytest.raises(run_files.NoMatch) as caught:
        run_files.matching(named("a", "b", "a"), patterns)
    assert str(caught.value).splitlines() == [
        'no test of the run matches "x"; it has measurements of',
        "  a",
        "  b",
    ]


@pytest.mark.parametrize(
    ("tests", "last"), [(10, "  t9"), (11, "  and 1 more"), (300, "  and 290 more")]
)
def test_no_more_than_ten_tests_are_listed(tests: int, last: str) -> None:
    with pytest.raises(run_files.NoMatch) as caught:
        run_files.matching(named(*(f"t{number}" for number in range(tests))), ["x"])
    lines = str(caught.value).splitlines()
    assert len(lines) == 1 + min(tests, 10) + (tests > 10)
    assert lines[-1] == last


# Several runs


def test_processes_of_several_runs_come_together() -> None:
    three = processes("cycles", [[1.0], [2.0], [3.0]])
    found = run_files.measurements_of([(A, run(three[:1])), (B, run(three[1:]))])
    assert found == three


@pytest.mark.parametrize("again", [A, B])
def test_a_process_that_two_files_have_counts_once(again: Path) -> None:
    three = processes("cycles", [[1.0], [2.0], [3.0]])
    assert run_files.measurements_of([(A, run(three)), (again, run(three))]) == three
    # A run that was continued has the processes of the one it continues.
    assert run_files.measurements_of([(A, run(three[:2])), (again, run(three))]) == three
    assert run_files.measurements_of([(A, run(three)), (again, run(three[:2]))]) == three


def test_one_process_in_two_tests_and_two_measurements_is_not_the_same() -> None:
    different = [measurement(test="a"), measurement(test="b"), measurement(test="b", name="x")]
    assert (
        run_files.measurements_of([(A, run(different[:2])), (B, run(different[2:]))]) == different
    )


def test_what_a_process_measured_twice_in_one_run_stays() -> None:
    twice = [measurement({"cycles": [1.0]}), measurement({"cycles": [3.0]})]
    assert run_files.measurements_of([(A, run(twice)), (B, run(twice))]) == twice


@pytest.mark.parametrize("other", [[2.0], [1.0, 1.0]])
def test_a_process_with_two_values_is_refused(other: list[float]) -> None:
    one, two = measurement({"cycles": [1.0]}), measurement({"cycles": other})
    with pytest.raises(UsageFailure, match=r"process p1 has other values .* in b\.json than in a"):
        run_files.measurements_of([(A, run([one])), (B, run([two]))])
    with pytest.raises(UsageFailure, match="has other values"):
        run_files.measurements_of([(A, run([one])), (B, run([one, one]))])


def test_what_was_noted_beside_the_values_may_differ() -> None:
    one = measurement()
    noted = replace(one, fingerprint=replace(one.fingerprint, measured="2026-03-01T00:00:00Z"))
    assert run_files.measurements_of([(A, run([one])), (B, run([noted]))]) == [one]


@given(cuts=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=4))
def test_however_runs_overlap_each_process_counts_once(cuts: list[tuple[int, int]]) -> None:
    six = processes("cycles", [[float(number)] for number in range(6)])
    parts = [six[min(cut) : max(cut)] for cut in cuts]
    found = run_files.measurements_of(
        [(Path(f"{n}.json"), run(part)) for n, part in enumerate(parts)]
    )
    names = [m.process for m in found]
    assert len(names) == len(set(names))
    assert set(names) == {m.process for part in parts for m in part}
