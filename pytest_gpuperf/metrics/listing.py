"""The metric catalogue per architecture, with the passes that it takes.

Passes are CUPTI's own answer, where a libcupti can be loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf import arch
from pytest_gpuperf.errors import CountersUnavailable, UsageFailure
from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.model import Metric, Unsupported

_OFFLINE = "nvidia-cuda-cupti==13.0.*"
"""The newest wheel whose CUPTI answers without a driver."""


@dataclass(frozen=True)
class Passes:
    """What one CUPTI release says of the chosen architectures."""

    release: str
    """Of CUDA."""
    library: str
    """Its file."""
    counts: Mapping[str, Mapping[str, int]]
    """Passes of one round, per architecture and set; no entry for a chip that it does not know."""
    refused: Mapping[str, tuple[Unsupported, ...]]
    """Per architecture, what the catalogue has and the library has not, by NVIDIA's names."""


@dataclass(frozen=True)
class Listing:
    """The part of the catalogue that was asked for."""

    architectures: tuple[str, ...]
    metrics: tuple[Metric, ...]
    sets: tuple[str, ...]
    """Sets, or what was asked for in place of one: "l2_hit_rate,dram_bytes"."""
    passes: Passes | str
    """Or why they are not known."""


def listing(
    architectures: Sequence[str] = (), wanted: str | None = None, library: Path | None = None
) -> Listing:
    """The catalogue for these architectures (default: all), or the part of it that is `wanted`.

    Raises UsageFailure for unknown architectures, sets and metrics, and for a `library` that cannot
    be used.
    """
    everything = catalogue()
    names = tuple(dict.fromkeys(map(arch.validate, architectures or arch.ARCHITECTURES)))
    if not architectures:
        names = tuple(name for name in names if name != arch.CPU)
    if wanted is None:
        metrics, sets = tuple(everything.metrics.values()), everything.counter_sets
    else:
        metrics, sets = everything.selected(wanted), (wanted,)
    return Listing(names, metrics, sets, _passes(names, sets, library))


def hardware(metric: Metric, architecture: str) -> str | None:
    """NVIDIA's name of a metric, or None where it does not exist; nothing is counted on a CPU."""
    return None if architecture == arch.CPU else metric.hardware_name(architecture)


def hardware_names(metric: Metric, architectures: Sequence[str]) -> dict[str | None, list[str]]:
    """NVIDIA's names of a counter, None for "absent", each with the architectures that have it."""
    found: dict[str | None, list[str]] = {}
    for architecture in architectures if metric.hardware else ():
        found.setdefault(hardware(metric, architecture), []).append(architecture)
    return found


def _passes(names: Sequence[str], sets: Sequence[str], library: Path | None) -> Passes | str:
    from pytest_gpuperf.collect.cupti import chips
    from pytest_gpuperf.collect.cupti.library import Cupti, load

    if set(names) == {arch.CPU}:
        return "none, counts on a CPU are taken while the step runs"
    if library is not None and not library.is_file():
        raise UsageFailure(f"--library {library}: no such file. Name a libcupti.so.12 or .13")
    try:
        # The loader looks for a relative path elsewhere.
        cupti = Cupti(library.resolve()) if library else load()
    except CountersUnavailable as error:
        if library:
            raise UsageFailure(
                f"--library: {error}. CUPTI of CUDA 13.0 tells the passes without a driver"
            ) from error
        return (
            f"not known here: {error.reason}. `pip install {_OFFLINE}` brings a CUPTI that tells "
            "them without a GPU"
        )
    known = chips.known(cupti)
    counts: dict[str, dict[str, int]] = {}
    refused: dict[str, tuple[Unsupported, ...]] = {}
    for name in names:
        chip = next(iter(arch.ARCHITECTURES[name].chips), "")
        if chip not in known:
            continue
        for wanted in sets:
            asked = [hardware(metric, name) for metric in catalogue().selected(wanted)]
            planned = chips.schedule(cupti, chip, [entry for entry in asked if entry])
            counts.setdefault(name, {})[wanted] = planned.passes
            refused[name] = tuple(dict.fromkeys((*refused.get(name, ()), *planned.refused)))
    return Passes(cupti.release, str(cupti.path), counts, refused)
