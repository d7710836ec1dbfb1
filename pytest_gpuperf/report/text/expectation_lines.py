"""The lines of what a test's author expected of the numbers, and the message of its failure.

Whatever nobody has seen hold on the architecture says so wherever it is printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.judge.stopping import LEAST_TO_ALARM
from pytest_gpuperf.model.measurement import Device, title_of
from pytest_gpuperf.model.result import Expectation, Outcome
from pytest_gpuperf.report.text import table
from pytest_gpuperf.report.text.table import Line


def unverified(arch: str) -> str:
    """The label of what nobody has seen hold on `arch`."""
    return f"not yet verified on {arch}"


def lines(expectations: Sequence[Expectation], width: int) -> Iterator[Line]:
    """One line per expectation, wrapped where it is longer than `width` characters."""
    for expectation in expectations:
        tone = table.TONES.get(expectation.outcome, "")
        yield from table.wrapped_lines(line(expectation), width, tone)


def line(expectation: Expectation) -> str:
    """What was expected, what was measured with its interval, and the outcome.

    "expected of cycles: tf32 / baseline below 0.35: 0.1772 (0.1765 to 0.1779), holds"
    """
    metric, of, bounds, measured, outcome = row(expectation)
    known = "" if expectation.measured is None else f"{measured}, "
    return f"expected of {metric}: {of} {bounds}: {known}{outcome}"


def row(expectation: Expectation) -> tuple[str, str, str, str, str]:
    """The same as cells: metric, subject, bounds, what was measured, outcome with its detail."""
    detail = f" ({expectation.detail})" if expectation.detail else ""
    return (
        expectation.metric,
        _subject(expectation),
        _bounds(expectation),
        _measured(expectation),
        expectation.outcome.value + detail,
    )


def in_short(expectation: Expectation) -> str:
    """What was measured, in a few words: "cycles 448.00 M"."""
    if expectation.measured is None:
        return ""
    return f"{expectation.metric} {_number(expectation.measured, expectation)}"


def failing(expectation: Expectation) -> list[str]:
    """A broken, undecided or unsupported expectation as lines for a failing test's message."""
    processes = counted(expectation.processes, "process")
    lines = [line(expectation), processes]
    if expectation.measured is not None:
        lines[1] = f"99.5 % interval, {processes}"
    if expectation.reason == "too-few-processes" and expectation.outcome is Outcome.INCONCLUSIVE:
        lines.append(
            f"It lies beyond, but one process in fifty is slow by itself: {LEAST_TO_ALARM} are "
            "needed to call it broken"
        )
    elif expectation.outcome is Outcome.INCONCLUSIVE:
        lines.append("The noise hides whether it holds: the bound is inside the interval")
    return [f"  {text}" for text in lines]


def failure(expectation: Expectation, device: Device) -> str:
    """Why a test that expects a ratio failed, and what to do next."""
    says = {
        Outcome.BROKEN: "is not as expected",
        Outcome.UNSUPPORTED: "cannot be judged",
    }.get(expectation.outcome, "is inconclusive")
    parts = [
        f"gpuperf: {expectation.metric} of {_subject(expectation)} {says} on {device.name} "
        f"({device.arch})",
        *failing(expectation),
    ]
    if expectation.outcome is Outcome.INCONCLUSIVE:
        parts.append(
            "Allow more processes by --gpuperf-processes, or record several: gpuperf record "
            "--processes 3; or pass with a warning by --gpuperf-inconclusive warn"
        )
    return "\n".join(parts)


def _subject(expectation: Expectation) -> str:
    """What is expected something of: a ratio by its sides, a limit by its test."""
    if not expectation.unit:
        return expectation.subject
    return title_of(expectation.test, expectation.subject)


def _bounds(expectation: Expectation) -> str:
    bounds = {"above": expectation.above, "below": expectation.below}
    return " and ".join(
        f"{name} {_number(bound, expectation)}"
        for name, bound in bounds.items()
        if bound is not None
    )


def _measured(expectation: Expectation) -> str:
    if expectation.measured is None:
        return table.NOTHING
    value = _number(expectation.measured, expectation)
    if expectation.low is None or expectation.high is None:
        return value
    low, high = _number(expectation.low, expectation), _number(expectation.high, expectation)
    return f"{value} ({low} to {high})"


def _number(number: float, expectation: Expectation) -> str:
    return units.value(number, expectation.unit) if expectation.unit else f"{number:.4g}"
