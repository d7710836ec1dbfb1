"""Suspects: differences between the last night of a level and the first night of the next.

Suspects are facts, not probabilities, in the order of `SuspectKind`. Rare differences come first,
because they are strong evidence: a driver, a library, another kind of GPU, the machine. Then come
the code, which differs nearly every night, and another GPU not known to differ. Chance is last, for
a change so small or new that it may have no cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from pytest_gpuperf.judge.machine import TRAITS, Moved
from pytest_gpuperf.judge.upgrade import is_library
from pytest_gpuperf.model.measurement import Scalar


class SuspectKind(str, Enum):
    """The kind of difference, in the order in which suspects are listed."""

    WORKLOAD = "workload"
    """The workload of the test whose level changed; there are then no other suspects."""
    DRIVER = "driver"
    SOFTWARE = "software"
    """A library, Python, the operating system, or this package and what it counts with."""
    GPU_KIND = "kind of GPU"
    """A GPU of the same name that is another thing: another VBIOS, board or power limit."""
    MACHINE = "machine"
    """The canary moved, whose work is constant."""
    CODE = "code"
    GPU = "GPU"
    """Another one that is not known to differ."""
    CHANCE = "chance"


_ORDER = list(SuspectKind)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The conditions of a night's measurements: each difference is a suspect."""

    device: str
    """The device's name."""
    gpu: str
    """A digest of the GPU's UUID."""
    revision: str
    software: Mapping[str, str]
    machine: Mapping[str, Scalar]
    """Properties of the GPU beyond its name; empty if unknown."""
    workload: Mapping[str, Scalar]
    collector: str
    canary: str
    """The code of the canary whose readings are comparable; "" without a canary."""


@dataclass(frozen=True, slots=True)
class Night:
    """One night on one device: its surroundings and the canary's readings."""

    day: int
    surroundings: Surroundings
    readings: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Suspect:
    """A recorded difference."""

    kind: SuspectKind
    what: str
    """The difference as text, without its kind: "560.35 -> 570.86"."""

    def __str__(self) -> str:
        """The kind and the text."""
        return f"{self.kind.value} {self.what}"


def differences(before: Night, now: Night) -> tuple[Suspect, ...]:
    """Differences that may have changed a level, in the order of `SuspectKind`.

    The workload is not included: it belongs to a test and not to a night.
    """
    old, new = before.surroundings, now.surroundings
    said: dict[SuspectKind, list[str]] = {}
    if old.revision != new.revision or old.revision.endswith("+dirty"):
        revisions = f"{old.revision or 'unknown'}..{new.revision or 'unknown'}"
        said[SuspectKind.CODE] = [revisions]
    for name, what in _changed(old.software, new.software):
        if is_library(name) and not (old.software.get(name) and new.software.get(name)):
            continue  # a test that does not import it, or a run that kept no versions of libraries
        kind = SuspectKind.DRIVER if name == "driver" else SuspectKind.SOFTWARE
        said.setdefault(kind, []).append(what.removeprefix("driver "))
    if old.collector != new.collector:
        collectors = f"collector {old.collector or 'none'} -> {new.collector or 'none'}"
        said.setdefault(SuspectKind.SOFTWARE, []).append(collectors)
    suspects = [Suspect(kind, ", ".join(all_of_it)) for kind, all_of_it in said.items()]
    # A driver may have other clocks: then it is the driver that moves the canary.
    suspects += _of_the_gpu(before, now, same_driver=SuspectKind.DRIVER not in said)
    return tuple(sorted(suspects, key=lambda one: _ORDER.index(one.kind)))


def _changed(old: Mapping[str, Scalar], new: Mapping[str, Scalar]) -> list[tuple[str, str]]:
    """Each name whose value differs, and the change as text: "torch 2.11 -> none"."""
    return [
        (name, f"{name} {one} -> {other}")
        for name in dict.fromkeys((*old, *new))
        for one, other in [(_shown(old.get(name)), _shown(new.get(name)))]
        if one != other
    ]


def _shown(value: Scalar | None) -> str:
    return "none" if value in (None, "") else str(value)


def _of_the_gpu(before: Night, now: Night, *, same_driver: bool) -> list[Suspect]:
    old, new = before.surroundings, now.surroundings
    moved = canary_moved(before, now)
    gpus = f"{old.gpu or 'unknown'} -> {new.gpu or 'unknown'}"
    # If only one of the two nights names its machine, no difference is known.
    known = old.machine and new.machine
    facts = [what for _, what in _changed(old.machine, new.machine)]
    if known and facts:
        other = f"{gpus}: " if old.gpu != new.gpu else ""
        return [Suspect(SuspectKind.GPU_KIND, other + ", ".join(facts))]
    if old.gpu != new.gpu:
        of_it = [one for one in moved if not one.trait.host]
        read = f": {'; '.join(map(str, of_it))}" if of_it else ""
        return [Suspect(SuspectKind.GPU_KIND if of_it else SuspectKind.GPU, gpus + read)]
    if moved and same_driver:
        return [Suspect(SuspectKind.MACHINE, "; ".join(map(str, moved)))]
    return []


def canary_moved(before: Night, now: Night) -> tuple[Moved, ...]:
    """Readings that moved by more than their own noise; empty for different canaries."""
    if before.surroundings.canary != now.surroundings.canary:
        return ()
    moved = (
        Moved(name, before.readings[name], now.readings[name])
        for name in TRAITS
        if before.readings.get(name, 0) > 0 and now.readings.get(name, 0) > 0
    )
    return tuple(one for one in moved if abs(one.change) > one.trait.noise)
