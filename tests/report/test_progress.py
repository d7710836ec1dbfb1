"""The line that a terminal shows while something takes long: its words, and its place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_gpuperf.report.text import progress
from pytest_gpuperf.report.text.progress import Display, Outlet
from tests.screen import Screen

NAME = "test_training_step[tf32]"
COUNTING = "counting round 2 of 5, pass 3 of 14"


@dataclass
class Clock:
    """Tells the time that it was given."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal:
    """A screen that somebody writes to, with our line below."""

    def __init__(self, columns: int) -> None:
        self.screen, self.clock = Screen(columns), Clock()
        self._written = ""
        outlet = Outlet(self.screen.feed, lambda: columns, lambda: len(self._written))
        self.display = Display(lambda: outlet, self.clock)

    def write(self, text: str) -> None:
        """What somebody else writes."""
        self.screen.feed(text)
        self._written = (self._written + text).rpartition("\n")[2]


def test_what_does_not_fit_is_left_out() -> None:
    for width, says in (
        (79, f"{NAME}: {COUNTING}"),
        (49, "tes...[tf32]: counting round 2 of 5, pass 3 of 14"),
        (39, "counting round 2 of 5, pass 3 of 14"),
        (29, "counting round 2 of 5, pass 3"),
    ):
        assert progress.line(NAME, COUNTING, width) == says


@settings(max_examples=40)
@given(st.integers(1, 200), st.text(max_size=200), st.text(max_size=80))
def test_a_line_is_never_too_wide(width: int, title: str, doing: str) -> None:
    assert len(progress.line(title, doing, width)) <= width


def test_the_line_stands_below_and_is_written_over() -> None:
    terminal = Terminal(80)
    terminal.write("tests/test_steps.py ..")
    with terminal.display.of(NAME):
        pass
    terminal.display.begins("timing")
    assert terminal.screen.frames == []  # nothing was shown, and nothing is erased
    with terminal.display.of(NAME):
        terminal.display.begins("warming up", "1 of 2")
        assert terminal.screen.text == f"tests/test_steps.py ..\n{NAME}: warming up 1 of 2"
        terminal.display.begins("timing")
        assert terminal.screen.text == f"tests/test_steps.py ..\n{NAME}: timing"
    assert terminal.screen.text == "tests/test_steps.py .."


@settings(max_examples=40)
@given(
    columns=st.integers(10, 90),
    before=st.integers(0, 200),
    shown=st.integers(0, 3),
    after=st.text("ab", min_size=1, max_size=20),
)
@example(columns=10, before=9, shown=1, after="a")
@example(columns=10, before=11, shown=1, after="a")
def test_the_other_one_goes_on_as_if_it_had_not_been(
    columns: int, before: int, shown: int, after: str
) -> None:
    # A line that ends in the last column: what comes next may stand there or below, as it likes.
    before += before > 0 and before % columns == 0
    disturbed, alone = Terminal(columns), Terminal(columns)
    for terminal in (disturbed, alone):
        terminal.write("=" * before)
    with disturbed.display.of(NAME):
        for number in range(shown):
            disturbed.display.begins(f"timing {number} of {shown}")
    for terminal in (disturbed, alone):
        terminal.write(after)
    assert disturbed.screen.text == alone.screen.text
    assert disturbed.screen.cursor == alone.screen.cursor


def test_the_echo_of_ctrl_c_is_erased_with_it() -> None:
    terminal = Terminal(50)
    terminal.write("tests/test_steps.py ..")
    with terminal.display.of("a-long-title-" * 9):
        terminal.display.begins(COUNTING)
        terminal.screen.feed("^C")
    assert terminal.screen.text == "tests/test_steps.py .."


def test_within_a_stage_it_is_no_faster_than_eyes() -> None:
    terminal = Terminal(80)
    with terminal.display.of(NAME):
        for number in range(1, 101):
            terminal.display.begins("timing", str(number))
            terminal.clock.now += 0.03
        shown = [frame.rsplit(" ", 1)[1] for frame in terminal.screen.frames]
    assert shown[:3] == ["1", "5", "9"]
    assert len(shown) == 25


def test_what_was_written_over_it_by_others_is_not_touched() -> None:
    """A debugger that the step entered, for example."""
    terminal = Terminal(80)
    terminal.write("tests/test_steps.py ")
    with terminal.display.of(NAME):
        terminal.display.begins("timing")
        terminal.write("\n(Pdb) continue\n")
        terminal.display.begins("timing")
    assert terminal.screen.text == f"tests/test_steps.py\n{NAME}: timing\n(Pdb) continue"


def test_a_command_shows_a_line_where_it_can_be_erased(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for terminal, term, shown in (
        (True, "xterm", "\rprocess 1 of 2: measuring\x1b[K\r\x1b[K"),
        (True, "dumb", ""),
        (False, "xterm", ""),
    ):
        monkeypatch.setattr("sys.stdout.isatty", partial(bool, terminal))
        monkeypatch.setenv("TERM", term)
        display = Display(progress.on_stdout)
        with display.of("process 1 of 2"):
            display.begins("measuring")
        assert capsys.readouterr().out == shown, (terminal, term)
