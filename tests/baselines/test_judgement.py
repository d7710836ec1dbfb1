"""Judging with more processes where one does not settle it; the processes come from a script."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf.baselines.judgement import (
    Judging,
    NotMeasured,
    Processes,
    fails,
    not_collected,
    notes_on,
)
from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import MeasurementError, UsageFailure
from pytest_gpuperf.judge.expectation import Ratio
from pytest_gpuperf.judge.verdict import ABSENT
from pytest_gpuperf.measure.replica import Replicas
from pytest_gpuperf.model.measurement import Conditions, Measurement, Reading
from pytest_gpuperf.model.result import Outcome, Result
from pytest_gpuperf.model.settings import Settings
from tests.baselines import accept
from tests.examples import TEST, default_settings, measurement, verdict
from tests.kernel_steps import table

CYCLES = catalogue().metrics["cycles"]
OTHER = "suites/meddpm/test_training.py::test_training_step[baseline]"
COMPARISON = Ratio(TEST, "meddpm", CYCLES, "tf32", "baseline", below=1.0)

QUIET = (0.0,) * 5
WIDE = (-0.0035, -0.0035, 0.0, 0.0035, 0.0035)
"""A baseline of this spread can hold t(0.05 %, 5) 0.0035 / sqrt(5), which is 1.08 %, and is within
t(0.25 %, 5) 0.0035 / sqrt(5) more, 1.83 %. Half of the interval of one process is 1.55 %."""
WILD = (-0.02, -0.02, 0.0, 0.02, 0.02)
"""Of this one 6.3 %, and of the next one more than 10 %: that is no tolerance."""
WILDEST = (-0.05, -0.05, 0.0, 0.05, 0.05)


class ScriptedReplicas(Replicas):
    """Has these changes of the cycles, one per fresh process of a test; after them it fails."""

    def __init__(
        self, scripts: Mapping[str, Sequence[float]], kernels: Sequence[Mapping[str, str]] = ()
    ) -> None:
        self._scripts = scripts
        self._kernels = kernels
        self.asked: list[tuple[str, str, int]] = []

    def measurements(
        self,
        test: str,
        name: str,
        count: int,
        meanwhile: Callable[[], object] | None = None,
    ) -> Processes:
        self.asked.append((test, name, count))
        if meanwhile:
            meanwhile()
        script = self._scripts[test]
        if count > len(script):
            raise MeasurementError(f"fresh process {len(script) + 1} died:\nits last words")
        made = [process(change, n, test) for n, change in enumerate(script[:count], 1)]
        for n, launched in enumerate(self._kernels[:count]):
            made[n] = replace(made[n], launched=launched)
        return tuple(made)


def process(change: float, number: int = 0, test: str = TEST) -> Measurement:
    """A process of this number, whose cycles are so far from the baseline's, as a logarithm."""
    return measurement({"cycles": [1e6 * math.exp(change)]}, test=test, process=f"p{number}")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The default settings, in a folder of their own."""
    return default_settings(tmp_path)


def baseline_of(settings: Settings, *changes: float) -> None:
    """Makes a baseline of a process per change."""
    accept(settings.root, *(process(change, number) for number, change in enumerate(changes)))


def settled(
    settings: Settings,
    first: Measurement,
    *further: float,
    tolerance: Mapping[str, str] | None = None,
    limit: Mapping[str, object] | None = None,
) -> tuple[Result, list[int]]:
    """What came of a process and such further ones, and how many of these were asked for."""
    replicas = ScriptedReplicas({TEST: further})
    judging = Judging(settings, replicas)
    first = replace(first, tolerance=tolerance or {})
    judged = judging.settle((first,), judging.baseline(first), limit or {})
    assert {asked[:2] for asked in replicas.asked} <= {(TEST, "step")}
    return judged, [count for _, _, count in replicas.asked]


def cycles(judged: Result) -> tuple[str, str, int]:
    """Outcome and reason of the only metric, and by how many processes."""
    (seen,) = judged.verdicts
    return seen.outcome.value, seen.reason, seen.processes


# A test is looked at until it is settled

SLOW = 0.02
TWO_KINDS = [SLOW, 0.0, SLOW, 0.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("baseline", "first", "further", "asked", "expected"),
    [
        (QUIET, 0.0, [], [], ("unchanged", "within-tolerance", 1)),
        (QUIET, SLOW, [SLOW] * 2, [2], ("regressed", "beyond-floor", 3)),
        # Of three nobody knows which one is odd.
        (QUIET, SLOW, [0.0] * 4, [2, 4], ("unchanged", "within-tolerance", 5)),
        (QUIET, -SLOW, [-SLOW] * 2, [2], ("improved", "beyond-floor", 3)),
        # A night of two kinds of processes; after nine it is over, whatever it is.
        (QUIET, SLOW, TWO_KINDS, [2, 4, 8], ("inconclusive", "too-noisy", 9)),
        # Nobody waits for processes that no baseline needs.
        (WIDE, 0.0, [], [], ("unchanged", "within-tolerance", 1)),
        (WIDE, 0.004, [], [], ("unchanged", "within-tolerance", 1)),
        (WIDE, SLOW, [SLOW] * 2, [2], ("regressed", "beyond-floor", 3)),
        (WILD, SLOW, [], [], ("unchanged", "within-tolerance", 1)),
        (WILD, 10 * SLOW, [10 * SLOW] * 2, [2], ("regressed", "beyond-floor", 3)),
        (WILDEST, SLOW, [], [], ("reported", "too-noisy", 1)),
        (WILDEST, 0.7, [0.7] * 2, [2], ("regressed", "beyond-floor", 3)),
    ],
)
def test_it_is_looked_at_after_one_three_five_and_nine_processes(
    baseline: tuple[float, ...],
    first: float,
    further: list[float],
    asked: list[int],
    expected: tuple[str, str, int],
    settings: Settings,
) -> None:
    baseline_of(settings, *baseline)
    judged, counts = settled(settings, process(first), *further)
    assert counts == asked
    assert cycles(judged) == expected
    # The session's own process is the first of them.
    assert [m.process for m in judged.measurements] == [f"p{n}" for n in range(expected[2])]
    assert judged.notes == ()


@pytest.mark.parametrize(
    ("first", "further", "taken"),
    [
        (0.0, [], 0),
        (SLOW, [SLOW] * 2, 1),
        (SLOW, TWO_KINDS, 1),  # nine processes, and once all the same
        (0.004, [0.004] * 8, 0),  # in doubt, and by too little for a regression
    ],
)
def test_what_a_regression_needs_is_taken_once_while_its_processes_start(
    first: float, further: list[float], taken: int, settings: Settings
) -> None:
    baseline_of(settings, *(WIDE if not taken and further else QUIET))
    counted: list[int] = []
    judging = Judging(settings, ScriptedReplicas({TEST: further}))
    measured = process(first)
    judging.settle((measured,), judging.baseline(measured), {}, lambda: counted.append(1))
    assert len(counted) == taken


# Processes that chose other kernels

FAST, SLOW_ONE = "ampere_sgemm_128x64_nn", "ampere_sgemm_32x32_nn"


@pytest.mark.parametrize(
    ("further", "outcome", "said"),
    [
        ([{FAST: "a"}] * 8, "too-noisy", ""),
        (
            [{FAST: "a"}, {SLOW_ONE: "a"}, *[{FAST: "a"}] * 6],
            "other-algorithm",
            f"process 3 ran {SLOW_ONE} instead of {FAST}. cudnn.benchmark and ",
        ),
        (
            [{f"{FAST}(int)": "a"}] * 8,  # shown without its arguments
            "other-algorithm",
            f"process 2 ran {FAST} instead of another kernel of that name. ",
        ),
        (
            [{FAST: "b"}] * 8,
            "other-algorithm",
            f"process 2 launched {FAST} with another block size or another number of times. ",
        ),
        ([{"flash_fwd_kernel": "a"}] * 8, "too-noisy", ""),  # of another family
        ([{}] * 8, "too-noisy", ""),  # not known
    ],
)
def test_another_algorithm_for_the_same_work_is_the_reason_of_what_is_inconclusive(
    further: list[dict[str, str]], outcome: str, said: str, settings: Settings
) -> None:
    baseline_of(settings, *QUIET)
    replicas = ScriptedReplicas({TEST: TWO_KINDS}, further)
    judging, first = Judging(settings, replicas), replace(process(SLOW), launched={FAST: "a"})
    judged = judging.settle((first,), judging.baseline(first), {})
    assert cycles(judged)[1] == outcome
    assert [said in note for note in judged.notes] == [True] * bool(said)


def test_where_one_process_is_inconclusive_the_baselines_may_have_chosen_otherwise(
    settings: Settings,
) -> None:
    kernels = table(("ampere_sgemm_128x64_nn", 1.0), ("helper", 1.0))
    made = [replace(process(change, n), kernels=kernels) for n, change in enumerate(QUIET)]
    accept(settings.root, *made)
    for name, reason in (("32x32", "other-algorithm"), ("128x64", "too-few-processes")):
        one = kernels.launches[0]
        launched = kernel_families.launched([(f"ampere_sgemm_{name}_nn", one.grid, one.block)])
        alone = replace(settings, processes=1)
        judged, _ = settled(alone, replace(process(SLOW), launched=launched))
        assert cycles(judged)[:2] == ("inconclusive", reason)
        assert ["the baseline ran" in note for note in judged.notes] == [True] * (name == "32x32")


# What can go wrong


@pytest.mark.parametrize(
    ("further", "asked", "processes"),
    [([], [2], 1), ([SLOW], [2], 1), ([SLOW, 0.0], [2, 4], 3), ([SLOW, 0.0, SLOW], [2, 4], 3)],
)
def test_a_process_that_fails_ends_it_with_a_note_and_the_last_look_stands(
    further: list[float], asked: list[int], processes: int, settings: Settings
) -> None:
    baseline_of(settings, *QUIET)
    judged, counts = settled(settings, process(SLOW), *further)
    assert counts == asked
    assert cycles(judged)[0] == "inconclusive"
    assert cycles(judged)[2] == len(judged.measurements) == processes
    died = f"fresh process {len(further) + 1} died:\nits last words"
    assert judged.notes == (f"the test could not be repeated: {died}",)


HOT = Conditions(Reading(), Reading(throttle_reasons=("hardware slowdown",)))


def on_device(conditions: Conditions, change: float, number: int = 0) -> Measurement:
    """A process on a device in this state."""
    made = process(change, number)
    return replace(made, fingerprint=replace(made.fingerprint, conditions=conditions))


def test_on_an_unfit_device_nothing_is_judged_nor_looked_at_again(settings: Settings) -> None:
    baseline_of(settings, *QUIET)
    judged, counts = settled(settings, on_device(HOT, SLOW), SLOW, SLOW, limit={"cycles": 900_000})
    assert (cycles(judged), counts) == (("unfit", "device-unfit", 1), [])
    assert judged.verdicts[0].detail == "throttled at the end: hardware slowdown"
    assert judged.expectations == ()


# A ratio of two tests is looked at until it is settled


def several(count: int, change: float, test: str = TEST) -> Processes:
    """Processes that the session has already."""
    return tuple(process(change, number, test) for number in range(count))


@pytest.mark.parametrize(
    ("over", "asked", "outcome", "reason", "processes"),
    [
        # By hand, one process each: 1e-3 sqrt(2) t(0.25 %, 20), which is 0.45 %.
        (-0.01, [], "holds", "within", 1),
        # Beyond the bound, which takes three.
        (0.01, [2], "broken", "beyond", 3),
        # Of five 0.21 %, with t(0.25 %, 24).
        (-0.0025, [2, 4], "holds", "within", 5),
        (0.0, [2, 4, 8], "inconclusive", "unsure", 9),
    ],
)
def test_both_sides_are_measured_until_the_ratio_is_settled(
    over: float, asked: list[int], outcome: str, reason: str, processes: int, settings: Settings
) -> None:
    replicas = ScriptedReplicas({TEST: [over] * 8, OTHER: [0.0] * 8})
    sides = several(1, over), several(1, 0.0, OTHER)
    seen = Judging(settings, replicas).expect(COMPARISON, *sides)
    assert (seen.outcome.value, seen.reason, seen.processes) == (outcome, reason, processes)
    both = [(test, "step", count) for count in asked for test in (TEST, OTHER)]
    assert replicas.asked == both
    assert seen.subject == "tf32 / baseline"


def test_a_process_that_fails_leaves_the_ratio_as_it_was_and_says_why(settings: Settings) -> None:
    replicas = ScriptedReplicas({TEST: [0.0] * 8, OTHER: [0.0] * 2})
    sides = several(1, 0.0), several(1, 0.0, OTHER)
    seen = Judging(settings, replicas).expect(COMPARISON, *sides)
    assert (seen.outcome, seen.reason) == (Outcome.INCONCLUSIVE, "not-looked-again")
    assert (seen.processes, seen.detail) == (
        *(3, "the test could not be repeated: fresh process 3 died:\nits last words"),
    )


# What fails a test

STRICT: dict[str, object] = {}
LENIENT: dict[str, object] = {"inconclusive": "warn", "missing": "warn"}
RECORDING: dict[str, object] = {"missing": "record"}
COUNTERS: dict[str, object] = {**LENIENT, "require_counters": True}


@pytest.mark.parametrize(
    ("outcome", "reason", "failing"),
    [
        (Outcome.REGRESSED, "", [STRICT, LENIENT, RECORDING, COUNTERS]),
        (Outcome.BROKEN, "", [STRICT, LENIENT, RECORDING, COUNTERS]),
        (Outcome.INCONCLUSIVE, "", [STRICT, RECORDING]),
        (Outcome.NO_BASELINE, "no-file", [STRICT]),
        (Outcome.NO_BASELINE, "no-entry", [STRICT]),
        # Recording replaces nothing, so it would not help.
        (Outcome.NO_BASELINE, "other-workload", [STRICT, RECORDING]),
        (Outcome.NO_BASELINE, "no-metric", [STRICT, RECORDING]),
        (Outcome.UNSUPPORTED, "not-collected", [COUNTERS]),
        (Outcome.UNSUPPORTED, ABSENT, []),
        *(
            (outcome, "", [])
            for outcome in (
                *(Outcome.UNCHANGED, Outcome.IMPROVED, Outcome.REPORTED),
                *(Outcome.HOLDS, Outcome.UNFIT),
            )
        ),
    ],
)
def test_what_fails_a_test_under_which_settings(
    outcome: Outcome, reason: str, failing: list[dict[str, object]], settings: Settings
) -> None:
    for given in (STRICT, LENIENT, RECORDING, COUNTERS):
        seen = verdict(outcome=outcome, reason=reason)
        assert fails(seen, replace(settings, **given)) is (given in failing)  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", ["beyond-floor-unsure", "too-noisy"])
@pytest.mark.parametrize(
    ("metric", "low", "high", "failing"),
    [
        # Within a floor of 3.88 %. The first: ConvNeXt's chain on an unknown H200, 9 processes.
        ("step_time", -0.0819, -0.0104, []),
        ("step_time", -0.0819, 0.0387, []),
        ("step_time", -0.0819, 0.0388, [STRICT]),
        ("step_time", -0.0104, 0.0819, [STRICT]),
        ("l2_hit_rate", -0.0104, 0.0819, []),
        ("l2_hit_rate", -0.0819, 0.0104, [STRICT]),
    ],
)
def test_what_is_undecided_and_surely_no_loss_stops_nobody(
    metric: str,
    low: float,
    high: float,
    failing: list[dict[str, object]],
    reason: str,
    settings: Settings,
) -> None:
    seen = verdict(metric, Outcome.INCONCLUSIVE, reason=reason, tolerance=0.0388)
    seen = replace(seen, low=low, high=high)
    for given in (STRICT, LENIENT):
        assert fails(seen, replace(settings, **given)) is (given in failing)  # type: ignore[arg-type]


# The two sides of a ratio


A, B = "suites/meddpm/a.py::test_step", "suites/meddpm/b.py::test_step"


def side(
    configuration: str, test: str = A, *, name: str = "step", suite: str = "meddpm", of: int = 1
) -> Processes:
    """A measurement of this configuration, from so many processes."""
    title = f"{test}[{configuration}]" if name == "step" else test
    return tuple(
        measurement(
            {"cycles": [1e6]},
            test=title,
            name=name,
            suite=suite,
            configuration=configuration,
            process=f"p{number}",
        )
        for number in range(of)
    )


def kept(settings: Settings, *sides: Processes) -> Judging:
    """A session in which these were measured."""
    judging = Judging(settings, None)
    for one in sides:
        judging.keep(one)
    return judging


def test_its_sides_are_configurations_of_the_suite_with_all_their_processes(
    settings: Settings,
) -> None:
    under, over = side("baseline"), side("tf32", of=3)
    elsewhere = side("tf32", suite="convnext_ddpm", test="suites/convnext_ddpm/a.py::test_step")
    assert kept(settings, under, over, elsewhere).pair(COMPARISON) == (over, under)


def test_of_several_tests_with_both_it_has_to_be_said_which(settings: Settings) -> None:
    one, other = (side("tf32", A), side("baseline", A)), (side("tf32", B), side("baseline", B))
    with pytest.raises(UsageFailure) as refused:
        kept(settings, *one, *other).pair(COMPARISON)
    assert str(refused.value) == (
        f'{TEST}: "tf32" or "baseline" is ambiguous, as these tests measure it: {A}[tf32], '
        f"{B}[tf32], "
        f"{A}[baseline], {B}[baseline]. Measure both in one test, gpuperf.measure(step, "
        "name=...), and compare them there"
    )
    # Where only one test has both, it is that one's.
    assert kept(settings, *one, side("tf32", B)).pair(COMPARISON) == one
    # Of two tests that have one side each it is these.
    apart = (side("tf32", A), side("baseline", B))
    assert kept(settings, *apart).pair(COMPARISON) == apart


@pytest.mark.parametrize("missing", ["tf32", "baseline"])
def test_a_side_that_was_not_measured_here_is_named(missing: str, settings: Settings) -> None:
    there = {"tf32": "baseline", "baseline": "tf32"}[missing]
    with pytest.raises(NotMeasured) as skipped:
        kept(settings, side(there)).pair(COMPARISON)
    assert str(skipped.value) == (
        f'"{missing}" was not measured in this process. Its test was not selected, was skipped, '
        "failed, runs later, or runs in another worker of pytest-xdist (-n0 keeps "
        "all tests in one process)"
    )


@pytest.mark.parametrize(
    ("metric", "asked", "unsupported", "why"),
    [
        ("cycles", "core", {}, ""),
        ("dram_bytes", "core", {}, "collect it with --gpuperf-metrics reference"),
        ("dram_bytes", "core, dram_bytes", {}, "gpuperf does not count it on NVIDIA H200"),
        ("dram_bytes", "full", {}, "gpuperf does not count it on NVIDIA H200"),
        ("dram_bytes", "core", {"dram_bytes": "no permission"}, "no permission"),
        (
            "dram_bytes",
            "core",
            {"l2_hit_rate": "no"},
            "collect it with --gpuperf-metrics reference",
        ),
    ],
)
def test_what_lacks_a_metric_says_why_and_what_collects_it(
    metric: str, asked: str, unsupported: Mapping[str, str], why: str
) -> None:
    has = measurement({metric: [1.0]}, settings={"metrics": asked})
    lacks = measurement({"cycles": [1.0]}, unsupported=unsupported, settings={"metrics": asked})
    said = f"{metric} was not collected for tf32: {why}" if why else ""
    assert not_collected(metric, [("baseline", has), ("tf32", lacks)]) == said
    assert not_collected(metric, [("baseline", has)]) == ""


@pytest.mark.parametrize(
    ("counts", "most", "asked"),
    [
        ((3, 3), 5, [(TEST, 4), (OTHER, 4)]),
        ((9, 9), 9, []),
        # Only the side that has too few.
        ((3, 1), 5, [(OTHER, 2), (TEST, 4), (OTHER, 4)]),
        ((1, 9), 5, [(TEST, 2), (TEST, 4)]),
    ],
)
def test_processes_that_a_test_already_took_are_used_first(
    counts: tuple[int, int], most: int, asked: list[tuple[str, int]], settings: Settings
) -> None:
    replicas = ScriptedReplicas({TEST: [0.0] * 8, OTHER: [0.0] * 8})
    over, under = several(counts[0], 0.0), several(counts[1], 0.0, OTHER)
    judging = Judging(replace(settings, processes=most), replicas)
    seen = judging.expect(COMPARISON, over, under)
    assert [(test, count) for test, _, count in replicas.asked] == asked
    assert (seen.outcome, seen.processes) == (Outcome.INCONCLUSIVE, most)


def test_a_step_that_is_compiled_each_time_is_said_with_what_to_do() -> None:
    often = measurement({"cycles": [1.0]}, settings={"compiling": "8 of 9"})
    (said,) = notes_on((often,))
    assert said.startswith(
        f"{often.title}: torch.compile compiled again in 8 of 9 executions before"
    )
    assert not [*notes_on((measurement({"cycles": [1.0]}),))]
