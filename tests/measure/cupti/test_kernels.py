"""Counters per launch: automatic ranges, and the names that a trace lends them."""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from statistics import correlation

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure.cupti.launch_ranges import LEAST_CORRELATION, kernel_table
from pytest_gpuperf.measure.cupti.range_session import RangeSession
from pytest_gpuperf.measure.trace.profile import Trace, Traced, parse
from pytest_gpuperf.model.measurement import KernelTable
from pytest_gpuperf.storage import files
from tests import ROOT
from tests.measure.cupti.fake import Fake

CYCLES, INSTRUCTIONS = "sm__cycles_elapsed.max", "smsp__inst_executed.sum"
IPC = "sm__inst_executed.avg.per_cycle_active"
CORE = catalogue().hardware_set("core")
TABLES = ROOT / "tests" / "data" / "h200-tables"


def opened(fake: Fake, *metrics: str, max_ranges: int = 8) -> RangeSession:
    """A session with automatic ranges."""
    return RangeSession(
        metrics or (CYCLES,), max_ranges, automatic=True, cupti=fake.cupti, cuda=fake.cuda
    )


def launching(fake: Fake, *amounts: float) -> Callable[[], None]:
    """A step that launches kernels of these amounts of work."""

    def run() -> None:
        for amount in amounts:
            fake.work(amount)

    return run


# Sessions


def test_every_launch_has_its_values_in_the_order_of_launching(fake: Fake) -> None:
    with opened(fake, CYCLES, INSTRUCTIONS) as session:
        found = session.launches(launching(fake, 3, 5, 4))
    assert [values[CYCLES] for values in found] == [3, 5, 4]
    assert [values[INSTRUCTIONS] for values in found] == [6, 10, 8]
    assert fake.alive == 0


def test_the_step_is_prepared_and_run_once_per_pass(fake: Fake) -> None:
    fake.set("passes", 3)
    prepared: list[str] = []
    with opened(fake) as session:
        found = session.launches(launching(fake, 1, 2), prepare=lambda: prepared.append("."))
    assert len(prepared) == 3
    assert [values[CYCLES] for values in found] == [1, 2]


def test_more_launches_than_there_is_room_for_are_an_error(fake: Fake) -> None:
    with (
        opened(fake, max_ranges=2) as session,
        pytest.raises(MeasurementError, match=r"dropped 1 of the launches: .* opened for 2"),
    ):
        session.launches(launching(fake, 1, 2, 3))


def test_a_ratio_without_a_value_is_no_number(fake: Fake) -> None:
    with opened(fake, IPC) as session:
        (values,) = session.launches(launching(fake, 0))
    assert math.isnan(values[IPC])


# Putting counters and names together


def traced(*durations: float, kind: str = "kernel") -> Trace:
    """A trace of launches one after the other."""
    entries, start = [], 0.0
    for number, duration in enumerate(durations):
        entries.append(Traced(f"k{number}", kind, (1, 1, 1), (32, 1, 1), start, duration))
        start += duration
    return Trace(tuple(entries))


def counted(*durations: float) -> list[dict[str, float]]:
    """Counters of as many launches."""
    return [{CYCLES: 2 * d, INSTRUCTIONS: 10 * d, "gpu__time_duration.sum": d} for d in durations]


def test_copies_have_no_counters_and_shift_nothing() -> None:
    kernels = traced(1000, 5000, 3000)
    copy = Traced("Memcpy HtoD", "copy", None, None, 0.0, 700.0)
    mixed = Trace((kernels.entries[0], copy, *kernels.entries[1:]))
    found = kernel_table(mixed, CORE, "sm90", counted(1000, 5000, 3000))
    assert found.mismatch == ""
    cycles = found.metrics.index("cycles")
    assert [launch.values[cycles] if launch.values else None for launch in found.launches] == [
        *(2000, None, 10_000, 6000),
    ]


def test_another_number_of_launches_is_reported_and_not_shifted() -> None:
    for number in (
        2,
        4,
    ):
        found = kernel_table(traced(1000, 5000, 3000), CORE, "sm90", counted(*[1000.0] * number))
        assert found.mismatch.startswith(f"the trace has 3 kernels and the counters {number}: ")
        assert found.metrics == ()
        assert not any(launch.values for launch in found.launches)
        assert [launch.duration for launch in found.launches] == [1000, 5000, 3000]


def test_what_is_no_number_is_none() -> None:
    values = [{**counted(1000)[0], CYCLES: math.nan}]
    found = kernel_table(traced(1000), CORE, "sm90", values)
    assert found.launches[0].values[found.metrics.index("cycles")] is None
    assert found.launches[0].values[found.metrics.index("ipc")] is None


def test_a_name_is_kept_once() -> None:
    twice = traced(1000, 2000)
    same = Trace((twice.entries[0], replace(twice.entries[1], name="k0")))
    assert kernel_table(same, (), "sm90", counted(1, 2)).names == ("k0",)


# Recorded on an H200


@cache
def recorded(name: str) -> KernelTable:
    """A kernel table as the collector made it there."""
    text = lzma.decompress((TABLES / f"{name}.json.xz").read_bytes()).decode()
    return files.adapter(KernelTable).validate_json(text)


def again(found: KernelTable, shift: int) -> KernelTable:
    """The same table with every kernel's counters taken `shift` launches further on."""
    entries, start = [], 0.0
    for launch in found.launches:
        name = found.names[launch.name]
        entries.append(Traced(name, launch.kind, launch.grid, launch.block, start, launch.duration))
        start += launch.duration
    metrics = [catalogue().metrics[name] for name in found.metrics]
    values = [
        {
            m.hardware_name("sm90") or "": v
            for m, v in zip(metrics, row, strict=True)
            if v is not None
        }
        for row in (launch.values for launch in found.launches if launch.values)
    ]
    return kernel_table(Trace(tuple(entries)), metrics, "sm90", values[shift:] + values[:shift])


def test_trace_and_counters_of_real_steps_go_together() -> None:
    for name, launches in (
        ("tf32-core", 1548),
        ("baseline-core", 1298),
        ("channels_last-core", 1721),
        ("tf32_channels_last-core", 1421),
        ("compiled", 26),
    ):
        found = recorded(name)
        assert found.mismatch == ""
        assert sum(bool(launch.values) for launch in found.launches) == launches
        assert again(found, 0).mismatch == ""
        at = found.metrics.index("duration")
        counted = [
            (launch.duration, launch.values[at]) for launch in found.launches if launch.values
        ]
        logs = [(math.log(ours), math.log(theirs)) for ours, theirs in counted if theirs]
        assert correlation(*map(list, zip(*logs, strict=True))) > (1 + LEAST_CORRELATION) / 2


def test_a_shift_of_the_names_is_noticed() -> None:
    for name in ("tf32-core", "baseline-core", "channels_last-core", "compiled"):
        for shift in (1, -1, 7):
            assert "do not go together" in again(recorded(name), shift).mismatch, (name, shift)


def test_the_same_step_launches_the_same_kernels() -> None:
    one, other = recorded("tf32-core"), recorded("tf32-core-1")
    assert one.names == other.names
    assert [(x.name, x.grid, x.block) for x in one.launches] == [
        (x.name, x.grid, x.block) for x in other.launches
    ]


# Traces


def event(
    name: str, category: str, begun: float, took: float, **arguments: object
) -> dict[str, object]:
    """An event of an exported trace, in microseconds."""
    return {"name": name, "cat": category, "ts": begun, "dur": took, "args": arguments}


def test_a_trace_has_kernels_copies_and_fills_in_the_order_of_their_start() -> None:
    found = parse(
        [
            event("k2", "kernel", 20, 5, grid=[4, 1, 1], block=[128, 1, 1], correlation=2),
            event("cudaLaunchKernel", "cuda_runtime", 1, 1, correlation=1),
            event("k1", "kernel", 10, 5, grid=[2, 1, 1], block=[64, 1, 1], correlation=1),
            event("Memset (Device)", "gpu_memset", 16, 1, correlation=3),
            event("aten::add", "cpu_op", 0, 30),
        ]
    )
    assert [(e.name, e.kind, e.start, e.duration) for e in found.entries] == [
        ("k1", "kernel", 0, 5000),
        ("Memset (Device)", "fill", 6000, 1000),
        ("k2", "kernel", 10_000, 5000),
    ]
    assert found.entries[0].grid == (2, 1, 1)
    assert found.counted == (0, 2)
    assert found.idle == 1000 + 3000


def test_what_a_graph_launches_is_one_entry() -> None:
    found = parse(
        [
            event("cudaGraphLaunch", "cuda_runtime", 0, 1, correlation=7),
            event("k1", "kernel", 10, 5, correlation=7),
            event("k2", "kernel", 16, 4, correlation=7),
            event("k3", "kernel", 30, 1, correlation=8),
        ]
    )
    assert [(e.name, e.kind, e.duration) for e in found.entries] == [
        ("CUDA graph of 2 kernels", "graph", 10_000),
        ("k3", "kernel", 1000),
    ]
    assert found.counted == (0, 1)


def test_kernels_that_run_at_once_are_no_idle_time() -> None:
    found = parse(
        [event("a", "kernel", 0, 10), event("b", "kernel", 2, 3), event("c", "kernel", 12, 1)]
    )
    assert found.idle == 2000


def test_a_trace_without_a_gpu_is_empty() -> None:
    found = parse(json.loads('[{"ph": "M", "name": "process_name", "args": {}}]'))
    assert (found.entries, found.counted, found.idle) == ((), (), 0.0)
