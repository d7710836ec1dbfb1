"""The proof that gates can fire: known slowdowns put into tests, and the verdicts on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from pytest_gpuperf.model.measurement import CHECKED, Device


class Firing(str, Enum):
    """The answer of a test to a slowdown."""

    RED = "red"
    PASSED = "passed"
    UNJUDGED = "not judged"
    ABSENT = "not put in"
    """The step has no place for it."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One slowdown in one measurement of a test."""

    __pydantic_config__ = CHECKED

    test: str
    name: str
    """The measurement's name within its test."""
    slowdown: str
    share: float
    """The slowdown's size as a share of the step's time; 0 for one without a size."""
    firing: Firing
    why: str
    """The metrics that regressed with their changes; for other answers the reason."""
    metrics: tuple[str, ...] = ()
    """The metrics that regressed."""
    at: str = ""
    """The line of code where it was put in, "model/layers.py:118"; "" if unknown."""
    named: str = ""
    """The line that the verdict names as the cause; "" for none."""

    @property
    def is_named(self) -> bool:
        """Whether the verdict names the right line."""
        return bool(self.at) and self.at == self.named


@dataclass(frozen=True, slots=True)
class Proof:
    """The trials of one `gpuperf prove`."""

    __pydantic_config__ = CHECKED

    schema: int
    created: str
    """UTC, ISO 8601."""
    command: str
    device: Device
    trials: tuple[Trial, ...]
    failing: Mapping[str, str]
    """The reason for each test that fails without a slowdown, or before all were tried."""
    blind: Mapping[str, tuple[str, ...]]
    """By test, as sentences, what none of its gates sees."""

    @property
    def dead(self) -> list[Trial]:
        """The slowdowns that passed, none of a smaller or larger size being red."""
        red = {(t.test, t.name, t.slowdown) for t in self.trials if t.firing is Firing.RED}
        passed = {
            (t.test, t.name, t.slowdown): t
            for t in sorted(self.trials, key=lambda t: t.share)
            if t.firing is Firing.PASSED
        }
        return [trial for key, trial in passed.items() if key not in red]

    @property
    def holds(self) -> bool:
        """Whether every gate that was tried fired."""
        return not (self.dead or self.failing or any(self.blind.values()))
