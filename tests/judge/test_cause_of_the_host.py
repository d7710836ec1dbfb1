"""Losses that the host makes: it waits, calls, copies and asks for memory, and the GPU is idle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from pytest_gpuperf.judge.attribution import attribute
from pytest_gpuperf.model.measurement import CallSite, KernelTable
from pytest_gpuperf.model.result import Attribution, Verdict
from pytest_gpuperf.model.result import CauseKind as Kind
from tests.examples import verdict
from tests.judge.losses import (
    ACROSS,
    BLOCK,
    CONV,
    CONV_TILE,
    COPY,
    DOWN,
    DOWN_PINNED,
    ITEM,
    MOMENTS,
    MUL,
    NAMING,
    NORM,
    STEP_ROWS,
    TRAIN,
    UP,
    UP_PINNED,
    Cases,
    against,
    before_each,
    between,
    bound,
    cause,
    changed,
    expected,
    in_double,
    more,
    of,
    record,
    said,
    step_time,
)
from tests.kernel_steps import Sited, counted, sited, table

# The time of the step


def test_of_a_trace_that_the_step_contradicts_only_the_launches_are_believed() -> None:
    """Seen on an H200: the headline was +196 ms (+84.84 %), gaps between kernels."""
    whole = counted("tf32-sites")
    unlucky = replace(whole, idle=whole.idle + 196e6)
    attribution = attribute(unlucky, whole, NAMING, [step_time(0.005, 0.001, before=231.0)])
    assert not attribution.reliable
    assert cause(attribution).kind is Kind.UNKNOWN
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
    assert (attribution.reliable, attribution.cause) == (False, None)


@pytest.mark.parametrize(
    ("traces", "reliable"), [((0.2, 9.0, 0.1), True), ((9.0, 9.1, 8.9), False)]
)
def test_a_gap_counts_beyond_its_spread_over_the_traces(
    traces: tuple[float, ...], reliable: bool
) -> None:
    """Milliseconds in which nothing ran. One unlucky trace of three moves no median far."""
    rows = [("fprop", 10_000.0), ("add", 10_000.0)]
    idles = tuple(1e6 * idle for idle in traces)
    now = replace(table(*rows), idle=sorted(idles)[1], idles=idles, busy=(20e6,) * 3)
    then = replace(table(*rows), idle=1e5, idles=(1e5,) * 3, busy=(20e6,) * 3)
    attribution = attribute(now, then, NAMING, [step_time(0.005, 0.001)])
    assert attribution.reliable is reliable
    assert not any(entry.significant for entry in attribution.entries)


# Steps that the host bounds

LOAD, ASK = "data.py:8 Volumes.load", "net.py:9 Net.forward net"
"""Lines that launch nothing."""
WAIT, ALLOC, FREE = "cudaStreamSynchronize", "cudaMalloc", "cudaFree"
SYNC_ALL = "cudaDeviceSynchronize"
WAITS, ALLOCATES = "stream_synchronizations", "driver_allocations"
SAME_TIME = step_time(0.0)


def told(rows: Sequence[Sited] = STEP_ROWS, *verdicts: Verdict, **host: Any) -> Attribution:
    return of(rows, *verdicts, **host)


def two_blocks(launches: int) -> tuple[Sited, ...]:
    """A step with so many more launches in each of its two blocks."""
    return changed((BLOCK, before_each(MUL, 2.0, times=launches)))


def gap_of(waits_ms: float) -> Attribution:
    whole = counted("tf32-sites")
    waits = replace(whole, idle=whole.idle + 1e6 * waits_ms)
    return against(waits, whole, step_time(0.05, 0.004, before=231.0))


def compiled(longer: float) -> Attribution:
    """Compiled code of no line takes 0.5 ms longer; the host is somewhere for 0.7 ms more."""

    def step(compiled: float, norm: float, idle: float) -> KernelTable:
        rows = [(CONV, 5e3, BLOCK), (MUL, compiled, "x x"), (MOMENTS, norm, NORM)]
        made = sited(*rows, idle=idle, idle_at=[(NORM, 100.0)])
        return replace(
            made, sites=tuple(CallSite("", "") if s.line == "x" else s for s in made.sites)
        )

    lost = (500.0 + longer + 700.0) / 7_100.0
    after, before = step(1_500.0, 1_000.0 + longer, 800.0), step(1_000.0, 1_000.0, 100.0)
    return against(after, before, step_time(lost, before=7.1))


GAP: Cases = {
    "host time: that the step has too": partial(gap_of, 12.0),
    **{
        f"{kind.value}: the launches that are new: {kind.value}": partial(
            lambda at, turned: bound(changed((at, turned)), 5e3, step_time(0.3, 0.29)), place, turn
        )
        for kind, place, turn in (
            (Kind.LAYOUT, BLOCK, before_each(COPY, 2.0, times=20)),
            (Kind.LAUNCHES, BLOCK, before_each(MUL, 2.0, times=20)),
            (Kind.PRECISION, NORM, lambda row: [(MUL, 2.0, row[2]), *in_double(row)]),
        )
    },
    "more launches: 20 launches": partial(bound, two_blocks(20), 4_200.0, step_time(0.22, 0.0201)),
    "host time: 19 launches": partial(bound, two_blocks(19), 4_200.0, step_time(0.22, 0.0201)),
    "more launches: 20 launches, the step not judged": partial(bound, two_blocks(20), 4e3),
    "host time: 19 launches, the step not judged": partial(bound, two_blocks(19), 4e3),
    "more launches: not beyond the step's noise": partial(
        bound,
        changed((BLOCK, before_each(MUL, 50.0))),
        4e3,
        step_time(0.2, 0.21),
        more("launches", 12, 14),
    ),
    "host time: of Python alone": partial(
        told,
        STEP_ROWS,
        step_time(0.22),
        idle=5_500.0,
        idle_at=[(LOAD, 5_000.0), (TRAIN, 0.0), (f"{NORM} blocks.0.norm", 500.0)],
    ),
    "more launches: no call": partial(
        told, two_blocks(20), step_time(0.3, 0.29), idle=6e3, idle_at=[(TRAIN, 2e3)]
    ),
    "host synchronisation: a single new call": partial(
        told,
        two_blocks(20),
        step_time(0.3, 0.29),
        calls=[(WAIT, ASK, 1)],
        idle=6e3,
        idle_at=[(TRAIN, 2e3)],
    ),
    "host synchronisation: a call has its line's and what is at none": partial(
        told,
        STEP_ROWS,
        step_time(0.325),
        calls=[(WAIT, ASK, 1)],
        idle=7_500.0,
        idle_at=[(TRAIN, 1e3), (ASK, 1_500.0), (LOAD, 3e3)],
    ),
    "host time: several lines of a function are one": partial(
        told,
        STEP_ROWS,
        step_time(0.4),
        idle=9e3,
        idle_at=[
            *((TRAIN, 1e3), ("io.py:3 read", 3e3)),
            *((LOAD, 2_500.0), (LOAD.replace(":8", ":9"), 2_500.0)),
        ],
    ),
    "host time: who calls less may keep the GPU waiting": partial(
        told,
        STEP_ROWS,
        step_time(0.1),
        calls=[(ALLOC, ASK, 2)],
        called=[(ALLOC, ASK, 5)],
        idle=3e3,
        idle_at=[(TRAIN, 1e3), (ASK, 2e3)],
    ),
    "unknown: within its own noise": partial(
        told, STEP_ROWS, step_time(0.005, 5e-4), idle=1_100.0, idle_at=[(TRAIN, 1e3), (LOAD, 100.0)]
    ),
    "host time: beyond its own noise": partial(
        told, STEP_ROWS, step_time(0.01, 5e-4), idle=1_200.0, idle_at=[(TRAIN, 1e3), (LOAD, 200.0)]
    ),
    "slower kernels: a norm that takes longer than what is of no line": partial(compiled, 1_300.0),
    "host time: at no line, with what is known of none": partial(compiled, 1_100.0),
    "host time: no launches are counted of a GPU that waits": partial(
        told, STEP_ROWS, step_time(0.25), idle=6e3, idle_at=[(TRAIN, 6e3)]
    ),
}


@pytest.mark.parametrize(
    ("half", "kind"), [(0.025, Kind.HOST), (0.0249, Kind.UNKNOWN), (0.11, None)]
)
def test_a_gap_is_the_cause_where_the_step_lost_half_of_it_at_worst(
    half: float, kind: Kind | None
) -> None:
    """Of 5 ms, 2.5: 2 were measured. Its kernels were faster by the rest; or it lost nothing."""
    faster = changed((BLOCK, lambda row: [(row[0], row[1] - 1_500.0, row[2])]))
    verdicts = step_time(0.1, half), more("launches", 12, 14)
    said = of(faster, *verdicts, idle=6_000.0, idle_at=[(TRAIN, 1_000.0), (LOAD, 5_000.0)])
    assert said.reliable
    assert (said.cause and said.cause.kind) == kind


# Copies


def copied(metric: str, before: float | None, after: float | None) -> Verdict:
    return verdict(metric, unit="bytes", baseline=before, measured=after, change=None)


def sent(waits: int, *rows: Sited, before: int = 0) -> Attribution:
    """Something is sent out of pageable memory where the host waits so many times."""
    return told(
        (*STEP_ROWS, *rows, (UP, 40.0, ITEM)),
        SAME_TIME,
        more(WAITS, before, before + waits),
        called=[(WAIT, ITEM, before)] if before else [],
        calls=[(WAIT, ITEM, before + waits)],
    )


def unpinned(former: str, waits: int) -> Attribution:
    """The same, in place of another copy."""
    after = sited(*STEP_ROWS, (UP, 40.0, ITEM), calls=[(WAIT, ITEM, waits)])
    return against(after, sited(*STEP_ROWS, (former, 40.0, ITEM)), SAME_TIME, more(WAITS, 0, waits))


def copies_at(place: str, us: float, *others: Sited) -> Attribution:
    rows = (*STEP_ROWS, *[(place, us, ITEM)] * 3, *others)
    return told(rows, step_time(0.005), copied("copy_bytes_d2d", 0, 2**20))


def copied_one_way(copy: str) -> Attribution:
    """Verdicts know both sides of some ways, and that one copies less than before."""
    verdicts = [
        copied("copy_bytes_h2d_pageable", 4.0 * 2**20, 12.0 * 2**20),
        copied("copy_bytes_h2d_pinned", 1.0 * 2**20, 1.5 * 2**20),
        copied("copy_bytes_d2h_pageable", 7.0 * 2**20, 2.0 * 2**20),
        copied("copy_bytes_d2h_pinned", None, 3.0 * 2**20),
        copied("copy_bytes_d2d", 1.0 * 2**20, 17.0 * 2**20),
        copied("copy_bytes_d2d", 1.0 * 2**20, None),
    ]
    before = [(copy, 30.0), (CONV, 5_000.0), (MUL, 50.0)]
    return between(before, [*before, *[(copy, 300.0)] * 2], step_time(0.1, before=5.08), *verdicts)


def one_byte(before: float) -> Attribution:
    """As of a bool that is copied to the host."""
    verdicts = more("copies", 1, 2), copied("copy_bytes_d2h_pageable", before, 8.0)
    return told((*STEP_ROWS, (DOWN, 40.0, ITEM)), SAME_TIME, *verdicts)


def outside(*new: Sited) -> Attribution:
    """A copy outside of modules, in a function that works for modules too."""
    place = ITEM.rpartition(" ")[0]
    rows = [(CONV, 5e3, ITEM), (MUL, 10.0, place)]
    after = sited(*rows, *new, (UP, 900.0, place))
    return against(after, sited(*rows, (UP_PINNED, 300.0, place)))


def copying_most(*others: Sited) -> Attribution:
    copies = [*[(UP, 40.0, f"{NORM} x")] * 2, *[(DOWN, 1.5, ITEM)] * 3]
    return told([*STEP_ROWS, *others, *copies], SAME_TIME, more("copies", 0, 5))


def uncompiled_copies() -> Attribution:
    """Kernels of no line are not those that copy."""
    made = sited(*STEP_ROWS, (MUL, 50.0, "x x"))
    compiled = replace(made, sites=(*made.sites[:-1], CallSite("", "")))
    return against(compiled, compiled, SAME_TIME, copied("copy_bytes_d2h_pinned", 3e6, 7e6))


MANAGED = UP.replace("-> Device", "-> Managed")

COPIES: Cases = {
    "transfer: who sends from pageable memory waits": partial(sent, 1),
    "host synchronisation: who waits more often": partial(sent, 2),
    "transfer: once more than before": partial(sent, 1, before=4),
    "transfer: beside a longer copy that nobody waits for": partial(sent, 1, (ACROSS, 400.0, ITEM)),
    "transfer: no longer pinned": partial(unpinned, UP_PINNED, 1),
    "host synchronisation: no longer pinned, two waits": partial(unpinned, UP_PINNED, 2),
    "host synchronisation: waited for before as well": partial(unpinned, MANAGED, 1),
    "transfer: bytes of one function": partial(copies_at, ACROSS, 40.0),
    "transfer: bytes where others copy too": partial(
        copies_at, ACROSS, 40.0, (ACROSS, 30.0, TRAIN)
    ),
    **{
        f"{kind.value}: {copy}, {us:g} us": partial(told, (*STEP_ROWS, *[(copy, us, ITEM)] * 2))
        for copy, us, kind in (
            (DOWN, 1.5, Kind.SYNCHRONISATION),
            (DOWN, 9.9, Kind.SYNCHRONISATION),
            (DOWN, 10.1, Kind.TRANSFER),
            (DOWN_PINNED, 1.5, Kind.TRANSFER),
            (UP, 1.5, Kind.TRANSFER),
        )
    },
    **{
        f"transfer: bytes of {copy}": partial(copied_one_way, copy)
        for copy, mib in (
            (UP, 8.5),
            (UP_PINNED, 8.5),
            ("Memcpy HtoA (Pageable -> Array)", 8.5),
            (DOWN, None),
            (ACROSS, 16.0),
            ("Memcpy PtoP (Device -> Device)", None),
        )
    },
    "transfer: one byte more": partial(one_byte, 7.0),
    "transfer: no byte more": partial(one_byte, 8.0),
    "transfer: of several those that take most, each way": partial(
        between, [(CONV, 5e3)], [(DOWN, 100.0), (UP, 60.0), (CONV, 5e3), (UP, 60.0)]
    ),
    "transfer: in place of one out of pinned memory": partial(
        between, [(CONV, 5e3), (UP_PINNED, 300.0)], [(CONV, 5e3), (UP, 900.0)]
    ),
    "host synchronisation: a number in place of one into pinned memory": partial(
        between, [(CONV, 5e3), (DOWN_PINNED, 1.0)], [(CONV, 5e3), (DOWN, 1.5)]
    ),
    "transfer: a copy that is as it was comes first": partial(
        between,
        [(DOWN, 20.0), (CONV, 5e3), (UP_PINNED, 300.0)],
        [(DOWN, 20.0), (CONV, 5e3), (UP, 900.0)],
    ),
    "transfer: outside of modules": outside,
    "transfer: outside of modules and in one": partial(outside, (MUL, 10.0, ITEM)),
    "host synchronisation: counted, of the function that copies most often": copying_most,
    "host synchronisation: counted, where most launches copy nothing": partial(
        copying_most, *[(MUL, 40.0, TRAIN)] * 9
    ),
    "transfer: counted in bytes, without a count": uncompiled_copies,
}

# What the host is counted to do

COMPILED, ALLOCATED = more("recompilations", 0, 2), more(ALLOCATES, 1, 8)
COPIED, WAITED = more("copies", 2, 5), more(WAITS, 3, 9)
LOST = replace(more("compiled_graphs", 1, 0), reason="not-compiled")
WAITS_AT_ITEM = [(WAIT, ITEM, 12)]
AT_LOAD = [(TRAIN, 1_000.0), (LOAD, 5_000.0)]
ONE_MORE = changed((BLOCK, before_each(MUL, 50.0)))
IN_DOUBLE = changed((NORM, in_double))
UNKNOWN_LINE = {"line": "", "bytes": None, "change": None, "relative": None}

COUNTS: Cases = {
    **{
        f"{kind.value}: of {len(counted_)} counts {what}": partial(
            told, STEP_ROWS, SAME_TIME, *counted_
        )
        for counted_, kind, what, before, after in (
            ([COMPILED], Kind.RECOMPILATION, "recompilations", 0, 2),
            ([COMPILED, ALLOCATED], Kind.MEMORY, ALLOCATES, 1, 8),
            ([COMPILED, ALLOCATED, COPIED], Kind.TRANSFER, "copies", 2, 5),
            ([COMPILED, ALLOCATED, COPIED, WAITED], Kind.SYNCHRONISATION, WAITS, 3, 9),
        )
    },
    "host synchronisation: the time is as it was": partial(
        told, IN_DOUBLE, SAME_TIME, more(WAITS, 0, 12), calls=WAITS_AT_ITEM
    ),
    "precision: the time is not": partial(
        told, IN_DOUBLE, step_time(0.16), more(WAITS, 0, 12), calls=WAITS_AT_ITEM
    ),
    "host synchronisation: the time is not judged, alone": partial(
        told, IN_DOUBLE, more(WAITS, 0, 12), calls=WAITS_AT_ITEM
    ),
    "precision: the time is not judged, beside others": partial(
        told, IN_DOUBLE, more(WAITS, 0, 12), verdict("cycles"), calls=WAITS_AT_ITEM
    ),
    "host synchronisation: the time is as it was, beside others": partial(
        told, IN_DOUBLE, SAME_TIME, more(WAITS, 0, 12), verdict("cycles"), calls=WAITS_AT_ITEM
    ),
    "recompilation: a loss that the trace does not see": partial(
        told, ONE_MORE, step_time(0.1), COMPILED
    ),
    "more launches: a loss of which it sees little, and nothing else": partial(
        told, ONE_MORE, step_time(0.1)
    ),
    "more launches: a loss that it sees": partial(told, ONE_MORE, step_time(0.01), COMPILED),
    "recompilation: a loss of which it sees nothing": partial(
        told, STEP_ROWS, step_time(0.01), COMPILED
    ),
    "host synchronisation: a loss that it does not see, with a new call": partial(
        told, ONE_MORE, step_time(0.1), calls=[(SYNC_ALL, ITEM, 2)]
    ),
    "more launches: a loss that it sees, with a new call": partial(
        told, ONE_MORE, step_time(0.01), calls=[(SYNC_ALL, ITEM, 2)]
    ),
    "host synchronisation: a single new call at another function": partial(
        told, changed((NORM, before_each(MUL, 50.0))), step_time(0.1), calls=[(SYNC_ALL, ITEM, 1)]
    ),
    **{
        f"{kind.value}: while the GPU waits: {metric}": partial(
            told, STEP_ROWS, step_time(0.25), more(metric, 1, 4), idle=6e3, idle_at=AT_LOAD
        )
        for metric, kind, what, before, after in (
            (WAITS, Kind.SYNCHRONISATION, WAITS, 1, 4),
            (ALLOCATES, Kind.MEMORY, ALLOCATES, 1, 4),
            ("recompilations", Kind.RECOMPILATION, "recompilations", 1, 4),
            ("copies", Kind.HOST, "", 0, 0),
        )
    },
    **{
        f"recompilation: of one kind the first, {change:.0%} slower": partial(
            told,
            STEP_ROWS,
            step_time(change),
            COMPILED,
            more("compiled_graphs", 2, 4),
            idle=6e3,
            idle_at=AT_LOAD,
        )
        for change in (0.0, 0.25)
    },
    **{
        f"recompilation: torch.compile is lost, {change:.0%} slower": partial(
            told, ONE_MORE, step_time(change), LOST, COPIED
        )
        for change in (0.0, 0.25)
    },
    "recompilation: calls and copies come with a recompilation": partial(
        told,
        (*STEP_ROWS, (UP, 40.0, ITEM)),
        SAME_TIME,
        COMPILED,
        calls=[("cuModuleLoadData", ITEM, 5)],
    ),
}

# Calls


def launching(count: int, *rows: tuple[str, float]) -> Attribution:
    """New launches where the host waits."""
    new = [(name, us, ITEM) for name, us in rows]
    return told((*STEP_ROWS, *new), step_time(0.045), calls=[(WAIT, ITEM, count)])


def in_blocks(turned: Callable[[Sited], Sequence[Sited]]) -> Attribution:
    """The host waits where kernels are others or take longer."""
    return told(changed((BLOCK, turned)), step_time(0.05), calls=[(WAIT, ITEM, 3)])


def waiting(now: int) -> Attribution:
    """One line waits a hundred times as before, or about; another three times."""
    return told(
        STEP_ROWS,
        SAME_TIME,
        more(WAITS, 100, now + 3),
        called=[(WAIT, ITEM, 100)],
        calls=[(WAIT, ITEM, now), (SYNC_ALL, ASK, 3)],
    )


ASKED = more(ALLOCATES, 0, 8)
ASKS = [(ALLOC, f"{BLOCK} blocks.{n}", 4) for n in range(2)]
SAME_FUNCTION = "layers.py:79 ResidualBlock.forward blocks.0"

CALLS: Cases = {
    "host synchronisation: a copy alone comes with them": partial(launching, 1, (DOWN, 900.0)),
    "host synchronisation: more of them than are sent": partial(launching, 3, (UP, 900.0)),
    "transfer: a kernel beside the copy": partial(launching, 3, (UP, 900.0), (MUL, 50.0)),
    "more launches: a kernel": partial(launching, 3, (MUL, 900.0)),
    "slower kernels: where kernels take longer": partial(
        in_blocks, lambda row: [(CONV, 5_500.0, row[2])]
    ),
    "transfer: where kernels are others": partial(
        in_blocks, lambda row: [(CONV_TILE, 5_100.0, row[2]), (UP, 400.0, row[2])]
    ),
    "host synchronisation: of one kind together, at the line with most new ones": partial(
        told,
        STEP_ROWS,
        SAME_TIME,
        more(WAITS, 100, 107),
        called=[(WAIT, ITEM, 100)],
        calls=[
            (WAIT, ITEM, 102),
            (SYNC_ALL, "layers.py:79 ResidualBlock.forward blocks.1", 5),
            (ALLOC, f"{BLOCK} blocks.2", 3),
        ],
    ),
    "host synchronisation: of another kind that are gone": partial(
        told,
        STEP_ROWS,
        SAME_TIME,
        more(WAITS, 5, 9),
        called=[(ALLOC, ITEM, 50)],
        calls=[(WAIT, ITEM, 4), (SYNC_ALL, ASK, 1)],
    ),
    **{
        f"host synchronisation: who waits {now} times after 100": partial(waiting, now)
        for now in (101, 99)
    },
    "memory: memory is asked for anew where it was given back": partial(
        told, STEP_ROWS, SAME_TIME, ASKED, calls=[(FREE, ASK, 1), *ASKS]
    ),
    "memory: who asks for memory may wait besides": partial(
        told, STEP_ROWS, SAME_TIME, ASKED, calls=[(ALLOC, ITEM, 8), (WAIT, ITEM, 1)]
    ),
    "memory: who gives it back may wait besides": partial(
        told, STEP_ROWS, SAME_TIME, ASKED, calls=[(ALLOC, ITEM, 8), (FREE, ASK, 1), (WAIT, ASK, 1)]
    ),
    "memory: the one that gives it back, not the most": partial(
        told, STEP_ROWS, SAME_TIME, ASKED, calls=[(ALLOC, ITEM, 5), (FREE, SAME_FUNCTION, 2)]
    ),
    "memory: memory that nobody gives back": partial(
        told, changed((NORM, before_each(MUL, 50.0))), SAME_TIME, ASKED, calls=[(ALLOC, ITEM, 5)]
    ),
    "host time: of neither kind": partial(
        told,
        STEP_ROWS,
        step_time(0.25),
        calls=[("cudaGraphLaunch", TRAIN, 5)],
        idle=6e3,
        idle_at=[(TRAIN, 6e3)],
    ),
}


CASES: Cases = {**GAP, **COPIES, **COUNTS, **CALLS}
EXPECTED = expected("host.txt")


@pytest.mark.parametrize("name", CASES)
def test_the_cause_of_a_loss_of_the_host(name: str) -> None:
    """Its kind, line and numbers, and the golden text of its sentence."""
    attribution = CASES[name]()
    assert cause(attribution).kind.value == name.partition(":")[0]
    assert said(attribution) == EXPECTED[name]


def test_every_kind_of_loss_is_told() -> None:
    names = {*EXPECTED, *expected("kernels.txt")}
    assert {name.partition(":")[0] for name in names} == {kind.value for kind in Kind}


def test_calls_stay_where_they_were_when_an_edit_above_moves_their_line() -> None:
    """The line launches nothing itself; the nearest that does has moved as far."""
    before = sited(*STEP_ROWS, calls=[(WAIT, ITEM, 3)])
    moved = [(n, us, at.replace("layers.py:75", "layers.py:85")) for n, us, at in STEP_ROWS]
    there = ITEM.replace("77", "87")
    assert attribute(sited(*moved, calls=[(WAIT, there, 3)]), before, NAMING).calls == ()
    (call,) = attribute(sited(*moved, calls=[(WAIT, there, 9)]), before, NAMING).calls
    assert (call.line, call.before, call.after) == ("layers.py:87", 3, 9)


if __name__ == "__main__":
    record("host.txt", CASES)
