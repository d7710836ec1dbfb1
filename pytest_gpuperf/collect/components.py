"""Who listens to the step's components: the trace of a GPU, and a clock of the host."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

from pytest_gpuperf.collect.activities import COMPONENT
from pytest_gpuperf.collect.base import PhaseNames
from pytest_gpuperf.errors import MeasurementError


class Annotations(PhaseNames):
    """Opens a range in torch's trace around each component, and notes the names.

    The range has a number in place of the name: a trace does not keep every character.
    """

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[str, str] = {}
        """What stands in the trace for each component."""
        self._open: list[Any] = []

    def enter(self, phase: str) -> None:
        """Opens the range."""
        from torch.profiler import record_function

        super().enter(phase)
        number = self.numbers.setdefault(phase, str(len(self.numbers)))
        opened: Any = record_function(COMPONENT + number)  # untyped in some releases
        opened.__enter__()
        self._open.append(opened)

    def leave(self, phase: str) -> None:  # noqa: ARG002 -- the innermost is left first
        """Closes it."""
        self._open.pop().__exit__(None, None, None)


class HostTimes:
    """Wall-clock time of each component, that of components inside it left out."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        """Milliseconds, by component, in order of their first appearance."""
        self._open: list[str] = []
        self._since = 0.0

    def enter(self, phase: str) -> None:
        """The time of what it is inside of stands still."""
        self._settle()
        self.times.setdefault(phase, 0.0)
        self._open.append(phase)

    def leave(self, phase: str) -> None:  # noqa: ARG002 -- the innermost is left first
        """That time goes on."""
        self._settle()
        self._open.pop()

    def _settle(self) -> None:
        now = time.perf_counter_ns() / 1e6
        if self._open:
            self.times[self._open[-1]] += now - self._since
        self._since = now


def checked(heard: Sequence[Collection[str]], phases: Collection[str]) -> tuple[str, ...]:
    """The components of several executions of a step, each once.

    Raises MeasurementError where executions differ in them, and where one has a phase's name: what
    was measured of the two could not be told apart.
    """
    names = tuple(dict.fromkeys(heard[0])) if heard else ()
    for others in heard[1:]:
        if set(others) != set(names):
            raise MeasurementError(
                "the components of the step change from one execution to the next: first "
                f"{list(names)}, then {list(dict.fromkeys(others))}. Give `measure` a `reset` "
                "after which the step does the same work again"
            )
    for name in names:
        if name in phases:
            raise MeasurementError(
                f'"{name}" is both a phase and a component of the step: give one of them another '
                "name"
            )
    return names
