"""The Markdown report: one table per measurement, and nothing from outside changes its layout."""

from __future__ import annotations

import re
from dataclasses import replace

from cmarkgfm import github_flavored_markdown_to_html  # type: ignore[import-untyped]
from cmarkgfm.cmark import Options  # type: ignore[import-untyped]
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuperf.errors import printable
from pytest_gpuperf.judge.attribution import attribute
from pytest_gpuperf.model.measurement import Device
from pytest_gpuperf.model.result import Attributed, Outcome
from pytest_gpuperf.report.markdown import markdown
from tests.examples import TEST, measurement, run, verdict
from tests.kernel_steps import NAMING, table
from tests.report.html.test_page import Structure

SPECIAL = r"\`*_[]<>|#&~$"


def unescaped(text: str) -> str:
    """What a reader of the rendered text sees."""
    return re.sub(rf"\\([{re.escape(SPECIAL)}])", r"\1", text)


def test_what_is_incomplete_stands_before_what_failed_by_its_reason() -> None:
    skipped = {**{f"test_{i}": "a|b" for i in range(22)}, "test_last": "failed"}
    text = markdown(replace(run([measurement()], [verdict("cycles")]), skipped=skipped))
    heading, _, first, second, _, failed = unescaped(text).split("\n")[:6]
    assert heading == "# gpuperf: 1 regressed, 23 incomplete"
    assert first.startswith("- incomplete, **a|b**: test_0, test_1, ")
    assert first.endswith(", test_19 and 2 more")
    assert second == "- incomplete, **failed**: test_last"
    assert failed.startswith("- **test_training_step[tf32] regressed")


def test_commands_are_those_of_what_was_run() -> None:
    """A replayed run is accepted as it is, where its baselines are."""
    replayed = "--gpuperf-replay=night.json --gpuperf-baselines=perf suites"
    said = run([measurement()], [verdict(outcome=Outcome.NO_BASELINE)])
    for command, says in (
        (replayed, '`gpuperf update-baseline night.json --baselines perf --force --reason "first'),
        ("gpuperf record -- suites", "`gpuperf record -- suites`, then `gpuperf update-baseline"),
        ("gpuperf ab main -- suites", "Run of 2026-03-01T12:00:00Z: `gpuperf ab main -- suites`"),
    ):
        assert says in unescaped(markdown(replace(said, command=command)))


def test_many_failures_are_named_up_to_twenty_and_all_have_tables() -> None:
    names = [f"t{number}" for number in range(50)]
    text = markdown(
        run([measurement(test=name) for name in names], [verdict(test=name) for name in names])
    )
    assert text.count("- **") == 20
    assert "\n- and 30 more\n" in text
    assert text.count("\n### ") == 50


def test_a_limit_leaves_out_what_passed_then_all_tables_and_says_so() -> None:
    names = [f"größe_{number}" for number in range(40)]
    outcomes = [Outcome.REGRESSED if n % 20 == 0 else Outcome.UNCHANGED for n in range(40)]
    made = run(
        [measurement(test=name) for name in names],
        [verdict(outcome=o, test=name) for name, o in zip(names, outcomes, strict=True)],
    )
    whole = markdown(made)
    for limit, tables, folded in ((len(whole.encode()), 2, 1), (2500, 2, 0), (1000, 0, 0)):
        text = markdown(made, limit)
        assert len(text.encode()) <= limit
        assert (text.count("### größe"), text.count("<details>")) == (tables, folded)
        assert (f"to stay below {limit:,} bytes" in text) is (text != whole)
    # What does not even hold the verdicts holds nothing.
    assert markdown(made, 100) == ""


@given(st.text(max_size=80) | st.sampled_from(["```", "~~~\n# x", "a\n```\n# heading"]))
def test_no_kernel_ends_its_section(name: str) -> None:
    made = attribute(table(("conv", 900.0), ("silu", 600.0)), table(("conv", 900.0)), NAMING)
    entries = tuple(replace(e, short=name, formerly=name) for e in made.entries)
    hostile_blame = Attributed(TEST, "step", replace(made, entries=entries))
    lines = markdown(run([measurement()], [verdict()], [hostile_blame])).split("\n")
    assert [line for line in lines if "`" in line][3:] == ["```", "```"]
    assert lines[-3:] == ["```", "", ""]
    assert sum(line.startswith("#") for line in lines) == 2


hostile = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=40),
    st.text(SPECIAL + "\r\n ab:!()-", max_size=40),
)


outcomes = st.sampled_from([Outcome.REGRESSED, Outcome.UNCHANGED])


def named(name: str, outcome: Outcome) -> str:
    """A report that has this name everywhere."""
    measured = measurement(test=name, name=name, device=Device(f"sm{name}", name, "x", ""))
    return markdown(run([measured], [verdict(name, outcome, test=name, name=name, detail=name)]))


def rendered(outcome: Outcome, name: str) -> Structure:
    """A report with this name everywhere, as GitHub's own renderer makes it a page."""
    return Structure(
        github_flavored_markdown_to_html(named(name, outcome), Options.CMARK_OPT_UNSAFE)
    )


@given(hostile, outcomes)
@example("- ", Outcome.REGRESSED)
@example("x | y |\n| --- |\n# heading\r\r## another", Outcome.REGRESSED)
@example("<img src=x onerror=alert(1)> &lt; [a](javascript:b) ![c](d)", Outcome.REGRESSED)
@example("```\n`` ` `` $`x`$", Outcome.UNCHANGED)
@example("\\| \\` \\\\", Outcome.UNCHANGED)
@example("\r# x", Outcome.REGRESSED)
@example("<script>alert(1)</script>", Outcome.UNCHANGED)
@example("</details>", Outcome.UNCHANGED)
def test_no_name_adds_anything_to_the_page(name: str, outcome: Outcome) -> None:
    page = rendered(outcome, name)
    assert page.elements == rendered(outcome, "t").elements
    assert "".join(printable(" ".join(name.splitlines())).split()) in "".join(page.text.split())


@given(hostile)
def test_the_command_stays_in_its_code_span(command: str) -> None:
    lines = markdown(replace(run([]), command=command)).split("\n")
    assert len(lines) == 5
    assert lines[2].count("`") == 2 * bool(command)
    assert lines[2].endswith("`" if command else "Z")
