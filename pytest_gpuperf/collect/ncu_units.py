"""Numbers and units as ncu (Nsight Compute) writes them, in the catalogue's units.

ncu writes base units with `--print-units base` ("byte", "ns") and scaled ones without ("Kbyte",
"us"); versions before 2024 spell times out ("nsecond"). Its prefixes are decimal: 1 Kbyte is 1000
bytes.
"""

from __future__ import annotations

import math
import re

_NUMBER = re.compile(r"(\d{1,3}(,\d{3})+|\d+)(\.\d+)?([eE][+-]?\d+)?")
_ABSENT = frozenset({"", "n/a", "(!) n/a", "nan", "-nan", "(!) nan"})
"""What ncu writes for a metric that it could not collect of a kernel."""

_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SECONDS = {"n": 1.0, "u": 1e3, "m": 1e6, "": 1e9}
"""Nanoseconds, by the prefix of a second."""


def _prefixed(base: str) -> dict[str, float]:
    return {f"{prefix}{base}": factor for prefix, factor in _PREFIXES.items()}


_OPERATIONS = ("", "op", "ops", "math_op", "flop", "inst")
"""What operations of the tensor cores may be called: CUPTI says "math_op", ncu's own word is not
documented."""

# The averages over cycles and issues are of warps; which of these units they have depends on the
# version of ncu, and some versions give a ratio none.
_UNITS: dict[str, dict[str, float]] = {
    "cycles": _prefixed("cycle"),
    "instructions": _prefixed("inst"),
    "thread instructions": _prefixed("inst"),
    "FLOP": {p: f for base in _OPERATIONS for p, f in _prefixed(base).items()},
    "bytes": _prefixed("byte"),
    "ns": {f"{p}{s}": f for p, f in _SECONDS.items() for s in ("s", "second")},
    "%": {"%": 1.0},
    "instructions/cycle": {"inst/cycle": 1.0},
    "warps/cycle": {"warp": 1.0, "warp/cycle": 1.0},
    "warps/issue": {"": 1.0, "inst": 1.0, "warp": 1.0, "warp/inst": 1.0},
    "warps": _prefixed("warp"),
}


def factor(unit: str, written: str) -> float | None:
    """What a value in ncu's unit `written` is multiplied by to be in the catalogue's `unit`.

    None for a unit that is not known for it: guessing would be wrong by powers of ten.
    """
    return _UNITS.get(unit, {}).get(written.strip())


def number(text: str) -> float | None:
    """A number as ncu writes it, "1,980,000" or "118,161.68"; None for a cell without a value.

    Raises ValueError for anything else: another language's separators, a negative count, a value
    beyond all floats.
    """
    text = text.strip()
    if text.lower() in _ABSENT:
        return None
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f'"{text}" is not a number as ncu writes it')
    value = float(text.replace(",", ""))
    if not math.isfinite(value):
        raise ValueError(f'"{text}" is beyond all floats')
    return value
