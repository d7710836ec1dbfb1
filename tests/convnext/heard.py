"""Who hears the marks of a step's parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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
