"""Shortening what does not fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.report.text.table import shortened


@pytest.mark.parametrize(
    ("width", "says"),
    [
        (24, "test_training_step[tf32]"),
        (23, "test_t...ing_step[tf32]"),
        (15, "test...ep[tf32]"),
        (4, "...]"),
        (2, ".."),
        (0, ""),
    ],
)
def test_the_middle_of_a_long_text_is_left_out(width: int, says: str) -> None:
    assert shortened("test_training_step[tf32]", width) == says


@given(st.text(max_size=100), st.integers(-5, 120))
def test_it_fits_and_is_no_shorter_than_it_has_to_be(text: str, width: int) -> None:
    assert len(shortened(text, width)) == min(len(text), max(width, 0))
