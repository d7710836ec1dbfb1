"""What may vary in a configuration, and what is held tightly instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_gpuperf.traits import checked
from suites.meddpm.optimizations import OPTIMIZATIONS
from suites.meddpm.tolerances import of_sampling, of_training

EVERY = [(name, of) for name in OPTIMIZATIONS for of in (of_training, of_sampling)]


@pytest.mark.parametrize(("name", "of"), EVERY)
def test_they_are_keywords_of_the_marker(name: str, of: Callable[[str], dict[str, Any]]) -> None:
    assert checked(of(name)) == of(name)


@pytest.mark.parametrize("name", ["bf16_fused", "best", "tf32+cuda_graph"])
def test_a_captured_step_gets_no_more_room_than_any(name: str) -> None:
    assert of_training(name) == of_sampling(name) == {}


@pytest.mark.parametrize(
    "name", ["bf16_compile", "tf32+compile", "tf32+fused_norm", "tf32+channels_last+fused_norm"]
)
def test_where_the_host_is_part_of_cycles_the_time_of_kernels_is_measured(name: str) -> None:
    for found in (of_training(name), of_sampling(name)):
        assert {"cycles", "step_time"} <= {*found["tolerance"]}
        assert "kernel_time" not in found["tolerance"]
        assert found["metrics"] == "+kernel_time"


@pytest.mark.parametrize("name", ["baseline", "tf32", "bf16", "tf32+sdpa"])
def test_long_kernels_keep_the_host_out_of_training_and_not_of_sampling(name: str) -> None:
    assert of_training(name) == {}
    assert of_sampling(name) == {"tolerance": {"cycles": "2%", "step_time": "2%"}}


def test_instructions_never_get_more_room() -> None:
    for name, of in EVERY:
        assert "instructions" not in of(name).get("tolerance", {})
