"""What grows over a thousand measurements is told apart from hundreds that differ by chance."""

from __future__ import annotations

import pytest

from benchmarks.growth import Hundred, grown

H200_MS = (343.6, 323.6, 329.9, 329.9, 339.4, 335.0, 329.1, 323.0, 328.9, 332.5)
"""As recorded: nothing became slower, and the last hundred took 2.7 % longer than the second."""


def rows(*seconds: float, host: float = 0.0) -> list[Hundred]:
    """Hundreds with such times, whose process has so much more, as a share, after each of them."""
    return [Hundred(s, 1e9 * (1 + host * n), 0.0) for n, s in enumerate(seconds)]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.02, 0.05])
def test_a_trend_is_found_through_what_hundreds_differ_by(share: float) -> None:
    risen = (ms * (1 + share * (n - 1) / 8) for n, ms in enumerate(H200_MS))
    assert grown(rows(*risen)).seconds == pytest.approx(share, abs=0.003)


def test_one_slow_hundred_at_either_end_is_no_trend() -> None:
    assert grown(rows(9.0, *[1.0] * 8, 1.5)).seconds == 0.0
    assert grown(rows(9.0, 1.5, *[1.0] * 8)).seconds == 0.0


def test_memory_is_what_the_last_has_more_than_the_second() -> None:
    host = grown(rows(*H200_MS, host=0.001)).host_bytes
    assert host == pytest.approx(1.009 / 1.001 - 1)
