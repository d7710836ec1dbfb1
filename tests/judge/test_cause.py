"""Of what kind a loss is, whose it is, and its numbers: realistic kernels, a line each.

`python -m tests.judge.test_cause` writes tests/data/causes anew, to be looked at as a diff.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from functools import cache

import pytest

from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.judge.attribution import attribute
from pytest_gpuperf.model.measurement import Caller, KernelTable
from pytest_gpuperf.model.result import Attribution
from pytest_gpuperf.model.result import CauseKind as Kind
from pytest_gpuperf.report.text.kernel_lines import sentence
from tests import ROOT
from tests.judge.losses import (
    BLOCK,
    CONV,
    CONV_F32,
    DOUBLE_MOMENTS,
    ITEM,
    LOAD,
    LOSSES,
    MOMENTS,
    NAMING,
    NORM,
    STEP_ROWS,
    TRAIN,
    WAIT,
    against,
    cause,
    changed,
    in_double,
    more,
    of,
    step_time,
)
from tests.kernel_steps import counted, sited, slowed, table, traced


def said(attribution: Attribution) -> str:
    """All fields of a cause that say something, and the sentence on it."""
    told = cause(attribution)
    known = {field.name: getattr(told, field.name) for field in fields(told)}
    texts = {
        name: f"{value:.6g}" if isinstance(value, float) else str(value)
        for name, value in {**known, "kind": told.kind.value}.items()
        if value not in (None, "", ())
    }
    numbers = ", ".join(f"{name} {text}" for name, text in texts.items())
    return f"{numbers}\n{sentence(attribution)}".strip()


CAUSES = ROOT / "tests" / "data" / "causes"
CASES = {name: made for cases in LOSSES.values() for name, made in cases.items()}


@cache
def expected() -> dict[str, str]:
    """What has to be said of each loss."""
    texts = [(CAUSES / name).read_text("utf-8") for name in LOSSES]
    blocks = [block for text in texts for block in text.strip().split("\n\n")]
    return {name: said for name, _, said in (block.partition("\n") for block in blocks)}


@pytest.mark.parametrize("name", CASES)
def test_the_cause_of_a_loss(name: str) -> None:
    """Its kind, line and numbers, and the golden text of its sentence."""
    attribution = CASES[name]()
    assert cause(attribution).kind.value == name.partition(":")[0]
    assert said(attribution) == expected()[name]


def test_every_kind_of_loss_is_told() -> None:
    assert {*expected()} == {*CASES}
    assert {name.partition(":")[0] for name in CASES} == {kind.value for kind in Kind}


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


def test_calls_stay_where_they_were_when_an_edit_above_moves_their_line() -> None:
    """The line launches nothing itself; the nearest that does has moved as far."""
    before = sited(*STEP_ROWS, calls=[(WAIT, ITEM, 3)])
    moved = [(n, us, at.replace("layers.py:75", "layers.py:85")) for n, us, at in STEP_ROWS]
    there = ITEM.replace("77", "87")
    assert attribute(sited(*moved, calls=[(WAIT, there, 3)]), before, NAMING).calls == ()
    (call,) = attribute(sited(*moved, calls=[(WAIT, there, 9)]), before, NAMING).calls
    assert (call.line, call.before, call.after) == ("layers.py:87", 3, 9)


@pytest.mark.parametrize(
    ("second", "executions", "line"),
    [("net.py:7 Net.log", 1, "net.py:7"), ("net.py:3 Net.forward", 2, "train.py:9")],
)
def test_a_kernel_of_a_function_that_launched_none_before_is_at_its_own_line(
    second: str, executions: int, line: str
) -> None:
    """It may have been called all the same. Of one that did, its caller calls it again."""
    caller = (Caller("train.py:9", "step", 1),)

    def at(*rows: tuple[str, int]) -> KernelTable:
        launched = sited(*(("gemm", 5e3, place) for place, _ in rows))
        often = dict(rows)
        sites = (
            replace(site, executions=often[f"{site.line} {site.function}"], callers=caller)
            for site in launched.sites
        )
        return replace(launched, sites=tuple(sites))

    first = "net.py:3 Net.forward"
    now = at((first, executions), (second, executions))
    cause = attribute(now, at((first, 1)), NAMING).cause
    assert cause is not None
    assert cause.line == line


def test_what_did_not_regress_has_no_cause() -> None:
    slower = changed((NORM, in_double))
    assert of(slower, step_time(0.0)).cause is None
    assert of(slower).cause is not None
    assert of().cause is None
    assert of(changed((NORM, lambda row: [(row[0], row[1] / 2, row[2])]))).cause is None


# Steps of an H200


@pytest.mark.parametrize(
    ("measured", "baseline", "kind", "family"),
    [
        ("baseline", "tf32", Kind.PRECISION, "convolution-weight-gradient"),
        ("tf32", "bf16", Kind.PRECISION, "convolution-weight-gradient"),
        ("tf32_channels_last", "tf32", Kind.LAYOUT, "layout"),
        ("adam-foreach-off", "tf32", Kind.LAUNCHES, "elementwise"),
    ],
)
def test_without_call_sites_it_is_told_and_counted_by_the_family(
    measured: str, baseline: str, kind: Kind, family: str
) -> None:
    """Of conversions those that are named."""
    told = cause(against(traced(measured), traced(baseline)))
    assert (told.kind, told.family, told.line, told.function) == (kind, family, "", "")

    def counts(name: str) -> bool:
        if kind is Kind.LAYOUT:
            return kernel_families.short_name(name) == told.what
        return kernel_families.family(name) == family

    assert [told.before, told.after] == [
        sum(counts(step.names[launch.name]) for launch in step.launches)
        for step in (traced(baseline), traced(measured))
    ]


@pytest.mark.parametrize(
    ("share", "named"),
    # All kernels take a tenth more. What one of them takes besides is a share of that.
    [(0.3, False), (0.4, True)],
)
def test_of_what_all_kernels_take_longer_no_line_is_named(share: float, *, named: bool) -> None:
    one = traced("tf32")
    times = [launch.duration for launch in one.launches]
    most = max(range(len(times)), key=times.__getitem__)
    every = slowed(one, range(len(times)), 1.1)
    new = slowed(every, [most], 1 + share * 0.1 * sum(times) / (1.1 * times[most]))
    told = attribute(new, one, NAMING, verdicts=[step_time(0.1 * (1 + share))])
    assert told.shift == pytest.approx(0.1)
    assert (told.cause is not None) is named
    assert ("check clocks, power and GPU" in sentence(told)) is not named


# Names of kernels


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (CONV, "tf32"),
        (CONV_F32, "float32"),
        (MOMENTS, "float32"),
        (DOUBLE_MOMENTS, "float64"),
        ("volta_dgemm_128x64_nn", "float64"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_128x64_16x3_nn_align1>", "float64"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_32x6_nt_align4>", "tf32"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_tn_align1>", "float32"),
        ("ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn", "float16"),
        ("volta_s884cudnn_fp16_256x64_ldg8_relu_exp_small_nhwc_tn_v1", "float16"),
        ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN", "bfloat16"),
        ("nvjet_sm90_hss_320x128", "float16"),
        ("void cudnn::cnn::reduce_wgrad_nchw_helper<float, __nv_bfloat16>(void*)", "bfloat16"),
        ("Memset (Device)", ""),
    ],
)
def test_a_kernels_name_says_its_data_type(name: str, says: str) -> None:
    assert kernel_families.data_type(name) == says


def test_no_recorded_kernel_is_taken_for_float64() -> None:
    known = json.loads((ROOT / "tests" / "data" / "kernel-names.json").read_text("utf-8"))
    names = {entry["name"] for entry in known} | {*counted("tf32-sites").names}
    names |= {*traced("adam-fused").names}
    assert [name for name in names if kernel_families.data_type(name) == "float64"] == []


if __name__ == "__main__":
    for file, cases in LOSSES.items():
        texts = [f"{case}\n{said(made())}\n" for case, made in cases.items()]
        (CAUSES / file).write_text("\n".join(texts), "utf-8")
