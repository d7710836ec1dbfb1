"""A step's launches added up by kernel and by family: what figures of kernels are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from pytest_gpuperf import kernels
from pytest_gpuperf.model import KernelTable

MOST_NAMES = 2000
"""So many names of a table are read, those that took most time; a step has about a hundred. The
rest, of a file that nobody measured, is OTHERS."""
OTHERS = "other"


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


@lru_cache(maxsize=16)
def by_kernel(table: KernelTable) -> tuple[Launched, ...]:
    """The kernels of a table, the one that took most time first."""
    launches = [0] * len(table.names)
    duration = [0.0] * len(table.names)
    for launch in table.launches:
        launches[launch.name] += 1
        duration[launch.name] += launch.duration
    order = sorted(range(len(table.names)), key=lambda index: -duration[index])
    read = [
        Launched(
            kernels.short_name(table.names[i]),
            kernels.family(table.names[i]),
            table.names[i],
            launches[i],
            duration[i],
        )
        for i in order[:MOST_NAMES]
    ]
    unread = [Launched(OTHERS, "other", "", launches[i], duration[i]) for i in order[MOST_NAMES:]]
    return _added([*read, *unread], lambda one: one.name)


def by_family(table: KernelTable) -> tuple[Launched, ...]:
    """The same by family, the one that took most time first."""
    return _added(by_kernel(table), lambda one: one.family)


def _added(found: Iterable[Launched], name: Callable[[Launched], str]) -> tuple[Launched, ...]:
    groups: dict[tuple[str, str], list[Launched]] = {}
    for one in found:
        groups.setdefault((name(one), one.family), []).append(one)
    sums = [
        Launched(
            key,
            family,
            group[0].full,
            sum(one.launches for one in group),
            sum(one.duration for one in group),
        )
        for (key, family), group in groups.items()
    ]
    return tuple(sorted(sums, key=lambda one: -one.duration))
