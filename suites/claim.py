"""What a suite claims of two of its configurations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_gpuperf.plugin.fixture import GpuPerf


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

    def expect(self, gpuperf: GpuPerf) -> None:
        """Holds it against what was measured before in this session; see `expect_ratio`."""
        gpuperf.expect_ratio(
            self.metric,
            self.numerator,
            self.denominator,
            above=self.above,
            below=self.below,
            verified=self.verified,
        )


def parameters(claims: Sequence[Claim], default: Collection[str]) -> list[Any]:
    """A parameter of a test per claim, named after it, on the architectures of which it is made.

    Claims of other configurations than the suite's `default` ones are beyond its default, too.
    """
    return [
        pytest.param(
            claim,
            marks=[
                pytest.mark.gpu_arch(*claim.architectures),
                *_beyond(claim, default),
            ],
            id=claim.name,
        )
        for claim in claims
    ]


def together(claims: Iterable[Claim]) -> dict[str, str]:
    """The first of the configurations that a configuration is compared with, in however many steps.

    A ratio is of two measurements of one process: whose tests run in several has those of one claim
    together in one of them.
    """
    first: dict[str, str] = {}
    for claim in claims:
        ends = {first.setdefault(of, of) for of in (claim.numerator, claim.denominator)}
        kept = min(ends)
        first = {name: kept if of in ends else of for name, of in first.items()}
    return first


def _beyond(claim: Claim, default: Collection[str]) -> list[pytest.MarkDecorator]:
    # The marker is the suites': where they do not run nobody has registered it.
    within = {claim.numerator, claim.denominator} <= {*default}
    return [] if within else [pytest.mark.beyond]
