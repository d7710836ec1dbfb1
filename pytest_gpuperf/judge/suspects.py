"""Suspects: what else was another thing on the night on which levels changed, likeliest first.

By Bayes' rule, over what differs between the last night of the old level and the first of the new:

- how often levels change where that differs. The code is another one nearly every night, and
  levels change on few of them; a driver is another one on few, and then they often do. Counted in
  this very history, with one night of each kind assumed on which they did and one on which not;
- what other devices say of the same night: those on which the same thing differs, and those on
  which it does not;
- whether counts that only code and libraries move did, and whether the canary did.

The chances of the latter two are assumed (`_COUNTS`, `_CANARY`), and coarse on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from pytest_gpuperf.judge.machine import TRAITS, Moved
from pytest_gpuperf.model.measurement import Scalar


class SuspectKind(str, Enum):
    """What kind of thing is another one."""

    CODE = "code"
    DRIVER = "driver"
    LIBRARIES = "libraries"
    """torch, CUDA, cuDNN, Triton and the like."""
    INTERPRETER = "python or host"
    TOOL = "measurement"
    """This package, or what it counts by."""
    GPU_KIND = "kind of GPU"
    """A GPU of the same name that is another thing: other GPCs, VBIOS, board or power limit."""
    GPU = "GPU"
    """Another one that is not known to differ."""
    MACHINE = "machine"
    """The canary moved, which is the same work every time."""
    WORKLOAD = "workload"
    """That of the test whose level changed: then nothing else is suspected."""


_HIT, _MISS = 0.8, 0.2
"""Of another device on which the same thing differs: that levels change there too, or not."""
_AMPLIFIED = 5.0
"""So many times what the canary reads of it a machine may change a step by."""
_NEVER = 1e-4
"""How likely a clock, or memory that is slower, makes other calls and no other times."""
_COUNTS: Mapping[SuspectKind, float] = {
    SuspectKind.CODE: 0.6,
    SuspectKind.LIBRARIES: 0.6,
    SuspectKind.INTERPRETER: 0.1,
    SuspectKind.TOOL: 0.3,
    SuspectKind.DRIVER: 0.1,
    SuspectKind.GPU_KIND: 0.05,
    SuspectKind.GPU: 0.02,
    SuspectKind.MACHINE: 0.02,
}
"""The chance that launches or instructions change, where this changed a level."""
_CANARY: Mapping[SuspectKind, float] = {
    SuspectKind.GPU_KIND: 0.8,
    SuspectKind.GPU: 0.5,
    SuspectKind.MACHINE: 0.98,
    SuspectKind.DRIVER: 0.2,
}
"""The chance that a reading of the GPU moves; where others changed a level, _CANARY_BY_CHANCE."""
_CANARY_BY_CHANCE = 0.03
_TOOLS = ("gpuperf", "cupti", "ncu")
_HOSTS = ("python", "platform", "cpu", "host", "os", "kernel")
_KINDS = ("gpcs", "vbios", "board_part", "memory_bytes", "ecc", "mig", "power_limit_watts")
_KINDS_TOO = ("enforced_power_limit_watts", "pcie_generation", "pcie_width", "inforom")
_ROUNDS = 4
"""How often rates and suspects are made of each other: they settle in two or three."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a night's numbers were measured under: whatever of it is another one is a suspect."""

    arch: str
    slug: str
    device: str
    """The device's name."""
    gpu: str
    """A digest of the GPU's UUID."""
    revision: str
    software: Mapping[str, str]
    machine: Mapping[str, Scalar]
    """What the GPU is beyond its name; empty where nobody says."""
    workload: Mapping[str, Scalar]
    collector: str
    canary: str
    """The code of the canary whose readings are comparable; "" where none was asked."""


@dataclass(frozen=True, slots=True)
class Night:
    """One night on one device: what it was measured under, and what the canary read."""

    day: int
    surroundings: Surroundings
    readings: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Suspect:
    """Something that is another thing since, and how likely it is that it did it."""

    kind: SuspectKind
    what: str
    """As in "driver 560.35 -> 570.86"."""
    share: float = 0.0
    """The shares of all suspects of an event add up to 1."""


@dataclass(frozen=True, slots=True)
class Event:
    """The levels of some series of one device changed on one night."""

    device: int
    before: int
    """The last night of the old level, as a position in the device's nights."""
    night: int
    """The first of the new one."""
    tests: frozenset[str]
    counts: bool | None
    """Whether launches or instructions changed too; None where nobody counts them."""
    times: bool = True
    """Whether anything else did: counts alone are nothing that a machine does."""
    size: float = 0.0
    """The median change of what else did, as a logarithm; 0 where that is not known."""


def differences(before: Night, now: Night) -> tuple[Suspect, ...]:
    """What is another thing now, and may have changed a level.

    Not the workload: that is of a test and not of a night.
    """
    old, new = before.surroundings, now.surroundings
    suspects: list[Suspect] = []
    if old.revision != new.revision or old.revision.endswith("+dirty"):
        what = f"{old.revision or 'unknown'}..{new.revision or 'unknown'}"
        suspects.append(Suspect(SuspectKind.CODE, what))
    software: dict[SuspectKind, list[str]] = {}
    for name in dict.fromkeys((*old.software, *new.software)):
        one, other = old.software.get(name) or "none", new.software.get(name) or "none"
        if one != other:
            said = f"{name} {one} -> {other}"
            software.setdefault(_kind_of(name), []).append(said)
    suspects += (Suspect(kind, ", ".join(said)) for kind, said in software.items())
    suspects += _of_the_gpu(before, now, {suspect.kind for suspect in suspects})
    if old.collector != new.collector and SuspectKind.TOOL not in software:
        what = f"collector {old.collector or 'none'} -> {new.collector or 'none'}"
        suspects.append(Suspect(SuspectKind.TOOL, what))
    return tuple(suspects)


def _kind_of(name: str) -> SuspectKind:
    if name == "driver":
        return SuspectKind.DRIVER
    if name in _TOOLS:
        return SuspectKind.TOOL
    return SuspectKind.INTERPRETER if name in _HOSTS else SuspectKind.LIBRARIES


def _of_the_gpu(before: Night, now: Night, others: set[SuspectKind]) -> list[Suspect]:
    old, new = before.surroundings, now.surroundings
    moved = canary_moved(before, now)
    gpus = f"GPU {old.gpu or 'unknown'} -> {new.gpu or 'unknown'}"
    facts = _changed(
        {name: old.machine[name] for name in (*_KINDS, *_KINDS_TOO) if name in old.machine},
        {name: new.machine[name] for name in (*_KINDS, *_KINDS_TOO) if name in new.machine},
    )
    # Of a machine that only one of the two nights names, nothing is known to differ.
    facts = facts if old.machine and new.machine else ""
    if facts:
        other = f"{gpus}: " if old.gpu != new.gpu else ""
        return [Suspect(SuspectKind.GPU_KIND, other + facts)]
    if old.gpu != new.gpu:
        of_it = [one for one in moved if not one.trait.host]
        read = f": {'; '.join(map(str, of_it))}" if of_it else ""
        return [Suspect(SuspectKind.GPU_KIND if of_it else SuspectKind.GPU, gpus + read)]
    # A driver may have other clocks: then it is the driver that moves the canary.
    if moved and SuspectKind.DRIVER not in others:
        return [Suspect(SuspectKind.MACHINE, "; ".join(map(str, moved)))]
    return []


def _changed(old: Mapping[str, Scalar], new: Mapping[str, Scalar]) -> str:
    names = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
    return ", ".join(f"{n} {old.get(n, 'none')} -> {new.get(n, 'none')}" for n in names)


def canary_moved(before: Night, now: Night) -> tuple[Moved, ...]:
    """Which readings moved by more than they do by themselves; none of two canaries' readings."""
    return tuple(
        one
        for name in _both_read(before, now, TRAITS)
        for one in [Moved(name, before.readings[name], now.readings[name])]
        if abs(one.change) > one.trait.noise
    )


def _both_read(before: Night, now: Night, asked: Iterable[str]) -> list[str]:
    """Those of the readings that both nights have; none of two canaries."""
    if before.surroundings.canary != now.surroundings.canary:
        return []
    return [n for n in asked if before.readings.get(n, 0) > 0 and now.readings.get(n, 0) > 0]


def ranked(
    devices: Sequence[Sequence[Night]], events: Sequence[Event]
) -> list[tuple[Suspect, ...]]:
    """The suspects of each event, the likeliest first; none where nothing is known to differ.

    `devices` are the nights of each device in the order of time.
    """
    moves = [[differences(one, other) for one, other in pairwise(nights)] for nights in devices]
    places: list[dict[int, list[int]]] = [{} for _ in devices]
    for days, nights in zip(places, devices, strict=True):
        for place, night in enumerate(nights[1:], 1):  # nothing differs before the first
            days.setdefault(night.day, []).append(place)
    happened: dict[tuple[int, int], frozenset[str]] = {}
    for event in events:
        key = event.device, event.night
        happened[key] = happened.get(key, frozenset()) | event.tests
    offered = dict.fromkeys(SuspectKind, 0)
    for device in moves:
        for suspects in device:
            for suspect in suspects:
                offered[suspect.kind] += 1
    chance = (len(happened) + 1) / (sum(map(len, moves)) + 2)
    evidence = [
        {
            suspect: _evidence(suspect, event, devices, moves, places, happened, chance)
            for nights in [devices[event.device]]
            for suspect in differences(nights[event.before], nights[event.night])
            if _is_enough(suspect, event, nights[event.before], nights[event.night])
        }
        for event in events
    ]
    rates = dict.fromkeys(SuspectKind, 0.5)
    shares: list[dict[Suspect, float]] = []
    for _ in range(_ROUNDS):
        shares = [_posterior(logs, rates) for logs in evidence]
        blamed = dict.fromkeys(SuspectKind, 0.0)
        for one in shares:
            for suspect, share in one.items():
                blamed[suspect.kind] += share
        rates = {k: (blamed[k] + 1) / (max(offered[k], blamed[k]) + 2) for k in SuspectKind}
    return [_sorted(one) for one in shares]


def _is_enough(suspect: Suspect, event: Event, before: Night, now: Night) -> bool:
    """Whether it may have done so much: a machine as much as the canary has read of it, or so."""
    if suspect.kind is not SuspectKind.MACHINE:
        return True
    read = max((abs(one.change) for one in canary_moved(before, now)), default=0.0)
    return event.size <= _AMPLIFIED * read


def _evidence(
    suspect: Suspect,
    event: Event,
    devices: Sequence[Sequence[Night]],
    moves: Sequence[Sequence[tuple[Suspect, ...]]],
    places: Sequence[Mapping[int, Sequence[int]]],
    happened: Mapping[tuple[int, int], frozenset[str]],
    chance: float,
) -> float:
    """The logarithm of how likely all that is seen is, if this did it."""
    total = 0.0
    nights = devices[event.device]
    for device in range(len(devices)):
        that_day = places[device].get(nights[event.night].day, ())
        if device == event.device or not that_day:
            continue
        stepped = any(
            event.tests & happened.get((device, place), frozenset()) for place in that_day
        )
        same = any(
            (s.kind, s.what) == (suspect.kind, suspect.what)
            for place in that_day
            for s in moves[device][place - 1]
        )
        likely = (_HIT if same else chance) if stepped else (_MISS if same else 1 - chance)
        total += math.log(likely)
    if event.counts is not None:
        moved = _COUNTS[suspect.kind]
        total += math.log(moved if event.counts else 1 - moved)
    before, now = nights[event.before], nights[event.night]
    # Of a GPU what its host reads says nothing, of the machine it does.
    machine = suspect.kind is SuspectKind.MACHINE
    asked = [name for name, trait in TRAITS.items() if machine or not trait.host]
    if not event.times:
        total += math.log(_NEVER) if machine else 0.0
    elif _both_read(before, now, asked):
        read = any(one.reading in asked for one in canary_moved(before, now))
        moved = _CANARY.get(suspect.kind, _CANARY_BY_CHANCE)
        total += math.log(moved if read else 1 - moved)
    return total


def _posterior(
    logs: Mapping[Suspect, float], rates: Mapping[SuspectKind, float]
) -> dict[Suspect, float]:
    if not logs:
        return {}
    # Odds that this one did it, and none of the others.
    scores = {
        suspect: log + math.log(rates[suspect.kind] / (1 - rates[suspect.kind]))
        for suspect, log in logs.items()
    }
    most = max(scores.values())
    weights = {suspect: math.exp(score - most) for suspect, score in scores.items()}
    total = math.fsum(weights.values())
    return {suspect: weight / total for suspect, weight in weights.items()}


def _sorted(shares: Mapping[Suspect, float]) -> tuple[Suspect, ...]:
    return tuple(
        Suspect(suspect.kind, suspect.what, share)
        for suspect, share in sorted(shares.items(), key=lambda entry: -entry[1])
    )
