"""Committed runs and results as the tables of README.md and docs/, for `script/docs`.

Each function reads committed files, or has a run of them, and returns Markdown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median

from benchmarks import contest as contests
from benchmarks import recorded
from benchmarks.causes import scores
from benchmarks.causes.scores import RESULTS, Score
from pytest_gpuperf.analysis import launch_totals, priority, roofline
from pytest_gpuperf.baselines import calibration
from pytest_gpuperf.catalogue import architectures, kernel_families, units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.commands import calibrate as shown
from pytest_gpuperf.judge import attribution
from pytest_gpuperf.judge.expectation import ratio
from pytest_gpuperf.judge.interval import HELD_RATE, UNCHANGED_RATE, difference, of_median
from pytest_gpuperf.judge.noise import (
    BaselineGpus,
    Variance,
    places_of,
    quantile,
    scales,
)
from pytest_gpuperf.judge.stopping import ALARMING
from pytest_gpuperf.judge.tolerance import tolerance_for
from pytest_gpuperf.judge.verdict import ALARM_RATE, decide, minimum_detectable_effect
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.model.result import Outcome, Run
from pytest_gpuperf.storage import baseline_files
from suites.claim import Claim


def contest(file: Path) -> str:
    """The rules on the same labelled nights."""
    return "\n".join(contests.table(json.loads(file.read_text(encoding="utf-8")))) + "\n"


def campaign(files: Sequence[Path]) -> str:
    """What `gpuperf calibrate` prints for these runs."""
    findings = calibration.findings([recorded.run(file) for file in files], "")
    lines = [line.text for one in findings for line in shown.lines(one, 80)]
    return "```\n" + "\n".join(lines) + "\n```\n"


def seeds(files: Sequence[Path]) -> str:
    """What the judge said of losses put in on purpose; a file's name is the loss's."""
    rows = [
        "| slowdown | configuration | cycles | instructions | step_time | verdict |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for file in files:
        run = recorded.run(file)
        named = {v.metric: v for v in run.verdicts if v.phase == STEP}
        gated = [named[metric] for metric in ("cycles", "instructions", "step_time")]
        worst = next(
            (
                o
                for o in (Outcome.REGRESSED, Outcome.INCONCLUSIVE)
                if any(v.outcome is o for v in gated)
            ),
            Outcome.UNCHANGED,
        )
        changes = " | ".join(units.change(v) for v in gated)
        rows.append(
            f"| {file.name.split('.')[0]} | {run.measurements[0].configuration} | "
            f"{changes} | {worst.value} |"
        )
    return "\n".join(rows) + "\n"


def kernel_spreads() -> str:
    """The spread that is assumed of a kernel, and the slowdowns that are found then."""
    rows = [
        "| time in the step | found, of one kernel | found, of 100 |",
        "| ---: | ---: | ---: |",
    ]
    for nanoseconds in (2e3, 1e4, 1e5, 1e6):
        spread = attribution.assumed(nanoseconds)
        degrees = attribution.distance_of([1.0], [1.0], spread).degrees_of_freedom
        least = [
            quantile(attribution.FALSE_DISCOVERIES / (2 * asked), degrees) * spread * math.sqrt(2)
            for asked in (1, 100)
        ]
        cells = [
            f"{nanoseconds / 1e3:,.0f} us",
            *(f"{math.expm1(x):.1%}" for x in least),
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def causes(folder: Path) -> str:
    """What was said of each cause, as it was scored."""
    content = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    scored = [Score(**entry) for entry in content["counted"]]
    rows = ["| cause | step | what is said | right |", "| --- | ---: | --- | --- |"]
    for score in scored:
        cost = "" if score.cost is None else units.moved(score.cost)
        right = ", ".join(
            what
            for what, is_right in (("place", score.right_place), ("kind", score.right_kind))
            if is_right
        )
        rows.append(f"| {score.name} | {cost} | {score.error or score.said} | {right} |")
    uncounted = scores.summary([Score(**entry) for entry in content["uncounted"]])
    said = f"With counters: {scores.summary(scored)}. Without: {uncounted}."
    return "\n".join([*rows, "", said]) + "\n"


def example(baseline: Run, measured: Run, metric: str) -> str:
    """The verdict on one metric of a recorded run, step by step."""
    first = measured.measurements[0]
    known = [m for m in baseline.measurements if m.test == first.test]
    entry = baseline_files.entry_of(known, recorded="")
    tolerance = tolerance_for(catalogue().metrics[metric])
    gated = {n: r for n, r in entry.samples[STEP].items() if catalogue().metrics[n].gated}
    same = {
        name: rounds
        for name, rounds in gated.items()
        if catalogue().metrics[name].metric_class is catalogue().metrics[metric].metric_class
    }
    devices = [m.fingerprint.device for m in measured.measurements]
    day = first.fingerprint.measured[:10]
    here, at = places_of(entry.gpus, entry.days), tuple(device.identity for device in devices)
    gpus = BaselineGpus(here, frozenset(at), day=day, new=at)
    allowed = {name: tolerance_for(catalogue().metrics[name]) for name in same}
    logarithms = {n: [math.log(median(process)) for process in r] for n, r in same.items()}
    scale = scales(logarithms, allowed, gpus)[metric]
    new = [_rounds(m, metric) for m in measured.measurements]
    look = difference(new, same[metric], tolerance, gpus, scale)
    unit = catalogue().metrics[metric].unit
    old = [median(rounds) for rounds in same[metric]]
    logs = [math.log(value) for value in old]
    own = math.sqrt(math.fsum((x - fmean(logs)) ** 2 for x in logs) / (len(logs) - 1))
    rate = ALARM_RATE / (ALARMING * len(gated))
    outcome, reason = decide(catalogue().metrics[metric].direction, look, rate)
    s, night, error = look.spread, look.tonight or look.spread, look.error
    mean, of_day = look.reference, look.shared
    seen = math.sqrt(math.fsum((x - fmean(look.changes)) ** 2 for x in look.changes) / 2)
    lines = [
        f"baseline   {len(old)} processes: " + ", ".join(units.value(v, unit) for v in old),
        f"measured   {len(new)} processes: "
        + ", ".join(units.value(median(rounds), unit) for rounds in new),
        f"d          {look.change:+.5f}: the median of the logarithms, minus the baseline's mean",
        f"each       {', '.join(f'{change:+.5f}' for change in look.changes)}: all beyond delta0",
        f"s          {_known(s)}; the baseline's own {own:.6f}, s0 = {tolerance.scale:g}",
        f"s_n        {_known(night)}: s for 8 of them, and tonight's own {seen:.6f}",
        f"mean       {mean.root:.6f} = s / sqrt({len(old)})",
        f"day        {of_day.root:.6f}: "
        + (f"assumed {tolerance.between_days:g}" if of_day.square else "of the same day"),
        f"median     {of_median(night, len(new)).root:.6f} = 1.16 s_n / sqrt({len(new)})",
        f"se         {_known(error)}: the root of the squares of these three",
        f"delta0     {look.floor:.6f}: asked {math.log1p(tolerance.floor):.6f}, and what can be "
        f"held is {look.lasting.reach(HELD_RATE):.6f}",
        f"chance     {look.chance(rate, 1):.6f} is reached in {ALARM_RATE:g} / ({ALARMING} looks x "
        f"{len(gated)} gated metrics x 1 test) of nights",
        f"interval   {units.moved(look.shown(look.change - look.margin))} to "
        f"{units.moved(look.shown(look.change + look.margin))}: d -+ "
        f"{quantile(UNCHANGED_RATE, error.degrees):.2f} se",
        f"MDE        {units.moved(look.shown(minimum_detectable_effect(look, rate)))}: "
        "found 99 times in 100",
        f"verdict    {outcome.value} ({reason})",
    ]
    return "```\n" + "\n".join(lines) + "\n```\n"


def _known(variance: Variance) -> str:
    return f"{variance.root:.6f}, {variance.degrees:.1f} degrees of freedom"


def _rounds(measurement: Measurement, metric: str) -> tuple[float, ...]:
    return next(s.values for s in measurement.samples if (s.phase, s.metric) == (STEP, metric))


ABSENT = "-"


def of_processes(run: Run, configuration: str, metric: str, part: str = STEP) -> dict[str, float]:
    """The median over rounds of each process that measured it, by process."""
    return {
        measurement.process: median(sample.values)
        for measurement in run.measurements
        if measurement.configuration == configuration
        for sample in measurement.samples
        if (sample.phase, sample.metric) == (part, metric)
    }


def medians(run: Run, metrics: Sequence[str], configurations: Sequence[str]) -> str:
    """A row per configuration and a column per metric, of the whole step."""
    rows = [
        f"| configuration | {' | '.join(f'`{metric}`' for metric in metrics)} |",
        f"| --- |{' ---: |' * len(metrics)}",
    ]
    for configuration in configurations:
        cells = [_cell(of_processes(run, configuration, metric), metric) for metric in metrics]
        rows.append(f"| `{configuration}` | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _cell(values: dict[str, float], metric: str) -> str:
    if not values:
        return ABSENT
    return units.value(median(values.values()), catalogue().metrics[metric].unit)


BASELINE = "baseline"
SAMPLING = "_sampling"
"""Behind a configuration's name: the measurement of its sampling step."""
_HEADINGS = (
    *("configuration", "training step", "faster", "peak memory", "first step"),
    *("sampling step", "faster"),
)


def speedups(run: Run, configurations: Iterable[str]) -> str:
    """A row per configuration that the run has, and how many times as fast as the baseline it is.

    The first step has in it what was compiled or captured; it is not measured otherwise.
    """
    rows = [
        f"| {' | '.join(_HEADINGS)} |",
        f"| --- |{' ---: |' * (len(_HEADINGS) - 1)}",
    ]
    rows += [
        f"| `{name}` | {' | '.join(_cells(run, name))} |"
        for name in configurations
        if of_processes(run, name, "step_time")
    ]
    return "\n".join(rows) + "\n"


def _cells(run: Run, name: str) -> tuple[str, ...]:
    training, sampling = (_time(run, f"{name}{what}") for what in ("", SAMPLING))
    bases = (_time(run, f"{BASELINE}{what}") for what in ("", SAMPLING))
    faster = [
        f"{base / time:.1f}x" if base and time else ABSENT
        for base, time in zip(bases, (training, sampling), strict=True)
    ]
    memory = of_processes(run, name, "peak_memory").values()
    return (
        units.value(training, "ms"),
        faster[0],
        units.value(median(memory), "bytes") if memory else ABSENT,
        _first_call(run, name),
        units.value(sampling, "ms"),
        faster[1],
    )


def _time(run: Run, configuration: str) -> float | None:
    values = of_processes(run, configuration, "step_time").values()
    return median(values) if values else None


def _first_call(run: Run, configuration: str) -> str:
    """The longest of the processes: others may have found compiled code in a cache."""
    seconds = [
        float(value)
        for measurement in run.measurements
        if measurement.configuration == configuration
        and (value := measurement.fingerprint.settings.get("first_call_s")) is not None
    ]
    return f"{max(seconds):.1f} s" if seconds else ABSENT


def claimed(claims: Sequence[Claim], run: Run) -> str:
    """A row per claim that is made of the run's device: the ratio, what is claimed, and what is.

    "here" has the ratio with its interval, or why there is none; a ratio that does not hold, or
    that is undecided, says so.
    """
    rows = ["| ratio | metric | claimed | here |", "| --- | --- | --- | --- |"]
    device = run.measurements[0].fingerprint.device
    for claim in claims:
        if not any(architectures.matches(pattern, device.arch) for pattern in claim.architectures):
            continue
        cells = (
            f"`{claim.numerator}` / `{claim.denominator}`",
            f"`{claim.metric}`",
            _bounds(claim),
            _here(claim, run),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _bounds(claim: Claim) -> str:
    bounds = (("above", claim.above), ("below", claim.below))
    return ", ".join(f"{name} {bound:.3g}" for name, bound in bounds if bound is not None)


def _here(claim: Claim, run: Run) -> str:
    sides = [_measured(run, name) for name in (claim.numerator, claim.denominator)]
    if not all(sides):
        return "not measured"
    metric = catalogue().metrics[claim.metric]
    judged = ratio(metric, *sides, above=claim.above, below=claim.below)
    if judged.measured is None:
        return "not measured"
    said = f"{judged.measured:.3g}"
    if judged.low is not None and judged.high is not None:
        said += f" ({judged.low:.3g} to {judged.high:.3g})"
    return said if judged.reason == "within" else f"{said}: {judged.outcome.value}"


def _measured(run: Run, configuration: str) -> list[Measurement]:
    return [m for m in run.measurements if m.configuration == configuration]


def known_devices() -> str:
    """The devices whose published peaks are known."""
    return ", ".join(f"`{name}`" for name in sorted(roofline.published())) + ".\n"


def derived(run: Run, configuration: str) -> str:
    """One kernel, the one with the highest score, step by step."""
    (table,) = (m.kernels for m in run.measurements if m.configuration == configuration)
    assert table is not None, configuration
    score = priority.priorities(table, kernel_families.family).kernels[0]
    rate = next(
        k
        for k in launch_totals.of_kernels(table, kernel_families.family).kernels
        if k.name == score.name
    )
    whole = launch_totals.total(
        launch.duration for launch in launch_totals.Counters(table).whole().launches
    )
    time = units.value(score.nanoseconds, "ns")
    assert score.throughput
    every = units.value(whole, "ns")
    return (
        f"{_code(score.name)}, {score.launches} launches in {time}:\n\n"
        f"- share of kernel time: {time} / {every} = {_percent(score.nanoseconds / whole)}\n"
        f"- IPC: {_number(rate.ipc)} of its launches together, geometric mean over them "
        f"{_number(rate.geometric_mean)}\n"
        f"- bottleneck: `{score.bottleneck}`, at {score.throughput:.2f} % of its peak\n"
        f"- estimated speedup: 100 / {score.throughput:.2f} - 1 = "
        f"{100 / score.throughput - 1:.3g}; of each launch clamped to 1, and weighed by time, "
        f"{_number(score.speedup)}\n"
        f"- priority score: {time} x {_number(score.speedup)} = "
        f"{units.value(score.score, 'ns')}, {_percent(score.share)} of the step's\n"
    )


def _code(name: str) -> str:
    return f"`{kernel_families.short_name(name)}`"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def quality(value: float) -> str:
    """A number of two digits, as the table of the quality gates has it."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}e{int(exponent)}"
