"""The table: columns where they fit, stacked lines where they do not, never wider than asked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuperf.errors import printable
from pytest_gpuperf.model.result import Outcome, Verdict
from pytest_gpuperf.report.text import table
from tests.examples import verdict

VERDICTS = [
    verdict(minimum_detectable_effect=0.00776),
    verdict("instructions", Outcome.UNCHANGED, unit="instructions", change=-3e-6, tolerance=0.001),
    verdict("tensor_utilization", Outcome.REPORTED, unit="%", baseline=93.1, measured=91.0,
            change=-2.1, points=True),
    verdict("step_time", Outcome.NO_BASELINE, unit="ms", baseline=None, measured=232.4,
            change=None, tolerance=None),
]  # fmt: skip

widths = st.integers(20, 200)
words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=60)


def shown(width: int, verdicts: Sequence[Verdict] = VERDICTS) -> list[str]:
    return [line.text for line in table.verdict_lines(verdicts, width)]


def test_the_columns_are_used_as_soon_as_they_fit() -> None:
    needed = max(len(line) for line in shown(200))
    assert shown(needed) == shown(200)
    for gone in (("MDE",), ("MDE", "tolerance")):
        narrower = shown(needed - 1)
        assert narrower[0].split() == [h for h in table.HEADINGS if h not in gone]
        needed = max(map(len, narrower))
        assert shown(needed) == narrower
    assert shown(needed - 1)[0] == "  cycles:"


@settings(max_examples=30)
@given(widths, st.lists(st.tuples(*[words] * 7), max_size=4))
def test_no_line_is_too_wide_whatever_the_cells_are(
    width: int, rows: list[tuple[str, ...]]
) -> None:
    lines = table.column_lines(table.HEADINGS, rows, width, (0,), dispensable=(5, 4))
    assert all(len(line.text) <= width for line in lines)


@settings(max_examples=30)
@given(widths, st.lists(st.sampled_from(VERDICTS), min_size=1, max_size=5))
def test_no_number_of_a_row_is_lost(width: int, verdicts: list[Verdict]) -> None:
    text = " ".join(" ".join(shown(width, verdicts)).split())
    for row in table.verdict_rows(verdicts):
        assert all(cell in text for at, cell in enumerate(row) if at not in (4, 5))


@settings(max_examples=30)
@given(widths, st.lists(words, max_size=8), st.sampled_from(["", "  ", "    "]))
def test_wrapped_text_keeps_its_words_and_its_width(
    width: int, parts: list[str], indent: str
) -> None:
    lines = table.wrapped(parts, width, indent)
    shown = printable(" ".join(" ".join(parts).splitlines()))
    assert all(len(line) <= width and line.startswith(indent) for line in lines)
    assert "".join("".join(lines).split()) == "".join(shown.split())


def test_a_command_is_whole_to_be_pasted() -> None:
    torchrun = "torchrun --nproc-per-node 4 -m pytest"
    for command in ("gpuperf record", "pytest", torchrun, f"for run in 1 2 3; do {torchrun}; done"):
        line = f"  {command} tests/test_steps.py"
        assert table.within(f"the step is slower\n{line}", 18) == ["the step is slower", line]


def test_lines_are_broken_as_late_as_possible() -> None:
    for text in ("a-b-c-d " * 20, "x" * 500, "one two"):
        for line, following in pairwise(table.wrapped([text], 40, "")):
            assert len(line) == 40 or len(line) + 1 + len(following.split()[0]) > 40, text


def test_columns_of_any_table() -> None:
    rows = [("core",), ("  cycles", "1", "from the SMs")]
    wide = table.column_lines(("metric", "count", ""), rows, 40, (0, 2))
    assert [(line.text, line.tone) for line in wide] == [
        ("  metric    count", "heading"),
        ("  core", "heading"),
        ("    cycles      1  from the SMs", ""),
    ]
    below = table.column_lines(("metric", "count", ""), rows, 20, (0, 2))
    assert [line.text for line in below][2:] == ["    cycles      1", "      from the SMs"]
    stacked = table.column_lines(("metric", "count", ""), rows, 14, (0, 2))
    assert [(line.text, line.tone) for line in stacked] == [
        ("  core:", "heading"),
        ("    cycles:", ""),
        ("      count 1,", ""),
        ("      from the", ""),
        ("      SMs", ""),
    ]
    assert table.column_lines(("metric",), [], 40, (0,)) == []


@given(st.text(max_size=100), st.integers(-5, 120))
def test_what_is_shortened_fits_and_is_no_shorter_than_it_has_to_be(text: str, width: int) -> None:
    assert len(table.shortened(text, width)) == min(len(printable(text)), max(width, 0))


def test_of_a_long_name_the_middle_is_left_out() -> None:
    texts = [table.shortened("test_training_step[tf32]", width) for width in (24, 23, 15, 4, 2)]
    expected = ["test_training_step[tf32]", "test_t...ing_step[tf32]", "test...ep[tf32]"]
    assert texts == [*expected, "...]", ".."]
