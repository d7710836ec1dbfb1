"""Numbers and workloads as people read them: five significant digits, the unit's own prefixes."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pytest_gpuperf.errors import printable
from pytest_gpuperf.model.measurement import Scalar
from pytest_gpuperf.model.result import Verdict

_DECIMAL = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_COUNTED = ("cycles", "instructions", "thread instructions", "calls", "copies", "launches")


def value(number: float | None, unit: str) -> str:
    """A metric's value, for example "437.82 M" (cycles) or "232.41 ms"; "-" for None."""
    if number is None:
        return "-"
    if unit == "ns":
        return value(number / 1e6, "ms")
    if unit == "bytes":
        return _prefixed(number, _BINARY, "B")
    if unit == "%":
        return f"{number:.2f} %"
    if unit in ("FLOP", "FLOP/s"):
        return _prefixed(number, tuple((s, p + unit) for s, p in _DECIMAL), unit)
    if unit in _COUNTED:
        return _prefixed(number, _DECIMAL, "")
    text = _digits(number)
    return f"{text} {unit}" if unit == "ms" else text


def change(verdict: Verdict) -> str:
    """The change of a verdict, as `moved` writes it; "from 0" or "-" where there is none."""
    if verdict.change is None:
        return "from 0" if verdict.baseline == 0 and verdict.measured else "-"
    return moved(verdict.change, points=verdict.points)


def moved(change: float, *, points: bool = False) -> str:
    """A change: "+0.31 %", "+7.97 ppm", "x5.4" from a doubling on, "-2.14 pt" of a percentage."""
    if points:
        return f"{_rounded(change):+.2f} pt"
    if change >= 1:
        return f"x{1 + change:.3g}"
    # A change of a few parts in a million is what counters are for: do not show it as nothing.
    # Below parts in a billion it is the rounding of the logarithm.
    if abs(change) <= 5e-10:
        return "0 %"
    if abs(change) < 5e-5:
        return f"{change * 1e6:+.3g} ppm"
    return f"{_rounded(change * 100):+.2f} %"


def tolerance(verdict: Verdict) -> str:
    """The tolerance of a verdict, in the unit of its change; "-" where nothing was compared."""
    if verdict.tolerance is None:
        return "-"
    return f"{verdict.tolerance:.3g} pt" if verdict.points else f"{verdict.tolerance * 100:.3g} %"


def minimum_detectable_effect(verdict: Verdict) -> str:
    """The smallest slowdown that would be found 99 times in 100, as `tolerance` writes it."""
    if verdict.minimum_detectable_effect is None:
        return "-"
    if verdict.points:
        return f"{verdict.minimum_detectable_effect:.3g} pt"
    # Shown to two digits: it is an estimate.
    return f"{verdict.minimum_detectable_effect * 100:.2g} %"


def _rounded(number: float) -> float:
    """To two decimals, and never -0."""
    return round(number, 2) + 0.0


def _prefixed(number: float, prefixes: tuple[tuple[float, str], ...], unit: str) -> str:
    # Counts of five digits are read whole.
    for size, prefix in prefixes if abs(number) >= 1e5 else ():
        if abs(number) >= size:
            return f"{_digits(number / size)} {prefix}"
    return f"{number:g} {unit}".rstrip()


def _digits(number: float) -> str:
    """Five significant digits, without an exponent where that is readable."""
    if number == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(number)))
    if -4 <= magnitude < 5:
        return f"{number:.{max(4 - magnitude, 0)}f}"
    return f"{number:.4e}"


def differences(old: Mapping[str, Scalar], new: Mapping[str, Scalar]) -> str:
    """Where two workloads differ: "size 128, here 64"."""
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    said = (f"{key} {old.get(key, 'unset')}, here {new.get(key, 'unset')}" for key in keys)
    return "; ".join(map(printable, said))
