"""What a comparison of kernels finds, as it stands in a run's file. Computes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

_CHECKED = {"extra": "forbid", "allow_inf_nan": False}


class Kind(str, Enum):
    """What became of some launches."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    """Launched as before, and what its time changed by is within noise."""
    ADDED = "added"
    REMOVED = "removed"
    REPLACED = "replaced"
    GAP = "gap"
    """The time between kernels."""


class Cause(str, Enum):
    """What the counters and the sequence say of a change."""

    CODE = "other code"
    """The kernel executes more or fewer instructions than before."""
    MEMORY = "memory, cache or clocks"
    """It executes the same instructions in another time."""
    ALGORITHM = "another algorithm"
    SHAPE = "another shape"
    """The same kernel, launched over another grid or in other blocks."""
    MORE = "called more often"
    LESS = "called less often"
    NEW = "new"
    """The baseline has no launch of this kernel."""
    GONE = "gone"
    WAITED = "the GPU waited"
    """Synchronisation, or work of the host that kernels wait for."""
    WAITED_LESS = "the GPU waited less"
    UNKNOWN = ""
    """Nothing moved, or there are no counters to tell."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A counter, summed over the launches of an entry."""

    __pydantic_config__ = _CHECKED

    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Entry:
    """Launches of one kernel that one thing happened to, or the gap between kernels."""

    __pydantic_config__ = _CHECKED

    kind: Kind
    cause: Cause
    family: str
    name: int | None
    """Its position in `Blame.names`; None for the gap."""
    replaces: int | None
    """What was launched in its place before, for `replaced`."""
    short: str
    formerly: str
    """The short name of `replaces`, or ""."""
    grid: tuple[int, ...]
    """Blocks; empty for copies, fills and the gap. Of the baseline's where it was removed."""
    block: tuple[int, ...]
    launches_before: int
    launches_after: int
    before: float
    """Nanoseconds in all, as `after`."""
    after: float
    change: float
    """after - before."""
    share: float | None
    """change over the step's change; None where that is near zero. All entries' add up to 1."""
    relative: float | None
    """change over before; None for what was not there before."""
    cycles: Counted | None
    instructions: Counted | None
    """None where a launch has no count."""
    statistic: float | None
    """t of a matched kernel, or of the gap; None for what needs no test or is too small for one."""
    p_value: float | None
    significant: bool
    """Beyond noise, all matched kernels asked at once; always true of added, removed, replaced."""


@dataclass(frozen=True, slots=True)
class Family:
    """All launches of one family, whatever became of them."""

    __pydantic_config__ = _CHECKED

    family: str
    launches_before: int
    launches_after: int
    before: float
    """Nanoseconds, as `after` and `change`."""
    after: float
    change: float
    share: float | None
    relative: float | None
    cycles: Counted | None
    instructions: Counted | None


@dataclass(frozen=True, slots=True)
class Launched:
    """How the launches differ from the baseline's: counts of launches."""

    __pydantic_config__ = _CHECKED

    changed: bool
    """Whether the sequence of kernels is another one."""
    added: int
    removed: int
    replaced: int
    moved: int
    """Launched at another place of the sequence."""


@dataclass(frozen=True, slots=True)
class Blame:
    """Where the change of a step's time comes from. `entries` and `families` are worst first."""

    __pydantic_config__ = _CHECKED

    before: float
    """Nanoseconds: launches and gaps, as `after` and `change`."""
    after: float
    change: float
    relative: float | None
    explained: float | None
    """The share of the change that is of significant entries."""
    shift: float | None
    """The relative change that most of the matched kernels' time shares: then clocks or power did
    it. None where they do not move alike, or are too few."""
    launched: Launched
    entries: tuple[Entry, ...]
    """Their changes add up to `change`."""
    families: tuple[Family, ...]
    names: tuple[str, ...]
    measured_tables: int
    baseline_tables: int
    odd_tables: int
    """Tables whose launches are not those of the others of their side (`steps.py`)."""
