"""What lives long is kept out of collections, until a fixture that several tests had has ended."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from pytest_gpuperf.plugin import session
from pytest_gpuperf.plugin.session import FrozenHeap


class Ring:
    """Only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def heap(monkeypatch: pytest.MonkeyPatch) -> Iterator[FrozenHeap]:
    monkeypatch.setattr(session, "_EACH", 3)
    yield FrozenHeap()
    gc.unfreeze()


def frozen(heap: FrozenHeap) -> weakref.ref[Ring]:
    """What lived when a test began, and then nobody held."""
    ring = Ring()
    heap.freeze()
    return weakref.ref(ring)


def test_after_many_imports_and_before_each_of_so_many_tests(heap: FrozenHeap) -> None:
    kept = []
    for _ in range(6):
        ring = frozen(heap)
        gc.collect()
        kept.append(ring() is not None)
    assert kept == [True, False, True, False, False, True]


def test_what_a_fixture_of_several_tests_has_left_is_collected(heap: FrozenHeap) -> None:
    """A graph that a module's fixture had would be in the peak of each later test."""
    left = frozen(heap)
    heap.unfreeze()
    heap.freeze()
    assert left() is None


def test_each_scope_but_a_test_s_own_may_leave_something(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import gc
        import weakref

        import pytest
        import torch

        alive = []

        class Graph:
            def __init__(self):
                self.itself = self
                alive.append(weakref.ref(self))

        @pytest.fixture(scope="module", params=range(3))
        def graph(request):
            return Graph()

        @pytest.mark.parametrize("number", range(2))
        def test_step(graph, number, gpuperf):
            gpuperf.measure(lambda: None if torch.ones(3).sum() else 1)
            gc.collect()
            assert [one() for one in alive if one()] == [graph]
        """
    )
    result = pytester.runpytest_subprocess("--gpuperf-no-judge", "--gpu-arch", "cpu")
    result.assert_outcomes(passed=6)
