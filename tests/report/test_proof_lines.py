"""What `gpuperf prove` prints: a row per slowdown, what is not proven, and a total."""

from __future__ import annotations

import pytest

from pytest_gpuperf.report.proof import Firing, Trial
from pytest_gpuperf.report.text import proof_lines
from tests.examples import HOSTILE, proof, trial

PROVEN = proof(
    trial(),
    trial("wait", Firing.PASSED, share=0.03, why="step_time +0.31 % (tolerance 2.4 %)"),
    trial("kept tensor", share=0.0, named="b.py:2", why="kept_memory +3.00 %"),
    trial("layout", share=0.0, named=""),
    trial("spin", share=0.003, at="", named=""),
    trial("copies", Firing.UNJUDGED, name="sampling", why="too noisy"),
    doubts=(
        "test_bad is not proven: the test fails",
        "test_step does not see all: the step does nothing that is counted (launches 0)",
    ),
)


def test_a_row_per_slowdown_then_what_is_not_proven() -> None:
    assert [line.text for line in proof_lines.lines(PROVEN, 80)] == [
        "test_training_step[tf32]",
        "  slowdown     test is  line",
        "  spin 1 %     red      right  cycles +1.02 %",
        "  wait 3 %     passed   -      step_time +0.31 % (tolerance 2.4 %)",
        "  kept tensor  red      wrong  kept_memory +3.00 %",
        "  layout       red      none   cycles +1.02 %",
        "  spin 0.3 %   red      -      cycles +1.02 %",
        "test_training_step[tf32], sampling",
        "  slowdown    test is     line",
        "  copies 1 %  not judged  -     too noisy",
        "test_bad is not proven: the test fails",
        "test_step does not see all: the step does nothing that is counted (launches 0)",
    ]


@pytest.mark.parametrize(
    ("trials", "says"),
    [
        (PROVEN.trials, "4 of 6 slowdowns red, the right line in 1 of 3; 1 dead gate"),
        ((), "0 of 0 slowdowns red, the right line in 0 of 0; 0 dead gates"),
        ((trial(),), "1 of 1 slowdown red, the right line in 1 of 1; 0 dead gates"),
        # A larger size fired.
        (
            (trial(share=0.03), trial("spin", Firing.PASSED)),
            "1 of 2 slowdowns red, the right line in 1 of 1; 0 dead gates",
        ),
    ],
)
def test_the_total_counts_what_was_put_in(trials: tuple[Trial, ...], says: str) -> None:
    assert proof_lines.total(proof(*trials)) == says


def test_lines_fit_their_width_and_are_harmless_whatever_a_test_is_called() -> None:
    made = trial(HOSTILE, test=HOSTILE, name=HOSTILE, why=HOSTILE)
    proven = proof(made, doubts=(HOSTILE,))
    for width in (40, 80, 200):
        for line in proof_lines.lines(proven, width):
            assert line.text.isprintable()
    assert all(len(line.text) <= 60 for line in proof_lines.lines(PROVEN, 60))
