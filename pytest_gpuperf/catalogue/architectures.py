"""Architectures: their names, their order, and the architecture of this machine.

They are written as NVIDIA's compilers do: "sm90" for compute capability 9.0. "cpu" is the
architecture of counts that do not depend on any device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_gpuperf.errors import UsageFailure, meant

CPU = "cpu"
"""The architecture of portable counts, on a machine without a GPU."""

_SM = re.compile(r"sm(\d+)")
_NEARLY = re.compile(r"sm|\d|cpu")
"""The start of a word that may be a misspelt name: "h100" is nearer to "sm100" than to "sm90"."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture that baselines can be kept for."""

    name: str
    chips: tuple[str, ...]
    """NVIDIA's chip names. The first is the one that CUPTI knows the architecture's metrics by."""
    products: tuple[str, ...] = ()
    """The product names of cards with these chips that are used for training."""


ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        Architecture("sm70", ("GV100",), ("V100",)),
        Architecture("sm75", ("TU102", "TU104", "TU106", "TU116", "TU117"), ("T4",)),
        Architecture("sm80", ("GA100",), ("A100", "A30")),
        Architecture("sm86", ("GA102", "GA103", "GA104", "GA106", "GA107"), ("A10", "A40")),
        Architecture("sm89", ("AD102", "AD103", "AD104", "AD106", "AD107"), ("L4", "L40", "L40S")),
        Architecture("sm90", ("GH100",), ("H100", "H200")),
        Architecture("sm100", ("GB100",), ("B200",)),
        Architecture("sm103", ("GB110",)),
        Architecture("sm120", ("GB202", "GB203", "GB205", "GB206", "GB207")),
        Architecture(CPU, ()),
    )
}
"""The known architectures by name, oldest first."""


def validate(name: str) -> str:
    """Returns `name` if it is a known architecture, raises UsageFailure otherwise."""
    if name in ARCHITECTURES:
        return name
    known = ", ".join(
        f"{one.name} ({', '.join(one.products)})" if one.products else one.name
        for one in ARCHITECTURES.values()
    )
    close = meant(name.lower(), ARCHITECTURES) if _NEARLY.match(name.lower()) else ""
    raise UsageFailure(f'unknown architecture "{name}".{close} gpuperf knows {known}')


def matches(pattern: str, arch: str) -> bool:
    """Whether `arch` satisfies `pattern`: "sm80" is exact, "sm80+" includes later ones.

    The order is numeric, sm90 before sm100. "cpu" matches only "cpu". Raises UsageFailure for a
    pattern that names no known architecture.
    """
    wanted = validate(pattern.removesuffix("+"))
    if not pattern.endswith("+") or wanted == arch:
        return wanted == arch
    least, actual = _SM.fullmatch(wanted), _SM.fullmatch(arch)
    return least is not None and actual is not None and int(actual[1]) >= int(least[1])


def slug(name: str) -> str:
    """A device's name as a folder name: "NVIDIA H200" is "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
