"""How often the judge is right: simulated trials, judged by the code that judges real runs.

    python benchmarks/judge.py [--trials N] [--json FILE]

A trial is one test with 40 gated metrics whose noise is correlated, a baseline of K processes over
three allocations of one GPU, 5 rounds in each, and looks at 1, 3, 5 and 9 fresh processes until the
test is settled; these count rounds until they agree, as a session does.
The noise is assumed, in three shapes:

    N  normal
    H  heavy tails: Student's t with 3 degrees of freedom, scaled to the same standard deviation
    O  N, and 2 % of processes slow as a whole (+0.5 % to +3 % in all cycle-like metrics), and 0.5 %
       with other instruction counts (+0.1 % to +1 %), in the baseline and among the new alike

A loss is in one metric alone, and found when that metric is called regressed or outweighed;
"detectable" is a loss of the size that the verdict prints. Rules of others see the same: one new
process of 5 rounds, and the 20 cycle-like metrics. Creep is 0.1 % of cycles per acceptance, judged
against the first one. Bounds are one-sided, 95 %, by Clopper and Pearson: of false alarms the upper
one, of what is found the lower one. Exits with 1 when a rate of the judge misses its bar.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import stats

from pytest_gpuperf.judge.drift import Recorded, drifts
from pytest_gpuperf.judge.stopping import LEAST_ROUNDS, LOOKS, enough_rounds, next_look
from pytest_gpuperf.judge.verdict import Reference, judge
from pytest_gpuperf.model.measurement import STEP, Device, Fingerprint, Measurement, Sample
from pytest_gpuperf.model.metric import Direction, Metric, MetricClass
from pytest_gpuperf.model.result import Outcome, Verdict

Values = npt.NDArray[np.float64]
"""Per process, metric and round."""
Record = dict[str, str | int | float | None]
"""One line of the results."""

SHAPES = ("N", "H", "O")
ROUNDS = 5
ALLOCATIONS = 3
BASELINE = 5
"""K of most cases, and of the bar: what `gpuperf record` makes."""
TRIALS = 4000
SEED = 20260301
WORKERS = 2

SHARED = 0.7
"""The correlation of two metrics of one class over processes."""
ROUND_SHARE = 0.5
"""The noise between rounds, as a share of that between processes."""
TAIL_DEGREES = 3
SLOW, SLOW_BY = 0.02, (0.005, 0.03)
"""How many processes are slow as a whole, and by how much."""
OTHER_COUNTS, OTHER_BY = 0.005, (0.001, 0.01)
"""How many processes execute other instructions, and by how much."""

CREEP = 0.001
"""The loss per acceptance that adds up to creep."""
ACCEPTANCES = 10
"""By so many acceptances creep has to be refused."""

MOST_ALARMS = 1e-3
LEAST_FOUND = 0.99
MOST_LOOKS = 1.5

GPU = "gpu"
_DEVICE = Device("sm90", "NVIDIA H200", "nvidia-h200", GPU)
_FINGERPRINT = Fingerprint(device=_DEVICE, software={}, settings={})


@dataclass(frozen=True)
class Noise:
    """How identical code varies: one standard deviation between processes, relative, per class."""

    shape: str
    """One of SHAPES."""
    deterministic: float = 5e-6
    cycle: float = 7e-4
    ratio: float = 1e-3
    """In percentages this is a share of 100 points."""
    day: float = 0.0
    """Between allocations, in all cycle-like metrics alike."""


@dataclass(frozen=True)
class Case:
    """What is simulated."""

    scenario: str
    noise: Noise
    baseline: int
    """K: the processes of the baseline."""
    loses: str = ""
    """The metric that gets worse in the new processes; empty: identical code."""
    loss: float | None = 0.0
    """By how much, relative; None: by what the judge prints as detectable."""


def catalogue(deterministic: int = 14, cycle: int = 20, ratio: int = 6) -> dict[str, Metric]:
    """So many gated metrics of each class; two ratios in three are percentages."""
    metrics = []
    for metric_class, count in (
        (MetricClass.DETERMINISTIC, deterministic),
        (MetricClass.CYCLE, cycle),
        (MetricClass.RATIO, ratio),
    ):
        for number in range(count):
            share = metric_class is MetricClass.RATIO
            percentage = share and number % 3 != 0
            direction = Direction.HIGHER if share and number % 2 == 0 else Direction.LOWER
            name = f"{metric_class.value}_{number}"
            unit = "%" if percentage else ""
            metrics.append(Metric(name, unit, direction, metric_class, True, True, percentage, ""))
    return {metric.name: metric for metric in metrics}


METRICS = catalogue()
CYCLES, INSTRUCTIONS = "cycle_0", "deterministic_0"
"""The metrics that lose."""


class Machine:
    """Draws processes of identical code."""

    def __init__(self, noise: Noise, metrics: Mapping[str, Metric]) -> None:
        self._noise = noise
        self._names = list(metrics)
        classes = [metric.metric_class for metric in metrics.values()]
        self._class = np.array([list(MetricClass).index(c) for c in classes])
        self._is = {c: np.array([one is c for one in classes]) for c in MetricClass}
        self._sigma = np.array([float(getattr(noise, c.value)) for c in classes])
        self._points = np.array([metric.percentage for metric in metrics.values()])
        self._centre = np.where(self._points, 60.0, 4e8)

    def processes(
        self, random: np.random.Generator, days: Sequence[int], loss: tuple[str, float] = ("", 0.0)
    ) -> Values:
        """One process per entry of `days`, which numbers the allocation that it runs on.

        `loss` is a metric's name and by how much it is more.
        """
        count, metrics = len(days), len(self._names)
        shared = self._draw(random, (count, len(MetricClass)))[:, self._class]
        own = self._draw(random, (count, metrics))
        rounds = self._draw(random, (count, metrics, ROUNDS))
        middle = self._sigma * (math.sqrt(SHARED) * shared + math.sqrt(1 - SHARED) * own)
        if self._noise.day:
            of_days = random.normal(0, self._noise.day, max(days) + 1)[list(days)]
            middle += np.outer(of_days, self._is[MetricClass.CYCLE])
        if self._noise.shape == "O":
            for rate, by, hit in (
                (SLOW, SLOW_BY, MetricClass.CYCLE),
                (OTHER_COUNTS, OTHER_BY, MetricClass.DETERMINISTIC),
            ):
                extra = np.log1p(random.uniform(*by, count)) * (random.random(count) < rate)
                middle += np.outer(extra, self._is[hit])
        name, size = loss
        if name:
            middle[:, self._names.index(name)] += math.log1p(size)
        away = middle[:, :, None] + ROUND_SHARE * self._sigma[:, None] * rounds
        points, centre = self._points[:, None], self._centre[:, None]
        return np.where(points, centre + 100 * away, centre * np.exp(away))

    def _draw(self, random: np.random.Generator, size: tuple[int, ...]) -> Values:
        """Noise of standard deviation 1."""
        if self._noise.shape == "H":
            return random.standard_t(TAIL_DEGREES, size) / math.sqrt(
                TAIL_DEGREES / (TAIL_DEGREES - 2)
            )
        return random.standard_normal(size)


@dataclass(frozen=True)
class Trial:
    """How one trial ended, and what the rules of others see of it."""

    verdicts: tuple[Verdict, ...]
    """Of the last look."""
    looks: int
    processes: int
    old: Values
    new: Values
    """The first of the new processes alone."""


def trial(
    case: Case, machine: Machine, random: np.random.Generator, metrics: Mapping[str, Metric]
) -> Trial:
    """Records a baseline and judges fresh processes against it until the test is settled."""
    days = [process % ALLOCATIONS for process in range(case.baseline)]
    old = machine.processes(random, days)
    samples = {name: old[:, i].tolist() for i, name in enumerate(metrics)}
    reference = Reference(
        {STEP: samples}, gpus=(GPU,) * case.baseline, days=tuple(f"day-{day}" for day in days)
    )

    def judged(new: Values, count: int) -> tuple[Verdict, ...]:
        queue = [_measurement(f"p{p}", new[p], metrics) for p in range(count)]
        return judge(queue, reference, metrics, {})

    fresh = [0] * LOOKS[-1]
    size = case.loss
    if size is None:
        # What is detectable depends on the baseline alone, so any process will do to ask for it.
        asked = judged(machine.processes(random, [0]), 1)
        (size,) = (v.minimum_detectable_effect for v in asked if v.metric == case.loses)
        assert size is not None, case
    new = machine.processes(random, fresh, (case.loses, size))
    count, looks = LOOKS[0], 1
    verdicts = judged(new, count)
    while (further := next_look(verdicts, count)) is not None:
        count, looks = further, looks + 1
        verdicts = judged(new, count)
    return Trial(verdicts, looks, count, old, new[0])


def _measurement(process: str, values: Values, metrics: Mapping[str, Metric]) -> Measurement:
    """A process that counts no more rounds than are enough."""
    rounds = dict(zip(metrics, values.tolist(), strict=True))
    counted = next(
        count
        for count in range(LEAST_ROUNDS, ROUNDS + 1)
        if count == ROUNDS
        or enough_rounds({name: every[:count] for name, every in rounds.items()}, metrics, {})
    )
    samples = [Sample(STEP, name, tuple(every[:counted])) for name, every in rounds.items()]
    return Measurement("test", STEP, "simulated", process, "", {}, tuple(samples), (), _FINGERPRINT)


# The rules of others: per metric, whether one new process is called slower than the baseline.


def fastest_round(old: Values, new: Values) -> npt.NDArray[np.bool_]:
    """pytest-benchmark's `--benchmark-compare-fail=min:1%`, against one saved process."""
    return np.asarray(new.min(axis=-1) > 1.01 * old[0].min(axis=-1))


def mann_whitney(old: Values, new: Values) -> npt.NDArray[np.bool_]:
    """google/benchmark's U test at 0.05 on rounds, those of all processes pooled."""
    pooled = _pooled(old)
    test = stats.mannwhitneyu(new, pooled, axis=-1)
    worse = np.median(new, axis=-1) > np.median(pooled, axis=-1)
    return np.asarray((test.pvalue < 0.05) & worse)


def welch(old: Values, new: Values) -> npt.NDArray[np.bool_]:
    """Welch's t test at 0.05 on rounds, those of all processes pooled."""
    test = stats.ttest_ind(new, _pooled(old), axis=-1, equal_var=False)
    return np.asarray((test.pvalue < 0.05) & (test.statistic > 0))


def _pooled(old: Values) -> Values:
    """All rounds of each metric."""
    return np.swapaxes(old, 0, 1).reshape(old.shape[1], -1)


OTHERS: Mapping[str, Callable[[Values, Values], npt.NDArray[np.bool_]]] = {
    "pytest-benchmark min:1%": fastest_round,
    "Mann-Whitney, pooled rounds": mann_whitney,
    "Welch t, pooled rounds": welch,
}
OURS = "gpuperf"
IDENTICAL = "identical"
ONE_PERCENT = "cycles +1%"
COMPARED = (IDENTICAL, ONE_PERCENT)
"""Where the rules of others are tried, at K = 5."""


def simulate(
    case: Case, seed: int, numbers: Iterable[int], metrics: Mapping[str, Metric] = METRICS
) -> Counter[str]:
    """Counts over the trials of these numbers; each number is a trial of its own, always the same.

    `alarms`, `inconclusive` and `improved` are trials that ended so, `looks` and `processes` sums,
    `found` the trials that called the losing metric regressed or outweighed, `alarms <class>` those
    with an alarm in that class. The rules of others have `alarms` and `found` under their names.
    """
    counts: Counter[str] = Counter()
    names = list(metrics)
    cycles = [i for i, m in enumerate(metrics.values()) if m.metric_class is MetricClass.CYCLE]
    key = zlib.crc32(repr((case.scenario, asdict(case.noise), case.baseline)).encode())
    machine = Machine(case.noise, metrics)
    for number in numbers:
        ended = trial(case, machine, np.random.default_rng([seed, key, number]), metrics)
        regressed = {v.metric for v in ended.verdicts if v.outcome is Outcome.REGRESSED}
        outcomes = {v.outcome for v in ended.verdicts}
        said = regressed | {v.metric for v in ended.verdicts if v.outcome is Outcome.OUTWEIGHED}
        counts["trials"] += 1
        counts["looks"] += ended.looks
        counts["processes"] += ended.processes
        counts["alarms"] += bool(regressed)
        counts["inconclusive"] += Outcome.INCONCLUSIVE in outcomes and not regressed
        counts["improved"] += Outcome.IMPROVED in outcomes
        counts["found"] += case.loses in said
        for metric_class in {metrics[name].metric_class.value for name in regressed}:
            counts[f"alarms {metric_class}"] += 1
        if case.baseline == BASELINE and case.scenario in COMPARED:
            for rule, slower in OTHERS.items():
                called = slower(ended.old[:, cycles], ended.new[cycles])
                counts[f"{rule}: alarms"] += bool(called.any())
                if case.loses:
                    counts[f"{rule}: found"] += bool(called[cycles.index(names.index(CYCLES))])
    return counts


def refused_after(
    noise: Noise, creep: float, random: np.random.Generator, metrics: Mapping[str, Metric]
) -> int:
    """The acceptance at which the origin refuses; 0: none of ACCEPTANCES.

    Every acceptance brings 5 processes, whose CYCLES are slower by `creep` than the last one's.
    """
    machine = Machine(noise, metrics)
    days = [process % ALLOCATIONS for process in range(BASELINE)]

    def recorded(acceptance: int) -> Recorded:
        loss = math.expm1(acceptance * math.log1p(creep))
        values = machine.processes(random, days, (CYCLES, loss))
        samples = {name: values[:, i].tolist() for i, name in enumerate(metrics)}
        return Recorded(samples, (GPU,) * BASELINE, tuple(f"{acceptance}-{day}" for day in days))

    origin = recorded(0)
    for acceptance in range(1, ACCEPTANCES + 1):
        if any(d.drifted for d in drifts(recorded(acceptance), origin, metrics, {})):
            return acceptance
    return 0


def chains(noise: Noise, creep: float, seed: int, numbers: Iterable[int]) -> Counter[str]:
    """How many chains of acceptances were refused, by the acceptance: `refused 6`."""
    key = zlib.crc32(repr(("creep", asdict(noise), creep)).encode())
    return Counter(
        f"refused {refused_after(noise, creep, np.random.default_rng([seed, key, n]), METRICS)}"
        for n in numbers
    )


def at_most(count: int, of: int) -> float:
    """The upper 95 % bound of a rate, one-sided, by Clopper and Pearson."""
    test = stats.binomtest(count, of, alternative="less")
    return float(test.proportion_ci(0.95, method="exact").high)


def at_least(count: int, of: int) -> float:
    """The lower 95 % bound of a rate, one-sided, by Clopper and Pearson."""
    test = stats.binomtest(count, of, alternative="greater")
    return float(test.proportion_ci(0.95, method="exact").low)


def cases(sigmas: Mapping[str, float]) -> list[tuple[Case, float]]:
    """What is simulated, each with its share of the trials."""
    chosen: list[tuple[Case, float]] = []
    for noise in (Noise(shape, **sigmas) for shape in SHAPES):
        chosen += [
            (Case(IDENTICAL, noise, k), 1 if k == BASELINE else 0.5) for k in (3, BASELINE, 10)
        ]
        chosen += [
            (Case(ONE_PERCENT, noise, BASELINE, CYCLES, 0.01), 0.25),
            (Case("cycles +detectable", noise, BASELINE, CYCLES, None), 0.25),
            (Case("instructions +0.5%", noise, BASELINE, INSTRUCTIONS, 0.005), 0.25),
            (Case("instructions +0.05%", noise, BASELINE, INSTRUCTIONS, 0.0005), 0.25),
            (Case("instructions +detectable", noise, BASELINE, INSTRUCTIONS, None), 0.25),
        ]
    return chosen


def records_of(case: Case, counts: Counter[str]) -> list[Record]:
    """The results of a case: of the judge, then of the rules of others."""
    trials = counts["trials"]
    wanted = "found" if case.loses else "alarms"
    bound = at_least if case.loses else at_most

    def record(rule: str, prefix: str) -> Record:
        return {
            "scenario": case.scenario,
            **asdict(case.noise),
            "baseline": case.baseline,
            "rule": rule,
            "nights": trials,
            wanted: counts[f"{prefix}{wanted}"],
            "rate": counts[f"{prefix}{wanted}"] / trials,
            "bound": bound(counts[f"{prefix}{wanted}"], trials),
        }

    ours = record(OURS, "")
    ours |= {
        "inconclusive": counts["inconclusive"] / trials,
        "improved": counts["improved"] / trials,
        "mean_looks": counts["looks"] / trials,
        "mean_processes": counts["processes"] / trials,
    }
    compared = [rule for rule in OTHERS if f"{rule}: alarms" in counts]
    return [ours, *(record(rule, f"{rule}: ") for rule in compared)]


def creep_record(noise: Noise, creep: float, counts: Counter[str]) -> Record:
    """When the chains of acceptances were refused."""
    total = sum(counts.values())
    after = [n for n in range(1, ACCEPTANCES + 1) for _ in range(counts[f"refused {n}"])]
    wanted = "found" if creep else "alarms"
    bound = at_least if creep else at_most
    return {
        "scenario": "creep +0.1%" if creep else f"creep, {IDENTICAL}",
        **asdict(noise),
        "baseline": BASELINE,
        "rule": OURS,
        "nights": total,
        wanted: len(after),
        "rate": len(after) / total,
        "bound": bound(len(after), total),
        "first_refusal": after[0] if after else None,
        "median_refusal": after[len(after) // 2] if after else None,
        "last_refusal": after[-1] if after else None,
    }


def misses(record: Record) -> bool:
    """Whether the judge's rate at K = 5 is short of the bar; how sure that is, the bound says."""
    if record["rule"] != OURS or record["baseline"] != BASELINE:
        return False
    rate, looks = record["rate"], record.get("mean_looks")
    assert isinstance(rate, float)
    if record["scenario"] == IDENTICAL:
        return rate > MOST_ALARMS or (isinstance(looks, float) and looks > MOST_LOOKS)
    if record["scenario"] == f"creep, {IDENTICAL}":
        return rate > MOST_ALARMS * ACCEPTANCES
    return rate < LEAST_FOUND


Task = tuple[int, Case, int, range]
"""The number of a job, and what it simulates."""


def _work(task: Task) -> tuple[int, Counter[str]]:
    job, case, seed, numbers = task
    if case.scenario == "creep":
        return job, chains(case.noise, case.loss or 0.0, seed, numbers)
    return job, simulate(case, seed, numbers)


def _results(tasks: Sequence[Task], workers: int) -> Iterator[tuple[int, Counter[str]]]:
    """The results of the tasks, in any order: the trials are the same whoever simulates them."""
    if workers == 1:
        yield from map(_work, tasks)
        return
    # Spawned: a fork of a process whose libraries have started threads may hang.
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(_work, tasks, chunksize=4)


def run(trials: int, seed: int, sigmas: Mapping[str, float], workers: int) -> list[Record]:
    """Simulates all cases; `trials` is the size of the largest."""
    jobs = [(case, max(round(share * trials), 1)) for case, share in cases(sigmas)]
    creeping = [
        (Case("creep", Noise(shape, **sigmas), BASELINE, CYCLES, loss), max(trials // 10, 1))
        for loss in (CREEP, 0.0)
        for shape in SHAPES
    ]
    tasks: list[Task] = []
    for job, (case, count) in enumerate([*jobs, *creeping]):
        tasks += [
            (job, case, seed, range(first, min(first + 50, count))) for first in range(0, count, 50)
        ]
    counted: list[Counter[str]] = [Counter() for _ in [*jobs, *creeping]]
    for job, counts in _results(tasks, workers):
        counted[job].update(counts)
    records: list[Record] = []
    for (case, _), counts in zip([*jobs, *creeping], counted, strict=True):
        if case.scenario == "creep":
            records.append(creep_record(case.noise, case.loss or 0.0, counts))
        else:
            records += records_of(case, counts)
    return records


HEADINGS = (
    *("scenario", "noise", "K", "rule", "trials", "rate", "bound"),
    *("inconcl.", "looks", "k", "acceptances"),
)


def row(record: Record) -> tuple[str, ...]:
    """One line of the table."""

    def share(key: str, digits: int) -> str:
        value = record.get(key)
        return f"{100 * value:.{digits}f}%" if isinstance(value, float) else ""

    def number(key: str) -> str:
        value = record.get(key)
        return f"{value:.2f}" if isinstance(value, float) else ""

    sign = "<" if "alarms" in record else ">"
    first, last = record.get("first_refusal"), record.get("last_refusal")
    return (
        str(record["scenario"]),
        str(record["shape"]),
        str(record["baseline"]),
        str(record["rule"]),
        str(record["nights"]),
        share("rate", 3),
        f"{sign} {share('bound', 3)}",
        share("inconclusive", 2),
        number("mean_looks"),
        number("mean_processes"),
        f"{first} to {last}, median {record['median_refusal']}" if first else "",
    )


def main(arguments: list[str] | None = None) -> int:
    """Prints the table; 1 when the judge misses its bar."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--trials", type=int, default=TRIALS, metavar="N", help="per noise; default: %(default)s"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=WORKERS, help="default: %(default)s")
    for name, default in asdict(Noise("N")).items():
        if name != "shape":
            parser.add_argument(
                f"--{name}", type=float, default=default, metavar="SD", help="default: %(default)s"
            )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures")
    options = parser.parse_args(arguments)
    sigmas = {n: float(getattr(options, n)) for n in asdict(Noise("N")) if n != "shape"}
    records = run(options.trials, options.seed, sigmas, options.workers)
    rows = [row(record) for record in records]
    widths = [max(len(r[i]) for r in [HEADINGS, *rows]) for i in range(len(HEADINGS))]
    for line in [HEADINGS, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print("  ".join(cells).rstrip())
    missed = [record for record in records if misses(record)]
    for record in missed:
        print("misses the bar:", *row(record)[:7], file=sys.stderr)
    if options.json:
        lines = ",\n".join(f"  {json.dumps(record)}" for record in records)
        options.json.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
