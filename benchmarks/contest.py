"""A contest of verdicts: our rule and those of others on the same labelled nights.

    python -m benchmarks.contest [--series N] [--json FILE]

A series is a test with a baseline of five processes and eleven nights of up to nine: eight nights
of identical code, and three on which every time of the step is longer by some share. Recorded
nights draw processes that were measured on H100s and H200s (tests/data), on a GPU that the baseline
has or on one that it has not met. Simulated nights have noise of shapes that people report. Each
rule sees `step_time`, as its own tool would: a process of all rounds, and the nights before. Ours
sees what a session sees, and takes as many processes as it asks for. The code of the others' rules
is our own, after what their owners say of them.

Scored are alarms on nights of identical code, nights left undecided, and the smallest slowdown that
99 of 100 series have found within three nights.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, median, stdev, variance

import numpy as np
from scipy import special, stats

from benchmarks import recorded
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.stopping import LEAST_TO_ALARM, LOOKS, next_look
from pytest_gpuperf.judge.verdict import Reference, judge
from pytest_gpuperf.model.measurement import STEP, Device, Fingerprint, Measurement, Sample
from pytest_gpuperf.model.result import Outcome
from pytest_gpuperf.storage import baseline_files

SEED = 20261127
SERIES = 200
TESTS = 60
"""How many measurements share the error of a night in ours."""
SIZES = (0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
QUIET, SLOW = 8, 3
"""Nights of each series."""
LEAST_FOUND = 0.99
ROUNDS = 5
BASELINE = 5
TIMES = ("cycles", "kernel_time", "step_time")
_COUNTS = {"instructions": 6e10, "launches": 1548.0, "copies": 22.0, "peak_memory": 1.9e10}

Night = list[Measurement]
Values = list[list[float]]
"""Per process the rounds of `step_time`."""


# Nights


@dataclass(frozen=True)
class Noise:
    """How processes of identical code differ, each one standard deviation of the logarithm."""

    process: float
    tonight: float | None = None
    """On nights after the baseline, where they are noisier."""
    day: float = 0.0
    """Between nights; the baseline is of one."""
    correlation: float = 0.0
    """Of one night's day with the next one's."""
    degrees: float = math.inf
    """Of Student's t: 3 has heavy tails."""
    odd: float = 0.0
    """The share of processes that are 2 % slower."""
    tick: float = 0.0
    """The clock's resolution, a share of the step."""


SIMULATED: Mapping[str, Noise] = {
    "0.05 %": Noise(0.0005),
    "0.1 %": Noise(0.001),
    "0.2 %": Noise(0.002),
    "0.35 %": Noise(0.0035),
    "1 %": Noise(0.01),
    "5 %": Noise(0.05),
    "0.1 %, heavy tails": Noise(0.001, degrees=3),
    "0.1 %, 1 process in 20 slow": Noise(0.001, odd=0.05),
    "0.1 %, clock of 0.3 %": Noise(0.001, tick=0.003),
    "0.1 %, days 0.1 %": Noise(0.001, day=0.001),
    "0.1 %, days 0.1 %, AR 0.7": Noise(0.001, day=0.001, correlation=0.7),
    "0.05 %, nights of 0.3 %": Noise(0.0005, tonight=0.003),
}


@dataclass(frozen=True)
class Series:
    """A test's baseline, and its nights of identical code."""

    baseline: Night
    nights: list[Night]


Source = Callable[[np.random.Generator], Series]


def simulated(noise: Noise) -> Source:
    """A source of series with this noise; the times of a step go together by 0.7."""

    def series(random: np.random.Generator) -> Series:
        nights = [
            _processes(random, noise, count, spread, of_day, f"2026-01-{number + 1:02}")
            for number, (count, spread, of_day) in enumerate(_nights(random, noise))
        ]
        return Series(nights[0], nights[1:])

    return series


def _nights(random: np.random.Generator, noise: Noise) -> Iterator[tuple[int, float, float]]:
    """The processes, their spread and the day's part of the baseline and of each night."""
    day = random.normal(0, noise.day)
    yield BASELINE, noise.process, day
    for _ in range(QUIET + SLOW):
        rest = math.sqrt(1 - noise.correlation**2)
        day = noise.correlation * day + rest * random.normal(0, noise.day)
        yield LOOKS[-1], noise.tonight or noise.process, day


def _processes(
    random: np.random.Generator, noise: Noise, count: int, spread: float, day: float, date: str
) -> Night:
    def draw(*size: int) -> np.ndarray:
        if math.isinf(noise.degrees):
            return random.standard_normal(size)
        scale = math.sqrt(noise.degrees / (noise.degrees - 2))
        return random.standard_t(noise.degrees, size) / scale

    shared, own = draw(count, 1, 1), draw(count, len(TIMES), 1)
    away = day + spread * (math.sqrt(0.7) * shared + math.sqrt(0.3) * own)
    away = away + 0.02 * (random.random((count, 1, 1)) < noise.odd)
    times = np.exp(away + 0.3 * spread * draw(count, len(TIMES), ROUNDS))
    if noise.tick:
        times = noise.tick * np.round(times / noise.tick)
    gpu = Device("sm90", "NVIDIA H200", "nvidia-h200", "gpu")
    fingerprint = Fingerprint(device=gpu, software={}, settings={}, measured=date)
    counts = tuple(Sample(STEP, name, (value,) * 2) for name, value in _COUNTS.items())
    night = []
    for number, of_one in enumerate(times.tolist()):
        rounds = zip(TIMES, of_one, strict=True)
        samples = (*(Sample(STEP, name, tuple(values)) for name, values in rounds), *counts)
        process = f"{date} {number}"
        night.append(
            Measurement("test", STEP, "simulated", process, "", {}, samples, (), fingerprint)
        )
    return night


DATA = Path("tests/data")
CAMPAIGNS = ("h200-campaign", "h200-kinds", "h100-aa", "h100-workers", "h100-unmet")
LEAST_ON_ONE, LEAST_ELSEWHERE = 8, 5


@cache
def _groups(device: str) -> dict[str, dict[str, Night]]:
    """What was recorded of identical code, by test and GPU; steps whose GPU does not wait."""
    groups: dict[str, dict[str, Night]] = defaultdict(lambda: defaultdict(list))
    for campaign in CAMPAIGNS:
        folder = DATA / campaign if device in campaign else DATA / "none"
        for file in sorted(folder.glob("*.json.xz")):
            for one in recorded.run(file).measurements:
                if "step_time" in {s.metric for s in one.samples} - set(one.tolerance):
                    of_test = groups[f"{campaign} {one.test} {one.name}"]
                    of_test[one.fingerprint.device.identity].append(replace(one, kernels=None))
    return groups


def same_gpu(device: str) -> Source:
    """Baseline and nights draw processes of one GPU."""

    def series(random: np.random.Generator) -> Series:
        pools = [
            night
            for of_test in _groups(device).values()
            for night in of_test.values()
            if len(night) >= LEAST_ON_ONE
        ]
        pool = pools[random.integers(len(pools))]
        order = [pool[at] for at in random.permutation(len(pool))]
        return Series(order[:BASELINE], _drawn(random, order[BASELINE:]))

    return series


def unmet_gpu(device: str) -> Source:
    """The nights draw processes of a GPU that the baseline has none of."""

    def series(random: np.random.Generator) -> Series:
        pools = [
            (night, others)
            for of_test in _groups(device).values()
            for left, night in of_test.items()
            for others in [[o for gpu, there in of_test.items() if gpu != left for o in there]]
            if len(night) >= LEAST_TO_ALARM and len(others) >= LEAST_ELSEWHERE
        ]
        night, others = pools[random.integers(len(pools))]
        return Series(others, _drawn(random, night))

    return series


def _drawn(random: np.random.Generator, pool: Night) -> list[Night]:
    """Nights of these processes, each in an order of its own."""
    return [[pool[at] for at in random.permutation(len(pool))] for _ in range(QUIET + SLOW)]


def sources() -> dict[str, Source]:
    """All of them, by name."""
    known = {name: simulated(noise) for name, noise in SIMULATED.items()}
    known["an H100, recorded"] = same_gpu("h100")
    known["unmet H100s, recorded"] = unmet_gpu("h100")
    known["unmet H200s, recorded"] = unmet_gpu("h200")
    return known


# Rules


def reference_of(baseline: Night) -> Reference:
    """What ours compares with."""
    entry = baseline_files.entry_of(baseline, recorded="")
    return Reference(
        {STEP: entry.step}, gpus=entry.gpus, days=entry.days, canary=entry.canary, tests=TESTS
    )


def ours(reference: Reference, night: Night) -> tuple[bool | None, int]:
    """Whether a test is red, None where it is undecided, and after how many processes."""
    looked = LOOKS[0]
    while True:
        said = judge(night[:looked], reference, catalogue().metrics, night[0].tolerance)
        further = next_look(said, looked, len(night))
        if further is None:
            break
        looked = further
    outcomes = {verdict.outcome for verdict in said}
    undecided = outcomes & {Outcome.INCONCLUSIVE, Outcome.MACHINE}
    return True if Outcome.REGRESSED in outcomes else None if undecided else False, looked


Rule = Callable[[Values, Sequence[Values]], bool]
"""Whether tonight, the last, is called slower, by the baseline and all nights."""


def _one(night: Values) -> list[float]:
    """What a tool that starts one process sees of it."""
    return night[0]


def fixed(share: float) -> Rule:
    """So much longer than the saved median."""
    return lambda old, nights: median(_one(nights[-1])) > (1 + share) * median(map(median, old))


def window(factor: float) -> Rule:
    """So many times the median of the three nights before."""

    def rule(old: Values, nights: Sequence[Values]) -> bool:
        before = [median(_one(night)) for night in [old, *nights][:-1][-3:]]
        return median(_one(nights[-1])) > factor * median(before)

    return rule


def three_running(old: Values, nights: Sequence[Values]) -> bool:
    """10 % longer than the saved value, three nights running."""
    runs = (nights[: len(nights) - back] for back in range(3))
    return len(nights) > 2 and all(fixed(0.1)(old, until) for until in runs)


def two_errors(old: Values, nights: Sequence[Values]) -> bool:
    """The mean is more than two standard errors of the rounds from the saved one."""
    new, saved = _one(nights[-1]), _one(old)
    error = math.hypot(*(stdev(side) / math.sqrt(len(side)) for side in (new, saved)))
    return fmean(new) - fmean(saved) > 2 * error


def compare_fail(old: Values, nights: Sequence[Values]) -> bool:
    """pytest-benchmark: --benchmark-compare-fail=min:5%."""
    return min(_one(nights[-1])) > 1.05 * min(_one(old))


def mann_whitney(old: Values, nights: Sequence[Values]) -> bool:
    """google/benchmark's U test at 0.05, on the rounds of all processes."""
    pooled, new = [value for process in old for value in process], _one(nights[-1])
    p_value = stats.mannwhitneyu(new, pooled, alternative="two-sided").pvalue
    return bool(p_value < 0.05) and median(new) > median(pooled)


def least_noise(old: Values, nights: Sequence[Values]) -> bool:
    """nvbench_compare: the means differ by more than the smaller of both relative deviations."""
    new, saved = _one(nights[-1]), _one(old)
    noise = min(stdev(side) / fmean(side) for side in (new, saved))
    return fmean(new) / fmean(saved) - 1 > noise


def otava(old: Values, nights: Sequence[Values]) -> bool:
    """Apache Otava: the series' sharpest split, at 0.001 by Student's t, within three nights."""
    values = [median(_one(night)) for night in (old, *nights)]
    splits = range(max(2, len(values) - 3), len(values) - 1) if len(values) > 4 else ()
    return any(_t_test(values[at:], values[:at], equal=True) < 0.001 for at in splits)


def processes_t(old: Values, nights: Sequence[Values]) -> bool:
    """Welch's t test at 0.01 over processes: three of tonight, all of the baseline."""
    new, saved = ([median(process) for process in side] for side in (nights[-1][:3], old))
    return _t_test(new, saved, equal=False) < 0.01


def _t_test(new: Sequence[float], old: Sequence[float], *, equal: bool) -> float:
    """The two-sided p-value of a t test, where `new` is more; else 1."""
    if fmean(new) <= fmean(old):
        return 1.0
    parts = [variance(side) / len(side) for side in (new, old)]
    counts = [len(new), len(old)]
    degrees = sum(counts) - 2.0
    if equal:
        pooled = sum(p * n * (n - 1) for p, n in zip(parts, counts, strict=True)) / degrees
        parts = [pooled / n for n in counts]
    elif sum(parts):
        degrees = sum(parts) ** 2 / sum(p**2 / (n - 1) for p, n in zip(parts, counts, strict=True))
    error = math.sqrt(sum(parts))
    t = (fmean(new) - fmean(old)) / error if error else math.inf
    return float(2 * special.stdtr(degrees, -t))


OTHERS: Mapping[str, tuple[Rule, str]] = {
    "fixed 5 %": (fixed(0.05), "TensorRT-LLM, SGLang: tests with saved values"),
    "fixed 10 %": (fixed(0.1), "IsaacLab perf-smoke"),
    "10 %, 3 nights running": (three_running, "vllm-omni nightly"),
    "x1.2 of 3 nights": (window(1.2), "PyTorch HUD, regression report"),
    "x1.35 of 3 nights": (window(1.35), "PyTorch HUD, operator benchmarks"),
    "mean + 2 standard errors": (two_errors, "the textbook's"),
    "min:5%": (compare_fail, "pytest-benchmark, --benchmark-compare-fail"),
    "Mann-Whitney, rounds": (mann_whitney, "google/benchmark, compare.py"),
    "smaller of both noises": (least_noise, "nvbench, nvbench_compare.py"),
    "change points": (otava, "Apache Otava"),
    "t test, processes": (processes_t, "the textbook's, done right"),
}
OURS = "gpuperf"
_SAID: Mapping[str, str] = {
    "fixed 5 %": "5 % above the saved value",
    "fixed 10 %": "10 % above the saved value",
    "10 %, 3 nights running": "10 % above the saved value, 3 nights in a row",
    "x1.2 of 3 nights": "x1.2 of the median of the 3 nights before",
    "x1.35 of 3 nights": "x1.35 of the median of the 3 nights before",
    "min:5%": "minimum 5 % above (pytest-benchmark)",
    "Mann-Whitney, rounds": "Mann-Whitney test of rounds (google/benchmark)",
    "smaller of both noises": "above the smaller noise (nvbench)",
    "change points": "change points (Apache Otava)",
    "t test, processes": "t test of processes",
}
"""What the table says of a rule whose name is short."""


# Scores


def _slower(night: Night, size: float) -> Night:
    """The same with all times of the step longer by that share."""
    return [
        replace(
            one,
            samples=tuple(
                replace(s, values=tuple((1 + size) * v for v in s.values))
                if s.phase == STEP and s.metric in TIMES
                else s
                for s in one.samples
            ),
        )
        for one in night
    ]


def _values(night: Night) -> Values:
    by_process = ({s.metric: s.values for s in one.samples if s.phase == STEP} for one in night)
    return [[*values["step_time"]] for values in by_process]


def scored(name: str, seed: int, numbers: range) -> Counter[str]:
    """What each rule says of these series: `rule|false`, `rule|open`, `rule|found 0.01`, sums."""
    source, counts = sources()[name], Counter[str]()
    for number in numbers:
        series = source(np.random.default_rng([seed, number]))
        counts["series"] += 1
        old, quiet = _values(series.baseline), [_values(n) for n in series.nights[:QUIET]]
        reference = reference_of(series.baseline)
        for until, night in enumerate(series.nights[:QUIET], start=1):
            said, looked = ours(reference, night)
            counts["verdicts"] += 1
            counts[f"{OURS}|false"] += said is True
            counts[f"{OURS}|open"] += said is None
            counts[f"{OURS}|processes"] += looked
            for rule, (called, _) in OTHERS.items():
                counts[f"{rule}|false"] += called(old, quiet[:until])
        for size in SIZES:
            slow = [_slower(night, size) for night in series.nights[QUIET:]]
            nights = [*quiet, *map(_values, slow)]
            for rule in (OURS, *OTHERS):
                if rule == OURS:
                    found = any(ours(reference, night)[0] is True for night in slow)
                else:
                    seen = range(QUIET + 1, len(nights) + 1)
                    found = any(OTHERS[rule][0](old, nights[:count]) for count in seen)
                counts[f"{rule}|found {size}"] += found
    return counts


def smallest(counts: Mapping[str, int], rule: str) -> float | None:
    """The smallest slowdown from which on enough series have it found; None: none of them."""
    least = None
    for size in reversed(SIZES):
        if counts.get(f"{rule}|found {size}", 0) < LEAST_FOUND * counts["series"]:
            break
        least = size
    return least


SHOWN = (
    *("0.1 %", "1 %", "5 %", "0.1 %, 1 process in 20 slow"),
    *("an H100, recorded", "unmet H200s, recorded"),
)
"""The nights of which the table has the smallest slowdown that each rule finds."""
SIMILAR = ("fixed 10 %", "x1.2 of 3 nights", "mean + 2 standard errors")
"""Rules that docs/evidence.md leaves out: a rule of the same kind is beside each."""


def table(results: Mapping[str, Mapping[str, int]], without: Sequence[str] = ()) -> list[str]:
    """A row per rule: most false alarms per 1,000 verdicts, the smallest slowdown (%) by nights."""
    shown = [name for name in results if name in SHOWN]
    lines = [
        f"| rule | most false alarms per 1,000 | {' | '.join(shown)} |",
        f"| --- {'| ---: ' * (len(shown) + 1)}|",
    ]
    for rule in (rule for rule in (OURS, *OTHERS) if rule not in without):
        most = max(_rate(counts, f"{rule}|false") for counts in results.values())
        found = [smallest(results[name], rule) for name in shown]
        cells = ("-" if least is None else f"{100 * least:.3g}" for least in found)
        lines.append(f"| {_SAID.get(rule, rule)} | {most:.3g} | {' | '.join(cells)} |")
    undecided = max(_rate(counts, f"{OURS}|open") for counts in results.values())
    return [*lines, "", f"{OURS} left at most {undecided:.3g} of 1,000 verdicts inconclusive."]


def _rate(counts: Mapping[str, int], what: str) -> float:
    """Per 1,000 verdicts."""
    return 1000 * counts.get(what, 0) / counts["verdicts"]


def beaten(results: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Where another rule is better on false alarms and on the smallest slowdown at once."""
    said = []
    for name, counts in results.items():
        mine = counts.get(f"{OURS}|false", 0), smallest(counts, OURS) or math.inf
        for rule in OTHERS:
            other = counts.get(f"{rule}|false", 0), smallest(counts, rule) or math.inf
            if other[0] <= mine[0] and other[1] <= mine[1] and other != mine:
                said.append(f"{name}: {rule} {other}, {OURS} {mine}")
    return said


def _work(task: tuple[str, int, range]) -> tuple[str, Counter[str]]:
    return task[0], scored(*task)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; 1 where another rule is better on both at once."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--series", type=int, default=SERIES, help="of each kind of nights")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", default="", help="kinds of nights whose name has this")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the counts")
    options = parser.parse_args(arguments)
    names = [name for name in sources() if options.only in name]
    step = 20
    tasks = [
        (name, options.seed, range(first, min(first + step, options.series)))
        for name in names
        for first in range(0, options.series, step)
    ]
    results: dict[str, Counter[str]] = {name: Counter() for name in names}
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        for name, counts in pool.imap_unordered(_work, tasks):
            results[name].update(counts)
    print("\n".join(table(results)))
    if options.json:
        lines = ",\n".join(f"{json.dumps(n)}: {json.dumps(of)}" for n, of in results.items())
        options.json.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    worse = beaten(results)
    print("\n".join(worse), file=sys.stderr)
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
