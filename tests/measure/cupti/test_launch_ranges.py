"""Counters per launch, put together with a trace's names."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import correlation

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.measure.collector import SILENT, Phases, Progress, Work
from pytest_gpuperf.measure.cupti import launch_ranges
from pytest_gpuperf.measure.cupti.launch_ranges import LEAST_CORRELATION, kernel_table, with_times
from pytest_gpuperf.measure.trace.activity import TRACES
from pytest_gpuperf.measure.trace.profile import Trace
from pytest_gpuperf.model.measurement import KernelTable
from tests.heard_progress import Heard
from tests.kernel_steps import counted as recorded
from tests.measure.cupti.fake import Fake
from tests.measure.traces import copy, kernel, ran, shows

CYCLES, INSTRUCTIONS = "sm__cycles_elapsed.max", "smsp__inst_executed.sum"
CORE = catalogue().hardware_set("core")
METRICS = tuple(catalogue().metrics[name] for name in ("cycles", "ipc"))


def column(table: KernelTable, metric: str = "cycles") -> list[float | None]:
    """The values of each launch; None also for those that have none to have."""
    at = table.metrics.index(metric)
    return [launch.values[at] if launch.values else None for launch in table.launches]


# Putting counters and names together


def counted(*durations: float) -> list[dict[str, float]]:
    """Counters of as many launches."""
    return [{CYCLES: 2 * d, INSTRUCTIONS: 10 * d, "gpu__time_duration.sum": d} for d in durations]


def joined(trace: Trace, *durations: float) -> KernelTable:
    """The table of a trace and of counters of launches that took so long."""
    return kernel_table(trace, CORE, "sm90", counted(*durations))


def test_copies_have_no_counters_and_shift_nothing() -> None:
    table = joined(ran("kckk", 1000, 700, 5000, 3000), 1000, 5000, 3000)
    assert table.mismatch == ""
    assert column(table) == [2000, None, 10_000, 6000]


def test_another_number_of_launches_is_reported_and_not_shifted() -> None:
    for number in (2, 4):
        table = joined(ran("kkk", 1000, 5000, 3000), *[1000.0] * number)
        assert table.mismatch.startswith(f"the trace has 3 kernels, the counters have {number}: ")
        assert table.metrics == ()
        assert not any(launch.values for launch in table.launches)
        assert [launch.duration for launch in table.launches] == [1000, 5000, 3000]


def test_launches_that_all_take_as_long_go_together_and_a_pair_of_kinds_is_not_mixed_up() -> None:
    """Of ten equal products the noise alone differs, which correlates with nothing."""
    noise = [1e6 + 2e4 * ((7 * number) % 5 - 2) for number in range(10)]
    again = [1e6 + 2e4 * ((3 * number) % 5 - 2) for number in range(10)]
    table = joined(ran("k" * 10, *noise), *again)
    assert (table.mismatch, len(table.metrics)) == ("", len(CORE))
    turns = [1000.0, 4000.0] * 5
    shifted = joined(ran("k" * 10, *turns), *turns[::-1])
    assert "do not match (correlation -1.000)" in shifted.mismatch


def test_what_is_no_number_is_none_and_a_name_is_kept_once() -> None:
    trace = Trace([kernel(10 * n, 1, n, name="k0") for n in (1, 2)])
    broken = {**counted(1000)[0], CYCLES: math.nan}
    table = kernel_table(trace, CORE, "sm90", [broken, *counted(1000)])
    assert column(table) == [None, 2000]
    assert column(table, "ipc") == [None, None]
    assert table.names == ("k0",)


# Recorded on an H200


def again(table: KernelTable, shift: int = 0) -> KernelTable:
    """The same table with every kernel's counters taken `shift` launches further on."""
    events = [
        kernel(0, one.duration / 1e3, name=table.names[one.name])
        if one.kind == "kernel"
        else copy(0, one.duration / 1e3, "DtoD", 8)
        for one in table.launches
    ]
    metrics = [catalogue().metrics[name] for name in table.metrics]
    hardware = [metric.hardware_name("sm90") or "" for metric in metrics]
    rows = [launch.values for launch in table.launches if launch.values]
    values = [
        {name: value for name, value in zip(hardware, row, strict=True) if value is not None}
        for row in rows[shift:] + rows[:shift]
    ]
    return kernel_table(Trace(events), metrics, "sm90", values)


def test_trace_and_counters_of_real_steps_go_together_and_a_shift_is_noticed() -> None:
    for name, launches in (
        ("tf32-core", 1548),
        ("baseline-core", 1298),
        ("channels_last-core", 1721),
        ("tf32_channels_last-core", 1421),
        ("compiled", 26),
    ):
        table = recorded(name)
        assert table.mismatch == again(table).mismatch == ""
        durations = [launch.duration for launch in table.launches]
        pairs = [pair for pair in zip(durations, column(table, "duration"), strict=True) if pair[1]]
        assert len(pairs) == launches
        logs = [[math.log(each) for each in side if each] for side in zip(*pairs, strict=True)]
        assert correlation(*logs) > (1 + LEAST_CORRELATION) / 2
        for shift in (1, -1, 7):
            assert "do not match" in again(table, shift).mismatch, (name, shift)


def test_times_are_medians_over_traces_that_launch_the_same() -> None:
    traces = [ran("kGk", *(factor * n for n in (1000, 2000, 3000))) for factor in (1, 2, 10)]
    made = with_times(launch_ranges.uncounted(traces[0]), [*traces, ran("kk")])
    assert [one.duration for one in made.launches] == pytest.approx([2000, 4000, 6000])
    assert made.busy == pytest.approx((6e3, 12e3, 60e3))
    assert (made.idle, made.idles) == (traces[1].idle, tuple(trace.idle for trace in traces))


# The collector


def kernels(
    fake: Fake, kinds: str, step: Callable[[], object], progress: Progress = SILENT
) -> KernelTable:
    """The kernels of a step in whose trace are these."""
    fake.reset()
    work = Work(step, Phases(), lambda: fake.work(1e6), progress=progress)
    return fake.collector(traced=shows(ran(kinds))).kernels(work, METRICS)


def test_every_launch_is_counted_unless_graphs_are_among_them(fake: Fake) -> None:
    heard = Heard()
    table = kernels(fake, "kck", fake.launching(3, 4), heard)
    assert heard.said == [
        *(f"tracing kernels {number} of 3" for number in (1, 2, 3)),
        "counting kernels, pass 1 of 1",
        *["looking for call sites"] * 2,
    ]
    assert (table.mismatch, column(table)) == ("", [3, None, 4])
    assert not any(line.startswith("push ") for line in fake.log)
    table = kernels(fake, "kGG", fake.launching(3, 4))
    assert (table.mismatch, table.metrics) == ("", ())
    assert [one.kind for one in table.launches] == ["kernel", "graph", "graph"]
    assert not any("Profiler" in line for line in fake.log)


def test_of_a_rank_kernels_are_as_the_host_launched_them_and_none_is_counted(fake: Fake) -> None:
    """Which stream is ahead, chance decides; and one that is counted lets no peer's begin."""
    executed: list[int] = []
    trace = ran("kkk", 10.0, 20.0, 30.0, order="021")
    work = Work(lambda: executed.append(0), Phases(), together=True)
    table = fake.collector(traced=shows(trace)).kernels(work, METRICS)
    assert [launch.duration for launch in table.launches] == [10.0, 30.0, 20.0]
    assert [table.names[launch.name] for launch in table.launches] == ["k0", "k2", "k1"]
    assert (table.metrics, table.mismatch, table.idle) == ((), "", trace.idle)
    assert len(executed) == TRACES + 2  # and two for the lines of code


def test_where_nothing_can_be_counted_there_are_names_and_times(fake: Fake) -> None:
    def counted(mismatch: str) -> None:
        collector = fake.collector(traced=shows(ran("kk")))
        table = collector.kernels(Work(fake.launching(5, 6), Phases()), METRICS[:1])
        assert (len(table.launches), table.metrics) == (2, ())
        assert table.mismatch.partition(" ")[0] == mismatch
        fake.reset()

    fake.set("unknown", CYCLES)
    counted("")
    fake.fail("cuptiRangeProfilerEnable", 35)
    counted("")
    fake.fail("cuptiRangeProfilerDecodeData", 999)
    counted("cuptiRangeProfilerDecodeData")


def test_a_step_that_fails_under_a_dispatch_mode_has_its_table_without_call_sites(
    fake: Fake,
) -> None:
    """Compiled code runs operator by operator there, which may take more memory than there is."""
    launching = fake.launching(3, 4)

    def step() -> None:
        if _get_current_dispatch_mode() is not None:
            raise torch.OutOfMemoryError
        launching()

    table = kernels(fake, "kk", step)
    assert column(table) == [3, 4]
    assert (table.mismatch, table.sites, table.site_of) == ("", (), ())
