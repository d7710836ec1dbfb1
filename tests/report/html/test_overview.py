"""The first screen: a row per test, worst first, with its numbers; totals; what to type next."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from pytest_gpuperf.judge.attribution import attribute
from pytest_gpuperf.measure.device.nvml import portable_device
from pytest_gpuperf.model.measurement import Conditions, Reading
from pytest_gpuperf.model.result import Attributed, Expectation, JudgedBy, Outcome, Run, Verdict
from pytest_gpuperf.report.github import workflow_commands
from pytest_gpuperf.report.html.overview import Overview, TestRow, overview
from pytest_gpuperf.report.html.page import page
from pytest_gpuperf.report.html.subject import subjects
from pytest_gpuperf.report.markdown import markdown
from pytest_gpuperf.report.text.kernel_lines import module_tree
from tests.examples import TEST, measurement, run, verdict
from tests.kernel_steps import NAMING, Sited, operators, sited
from tests.report.html.pages import committed, rendered


def of(said: Run) -> Overview:
    return overview(said, subjects(said), "run.json")


def run_of(*outcomes: Outcome) -> Run:
    """A run of a test per outcome."""
    names = [f"a.py::test_step[{number}]" for number in range(len(outcomes))]
    return run(
        [measurement(test=name, configuration=name[-2]) for name in names],
        [verdict(outcome=o, test=name) for o, name in zip(outcomes, names, strict=True)],
    )


def row_of(*verdicts: Verdict) -> TestRow:
    """The row of one test of which this is said."""
    (row,) = of(run([measurement()], verdicts)).rows
    return row


def moved(metric: str, outcome: Outcome, change: float, **more: Any) -> Verdict:
    """A verdict on a metric that was 100 ms."""
    made = verdict(metric, outcome, baseline=100.0, measured=100.0 * (1 + change), change=change)
    return replace(made, **more)


def commands(said: Overview) -> list[str]:
    return [command for _, commands in said.steps for command in commands]


def test_the_worst_verdict_is_first_whatever_the_order_of_the_tests() -> None:
    said = of(run_of(Outcome.UNCHANGED, Outcome.IMPROVED, Outcome.REGRESSED, Outcome.INCONCLUSIVE))
    outcomes = ["regressed", "inconclusive", "improved", "unchanged"]
    assert [row.outcome for row in said.rows] == outcomes
    assert [row.place for row in said.rows] == [1, 2, 3, 4]
    assert [row.calm for row in said.rows] == [False, False, False, True]
    assert said.tone == "bad"
    assert said.headline == "1 regressed, 1 inconclusive, 1 improved, 1 unchanged"


def test_the_headline_says_how_the_run_went() -> None:
    for outcomes, headline, tone in (
        ([Outcome.UNCHANGED] * 3, "3 unchanged", "good"),
        ([Outcome.REGRESSED], "1 regressed", "bad"),
        ([Outcome.NO_BASELINE] * 2, "2 no-baseline", "doubtful"),
        ([], "nothing was measured", "doubtful"),
    ):
        said = of(run_of(*outcomes))
        assert (said.headline, said.tone) == (headline, tone)
    # One that was compared with nothing says so.
    said = of(run([measurement()]))
    assert [row.outcome for row in said.rows] == ["not compared"]
    assert commands(said) == ["gpuperf report run.json --baselines baselines"]


def test_what_got_worse_is_not_said_without_what_got_better() -> None:
    memory = moved("peak_memory", Outcome.REGRESSED, 0.0003)
    faster = moved("step_time", Outcome.IMPROVED, -0.06)
    said = of(run([measurement()], [faster, memory]))
    assert said.heading.endswith(" regressed on NVIDIA H200 (sm90): peak_memory +0.03 %")
    assert "; improved: step_time -6.00 % (" in said.leads[0]
    (row,) = said.rows
    assert (row.decides["metric"], row.decides["change"]) == ("peak_memory", "+0.03 %")
    assert row.why.startswith("improved: step_time -6.00 % (")


def test_a_row_is_about_the_time_if_that_is_among_the_worst() -> None:
    time = moved("step_time", Outcome.REGRESSED, 0.02, minimum_detectable_effect=0.011)
    cycles = moved("cycles", Outcome.REGRESSED, 0.5)
    row = row_of(cycles, time, moved("instructions", Outcome.UNCHANGED, 0.0))
    # Of what is as bad, the time.
    cells = row.decides
    shown = [cells[name] for name in ("metric", "change", "tolerance", "MDE")]
    assert shown == ["step_time", "+2.00 %", "0.5 %", "1.1 %"]
    assert row.why.startswith("cycles +50.00 % (")
    assert [one["metric"] for one in row.told] == ["step_time", "cycles", "instructions"]


def test_without_a_time_the_metric_decides_that_changed_most() -> None:
    near, far = (
        moved(m, Outcome.REGRESSED, c) for m, c in (("flops", 0.001), ("operators", 0.004))
    )
    assert row_of(near, far).decides["metric"] == "operators"
    # If nothing changed, it is what a step on a CPU costs most in, and nothing that is zero.
    near, far = (replace(one, outcome=Outcome.UNCHANGED) for one in (near, far))
    none = moved("copies", Outcome.UNCHANGED, 0.0, baseline=0.0, measured=0.0)
    row = row_of(none, far, near)
    assert [one["metric"] for one in row.told] == ["flops", "operators"]


def test_without_a_verdict_a_row_has_what_was_measured() -> None:
    (row,) = of(run([measurement({"cycles": [100.0], "wall_time": [1.0]})])).rows
    assert (row.decides["metric"], row.decides["change"], row.calm) == (
        *("cycles", "-"),
        False,
    )


def test_an_interval_stands_beside_its_verdict() -> None:
    row = row_of(moved("cycles", Outcome.UNCHANGED, 0.0, low=-0.0025, high=0.005))
    assert row.decides["interval"] == "-0.25 % to +0.50 %"
    assert row_of(moved("cycles", Outcome.UNCHANGED, 0.0)).decides["interval"] == ""


def test_the_totals_have_the_skipped_and_the_unjudged_too() -> None:
    made = run_of(Outcome.UNCHANGED, Outcome.NO_BASELINE)
    skipped = {"a.py::one": "needs a GPU", "a.py::two": "only on sm80"}
    said = of(replace(made, skipped=skipped))
    assert [(count, what) for count, what, _ in said.totals] == [
        (1, "no-baseline"),
        (1, "unchanged"),
        (2, "incomplete"),
    ]
    assert said.headline == "1 no-baseline, 1 unchanged, 2 incomplete"
    assert said.judged == "1 unchanged, 1 not compared (no baseline)"
    said = of(replace(run_of(Outcome.UNCHANGED), skipped=skipped))
    assert said.headline == "1 unchanged, 2 incomplete"


def test_it_says_which_commit_was_judged_by_which_baseline_on_what() -> None:
    made = run([measurement()], [verdict()])
    made = replace(made, judged_by=(JudgedBy(TEST, "step", "2026-02-01", "fedcba987654"),))
    assert of(made).about == (
        ("run", "2026-03-01 12:00:00 UTC"),
        ("commit", "0123456789ab"),
        ("baseline", "2026-02-01, fedcba987654"),
        ("device", "NVIDIA H200 (sm90)"),
    )


def test_a_regression_has_its_numbers_and_its_kernels() -> None:
    said = of(committed("h200-tf32-broken.json.xz"))
    (row,) = said.rows
    assert said.heading.endswith(" regressed on NVIDIA H200 (sm90): step_time x4.61")
    assert said.leads == (row.cause,) == (row.why,)
    assert [one["tone"] for one in row.told] == ["bad", "bad", "bad", "doubtful"]
    assert "46 added, 342 removed, 240 replaced, 7 moved" in row.details
    shown = " ".join(rendered("h200-tf32-broken.json.xz").split())
    assert "kernels: +834 ms (x4.6) in a step, 100 % of it explained:" in shown
    first = '<span class="change">+302 ms</span><span class="share">36 %</span>'
    assert f'{first}<span class="what"><strong>sm80_xmma_wgrad f32 32x32x8 idx' in shown


def test_a_regression_on_a_cpu_has_the_lines_of_code() -> None:
    before = operators(("mm", "model.py:3 Net.attend layers.0"))
    after = operators(*[("mm", "model.py:3 Net.attend layers.0")] * 2)
    one = replace(measurement(device=portable_device()), kernels=after)
    attribution = attribute(after, before, NAMING)
    entries = (Attributed(one.test, one.name, attribution),)
    made = replace(run([one], [moved("operators", Outcome.REGRESSED, 1.0)]), attributions=entries)
    shown = page(made, "run.json")
    assert "operators: 1 -&gt; 2 in a step" in shown
    assert '<ol class="blame">' not in shown
    assert "<code>model.py:3 Net.attend (layers.0)</code>: mm 1 -&gt; 2" in shown


def test_a_regression_has_its_cause_and_a_tree_of_its_modules() -> None:
    """Each with all that is inside it; one sees the way to what changed most."""
    rows: list[Sited] = [
        ("conv", 900.0, "net.py:3 Net.forward net.downs.0"),
        ("conv", 900.0, "net.py:3 Net.forward net.ups.0.norm"),
        ("add", 300.0, "net.py:4 Net.forward net"),
        ("adam", 500.0, "train.py:7 step"),
    ]
    slower = [("conv", 1800.0, rows[0][2]), *rows[1:]]
    one = measurement({"step_time": [3.5]})
    time = verdict("step_time", unit="ms", baseline=2.6, measured=3.5, change=0.346)
    attribution = attribute(sited(*slower), sited(*rows), NAMING, [time])
    entries = (Attributed(one.test, one.name, attribution),)
    made = replace(run([one], [time]), attributions=entries)
    said = of(made)
    (row,) = said.rows
    assert said.leads == (row.cause,)
    assert row.cause.startswith("+0.9 ms (+34.60 %): net.py:3 Net.forward takes longer with the")
    tree = row.tree
    assert tree is not None
    assert tree.name == "step"
    assert tree.change == pytest.approx(0.9e6)
    net, outside = tree.branches
    assert [node.name for node in net.branches] == ["downs.0", "ups.0.norm", "itself"]
    assert (outside.name, outside.change, outside.branches) == ("no module", 0.0, ())
    assert row.opened == [tree, net, net.branches[0]]
    shown = page(made, "run.json")
    assert shown.count('<details open><summary class="node">') == 2
    assert of(replace(made, attributions=())).rows[0].tree is None


def test_of_many_modules_the_most_changed_are_in_the_tree() -> None:
    rows: list[Sited] = [("add", 100.0, f"net.py:4 f net.{n}") for n in range(40)]
    more = [(name, us + n, at) for n, (name, us, at) in enumerate(rows)]
    tree = module_tree(attribute(sited(*more), sited(*rows), NAMING))
    assert tree is not None
    (net,) = tree.branches
    assert [branch.name for branch in net.branches[:2]] == ["39", "38"]
    assert net.branches[-1].name == "28 others"
    assert sum(branch.change for branch in net.branches) == pytest.approx(tree.change)


def test_a_broken_expectation_is_bad_even_where_nothing_regressed() -> None:
    broken = Expectation(
        "t", "cycles", "", "a / b", None, 0.5, Outcome.BROKEN, "beyond", 0.7, 0.69, 0.71
    )
    made = run_of(Outcome.UNCHANGED)
    said = of(Run(1, "", "", made.measurements, made.verdicts, (broken,)))
    assert said.tone == "bad"
    assert said.headline == "1 broken, 1 unchanged"
    assert "a / b: cycles 0.7, below 0.5: broken" in said.leads[0]
    assert (said.expected[0][0][-1], said.expected[0][-1], said.held) == (
        *("broken", False),
        "1 unchanged",
    )


def test_a_test_beyond_a_limit_is_not_folded() -> None:
    broken = Expectation(
        TEST, "cycles", "cycles", "step", None, 0.5, Outcome.BROKEN, "beyond", 0.7, 0.69, 0.71
    )
    made = run([measurement()], [verdict(outcome=Outcome.UNCHANGED)])
    (row,) = of(replace(made, expectations=(broken,))).rows
    assert (row.outcome, row.calm) == ("broken", False)


def test_what_to_type_next_is_for_the_worst_test() -> None:
    made = run_of(Outcome.REGRESSED, Outcome.REGRESSED)
    near, far = (replace(v, change=c) for v, c in zip(made.verdicts, (0.1, 0.2), strict=True))
    kernels, again, *_ = commands(of(replace(made, verdicts=(near, far))))
    assert kernels == "pytest 'a.py::test_step[1]' --gpuperf-kernels always"
    assert again == "pytest 'a.py::test_step[1]'"


ACCEPT = 'gpuperf update-baseline run.json --reason "..."'


def test_without_a_gpu_nobody_is_told_to_look_for_kernels() -> None:
    on_cpu = [measurement(device=portable_device(), process=f"p{n}") for n in range(3)]
    made = run(on_cpu, [verdict(outcome=Outcome.REGRESSED)])
    again = "pytest 'suites/meddpm/test_training.py::test_training_step[tf32]'"
    assert commands(of(made)) == [again, ACCEPT]


def test_a_throttled_device_is_complained_of() -> None:
    hot = Conditions(Reading(), Reading(throttle_reasons=("software power cap",)))
    (note,) = of(run([measurement(conditions=hot)])).notes
    assert note.startswith("tf32: the device was throttled at the end: ")
    assert "software power cap" in note


def test_metrics_that_do_not_exist_are_named_once_with_their_reason() -> None:
    lacking = [
        verdict(metric, Outcome.UNSUPPORTED, test=name, detail="no permission")
        for name in ("a.py::t", "a.py::u")
        for metric in ("ipc", "cycles")
    ]
    said = of(run([measurement(test="a.py::t"), measurement(test="a.py::u")], lacking))
    assert said.notes == ("gpuperf cannot measure ipc, cycles: no permission",)


def test_all_reports_rank_tests_alike() -> None:
    """The most costly in time first, not what changed most; without a time what changed most."""
    names = ["a.py::test_small", "a.py::test_costly", "a.py::test_counts"]
    said = [
        replace(moved("step_time", Outcome.REGRESSED, 0.5), baseline=1.0, measured=1.5),
        moved("step_time", Outcome.REGRESSED, 0.1),
        moved("operators", Outcome.REGRESSED, 9.0),
    ]
    said = [replace(v, test=name, unit="ms") for v, name in zip(said, names, strict=True)]
    made = run([measurement(test=name) for name in names], said)
    expected = ["test_costly", "test_small", "test_counts"]
    assert [row.label for row in of(made).rows] == expected
    text = re.findall(r"- \*\*(test\\_\w+)", markdown(made))
    assert [name.replace("\\", "") for name in text] == expected
    marks = "".join(workflow_commands(made.results(), {}))
    assert re.findall(r"gpuperf%3A (\w+)", marks) == expected
