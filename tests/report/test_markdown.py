"""The Markdown report: one table per measurement, and nothing from outside changes its layout."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from cmarkgfm import github_flavored_markdown_to_html  # type: ignore[import-untyped]
from cmarkgfm.cmark import Options  # type: ignore[import-untyped]
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuperf.errors import printable
from pytest_gpuperf.judge.attribution import attribute
from pytest_gpuperf.model.measurement import Device
from pytest_gpuperf.model.result import Attributed, Expectation, Outcome, Unfinished
from pytest_gpuperf.report.markdown import markdown
from pytest_gpuperf.report.text.next_command import CommandContext
from tests.examples import TEST, kernels_changed, measurement, processes, run, verdict
from tests.kernel_steps import NAMING, Sited, sited, table

SPECIAL = r"\`*_[]<>|#&~$"


def unescaped(text: str) -> str:
    """What a reader of the rendered text sees."""
    return re.sub(rf"\\([{re.escape(SPECIAL)}])", r"\1", text)


@pytest.mark.parametrize(
    ("unfinished", "says"),
    [
        (Unfinished(6, 7, 9), "pytest ended by signal 9 after 6 of 7 tests"),
        (Unfinished(6, 7), "pytest did not come to its end: 6 of 7 tests ran"),
    ],
)
def test_a_report_of_a_killed_pytest_says_so_first(unfinished: Unfinished, says: str) -> None:
    killed = run([measurement()], [verdict("cycles", Outcome.UNCHANGED, change=0.001)])
    text = markdown(replace(killed, unfinished=unfinished))
    assert text.startswith(f"# gpuperf: {says}; 1 unchanged\n")


@pytest.mark.parametrize(
    ("outcome", "reason"), [(Outcome.REGRESSED, "not-compiled"), (Outcome.INCONCLUSIVE, "no-work")]
)
def test_what_a_step_does_not_do_any_more_is_said_in_place_of_a_change(
    outcome: Outcome, reason: str
) -> None:
    lost = verdict("compiled_graphs", outcome, reason=reason, change=-1.0, detail="It is lost.")
    said = unescaped(markdown(run([measurement()], [lost])))
    assert f"{'regressed' if outcome is Outcome.REGRESSED else 'is inconclusive'} on" in said
    assert "(sm90)**: It is lost.\n" in said


def test_a_report_begins_with_what_failed_and_has_a_table_per_measurement() -> None:
    sampling = measurement(name="sampling", configuration="")
    same = verdict("cycles", Outcome.UNCHANGED, change=0.001)
    text = markdown(run([measurement(), sampling], [same, verdict(name="sampling", change=0.5)]))
    heading = [
        "| metric | baseline | measured | change | tolerance | MDE | verdict |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    assert unescaped(text) == "\n".join(
        [
            "# gpuperf: 1 regressed, 1 unchanged",
            "",
            "- **test_training_step[tf32], sampling regressed on NVIDIA H200 (sm90)**: "
            "cycles +50.00 % (437.00 M -> 448.00 M, tolerance 0.5 %)",
            "  `pytest 'suites/meddpm/test_training.py::test_training_step[tf32]'`",
            "",
            'To accept what is intended: `gpuperf update-baseline --reason "..."`',
            "",
            "Run of 2026-03-01T12:00:00Z: `pytest suites/meddpm`",
            "",
            "judged: all 2 measurements",
            "",
            "### suites/meddpm/test_training.py::test_training_step[tf32], sampling",
            "",
            "On NVIDIA H200 (sm90)",
            "",
            *heading,
            "| cycles | 437.00 M | 448.00 M | +50.00 % | 0.5 % | - | regressed |",
            "",
            "<details>",
            "<summary>1 unchanged</summary>",
            "",
            "### suites/meddpm/test_training.py::test_training_step[tf32]",
            "",
            "On NVIDIA H200 (sm90)",
            "",
            *heading,
            "| cycles | 437.00 M | 448.00 M | +0.10 % | 0.5 % | - | unchanged |",
            "",
            "</details>",
            "",
            "",
        ]
    )


def test_what_is_incomplete_stands_before_what_failed_by_its_reason() -> None:
    skipped = {**{f"test_{i}": "a|b" for i in range(22)}, "test_last": "failed"}
    text = markdown(replace(run([measurement()], [verdict("cycles")]), skipped=skipped))
    heading, _, first, second, _, failed = unescaped(text).split("\n")[:6]
    assert heading == "# gpuperf: 1 regressed, 23 incomplete"
    assert first.startswith("- incomplete, **a|b**: test_0, test_1, ")
    assert first.endswith(", test_19 and 2 more")
    assert second == "- incomplete, **failed**: test_last"
    assert failed.startswith("- **test_training_step[tf32] regressed")


def test_what_is_not_as_it_should_be_is_named_first() -> None:
    for outcome, says, next_command in (
        (Outcome.REGRESSED, "regressed", "To accept what is intended: `gpuperf update-baseline"),
        (
            Outcome.NO_BASELINE,
            "has no baseline",
            "To make a baseline on this device: `gpuperf record",
        ),
        (
            Outcome.IMPROVED,
            "improved",
            "1 improved; to accept, so that a later slowdown shows: `gpuperf update-b",
        ),
        (Outcome.INCONCLUSIVE, "is inconclusive", ""),
        (Outcome.UNFIT, "was not judged", ""),
    ):
        text = unescaped(markdown(run([measurement()], [verdict(outcome=outcome)])))
        first, second = text.split("\n\n")[:2]
        assert first == f"# gpuperf: 1 {outcome.value}", (outcome, says)
        assert second.startswith(
            f"- **test_training_step[tf32] {says} on NVIDIA H200 (sm90)**: cyc"
        )
        assert next_command in text, (outcome, says)
        assert ("<details>" in text) is (outcome is Outcome.IMPROVED), (outcome, says)


@pytest.mark.parametrize(
    ("command", "outcome", "says"),
    [
        # A replayed run is accepted as it is, where its baselines are.
        (
            "--gpuperf-replay=night.json --gpuperf-baselines=perf suites",
            Outcome.NO_BASELINE,
            "To make a baseline of this run: `gpuperf update-baseline night.json --baselines perf "
            '--reason "first baseline"`',
        ),
        (
            "gpuperf record --processes 5 -- suites",
            Outcome.NO_BASELINE,
            "processes 5 -- suites`, t",
        ),
        (
            "gpuperf ab main -- suites",
            Outcome.REGRESSED,
            "Run of 2026-03-01T12:00:00Z: `gpuperf ab main -- suites`",
        ),
    ],
)
def test_commands_are_those_of_what_was_run(command: str, outcome: Outcome, says: str) -> None:
    said = replace(run([measurement()], [verdict(outcome=outcome)]), command=command)
    text = unescaped(markdown(said))
    assert says in text
    assert "gpuperf record --processes 5 -- gpuperf" not in text


def test_commands_fit_the_session_that_was_run() -> None:
    said = run([measurement()], [verdict(outcome=Outcome.REGRESSED)])
    context = CommandContext("suites/meddpm", run=".gpuperf/runs/night.json", ranks=2)
    text = unescaped(markdown(said, context=context))
    assert "  `torchrun --nproc-per-node 2 -m pytest 'suites/meddpm/test_training.py::" in text
    assert "`gpuperf update-baseline .gpuperf/runs/night.json --reason" in text


def test_what_improved_is_not_said_to_have_regressed() -> None:
    both = [
        verdict("peak_memory", Outcome.REGRESSED, change=0.3),
        verdict("cycles", Outcome.IMPROVED, change=-0.1),
    ]
    (line,) = (
        line
        for line in unescaped(markdown(run([measurement()], both))).splitlines()
        if line.startswith("- **")
    )
    assert "regressed on NVIDIA H200 (sm90)**: peak_memory +30.00 % (" in line
    assert "); improved: cycles -10.00 % (" in line


def test_the_worst_stands_first_whatever_the_order_in_which_it_was_measured() -> None:
    outcomes = [
        *(Outcome.UNCHANGED, Outcome.INCONCLUSIVE, Outcome.REGRESSED),
        *(Outcome.IMPROVED, Outcome.NO_BASELINE, Outcome.UNFIT),
    ]
    names = [outcome.value for outcome in outcomes]
    text = markdown(
        run(
            [measurement(test=name) for name in names],
            [verdict(outcome=outcome, test=outcome.value) for outcome in outcomes],
        )
    )
    worst_first = ["regressed", "unfit", "no-baseline", "inconclusive", "improved", "unchanged"]
    assert text.startswith("# gpuperf: " + ", ".join(f"1 {name}" for name in worst_first))
    assert re.findall("^### (.*)$", text, re.MULTILINE) == worst_first
    listed = re.findall(r"^- \*\*(\S+)", text, re.MULTILINE)
    assert listed == worst_first[:-1]
    assert text.index("<details>") > text.index("### inconclusive")
    assert text.index("<details>") < text.index("### improved")


def test_what_is_said_of_a_verdict_beside_its_row() -> None:
    missing = verdict(outcome=Outcome.NO_BASELINE, change=None, detail="x.yaml does not exist")
    rows = [missing, replace(missing, metric="step_time")]
    # A reason that all metrics share is said once.
    assert markdown(run([measurement()], rows)).count("x.yaml does not exist") == 1
    undecided = replace(verdict(outcome=Outcome.INCONCLUSIVE), low=-0.001, high=0.05)
    text = markdown(run([measurement()], [undecided]))
    assert "tolerance 0.5 %, somewhere between -0.10 % and +5.00 %)" in text


def broken(subject: str = "tf32 / baseline", outcome: Outcome = Outcome.BROKEN) -> Expectation:
    """What is expected of a ratio."""
    return Expectation(TEST, "cycles", "", subject, None, 0.25, outcome, "beyond", 0.5, 0.49, 0.51)


def test_a_broken_ratio_is_named_first_and_has_a_row() -> None:
    text = markdown(replace(run([measurement()], [verdict()]), expectations=(broken(),)))
    assert text.startswith("# gpuperf: 1 regressed, 1 broken\n")
    second = text.splitlines()[4]
    assert unescaped(second) == (
        f"- **tf32 / baseline in {TEST} is beyond a limit**: expected of cycles: "
        "tf32 / baseline below 0.25: 0.5 (0.49 to 0.51), broken"
    )
    assert "\n### Expected\n" in text
    assert "<details>" not in text


def test_what_holds_is_folded() -> None:
    text = markdown(replace(run([]), expectations=(broken(outcome=Outcome.HOLDS),)))
    assert text.startswith("# gpuperf: 1 holds\n")
    assert text.index("<details>") < text.index("### Expected")


def test_many_failures_are_named_up_to_twenty_and_all_have_tables() -> None:
    names = [f"t{number}" for number in range(50)]
    text = markdown(
        run([measurement(test=name) for name in names], [verdict(test=name) for name in names])
    )
    assert text.count("- **") == 20
    assert "\n- and 30 more\n" in text
    assert text.count("\n### ") == 50


def test_a_limit_leaves_out_the_last_tables_and_says_so() -> None:
    names = [f"größe_{number}" for number in range(40)]
    outcomes = [Outcome.REGRESSED if n % 20 == 0 else Outcome.UNCHANGED for n in range(40)]
    made = run(
        [measurement(test=name) for name in names],
        [verdict(outcome=o, test=name) for name, o in zip(names, outcomes, strict=True)],
    )
    whole = markdown(made)
    headings = re.findall("^###.*$", whole, re.MULTILINE)
    for limit in (1000, 2000, 5000, 20_000):
        text = markdown(made, limit)
        assert len(text.encode()) <= limit
        shown = re.findall("^###.*$", text, re.MULTILINE)
        assert shown == headings[: len(shown)], limit
        assert text.count("<details>") == text.count("</details>"), limit
        if len(shown) < 40:
            said = f"{40 - len(shown)} tables left out, to stay below {limit:,} bytes"
            assert said in text.splitlines()[-1]
        else:
            assert text == whole, limit
    assert markdown(made, 100_000) == whole
    # What does not even hold the verdicts holds nothing.
    assert markdown(made, 100) == ""


def test_a_table_is_of_all_processes_and_of_the_whole_step() -> None:
    three = processes("cycles", [[1.0], [2.0], [3.0]])
    text = markdown(run(three, [verdict(), verdict("duration", phase="forward")]))
    assert text.count("\n### ") == text.count("| regressed |") == 1
    assert "duration" not in text
    assert "| not judged | | | | | |" in markdown(run([measurement()]))
    assert markdown(run([])).startswith("# gpuperf: nothing was measured\n")


def test_it_says_how_many_were_judged_before_the_tables() -> None:
    unfit = verdict(outcome=Outcome.UNFIT, detail="<b>shared with 1 other process", test="b")
    text = markdown(run([measurement(), measurement(test="b")], [verdict(), unfit]))
    head, _, _ = text.partition("###")
    said = "judged: 1 of 2 measurements; 1 unfit (<b>shared)"
    assert unescaped(head.splitlines()[-2]) == said
    assert "<b>" not in head
    assert "judged:" not in markdown(run([]))


def test_kernels_have_a_section_under_their_test() -> None:
    step = (("conv", 900.0), ("add", 300.0))
    made = attribute(table(*step, ("silu", 600.0), ("silu", 600.0)), table(*step), NAMING)
    text = markdown(
        run(
            [measurement(), measurement(name="sampling")],
            [kernels_changed(), verdict(), verdict(name="sampling")],
            [Attributed(TEST, "step", made)],
        )
    )
    first, second = text.split("### ")[1:]
    assert first.splitlines()[4:] == [
        "| metric | baseline | measured | change | tolerance | MDE | verdict |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
        "| kernels | 1647 | 1649 | - | - | - | kernels-changed |",
        "| cycles | 437.00 M | 448.00 M | +2.52 % | 0.5 % | - | regressed |",
        "",
        "Kernels: 2 added",
        "",
        "```",
        "kernels: +1.2 ms (x2) in a step, 100 % of it explained:",
        "  +1.2 ms  100 %  silu  added (new), 2 launches",
        "```",
        "",
    ]
    assert "```" not in second


def test_the_cause_comes_first_and_the_modules_that_changed_last() -> None:
    """The sentence beside the test's name, and above its kernels; escaped, as all that is said."""
    rows: list[Sited] = [
        ("conv", 900.0, "net.py:3 Net.forward a"),
        ("add", 300.0, "net.py:4 Net.forward b_c"),
    ]
    more: Sited = ("silu", 600.0, "net.py:5 Net.act b_c")
    time = verdict("step_time", unit="ms", baseline=2.0, measured=2.5, change=0.25)
    made = attribute(sited(*rows, more), sited(*rows), NAMING, [time])
    text = markdown(run([measurement()], [time], [Attributed(TEST, "step", made)]))
    says = "+0.5 ms (+25.00 %): net.py:5 Net.act launches 1 more kernel (silu, b\\_c); none before"
    head, section = text.split("### ")
    assert f"\n  {says}\n" in head
    assert f"\n**{says}**\n" in section
    assert section.split("```\n")[-1].splitlines()[1:4] == [
        "| module | launches | before | after | change |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| b\\_c | 1 -\\> 2 | 0.30000 ms | 0.90000 ms | +0.6 ms |",
    ]


@given(st.text(max_size=80) | st.sampled_from(["```", "~~~\n# x", "a\n```\n# heading"]))
def test_no_kernel_ends_its_section(name: str) -> None:
    made = attribute(table(("conv", 900.0), ("silu", 600.0)), table(("conv", 900.0)), NAMING)
    entries = tuple(replace(e, short=name, formerly=name) for e in made.entries)
    hostile_blame = Attributed(TEST, "step", replace(made, entries=entries))
    lines = markdown(run([measurement()], [verdict()], [hostile_blame])).split("\n")
    assert [line for line in lines if "`" in line][3:] == ["```", "```"]
    assert lines[-3:] == ["```", "", ""]
    assert sum(line.startswith("#") for line in lines) == 2


def test_what_means_something_in_markdown_is_escaped() -> None:
    for character in SPECIAL:
        text = markdown(run([measurement(test=f"x{character}y")]))
        assert f"### x\\{character}y\n" in text, character


hostile = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=40),
    st.text(SPECIAL + "\r\n ab:!()-", max_size=40),
)


outcomes = st.sampled_from([Outcome.REGRESSED, Outcome.UNCHANGED])


def named(name: str, outcome: Outcome) -> str:
    """A report that has this name everywhere."""
    measured = measurement(test=name, name=name, device=Device(f"sm{name}", name, "x", ""))
    return markdown(run([measured], [verdict(name, outcome, test=name, name=name, detail=name)]))


@given(hostile, outcomes)
@example("x | y |\n| --- |\n# heading\r\r## another", Outcome.REGRESSED)
@example("<img src=x onerror=alert(1)> &lt; [a](javascript:b) ![c](http://d)", Outcome.REGRESSED)
@example("```\n`` ` `` $`x`$", Outcome.UNCHANGED)
@example("\\| \\` \\\\", Outcome.UNCHANGED)
def test_no_name_changes_the_layout(name: str, outcome: Outcome) -> None:
    lines, plain = named(name, outcome).split("\n"), named("t", outcome).split("\n")
    assert len(lines) == len(plain)
    for line, expected in zip(lines, plain, strict=True):
        assert not re.search(r"[\r\x0b\x0c\x85\u2028\u2029]", line)
        bare, expected_bare = (re.sub(r"\\.", "", text) for text in (line, expected))
        if not expected.startswith("  `"):  # a command is code, and in no table
            assert bare.count("|") == expected.count("|")
        if "`" not in expected:
            meant = r"[`<>&\[\]*_~$]"
            assert re.findall(meant, bare) == re.findall(meant, expected_bare)
    assert len(re.findall("^#", "\n".join(lines), re.MULTILINE)) == 2


class _Tags(HTMLParser):
    """The tags of a page, with their attributes, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, Any]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


def rendered(outcome: Outcome, name: str) -> _Tags:
    """A report with this name everywhere, as GitHub's own renderer makes it a page."""
    page = _Tags()
    page.feed(github_flavored_markdown_to_html(named(name, outcome), Options.CMARK_OPT_UNSAFE))
    return page


@given(hostile, outcomes)
@example("- ", Outcome.REGRESSED)
@example("\r# x", Outcome.REGRESSED)
@example("<script>alert(1)</script>", Outcome.UNCHANGED)
@example("</details>", Outcome.UNCHANGED)
def test_no_name_adds_anything_to_the_page(name: str, outcome: Outcome) -> None:
    page = rendered(outcome, name)
    assert page.tags == rendered(outcome, "t").tags
    assert "".join(printable(" ".join(name.splitlines())).split()) in "".join(page.text.split())


@given(hostile)
def test_the_command_stays_in_its_code_span(command: str) -> None:
    lines = markdown(replace(run([]), command=command)).split("\n")
    assert len(lines) == 5
    assert lines[2].count("`") == 2 * bool(command)
    assert lines[2].endswith("`" if command else "Z")
