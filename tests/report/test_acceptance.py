"""What is shown before it is asked whether to accept: old -> new, the anchor, objections."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.baselines import acceptance
from pytest_gpuperf.baselines.acceptance import AcceptanceRequest, Proposal
from pytest_gpuperf.commands import update_baseline as shown
from pytest_gpuperf.model.measurement import Measurement
from tests.examples import H200, OTHER_H200, measurement
from tests.kernel_steps import table


def five(day: str = "2026-03-01", **series: float) -> list[Measurement]:
    """Five processes on two GPUs, of which the first knows its kernels."""
    return [
        measurement(
            {name: [value] for name, value in series.items()},
            process=f"{day}/{number}",
            device=OTHER_H200 if number == 4 else H200,
            kernels=None if number else table(("conv", 900.0)),
        )
        for number in range(5)
    ]


def proposed(
    folder: Path, measurements: Sequence[Measurement], day: str = "2026-03-01", **options: Any
) -> Proposal:
    """The only proposal."""
    request = AcceptanceRequest(folder, "because", f"{day}T00:00:00Z", **options)
    (found,) = acceptance.proposals(measurements, request)
    return found


def accepted(folder: Path, measurements: Sequence[Measurement], **options: Any) -> None:
    acceptance.accept([proposed(folder, measurements, force=True, **options)])


def test_a_first_entry_is_new(tmp_path: Path) -> None:
    proposal = proposed(tmp_path, five(cycles=437_000_000.0, ipc=2.0))
    assert shown.lines(proposal) == [
        "test_training_step[tf32] on NVIDIA H200, 5 processes",
        "  cycles                           (new) ->      437.00 M  -",
        "  ipc                              (new) ->        2.0000  -",
    ]


def test_a_later_one_is_shown_against_the_one_it_replaces_and_against_the_anchor(
    tmp_path: Path,
) -> None:
    accepted(tmp_path, five(cycles=437_000_000.0, ipc=2.0, layout_copies=0.0))
    later = five("2026-03-08", cycles=438_000_000.0, layout_copies=0.0)
    (first,) = (proposed(tmp_path, later, "2026-03-08"),)
    assert not any("anchor" in line for line in shown.lines(first))  # it is the one replaced
    accepted(tmp_path, later, day="2026-03-08")
    last = proposed(tmp_path, five(cycles=438_500_000.0, layout_copies=0.0), "2026-03-15")
    assert shown.lines(last) == [
        "test_training_step[tf32] on NVIDIA H200, 5 processes",
        "  cycles                        438.00 M ->      438.50 M  +0.11 %",
        "  layout_copies                        0 ->             0  -",
        "  since the anchor of 2026-03-01: cycles +0.34 %, layout_copies 0 %",
    ]


def test_what_there_was_and_is_no_longer_is_gone(tmp_path: Path) -> None:
    accepted(tmp_path, five(cycles=437_000_000.0, ipc=2.0))
    lines = shown.lines(proposed(tmp_path, five(cycles=437_000_000.0)))
    assert lines[2] == "  ipc                             2.0000 ->        (gone)  -"


def test_from_zero_there_is_no_share(tmp_path: Path) -> None:
    for _ in range(2):
        accepted(tmp_path, five(layout_copies=0.0))
    lines = shown.lines(proposed(tmp_path, five(layout_copies=39.0)))
    assert "  since the anchor of 2026-03-01: layout_copies from 0" in lines


@pytest.mark.parametrize("force", [True, False])
def test_objections_are_shown_and_what_the_log_will_say_when_forced(
    tmp_path: Path, force: bool
) -> None:
    *_, objection, last = shown.lines(proposed(tmp_path, [measurement()], force=force))
    if force:
        assert objection.startswith("  objection: 1 process of 5: record more with")
        assert last == "  the log will say: forced: 1 process of 5"
    else:
        assert last.startswith("  objection: 1 process of 5: record more with")


def test_a_new_anchor_is_shown_beside_the_old_one(tmp_path: Path) -> None:
    for cycles in (437e6, 438e6):
        accepted(tmp_path, five(cycles=cycles))
    lines = shown.lines(proposed(tmp_path, five(cycles=450e6), new_anchor=True))
    assert lines[2:] == [
        "  since the anchor of 2026-03-01: cycles +2.97 %",
        "  note: new anchor in place of that of 2026-03-01: later ones are held against these "
        "samples",
        "  the log will say: forced: new anchor",
    ]


@given(values=st.lists(st.floats(0, 1e15), min_size=3, max_size=3))
def test_every_metric_has_its_line_whatever_its_values(
    tmp_path_factory: pytest.TempPathFactory, values: list[float]
) -> None:
    folder = tmp_path_factory.mktemp("shown")
    for value in values[:2]:
        accepted(folder, five(cycles=value))
    lines = shown.lines(proposed(folder, five(cycles=values[2]), force=True))
    assert sum(" -> " in line and line.startswith("  cycles") for line in lines) == 1
    assert all(line == line.rstrip() and "\n" not in line for line in lines)
