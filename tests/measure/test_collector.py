"""Phase marks: who hears them, and what a step may not do with them."""

from __future__ import annotations

import timeit

import pytest

from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure.collector import PhaseNames, Phases, samples_of
from pytest_gpuperf.model.measurement import STEP, Sample


class Diary(PhaseNames):
    """Notes leaving as well."""

    def leave(self, phase: str) -> None:
        self.names.append(f"/{phase}")


def test_a_listener_hears_phases_in_their_order() -> None:
    phases, diary = Phases(), Diary()
    with phases.heard_by(diary):
        with phases.mark("forward"):
            pass
        with phases.mark("backward"):
            pass
        with phases.mark("forward"):
            pass
    assert diary.names == ["forward", "/forward", "backward", "/backward", "forward", "/forward"]


def test_nobody_hears_marks_outside_the_block() -> None:
    phases, names = Phases(), PhaseNames()
    with phases.heard_by(names):
        pass
    with phases.mark("forward"):
        pass
    assert names.names == []


def test_listening_inside_listening_gives_back_to_the_first() -> None:
    phases, outer, inner = Phases(), PhaseNames(), PhaseNames()
    with phases.heard_by(outer):
        with phases.heard_by(inner), phases.mark("a"):
            pass
        with phases.mark("b"):
            pass
    assert (outer.names, inner.names) == (["b"], ["a"])


def test_a_phase_inside_a_phase_is_refused_and_both_are_named() -> None:
    phases = Phases()
    with (
        phases.heard_by(PhaseNames()),
        phases.mark("forward"),
        pytest.raises(MeasurementError, match=r'"attention" was entered inside phase "forward"'),
        phases.mark("attention"),
    ):
        pass


def test_the_name_of_the_whole_step_is_reserved() -> None:
    phases = Phases()
    with (
        phases.heard_by(PhaseNames()),
        pytest.raises(MeasurementError, match="cannot be named"),
        phases.mark(STEP),
    ):
        pass


def test_a_step_that_raises_leaves_its_phase_and_its_listener() -> None:
    phases, diary, later = Phases(), Diary(), PhaseNames()
    with pytest.raises(ZeroDivisionError), phases.heard_by(diary), phases.mark("forward"):
        _ = 1 / 0
    with phases.heard_by(later), phases.mark("backward"):
        pass
    assert diary.names == ["forward", "/forward"]
    assert later.names == ["backward"]


def test_unheard_marks_are_one_shared_object_that_does_nothing() -> None:
    phases = Phases()
    assert phases.mark("forward") is phases.mark("backward")


def test_an_unheard_mark_costs_less_than_ten_microseconds() -> None:
    phases = Phases()

    def mark() -> None:
        with phases.mark("forward"):
            pass

    assert min(timeit.repeat(mark, number=1000, repeat=5)) / 1000 < 10e-6


def test_samples_keep_the_order_of_first_appearance() -> None:
    series = {("step", "flops"): [1.0, 2.0], ("forward", "flops"): [1.0]}
    assert samples_of(series) == (
        Sample("step", "flops", (1.0, 2.0)),
        Sample("forward", "flops", (1.0,)),
    )
