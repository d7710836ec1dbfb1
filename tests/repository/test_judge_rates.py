"""How often the judge is right, on few metrics and trials of benchmarks/judge.py, at night.

The full table is docs/runs/judge-rates.json. Seeds are fixed, so a failure is a change of the rule.
By day tests/judge has single cases, and tests/repository/test_verdicts.py recorded ones.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from benchmarks import judge as benchmark
from benchmarks.judge import CYCLES, INSTRUCTIONS, SHAPES, Case, Noise
from pytest_gpuperf.model.metric import MetricClass
from tests.plugin.test_conditions import AT_NIGHT

pytestmark = AT_NIGHT

METRICS = benchmark.catalogue(deterministic=4, cycle=8, ratio=3)
TRIALS, LOSSES = 2500, 1200
BASELINE = 5


@pytest.mark.parametrize("shape", SHAPES)
def test_identical_code_is_called_slower_once_in_a_thousand_times_at_most(shape: str) -> None:
    """And needs one look and a half at most."""
    counts = benchmark.simulate(Case("quiet", Noise(shape), BASELINE), 1, range(TRIALS), METRICS)
    test = stats.binomtest(counts["alarms"], TRIALS, alternative="greater")
    assert test.proportion_ci(0.95, method="exact").low <= 1e-3
    assert counts["alarms"] <= stats.binom.ppf(0.95, TRIALS, 1e-3)
    assert counts["looks"] / TRIALS <= 1.5
    assert counts["inconclusive"] / TRIALS <= 0.01


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("metric", "loss"),
    [
        (CYCLES, 0.01),
        # Exact counts have nearly no noise of any shape.
        (INSTRUCTIONS, 0.0005),
        # Ten times as large: found where the smaller one is.
        (INSTRUCTIONS, 0.005),
    ],
)
def test_a_slowdown_is_found_99_times_in_100(metric: str, loss: float, shape: str) -> None:
    case = Case(f"{metric} {loss}", Noise(shape), BASELINE, metric, loss)
    counts = benchmark.simulate(case, 1, range(LOSSES), METRICS)
    assert benchmark.at_least(counts["found"], LOSSES) >= 0.99


# The simulation itself


@pytest.mark.parametrize("shape", ["N", "H"])
def test_the_noise_has_the_spread_and_the_correlation_that_are_asked_for(shape: str) -> None:
    noise = Noise(shape, deterministic=1e-5, cycle=1e-3, ratio=2e-3)
    machine = benchmark.Machine(noise, METRICS)
    values = machine.processes(np.random.default_rng(1), [0] * 20_000)
    medians = np.median(values, axis=2)
    for metric_class, sigma in ((MetricClass.DETERMINISTIC, 1e-5), (MetricClass.CYCLE, 1e-3)):
        names = [n for n, m in METRICS.items() if m.metric_class is metric_class]
        two = np.log(medians[:, [list(METRICS).index(name) for name in names[:2]]])
        # Medians of 5 rounds add a little to the spread between processes.
        assert two.std(axis=0) == pytest.approx(sigma, rel=0.1)
        assert np.corrcoef(two.T)[0, 1] == pytest.approx(0.68, abs=0.06)
    points = list(METRICS).index("ratio_1")
    assert METRICS["ratio_1"].percentage
    assert medians[:, points].std() == pytest.approx(0.2, rel=0.1)


def test_slow_processes_are_slow_in_all_cycles_and_in_nothing_else() -> None:
    machine = benchmark.Machine(Noise("O", 1e-9, 1e-9, 1e-9), METRICS)
    values = machine.processes(np.random.default_rng(1), [0] * 20_000).mean(axis=2)
    change = values / np.median(values, axis=0) - 1
    classes = [metric.metric_class for metric in METRICS.values()]
    for metric_class, rate, low, high in (
        (MetricClass.CYCLE, 0.02, 0.005, 0.03),
        (MetricClass.DETERMINISTIC, 0.005, 0.001, 0.01),
    ):
        of_class = change[:, [one is metric_class for one in classes]]
        slow = of_class[of_class[:, 0] > 1e-6]
        assert len(slow) / len(change) == pytest.approx(rate, rel=0.2)
        assert np.ptp(slow, axis=1) == pytest.approx(0, abs=1e-6)
        assert low - 1e-6 <= slow.min() <= slow.max() <= high + 1e-6
    ratios = change[:, [one is MetricClass.RATIO for one in classes]]
    assert abs(ratios).max() < 1e-6


def test_a_night_is_the_same_whenever_it_is_simulated() -> None:
    case = Case("quiet", Noise("O"), BASELINE)
    apart = benchmark.simulate(case, 1, range(10), METRICS)
    apart.update(benchmark.simulate(case, 1, range(10, 20), METRICS))
    assert apart == benchmark.simulate(case, 1, range(20), METRICS)
