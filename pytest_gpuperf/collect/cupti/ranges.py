"""A step's phases as user ranges of the profiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.model import STEP


@dataclass(frozen=True)
class PhaseRange:
    """One occurrence of a phase, and the name of its range."""

    phase: str
    name: str


def phase_ranges(phases: Sequence[str]) -> tuple[PhaseRange, ...]:
    """A range for each phase of a step, in order.

    Ranges of one name would be one range to CUPTI: the second "backward" is called "backward#2".
    """
    ranges: list[PhaseRange] = []
    taken = set(phases)
    for phase in phases:
        name, number = phase, 1
        while any(entry.name == name for entry in ranges) or (number > 1 and name in taken):
            number += 1
            name = f"{phase}#{number}"
        ranges.append(PhaseRange(phase, name))
    return tuple(ranges)


def covering(phases: Sequence[PhaseRange]) -> tuple[PhaseRange, ...]:
    """Ranges of which a step consists: its phases, and what is before, between and after them.

    Those others are of the phase STEP, which no phase can be named.
    """
    names = [STEP, *(name for entry in phases for name in (entry.phase, STEP))]
    return phase_ranges(names)


class Ranges(Protocol):
    """Where ranges are marked: a RangeSession."""

    def push(self, name: str) -> None:
        """Begins a range."""
        ...

    def pop(self) -> None:
        """Ends it."""
        ...


class RangeMarker:
    """A phase listener that turns one execution's phases into the ranges expected of it.

    The first problem is kept until `finish` and ends the marking: raising inside the step's phases
    would hide an exception of the step's own, or be swallowed by the step.

    `covering` says that `expected` are the ranges of the function of that name: there is always one
    open, from `begin` to `finish`.
    """

    def __init__(
        self,
        session: Ranges,
        synchronize: Callable[[], None],
        expected: Sequence[PhaseRange],
        *,
        covering: bool = False,
    ) -> None:
        self._session = session
        self._synchronize = synchronize
        self._expected = [entry for entry in expected if entry.phase != STEP or not covering]
        self._others = [entry for entry in expected if entry.phase == STEP] if covering else []
        self._seen: list[str] = []
        self._problem: Exception | None = None

    def begin(self) -> None:
        """The execution begins."""
        if self._others:
            self._guarded(lambda: self._session.push(self._others[0].name))

    def enter(self, phase: str) -> None:
        """Begins the range of this occurrence, once the device has done what came before."""
        position = len(self._seen)
        self._seen.append(phase)
        if position < len(self._expected) and self._expected[position].phase == phase:
            self._guarded(lambda: self._push(self._expected[position].name))
        elif self._problem is None:
            self._problem = self._changed()

    def leave(self, phase: str) -> None:  # noqa: ARG002
        """Ends the range, once the device has done what belongs to it."""
        self._guarded(self._pop)

    def finish(self) -> None:
        """Raises the problem that came up, or MeasurementError for phases that are missing."""
        if self._problem is None and len(self._seen) < len(self._expected):
            self._problem = self._changed()
        if self._others:
            self._guarded(self._session.pop)
        if self._problem is not None:
            raise self._problem

    def _push(self, name: str) -> None:
        if self._others:
            self._session.pop()
        self._session.push(name)

    def _pop(self) -> None:
        self._session.pop()
        if self._others:
            self._session.push(self._others[len(self._seen)].name)

    def _guarded(self, mark: Callable[[], None]) -> None:
        if self._problem is not None:
            return
        try:
            self._synchronize()
            mark()
        except Exception as problem:
            self._problem = problem

    def _changed(self) -> MeasurementError:
        expected = [entry.phase for entry in self._expected]
        return MeasurementError(
            "the phases of the step change from one execution to the next: "
            f"expected {expected}, got {self._seen}"
        )
