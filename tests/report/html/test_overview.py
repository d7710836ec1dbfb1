"""The first screen: verdicts, worst first; what changed; what to do next."""

from __future__ import annotations

from pytest_gpuperf.model.measurement import Conditions, Reading
from pytest_gpuperf.model.result import Expectation, Outcome, Run
from pytest_gpuperf.report.html.overview import Overview, overview
from pytest_gpuperf.report.html.subject import subjects
from tests.examples import measurement, run, verdict
from tests.report.html.pages import committed


def of(said: Run, file: str = "run.json", *, incomplete: bool = False) -> Overview:
    return overview(said, subjects(said), file, incomplete=incomplete)


def run_of(*outcomes: Outcome) -> Run:
    """A run of a test per outcome."""
    names = [f"a.py::test_step[{number}]" for number in range(len(outcomes))]
    return run(
        [measurement(test=name, configuration=name[-2]) for name in names],
        [verdict(outcome=o, test=name) for o, name in zip(outcomes, names, strict=True)],
    )


def commands(said: Overview) -> list[str]:
    return [command for _, command in said.steps]


def test_the_worst_verdict_is_first_whatever_the_order_of_the_tests() -> None:
    said = of(run_of(Outcome.UNCHANGED, Outcome.IMPROVED, Outcome.REGRESSED, Outcome.INCONCLUSIVE))
    assert [one.outcome for one in said.judged] == [
        "regressed",
        "inconclusive",
        "improved",
        "unchanged",
    ]
    assert said.tone == "bad"
    assert said.headline == (
        "1 regressed, 1 inconclusive, 1 improved, 1 unchanged, of 4 measurements"
    )


def test_the_headline_says_how_the_run_went() -> None:
    for outcomes, headline, tone in (
        ([Outcome.UNCHANGED] * 3, "All 3 unchanged", "good"),
        ([Outcome.REGRESSED], "0: regressed", "bad"),
        ([Outcome.NO_BASELINE] * 2, "All 2 no-baseline", "doubtful"),
        ([], "The run has no measurements", "doubtful"),
    ):
        said = of(run_of(*outcomes))
        assert (said.headline, said.tone) == (headline, tone)
    # One that was compared with nothing says so.
    said = of(run([measurement()]))
    assert [one.outcome for one in said.judged] == ["not judged"]
    assert commands(said) == ["gpuperf report run.json --baseline baselines"]


def test_a_regression_has_its_numbers_and_its_kernels() -> None:
    said = of(committed("h200-tf32-broken.json.xz"))
    (one,) = said.judged
    assert one.headline == "cycles x4.83, instructions x8.44, step_time x4.63"
    assert one.moved == "+834 ms (x4.61) in a step"
    change, share, kernel, how = one.kernels[0]
    assert (change, share, kernel) == ("+302 ms", "36 %", "sm80_xmma_wgrad f32 32x32x8 idx")
    assert how.startswith("replaced sm90_xmma_wgrad tf32")
    assert [row.tone for row in one.rows] == ["bad", "bad", "bad", "doubtful"]


def test_a_broken_expectation_is_bad_even_where_nothing_regressed() -> None:
    broken = Expectation(
        "t", "cycles", "", "a / b", None, 0.5, Outcome.BROKEN, "beyond", 0.7, 0.69, 0.71
    )
    made = run_of(Outcome.UNCHANGED)
    said = of(Run(1, "", "", made.measurements, made.verdicts, (broken,)))
    assert said.tone == "bad"
    assert "1 expectation broken" in said.headline
    assert said.expected[0].cells[-1] == "broken"


ACCEPT = 'gpuperf update-baseline run.json --reason "..."'
RECORD = "gpuperf record --processes 5 -- 'a.py::test_step[0]'"
COMMANDS = {
    Outcome.REGRESSED: ["pytest 'a.py::test_step[0]' --gpuperf-kernels always", ACCEPT],
    Outcome.IMPROVED: [ACCEPT],
    Outcome.INCONCLUSIVE: [RECORD],
    Outcome.NO_BASELINE: [RECORD, 'gpuperf update-baseline --reason "first baseline"'],
    Outcome.UNCHANGED: [],
}


def test_what_to_do_next_follows_from_the_verdicts_and_what_the_figures_lack() -> None:
    for outcome, expected in COMMANDS.items():
        assert commands(of(run_of(outcome))) == expected
    assert commands(of(run_of(Outcome.UNCHANGED), incomplete=True)) == [
        "pytest 'a.py::test_step[0]' --gpuperf-metrics paper --gpuperf-kernels always "
        "--gpuperf-timeline always --gpuperf-report report.html"
    ]


def test_a_throttled_device_is_complained_of() -> None:
    hot = Conditions(Reading(), Reading(throttle_reasons=("software power cap",)))
    (note,) = of(run([measurement(conditions=hot)])).notes
    assert note.startswith("tf32 was measured ")
    assert "software power cap" in note


def test_metrics_that_do_not_exist_are_named_once_with_their_reason() -> None:
    lacking = [
        verdict(metric, Outcome.UNSUPPORTED, test=name, detail="no permission")
        for name in ("a.py::t", "a.py::u")
        for metric in ("ipc", "cycles")
    ]
    said = of(run([measurement(test="a.py::t"), measurement(test="a.py::u")], lacking))
    assert said.notes == ("Unsupported: ipc, cycles: no permission",)
