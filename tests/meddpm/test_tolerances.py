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


@pytest.mark.parametrize("name", ["bf16_fused", "tf32+cuda_graph", "baseline", "tf32", "tf32+sdpa"])
def test_cycles_of_a_graph_and_of_long_kernels_get_no_more_room_than_any(name: str) -> None:
    assert "cycles" not in of_training(name)["tolerance"]


@pytest.mark.parametrize("name", ["bf16_fused", "best", "tf32+cuda_graph"])
def test_cycles_of_a_graph_get_no_more_room_when_it_samples(name: str) -> None:
    assert "cycles" not in of_sampling(name)["tolerance"]
    assert of_sampling(name)["tolerance"]["step_time"] == "2%"


@pytest.mark.parametrize(
    "name", ["bf16_compile", "tf32+compile", "tf32+fused_norm", "tf32+channels_last+fused_norm"]
)
def test_where_the_host_is_part_of_cycles_the_time_of_kernels_is_held(name: str) -> None:
    for found in (of_training(name), of_sampling(name)):
        assert {"cycles", "step_time"} <= {*found["tolerance"]}
        assert found["tolerance"]["kernel_time"] == "1%"
        assert found["metrics"] == "+kernel_time"


@pytest.mark.parametrize("name", ["baseline", "tf32", "bf16", "tf32+sdpa"])
def test_sampling_is_short_enough_for_the_host_to_matter(name: str) -> None:
    assert of_sampling(name) == {"tolerance": {"cycles": "10%", "step_time": "10%"}}


@pytest.mark.parametrize(("name", "of"), EVERY)
def test_only_code_that_is_compiled_anew_gets_room_for_instructions(
    name: str, of: Callable[[str], dict[str, Any]]
) -> None:
    compiled = any(part.name == "compile" for part in OPTIMIZATIONS[name].parts)
    assert ("instructions" in of(name)["tolerance"]) == compiled
