"""Who hears the marks of a step's parts, and what a stream of copies is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

from suites.convnext_ddpm.crossing import CopyStream


class Heard:
    """Notes what is marked, in order, and what inside of what."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.nested: set[tuple[str, str]] = set()
        """(outer, inner)"""
        self._open: list[str] = []

    @contextmanager
    def mark(self, name: str) -> Iterator[None]:
        """Marks a part."""
        self.names.append(name)
        self.nested |= {(outer, name) for outer in self._open}
        self._open.append(name)
        try:
            yield
        finally:
            self._open.pop()


def noted_copies(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[str]:
    """What the module's stream of copies is told, by a stand-in: there is none on a CPU."""
    events: list[str] = []

    class Stream(CopyStream):
        count = 0

        def arrival(self) -> str:  # type: ignore[override]
            self.count += 1
            events.append(f"copied {self.count}")
            return f"waits for {self.count}"

        def wait_for(self, arrival: str) -> None:  # type: ignore[override]
            events.append(arrival)

    monkeypatch.setattr(module, "CopyStream", Stream)
    return events
