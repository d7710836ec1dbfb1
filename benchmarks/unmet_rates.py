"""How often the judge is right on a GPU that nobody has met: simulated, with and without its kind.

    python -m benchmarks.unmet_rates [--trials N] [--json FILE]

A trial is one test with cycles and their time: a baseline of 16 GPUs, three processes on each, and
up to five on one more. GPUs have the kinds of H200s: four of the 16 read DRAM 2.3 % shorter, and
four, one of these among them, the L2 2.8 % longer; one more is of each kind as often. How much a
test moves with each, what is left between GPUs of a kind, and what processes differ by, are normal,
with the standard deviations that the rule assumes. The same trials are judged once more as if no
canary had been read.

Bounds are one-sided, 95 %, by Clopper and Pearson: of false alarms the upper one, of what is found
the lower one. Exits with 1 where a night of 40 tests may have more than 1e-3 false alarms, or 1 %
may be found less than 99 times in 100.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks.unmet import looked_at
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.machine import KIND_READINGS
from pytest_gpuperf.judge.noise import ALIKE, SLOPES
from pytest_gpuperf.judge.tolerance import tolerance_for
from pytest_gpuperf.judge.verdict import Reference
from pytest_gpuperf.model.entry import Canaries
from pytest_gpuperf.model.measurement import (
    STEP,
    Canary,
    Conditions,
    Device,
    Fingerprint,
    Measurement,
    Reading,
    Sample,
)
from pytest_gpuperf.model.result import Outcome

_CYCLES = tolerance_for(catalogue().metrics["cycles"])
GPUS, PROCESSES, NEW = 16, 3, 5
READ = (2.0e6, 1.82e6)
"""What the canary reads of DRAM, in nanoseconds, and of the L2, in cycles."""
SECOND_KIND = (-0.023, 0.028)
"""How far apart these readings are, as logarithms, on the other kind; KINDS has who is of it."""
KINDS = [(gpu % 4 == 0, gpu < GPUS / 4) for gpu in range(GPUS)]
READ_NOISE = (0.0004, 0.001)
"""Standard deviations of the mean that a measurement has of each reading."""
SAME = {"instructions": 1e11, "peak_memory": 1e10}
"""What else is gated, and shares the rate of false alarms; it is the same everywhere."""
LOSSES = (0.0, 0.005, 0.0075, 0.01, 0.015)
LEFT = math.sqrt((ALIKE * _CYCLES.between_gpus) ** 2 - _CYCLES.scale**2 / PROCESSES)
"""Between GPUs of a kind: ALIKE was fitted to the means of three processes, and has their noise."""
TRIALS = 4000
IDENTICAL = 50
"""So many times as many trials of identical code, whose alarms are rare."""
TESTS = 40
SEED = 20261123
_CODE = "simulated"


def trial(loss: float, random: np.random.Generator) -> dict[bool, Outcome]:
    """What is said of one more GPU, with the canary and without."""
    slopes = random.normal(0, np.multiply(SLOPES, _CYCLES.between_gpus))
    logs: list[list[float]] = []
    readings: list[list[tuple[float, ...]]] = []
    for gpu, of_second in enumerate([*KINDS, random.random(2) < np.mean(KINDS, axis=0)]):
        kind = np.multiply(SECOND_KIND, of_second)
        mean = float(slopes @ kind) + random.normal(0, LEFT)
        count = PROCESSES if gpu < GPUS else NEW
        logs.append([mean + random.normal(0, _CYCLES.scale) for _ in range(count)])
        read = [
            np.multiply(READ, np.exp(kind + random.normal(0, READ_NOISE))) for _ in range(count)
        ]
        readings.append([tuple(map(float, one)) for one in read])
    known = [one for of_gpu in readings[:GPUS] for one in of_gpu]
    series = {name: tuple(one[i] for one in known) for i, name in enumerate(KIND_READINGS)}
    cycles = [[1e9 * math.exp(value)] for of_gpu in logs[:GPUS] for value in of_gpu]
    reference = Reference(
        {
            STEP: {
                "cycles": cycles,
                "step_time": [[value / 2e6] for [value] in cycles],
                **{name: [[value]] * len(cycles) for name, value in SAME.items()},
            }
        },
        gpus=tuple(f"gpu-{number // PROCESSES}" for number in range(len(known))),
        canary=Canaries((_CODE,) * len(known), series, series),
    )
    new = [
        _measurement(f"p{number}", 1e9 * math.exp(value) * (1 + loss), read)
        for number, (value, read) in enumerate(zip(logs[GPUS], readings[GPUS], strict=True))
    ]
    return {
        canary: _worst(new, reference if canary else replace(reference, canary=None))
        for canary in (True, False)
    }


def _worst(new: list[Measurement], reference: Reference) -> Outcome:
    said = {verdict.outcome for verdict in looked_at(new, reference)}
    worst = (Outcome.REGRESSED, Outcome.MACHINE, Outcome.INCONCLUSIVE, Outcome.IMPROVED)
    return next((outcome for outcome in worst if outcome in said), Outcome.UNCHANGED)


def _measurement(process: str, cycles: float, read: tuple[float, ...]) -> Measurement:
    reading = Reading(canary=Canary(_CODE, dict(zip(KIND_READINGS, read, strict=True))))
    fingerprint = Fingerprint(
        device=Device("sm90", "NVIDIA H200", "nvidia-h200", "another"),
        software={},
        settings={},
        conditions=Conditions(reading, reading),
    )
    values = {"cycles": cycles, "step_time": cycles / 2e6, **SAME}
    samples = tuple(Sample(STEP, name, (value,)) for name, value in values.items())
    return Measurement("test", STEP, "simulated", process, "", {}, samples, (), fingerprint)


def counted(loss: float, numbers: range) -> Counter[tuple[bool, Outcome]]:
    """Over the trials of these numbers; each number is a trial of its own, always the same."""
    counts: Counter[tuple[bool, Outcome]] = Counter()
    for number in numbers:
        random = np.random.default_rng([SEED, round(1e4 * loss), number])
        counts.update(trial(loss, random).items())
    return counts


def rows(trials: int, workers: int) -> list[dict[str, float | bool]]:
    """Of each loss, with the canary and without; and of identical code."""
    made = []
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for loss in LOSSES:
            many = trials * (1 if loss else IDENTICAL)
            parts = [range(first, min(first + 500, many)) for first in range(0, many, 500)]
            counts = sum(pool.starmap(counted, product([loss], parts)), Counter())
            for canary in (True, False):
                found = counts[canary, Outcome.REGRESSED]
                made.append(
                    {
                        "loss": loss,
                        "canary": canary,
                        "trials": many,
                        "regressed": found,
                        "inconclusive": counts[canary, Outcome.INCONCLUSIVE],
                        "machine": counts[canary, Outcome.MACHINE],
                        "at_least": float(stats.beta.ppf(0.05, found, many - found + 1))
                        if found
                        else 0.0,
                        "at_most": float(stats.beta.ppf(0.95, found + 1, many - found))
                        if found < many
                        else 1.0,
                    }
                )
    return made


def table(made: list[dict[str, float | bool]]) -> str:
    """Markdown."""
    lines = [
        "| slowdown | trials | regressed | undecided | without canary: regressed |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for one, blind in zip(made[::2], made[1::2], strict=True):
        bound = f">= {one['at_least']:.2%}" if one["loss"] else f"<= {one['at_most']:.2g}"
        share = one["regressed"] / one["trials"]
        lines.append(
            f"| {one['loss']:.2%} | {one['trials']:,} | {share:.2%} ({bound}) | "
            f"{one['inconclusive'] / one['trials']:.2%} | "
            f"{blind['regressed'] / blind['trials']:.2%} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    made = rows(options.trials, options.workers)
    print(table(made), end="")
    if options.json:
        options.json.write_text(json.dumps(made, indent=1) + "\n")
    alarms = next(one for one in made if not one["loss"])
    one_percent = next(one for one in made if one["loss"] == 0.01)
    return int(TESTS * alarms["at_most"] > 1e-3 or one_percent["at_least"] < 0.99)


if __name__ == "__main__":
    sys.exit(main())
