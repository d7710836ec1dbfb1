"""One side of a comparison of kernels: one step, from one or several tables of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pytest_gpuperf.judge.alignment import Key, common
from pytest_gpuperf.model import KernelTable

CYCLES, INSTRUCTIONS = "cycles", "instructions"
"""The catalogue's metrics that say why a kernel's time changed."""


@dataclass(frozen=True)
class Step:
    """The launches that the tables of one side agree on, each with its mean over the tables."""

    keys: tuple[Key, ...]
    durations: tuple[float, ...]
    """Per launch, nanoseconds: the mean over the tables that have it."""
    counters: dict[str, tuple[float | None, ...]]
    """Per metric and launch, the mean over the tables that count it; None where none does."""
    tables: tuple[tuple[float, ...], ...]
    """Per table, the durations of the launches; the mean where a table lacks one."""
    idle: tuple[float, ...]
    """Per table, nanoseconds."""
    odd: int
    """Tables with another sequence of launches than the one that most have."""


def step(tables: Sequence[KernelTable]) -> Step:
    """The step that `tables`, of one or several executions of the same code, describe.

    Its launches are those of the sequence that most tables have (the first of them, where several
    are as frequent). The others are aligned with it, and their further launches left out.
    """
    sequences = [keys(table) for table in tables]
    usual, count = Counter(sequences).most_common(1)[0]
    places = [_places(usual, sequence) for sequence in sequences]
    rows = [
        [None if place is None else table.launches[place].duration for place in found]
        for table, found in zip(tables, places, strict=True)
    ]
    durations = [_mean(column) or 0.0 for column in zip(*rows, strict=True)]
    return Step(
        keys=usual,
        durations=tuple(durations),
        counters={
            metric: tuple(
                _mean(column)
                for column in zip(
                    *(_values(t, p, metric) for t, p in zip(tables, places, strict=True)),
                    strict=True,
                )
            )
            for metric in (CYCLES, INSTRUCTIONS)
        },
        tables=tuple(
            tuple(mean if x is None else x for x, mean in zip(row, durations, strict=True))
            for row in rows
        ),
        idle=tuple(table.idle for table in tables),
        odd=len(tables) - count,
    )


def keys(table: KernelTable) -> tuple[Key, ...]:
    """The launches of a table, by what makes them the same kernel."""
    return tuple(
        (table.names[launch.name], launch.grid or (), launch.block or ())
        for launch in table.launches
    )


def _places(usual: Sequence[Key], sequence: Sequence[Key]) -> list[int | None]:
    """Where in `sequence` each launch of `usual` is."""
    if sequence == usual:
        return list(range(len(usual)))
    found = dict(common(usual, sequence))
    return [found.get(position) for position in range(len(usual))]


def _values(table: KernelTable, places: Sequence[int | None], metric: str) -> list[float | None]:
    if metric not in table.metrics:
        return [None] * len(places)
    index = table.metrics.index(metric)
    launches = [None if place is None else table.launches[place] for place in places]
    return [launch.values[index] if launch and launch.values else None for launch in launches]


def _mean(column: Sequence[float | None]) -> float | None:
    known = [value for value in column if value is not None]
    return fmean(known) if known else None
