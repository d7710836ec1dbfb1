"""`gpuperf metrics`: the metric catalogue per architecture. Needs no GPU."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pytest_gpuperf.catalogue.architectures import ARCHITECTURES, CPU, validate
from pytest_gpuperf.catalogue.metric_catalogue import catalogue, hardware_names
from pytest_gpuperf.commands import say_lines, terminal_width
from pytest_gpuperf.errors import OK
from pytest_gpuperf.model.metric import Direction, Metric
from pytest_gpuperf.report.text import table
from pytest_gpuperf.report.text.table import Line

USAGE: str | None = None
EXAMPLES = ("gpuperf metrics --gpu-arch sm90 --set core",)
_HEADINGS = ("metric", "unit", "better", "class", "")
_ABSENT = "absent"
_NONE = "no hardware counters"
_BELOW = "     "
"""The indent of NVIDIA's name below a metric; the longest name then fits into 80 columns."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf metrics`."""
    parser.add_argument(
        "--gpu-arch",
        dest="architectures",
        action="extend",
        nargs="+",
        default=[],
        metavar="ARCH",
        help="only these architectures, for example sm90; default: all",
    )
    parser.add_argument(
        "--set",
        dest="wanted",
        metavar="SETS",
        help="only these sets or metrics, as in --gpuperf-metrics",
    )


def act(options: argparse.Namespace) -> int:
    """Prints the catalogue as the flags say, and returns 0.

    Raises UsageFailure for unknown architectures, sets and metrics.
    """
    chosen = tuple(dict.fromkeys(map(validate, options.architectures)))
    chosen = chosen or tuple(name for name in ARCHITECTURES if name != CPU)
    known = catalogue()
    metrics = known.selected(options.wanted) if options.wanted else (*known.metrics.values(),)
    say_lines(lines(metrics, chosen, terminal_width()))
    return OK


def lines(metrics: Sequence[Metric], architectures: tuple[str, ...], width: int) -> list[Line]:
    """These metrics on these architectures as lines of at most `width` characters.

    A metric stands with the smallest set that has it; NVIDIA's name is below where space is short.
    """
    groups: dict[str, list[tuple[str, ...]]] = {name: [] for name in (*catalogue().sets, _NONE)}
    for metric in metrics:
        sets = (name for name, members in catalogue().sets.items() if metric.name in members)
        groups[next(sets, _NONE)].append(_cells(metric, architectures))
    rows = [row for name, of in groups.items() if of for row in ((name,), *of)]
    return table.column_lines(_HEADINGS, rows, width, left=range(len(_HEADINGS)), below=_BELOW)


def names(metric: Metric, architectures: tuple[str, ...]) -> str:
    """NVIDIA's name on these architectures, or each name with those that have it; "" for none.

    A metric that a CPU lacks is absent there, whatever its source on a GPU.
    """
    if not metric.hardware:
        if all(metric.exists_on(name) for name in architectures):
            return ""
        return _ABSENT if architectures == (CPU,) else f"{_ABSENT} ({CPU})"
    named = hardware_names(metric, architectures)
    if len(named) == 1:
        return next(iter(named)) or _ABSENT
    return ", ".join(f"{name or _ABSENT} ({' '.join(where)})" for name, where in named.items())


def _cells(metric: Metric, architectures: tuple[str, ...]) -> tuple[str, ...]:
    direction = metric.direction
    return (
        table.INDENT + metric.name,
        metric.unit,
        "-" if direction is Direction.NEUTRAL else direction.value,
        f"{metric.metric_class.value}{', gated' if metric.gated else ''}",
        names(metric, architectures),
    )
