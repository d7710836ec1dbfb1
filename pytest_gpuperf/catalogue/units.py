"""Numbers and workloads as people read them: five significant digits, the unit's own prefixes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from pytest_gpuperf.errors import printable
from pytest_gpuperf.model.measurement import Scalar
from pytest_gpuperf.model.result import Outcome, Verdict

BLUNT = 3.0
"""At this multiple of the tolerance, the detectable change is shown beside the word."""
_NOTHING = 5e-10
"""A relative change that is none."""

_DECIMAL = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_COUNTED = (
    *("cycles", "instructions", "thread instructions", "calls", "copies", "launches"),
    *("allocations", "breaks", "compilations", "graphs"),
)


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
    return _digits(number) + (" ms" if unit == "ms" else "")


def change(verdict: Verdict) -> str:
    """The change of a verdict that stands by itself, as `moved` writes it."""
    return changes([verdict])[0]


def changes(verdicts: Sequence[Verdict]) -> list[str]:
    """The changes of verdicts that stand together, all in the form that suits the largest.

    "from 0" or "-" where there is none.
    """
    factors = in_factors(verdict.change for verdict in verdicts if not verdict.points)
    return [
        ("from 0" if verdict.baseline == 0 and verdict.measured else "-")
        if verdict.change is None
        else moved(verdict.change, points=verdict.points, factors=factors)
        for verdict in verdicts
    ]


def in_factors(changes: Iterable[float | None]) -> bool:
    """Whether changes that stand together are factors: one of them is a doubling, or more."""
    return any(change is not None and change >= 1 for change in changes)


def moved(change: float, *, points: bool = False, factors: bool | None = None) -> str:
    """A change as text: "+0.31 %", "-2.14 pt" of a percentage, or "x5.4" from a doubling on.

    `factors` forces or forbids the factor, so that all changes of a table have one form.
    """
    if points:
        return f"{round(change, 2) + 0.0:+.2f} pt"  # never -0
    if change >= 1 if factors is None else factors:
        return _factor(change)
    # A smaller change is the rounding error of the logarithm.
    if abs(change) <= _NOTHING:
        return "0 %"
    # Any other has a sign, also with the third decimal of a small one.
    percent = 100 * change
    return f"{percent:+.{2 if abs(percent) >= 0.005 else 3}f} %"


def from_zero_or(change: float | None, *, points: bool = False) -> str:
    """A change as `moved` writes it; "from 0" for None."""
    return "from 0" if change is None else moved(change, points=points)


def interval(low: float, high: float, *, points: bool = False) -> tuple[str, str]:
    """The ends of an interval, both in the form of the larger."""
    factors = in_factors((low, high)) and not points
    lower, upper = (moved(end, points=points, factors=factors) for end in (low, high))
    return lower, upper


def tolerance(verdict: Verdict) -> str:
    """The tolerance of a verdict, in the unit of its change; "-" where nothing was compared."""
    return _amount(verdict.tolerance, 3, points=verdict.points)


def minimum_detectable_effect(verdict: Verdict) -> str:
    """The smallest slowdown that would be found 99 times in 100, as `tolerance` writes it."""
    # Shown to two digits: it is an estimate.
    digits = 3 if verdict.points else 2
    return _amount(verdict.minimum_detectable_effect, digits, points=verdict.points)


def _amount(change: float | None, digits: int, *, points: bool) -> str:
    if change is None:
        return "-"
    return f"{_plain(change, digits)} pt" if points else f"{_plain(change * 100, digits)} %"


def outcome(verdict: Verdict) -> str:
    """The word for a verdict; "unchanged (MDE 45 %)" where much more than the tolerance would pass.

    That is so on a noisy device, or between GPUs that differ: no less than that is ruled out.
    """
    word, least = verdict.outcome.value, verdict.minimum_detectable_effect
    if verdict.outcome is not Outcome.UNCHANGED or not least or not verdict.tolerance:
        return word
    if least < BLUNT * verdict.tolerance:
        return word
    return f"{word} (MDE {minimum_detectable_effect(verdict)})"


def _plain(number: float, digits: int) -> str:
    """`digits` significant digits, large numbers without exponent: "120", "0.016", "3e-05"."""
    text = f"{number:.{digits}g}"
    return f"{float(text):.0f}" if "e+" in text else text


def _factor(change: float) -> str:
    """The change as a factor: "x5.4", or two digits of a small change: "x1.0011"."""
    if abs(change) <= _NOTHING:
        return "x1"
    if abs(change) >= 0.1:
        return f"x{1 + change:.3g}"
    decimals = 1 - math.floor(math.log10(abs(change)))
    return f"x{1 + change:.{decimals}f}".rstrip("0")


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


def duration(seconds: float) -> str:
    """Seconds as people say them: "61 s", "2.5 min", "14 h"; at most two digits of min and h."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    number, unit = (seconds / 60, "min") if seconds < 99.5 * 60 else (seconds / 3600, "h")
    return f"{number:.2g} {unit}" if number < 9.95 else f"{number:.0f} {unit}"


def counted(number: int, noun: str) -> str:
    """A number and what it counts: "1 measurement", "3 processes"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"


def few(parts: Sequence[str], most: int, rest: str = "more") -> str:
    """The first of many texts, and how many others there are: "a, b, c and 4 more"."""
    more = len(parts) - most
    return ", ".join(parts) if more < 2 else f"{', '.join(parts[:most])} and {more} {rest}"


def differences(old: Mapping[str, Scalar], new: Mapping[str, Scalar]) -> str:
    """The differences between two workloads: "size 128, here 64"."""
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    said = (f"{key} {old.get(key, 'unset')}, here {new.get(key, 'unset')}" for key in keys)
    return "; ".join(map(printable, said))
