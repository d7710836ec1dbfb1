"""Marks of phases and components: who hears them, and what a step may not do with them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure.collector import Components, PhaseNames, Phases
from pytest_gpuperf.model.measurement import STEP


class Diary(PhaseNames):
    """Notes leaving as well."""

    def leave(self, phase: str) -> None:
        self.names.append(f"/{phase}")


def test_a_listener_hears_phases_in_their_order_inside_its_block_alone() -> None:
    phases, outer, inner, later = Phases(), Diary(), Diary(), Diary()
    with phases.heard_by(outer):
        with phases.heard_by(inner), phases.mark("a"):
            pass
        with phases.mark("b"):
            pass
        with phases.mark("a"):
            pass
    with phases.mark("forward"):
        pass
    # A step that raises leaves its phase and its listener.
    with pytest.raises(ZeroDivisionError), phases.heard_by(later), phases.mark("forward"):
        _ = 1 / 0
    with phases.mark("backward"):
        pass
    assert inner.names == ["a", "/a"]
    assert outer.names == ["b", "/b", "a", "/a"]
    assert later.names == ["forward", "/forward"]


@pytest.mark.parametrize(
    ("marks", "within", "name", "says"),
    [
        (Phases(), [], STEP, f'a phase cannot be named "{STEP}"'),
        (Components(), [], STEP, f'a component cannot be named "{STEP}"'),
        (Phases(), [], "\ud800", r'the phase "\\ud800" has half'),
        (Phases(), ["forward"], "attention", '"attention" begins inside phase "forward"'),
    ],
)
def test_marks_that_cannot_be_are_refused(
    marks: Components, within: list[str], name: str, says: str
) -> None:
    with marks.heard_by(PhaseNames()), ExitStack() as opened:
        for outer in within:
            opened.enter_context(marks.mark(outer))
        with pytest.raises(MeasurementError, match=says):
            opened.enter_context(marks.mark(name))
