"""What is shown of what takes long: durations, the words, the time left, and where it appears."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_gpuperf.measure.collector import each
from pytest_gpuperf.report.text import progress
from pytest_gpuperf.report.text.progress import PATIENCE, Below, Display, Occasional, Outlet, Status
from tests.screen import Screen

NAME = "test_training_step[tf32]"


@dataclass
class Clock:
    """Tells the time that it was given."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Kept(Outlet):
    """Keeps what it is to show of a display that is told the time."""

    clock: Clock = field(default_factory=Clock)
    shown: list[Status] = field(default_factory=list)
    stages: int = 0
    ends: int = 0

    def __post_init__(self) -> None:
        self.display = Display(lambda: self, self.clock)

    def show(self, status: Status, *, new: bool) -> None:
        self.shown.append(status)
        self.stages += new

    def end(self) -> None:
        self.ends += 1

    @property
    def left(self) -> list[float | None]:
        return [status.left for status in self.shown]


@pytest.fixture
def kept() -> Kept:
    return Kept()


# How long it will still take


def test_the_time_left_is_that_of_the_executions_so_far(kept: Kept) -> None:
    with kept.display.of(NAME):
        for number, _ in enumerate(each(kept.display, "timing", 3, after=10), 1):
            assert len(kept.shown) == number  # it is announced before it begins
            kept.clock.now += 2
    assert [status.doing for status in kept.shown] == [f"timing {n} of 3" for n in (1, 2, 3)]
    assert kept.left == [None, 24, 22]
    assert [status.passed for status in kept.shown] == [0, 2, 4]


def test_another_stage_has_another_pace_and_another_measurement_begins_anew(kept: Kept) -> None:
    for _ in range(2):
        with kept.display.of(NAME):
            for _ in each(kept.display, "warming up", 2, after=None):
                kept.clock.now += 60
            for _ in each(kept.display, "timing", 3):
                kept.clock.now += 1
    assert kept.left == [None, None, None, 2, 1] * 2
    assert [status.passed for status in kept.shown] == [0, 60, 120, 121, 122] * 2
    assert (kept.stages, kept.ends) == (4, 2)


def test_who_waits_sees_the_time_left_run_out(kept: Kept) -> None:
    with kept.display.of(NAME):
        for _ in each(kept.display, "fresh process", 2):
            for _ in range(4):
                kept.clock.now += 10
                kept.display.goes_on()
    assert kept.left == [*[None] * 5, 40, 30, 20, 10, 0]
    assert [status.since for status in kept.shown] == [0, 10, 20, 30, 40, 0, 10, 20, 30, 40]


def test_it_ends_with_the_measurement_also_when_that_fails(kept: Kept) -> None:
    with pytest.raises(KeyboardInterrupt), kept.display.of(NAME):
        raise KeyboardInterrupt
    assert kept.ends == 1


def test_without_a_measurement_nothing_is_shown(kept: Kept) -> None:
    kept.display.begins("timing", "1 of 3")
    with kept.display.of(NAME):
        pass
    kept.display.goes_on()
    assert kept.shown == []


# The words


COUNTING = "counting round 2 of 5, pass 3 of 14"


def test_it_says_what_is_done_and_how_long_it_takes() -> None:
    for status, says in (
        (Status(NAME, COUNTING, 9, 0, 40), f"{COUNTING}, about 40 s left"),
        (Status(NAME, "timing 1 of 3", 9, 0), "timing 1 of 3"),
        (Status(NAME, "ncu in a fresh process", 9, 7), "ncu in a fresh process, 7 s so far"),
        (Status(NAME, "process 2 of 2", 9, 7, 0.0), "process 2 of 2, 7 s so far"),
        (Status(NAME, "process 2 of 2", 9, 7, 300), "process 2 of 2, about 5 min left"),
    ):
        assert status.line(120) == f"{NAME}: {says}"


def test_what_does_not_fit_is_left_out() -> None:
    for width, says in (
        (79, "test_training_step[tf32]: counting round 2 of 5, pass 3 of 14, about 40 s left"),
        (70, "test...tep[tf32]: counting round 2 of 5, pass 3 of 14, about 40 s left"),
        (49, "tes...[tf32]: counting round 2 of 5, pass 3 of 14"),
        (39, "counting round 2 of 5, pass 3 of 14"),
        (29, "counting round 2 of 5, pass 3"),
    ):
        assert Status(NAME, COUNTING, 9, 0, 40).line(width) == says


@settings(max_examples=40)
@given(st.integers(1, 200), st.text(max_size=200), st.text(max_size=80), st.none() | st.floats(0))
def test_a_status_is_never_too_wide(width: int, title: str, doing: str, left: float | None) -> None:
    assert len(Status(title, doing, 0, 5, left).line(width)) <= width


# On a terminal


class Terminal:
    """A screen that somebody writes to, with our line below."""

    def __init__(self, columns: int) -> None:
        self.screen = Screen(columns)
        self._written = ""
        self.below = Below(self.screen.feed, lambda: columns, lambda: len(self._written))

    def write(self, text: str) -> None:
        """What somebody else writes."""
        self.screen.feed(text)
        self._written = (self._written + text).rpartition("\n")[2]


def at(doing: str, passed: float = 0.0) -> Status:
    return Status(NAME, doing, passed, 0)


def test_the_line_stands_below_and_is_written_over() -> None:
    terminal = Terminal(80)
    terminal.write("tests/test_steps.py ..")
    terminal.below.end()
    assert terminal.screen.frames == []  # nothing was shown, and nothing is erased
    for doing in ("warming up 1 of 2", "timing"):
        terminal.below.show(at(doing), new=True)
        assert terminal.screen.text == f"tests/test_steps.py ..\n{NAME}: {doing}"


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
    for number in range(shown):
        disturbed.below.show(at(f"timing {number} of {shown}"), new=True)
    disturbed.below.end()
    for terminal in (disturbed, alone):
        terminal.write(after)
    assert disturbed.screen.text == alone.screen.text
    assert disturbed.screen.cursor == alone.screen.cursor


def test_the_echo_of_ctrl_c_is_erased_with_it() -> None:
    terminal = Terminal(50)
    terminal.write("tests/test_steps.py ..")
    terminal.below.show(Status("a-long-title-" * 9, COUNTING, 0, 0, 40), new=True)
    terminal.screen.feed("^C")
    terminal.below.end()
    assert terminal.screen.text == "tests/test_steps.py .."


def test_within_a_stage_it_is_no_faster_than_eyes() -> None:
    terminal = Terminal(80)
    for number in range(1, 101):
        terminal.below.show(at(f"timing {number}", passed=number * 0.03), new=number == 1)
    shown = [frame.rsplit(" ", 1)[1] for frame in terminal.screen.frames]
    assert shown[:3] == ["1", "5", "9"]
    assert len(shown) == 25


def test_what_was_written_over_it_by_others_is_not_touched() -> None:
    """A debugger that the step entered, for example."""
    terminal = Terminal(80)
    terminal.write("tests/test_steps.py ")
    terminal.below.show(at("timing"), new=True)
    terminal.write("\n(Pdb) continue\n")
    terminal.below.show(at("timing"), new=False)
    terminal.below.end()
    assert terminal.screen.text == f"tests/test_steps.py\n{NAME}: timing\n(Pdb) continue"


# Where lines stay


def test_lines_that_stay_are_few_and_every_measurement_is_given_as_much_patience() -> None:
    said: list[str] = []
    outlet = Occasional(said.append, lambda: 100)
    for _ in range(2):
        for second in range(601):
            outlet.show(at(str(second), passed=second), new=True)
            outlet.show(at("again", passed=second), new=False)
        outlet.end()
    assert [int(line.split()[-1]) for line in said] == [30, 60, 120, 240, 480] * 2
    assert PATIENCE == 30


# What a command shows


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
