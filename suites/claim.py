"""What a suite claims of two of its configurations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """A bound of the ratio between two configurations, on some architectures."""

    name: str
    """Names the test."""
    summary: str
    metric: str
    numerator: str
    """A configuration of the suite, as the denominator."""
    denominator: str
    architectures: tuple[str, ...]
    """Where it is claimed, as the marker `gpu_arch` has them: "sm80", or "sm80+" from there on."""
    verified: tuple[str, ...]
    """Where somebody has seen it hold."""
    source: str
    above: float | None = None
    below: float | None = None
