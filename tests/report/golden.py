"""The golden texts of all reports: each scenario as summary, failure, Markdown and annotation.

`python -m tests.report.golden` writes them anew, to be looked at as a diff.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pytest_gpuperf.baselines.judgement import OTHER_ALGORITHM, lacking, unjudged_reason
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.attribution import attribute
from pytest_gpuperf.judge.comparison import Comparison
from pytest_gpuperf.measure.device.nvml import portable_device
from pytest_gpuperf.model.measurement import (
    Conditions,
    Device,
    KernelTable,
    Measurement,
    Reading,
    Sample,
    Window,
)
from pytest_gpuperf.model.result import (
    DOUBTS,
    FAULTS,
    Expectation,
    Outcome,
    Result,
    Unfinished,
    Upgrade,
    Verdict,
)
from pytest_gpuperf.report import comparison_report, view
from pytest_gpuperf.report.github import Place, workflow_commands
from pytest_gpuperf.report.html.figure import cell_text
from pytest_gpuperf.report.html.figures import all_figures
from pytest_gpuperf.report.html.overview import overview
from pytest_gpuperf.report.html.subject import subjects
from pytest_gpuperf.report.markdown import markdown
from pytest_gpuperf.report.text import expectation_lines, failure, kernel_lines
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.summary import summary
from tests import ROOT
from tests.comparisons import ALONE, compared
from tests.examples import (
    A100,
    H200,
    OTHER_H200,
    TEST,
    kernels_changed,
    measurement,
    processes,
    result,
    run,
    verdict,
)
from tests.kernel_steps import NAMING, Sited, operators, sited, slowed, table, traced
from tests.report.html.pages import COMMITTED, committed, full

FOLDER = ROOT / "tests" / "data" / "reports"
SESSION = CommandContext("--gpu-arch sm90 suites/meddpm")
_MOST_ROWS = 12
"""Rows of a figure that are golden."""
_FAILING = (*FAULTS, *DOUBTS, Outcome.UNSUPPORTED)


def _said(metric: str = "cycles", outcome: Outcome = Outcome.REGRESSED, **more: Any) -> Verdict:
    return replace(verdict(metric, outcome), **more)


def _calm(metric: str = "cycles", change: float = 0.0, **more: Any) -> Verdict:
    return _said(metric, Outcome.UNCHANGED, change=change, **more)


def _lacking(metric: str, outcome: Outcome, detail: str, reason: str = "") -> Verdict:
    made = _said(metric, outcome, baseline=None, change=None, tolerance=None, detail=detail)
    return replace(made, reason=reason or made.reason, measured=None)


def _named(
    test: str, *verdicts: Verdict, file: str = "a.py", notes: Sequence[str] = (), **more: Any
) -> Result:
    made = measurement(test=f"{file}::{test}", **more)
    said = (replace(one, test=made.test, name=made.name) for one in verdicts)
    return result(made, *said, notes=tuple(notes))


STEP_TABLE = (("conv", 900.0), ("add", 300.0))
SILU = attribute(table(*STEP_TABLE, ("silu", 600.0), ("silu", 600.0)), table(*STEP_TABLE), NAMING)
SITES: list[Sited] = [
    ("conv", 900.0, "net.py:3 Net.forward a"),
    ("add", 300.0, "net.py:4 Net.forward b_c"),
]
SLOWER = _said("step_time", unit="ms", baseline=2.0, measured=2.5, change=0.25)
MODULES = attribute(
    sited(*SITES, ("silu", 600.0, "net.py:5 Net.act b_c")), sited(*SITES), NAMING, [SLOWER]
)
ATTEND = ("mm", "model.py:3 Net.attend layers.0")
ON_A_CPU = attribute(operators(ATTEND, ATTEND), operators(ATTEND), NAMING)
DISTURBED = Conditions(
    Reading(sm_clock_mhz=1980),
    Reading(sm_clock_mhz=1410, throttle_reasons=("software power cap",), other_processes=(4711,)),
)
RATIO = Expectation(
    *("suites/x.py::test_claim[tf32]", "cycles", "", "tf32 / baseline", None, 0.35),
    *(Outcome.HOLDS, "within", 0.17719, 0.17651, 0.17788, 3),
)
LIMIT = Expectation(
    *(TEST, "duration", "ns", "step", None, 225e6),
    *(Outcome.BROKEN, "beyond", 231e6, 230e6, 232e6, 3),
)


def _expecting(*expectations: Expectation) -> list[Result]:
    """Limits belong to the measurement, ratios stand by themselves."""
    limits = tuple(one for one in expectations if one.unit)
    ratios = [Result(e.test, e.subject, (), expectations=(e,)) for e in expectations if not e.unit]
    return [result(measurement(), _calm(), expectations=limits), *ratios]


def _components() -> Result:
    step: dict[str, list[float]] = {"cycles": [1e6], "kernel_time": [8e6], "launches": [110]}
    parts: dict[str, dict[str, list[float]]] = {
        name: {"kernel_time": [time], "launches": [launches], "copy_time_h2d": [copies]}
        for name, time, launches, copies in (
            *(("norm\n", 2e6, 60, 0.0), ("conv2d", 5e6, 40, 3e6), ("extract", 0.0, 0, 0.0)),
        )
    }
    made = measurement(step | {"graph_launches": [2]}, phases=parts)
    return result(replace(made, components=tuple(parts)), _calm())


def configured(name: str, **series: float) -> Result:
    """A measurement of one configuration of one test."""
    values = {metric: [value] for metric, value in series.items()}
    return result(measurement(values, test=f"x.py::test_step[{name}]", configuration=name))


WINDOW = Window(10, 3, "cupti", (Sample("step", "cycles", (1e6,)), Sample("step", "ipc", (2.0,))))
PHASES = [
    _said(outcome=Outcome.REPORTED, phase=phase, baseline=old, measured=new, change=change)
    for phase, old, new, change in (
        *(("forward", 70.0, 70.0, 0.0), ("backward", 100.0, 105.0, 0.05)),
        *(("optimizer", 2.0, 2.2, 0.1), ("new", None, 5.0, None)),
    )
]
INTERVALS = [
    _said(change=0.05, low=0.041, high=0.059, processes=3),
    _said("l2_hit_rate", change=-2.0, points=True, low=-2.5, high=-1.5, processes=3),
    _said("layout_copies", change=None, baseline=0.0, processes=3),
]
BLIND = [
    *(_said(tolerance=1.0), _said("step_time", tolerance=10.0), _said("ipc")),
    _said("copies", Outcome.REPORTED, reason="new-metric"),
    _said("launches", Outcome.REPORTED, reason="any-tolerated"),
]
UNREAD = [
    _lacking("cycles", Outcome.UNSUPPORTED, "CUPTI may not read counters here"),
    _lacking("instructions", Outcome.UNSUPPORTED, "CUPTI may not read counters here"),
    _calm("step_time", minimum_detectable_effect=0.012),
    _calm("stream_synchronizations"),
]
ZEROS = [
    _calm("copies", baseline=0.0, measured=0.0, reason="both-zero"),
    _said("launches", baseline=0.0, measured=3.0, change=None, reason="from-zero"),
    _said("collectives", Outcome.REPORTED, baseline=None, measured=0.0, change=None),
]
BLUNT = _calm(change=0.03, tolerance=0.084, minimum_detectable_effect=0.45)


def _undecided(*reasons: str) -> list[Result]:
    looks = [
        _said(metric, Outcome.INCONCLUSIVE, reason=reason, change=0.004, low=-0.001, high=0.05)
        for metric, reason in zip(("cycles", "instructions"), reasons, strict=False)
    ]
    return [result(measurement(), *looks)]


SCENARIOS: dict[str, list[Result]] = {
    "regressed": [result(measurement(), _said(), _said("ipc", Outcome.REPORTED))],
    "other kernels": [result(measurement(), kernels_changed(), _said(), attribution=SILU)],
    "cause and modules": [result(measurement(), SLOWER, attribution=MODULES)],
    "on a CPU": [
        result(
            measurement(device=portable_device()),
            _said("operators", change=1.0, baseline=1.0, measured=2.0, unit="calls"),
            attribution=ON_A_CPU,
        )
    ],
    "one line of several tests": [
        replace(
            _named(
                f"test_step_of_a_{'long_' * 5}name[{n}]",
                _said("operators", change=n + 1.0, baseline=1.0, measured=n + 2.0, unit="calls"),
                device=portable_device(),
            ),
            attribution=ON_A_CPU,
        )
        for n in range(7)
    ],
    "versions changed": [
        result(
            measurement(),
            _said(),
            attribution=replace(SILU, upgrades=(Upgrade("torch", "2", "3", 0, 0),)),
        ),
        _named("test_b", _said(), notes=("versions changed: torch 2 -> 3", "no kernel: why")),
    ],
    "improved": [
        result(measurement(), _said(outcome=Outcome.IMPROVED, measured=430e6, change=-0.016))
    ],
    "worse and better": [
        result(
            measurement(configuration=""),
            _said("peak_memory", change=0.3),
            _said(outcome=Outcome.IMPROVED, change=-0.1),
        )
    ],
    "no baseline": [
        result(
            measurement(),
            *(
                _lacking(metric, Outcome.NO_BASELINE, "x.yaml does not exist", "no-file")
                for metric in ("cycles", "step_time")
            ),
        )
    ],
    "several reasons": [
        _named(
            "test_unread",
            _said("instructions", Outcome.INCONCLUSIVE, change=0.004),
            _lacking("ipc", Outcome.UNSUPPORTED, "CUPTI may not read counters here"),
            _lacking("cycles", Outcome.NO_BASELINE, "x.yaml does not exist"),
        ),
        _named("test_slower", _said("ipc", Outcome.INCONCLUSIVE, change=0.004), _said()),
        _named(
            "test_new",
            _said("instructions", Outcome.INCONCLUSIVE, change=0.004),
            _lacking("cycles", Outcome.NO_BASELINE, "x.yaml does not exist"),
        ),
    ],
    "too few processes": _undecided("too-few-processes", "too-few-processes"),
    "too noisy": _undecided("too-few-processes", "too-noisy"),
    "a noisy metric": [
        result(measurement(), _said(outcome=Outcome.REPORTED, reason="too-noisy"), _calm("flops")),
        _named("test_noisy", _said(outcome=Outcome.REPORTED, reason="too-noisy")),
    ],
    "another kernel for the same work": _undecided(OTHER_ALGORITHM),
    "not measured again": _undecided("not-looked-again"),
    "unfit": [
        _named("test_hot", _said(outcome=Outcome.UNFIT, detail="throttled at the end: heat")),
        _named("test_shared", _said(outcome=Outcome.UNFIT, detail="shared with 1 process")),
    ],
    "another baseline": [
        _named(f"test_{reason}", _lacking("cycles", Outcome.NO_BASELINE, f"so: {reason}", reason))
        for reason in ("other-workload", "other-collector", "no-metric", "no-entry")
    ],
    "nothing gated": [
        _named("test_rates", _said("ipc", Outcome.REPORTED), settings={"collector": "cupti"}),
        _named("test_any", _said("cycles", Outcome.REPORTED, reason="any-tolerated")),
        _named("test_unread", _lacking("cycles", Outcome.UNSUPPORTED, "not on a MIG instance")),
    ],
    "machine": [
        result(
            measurement(),
            _said(
                outcome=Outcome.MACHINE, detail="gpuperf's reference kernels (canary) changed too"
            ),
        )
    ],
    "disturbed": [result(measurement(conditions=DISTURBED), _calm())],
    "without counters": [result(measurement({"step_time": [232.0]}), *UNREAD)],
    "what is lost": [
        result(
            measurement(),
            _said(
                "compiled_graphs", reason="not-compiled", change=-1.0, detail="It is not compiled."
            ),
        ),
        _named("t", _said("ipc", Outcome.INCONCLUSIVE, reason="no-work", detail="It is idle.")),
    ],
    "several processes": [
        result(
            [measurement(process=f"p{n}", name="sampling") for n in range(3)],
            kernels_changed("12 added, 3 removed, 4 replaced"),
            _calm(processes=3),
        ),
        result(measurement(device=A100), _calm()),
    ],
    "intervals": [result(measurement(name="sampling"), *INTERVALS)],
    "the same every time": [
        result(measurement(), _said(change=3.0, low=3.0, high=3.0, processes=3))
    ],
    "phases": [result(measurement(), _said(), *PHASES)],
    "wide": [result(measurement(), *BLIND), _named("test_blunt", BLUNT)],
    "zeros": [result(measurement(), *ZEROS)],
    "notes": [
        result(measurement(), _said(), notes=("no kernel can be named: no x.kernels.json.xz",))
    ],
    "expectations": _expecting(
        *(RATIO, replace(RATIO, verified=False, detail="not yet verified on sm80"), LIMIT),
        replace(RATIO, above=0.97, below=1.03, outcome=Outcome.BROKEN),
        replace(RATIO, measured=None, low=None, high=None, outcome=Outcome.UNSUPPORTED),
        replace(RATIO, outcome=Outcome.INCONCLUSIVE, reason="unsure", processes=1),
        replace(RATIO, outcome=Outcome.INCONCLUSIVE, reason="too-few-processes", processes=1),
        replace(LIMIT, subject="forward", outcome=Outcome.INCONCLUSIVE, reason="unsure"),
        replace(LIMIT, outcome=Outcome.UNSUPPORTED, measured=None, detail="no such counter"),
    ),
    "a broken ratio": _expecting(replace(RATIO, below=0.1, outcome=Outcome.BROKEN)),
    "an unread limit": _expecting(
        replace(LIMIT, outcome=Outcome.UNSUPPORTED, measured=None, detail="no such counter")
    ),
    "names": [
        _named("test_x", _said(), file="s/a/t.py"),
        _named("test_x", _said(), file="s/b/t.py"),
        _named("test_y", _said(outcome=Outcome.IMPROVED, change=-0.1)),
    ],
    "many": [
        *(_named(f"test_{n:02d}", _calm("ipc", 1e-5), _calm(change=n / 1e4)) for n in range(4)),
        _named("test_x", _calm(processes=3), name="first"),
        _named("test_blunt", BLUNT),
        _named("test_slower", _said()),
        _named("test_other", _calm(), device=A100),
        _named("test_reported", _said(outcome=Outcome.REPORTED)),
    ],
    "many metrics": [
        result(
            measurement({"cycles": [1.0]}),
            *(
                _said(metric.name, Outcome.REPORTED, unit=metric.unit)
                for metric in catalogue().hardware_set("paper")
            ),
            _calm("pipe_lsu"),
        )
    ],
    "configurations": [
        configured("tf32", cycles=200e6, tensor_utilization=50.0, operators=7.0),
        configured("baseline", cycles=400e6, tensor_utilization=10.0, operators=0.0),
        configured("channels_last", cycles=2000e6),
    ],
    "components": [_components()],
    "window": [result(replace(measurement({"cycles": [4e6]}), window=WINDOW), _calm())],
    "not judged": [
        result(measurement({"cycles": [437e6], "ipc": [2.5]}, phases={"forward": {"ipc": [1.0]}}))
    ],
    "nothing": [],
}


def _failures(results: Sequence[Result]) -> Iterator[str]:
    for one in results:
        failing = [entry for entry in one.said if entry.outcome in _FAILING]
        if failing and one.measurements:
            yield failure.failure(one, failing, SESSION)
            if failure.cause(one):
                yield "--- after another test with this cause"
                yield from failure.again(one, failing, "test_first[1]", 60)
        for entry in () if one.measurements else one.expectations:
            yield expectation_lines.failure(entry, H200)
        missing = unjudged_reason(one) if one.measurements else None
        if missing:
            yield failure.unjudged(one, missing, SESSION)


def _summaries(results: Sequence[Result]) -> Iterator[str]:
    for width, verbose in ((80, False), (44, False), (100, True)):
        lines = summary(results, width, SESSION, verbose=verbose)
        yield f"--- width {width}{', verbose' if verbose else ''}"
        yield from (f"{line.tone[:1] or ' '} {line.text}".rstrip() for line in lines)


def _coverage(results: Sequence[Result]) -> Iterator[str]:
    yield view.totals(results)
    in_vain = [(one, missing) for one, missing in lacking(results) if missing in view.REMEDIES]
    if in_vain:
        yield view.none_judged(in_vain)


def _markdown(results: Sequence[Result]) -> Iterator[str]:
    made = replace(run([]).with_results(results), unfinished=None)
    skipped = {} if results else {"test_a": "needs a GPU", "test_b": "needs a GPU"}
    unfinished = None if results else Unfinished(6, 7, 9)
    yield markdown(replace(made, skipped=skipped, unfinished=unfinished), context=SESSION)


def _overviews(results: Sequence[Result]) -> Iterator[str]:
    """The first screen of the HTML page as text."""
    made = run([]).with_results(results)
    said = overview(made, subjects(made), "run.json")
    yield from (f"{said.tone or 'plain'}: {said.heading}", said.headline, *said.leads)
    yield from (f"  {part}" for cause in said.causes for part in cause if part)
    yield f"{said.judged}: " + ", ".join(f"{count} {what}" for count, what, _ in said.totals)
    for row in said.rows:
        yield f"{row.place}. {row.label} on {row.device}{' (folded)' * row.calm}: {row.why}"
        for shown in (row.decides, *row.told):
            cells = (text for key, text in shown.items() if key != "tone")
            yield f"{shown.get('tone', '')[:1] or ' '} {' | '.join(cells)}"
        yield from (f"  {detail}" for detail in row.details)
    yield from (f"{tone}: {' | '.join(cells)}" for cells, tone, _ in said.expected)
    yield from (f"holds: {said.held}", *(f"note: {note}" for note in said.notes))
    yield from (f"{why} {', then '.join(commands)}" for why, commands in said.steps)


def _figures(name: str) -> Iterator[str]:
    """The figures of a committed run, each with its first rows; "full" has all metrics."""
    made = full(2) if name == "full" else committed(name)
    for figure in all_figures(subjects(made)):
        yield f"--- {figure.key}: {figure.title}"
        yield from filter(None, (figure.conclusion, figure.missing, *figure.notes))
        for row in (figure.columns, *figure.rows[:_MOST_ROWS]):
            yield " | ".join(map(cell_text, row))


def _annotations(results: Sequence[Result]) -> Iterator[str]:
    yield from workflow_commands(results, {TEST: Place("suites/meddpm/test_training.py", 12)})


A = measurement({"cycles": [437e6, 438e6, 439e6], "tensor_utilization": [30.0]})
B = measurement({"cycles": [600e6, 601e6, 602e6], "tensor_utilization": [22.0]})
KERNELS = (("fprop", 900.0), ("add", 300.0), ("wgrad", 2000.0))
THREE = processes("cycles", [[437.8e6], [438e6], [438.2e6]])
FIVE = processes("cycles", [[441.6e6], [441.8e6], [442e6], [442.2e6], [442.4e6]])
PHASED = measurement({"cycles": [5e6]}, phases={"forward": {"cycles": [2e6]}})
BACKWARD = measurement({"cycles": [0.0]}, phases={"backward": {"cycles": [3e6]}})


def _with(
    one: Measurement, *rows: tuple[str, float], idle: float = 10.0, mismatch: str = ""
) -> Measurement:
    return replace(one, kernels=replace(table(*rows, idle=idle), mismatch=mismatch))


def _on(one: Measurement, device: Device) -> Measurement:
    return replace(one, fingerprint=replace(one.fingerprint, device=device))


PORTABLE = replace(portable_device(), name="portable")
COMPARISONS: dict[str, Comparison] = {
    "metrics": compared(
        ([A], [B]), only_a=[ALONE], only_b=[tuple(replace(one, name="one") for one in ALONE)]
    ),
    "intervals": compared((THREE, FIVE)),
    "phases": compared(([PHASED], [BACKWARD]), ([BACKWARD], [PHASED])),
    "kernels": compared(
        (
            [_with(A, *KERNELS)],
            [_with(B, ("fprop b", 1300.0), *KERNELS[1:], ("silu", 50.0))],
        )
    ),
    "a gap": compared(([_with(A, *KERNELS)], [_with(A, *KERNELS, idle=500)])),
    "operators": compared(
        (
            [replace(_on(A, PORTABLE), kernels=operators(ATTEND))],
            [replace(_on(A, PORTABLE), kernels=operators(ATTEND, ATTEND))],
        )
    ),
    "the same": compared(([_with(A, *KERNELS)], [_with(A, *KERNELS)])),
    "means": compared(
        (
            [_with(one, *KERNELS) for one in THREE],
            [*(_with(one, ("fprop", 990.0), *KERNELS[1:]) for one in FIVE[:4]), FIVE[4]],
        )
    ),
    "a mismatch": compared(
        ([_with(A, *KERNELS, mismatch="launched in another order")], [_with(B, *KERNELS)])
    ),
    "one without kernels": compared(([_with(A, *KERNELS)], [B])),
    "what differs": compared(
        ([A], [measurement(software={"torch": "2.13.0"})]),
        ([A], [measurement(software={"torch": "2.13.0"}, workload={"size": 64})]),
        ([measurement(configuration="other")], [measurement(name="sampling")]),
    ),
    "another GPU": compared(([_on(A, H200)], [_on(B, OTHER_H200)])),
    "another kind": compared(
        ([_with(_on(A, A100), *KERNELS)], [_with(_on(B, H200), *KERNELS[1:])])
    ),
    "another machine": compared(
        ([_on(A, PORTABLE)], [_on(B, replace(PORTABLE, identity="another"))])
    ),
}


def _comparison(one: Comparison) -> Iterator[str]:
    for width, kernels in ((100, 10), (40, 6)):
        yield f"--- width {width}, kernels {kernels}"
        for line in comparison_report.text_lines(one, kernels=kernels, width=width):
            yield f"{line.tone[:1] or ' '} {line.text}".rstrip()


_STEP = (("fprop", 900.0), ("add", 300.0), ("wgrad", 2000.0), ("add", 310.0), ("adam", 500.0))
_FIRST = [("mm", f"model.py:3 Net.attend layers.{n}") for n in (0, 1)]
_AGAIN = [("mm", f"model.py:4 Net.attend layers.{n}") for n in (0, 0, 1, 1)]
_REST = [("relu", "model.py:9 Net.forward layers.0"), ("sum", "train.py:7 step")]
_MANY = [*((f"op{n}", "a.py:1 f") for n in range(7)), *(("mm", f"b.py:{n} g") for n in range(9))]
_LAST = ("mm", "b.py:99 f")
_TF32 = traced("tf32")
TABLES: dict[str, tuple[Any, KernelTable]] = {
    "another algorithm": (table(("fprop b@8", 1300.0), *_STEP[1:]), table(*_STEP)),
    "another shape": (table(("fprop@8", 1300.0), *_STEP[1:]), table(*_STEP)),
    "added, slower and a gap": (
        table(*_STEP[:4], ("adam", 800.0), ("silu", 100.0), idle=600),
        table(*_STEP, idle=100),
    ),
    # A line was put in above: what is the same is where it is now.
    "operators of a line": (operators(*_AGAIN, *_REST[:1]), operators(*_FIRST, *_REST)),
    "of one module": (
        operators(*_AGAIN[:2], *_AGAIN[3:], *_REST),
        operators(*_FIRST, *_REST),
    ),
    "the same operators": (operators(*_FIRST), operators(*_FIRST)),
    "of many lines": (operators(*_MANY, _LAST), operators(_LAST)),
    "many small ones of a family": (
        table(*_STEP, *((f"add {number}", 10.0) for number in range(40)), ("silu", 900.0)),
        table(*_STEP),
    ),
    "shapes of one kernel": (
        table(*_STEP, *((f"add@{blocks}", 100.0) for blocks in range(2, 12))),
        table(*_STEP),
    ),
    "nothing": (table(*_STEP), table(*_STEP)),
    "changes that cancel": (
        table(("add", 1300.0), ("wgrad", 700.0)),
        table(("add", 1000.0), ("wgrad", 1000.0)),
    ),
    "all kernels": (slowed(_TF32, range(len(_TF32.launches)), 1.015), _TF32),
    "an odd execution": (
        [table(*_STEP), table(*_STEP), table(*_STEP, ("silu", 1.0))],
        table(*_STEP),
    ),
    "more instructions": (
        table(("add", 400.0, 6e6), ("wgrad", 900.0, 1e6)),
        table(("add", 300.0, 5e6), ("wgrad", 900.0, 1e6)),
    ),
}


def _kernels(measured: Any, baseline: KernelTable) -> Iterator[str]:
    attribution = attribute(measured, baseline, NAMING)
    for width, most in ((80, kernel_lines.MOST), (44, kernel_lines.MOST), (80, 3)):
        yield f"--- width {width}, {most} lines"
        yield from kernel_lines.lines(attribution, width, most)


def _of_scenarios(report: Callable[[Sequence[Result]], Iterable[str]]) -> dict[str, str]:
    return {name: "\n".join(report(results)) for name, results in SCENARIOS.items()}


def _tidy(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.rstrip().split("\n"))


def texts() -> dict[str, str]:
    """The golden texts by their files' names."""
    reports = {
        "summary.txt": _of_scenarios(_summaries),
        "failure.txt": _of_scenarios(_failures),
        "coverage.txt": _of_scenarios(_coverage),
        "markdown.md": _of_scenarios(_markdown),
        "github.txt": _of_scenarios(_annotations),
        "overview.txt": _of_scenarios(_overviews),
        "kernels.txt": {name: "\n".join(_kernels(*tables)) for name, tables in TABLES.items()},
        "figures.txt": {name: "\n".join(_figures(name)) for name in (*COMMITTED, "full")},
        "comparison.txt": {name: "\n".join(_comparison(c)) for name, c in COMPARISONS.items()},
    }
    return {
        file: "\n".join(f"=== {name}\n{_tidy(text)}\n" for name, text in told.items() if text)
        for file, told in reports.items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for written, told in texts().items():
        (FOLDER / written).write_text(told, encoding="utf-8")
