"""The lines on a test's expectations, and the message when they fail.

An expectation never confirmed on the architecture carries a label wherever it is printed.
"""

from __future__ import annotations

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.model.measurement import Device, title_of
from pytest_gpuperf.model.result import Expectation, Outcome
from pytest_gpuperf.report.text import table


def line(expectation: Expectation) -> str:
    """One line with the measured value, the bounds and the outcome.

    For example "tf32 / baseline: cycles 0.1772, below 0.35: holds".
    """
    metric, of, bounds, _, outcome = row(expectation)
    return f"{of}: {metric} {value(expectation)}, {bounds}: {outcome}"


def value(expectation: Expectation) -> str:
    """The measured value, without its interval."""
    number = expectation.measured
    return table.NOTHING if number is None else _number(number, expectation)


def row(expectation: Expectation) -> tuple[str, str, str, str, str]:
    """The cells: metric, subject, bounds, measured with its interval, and outcome."""
    bounds = (("above", expectation.above), ("below", expectation.below))
    known = [f"{name} {_number(to, expectation)}" for name, to in bounds if to is not None]
    measured, low, high = value(expectation), expectation.low, expectation.high
    if expectation.measured is not None and low is not None and high is not None:
        measured += f" ({_number(low, expectation)} to {_number(high, expectation)})"
    outcome = expectation.outcome.value
    outcome += f" ({expectation.detail})" if expectation.detail else ""
    of = expectation.subject  # the two sides of a ratio, or the measurement of a limit
    of = title_of(expectation.test, of) if expectation.unit else of
    return expectation.metric, of, " and ".join(known), measured, outcome


def against(expectation: Expectation) -> tuple[str, str]:
    """The measured and the expected value: "cycles 448.00 M", "expected below 400.00 M"."""
    metric, _, bounds, measured, _ = row(expectation)
    return f"{metric} {measured}", f"expected {bounds}"


def failing(expectation: Expectation, *, told: bool) -> list[str]:
    """The lines in a failing test's message: the numbers unless `told`, and the confidence."""
    lines = [] if told else [line(expectation)]
    if expectation.measured is not None:
        lines.append(f"99.5 % interval, {units.counted(expectation.processes, 'process')}")
    return [f"  {text}" for text in lines]


def failure(expectation: Expectation, device: Device) -> str:
    """Why a test that expects a ratio failed, and what to do next."""
    measured, expected = against(expectation)
    _, of, *_ = row(expectation)
    if expectation.outcome is Outcome.UNSUPPORTED:
        measured = f"cannot read {expectation.metric}"
    elif expectation.outcome is not Outcome.BROKEN:
        measured += " is inconclusive"
    parts = [
        f"gpuperf: {of}: {measured} on {device}: {expected}",
        *failing(expectation, told=True),
        *([f"  {expectation.detail}"] if expectation.detail else []),
    ]
    if expectation.outcome is Outcome.INCONCLUSIVE:
        parts.append(
            "Pass a larger --gpuperf-processes, let the test pass by --gpuperf-inconclusive warn, "
            "or type gpuperf record --processes 3 -- ..."
        )
    return "\n".join(parts)


def _number(number: float, expectation: Expectation) -> str:
    return units.value(number, expectation.unit) if expectation.unit else f"{number:.4g}"
