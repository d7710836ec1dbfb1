"""What may vary in a configuration, and what is held tightly instead."""

from __future__ import annotations

from pytest_gpuperf.plugin.markers import checked
from suites.meddpm.optimizations import OPTIMIZATIONS
from suites.meddpm.tolerances import of_ranks, of_sampling, of_training


def test_room_is_given_where_there_is_a_reason_only() -> None:
    """For instructions where code is compiled anew, for memory where a graph has a pool."""
    for name, optimization in OPTIMIZATIONS.items():
        for of in (of_training, of_sampling):
            assert checked(of(name)) == of(name)  # keywords of the marker
            room = of(name).get("tolerance", {})
            compiled = any(part.name == "compile" for part in optimization.parts)
            assert ("instructions" in room) == compiled, name
            assert ("peak_memory" in room) == optimization.captured, name
    for name in ("baseline", "tf32", "channels_last", "tf32+sdpa"):
        assert of_training(name) == {}
    assert of_training("tf32+cuda_graph") == {"tolerance": {"peak_memory": "0.1%"}}


def test_over_ranks_steps_that_wait_are_held_by_what_their_kernels_do() -> None:
    assert of_ranks("ddp", "tf32") == {}
    assert of_ranks("fsdp2", "tf32") == {"tolerance": {"step_time": "10%"}}
    for sharding in ("ddp", "fsdp2"):
        keywords = of_ranks(sharding, "best")
        assert checked(keywords) == keywords
        room = keywords["tolerance"]
        assert room["kernel_time"] == "1%"
        assert room["step_time"] == "100%"
