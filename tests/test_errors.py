"""Messages, and the one place where what is shown becomes harmless."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuperf.errors import BadFile, UsageFailure, printable, printable_lines
from tests.workflow_commands import harmless


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("test_step[tf32]", "test_step[tf32]"),
        ("tests/größe.py::test_μ", "tests/größe.py::test_μ"),
        ("\x1b[2J\x07", r"\x1b[2J\x07"),
        ("one\ntwo\r", r"one\x0atwo\x0d"),
        ("\u202eevil", r"\x202eevil"),
        ("::error::x", r"\x3a:error::x"),
        ("  ::set-env name=A::x", r"  \x3a:set-env name=A::x"),
        ("::no command", "::no command"),
        ("a ##[error]x", r"a \x23#[error]x"),
        ("###[group]", r"#\x23#[group]"),
        ("##vso[task.complete]", r"\x23#vso[task.complete]"),
        ("##teamcity[x]", r"\x23#teamcity[x]"),
        ("## heading", "## heading"),
    ],
)
def test_what_is_shown_is_one_line_that_nobody_executes(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text() | st.text(":#[vso\n\x1b ", max_size=12))
@example("####[a]##[b]")
def test_whatever_it_is_it_is_harmless_and_stays_as_it_is(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert harmless(shown)
    assert printable(shown) == shown
    assert harmless(printable_lines(text))


def test_the_message_of_an_error_is_harmless_whatever_it_names() -> None:
    said = str(UsageFailure("no test matches:\n  \x1b[31ma\n::error::b"))
    assert said == "no test matches:\n  \\x1b[31ma\n\\x3a:error::b"
    refused = BadFile(Path("a.json"), "tests/a\n::error::b", "is wrong", "Mend it")
    assert str(refused) == r"a.json: tests/a\x0a::error::b: is wrong. Mend it"
