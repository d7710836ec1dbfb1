"""A step's launches added up by kernel and by family: what figures of kernels are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from pytest_gpuperf import kernels
from pytest_gpuperf.model import KernelTable

MOST_NAMES = 2000
"""So many names of a table are told apart, those that took most time: a step has about a hundred,
and reading names takes time."""
MOST_LAUNCHES = 30_000
"""So many launches of a table are in figures, the longest: a step has some thousand."""
OTHERS = "others"
"""The name of the rest, whose family is "other"."""

family: Callable[[str], str] = lru_cache(maxsize=1 << 14)(kernels.family)
"""`kernels.family`, each name read once."""
short_name: Callable[[str], str] = lru_cache(maxsize=1 << 14)(kernels.short_name)
"""`kernels.short_name`, the same way."""


@dataclass(frozen=True, slots=True)
class Launched:
    """The launches of kernels that read the same."""

    name: str
    """The short name, or the family when families were added up."""
    family: str
    full: str
    """The whole name, of one of them."""
    launches: int
    duration: float
    """Nanoseconds in all."""


def bounded(table: KernelTable) -> KernelTable:
    """The same with MOST_LAUNCHES launches and MOST_NAMES names at most.

    The shortest launches are left out; of the names that took least time, the last is OTHERS.
    """
    launches = table.launches
    if len(launches) > MOST_LAUNCHES:
        longest = sorted(range(len(launches)), key=lambda at: -launches[at].duration)
        launches = tuple(launches[at] for at in sorted(longest[:MOST_LAUNCHES]))
        table = replace(table, launches=launches)
    if len(table.names) <= MOST_NAMES:
        return table
    _, duration = _sums(table)
    order = sorted(range(len(table.names)), key=lambda index: -duration[index])
    kept = order[: MOST_NAMES - 1]
    places = {index: place for place, index in enumerate(kept)}
    return replace(
        table,
        names=(*(table.names[index] for index in kept), OTHERS),
        launches=tuple(
            replace(launch, name=places.get(launch.name, len(kept))) for launch in launches
        ),
    )


def by_kernel(table: KernelTable) -> list[Launched]:
    """The kernels, copies and fills of a table, those that took most time first.

    Kernels that read the same are one: those of one algorithm in several variants.
    """
    launches, duration = _sums(table)
    return _added(
        Launched(short_name(name), family(name), name, launches[index], duration[index])
        for index, name in enumerate(table.names)
    )


def by_family(table: KernelTable) -> list[Launched]:
    """The same by family, the one that took most time first."""
    return _added(replace(one, name=one.family) for one in by_kernel(table))


def _sums(table: KernelTable) -> tuple[list[int], list[float]]:
    """Launches and nanoseconds per name."""
    launches = [0] * len(table.names)
    duration = [0.0] * len(table.names)
    for launch in table.launches:
        launches[launch.name] += 1
        duration[launch.name] += launch.duration
    return launches, duration


def _added(found: Iterable[Launched]) -> list[Launched]:
    groups: dict[tuple[str, str], list[Launched]] = {}
    for one in found:
        groups.setdefault((one.name, one.family), []).append(one)
    sums = [
        replace(
            group[0],
            launches=sum(one.launches for one in group),
            duration=sum(one.duration for one in group),
        )
        for group in groups.values()
    ]
    return sorted(sums, key=lambda one: -one.duration)
