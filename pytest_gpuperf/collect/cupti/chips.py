"""What CUPTI knows of chips that need not be here: their metrics, and how many passes these take.

The host half of CUPTI answers for every chip that it lists, whatever this machine has. Releases up
to CUDA 13.0 do so without a driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuperf.collect.cupti import abi, library
from pytest_gpuperf.collect.cupti.configuration import Configuration
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.model import Unsupported


@dataclass(frozen=True)
class Schedule:
    """How a chip collects a list of metrics."""

    passes: int
    refused: tuple[Unsupported, ...]
    """Those of the metrics that the chip lacks, by NVIDIA's names; the passes are of the others."""


def known(cupti: library.Cupti) -> tuple[str, ...]:
    """The chips that this release knows. Raises CuptiError."""
    found = cupti.call(abi.HostGetSupportedChips)
    return tuple(found.ppChipNames[number].decode() for number in range(found.numChips))


def schedule(cupti: library.Cupti, chip: str, metrics: Sequence[str]) -> Schedule:
    """How `chip` collects these metrics of NVIDIA's while all its counters are free.

    Raises UsageFailure for a chip that this release does not know, and CuptiError.
    """
    if chip not in known(cupti):
        raise UsageFailure(
            f"CUPTI of CUDA {cupti.release} does not know the chip {chip}. "
            f"It knows {', '.join(known(cupti))}"
        )
    configuration = Configuration(cupti, chip.encode())
    try:
        refused = configuration.add(metrics)
        return Schedule(configuration.passes, refused)
    finally:
        configuration.close()
