"""Losses that the host makes: it waits, calls, copies and asks for memory, and the GPU is idle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.judge.attribution import attribute
from pytest_gpuperf.model.measurement import CallSite, KernelTable
from pytest_gpuperf.model.result import CauseKind, Verdict
from pytest_gpuperf.report.text.kernel_lines import sentence
from tests.examples import verdict
from tests.judge.losses import (
    ACROSS,
    ADD,
    BLOCK,
    CONV,
    CONV_TILE,
    COPY,
    DOWN,
    DOWN_PINNED,
    FUSED,
    ITEM,
    MOMENTS,
    MUL,
    NAMING,
    NORM,
    STEP_ROWS,
    TRAIN,
    UP,
    UP_PINNED,
    Launched,
    before_each,
    between,
    bound,
    cause,
    changed,
    in_double,
    more,
    of,
    step_time,
)
from tests.kernel_steps import (
    Sited,
    counted,
    operators,
    sited,
    table,
)

# The time of the step


def test_of_a_trace_that_the_step_contradicts_only_the_launches_are_believed() -> None:
    """Seen on an H200: the headline was +196 ms (+84.84 %), gaps between kernels."""
    whole = counted("tf32-sites")
    unlucky = replace(whole, idle=whole.idle + 196e6)
    verdicts = [step_time(0.005, 0.001, before=231.0)]
    attribution = attribute(unlucky, whole, NAMING, verdicts)
    assert not attribution.reliable
    assert cause(attribution).kind is CauseKind.UNKNOWN
    assert cause(attribution).change == pytest.approx(1.155e6)
    assert not any(entry.significant for entry in attribution.entries)
    assert attribute(unlucky, whole, NAMING).reliable  # nobody contradicts it
    assert attribution.step is not None
    assert attribution.step.relative == 0.005


def test_a_step_that_got_faster_contradicts_a_gap_that_grew() -> None:
    """Seen under cudnn.benchmark: +173 ms of gaps beside a step that was 6 % faster."""
    whole = counted("tf32-sites")
    unlucky = replace(whole, idle=whole.idle + 173e6)
    faster = [step_time(-0.06, 0.001, before=231.0), verdict("peak_memory")]
    attribution = attribute(unlucky, whole, NAMING, faster)
    assert not attribution.reliable
    assert attribution.cause is None


@pytest.mark.parametrize(
    ("traces", "reliable"), [((0.2, 9.0, 0.1), True), ((9.0, 9.1, 8.9), False)]
)
def test_a_gap_counts_beyond_its_spread_over_the_traces(
    traces: tuple[float, ...], reliable: bool
) -> None:
    """Milliseconds in which nothing ran. One unlucky trace of three moves no median far."""
    rows = [("fprop", 10_000.0), ("add", 10_000.0)]
    idles = tuple(1e6 * idle for idle in traces)
    median = sorted(idles)[1]
    now = replace(table(*rows), idle=median, idles=idles, busy=(20e6,) * 3)
    then = replace(table(*rows), idle=1e5, idles=(1e5,) * 3, busy=(20e6,) * 3)
    attribution = attribute(now, then, NAMING, [step_time(0.005, 0.001)])
    assert attribution.reliable is reliable
    assert not any(entry.significant for entry in attribution.entries)


def test_a_gap_that_the_step_has_too_is_the_cause() -> None:
    whole = counted("tf32-sites")
    waits = replace(whole, idle=whole.idle + 12e6)
    attribution = attribute(waits, whole, NAMING, [step_time(0.05, 0.004, before=231.0)])
    assert attribution.reliable
    told = cause(attribution)
    assert (told.kind, told.line) == (CauseKind.HOST, "")
    assert told.change == pytest.approx(11.55e6)
    assert told.traced == pytest.approx(12e6)


# Steps that the host bounds


@pytest.mark.parametrize(
    ("place", "change", "kind"),
    [
        (BLOCK, before_each(COPY, 2.0, times=20), CauseKind.LAYOUT),
        (BLOCK, before_each(MUL, 2.0, times=20), CauseKind.LAUNCHES),
        (NORM, lambda row: [(MUL, 2.0, row[2]), *in_double(row)], CauseKind.PRECISION),
    ],
    ids=["layout", "launches", "precision"],
)
def test_a_gpu_that_waits_for_the_host_waits_for_the_launches_that_are_new(
    place: str, change: Callable[[Sited], Sequence[Sited]], kind: CauseKind
) -> None:
    told = bound(changed((place, change)), 5_000.0, step_time(0.3, 0.29))
    assert (told.kind, f"{told.line} {told.function}") == (kind, place)


@pytest.mark.parametrize(("launches", "blamed"), [(20, CauseKind.LAUNCHES), (19, CauseKind.HOST)])
def test_no_launch_takes_the_host_longer_than_a_tenth_of_a_millisecond(
    launches: int, blamed: CauseKind
) -> None:
    """4 ms were lost at least, and there are two blocks."""
    rows = changed((BLOCK, before_each(MUL, 2.0, times=launches)))
    assert bound(rows, 4_200.0, step_time(0.22, 0.0201)).kind is blamed


def test_a_gap_that_is_not_beyond_the_steps_noise_is_nobodys() -> None:
    noisy = step_time(0.2, 0.21), more("launches", 12, 14)
    told = bound(changed((BLOCK, before_each(MUL, 50.0))), 4_000.0, *noisy)
    assert (told.kind, told.function) == (CauseKind.LAUNCHES, "ResidualBlock.forward")


def test_a_gap_of_python_alone_is_at_the_line_that_python_was_at() -> None:
    """What has gone from other lines does not come on top of it."""
    idle_at = [("data.py:8 Volumes.load", 5_000.0), (TRAIN, 0.0), (f"{NORM} blocks.0.norm", 500.0)]
    told = cause(of(STEP_ROWS, step_time(0.22), idle=5_500.0, idle_at=idle_at))
    assert (told.kind, told.line) == (CauseKind.HOST, "data.py:8")


LOAD, ASK = "data.py:8 Volumes.load", "net.py:9 Net.forward net"
"""Lines that launch nothing."""


@pytest.mark.parametrize(("launches", "blamed"), [(20, CauseKind.LAUNCHES), (19, CauseKind.HOST)])
def test_where_nobody_judged_the_step_the_gap_itself_is_what_launches_explain(
    launches: int, blamed: CauseKind
) -> None:
    """4 ms, of which each of two blocks launches so many more."""
    rows = changed((BLOCK, before_each(MUL, 2.0, times=launches)))
    assert bound(rows, 4_000.0).kind is blamed


@pytest.mark.parametrize(
    ("calls", "kind", "function", "traced"),
    [
        (0, CauseKind.LAUNCHES, "ResidualBlock.forward", 5e6 + 40 * 2e3),
        (1, CauseKind.SYNCHRONISATION, "Net.forward", 4e6),
    ],
)
def test_a_single_call_that_is_new_is_why_the_gpu_waits_and_not_what_is_launched(
    calls: int, kind: CauseKind, function: str, traced: float
) -> None:
    """It has what of the gap is at no line; launches are asked only where nothing is called."""
    told = cause(
        of(
            changed((BLOCK, before_each(MUL, 2.0, times=20))),
            step_time(0.3, 0.29),
            calls=[("cudaStreamSynchronize", ASK, calls)] if calls else [],
            idle=6_000.0,
            idle_at=[(TRAIN, 2_000.0)],
        )
    )
    assert (told.kind, told.function) == (kind, function)
    assert told.traced == pytest.approx(traced)


def test_a_call_has_the_idle_time_of_its_line_and_what_is_at_no_line() -> None:
    """Each is less than what another line has."""
    idle_at = [(TRAIN, 1_000.0), (ASK, 1_500.0), (LOAD, 3_000.0)]
    calls = [("cudaStreamSynchronize", ASK, 1)]
    told = cause(of(STEP_ROWS, step_time(0.325), calls=calls, idle=7_500.0, idle_at=idle_at))
    assert (told.kind, told.line) == (CauseKind.SYNCHRONISATION, "net.py:9")
    assert told.traced == pytest.approx(3.5e6)


def test_idle_times_at_several_lines_of_a_function_are_one() -> None:
    """Each is less than what another function has."""
    lines = [LOAD, LOAD.replace(":8", ":9")]
    idle_at = [(TRAIN, 1_000.0), ("io.py:3 read", 3_000.0), *((line, 2_500.0) for line in lines)]
    told = cause(of(STEP_ROWS, step_time(0.4), idle=9_000.0, idle_at=idle_at))
    assert (told.kind, told.function) == (CauseKind.HOST, "Volumes.load")
    assert told.traced == pytest.approx(5e6)


def test_who_calls_less_than_before_may_keep_the_gpu_waiting_all_the_same() -> None:
    """The modules of its calls are known, and of nothing else that it does."""
    said = of(
        STEP_ROWS,
        step_time(0.1),
        calls=[("cudaMalloc", ASK, 2)],
        called=[("cudaMalloc", ASK, 5)],
        idle=3_000.0,
        idle_at=[(TRAIN, 1_000.0), (ASK, 2_000.0)],
    )
    assert sentence(said) == "+2 ms (+10.00 %): the GPU waits for net.py:9 Net.forward (net)"


@pytest.mark.parametrize(
    ("half", "kind"),
    [(0.025, CauseKind.HOST), (0.0249, CauseKind.UNKNOWN), (0.11, None)],
)
def test_a_gap_is_the_cause_where_the_step_lost_half_of_it_at_worst(
    half: float, kind: CauseKind | None
) -> None:
    """Of 5 ms, 2.5: 2 were measured. Its kernels were faster by the rest; or it lost nothing."""
    faster = changed((BLOCK, lambda row: [(row[0], row[1] - 1_500.0, row[2])]))
    verdicts = step_time(0.1, half), more("launches", 12, 14)
    said = of(faster, *verdicts, idle=6_000.0, idle_at=[(TRAIN, 1_000.0), (LOAD, 5_000.0)])
    assert said.reliable
    assert (said.cause and said.cause.kind) == kind


@pytest.mark.parametrize(
    ("idle", "kind"), [(1_100.0, CauseKind.UNKNOWN), (1_200.0, CauseKind.HOST)]
)
def test_a_gap_that_is_not_beyond_its_own_noise_is_nobodys(idle: float, kind: CauseKind) -> None:
    """Even where the step lost as much: such a gap is within two standard errors of 7 %."""
    more_idle = idle - 1_000.0
    step = step_time(more_idle / 20_000, 0.0005)
    told = cause(of(STEP_ROWS, step, idle=idle, idle_at=[(TRAIN, 1_000.0), (LOAD, more_idle)]))
    assert told.kind is kind


@pytest.mark.parametrize(
    ("longer", "function"),
    [(1_300.0, "GroupNorm32.forward"), (1_100.0, "")],
)
def test_what_is_known_of_no_line_is_one_cause_with_the_gap_at_no_line(
    longer: float, function: str
) -> None:
    """Compiled code that takes 0.5 ms longer, and the 0.7 ms more that the host is somewhere."""

    def step(compiled: float, norm: float, idle: float) -> KernelTable:
        rows = [(CONV, 5e3, BLOCK), (MUL, compiled, "x x"), (MOMENTS, norm, NORM)]
        made = sited(*rows, idle=idle, idle_at=[(NORM, 100.0)])
        nowhere = CallSite("", "")
        sites = tuple(nowhere if site.line == "x" else site for site in made.sites)
        return replace(made, sites=sites)

    lost = (500.0 + longer + 700.0) / 7_100.0
    told = cause(
        attribute(
            step(1_500.0, 1_000.0 + longer, 800.0),
            step(1_000.0, 1_000.0, 100.0),
            NAMING,
            [step_time(lost, before=7.1)],
        )
    )
    assert told.function == function
    assert told.traced == pytest.approx(1e3 * (1_200.0 if not function else longer))


def test_without_call_sites_what_a_family_launched_before_is_known_of_it() -> None:
    """Where it was at another place of the step, so that nothing stands in place of it."""
    half = MOMENTS.replace("float", "half")
    before = table((FUSED, 50.0), (CONV, 5e3), (ADD, 10.0))
    after = table((CONV, 5e3), (ADD, 10.0), (half, 300.0))
    told = cause(attribute(after, before, NAMING))
    assert (told.kind, told.what, told.formerly) == (CauseKind.PRECISION, "float16", "float32")
    assert told.family == kernel_families.family(FUSED)


def test_operators_that_are_gone_make_up_for_others_that_are_new() -> None:
    """So that what is left are conversions: three, of four more and three less."""
    mm, norm = ("aten.mm", "net.py:3 Net.forward a"), "net.py:4 Net.norm a"
    relu, clone, add = (f"aten.{name}" for name in ("relu", "clone", "add"))
    before = operators(*[(relu, norm)] * 3, mm, (relu, norm), mm)
    after = operators(mm, (relu, norm), mm, *[(clone, norm)] * 3, (add, norm))
    copies = verdict("layout_copies", unit="copies", baseline=0.0, measured=3.0, change=None)
    told = cause(attribute(after, before, NAMING, [copies]))
    assert (told.kind, told.what, told.before, told.after) == (CauseKind.LAYOUT, clone, 0, 3)


# What the host waits for, and asks for


@pytest.mark.parametrize(
    ("waits", "kind"), [(1, CauseKind.TRANSFER), (2, CauseKind.SYNCHRONISATION)]
)
def test_who_sends_from_pageable_memory_waits_for_that_alone(waits: int, kind: CauseKind) -> None:
    told = cause(
        of(
            (*STEP_ROWS, (UP, 40.0, ITEM)),
            step_time(0.0),
            more("stream_synchronizations", 0, waits),
            calls=[("cudaStreamSynchronize", ITEM, waits)],
        )
    )
    assert (told.kind, told.line) == (kind, ITEM.split()[0])


def test_what_is_sent_is_told_and_not_a_longer_copy_that_nobody_waits_for() -> None:
    within = "Memcpy DtoD (Device -> Device)"
    told = cause(
        of(
            (*STEP_ROWS, (within, 400.0, ITEM), (UP, 40.0, ITEM)),
            step_time(0.0),
            more("stream_synchronizations", 0, 1),
            calls=[("cudaStreamSynchronize", ITEM, 1)],
        )
    )
    assert (told.kind, told.what, told.before, told.after) == (CauseKind.TRANSFER, UP, 0, 1)


@pytest.mark.parametrize(
    ("former", "waits", "kind"),
    [
        (UP_PINNED, 1, CauseKind.TRANSFER),
        (UP_PINNED, 2, CauseKind.SYNCHRONISATION),
        # The host waited for it before as well.
        (UP.replace("-> Device", "-> Managed"), 1, CauseKind.SYNCHRONISATION),
    ],
)
def test_who_no_longer_pins_what_is_sent_waits_for_that_alone(
    former: str, waits: int, kind: CauseKind
) -> None:
    """One copy is in the other's place."""
    after, before = (
        sited(*STEP_ROWS, (copy, 40.0, ITEM), calls=calls)
        for copy, calls in ((UP, [("cudaStreamSynchronize", ITEM, waits)]), (former, ()))
    )
    verdicts = [step_time(0.0), more("stream_synchronizations", 0, waits)]
    told = cause(attribute(after, before, NAMING, verdicts))
    assert (told.kind, told.line) == (kind, ITEM.split()[0])


@pytest.mark.parametrize("elsewhere", [True, False])
def test_bytes_are_a_function_s_where_nobody_else_copies_that_way(elsewhere: bool) -> None:
    copied = replace(more("copy_bytes_d2d", 0, 2**20), unit="bytes")
    copy = "Memcpy DtoD (Device -> Device)"
    others = [(copy, 30.0, TRAIN)] * elsewhere
    rows = (*STEP_ROWS, *[(copy, 40.0, ITEM)] * 3, *others)
    told = cause(of(rows, step_time(0.005), copied))
    assert (told.kind, told.line) == (CauseKind.TRANSFER, ITEM.split()[0])
    assert told.bytes == (None if elsewhere else 2**20)


def test_memory_is_asked_for_anew_where_it_was_given_back() -> None:
    """By the lines that come after; what is to be mended is the one before."""
    given, asked = "net.py:9 Net.forward net", [f"{BLOCK} blocks.{n}" for n in range(2)]
    calls = [("cudaFree", given, 1), *(("cudaMalloc", place, 4) for place in asked)]
    told = cause(of(STEP_ROWS, step_time(0.0), more("driver_allocations", 0, 8), calls=calls))
    assert (told.kind, told.line, told.what) == (CauseKind.MEMORY, "net.py:9", "cudaFree")


# Copies


@pytest.mark.parametrize(
    ("copy", "us", "kind"),
    [
        (DOWN, 1.5, CauseKind.SYNCHRONISATION),
        (DOWN, 9.9, CauseKind.SYNCHRONISATION),
        (DOWN, 10.1, CauseKind.TRANSFER),
        (DOWN_PINNED, 1.5, CauseKind.TRANSFER),
        (UP, 1.5, CauseKind.TRANSFER),
    ],
)
def test_who_copies_a_number_to_the_host_waits_for_it(
    copy: str, us: float, kind: CauseKind
) -> None:
    """Ten microseconds are more than a number takes, and pinned memory is waited for elsewhere."""
    told = cause(of((*STEP_ROWS, *[(copy, us, ITEM)] * 2)))
    assert (told.kind, told.line, told.what, told.family) == (kind, "layers.py:77", copy, "copy")
    assert (told.before, told.after, told.bytes) == (0, 2, None)


def copied(metric: str, before: float | None, after: float | None) -> Verdict:
    return verdict(metric, unit="bytes", baseline=before, measured=after, change=None)


@pytest.mark.parametrize(
    ("copy", "more_bytes"),
    [
        (UP, 8.0 + 0.5),
        (UP_PINNED, 8.0 + 0.5),
        ("Memcpy HtoA (Pageable -> Array)", 8.0 + 0.5),
        (DOWN, None),
        (ACROSS, 16.0),
        ("Memcpy PtoP (Device -> Device)", None),
    ],
)
def test_bytes_are_those_that_are_copied_more_the_same_way(
    copy: str, more_bytes: float | None
) -> None:
    """Where verdicts know both sides, and not of a way that copies less than before."""
    verdicts = [
        copied("copy_bytes_h2d_pageable", 4.0 * 2**20, 12.0 * 2**20),
        copied("copy_bytes_h2d_pinned", 1.0 * 2**20, 1.5 * 2**20),
        copied("copy_bytes_d2h_pageable", 7.0 * 2**20, 2.0 * 2**20),
        copied("copy_bytes_d2h_pinned", None, 3.0 * 2**20),
        copied("copy_bytes_d2d", 1.0 * 2**20, 17.0 * 2**20),
        copied("copy_bytes_d2d", 1.0 * 2**20, None),
    ]
    before = [(copy, 30.0), (CONV, 5_000.0), (MUL, 50.0)]
    after = [(copy, 30.0), (CONV, 5_000.0), (MUL, 50.0), *[(copy, 300.0)] * 2]
    told = between(before, after, step_time(0.1, before=5.08), *verdicts)
    assert (told.kind, told.what, told.family) == (CauseKind.TRANSFER, copy, "copy")
    assert told.bytes == (None if more_bytes is None else more_bytes * 2**20)
    assert (told.before, told.after) == (1, 3)


@pytest.mark.parametrize(("before", "more_bytes"), [(7.0, 1.0), (8.0, None)])
def test_a_single_byte_more_is_told_of(before: float, more_bytes: float | None) -> None:
    """As of a bool that is copied to the host."""
    verdicts = more("copies", 1, 2), copied("copy_bytes_d2h_pageable", before, 8.0)
    told = cause(of((*STEP_ROWS, (DOWN, 40.0, ITEM)), step_time(0.0), *verdicts))
    assert (told.kind, told.what, told.bytes) == (CauseKind.TRANSFER, DOWN, more_bytes)


def test_of_several_copies_those_are_told_that_take_most() -> None:
    """Each way for itself."""
    told = between([(CONV, 5e3)], [(DOWN, 100.0), (UP, 60.0), (CONV, 5e3), (UP, 60.0)])
    assert (told.kind, told.what, told.before, told.after) == (CauseKind.TRANSFER, UP, 0, 2)


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ((UP_PINNED, 300.0), (UP, 900.0), CauseKind.TRANSFER),
        ((DOWN_PINNED, 1.0), (DOWN, 1.5), CauseKind.SYNCHRONISATION),
    ],
)
def test_a_copy_that_is_not_out_of_pinned_memory_any_more_is_told(
    before: Launched, after: Launched, kind: CauseKind
) -> None:
    """It stands in place of the other one: no copy is new."""
    told = between([(CONV, 5e3), before], [(CONV, 5e3), after])
    assert (told.kind, told.what, told.before, told.after) == (kind, after[0], 0, 1)


def test_a_copy_that_is_as_it_was_is_not_told_of() -> None:
    """Whichever the function copies first."""
    rows = [(DOWN, 20.0), (CONV, 5e3)]
    told = between([*rows, (UP_PINNED, 300.0)], [*rows, (UP, 900.0)])
    assert (told.kind, told.what) == (CauseKind.TRANSFER, UP)
    assert (told.before, told.after) == (0, 1)


@pytest.mark.parametrize("new", [[], [(MUL, 10.0, ITEM)]], ids=["there alone", "in both"])
def test_a_function_is_counted_outside_of_modules_too_where_it_changed_there(
    new: Sequence[Sited],
) -> None:
    """Its line names the modules only."""
    outside = ITEM.rpartition(" ")[0]
    rows = [(CONV, 5e3, ITEM), (MUL, 10.0, outside)]
    after = sited(*rows, *new, (UP, 900.0, outside))
    told = cause(attribute(after, sited(*rows, (UP_PINNED, 300.0, outside)), NAMING))
    assert (told.kind, told.what, told.before, told.after) == (CauseKind.TRANSFER, UP, 0, 1)


@pytest.mark.parametrize("others", [[], [(MUL, 40.0, TRAIN)] * 9], ids=["alone", "more launches"])
def test_copies_that_are_counted_are_those_of_the_function_that_copies_most_often(
    others: Sequence[Sited],
) -> None:
    """What else changed may copy nothing."""
    rows = [*STEP_ROWS, *others, *[(UP, 40.0, f"{NORM} x")] * 2, *[(DOWN, 1.5, ITEM)] * 3]
    told = cause(of(rows, step_time(0.0), more("copies", 0, 5)))
    assert (told.line, told.what, told.after) == ("layers.py:77", DOWN, 3)


# What the host is counted to do


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (1, (CauseKind.RECOMPILATION, "recompilations", 0, 2)),
        (2, (CauseKind.MEMORY, "driver_allocations", 1, 8)),
        (3, (CauseKind.TRANSFER, "copies", 2, 5)),
        (4, (CauseKind.SYNCHRONISATION, "stream_synchronizations", 3, 9)),
    ],
)
def test_of_what_the_host_is_counted_to_do_that_is_told_which_says_most(
    count: int, says: tuple[CauseKind, str, int, int]
) -> None:
    verdicts = (
        more("recompilations", 0, 2),
        more("driver_allocations", 1, 8),
        more("copies", 2, 5),
        more("stream_synchronizations", 3, 9),
    )
    told = cause(of(STEP_ROWS, step_time(0.0), *verdicts[:count]))
    assert (told.kind, told.what, told.before, told.after) == says
    assert (told.line, told.bytes, told.change, told.relative) == ("", None, None, None)


def test_bytes_that_are_counted_are_told_by_how_many_more_there_are() -> None:
    """And without a count: nobody knows of how many copies, nor are kernels of no line any."""
    made = sited(*STEP_ROWS, (MUL, 50.0, "x x"))
    compiled = replace(made, sites=(*made.sites[:-1], CallSite("", "")))
    verdicts = step_time(0.0), copied("copy_bytes_d2h_pinned", 3e6, 7e6)
    told = cause(attribute(compiled, compiled, NAMING, verdicts))
    assert (told.kind, told.what) == (CauseKind.TRANSFER, "copy_bytes_d2h_pinned")
    assert (told.bytes, told.before, told.after) == (4e6, 0, 0)


@pytest.mark.parametrize(
    ("change", "kind"), [(0.1, CauseKind.RECOMPILATION), (0.01, CauseKind.LAUNCHES)]
)
def test_a_loss_that_the_trace_does_not_see_is_what_is_counted(
    change: float, kind: CauseKind
) -> None:
    """Where it sees a quarter of it, that is why."""
    rows = changed((BLOCK, before_each(MUL, 50.0)))
    recompiled = more("recompilations", 0, 2)
    told = cause(of(rows, step_time(change), recompiled))
    assert told.kind is kind
    assert told.change == pytest.approx(change * 20e6)
    unseen = cause(of(STEP_ROWS, step_time(change), recompiled))
    assert (unseen.kind, unseen.relative) == (CauseKind.RECOMPILATION, change)


def test_a_loss_that_the_trace_does_not_see_is_that_of_a_single_new_call() -> None:
    """At another function than what the trace sees."""
    rows = changed((NORM, before_each(MUL, 50.0)))
    told = cause(of(rows, step_time(0.1), calls=[("cudaDeviceSynchronize", ITEM, 1)]))
    assert (told.kind, told.line) == (CauseKind.SYNCHRONISATION, "layers.py:77")
    assert (told.what, told.before, told.after) == ("cudaDeviceSynchronize", 0, 1)


@pytest.mark.parametrize(
    ("verdicts", "kind"),
    [
        ([more("stream_synchronizations", 0, 12)], CauseKind.SYNCHRONISATION),
        ([more("stream_synchronizations", 0, 12), verdict("cycles")], CauseKind.PRECISION),
        (
            [step_time(0.0), more("stream_synchronizations", 0, 12), verdict("cycles")],
            CauseKind.SYNCHRONISATION,
        ),
    ],
    ids=["alone", "beside others", "the time is as it was"],
)
def test_where_nobody_judged_the_time_calls_are_why_if_nothing_else_is_worse(
    verdicts: Sequence[Verdict], kind: CauseKind
) -> None:
    calls = [("cudaStreamSynchronize", ITEM, 12)]
    told = cause(of(changed((NORM, in_double)), *verdicts, calls=calls))
    assert (told.kind, told.change, told.relative) == (kind, None, None)


@pytest.mark.parametrize(
    ("metric", "kind"),
    [
        ("stream_synchronizations", CauseKind.SYNCHRONISATION),
        ("driver_allocations", CauseKind.MEMORY),
        ("recompilations", CauseKind.RECOMPILATION),
        ("copies", CauseKind.HOST),
    ],
)
def test_where_the_gpu_waits_for_python_what_is_counted_there_is_why(
    metric: str, kind: CauseKind
) -> None:
    """But for copies, which the GPU does."""
    idle_at = [(TRAIN, 1_000.0), ("data.py:8 Volumes.load", 5_000.0)]
    told = cause(of(STEP_ROWS, step_time(0.25), more(metric, 1, 4), idle=6e3, idle_at=idle_at))
    assert (told.kind, told.line) == (kind, "data.py:8")
    assert told.change == pytest.approx(5e6)
    counts = ("", 0, 0) if kind is CauseKind.HOST else (metric, 1, 4)
    assert (told.what, told.before, told.after) == counts


@pytest.mark.parametrize("change", [0.0, 0.25])
def test_of_metrics_of_one_kind_the_first_is_told(change: float) -> None:
    """Whether the step takes longer or not."""
    counted = more("recompilations", 0, 2), more("compiled_graphs", 2, 4)
    idle_at = [(TRAIN, 1e3), ("data.py:8 Volumes.load", 5e3)]
    told = cause(of(STEP_ROWS, step_time(change), *counted, idle=6e3, idle_at=idle_at))
    assert (told.kind, told.what) == (CauseKind.RECOMPILATION, "recompilations")
    assert (told.before, told.after) == (0, 2)


@pytest.mark.parametrize("change", [0.0, 0.25])
def test_a_step_that_lost_torch_compile_is_slower_for_that(change: float) -> None:
    """Whatever kernels it launches in place of the compiled ones."""
    lost = replace(more("compiled_graphs", 1, 0), reason="not-compiled")
    rows = changed((BLOCK, before_each(MUL, 50.0)))
    told = cause(of(rows, step_time(change), lost, more("copies", 2, 5)))
    assert (told.kind, told.what) == (CauseKind.RECOMPILATION, "compiled_graphs")
    assert (told.before, told.after) == (1, 0)


def test_of_a_gpu_that_waits_no_launches_are_counted() -> None:
    """Not even those of the function that it waits for."""
    told = cause(of(STEP_ROWS, step_time(0.25), idle=6_000.0, idle_at=[(TRAIN, 6_000.0)]))
    assert (told.kind, told.line) == (CauseKind.HOST, "training.py:95")
    assert (told.before, told.after) == (0, 0)


# Calls


@pytest.mark.parametrize(
    ("rows", "count", "kind"),
    [
        ([(DOWN, 900.0)], 1, CauseKind.SYNCHRONISATION),
        ([(UP, 900.0)], 3, CauseKind.SYNCHRONISATION),
        ([(UP, 900.0), (MUL, 50.0)], 3, CauseKind.TRANSFER),
        ([(MUL, 900.0)], 3, CauseKind.LAUNCHES),
    ],
)
def test_calls_are_why_where_nothing_but_copies_comes_with_them(
    rows: Sequence[Launched], count: int, kind: CauseKind
) -> None:
    new = [(name, us, ITEM) for name, us in rows]
    calls = [("cudaStreamSynchronize", ITEM, count)]
    told = cause(of((*STEP_ROWS, *new), step_time(0.045), calls=calls))
    assert (told.kind, told.line) == (kind, "layers.py:77")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda row: [(CONV, 5_500.0, row[2])], CauseKind.SLOWER),
        (lambda row: [(CONV_TILE, 5_100.0, row[2]), (UP, 400.0, row[2])], CauseKind.TRANSFER),
    ],
    ids=["slower", "other kernels"],
)
def test_calls_are_not_why_where_kernels_are_others_or_take_longer(
    change: Callable[[Sited], Sequence[Sited]], kind: CauseKind
) -> None:
    calls = [("cudaStreamSynchronize", ITEM, 3)]
    told = cause(of(changed((BLOCK, change)), step_time(0.05), calls=calls))
    assert (told.kind, told.function) == (kind, "ResidualBlock.forward")


def test_calls_of_one_kind_are_counted_together_at_the_line_with_most_new_ones() -> None:
    """Those that were there already do not make it the worst."""
    other, third = "layers.py:79 ResidualBlock.forward blocks.1", f"{BLOCK} blocks.2"
    told = cause(
        of(
            STEP_ROWS,
            step_time(0.0),
            more("stream_synchronizations", 100, 107),
            called=[("cudaStreamSynchronize", ITEM, 100)],
            calls=[
                ("cudaStreamSynchronize", ITEM, 102),
                ("cudaDeviceSynchronize", other, 5),
                ("cudaMalloc", third, 3),
            ],
        )
    )
    assert (told.kind, told.line) == (CauseKind.SYNCHRONISATION, "layers.py:79")
    assert (told.what, told.before, told.after) == ("cudaDeviceSynchronize", 100, 107)
    assert {*told.modules} == {"blocks.0", "blocks.1"}


GIVES = "net.py:9 Net.forward net"


@pytest.mark.parametrize(
    ("calls", "line", "what"),
    [
        (
            [("cudaMalloc", ITEM, 8), ("cudaStreamSynchronize", ITEM, 1)],
            "layers.py:77",
            "cudaMalloc",
        ),
        (
            [("cudaMalloc", ITEM, 8), ("cudaFree", GIVES, 1), ("cudaStreamSynchronize", GIVES, 1)],
            "net.py:9",
            "cudaFree",
        ),
    ],
    ids=["asks", "gives back"],
)
def test_who_is_counted_to_ask_for_memory_may_wait_besides(
    calls: Sequence[tuple[str, str, int]], line: str, what: str
) -> None:
    told = cause(of(STEP_ROWS, step_time(0.0), more("driver_allocations", 0, 8), calls=calls))
    assert (told.kind, told.line, told.what) == (CauseKind.MEMORY, line, what)


def test_calls_of_another_kind_that_are_gone_hide_none_that_are_new() -> None:
    gone, new = (
        [("cudaMalloc", ITEM, 50)],
        [("cudaStreamSynchronize", ITEM, 4), ("cudaDeviceSynchronize", GIVES, 1)],
    )
    counted = more("stream_synchronizations", 5, 9)
    told = cause(of(STEP_ROWS, step_time(0.0), counted, called=gone, calls=new))
    assert (told.kind, told.line, told.after) == (CauseKind.SYNCHRONISATION, "layers.py:77", 4)


@pytest.mark.parametrize("now", [101, 99], ids=["one more", "one less"])
def test_who_waits_more_often_than_before_is_told_not_who_waits_most_often(now: int) -> None:
    told = cause(
        of(
            STEP_ROWS,
            step_time(0.0),
            more("stream_synchronizations", 100, now + 3),
            called=[("cudaStreamSynchronize", ITEM, 100)],
            calls=[("cudaStreamSynchronize", ITEM, now), ("cudaDeviceSynchronize", GIVES, 3)],
        )
    )
    assert (told.kind, told.line) == (CauseKind.SYNCHRONISATION, "net.py:9")
    assert (told.what, told.before, told.after) == ("cudaDeviceSynchronize", 0, 3)


def test_of_calls_for_memory_the_one_that_gives_it_back_is_told() -> None:
    """The others ask for it anew, and are more."""
    there = "layers.py:79 ResidualBlock.forward blocks.0"
    calls = [("cudaMalloc", ITEM, 5), ("cudaFree", there, 2)]
    told = cause(of(STEP_ROWS, step_time(0.0), more("driver_allocations", 0, 5), calls=calls))
    assert (told.kind, told.line, told.what) == (CauseKind.MEMORY, "layers.py:79", "cudaFree")
    assert (told.before, told.after) == (0, 7)


def test_memory_that_nobody_gives_back_is_asked_for_where_it_is_needed() -> None:
    """Whatever else changed before that."""
    rows, asked = changed((NORM, before_each(MUL, 50.0))), more("driver_allocations", 0, 5)
    told = cause(of(rows, step_time(0.0), asked, calls=[("cudaMalloc", ITEM, 5)]))
    assert (told.kind, told.line, told.what) == (CauseKind.MEMORY, "layers.py:77", "cudaMalloc")


def test_who_sends_from_pageable_memory_waits_once_more_than_before() -> None:
    told = cause(
        of(
            (*STEP_ROWS, (UP, 40.0, ITEM)),
            step_time(0.0),
            more("stream_synchronizations", 4, 5),
            called=[("cudaStreamSynchronize", ITEM, 4)],
            calls=[("cudaStreamSynchronize", ITEM, 5)],
        )
    )
    assert (told.kind, told.what, told.before, told.after) == (CauseKind.TRANSFER, UP, 0, 1)


def test_calls_that_neither_wait_nor_ask_for_memory_keep_the_host() -> None:
    calls, idle_at = [("cudaGraphLaunch", TRAIN, 5)], [(TRAIN, 6_000.0)]
    told = cause(of(STEP_ROWS, step_time(0.25), calls=calls, idle=6_000.0, idle_at=idle_at))
    assert (told.kind, told.line) == (CauseKind.HOST, "training.py:95")
    assert (told.what, told.before, told.after) == ("cudaGraphLaunch", 0, 5)


def test_calls_and_copies_that_come_with_a_recompilation_are_not_why() -> None:
    """Who compiles loads modules, and sends them."""
    told = cause(
        of(
            (*STEP_ROWS, (UP, 40.0, ITEM)),
            step_time(0.0),
            more("recompilations", 0, 2),
            calls=[("cuModuleLoadData", ITEM, 5)],
        )
    )
    assert (told.kind, told.what) == (CauseKind.RECOMPILATION, "recompilations")
    assert (told.before, told.after) == (0, 2)
