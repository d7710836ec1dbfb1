"""A run in other forms: reports by their files' suffix, the properties of JUnit, the extra_info of
pytest-benchmark, and OpenMetrics.

Other programs get a handful of short texts per test. Samples and kernels are for the run file.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.baselines import judgement
from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import printable
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.metric import Metric
from pytest_gpuperf.model.result import Outcome, Result, Run
from pytest_gpuperf.report.text import expectation_lines, step_tables, table
from pytest_gpuperf.report.text.next_command import CommandContext, of_run
from pytest_gpuperf.storage import files

if TYPE_CHECKING:
    from pytest_gpuperf.history.nights import History
    from pytest_gpuperf.report.proof import Proof

SUFFIXES = (".html", ".md", ".json")
"""The suffixes of reports."""
PREFIX = "gpuperf."
"""The prefix of all JUnit properties."""


def report_text(
    run: Run,
    report: Path,
    file: str = "",
    context: CommandContext | None = None,
    past: History | None = None,
    proof: Proof | None = None,
) -> str:
    """The report of `run` in the format that the suffix of `report` names, one of SUFFIXES.

    `file` is the saved run, "" if it is not saved; commands in the report name it. `context` says
    how the run was started; None derives it from the run. `past` is the history of other runs,
    which JSON leaves out. `proof` is the result of `gpuperf prove`, for HTML only.
    """
    if report.suffix == ".html":
        from pytest_gpuperf.report.html.page import page

        return page(run, file, context, past, proof)
    if report.suffix == ".md":
        from pytest_gpuperf.report.markdown import markdown, nights

        text = markdown(run, context=context or of_run(run, file))
        return text + (f"\n{nights(past)}" if past else "")
    return json.dumps(files.to_plain(run), indent=1, ensure_ascii=False) + "\n"


def share(
    results: Sequence[Result],
    user_properties: list[tuple[str, object]],
    fixtures: Mapping[str, object],
) -> None:
    """Adds a test's measurements so far to its JUnit properties and to its benchmark's extra_info.

    `fixtures` are the values of the test's fixtures, by name. Entries of an earlier execution of
    the test are replaced.
    """
    others = [entry for entry in user_properties if not entry[0].startswith(PREFIX)]
    mine = (entry for result in results for entry in properties(result))
    user_properties[:] = [*others, *mine]
    extra = getattr(fixtures.get("benchmark"), "extra_info", None)
    if isinstance(extra, dict) and results:
        extra["gpuperf"] = {r.name: extra_info(r) for r in results if r.measurements}


def properties(result: Result) -> Iterator[tuple[str, str]]:
    """Device and configuration, and the value and verdict of each gated metric of the step.

    `gpuperf.cycles` is the outcome, `gpuperf.cycles.measured` the value in the metric's unit,
    `gpuperf.cycles.change` the change as reports write it. Metrics that are and were zero are left
    out. A measurement's own name comes before the metric: `gpuperf.sampling.cycles`. Limits and
    ratios are sentences under one common name.
    """
    if result.measurements:
        yield from _of_measurement(result)
    for expectation in result.expectations:
        yield f"{PREFIX}expected", expectation_lines.line(expectation)


def extra_info(result: Result) -> dict[str, object]:
    """One measurement for pytest-benchmark's JSON, as plain data.

    `metrics` has, per metric of the whole step, `value` (the median over processes) and `unit`. A
    judged metric also has `outcome`, and `change` (a share, or points for a percentage).
    """
    metrics: dict[str, dict[str, object]] = {
        name: {"value": value, "unit": catalogue().metrics[name].unit}
        for name, value in step_tables.step_values(result.measurements).items()
    }
    for said in result.verdicts:
        if said.phase == STEP and said.metric in metrics and said.outcome is not Outcome.REPORTED:
            metrics[said.metric] |= {"outcome": said.outcome.value, "change": said.change}
    device = result.first.fingerprint.device
    return {
        "device": device.name,
        "arch": device.arch,
        "configuration": result.first.configuration,
        "processes": len(result.measurements),
        "metrics": metrics,
    }


def _of_measurement(result: Result) -> Iterator[tuple[str, str]]:
    first = result.first
    place = PREFIX if result.name == STEP else f"{PREFIX}{printable(result.name)}."
    yield f"{place}device", str(first.fingerprint.device)
    if first.configuration:
        yield f"{place}configuration", first.configuration
    yield f"{place}processes", str(len(result.measurements))
    lack = judgement.unjudged_reason(result)
    yield f"{place}judged", lack.value if lack else "yes"
    verdicts = {verdict.metric: verdict for verdict in result.verdicts if verdict.phase == STEP}
    for verdict in verdicts.values():
        if verdict.outcome is Outcome.KERNELS_CHANGED:
            yield f"{place}{verdict.metric}", verdict.outcome.value
    for metric, value in step_tables.step_values(result.measurements).items():
        if not catalogue().metrics[metric].gated:
            continue
        said = verdicts.get(metric)
        if value == 0 and (not said or table.is_zero(said)):
            continue
        if said:
            yield f"{place}{metric}", said.outcome.value
        yield f"{place}{metric}.measured", f"{value:.12g}"
        if said and said.change is not None:
            yield f"{place}{metric}.change", units.change(said)


# OpenMetrics

_BASE = {"ms": ("seconds", 1e-3), "ns": ("seconds", 1e-9), "%": ("ratio", 0.01)}
"""OpenMetrics has base units."""


_RUN = ("# TYPE gpuperf_run info", "# HELP gpuperf_run The measured code.")
_VERDICT = ("# TYPE gpuperf_verdict gauge", "# HELP gpuperf_verdict 1 for the outcome of a metric.")


def open_metrics(run: Run) -> str:
    """The text of OpenMetrics 1.0, "" without a value: the median over processes of each metric.

    A gauge per metric of the whole step, the test and what is better as labels. `gpuperf_verdict`
    has metric and outcome as labels. Only `gpuperf_run_info` has the revision: on other samples, it
    would make each commit a new time series.
    https://prometheus.io/docs/specs/om/open_metrics_spec/
    """
    families: defaultdict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
    for result in run.results():
        labels, when = _labels(result), _seconds(run.created)
        if result.measurements:
            under = result.first.fingerprint
            code = {"project": under.project, "revision": under.revision}
            families[_RUN][_sample("gpuperf_run_info", code, 1, when)] = None
            when = _seconds(under.measured or run.created)
        for said in result.said:
            if said.outcome is not Outcome.REPORTED:
                judged = {**labels, "metric": said.metric, "outcome": said.outcome.value}
                families[_VERDICT][_sample("gpuperf_verdict", judged, 1, when)] = None
        for name, value in step_tables.step_values(result.measurements).items():
            metric = catalogue().metrics[name]
            full, scale, head = _gauge(metric)
            measured = {**labels, "better": metric.direction.value}
            families[head][_sample(full, measured, value * scale, when)] = None
    lines = [line for head, samples in families.items() for line in (*head, *samples)]
    return "\n".join([*lines, "# EOF", ""]) if lines else ""


def _gauge(metric: Metric) -> tuple[str, float, tuple[str, ...]]:
    """A metric's name, the factor to its base unit, and the lines before its samples."""
    unit, scale = _BASE.get(metric.unit, (metric.unit, 1.0))
    unit = unit if unit.isascii() and unit.isalpha() else ""
    ends = not unit or metric.name.endswith(f"_{unit}") or metric.name == unit
    full = f"gpuperf_{metric.name}" if ends else f"gpuperf_{metric.name}_{unit}"
    units_of = [f"# UNIT {full} {unit}"] if unit else []
    helps = f"# HELP {full} {_label(metric.summary)}"
    return full, scale, (f"# TYPE {full} gauge", *units_of, helps)


def _sample(name: str, labels: Mapping[str, str], value: float, when: float) -> str:
    """One line: the value of a time series at a time in seconds since 1970."""
    written = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
    return f"{name}{{{written}}} {value!r} {when:.0f}"


def _labels(result: Result) -> dict[str, str]:
    """The labels that all metrics of a measurement have; a ratio has those of its test."""
    labels = {"test": result.test, "measurement": result.name}
    if result.measurements:
        first, device = result.first, result.first.fingerprint.device
        labels |= {"suite": first.suite, "configuration": first.configuration}
        labels |= {"device": device.name, "arch": device.arch}
    return labels


def _seconds(written: str) -> float:
    """An ISO date as seconds since 1970. Raises ValueError for what is no date."""
    from datetime import datetime, timezone

    made = datetime.fromisoformat(written.replace("Z", "+00:00"))
    return (made if made.tzinfo else made.replace(tzinfo=timezone.utc)).timestamp()


def _label(text: str) -> str:
    """`text` as the value of a label of OpenMetrics."""
    return printable(text).replace("\\", r"\\").replace('"', r"\"")
