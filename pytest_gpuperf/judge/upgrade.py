"""Upgrades: what of the software is another version than before, and what its code launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pytest_gpuperf.model.measurement import KernelTable
from pytest_gpuperf.model.result import Upgrade

_UNDER_ALL = ("driver", "cuda", "cudnn", "torch", "cupti", "ncu", "gpuperf", "python")
"""The software that all operators depend on, whoever calls them."""
_MACHINES = ("platform", "cpu")


def is_library(name: str) -> bool:
    """Whether the named software is a library, which only some tests of a session may import."""
    return name not in (*_UNDER_ALL, *_MACHINES)


def upgrades(
    before: Mapping[str, str],
    now: Mapping[str, str],
    old: Sequence[KernelTable] = (),
    new: Sequence[KernelTable] = (),
) -> tuple[Upgrade, ...]:
    """The software that has another version `now`, libraries whose launches changed first.

    A library whose code the step does not call, as the tables tell, is none. Nor is what only one
    side names: an older release of ours kept no versions of libraries.
    """
    then, calls = _launches(old), _launches(new)
    found = []
    for name in (name for name in now if before.get(name, now[name]) != now[name]):
        counts = (then[name], calls[name]) if then is not None and calls is not None else None
        if name not in _MACHINES and not (counts == (0, 0) and is_library(name)):
            found.append(Upgrade(name, before[name], now[name], *(counts or (0, 0))))
    return tuple(sorted(found, key=lambda one: one.launches_before == one.launches_after))


def _launches(tables: Sequence[KernelTable]) -> Counter[str] | None:
    """The number of launches per library that calls for them; None if no table has call sites."""
    for table in tables:
        if table.site_of:
            sites = (table.sites[at] for at in table.site_of)
            return Counter(library for site in sites for library in site.libraries)
    return None
