"""Committed runs and results as the tables of README.md and docs/, for `script/docs`.

Each function reads committed files, or has a run of them, and returns Markdown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from benchmarks import contest as contests
from benchmarks import recorded
from benchmarks.causes.scores import RESULTS, Score
from pytest_gpuperf.analysis import roofline
from pytest_gpuperf.baselines import calibration
from pytest_gpuperf.catalogue import architectures, units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.commands import calibrate as shown
from pytest_gpuperf.judge.expectation import Ratio, ratio
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.model.result import Outcome, Run
from suites.claim import Claim


def contest(file: Path) -> str:
    """The rules on the same labelled nights."""
    results = json.loads(file.read_text(encoding="utf-8"))
    return "\n".join(contests.table(results, contests.SIMILAR)) + "\n"


def campaign(files: Sequence[Path]) -> str:
    """What `gpuperf calibrate` prints for these runs."""
    findings = calibration.findings([recorded.run(file) for file in files], "")
    lines = [line.text for one in findings for line in shown.lines(one, 80)]
    return "```\n" + "\n".join(lines) + "\n```\n"


_SEEDS = {
    "adam-loop": "Adam updates one weight at a time",
    "contiguous": "`.contiguous()` after each residual block, in channels-last layout",
    "conv-fp32": "one convolution without TF32",
    "extra-kernel": "one more elementwise kernel",
    "instructions-0.05": "a kernel of 0.05 % of the instructions",
    "instructions-0.5": "a kernel of 0.5 % of the instructions",
    "none": "none: the step is unmodified",
    "synchronise": "a synchronisation after each layer",
}
"""What each slowdown does to the step, by the name of its file."""


def seeds(files: Sequence[Path]) -> str:
    """What the judge said of losses put in on purpose; a file's name is the loss's."""
    rows = [
        "| slowdown | instructions, % | step_time, % | verdict |",
        "| --- | ---: | ---: | --- |",
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
        changes = " | ".join(units.change(v).removesuffix(" %") for v in gated[1:])
        what = _SEEDS[file.name.removesuffix(".json.xz")]
        rows.append(f"| {what} | {changes} | {worst.value} |")
    return "\n".join(rows) + "\n"


def causes(folders: Sequence[Path]) -> str:
    """A row per folder of causes: how many are named right. Below it those that are not."""
    rows = [
        "| patches | failed the test | line and module named right | kind named right |",
        "| --- | ---: | ---: | ---: |",
    ]
    wrong = []
    for folder in folders:
        content = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
        scored = [Score(**entry) for entry in content["counted"]]
        due = [score for score in scored if score.due]
        cells = (
            f"{sum(score.regressed for score in due)} of {len(due)}",
            f"{sum(score.right_place for score in scored)} of {len(scored)}",
            f"{sum(score.right_kind for score in scored)} of {len(scored)}",
        )
        rows.append(f"| `{folder.relative_to(folder.parents[2])}` | {' | '.join(cells)} |")
        wrong += [s.name for s in scored if not (s.right_place and s.right_kind)]
    return "\n".join([*rows, "", f"Wrong line, module or kind: {', '.join(wrong)}."]) + "\n"


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


BASELINE = "baseline"
SAMPLING = "_sampling"
"""Behind a configuration's name: the measurement of its sampling step."""
_HEADINGS = (
    *("configuration", "training step, ms", "faster", "peak memory, GiB", "first step, s"),
    "sampling faster",
)


def speedups(run: Run, configurations: Iterable[str]) -> str:
    """A row per configuration that the run has, and how many times as fast as the baseline it is.

    The first step has in it what was compiled or captured; it is not measured otherwise. Additions
    to tf32 that gain nothing are named in a sentence.
    """
    rows = [
        f"| {' | '.join(_HEADINGS)} |",
        f"| --- |{' ---: |' * (len(_HEADINGS) - 1)}",
    ]
    alike = []
    for name in configurations:
        if not of_processes(run, name, "step_time"):
            continue
        if name.startswith(f"{_TF32}+") and not _gains(run, name):
            alike.append(f"`{name}`")
        else:
            rows.append(f"| `{name}` | {' | '.join(_cells(run, name))} |")
    most = f"{100 * _GAIN:g} %"
    said = f"These are slower than `{_TF32}`, or less than {most} faster: {', '.join(alike)}."
    return "\n".join([*rows, "", said]) + "\n"


_TF32, _GAIN = "tf32", 0.01


def _gains(run: Run, name: str) -> bool:
    """Whether training or sampling takes at least this share less time than with TF32 alone."""
    pairs = ((_time(run, f"{one}{what}") for one in (name, _TF32)) for what in ("", SAMPLING))
    return any(time and base and time <= (1 - _GAIN) * base for time, base in pairs)


def _cells(run: Run, name: str) -> tuple[str, ...]:
    training, sampling = (_time(run, f"{name}{what}") for what in ("", SAMPLING))
    bases = (_time(run, f"{BASELINE}{what}") for what in ("", SAMPLING))
    faster = [
        f"{base / time:.1f}x" if base and time else ABSENT
        for base, time in zip(bases, (training, sampling), strict=True)
    ]
    memory = of_processes(run, name, "peak_memory").values()
    return (
        units.value(training, "ms").removesuffix(" ms"),
        faster[0],
        units.value(median(memory), "bytes").removesuffix(" GiB") if memory else ABSENT,
        _first_call(run, name),
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
    return f"{max(seconds):.1f}" if seconds else ABSENT


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
    metric, names = catalogue().metrics[claim.metric], (claim.numerator, claim.denominator)
    judged = ratio(Ratio(claim.name, "", metric, *names, claim.above, claim.below), *sides)
    if judged.measured is None:
        return "not measured"
    said = f"{judged.measured:.3g}"
    if judged.low is not None and judged.high is not None:
        said += f" ({judged.low:.3g}-{judged.high:.3g})"
    return said if judged.reason == "within" else f"{said}: {judged.outcome.value}"


def _measured(run: Run, configuration: str) -> list[Measurement]:
    return [m for m in run.measurements if m.configuration == configuration]


def known_devices() -> str:
    """The devices whose published peaks are known."""
    return ", ".join(f"`{name}`" for name in sorted(roofline.published())) + ".\n"
