"""How often `gpuperf ab` is right: simulated with the noise that processes on H200s were seen with.

    python -m benchmarks.pairs [--trials N]

A trial is the paper's four configurations, measured in pairs of processes (AB, BA, AB, ...) until
each is decided, at 1, 3, 5 and at most 9 pairs. A process is a configuration's centre in one
allocation of tests/data/h200-campaign, times what a process drawn at random differed from its
allocation's mean there: all its metrics together, so that they vary together as they did. On top of
that the GPU does

    still   nothing
    drift   get slower by 1 % from the first pair to the ninth, cycles and times alike
    steps   change its clocks once, at any process, by 2 % either way

and the other side has, in every process: nothing, 0.5 % more cycles and time, 0.05 % more
instructions, or 1 % less cycles and time. The last column has what the judge would have said of the
same processes had the one side been the other's baseline. Bounds are one-sided, 95 %, by Clopper
and Pearson. Exits with 1 where a rate misses its bar.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, median

import numpy as np

from benchmarks.judge import at_least, at_most
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.stopping import LOOKS, next_look
from pytest_gpuperf.judge.trials import allocation
from pytest_gpuperf.judge.verdict import Reference, judge, paired, samples_by_phase
from pytest_gpuperf.model.measurement import STEP, Measurement, Sample
from pytest_gpuperf.model.metric import MetricClass
from pytest_gpuperf.model.result import Outcome, Verdict
from pytest_gpuperf.storage import run_files

CAMPAIGN = Path(__file__).parents[1] / "tests" / "data" / "h200-campaign"
MACHINES = ("still", "drift", "steps")
DRIFT, STEP_BY = 0.01, 0.02
EFFECTS: Mapping[str, Mapping[MetricClass, float]] = {
    "identical": {},
    "cycles +0.5 %": {MetricClass.CYCLE: 0.005},
    "instructions +0.05 %": {MetricClass.DETERMINISTIC: 0.0005},
    "cycles -1 %": {MetricClass.CYCLE: -0.01},
}
MOST_ALARMS = 4e-3
"""Of a trial of four tests, each of which may alarm once in a thousand times."""
LEAST_RIGHT = 0.99

Process = dict[str, float]
"""Per metric the median of its rounds."""


@dataclass(frozen=True)
class Noise:
    """What is known of one configuration."""

    first: Measurement
    centres: Sequence[Process]
    """Of each allocation, as logarithms."""
    residuals: Sequence[Process]
    """Of each process against its allocation's mean, as logarithms, for how few there are."""


@cache
def noises() -> tuple[Noise, ...]:
    """Those of the campaign's configurations."""
    tests: defaultdict[str, list[Measurement]] = defaultdict(list)
    for file in sorted(CAMPAIGN.glob("*.json.xz")):
        for measurement in run_files.load(file).measurements:
            tests[measurement.test].append(measurement)
    return tuple(map(_noise, tests.values()))


def _noise(measurements: Sequence[Measurement]) -> Noise:
    by_allocation: defaultdict[tuple[str, str], list[Process]] = defaultdict(list)
    for one in measurements:
        values = {s.metric: math.log(median(s.values)) for s in one.samples if s.phase == STEP}
        by_allocation[allocation(one)].append(values)
    centres, residuals = [], []
    for processes in by_allocation.values():
        if len(processes) < 2:
            continue
        middle = {name: fmean(p[name] for p in processes) for name in processes[0]}
        wider = math.sqrt(len(processes) / (len(processes) - 1))
        centres.append(middle)
        residuals += [
            {name: wider * (p[name] - middle[name]) for name in middle} for p in processes
        ]
    return Noise(measurements[0], centres, residuals)


def pairs_of(
    noise: Noise, effect: str, machine: str, random: np.random.Generator
) -> list[tuple[Measurement, Measurement]]:
    """As many pairs as are ever looked at."""
    metrics = catalogue().metrics
    count = LOOKS[-1]
    middle = noise.centres[int(random.integers(len(noise.centres)))]
    step_at = random.integers(1, 2 * count)
    step_by = random.choice([-1, 1]) * math.log1p(STEP_BY)

    def process(place: int, side: str) -> Measurement:
        residual = noise.residuals[int(random.integers(len(noise.residuals)))]
        moved = 0.0
        if machine == "drift":
            moved = math.log1p(DRIFT) * place / (2 * count - 1)
        elif machine == "steps" and place >= step_at:
            moved = step_by
        samples = []
        for name, value in middle.items():
            of = metrics[name].metric_class
            changed = math.log1p(EFFECTS[effect].get(of, 0.0)) if side == "b" else 0.0
            drifted = moved if of is MetricClass.CYCLE else 0.0
            samples.append(
                Sample(STEP, name, (math.exp(value + residual[name] + changed + drifted),))
            )
        return replace(noise.first, process=f"{side}{place}", samples=tuple(samples))

    pairs = []
    for number in range(count):
        a, b = (2 * number, 2 * number + 1) if number % 2 == 0 else (2 * number + 1, 2 * number)
        pairs.append((process(a, "a"), process(b, "b")))
    return pairs


def decided(
    pairs: Sequence[tuple[Measurement, Measurement]], *, in_pairs: bool
) -> tuple[tuple[Verdict, ...], int]:
    """The verdicts of the last look, and how many pairs it took."""
    metrics, count = catalogue().metrics, LOOKS[0]
    while True:
        new, reference = paired(pairs[:count])
        if not in_pairs:
            samples = samples_by_phase([before for before, _ in pairs[:count]])
            one = new[0].fingerprint.device.identity
            reference = Reference(samples, gpus=(one,) * count)
        verdicts = judge(new, reference, metrics, {})
        further = next_look(verdicts, count)
        if further is None:
            return verdicts, count
        count = further


def trial(effect: str, machine: str, random: np.random.Generator) -> Counter[str]:
    """What one trial counts for."""
    counts: Counter[str] = Counter(trials=1)
    ended: Counter[str] = Counter()
    for noise in noises():
        pairs = pairs_of(noise, effect, machine, random)
        verdicts, took = decided(pairs, in_pairs=True)
        by_metric = {v.metric: v.outcome for v in verdicts}
        outcomes = {*by_metric.values()}
        ended["regressed"] += Outcome.REGRESSED in outcomes
        ended["undecided"] += Outcome.INCONCLUSIVE in outcomes and Outcome.REGRESSED not in outcomes
        ended["improved"] += Outcome.IMPROVED in outcomes and Outcome.REGRESSED not in outcomes
        ended["wrong"] += {"identical": 1, "cycles -1 %": 1}.get(effect, 0) * (
            Outcome.REGRESSED in outcomes
        ) + (effect == "identical" and Outcome.IMPROVED in outcomes)
        counts["processes"] += took
        against = {v.outcome for v in decided(pairs, in_pairs=False)[0]}
        ended["baseline regressed"] += Outcome.REGRESSED in against
    every = len(noises())
    for what in ("regressed", "undecided", "wrong", "baseline regressed"):
        counts[f"any {what}"] += bool(ended[what])
    for what in ("regressed", "improved"):
        counts[f"all {what}"] += ended[what] == every
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the rates, and returns 1 where one of them misses its bar."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=1000)
    count = parser.parse_args(arguments).trials
    missed = False
    print(f"{count} trials each; a trial is the paper's four configurations")
    print("effect                GPU    all right   bound  undecided  pairs  against a baseline")
    for effect in EFFECTS:
        for machine in MACHINES:
            counts: Counter[str] = Counter()
            for number in range(count):
                counts += trial(effect, machine, np.random.default_rng([20260301, number]))
            if effect == "identical":
                right = count - counts["any wrong"]
                bound = 1 - at_most(counts["any wrong"], count)
                missed |= counts["any wrong"] / count > MOST_ALARMS
            else:
                kind = "all improved" if effect == "cycles -1 %" else "all regressed"
                right, bound = counts[kind], at_least(counts[kind], count)
                missed |= machine == "still" and right / count < LEAST_RIGHT
            pairs = counts["processes"] / count / len(noises())
            print(
                f"{effect:21} {machine:6} {right / count:9.4f}  {bound:6.4f}  "
                f"{counts['any undecided'] / count:9.4f}  {pairs:5.2f}  "
                f"{counts['any baseline regressed'] / count:.4f} any regressed"
            )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
