"""Durations for people, and the line that is written over."""

from __future__ import annotations

import pytest

from pytest_gpuperf.report.text import progress


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (61, "61 s"),
        (99.4, "99 s"),
        (99.6, "1.7 min"),
        (120, "2 min"),
        (596, "9.9 min"),
        (598, "10 min"),
        (99 * 60, "99 min"),
        (100 * 60, "1.7 h"),
        (7200, "2 h"),
        (36 * 3600, "36 h"),
        (1000 * 3600, "1000 h"),
    ],
)
def test_a_duration_has_the_unit_that_people_use(seconds: float, said: str) -> None:
    assert progress.duration(seconds) == said


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [
        (0, "measurement", "0 measurements"),
        (1, "measurement", "1 measurement"),
        (2, "process", "2 processes"),
    ],
)
def test_what_is_counted_is_in_the_plural(number: int, noun: str, said: str) -> None:
    assert progress.counted(number, noun) == said


def test_without_a_terminal_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    line = progress.LiveLine()
    line.show("something")
    line.counting("process 1 of 2")(7)
    line.erase()
    assert capsys.readouterr().out == ""


def test_on_a_terminal_each_text_covers_the_one_before(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    line = progress.LiveLine()
    line.erase()
    line.counting("process 1 of 2")(100)
    line.show("short")
    line.erase()
    line.erase()
    assert capsys.readouterr().out.split("\r") == [
        "",
        "process 1 of 2 ... 1.7 min",
        "short                     ",
        "                          ",
        "",
    ]
