"""Ranks: which this process is, and what of them becomes one measurement."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.measure import barrier
from pytest_gpuperf.measure.barrier import RankGroup, Rendezvous
from pytest_gpuperf.measure.collector import Phases, Plan, Progress, Work
from pytest_gpuperf.measure.instrument import DeviceInstrument, Subject
from pytest_gpuperf.measure.ranks import (
    Rank,
    RankInstrument,
    joined,
    joined_tables,
    own_rank,
    peer_waits,
    take_gpu,
)
from pytest_gpuperf.model.measurement import STEP, Measurement, Peer
from tests.examples import H200, default_settings, measurement
from tests.kernel_steps import table
from tests.scripted_collector import ScriptedCollector

PLAN = Plan(metrics=(), rounds=1)
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def under_torchrun(**variables: str) -> Rank:
    """Which rank this is where torchrun has said so."""
    rank = own_rank({**TORCHRUN, **variables})
    assert rank is not None
    return rank


def test_torchruns_variables_say_which_rank_this_is() -> None:
    rank, zero = under_torchrun(), under_torchrun(RANK="0")
    assert (rank.number, rank.count, rank.leads, rank.launched) == (1, 2, False, False)
    assert zero.leads
    assert zero.rendezvous == rank.rendezvous != under_torchrun(MASTER_PORT="29501").rendezvous
    # A job's name may be longer than the 107 bytes of a socket's.
    one, other = (under_torchrun(TORCHELASTIC_RUN_ID="job" * length) for length in (40, 39))
    assert one.rendezvous != other.rendezvous
    Rendezvous(one.rendezvous, RankGroup(2, 1.0)).close()
    # One rank alone is none.
    assert own_rank({}) is None
    assert own_rank({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}) is None
    assert own_rank({name: TORCHRUN[name] for name in ("RANK", "WORLD_SIZE")}) is None
    for variables, says in (
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, "--nproc-per-node 2"),
        ({"RANK": "first"}, "need numbers"),
    ):
        with pytest.raises(UsageFailure, match=says):
            under_torchrun(**variables)


def test_a_rank_that_a_session_started_never_leads_nor_starts_another() -> None:
    """As of `measure_ranks(entry, 1)`."""
    told = json.dumps({"meeting": "here", "decides": True, "only": "step"})
    for count in (1, 2):
        rank = under_torchrun(RANK="0", WORLD_SIZE=str(count), GPUPERF_RANKS=told)
        assert rank == Rank(0, count, "here", True, decides=True, only="step")
        assert not rank.leads


def test_a_collector_that_replays_is_refused_before_ranks_meet(tmp_path: Path) -> None:
    """A collective that one rank repeats waits for the others; whoever joined would too."""
    own = DeviceInstrument(ScriptedCollector(), tmp_path)
    zero = under_torchrun(RANK="0")
    plain = default_settings(tmp_path)
    for settings in (replace(plain, collector="ncu"), replace(plain, protocol="paper-window")):
        with pytest.raises(UsageFailure, match=r"ncu|paper-window"):
            RankInstrument(own, zero, settings, str)
    Rendezvous(zero.rendezvous, RankGroup(2, 1.0)).close()  # nobody has the name


def test_where_nobody_leads_a_rank_is_refused_as_a_job_is(tmp_path: Path) -> None:
    with pytest.raises(UsageFailure, match="did not answer within"):
        member(1, f"gpuperf-test-{uuid.uuid4().hex}", tmp_path, time_limit=0.0)


def member(number: int, place: str, root: Path, time_limit: float = 20.0) -> RankInstrument:
    """One of two ranks that meet there."""
    own = DeviceInstrument(ScriptedCollector(), root)
    settings = replace(default_settings(root), time_limit=time_limit)
    return RankInstrument(own, Rank(number, 2, place), settings, str)


def test_a_verdict_is_that_of_the_leading_rank_and_is_waited_for_once(tmp_path: Path) -> None:
    """Without the time of the test: the leading rank may wait for fresh ranks meanwhile."""
    place = f"gpuperf-test-{uuid.uuid4().hex}"
    subject = Subject("test_a", "step", "suite", "", {}, "core")
    shown = MagicMock(Progress), MagicMock(Progress)

    def ends(number: int) -> list[str]:
        outcome = "failed" if number == 0 else "passed"
        rank = member(number, place, tmp_path)
        with closing(rank):
            before = rank.verdict("passed")  # nothing was measured: nobody waits
            rank.measure(subject, Work(lambda: None, Phases(), progress=shown[number]), PLAN)
            return [before, rank.verdict(outcome), rank.verdict("skipped")]

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(ends, range(2))) == [["passed", "failed", "skipped"]] * 2
    assert [one.aside.call_count for one in shown] == [1, 1]


def test_who_has_skipped_in_the_entry_misses_nobody_who_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them did, and the other tests of one may take longer."""
    monkeypatch.setattr(barrier, "_TICK", 0.01)
    monkeypatch.setattr(barrier, "_SETTLING", 0.05)
    place = f"gpuperf-test-{uuid.uuid4().hex}"

    def ends(number: int) -> str:
        with closing(member(number, place, tmp_path)) as rank:
            with suppress(pytest.skip.Exception), rank.entering("step", "test_a"):
                pytest.skip("not on this device")
            return rank.client.stops(0.2) if number == 0 else ""

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(ends, range(2))) == ["", ""]


def test_a_rank_under_torchrun_takes_a_gpu_of_its_own_where_there_is_one_for_each() -> None:
    rank = Rank(1, 2, "here")
    environment = {**TORCHRUN, "LOCAL_RANK": "1"}
    assert take_gpu(rank, ["GPU-a", "GPU-b", "GPU-c"], environment) == ("GPU-a", "GPU-b")
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["LOCAL_RANK"]) == ("GPU-b", "0")
    given = {"CUDA_VISIBLE_DEVICES": "GPU-b", "LOCAL_RANK": "1"}
    assert take_gpu(rank, ["GPU-b"], given) == ()
    assert given == {"CUDA_VISIBLE_DEVICES": "GPU-b", "LOCAL_RANK": "1"}


def rank(series: dict[str, list[float]], *collectives: dict[str, tuple[float, ...]]) -> Measurement:
    """One rank's measurement, as it brings it to be joined."""
    made = measurement(series)
    return replace(made, peers=(Peer("rank", H200, made.samples, None, tuple(collectives)),))


def test_a_step_is_as_slow_as_its_slowest_rank_in_each_execution() -> None:
    whole = joined(
        [
            rank({"step_time": [10.0, 12.0], "launches": [90.0], "copy_overlap": [50.0]}),
            rank({"step_time": [11.0, 11.0], "launches": [91.0], "copy_overlap": [40.0]}),
        ]
    )
    of = {(s.phase, s.metric): s.values for s in whole.samples}
    assert of[STEP, "step_time"] == (11.0, 12.0)
    assert of[STEP, "launches"] == (91.0,)
    assert of[STEP, "copy_overlap"] == (40.0,)
    assert [peer.name for peer in whole.peers] == ["rank 0", "rank 1"]
    assert whole.workload["ranks"] == 2


def test_what_a_rank_counts_while_it_waits_is_kept_for_each_rank_alone() -> None:
    spinning = {"instructions": [9e9], "cycles": [4e8], "kernel_time": [6e9]}
    whole = joined([rank(spinning), rank({**spinning, "kernel_time": [6.1e9]})])
    assert [(s.metric, s.values) for s in whole.samples] == [("kernel_time", (6.1e9,))]
    kept = [{s.metric for s in peer.samples} for peer in whole.peers]
    assert kept == [{"instructions", "cycles", "kernel_time"}] * 2


def peer(**collectives: tuple[float, ...]) -> Peer:
    """A rank in whose trace are these."""
    return Peer("rank", H200, (), None, (collectives,))


def test_the_rank_that_comes_last_has_not_waited() -> None:
    early = peer(all_reduce=(50.0, 12.0), gather=(3.0,))
    late = peer(all_reduce=(10.0, 15.0), gather=(3.0,))
    assert peer_waits([early, late]) == [[40.0], [3.0]]


def test_other_collectives_on_another_rank_tell_nothing_of_waiting() -> None:
    one, two = peer(all_reduce=(5.0,)), peer(all_reduce=(5.0, 5.0))
    assert peer_waits([one, two]) == []
    assert peer_waits([one, replace(two, collectives=())]) == []
    assert [s.metric for s in joined([rank({"launches": [1.0]})] * 2).samples] == ["launches"]


def test_a_collective_takes_on_each_rank_what_it_takes_on_the_one_that_comes_last() -> None:
    first = table(("gemm", 90.0), ("ncclDevKernel_AllReduce", 50.0), ("ncclKernel_Gather", 5.0))
    other = table(("gemm", 130.0), ("ncclDevKernel_AllReduce", 10.0), ("ncclKernel_Gather", 8.0))
    whole = joined_tables([replace(first, busy=(146e3,), idles=(1e3,)), other])
    own = [[one.duration for one in each.launches] for each in (whole, *whole.peers)]
    assert own == [[90e3, 10e3, 5e3], [130e3, 10e3, 5e3]]
    assert whole.busy == (106e3,)
    # Of other collectives nobody knows who waited.
    lone = table(("gemm", 130.0))
    assert joined_tables([first, lone]) == replace(first, peers=(lone,))


def test_ranks_have_a_table_only_where_each_has() -> None:
    one = rank({"launches": [1.0]})
    assert joined([replace(one, kernels=table(("gemm", 1.0))), one]).kernels is None
