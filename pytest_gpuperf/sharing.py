"""What files of other plugins get of a test: properties in JUnit's, counters in benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.report import benchmarks, properties

if TYPE_CHECKING:
    from pytest_gpuperf.ledger import Judged

_BENCHMARK = "benchmark"
"""The fixture of pytest-benchmark."""


def share(
    judged: Sequence[Judged],
    user_properties: list[tuple[str, object]],
    fixtures: Mapping[str, object],
) -> None:
    """Puts what a test measured so far into its properties, and into its benchmark's extra_info.

    `fixtures` are the values of the test's fixtures, by name. What an earlier execution of the test
    has put there is replaced.
    """
    others = [entry for entry in user_properties if not entry[0].startswith(properties.PREFIX)]
    ours: list[properties.Property] = []
    for entry in judged:
        if entry.measurements:
            ours += properties.of_measurement(entry.measurements, entry.verdicts)
        ours += properties.of_expectations(entry.expectations)
    user_properties[:] = [*others, *ours]
    extra = getattr(fixtures.get(_BENCHMARK), "extra_info", None)
    if isinstance(extra, dict) and judged:
        extra[benchmarks.KEY] = {
            entry.measurements[0].name: benchmarks.extra_info(entry.measurements, entry.verdicts)
            for entry in judged
            if entry.measurements
        }
