"""The result of `gpuperf prove` as text: a row per slowdown, what no gate sees, and a last line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.model.measurement import STEP, title_of
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
    for text in [*failing(proof), *blind(proof)]:
        made += wrapped_lines(text, width, "bad")
    return made


def by_test(proof: Proof) -> dict[str, list[Trial]]:
    """The trials by the title of their measurement."""
    tests: dict[str, list[Trial]] = {}
    for trial in proof.trials:
        tests.setdefault(title_of(trial.test, trial.name), []).append(trial)
    return tests


def cells(trial: Trial) -> tuple[str, str, str, str]:
    """A trial as the cells of a row, in the order of HEADINGS."""
    size = f" {100 * trial.share:g} %" if trial.share else ""
    right = ("right" if trial.is_named else "wrong" if trial.named else "none") if trial.at else "-"
    named = right if trial.firing is Firing.RED else "-"
    return f"{trial.slowdown}{size}", trial.firing.value, named, trial.why


def failing(proof: Proof) -> Iterator[str]:
    """The tests of which nothing is proven, as sentences."""
    for test, why in proof.failing.items():
        yield f"{title_of(test, STEP)} is not proven: {why}"


def blind(proof: Proof) -> Iterator[str]:
    """What no gate sees, as sentences."""
    for test, texts in proof.blind.items():
        for text in texts:
            yield f"{title_of(test, STEP)} does not see all: {text}"


def total(proof: Proof) -> str:
    """The last line: how many slowdowns turned their test red, and which gates are dead."""
    placed = [trial for trial in proof.trials if trial.firing is Firing.RED and trial.at]
    dead = counted(len(proof.dead), "dead gate")
    named = sum(trial.is_named for trial in placed)
    return f"{red(proof.trials)}, the right line in {named} of {len(placed)}; {dead}"


def red(trials: Sequence[Trial]) -> str:
    """How many of the slowdowns that were put in turned their test red."""
    tried = [trial for trial in trials if trial.firing is not Firing.ABSENT]
    count = sum(trial.firing is Firing.RED for trial in tried)
    return f"{count} of {counted(len(tried), 'slowdown')} red"
