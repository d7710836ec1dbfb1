"""What a configuration is asked, each time of a network of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from suites.meddpm.optimizations import Optimization
from suites.meddpm.quality import Configured, Quality

Answer = TypeVar("Answer")


def asked(
    question: Callable[[Configured], Answer], quality: Quality, optimization: Optimization
) -> Answer:
    """The answer to `Configured.errors`, `.deviation` or `.similarity`."""
    with quality.configured(optimization) as configured:
        return question(configured)
