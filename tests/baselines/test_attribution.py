"""From judged measurements and accepted baselines to the kernels that a change comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf.baselines import judgement
from pytest_gpuperf.baselines.reference import baseline_of
from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.judge.attribution import Naming, attribute
from pytest_gpuperf.judge.upgrade import upgrades
from pytest_gpuperf.model.measurement import CallSite, KernelTable, Measurement
from pytest_gpuperf.model.result import Outcome, Result, Verdict
from tests.baselines import accept
from tests.examples import A100, TEST, measurement, verdict
from tests.kernel_steps import sited, slowed, table

NAMING = Naming(*kernel_families.NAMING)
STEP = table(("conv", 900.0), ("add", 300.0), ("adam", 500.0))
SLOWER = slowed(STEP, [1], 2)
MORE = table(("conv", 900.0), ("add", 300.0), ("silu", 90.0), ("adam", 500.0))
CODE = [("conv", 900.0, "net.py:3 Net.forward a"), ("add", 300.0, "net.py:4 Net.forward a")]
SILU = [("silu", 90.0, "net.py:9 Net.act a"), ("silu", 90.0, "net.py:5 Net.forward a")]
REGRESSED = verdict()
UNCHANGED = verdict(outcome=Outcome.UNCHANGED)


def judged(*tables: KernelTable | None, verdicts: Sequence[Verdict] = (REGRESSED,)) -> Result:
    """A measurement of as many processes as there are tables."""
    measured = [measurement(process=f"p{n}", kernels=table) for n, table in enumerate(tables)]
    return Result(TEST, "step", tuple(measured), tuple(verdicts))


def without_counters(table: KernelTable) -> KernelTable:
    launches = tuple(replace(launch, values=()) for launch in table.launches)
    return replace(table, metrics=(), launches=launches)


def attributed_of(root: Path, before: Result) -> Result:
    """What is said of it; all that was judged is still there."""
    after = judgement.attributed(before, baseline_of(before.first, root / "baselines", root))
    assert after.measurements == before.measurements
    assert after.verdicts[len(after.verdicts) - len(before.verdicts) :] == before.verdicts
    return after


@pytest.mark.parametrize(
    ("more", "reason", "says"),
    [
        (CODE, "", ""),
        (CODE[:1], "other-kernels", "1 removed; at net.py:4 Net.forward"),
        (CODE[::-1], "other-order", "1 moved"),
        ([*CODE, SILU[0]], "other-kernels", "1 added; at net.py:9 Net.act"),
        ([*CODE, *SILU], "other-kernels", "2 added; at net.py:5 Net.forward and 1 other line"),
    ],
)
def test_other_kernels_come_first_with_the_lines_that_they_come_from(
    more: Sequence[tuple[str, float, str]], reason: str, says: str, tmp_path: Path
) -> None:
    accept(tmp_path, measurement(kernels=sited(*CODE)))
    plain = judged(sited(*more), verdicts=[UNCHANGED])
    *others, last = attributed_of(tmp_path, plain).verdicts
    assert last == UNCHANGED
    assert [(one.reason, one.detail) for one in others] == ([(reason, says)] if reason else [])
    for one in others:
        assert (one.metric, one.unit, one.outcome) == (
            *("kernels", "launches"),
            Outcome.KERNELS_CHANGED,
        )
        assert (one.baseline, one.measured) == (2.0, float(len(more)))


def test_the_time_that_was_judged_is_that_of_the_headline(tmp_path: Path) -> None:
    accept(tmp_path, measurement(kernels=STEP))
    time = verdict("step_time", unit="ms", baseline=2.0, measured=2.3, change=0.15)
    said = attributed_of(tmp_path, judged(SLOWER, verdicts=[time])).attribution
    assert said is not None
    assert said.cause is not None
    assert said.cause.change == pytest.approx(0.3e6)
    assert said.step is not None
    assert said.step.metric == "step_time"


def test_a_table_without_counters_counts_where_there_is_no_other(tmp_path: Path) -> None:
    accept(tmp_path, measurement(kernels=STEP))
    bad = replace(MORE, mismatch="the trace has 4 kernels and the counters 3")
    assert attributed_of(tmp_path, judged(bad, SLOWER)).attribution == attribute(
        SLOWER, STEP, NAMING
    )
    alone = attributed_of(tmp_path, judged(bad))
    assert alone.attribution == attribute(bad, STEP, NAMING)
    assert alone.notes == (f"no counters of single kernels here: {bad.mismatch}",)
    assert attributed_of(tmp_path, judged(bad, verdicts=[UNCHANGED])).notes == ()


def test_where_counters_are_refused_now_that_is_said_and_where_they_always_were_it_is_not(
    tmp_path: Path,
) -> None:
    before = table(("conv", 900.0, 5e6), ("add", 300.0, 1e5))
    after = without_counters(slowed(before, [1], 2))
    accept(tmp_path, measurement(kernels=before))
    refused = attributed_of(tmp_path, judged(after))
    assert refused.attribution == attribute(after, before, NAMING)
    assert refused.notes == ("no counters of single kernels here",)
    accept(tmp_path, measurement(kernels=without_counters(before)))
    always = attributed_of(tmp_path, judged(after))
    assert always.attribution == attribute(after, without_counters(before), NAMING)
    assert always.notes == ()


def test_there_is_nothing_to_compare(tmp_path: Path) -> None:
    slower = judged(SLOWER)
    assert attributed_of(tmp_path, slower) == slower
    accept(tmp_path, measurement(kernels=STEP))
    assert attributed_of(tmp_path, slower).attribution is not None
    unfit = replace(REGRESSED, outcome=Outcome.UNFIT)
    other = measurement(kernels=SLOWER, workload={"size": 64})
    elsewhere = measurement(kernels=SLOWER, device=A100)
    for before in (
        *(judged(None), judged(SLOWER, verdicts=[]), judged(SLOWER, verdicts=[unfit])),
        *(replace(slower, measurements=(one,)) for one in (other, elsewhere)),
    ):
        assert attributed_of(tmp_path, before) == before


def test_only_a_regression_says_why_it_names_no_kernel(tmp_path: Path) -> None:
    accept(tmp_path, measurement(kernels=None))
    regressed, unchanged = (
        attributed_of(tmp_path, judged(SLOWER, verdicts=[one])) for one in (REGRESSED, UNCHANGED)
    )
    assert (regressed.attribution, unchanged.attribution) == (None, None)
    assert regressed.notes == (
        "no kernel can be blamed: baselines/sm90/nvidia-h200/meddpm.yaml: "
        "tests/suites/meddpm/test_training.py::test_training_step[tf32]/step: the entry has "
        "no kernel table. Accept a run of gpuperf record, which makes one",
    )
    assert unchanged.notes == ()


def test_software_of_another_version_is_said_where_something_changed(tmp_path: Path) -> None:
    old = {"torch": "2.12.0", "timm": "0.9", "cpu": "this", "gone": "1"}
    new = {"torch": "2.13.0", "timm": "1.0", "cpu": "that", "come": "1"}
    accept(tmp_path, measurement(software=old))
    for outcome, notes in (
        (Outcome.REGRESSED, ("versions changed: torch 2.12.0 -> 2.13.0, timm 0.9 -> 1.0",)),
        (Outcome.IMPROVED, ("versions changed: torch 2.12.0 -> 2.13.0, timm 0.9 -> 1.0",)),
        (Outcome.UNCHANGED, ()),
    ):
        measured = (measurement(software=new),)
        result = Result(TEST, "step", measured, (verdict(outcome=outcome),))
        assert attributed_of(tmp_path, result).notes == notes


def test_a_library_whose_code_the_step_does_not_call_is_no_upgrade() -> None:
    def calling(*libraries: str) -> list[KernelTable]:
        sites = (CallSite("a.py:1", "step", libraries=libraries),)
        return [replace(STEP, sites=sites, site_of=(0,) * len(STEP.launches))]

    versions = {"lossy": "1", "torch": "1"}, {"lossy": "2", "torch": "2"}
    for old, new, named in (
        (calling(), calling("lossy"), ["lossy", "torch"]),
        (calling(), calling(), ["torch"]),
        ([], calling(), ["lossy", "torch"]),
    ):
        assert [one.package for one in upgrades(*versions, old, new)] == named


def test_a_cpu_that_waits_far_longer_is_hinted_at_where_the_counts_stayed(tmp_path: Path) -> None:
    def timed(wall_ms: float, cpu: str = "this") -> Measurement:
        return measurement(settings={"wall_ms": wall_ms}, software={"cpu": cpu})

    accept(tmp_path, timed(99.0))

    def hints(*measured: Measurement, outcome: Outcome = Outcome.UNCHANGED) -> tuple[str, ...]:
        result = Result(TEST, "step", measured, (verdict(outcome=outcome),))
        baseline = baseline_of(measured[0], tmp_path / "baselines", tmp_path)
        return judgement.much_longer(result, baseline)

    (hint,) = hints(timed(551.0))
    assert "takes 551 ms, before 99 ms, with the same counts" in hint
    assert hints(timed(290.0)) == ()
    assert hints(timed(551.0), timed(99.0)) == ()  # a neighbour
    assert hints(timed(551.0, "that")) == ()
    assert hints(timed(551.0), outcome=Outcome.REGRESSED) == ()
    assert hints(measurement(software={"cpu": "this"})) == ()
