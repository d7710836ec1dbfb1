"""What may vary in a configuration, and what is held tightly instead."""

from __future__ import annotations

from pytest_gpuperf.plugin.markers import checked
from suites.meddpm.optimizations import OPTIMIZATIONS, PAPER
from suites.meddpm.tolerances import of_ranks, of_sampling, of_training

HOST_LAUNCHED = ["bf16_compile", "tf32+compile", "tf32+fused_norm", "tf32+channels_last+fused_norm"]


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


def test_the_time_of_a_short_graph_is_held_closer_than_its_cycles() -> None:
    short = [of(name) for name in ("bf16_fused", "best") for of in (of_training, of_sampling)]
    for keywords in (*short, of_sampling("tf32+cuda_graph")):
        tolerance = keywords["tolerance"]
        assert (tolerance["cycles"], tolerance["step_time"]) == ("2%", "1%")
        assert "metrics" not in keywords


def test_where_the_host_is_part_of_cycles_the_time_of_kernels_is_held() -> None:
    training = [of_training(name) for name in (*HOST_LAUNCHED, "bf16")]
    sampling = [of_sampling(name) for name in (*HOST_LAUNCHED, *PAPER, "bf16", "tf32+sdpa")]
    for keywords in (*training, *sampling):
        assert {"cycles", "step_time"} <= {*keywords["tolerance"]}
        assert keywords["tolerance"]["kernel_time"] == "1%"
        assert keywords["metrics"] == "+kernel_time"


def test_over_ranks_steps_that_wait_are_held_by_what_their_kernels_do() -> None:
    assert of_ranks("ddp", "tf32") == {}
    assert of_ranks("fsdp2", "tf32") == {"tolerance": {"step_time": "10%"}}
    for sharding in ("ddp", "fsdp2"):
        keywords = of_ranks(sharding, "best")
        assert checked(keywords) == keywords
        room = keywords["tolerance"]
        assert (room["own_instructions"], room["kernel_time"]) == ("2%", "1%")
        assert room["step_time"] == "100%"
