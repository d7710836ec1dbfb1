"""Marks of phases and components: who hears them, and what a step may not do with them."""

from __future__ import annotations

import pytest

from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure.collector import Components, PhaseNames, Phases, samples_of
from pytest_gpuperf.model.measurement import STEP, Sample


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


def test_components_may_be_inside_each_other_and_come_again() -> None:
    components, diary = Components(), Diary()
    with components.heard_by(diary):
        with components.mark("block"), components.mark("conv2d"), components.mark("block"):
            pass
        with components.mark("conv2d"):
            pass
    assert " ".join(diary.names) == "block conv2d block /block /conv2d /block conv2d /conv2d"


def test_phases_and_components_are_heard_apart_and_unheard_ones_are_the_same_nothing() -> None:
    phases, components, heard = Phases(), Components(), PhaseNames()
    with phases.heard_by(heard), phases.mark("forward"), components.mark("conv2d"):
        pass
    assert heard.names == ["forward"]
    assert components.mark("conv2d") is phases.mark("forward")


def test_names_that_cannot_be_are_refused() -> None:
    for marks, name, says in (
        (Phases(), STEP, f'a phase cannot be named "{STEP}"'),
        (Components(), STEP, f'a component cannot be named "{STEP}"'),
        (Phases(), "\ud800", r'the phase "\\ud800" has half'),
    ):
        with pytest.raises(MeasurementError, match=says):
            with marks.heard_by(PhaseNames()), marks.mark(name):
                pass


def test_a_phase_inside_a_phase_is_refused_and_both_are_named() -> None:
    phases = Phases()
    with (
        phases.heard_by(PhaseNames()),
        phases.mark("forward"),
        pytest.raises(MeasurementError, match=r'"attention" was entered inside phase "forward"'),
        phases.mark("attention"),
    ):
        pass


def test_samples_keep_the_order_of_first_appearance() -> None:
    series = {("step", "flops"): [1.0, 2.0], ("forward", "flops"): [1.0]}
    assert samples_of(series) == (
        Sample("step", "flops", (1.0, 2.0)),
        Sample("forward", "flops", (1.0,)),
    )
