"""A GPU that nobody has met: each of a campaign is left out of a baseline and judged by it.

    python -m benchmarks.unmet [FILE ...]        default: tests/data/h200-kinds/*.json.xz
    python -m benchmarks.unmet --fit [FILE ...]  the likeliest SLOPES and ALIKE of judge/noise.py
    python -m benchmarks.unmet --gather RUN ...  puts what these runs have of TESTS there, by GPU

Of each test a baseline is made of all processes of the other GPUs, and those of the one that was
left out are judged as a session would, at 1 and 3 of them as far as there are so many: identical
code, code with a loss put into the samples, and all of it once more without what the canary read.
Then every GPU against those of the other kind alone, and under a power limit that takes a tenth of
the clock, which is put into the canary and the times. benchmarks/unmet_rates.py simulates more.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean, median

import numpy as np

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge import machine
from pytest_gpuperf.judge.noise import Kind
from pytest_gpuperf.judge.stopping import LEAST_TO_ALARM, LOOKS, next_look
from pytest_gpuperf.judge.verdict import Reference, judge
from pytest_gpuperf.model.measurement import STEP, Canary, Conditions, Measurement
from pytest_gpuperf.model.metric import MetricClass
from pytest_gpuperf.model.result import Outcome, Run, Verdict
from pytest_gpuperf.storage import baseline_files, run_files

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data" / "h200-kinds"
TESTS = ("baseline", "tf32", "channels_last", "tf32_channels_last", "tf32+cuda_graph")
"""Configurations of Med-DDPM's training step: the paper's four, and one as a graph."""
LOSSES = (0.0, 0.005, 0.01, 0.015, 0.02, 0.03)
FITTED = ("cycles", "step_time")
KINDS_APART = 0.01
"""How far apart, as a logarithm, the canary's DRAM is on GPUs of two kinds."""
GRID = (
    [0.3, 0.5, 0.7, 1.0, 1.4],
    [0.03, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2],
    [share / 1e4 for share in range(5, 31)],
)
"""Slopes of DRAM and of the L2, and what is left between GPUs that are alike."""

ByGpu = Mapping[str, Sequence[Measurement]]
"""The processes of one test on each GPU."""


@dataclass(frozen=True)
class Row:
    """What became of one loss, over all GPUs and tests."""

    loss: float
    trials: int
    """GPUs times tests; of a loss those alone with as many processes as it takes to alarm."""
    regressed: int
    undecided: int
    """Inconclusive: they ask for more processes than there are."""
    tolerance: float
    """Of cycles, the median over the trials."""


def load(files: Sequence[Path]) -> dict[str, dict[str, list[Measurement]]]:
    """Each process's measurements by configuration and GPU: what is gated of them."""
    gated = {name for name, metric in catalogue().metrics.items() if metric.gated}
    tests: dict[str, dict[str, list[Measurement]]] = {}
    for file in files:
        for one in run_files.load(file).measurements:
            samples = tuple(s for s in one.samples if s.phase == STEP and s.metric in gated)
            by_gpu = tests.setdefault(one.configuration, {})
            own = by_gpu.setdefault(one.fingerprint.device.identity, [])
            own.append(replace(one, samples=samples))
    return tests


def rows(tests: Mapping[str, ByGpu], *, canary: bool) -> Iterator[Row]:
    """A row per loss; without `canary` as if none had been read."""
    for loss in LOSSES:
        yield row(
            loss,
            [
                verdicts(_others(by_gpu, gpu), [_with_loss(p, loss) for p in own], canary=canary)
                for by_gpu in tests.values()
                for gpu, own in by_gpu.items()
                if not loss or len(own) >= LEAST_TO_ALARM
            ],
        )


def row(loss: float, said: Sequence[Sequence[Verdict]]) -> Row:
    """Of what was said in each trial."""
    outcomes = [{verdict.outcome for verdict in one} for one in said]
    of_cycles = [v for one in said for v in one if (v.phase, v.metric) == (STEP, "cycles")]
    return Row(
        loss=loss,
        trials=len(said),
        regressed=sum(Outcome.REGRESSED in one for one in outcomes),
        undecided=sum(
            Outcome.INCONCLUSIVE in one and Outcome.REGRESSED not in one for one in outcomes
        ),
        tolerance=median(verdict.tolerance or 0.0 for verdict in of_cycles),
    )


def verdicts(
    baseline: Sequence[Measurement], new: Sequence[Measurement], *, canary: bool = True
) -> tuple[Verdict, ...]:
    """On the new processes, against these of other GPUs."""
    entry = baseline_files.entry_of(baseline, recorded="")
    reference = Reference(
        entry.samples, gpus=entry.gpus, days=entry.days, canary=entry.canary if canary else None
    )
    return looked_at(new, reference)


def looked_at(new: Sequence[Measurement], reference: Reference) -> tuple[Verdict, ...]:
    """On as many of these processes as a session would have looked at."""
    look: int | None = LOOKS[0]
    said: tuple[Verdict, ...] = ()
    while look is not None and look <= len(new):
        said = judge(new[:look], reference, catalogue().metrics, {})
        look = next_look(said, look)
    return said


def other_kind(tests: Mapping[str, ByGpu]) -> Counter[Outcome]:
    """What is said of cycles on each GPU against those alone of which DRAM reads otherwise."""
    said: Counter[Outcome] = Counter()
    for by_gpu in tests.values():
        dram = {gpu: _kind(own)[0] for gpu, own in by_gpu.items()}
        for gpu, own in by_gpu.items():
            far = [other for other in by_gpu if abs(dram[other] - dram[gpu]) > KINDS_APART]
            baseline = [one for other in far for one in by_gpu[other]]
            said[_of("cycles", verdicts(baseline, own))] += 1
    return said


def power_limit(tests: Mapping[str, ByGpu]) -> Counter[Outcome]:
    """What is said of step_time on each GPU, with a tenth of its clock taken away."""
    said: Counter[Outcome] = Counter()
    for by_gpu in tests.values():
        for gpu, own in by_gpu.items():
            if len(own) >= LEAST_TO_ALARM:
                slower = [_with_clock(one, 0.9) for one in own]
                said[_of("step_time", verdicts(_others(by_gpu, gpu), slower))] += 1
    return said


def _of(metric: str, said: Sequence[Verdict]) -> Outcome:
    return next(v.outcome for v in said if (v.phase, v.metric) == (STEP, metric))


def _others(by_gpu: ByGpu, gpu: str) -> list[Measurement]:
    return [one for other, processes in by_gpu.items() if other != gpu for one in processes]


def _kind(own: Sequence[Measurement]) -> Kind:
    kind = machine.kinds(own, baseline_files.entry_of(own, recorded="").canary)[1]
    assert kind is not None  # the campaign's processes have all read it
    return kind


def _with_loss(measurement: Measurement, loss: float) -> Measurement:
    """The same with so much more of every gated cycle count and time."""
    metrics = catalogue().metrics
    samples = tuple(
        replace(sample, values=tuple(value * (1 + loss) for value in sample.values))
        if metrics[sample.metric].metric_class is MetricClass.CYCLE and metrics[sample.metric].gated
        else sample
        for sample in measurement.samples
    )
    return replace(measurement, samples=samples)


def _with_clock(measurement: Measurement, share: float) -> Measurement:
    """The same where the SMs run at this share of their clock: in the canary, and in all times."""
    conditions = measurement.fingerprint.conditions
    assert conditions is not None
    before, after = (
        replace(reading, canary=replace(reading.canary, readings=_at(reading.canary, share)))
        for reading in (conditions.before, conditions.after)
        if reading.canary
    )
    fingerprint = replace(measurement.fingerprint, conditions=Conditions(before, after))
    samples = tuple(
        replace(sample, values=tuple(value / share for value in sample.values))
        if catalogue().metrics[sample.metric].unit in ("ms", "ns")
        else sample
        for sample in measurement.samples
    )
    return replace(measurement, samples=samples, fingerprint=fingerprint)


def _at(canary: Canary, share: float) -> dict[str, float]:
    return {
        name: value * share if name.endswith("clock_mhz") else value
        for name, value in canary.readings.items()
    }


def fit(tests: Mapping[str, ByGpu]) -> str:
    """The constants of judge/noise.py that make cycles and times of these GPUs likeliest.

    In a metric's own share, over GRID: the GPUs' means are normal around one of their own, with the
    variance that `noise.prediction` assumes; of that the restricted likelihood, which the unknown
    mean is integrated out of.
    """
    series = []
    for by_gpu in tests.values():
        kinds = [_kind(own) for own in by_gpu.values()]
        for metric in FITTED:
            means = [fmean(_logarithms(own, metric)) for own in by_gpu.values()]
            series.append((np.array(means), np.array(kinds) - np.mean(kinds, axis=0)))

    def unlikely(constants: tuple[float, float, float]) -> float:
        *slopes, alike = constants
        return sum(_unlikely(means, kinds * slopes, alike) for means, kinds in series)

    dram, l2, alike = min(product(*GRID), key=unlikely)
    return f"slopes {dram:g} and {l2:g}, alike {100 * alike:g} %: of {len(series)} series\n"


def _logarithms(processes: Sequence[Measurement], metric: str) -> list[float]:
    return [
        math.log(median(sample.values))
        for process in processes
        for sample in process.samples
        if (sample.phase, sample.metric) == (STEP, metric)
    ]


def _unlikely(means: np.ndarray, moved: np.ndarray, alike: float) -> float:
    """The negative logarithm of the restricted likelihood, but for what is always the same."""
    covariance = moved @ moved.T + alike**2 * np.eye(len(means))
    inverse = np.linalg.inv(covariance)
    weight = inverse.sum()
    apart = means - (inverse @ means).sum() / weight
    determinant = np.linalg.slogdet(covariance)[1]
    return float(determinant + math.log(weight) + apart @ inverse @ apart) / 2


def gather(runs: Sequence[Path], folder: Path) -> None:
    """Adds what the runs have of TESTS to the file of its GPU; processes that are there stay."""
    for name in runs:
        run = run_files.load(name)
        for one in run.measurements:
            if one.configuration in TESTS and "test_training_step" in one.test:
                _add(
                    replace(one, kernels=None),
                    run,
                    folder / f"{one.fingerprint.device.identity}.json.xz",
                )


def _add(measurement: Measurement, run: Run, file: Path) -> None:
    known = run_files.load(file).measurements if file.exists() else ()
    if (measurement.test, measurement.process) in {(one.test, one.process) for one in known}:
        return
    made = replace(
        run, command="", measurements=(*known, measurement), verdicts=(), attributions=()
    )
    folder = file.parent
    folder.mkdir(parents=True, exist_ok=True)
    run_files.save(replace(made, expectations=()), file)


def table(tests: Mapping[str, ByGpu]) -> str:
    """Markdown: what was found of each slowdown, with and without canary; what is the machine's."""
    lines = [
        "| slowdown | found | undecided | tolerance of cycles "
        "| without canary: found | tolerance |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one, blind in zip(rows(tests, canary=True), rows(tests, canary=False), strict=True):
        cells = (
            f"{100 * one.loss:g} %",
            f"{one.regressed} of {one.trials}",
            f"{one.undecided}",
            f"{100 * one.tolerance:.2f} %",
            f"{blind.regressed} of {blind.trials}",
            f"{100 * blind.tolerance:.2f} %",
        )
        lines.append(f"| {' | '.join(cells)} |")
    for heading, said in (
        ("Against GPUs of the other kind alone, cycles", other_kind(tests)),
        ("At 0.9 of the clock, step_time", power_limit(tests)),
    ):
        counted = ", ".join(f"{outcome.value} {count}" for outcome, count in said.most_common())
        lines += ["", f"{heading}: {counted} of {said.total()}."]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Prints the table, or gathers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--fit", action="store_true", help="the constants of the rule")
    parser.add_argument("--gather", action="store_true", help=f"into {FOLDER.name}/")
    options = parser.parse_args(arguments)
    if options.gather:
        gather(options.files, FOLDER)
        return 0
    tests = load(options.files or sorted(FOLDER.glob("*.json.xz")))
    print(fit(tests) if options.fit else table(tests), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
