"""What may vary in a configuration, and what is held tightly instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_gpuperf.plugin.markers import checked
from suites.meddpm.optimizations import OPTIMIZATIONS, PAPER
from suites.meddpm.tolerances import of_sampling, of_training

EVERY = [(name, of) for name in OPTIMIZATIONS for of in (of_training, of_sampling)]
HOST_LAUNCHED = ["bf16_compile", "tf32+compile", "tf32+fused_norm", "tf32+channels_last+fused_norm"]


@pytest.mark.parametrize(("name", "of"), EVERY)
def test_they_are_keywords_of_the_marker(name: str, of: Callable[[str], dict[str, Any]]) -> None:
    assert checked(of(name)) == of(name)


@pytest.mark.parametrize("name", ["baseline", "tf32", "channels_last", "tf32+sdpa"])
def test_training_of_long_kernels_gets_no_more_room_than_any(name: str) -> None:
    assert of_training(name) == {}


def test_a_graph_of_them_gets_it_for_its_pool_only() -> None:
    assert of_training("tf32+cuda_graph") == {"tolerance": {"peak_memory": "0.1%"}}


@pytest.mark.parametrize(
    ("name", "of"),
    [
        *((name, of_training) for name in ("bf16_fused", "best")),
        *((name, of_sampling) for name in ("bf16_fused", "best", "tf32+cuda_graph")),
    ],
)
def test_the_time_of_a_short_graph_is_held_closer_than_its_cycles(
    name: str, of: Callable[[str], dict[str, Any]]
) -> None:
    tolerance = of(name)["tolerance"]
    assert (tolerance["cycles"], tolerance["step_time"]) == ("2%", "1%")
    assert "metrics" not in of(name)


@pytest.mark.parametrize(
    ("name", "of"),
    [
        *((name, of_training) for name in (*HOST_LAUNCHED, "bf16")),
        *((name, of_sampling) for name in (*HOST_LAUNCHED, *PAPER, "bf16", "tf32+sdpa")),
    ],
)
def test_where_the_host_is_part_of_cycles_the_time_of_kernels_is_held(
    name: str, of: Callable[[str], dict[str, Any]]
) -> None:
    found = of(name)
    assert {"cycles", "step_time"} <= {*found["tolerance"]}
    assert found["tolerance"]["kernel_time"] == "1%"
    assert found["metrics"] == "+kernel_time"


@pytest.mark.parametrize(("name", "of"), EVERY)
def test_only_code_that_is_compiled_anew_gets_room_for_instructions(
    name: str, of: Callable[[str], dict[str, Any]]
) -> None:
    compiled = any(part.name == "compile" for part in OPTIMIZATIONS[name].parts)
    assert ("instructions" in of(name).get("tolerance", {})) == compiled


@pytest.mark.parametrize(("name", "of"), EVERY)
def test_only_the_pool_of_a_graph_gets_room_for_memory(
    name: str, of: Callable[[str], dict[str, Any]]
) -> None:
    assert ("peak_memory" in of(name).get("tolerance", {})) == OPTIMIZATIONS[name].captured
