"""The Markdown report: one table per measurement, and nothing from outside changes its layout."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuperf.judge.blame import blame
from pytest_gpuperf.model import Device, KernelBlame, Outcome
from pytest_gpuperf.report.markdown import markdown
from tests.examples import H200, TEST, kernels_changed, measurement, processes, run, verdict
from tests.kernel_steps import NAMING, table

SPECIAL = r"\`*_[]<>|#&~$"


def unescaped(text: str) -> str:
    """What a reader of the rendered text sees."""
    return re.sub(rf"\\([{re.escape(SPECIAL)}])", r"\1", text)


def test_a_report_has_a_table_per_measurement() -> None:
    sampling = measurement(name="sampling", configuration="")
    text = markdown(
        run([measurement(), sampling], [verdict(), verdict(name="sampling", change=0.5)])
    )
    assert unescaped(text) == "\n".join(
        [
            "# gpuperf",
            "",
            "2026-03-01T12:00:00Z, `suites/meddpm`",
            "",
            "## suites/meddpm/test_training.py::test_training_step[tf32]",
            "",
            "NVIDIA H200 (sm90)",
            "",
            "| metric | baseline | measured | change | tolerance | detects | verdict |",
            "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
            "| cycles | 437.00 M | 448.00 M | +2.52 % | 0.5 % | - | regressed |",
            "",
            "## suites/meddpm/test_training.py::test_training_step[tf32], sampling",
            "",
            "NVIDIA H200 (sm90)",
            "",
            "| metric | baseline | measured | change | tolerance | detects | verdict |",
            "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
            "| cycles | 437.00 M | 448.00 M | +50.00 % | 0.5 % | - | regressed |",
            "",
        ]
    )


def test_several_processes_that_were_judged_together_have_one_table() -> None:
    text = markdown(run(processes("cycles", [[1.0], [2.0], [3.0]]), [verdict()]))
    assert text.count("\n## ") == 1
    assert text.count("regressed") == 1


def test_phases_are_left_out() -> None:
    text = markdown(run([measurement()], [verdict(), verdict("duration", phase="forward")]))
    assert "duration" not in text


def test_kernels_have_a_section_under_their_test() -> None:
    step = (("conv", 900.0), ("add", 300.0))
    found = blame(table(*step, ("silu", 600.0), ("silu", 600.0)), table(*step), NAMING)
    text = markdown(
        run(
            [measurement(), measurement(name="sampling")],
            [kernels_changed(), verdict(), verdict(name="sampling")],
            [KernelBlame(TEST, "step", found)],
        )
    )
    first, second = text.split("## ")[1:]
    assert first.splitlines()[4:] == [
        "| metric | baseline | measured | change | tolerance | detects | verdict |",
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


@given(st.text(max_size=80) | st.sampled_from(["```", "~~~\n# x", "a\n```\n# heading"]))
def test_no_kernel_ends_its_section(name: str) -> None:
    found = blame(table(("conv", 900.0), ("silu", 600.0)), table(("conv", 900.0)), NAMING)
    entries = tuple(replace(e, short=name, formerly=name) for e in found.entries)
    hostile_blame = KernelBlame(TEST, "step", replace(found, entries=entries))
    lines = markdown(run([measurement()], [verdict()], [hostile_blame])).split("\n")
    assert [line for line in lines if "`" in line][1:] == ["```", "```"]
    assert lines[-2:] == ["```", ""]
    assert sum(line.startswith("#") for line in lines) == 2


def test_what_was_not_judged_says_so() -> None:
    assert "| not judged | | | | | |" in markdown(run([measurement()]))


def test_a_run_without_measurements_has_its_heading_only() -> None:
    assert markdown(run([])).startswith("# gpuperf\n")


@pytest.mark.parametrize("character", SPECIAL)
def test_what_means_something_in_markdown_is_escaped(character: str) -> None:
    text = markdown(run([measurement(test=f"x{character}y")]))
    assert f"## x\\{character}y\n" in text


hostile = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=40),
    st.text(SPECIAL + "\r\n ab:!()-", max_size=40),
)


@given(hostile)
@example("x | y |\n| --- |\n# heading\r\r## another")
@example("<img src=x onerror=alert(1)> &lt; [a](javascript:b) ![c](http://d)")
@example("```\n`` ` `` $`x`$")
@example("\\| \\` \\\\")
def test_no_name_changes_the_layout(name: str) -> None:
    device = Device(f"sm{name}", name, "x", "")
    hostile_run = run(
        [measurement(test=name, name=name, device=device)],
        [verdict(name, Outcome.REGRESSED, test=name, name=name)],
    )
    plain_run = run(
        [measurement(test="t", name="n", device=H200)], [verdict("m", test="t", name="n")]
    )
    lines, plain = markdown(hostile_run).split("\n"), markdown(plain_run).split("\n")
    assert len(lines) == len(plain)
    for line, expected in zip(lines, plain, strict=True):
        assert not re.search(r"[\r\x0b\x0c\x85\u2028\u2029]", line)
        bare = re.sub(r"\\.", "", line)
        assert bare.count("|") == expected.count("|")
        if "`" not in expected:
            assert not re.search(r"[`<>&\[\]*_~$]", bare)
    assert len(re.findall("^#", "\n".join(lines), re.MULTILINE)) == 2


@given(hostile)
def test_the_command_stays_in_its_code_span(command: str) -> None:
    lines = markdown(replace(run([]), command=command)).split("\n")
    assert len(lines) == 4
    assert lines[2].count("`") == 2
    assert lines[2].endswith("`")
