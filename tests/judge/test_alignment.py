"""Which launches of two steps are the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.judge.alignment import (
    LaunchChange,
    common,
    keys,
    operator_of,
    pair,
    sequence_of,
)
from pytest_gpuperf.model.measurement import CallSite
from pytest_gpuperf.model.result import ChangeKind
from tests.kernel_steps import operators, table
from tests.strategies import few

sequences = st.text("abc", max_size=12)
kernels = st.lists(st.sampled_from(["conv a", "conv b", "add a", "add b", "copy"]), max_size=14)


class Paired(NamedTuple):
    """The positions of launches, of pairs first the new one."""

    matched: list[tuple[int, int]]
    moved: list[tuple[int, int]]
    replaced: list[tuple[int, int]]
    added: list[int]
    removed: list[int]


def positions(changes: Sequence[LaunchChange]) -> Paired:
    made = Paired([], [], [], [], [])
    for change in changes:
        kind, at = change.kind, change.launch.position
        if change.former:
            same = made.moved if change.moved else made.matched
            pairs = made.replaced if kind is ChangeKind.REPLACED else same
            pairs.append((at, change.former.position))
        else:
            (made.added if kind is ChangeKind.ADDED else made.removed).append(at)
    return made


def paired(new: Sequence[str], old: Sequence[str], *, long: str = "") -> Paired:
    """Of kernels whose family is their first word; those named `long` take longer."""
    made = (table(*((name, 1.0 + (name == long)) for name in side)) for side in (new, old))
    sides = [sequence_of([one], lambda name: name.split()[0], str, str).launches for one in made]
    return positions(pair(*sides))


def longest(one: str, other: str) -> int:
    """The length of a longest common subsequence, by the textbook."""
    above = [0] * (len(other) + 1)
    for item in one:
        row = [0]
        for j, candidate in enumerate(other):
            row.append(above[j] + 1 if item == candidate else max(above[j + 1], row[j]))
        above = row
    return above[-1]


@few
@given(sequences, sequences)
def test_it_is_a_longest_common_subsequence(one: str, other: str) -> None:
    pairing = common(one, other)
    assert len(pairing) == longest(one, other)
    assert all(one[i] == other[j] for i, j in pairing)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairing))


@few
@given(kernels, kernels)
def test_every_launch_is_in_exactly_one_place(new: list[str], old: list[str]) -> None:
    pairing = paired(new, old)
    pairs = [*pairing.matched, *pairing.moved, *pairing.replaced]
    assert sorted([*(i for i, _ in pairs), *pairing.added]) == [*range(len(new))]
    assert sorted([*(j for _, j in pairs), *pairing.removed]) == [*range(len(old))]
    assert all(new[i] == old[j] for i, j in (*pairing.matched, *pairing.moved))
    assert all(new[i].split()[0] == old[j].split()[0] for i, j in pairing.replaced)
    assert all(new[i] != old[j] for i, j in pairing.replaced)
    assert not set(map(new.__getitem__, pairing.added)) & set(map(old.__getitem__, pairing.removed))


@few
@given(kernels, kernels)
def test_exchanging_the_sides_exchanges_the_positions(new: list[str], old: list[str]) -> None:
    here, there = paired(new, old), paired(old, new)
    for one, other in zip(here[:3], there[:3], strict=True):
        assert sorted(one) == sorted((i, j) for j, i in other)
    assert (here.added, here.removed) == (there.removed, there.added)


def test_what_replaces_what_has_moved_or_was_added() -> None:
    """The new step, the old one, and then what of them are pairs of which kind."""
    conv, gemm, two = ["copy", "conv a", "add a"], ["copy", "gemm a", "add a"], ["add a"] * 2
    for new, old, expected in (
        # Runs of equal kernels match in order.
        (two, two, Paired([(0, 0), (1, 1)], [], [], [], [])),
        (two, [*two, "add a"], Paired([(0, 0), (1, 1)], [], [], [], [2])),
        # Another kernel between the same neighbours replaces; one of another family does not.
        (["copy", "conv b", "add a"], conv, Paired([(0, 0), (2, 2)], [], [(1, 1)], [], [])),
        (gemm, conv, Paired([(0, 0), (2, 2)], [], [], [1], [1])),
        # A helper that happens to match does not part what was replaced.
        (
            ["add a", "fill", "conv b", "add b"],
            ["add a", "conv a", "fill", "add b"],
            Paired([(0, 0), (1, 2), (3, 3)], [], [(2, 1)], [], []),
        ),
        # Far apart nothing is replaced.
        (
            ["conv b", "copy", "add a"],
            ["copy", "add a", "conv a"],
            Paired([(1, 0), (2, 1)], [], [], [0], [2]),
        ),
        # An equal kernel elsewhere has moved.
        (
            ["gemm", "copy", "add a"],
            ["copy", "add a", "gemm"],
            Paired([(1, 0), (2, 1)], [(0, 2)], [], [], []),
        ),
        # Of neighbours that changed places one has moved, and neither replaces.
        (
            ["copy", "conv a", "conv b"],
            ["copy", "conv b", "conv a"],
            Paired([(0, 0), (2, 1)], [(1, 2)], [], [], []),
        ),
    ):
        assert paired(new, old) == expected, (new, old)


def test_of_several_the_longest_replaces_and_its_helper_is_added() -> None:
    pairing = paired(
        ["copy", "conv helper", "conv b", "add a"], ["copy", "conv a", "add a"], long="conv b"
    )
    assert (pairing.replaced, pairing.added) == ([(2, 1)], [1])


def test_an_operator_of_the_backward_pass_is_another_than_the_same_in_the_forward_pass() -> None:
    """So that one that has come does not make up for another that is gone."""
    forward = ("aten.mul", "net.py:4 Net.norm a")
    backward = ("aten.mul", "net.py:4 Net.norm a < backward@1")
    for then in (forward, backward):
        rows = ([forward, backward], [then, then])
        sides = (sequence_of([operators(*side)], str, str, str).launches for side in rows)
        pairing = positions(pair(*sides))
        assert (len(pairing.matched), len(pairing.moved)) == (1, 0)
        assert (len(pairing.added), len(pairing.removed)) == (1, 1)


@pytest.mark.parametrize(
    "place", ["", "Net.forward", "Net.forward layers.0", "Net.forward cross in domain"]
)
def test_an_operator_is_called_by_its_name_wherever_it_is_called(place: str) -> None:
    """A module may be called anything, and where operators come from may not be known."""
    made = operators(("aten.mm", "net.py:3 Net.forward"))
    function, _, module = place.partition(" ")
    sites = (CallSite("net.py:3", function, module),) if place else ()
    made = replace(made, sites=sites, site_of=(0,) * len(sites))
    ((name, _, _),) = keys(made)
    assert operator_of(name) == "aten.mm"


def test_sequences_with_little_in_common_are_aligned() -> None:
    assert len(common([0] * 3337 + [1], [2] + [0] * 1647)) == 1647
    assert common([*range(3337)], [*range(4000, 5647)]) == []
    assert len(common([*range(3337)], [*range(3336, -1, -1)])) == 1
