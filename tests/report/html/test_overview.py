"""The first screen, beside its golden texts: modules, lines of code, and what to type next."""

from __future__ import annotations

import re
from dataclasses import replace

from pytest_gpuperf.judge.attribution import attribute
from pytest_gpuperf.measure.device.nvml import portable_device
from pytest_gpuperf.model.measurement import ELSEWHERE
from pytest_gpuperf.model.result import Attributed, JudgedBy, Outcome, Run
from pytest_gpuperf.report.github import workflow_commands
from pytest_gpuperf.report.html.overview import Overview, overview
from pytest_gpuperf.report.html.page import page
from pytest_gpuperf.report.html.subject import subjects
from pytest_gpuperf.report.markdown import markdown
from pytest_gpuperf.report.text.next_command import CommandContext
from tests.examples import TEST, measurement, run, verdict
from tests.kernel_steps import NAMING, Sited, operators, sited
from tests.report.html.pages import committed, rendered


def of(said: Run, context: CommandContext | None = None) -> Overview:
    return overview(said, subjects(said), "run.json", context)


def commands(said: Overview) -> list[str]:
    return [command for _, commands in said.steps for command in commands]


def test_it_says_which_commit_was_judged_by_which_baseline_on_what() -> None:
    made = run([measurement()], [verdict()])
    made = replace(made, judged_by=(JudgedBy(TEST, "step", "2026-02-01", "fedcba987654"),))
    skipped = {"a.py::one": "needs a GPU", "a.py::two": "only on sm80"}
    said = of(replace(made, skipped=skipped))
    assert said.about == (
        ("run", "2026-03-01 12:00:00 UTC"),
        ("commit", "0123456789ab"),
        ("baseline", "2026-02-01, fedcba987654"),
        ("device", "NVIDIA H200 (sm90)"),
    )
    assert said.totals == ((1, "regressed", "bad"), (2, "incomplete", ""))


def test_code_that_is_not_the_checkouts_stands_first_and_is_not_green() -> None:
    one = measurement()
    settings = {ELSEWHERE: "~/env/net instead of src/net"}
    one = replace(one, fingerprint=replace(one.fingerprint, settings=settings))
    said = of(run([one], [verdict(outcome=Outcome.UNCHANGED)]))
    assert said.heading == "the tests used ~/env/net instead of src/net; 1 unchanged"
    assert said.leads[0] == "the tests used ~/env/net instead of src/net"
    assert said.tone == "bad"


def test_a_regression_has_its_numbers_and_its_kernels() -> None:
    (row,) = of(committed("h200-tf32-broken.json.xz")).rows
    assert [one["tone"] for one in row.told] == ["bad", "bad", "bad", "doubtful"]
    shown = " ".join(rendered("h200-tf32-broken.json.xz").split())
    assert "kernels: +834 ms (x4.6) in a step, 100 % of it explained:" in shown
    first = '<span class="change">+302 ms</span><span class="share">36 %</span>'
    assert f'{first}<span class="what"><strong>sm80_xmma_wgrad f32 32x32x8 idx' in shown


def test_a_regression_on_a_cpu_has_the_lines_of_code_and_asks_for_no_kernels() -> None:
    attend = ("mm", "model.py:3 Net.attend layers.0")
    before, after = operators(attend), operators(attend, attend)
    one = replace(measurement(device=portable_device()), kernels=after)
    made = run([one], [verdict("operators", baseline=1.0, measured=2.0, change=1.0)])
    again = f"pytest '{TEST}'"
    assert commands(of(made)) == [again, 'gpuperf update-baseline run.json --reason "..."']
    said = Attributed(one.test, one.name, attribute(after, before, NAMING))
    shown = page(replace(made, attributions=(said,)), "run.json")
    assert "operators: 1 -&gt; 2 in a step" in shown
    assert '<ol class="blame">' not in shown
    assert "<code>model.py:3 Net.attend (layers.0)</code>: mm 1 -&gt; 2" in shown


def test_a_regression_has_its_cause() -> None:
    rows: list[Sited] = [
        ("conv", 900.0, "net.py:3 Net.forward net.downs.0"),
        ("adam", 500.0, "train.py:7 step"),
    ]
    slower = [("conv", 1800.0, rows[0][2]), *rows[1:]]
    one = measurement({"step_time": [2.3]})
    time = verdict("step_time", unit="ms", baseline=1.4, measured=2.3, change=0.643)
    attribution = attribute(sited(*slower), sited(*rows), NAMING, [time])
    entries = (Attributed(one.test, one.name, attribution),)
    made = replace(run([one], [time]), attributions=entries)
    said = of(made)
    (row,) = said.rows
    assert said.leads == (row.cause,)
    assert row.cause.startswith("+0.9 ms (+64.30 %): net.py:3 Net.forward takes longer with the")


def test_a_session_knows_more_than_its_run() -> None:
    made = [measurement(process=f"p{number}") for number in range(3)]
    known = CommandContext("--lf", run="../run.json")
    said = of(run(made, [verdict(outcome=Outcome.IMPROVED)]), known)
    assert commands(said) == ['gpuperf update-baseline ../run.json --reason "..."']


def test_all_reports_rank_tests_alike() -> None:
    """The most costly in time first, not what changed most; without a time what changed most."""
    names = ["a.py::test_small", "a.py::test_costly", "a.py::test_counts"]
    said = [
        verdict("step_time", test=names[0], unit="ms", baseline=1.0, measured=1.5, change=0.5),
        verdict("step_time", test=names[1], unit="ms", baseline=100.0, measured=110.0, change=0.1),
        verdict("operators", test=names[2], change=9.0),
    ]
    made = run([measurement(test=name) for name in names], said)
    expected = ["test_costly", "test_small", "test_counts"]
    assert [row.label for row in of(made).rows] == expected
    text = re.findall(r"- \*\*(test\\_\w+)", markdown(made))
    assert [name.replace("\\", "") for name in text] == expected
    marks = "".join(workflow_commands(made.results(), {}))
    assert re.findall(r"gpuperf%3A (\w+)", marks) == expected
