"""How expectations are printed: the line, the failing test's message, the summary, Markdown."""

from __future__ import annotations

from dataclasses import replace

from pytest_gpuperf.model.result import Expectation, Outcome, Result
from pytest_gpuperf.report.markdown import markdown
from pytest_gpuperf.report.text import expectation_lines, failure
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.summary import summary
from tests.examples import H200, TEST, measurement, result, run, verdict

RATIO = Expectation(
    test="suites/meddpm/test_training.py::test_claim[tf32]",
    metric="cycles",
    unit="",
    subject="tf32 / baseline",
    above=None,
    below=0.35,
    outcome=Outcome.HOLDS,
    reason="within",
    measured=0.17719,
    low=0.17651,
    high=0.17788,
    processes=3,
)
LIMIT = replace(
    RATIO,
    test=TEST,
    metric="duration",
    unit="ns",
    subject="step",
    below=225e6,
    outcome=Outcome.BROKEN,
    reason="beyond",
    measured=231e6,
    low=230e6,
    high=232e6,
)
UNVERIFIED = replace(RATIO, verified=False, detail="not yet verified on sm80")


LINES = {
    "tf32 / baseline below 0.35: 0.1772 (0.1765 to 0.1779), holds": RATIO,
    "tf32 / baseline below 0.35: 0.1772 (0.1765 to 0.1779), holds "
    "(not yet verified on sm80)": UNVERIFIED,
    "tf32 / baseline above 0.97 and below 1.03: 0.1772 (0.1765 to 0.1779), broken": replace(
        RATIO, above=0.97, below=1.03, outcome=Outcome.BROKEN
    ),
    "tf32 / baseline below 0.35: 0.1772, holds": replace(RATIO, low=None, high=None),
    "tf32 / baseline below 0.35: holds": replace(RATIO, measured=None, low=None, high=None),
    "test_training_step[tf32] below 225.00 ms: 231.00 ms (230.00 ms to 232.00 ms), broken": LIMIT,
    "test_training_step[tf32], forward below 225.00 ms: 231.00 ms (230.00 ms to 232.00 ms), "
    "broken": replace(LIMIT, subject="forward"),
    "test_training_step[tf32] below 225.00 ms: unsupported (no such counter)": replace(
        LIMIT, outcome=Outcome.UNSUPPORTED, measured=None, detail="no such counter"
    ),
}


def test_an_expectation_on_one_line() -> None:
    for text, expectation in LINES.items():
        said = expectation_lines.line(expectation)
        assert said == f"expected of {expectation.metric}: {text}"


def test_lines_fit_lose_nothing_and_have_the_tone_of_their_outcome() -> None:
    for width in (20, 40, 60, 80):
        lines = list(expectation_lines.lines([UNVERIFIED, LIMIT], width))
        assert all(len(line.text) <= width for line in lines)
        assert "(not yet verified on sm80)" in " ".join(line.text for line in lines)
    undecided = replace(LIMIT, outcome=Outcome.INCONCLUSIVE)
    tones = [line.tone for line in expectation_lines.lines([RATIO, LIMIT, undecided], 200)]
    assert tones == ["", "bad", "doubtful"]


def test_the_summary_has_them_after_the_tables() -> None:
    ratio = Result(RATIO.test, RATIO.subject, (), expectations=(RATIO,))
    judged = result(measurement(), verdict(outcome=Outcome.UNCHANGED), expectations=(LIMIT,))
    lines = summary([judged, ratio], 100, CommandContext("suites/meddpm"), "run.json")
    texts = [line.text for line in lines]
    # What failed comes first.
    assert texts[0] == expectation_lines.line(LIMIT)[: len(texts[0])]
    assert texts.index(expectation_lines.line(RATIO)) > max(
        number for number, text in enumerate(texts) if "unchanged" in text
    )
    assert texts.index(expectation_lines.line(RATIO)) < texts.index("run saved: run.json")
    first = expectation_lines.line(LIMIT)[:60]
    assert [line.tone for line in lines if line.text.startswith(first)] == ["bad"]


def test_markdown_has_a_table_of_them() -> None:
    saved = replace(run([measurement()]), expectations=(UNVERIFIED, LIMIT))
    text = markdown(saved)
    assert "## Expected" in text
    row = (
        "| cycles | tf32 / baseline | below 0.35 | 0.1772 (0.1765 to 0.1779) "
        "| holds (not yet verified on sm80) |"
    )
    assert row in text
    assert "| duration | test\\_training\\_step\\[tf32\\] | below 225.00 ms | " in text
    assert "## Expected" not in markdown(run([measurement()]))


def test_a_broken_ratio_as_a_failure() -> None:
    broken = replace(UNVERIFIED, below=0.1, outcome=Outcome.BROKEN, reason="beyond")
    assert expectation_lines.failure(broken, H200).splitlines() == [
        "gpuperf: cycles of tf32 / baseline is not as expected on NVIDIA H200 (sm90)",
        "  expected of cycles: tf32 / baseline below 0.1: 0.1772 (0.1765 to 0.1779), broken "
        "(not yet verified on sm80)",
        "  99.5 % interval, 3 processes",
    ]


def test_an_undecided_ratio_says_what_to_do() -> None:
    says = {
        "unsure": "The noise hides whether it holds",
        "too-few-processes": "one process in fifty is slow by itself",
    }
    for reason, said in says.items():
        undecided = replace(RATIO, outcome=Outcome.INCONCLUSIVE, reason=reason, processes=1)
        text = expectation_lines.failure(undecided, H200)
        assert "is inconclusive on NVIDIA H200 (sm90)" in text
        assert "99.5 % interval, 1 process\n" in text
        assert said in text
        assert "--gpuperf-inconclusive warn" in text
    lacking = replace(RATIO, outcome=Outcome.UNSUPPORTED, measured=None)
    assert expectation_lines.failure(lacking, H200).splitlines()[2:] == ["  3 processes"]


def test_a_broken_limit_alone_fails_a_test() -> None:
    session = CommandContext("suites/meddpm")
    text = failure.failure(result(measurement()), [LIMIT], session, 120)
    assert text.splitlines() == [
        "gpuperf: duration 231.00 ms: beyond a limit on NVIDIA H200 (sm90)",
        "configuration: tf32",
        f"  {expectation_lines.line(LIMIT)}",
        "  99.5 % interval, 3 processes",
    ]


def test_a_limit_beside_a_regression_or_undecided() -> None:
    worse, session = verdict(), CommandContext("suites/meddpm")
    text = failure.failure(result(measurement(), worse), [worse, LIMIT], session, 120)
    assert text.startswith("gpuperf: cycles +2.52 %: regressed on")
    assert expectation_lines.line(LIMIT) in text
    undecided = replace(LIMIT, outcome=Outcome.INCONCLUSIVE, reason="unsure")
    text = failure.failure(result(measurement()), [undecided], session, 160)
    assert "duration 231.00 ms: inconclusive on" in text
    assert "--gpuperf-inconclusive warn" in text
