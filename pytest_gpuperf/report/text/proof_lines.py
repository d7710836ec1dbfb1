"""The result of `gpuperf prove` as text: a row per slowdown, what no gate sees, and a last line."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.catalogue import grouped
from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.model.measurement import title_of
from pytest_gpuperf.report.proof import Firing, Proof, Trial
from pytest_gpuperf.report.text.table import Line, column_lines, wrapped_lines

HEADINGS = ("slowdown", "test is", "line", "")
TONES = {Firing.RED: "good", Firing.PASSED: "bad", Firing.UNJUDGED: "doubtful"}


def lines(proof: Proof, width: int) -> list[Line]:
    """The result as lines of at most `width` characters, without the last line."""
    made: list[Line] = []
    for title, trials in by_test(proof).items():
        made.append(Line(title, "heading"))
        made += column_lines(HEADINGS, [cells(trial) for trial in trials], width, (0, 1, 2, 3))
    for text in proof.doubts:
        made += wrapped_lines(text, width, "bad")
    return made


def by_test(proof: Proof) -> dict[str, list[Trial]]:
    """The trials by the title of their measurement."""
    return grouped(proof.trials, lambda trial: title_of(trial.test, trial.name))


def cells(trial: Trial) -> tuple[str, str, str, str]:
    """A trial as the cells of a row, in the order of HEADINGS."""
    size = f" {100 * trial.share:g} %" if trial.share else ""
    return f"{trial.slowdown}{size}", trial.firing.value, trial.line, trial.why


def total(proof: Proof) -> str:
    """The last line: how many slowdowns turned their test red, and which gates are dead."""
    lines = [trial.line for trial in proof.trials if trial.line != "-"]
    dead = counted(len(proof.dead), "dead gate")
    return f"{red(proof.trials)}, the right line in {lines.count('right')} of {len(lines)}; {dead}"


def red(trials: Sequence[Trial]) -> str:
    """How many of the slowdowns turned their test red."""
    count = sum(trial.firing is Firing.RED for trial in trials)
    return f"{count} of {counted(len(trials), 'slowdown')} red"
