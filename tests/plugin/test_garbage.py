"""What is imported is kept out of collections, and what holds a GPU's memory is not."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch

from pytest_gpuperf.plugin import session
from pytest_gpuperf.plugin.session import FrozenImports


class Ring:
    """Only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[FrozenImports]:
    """Of a session that has imported a thousand modules."""
    monkeypatch.setattr(session, "_EACH", 3)
    frozen = FrozenImports()
    frozen._modules -= 1000
    yield frozen
    gc.unfreeze()


def kept_out(imports: FrozenImports) -> bool:
    """Whether what is there now is no longer looked through."""
    ring = Ring()
    gone = weakref.ref(ring)
    imports.freeze()
    del ring
    gc.collect()
    return gone() is not None


def test_after_many_imports_and_before_each_of_so_many_tests(imports: FrozenImports) -> None:
    assert [kept_out(imports) for _ in range(6)] == [True, False, True, False, False, True]


def test_not_while_a_fixture_holds_memory_of_a_gpu(
    imports: FrozenImports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph that a module's fixture had would be in the peak of each later test."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 512)
    assert not kept_out(imports)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    assert kept_out(imports)
