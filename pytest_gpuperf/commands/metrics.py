"""`gpuperf metrics`: the metric catalogue per architecture, with the passes that it takes.

Passes are CUPTI's own answer, where a libcupti can be loaded. Needs no GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.catalogue.architectures import ARCHITECTURES, CPU, validate
from pytest_gpuperf.catalogue.metric_catalogue import catalogue, hardware, hardware_names
from pytest_gpuperf.commands import say_lines, terminal_width
from pytest_gpuperf.errors import CountersUnavailable, UsageFailure
from pytest_gpuperf.model.measurement import Unsupported
from pytest_gpuperf.model.metric import Direction, Metric
from pytest_gpuperf.report.text import table
from pytest_gpuperf.report.text.table import Line

USAGE: str | None = None
EXAMPLES = ("gpuperf metrics --gpu-arch sm90 --set core",)
_OFFLINE = "nvidia-cuda-cupti==13.0.*"
"""The newest wheel with a CUPTI that answers without a driver."""
_HEADINGS = ("metric", "unit", "better", "class", "")
_ABSENT = "absent"
_NONE = "no hardware counters"
_INDENT = "  "
_BELOW = "     "
"""The indent of NVIDIA's name below a metric; the longest name then fits into 80 columns."""


@dataclass(frozen=True)
class Passes:
    """The passes that one CUPTI release needs on the chosen architectures."""

    release: str
    """The CUDA release of the library."""
    library: str
    """The file of the library."""
    counts: Mapping[str, Mapping[str, int]]
    """Passes of one round, per architecture and set; no entry for a chip that it does not know."""
    refused: Mapping[str, tuple[Unsupported, ...]]
    """Per architecture, the metrics of the catalogue that the library lacks, by NVIDIA's names."""


@dataclass(frozen=True)
class Listing:
    """The part of the catalogue that was asked for."""

    architectures: tuple[str, ...]
    metrics: tuple[Metric, ...]
    sets: tuple[str, ...]
    """The sets, or the metrics chosen instead of a set: "l2_hit_rate,dram_bytes"."""
    passes: Passes | str
    """The passes, or the reason why they are not known."""


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
    parser.add_argument(
        "--library",
        type=Path,
        metavar="PATH",
        help="libcupti that computes the passes; default: the one for measuring",
    )


def act(options: argparse.Namespace) -> int:
    """Prints the catalogue as the flags say, and returns 0.

    Raises UsageFailure for unknown architectures, sets and metrics, and for a --library that cannot
    be used.
    """
    listed = listing(options.architectures, options.wanted, options.library)
    say_lines(lines(listed, terminal_width()))
    return 0


def listing(
    architectures: Sequence[str] = (), wanted: str | None = None, library: Path | None = None
) -> Listing:
    """The catalogue for these architectures (default: all), or the part of it that is `wanted`.

    Raises UsageFailure for unknown architectures, sets and metrics, and for a `library` that cannot
    be used.
    """
    everything = catalogue()
    names = tuple(dict.fromkeys(map(validate, architectures or ARCHITECTURES)))
    if not architectures:
        names = tuple(name for name in names if name != CPU)
    if wanted is None:
        metrics, sets = tuple(everything.metrics.values()), everything.counter_sets
    else:
        metrics, sets = everything.selected(wanted), (wanted,)
    return Listing(names, metrics, sets, _known_passes(names, sets, library))


def lines(listed: Listing, width: int) -> list[Line]:
    """A listing as lines of at most `width` characters.

    A metric stands with the smallest set that has it; NVIDIA's name is below where space is short.
    """
    groups: dict[str, list[tuple[str, ...]]] = {}
    for metric in listed.metrics:
        groups.setdefault(_group(metric), []).append(_cells(metric, listed.architectures))
    rows = [row for name in _groups() if name in groups for row in ((name,), *groups[name])]
    return [
        *table.column_lines(_HEADINGS, rows, width, left=range(len(_HEADINGS)), below=_BELOW),
        Line(""),
        *_passes(listed, width),
    ]


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


def _known_passes(names: Sequence[str], sets: Sequence[str], library: Path | None) -> Passes | str:
    from pytest_gpuperf.measure.cupti import configuration
    from pytest_gpuperf.measure.cupti.library import Cupti, load

    if set(names) == {CPU}:
        return "none, as gpuperf counts on a CPU while the step runs"
    if library is not None and not library.is_file():
        raise UsageFailure(f"--library {library} does not exist. Name a libcupti.so.12 or .13")
    try:
        # The loader looks for a relative path elsewhere.
        cupti = Cupti(library.resolve()) if library else load()
    except CountersUnavailable as error:
        if library:
            raise UsageFailure(
                f"--library: {error}. CUPTI of CUDA 13.0 computes passes without a driver"
            ) from error
        return (
            f"unknown here: {error.reason}. To compute them without a GPU, type `pip install "
            f"{_OFFLINE}`"
        )
    known = configuration.known(cupti)
    counts: dict[str, dict[str, int]] = {}
    refused: dict[str, tuple[Unsupported, ...]] = {}
    for name in names:
        chip = next(iter(ARCHITECTURES[name].chips), "")
        if chip not in known:
            continue
        for wanted in sets:
            asked = [hardware(metric, name) for metric in catalogue().selected(wanted)]
            planned = configuration.schedule(cupti, chip, [entry for entry in asked if entry])
            counts.setdefault(name, {})[wanted] = planned.passes
            refused[name] = tuple(dict.fromkeys((*refused.get(name, ()), *planned.refused)))
    return Passes(cupti.release, str(cupti.path), counts, refused)


def _groups() -> list[str]:
    """Titles in the order of the sets: each set of counters includes the set before it."""
    counted = catalogue().counter_sets
    besides = dict(zip(counted[1:], counted, strict=False))
    titles = [
        f"{name}, from a trace"
        if name not in counted
        else ", besides ".join(filter(None, (name, besides.get(name))))
        for name in catalogue().sets
    ]
    return [*titles, _NONE]


def _group(metric: Metric) -> str:
    having = (metric.name in members for members in catalogue().sets.values())
    return next(title for title, has in zip(_groups(), (*having, True), strict=True) if has)


def _cells(metric: Metric, architectures: tuple[str, ...]) -> tuple[str, ...]:
    direction = metric.direction
    return (
        _INDENT + metric.name,
        metric.unit,
        "-" if direction is Direction.NEUTRAL else direction.value,
        f"{metric.metric_class.value}{', gated' if metric.gated else ''}",
        names(metric, architectures),
    )


def _passes(listed: Listing, width: int) -> Iterator[Line]:
    if isinstance(listed.passes, str):
        yield from table.wrapped_lines(f"passes: {listed.passes}", width, "doubtful")
        return
    known = listed.passes
    title = f"passes of the step per round, by CUPTI of CUDA {known.release}, {known.library}:"
    yield from table.wrapped_lines(title, width, "heading")
    counted = [
        (name, *(str(known.counts[name][wanted]) for wanted in listed.sets))
        for name in listed.architectures
        if name in known.counts
    ]
    yield from table.column_lines(("", *listed.sets), counted, width, left=(0,))
    yield from _notes(known, listed.architectures, width)


def _notes(known: Passes, architectures: tuple[str, ...], width: int) -> Iterator[Line]:
    others = [name for name in architectures if name not in known.counts and name != CPU]
    if others:
        text = f"note: this CUPTI does not know {', '.join(others)}"
        yield from table.wrapped_lines(text, width, "doubtful")
    for name, refused in known.refused.items():
        for entry in refused:
            yield from table.wrapped_lines(f"note: {name}: {entry.reason}", width, "doubtful")
