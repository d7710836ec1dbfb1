"""Which kernels a change comes from, beside the golden texts: always few lines, none too wide."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuperf.judge.attribution import attribute
from pytest_gpuperf.report.text.kernel_lines import MOST, duration, lines, share
from tests.kernel_steps import NAMING, counted, traced

REAL = ("baseline", "tf32", "tf32_channels_last", "adam-foreach-off", "bf16")


@settings(max_examples=12)
@given(st.sampled_from(REAL), st.sampled_from(REAL), st.integers(20, 140))
def test_at_most_twelve_lines_and_none_too_wide(measured: str, baseline: str, width: int) -> None:
    said = lines(attribute(traced(measured), traced(baseline), NAMING), width)
    assert 1 <= len(said) <= MOST
    assert max(map(len, said)) <= width


def test_where_no_kernel_has_room_none_is_called_smaller() -> None:
    said = attribute(traced("tf32"), traced("baseline"), NAMING)
    assert re.fullmatch(r"  in \d+ kernels and gaps: [+-].*", lines(said, 80, most=2)[1])


def test_what_is_within_noise_is_one_line() -> None:
    assert len(lines(attribute(counted("tf32-core-1"), counted("tf32-core"), NAMING), 80)) == 1


def test_times_and_shares() -> None:
    times = [0, 12_400_000, -310, -99_000, 1_020_000_000, 0.3]
    assert [*map(duration, times)] == ["0 us", "+12.4 ms", "-0.31 us", "-99 us", "+1020 ms", "0 us"]
    assert [*map(share, [0.614, -0.001, None])] == ["61 %", "0 %", "-"]
