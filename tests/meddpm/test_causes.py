"""Whether the cause of a loss is found, from kernel tables on; and how they are collected.

The tables are of an H200, with launches put in that the same H200 made elsewhere: what a loss was
expected to do to them. What it really does, only a GPU can say.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import causes, evidence, suspects
from benchmarks.causes import Bench
from benchmarks.losses import CAUSES, Loss
from benchmarks.suspects import Recorded, Result, results
from pytest_gpuperf.catalogue.kernel_families import family, short_name
from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.judge import attribution
from pytest_gpuperf.judge.attribution import Naming, attribute
from pytest_gpuperf.measure.collector import Work
from pytest_gpuperf.model.measurement import KernelTable, Launch, Scalar
from pytest_gpuperf.model.metric import Metric
from pytest_gpuperf.model.result import ChangeKind
from suites.meddpm.step import TrainingStep
from tests import ROOT
from tests.examples import H200
from tests.kernel_steps import counted, spliced, table, traced
from tests.meddpm import small
from tests.scripted_collector import ScriptedCollector

NAMED = {loss.name: loss for loss in CAUSES}
CLEAN = {"tf32": "tf32-core", "tf32_channels_last": "tf32_channels_last-core"}
FPROP, FPROP_FP32 = "sm80_xmma_fprop tf32 nchw 128x64x32", "sm80_xmma_fprop f32 nchw 256x64x8"
COPY, MUL = "elementwise direct_copy f32", "vectorized_elementwise AUnary Mul f32"


def places(step: KernelTable, short: str) -> list[int]:
    """The launches of this kernel."""
    names = [short_name(name) for name in step.names]
    return [i for i, launch in enumerate(step.launches) if names[launch.name] == short]


def longest(step: KernelTable, short: str) -> Launch:
    return max((step.launches[i] for i in places(step, short)), key=lambda x: x.duration)


def swapped(step: KernelTable, short: str, other: KernelTable, by: Launch) -> KernelTable:
    """The same table with all launches of one kernel replaced by one of another's."""
    for place in places(step, short):
        step = spliced(step, place, other, [by], removed=1)
    return step


def conv_fp32() -> KernelTable:
    step, fp32 = counted("tf32-core"), counted("baseline-core")
    return spliced(step, places(step, FPROP)[0], fp32, [longest(fp32, FPROP_FP32)], removed=1)


def contiguous() -> KernelTable:
    step = counted("tf32_channels_last-core")
    copy = longest(step, COPY)
    for place in places(step, "sm90_xmma_fprop tf32 128x64x32")[::-4]:
        step = spliced(step, place, step, [copy])
    return step


def conv_algorithm() -> KernelTable:
    last = counted("tf32_channels_last-core")
    short = "sm90_xmma_fprop tf32 128x64x32"
    return swapped(counted("tf32-core"), FPROP, last, longest(last, short))


def extra_kernel() -> KernelTable:
    step = counted("tf32-core")
    launch = replace(longest(step, MUL), duration=0.58e6, grid=(585938, 1, 1))
    return spliced(step, len(step.launches), step, [launch] * 4)


def norm_layout() -> KernelTable:
    step, last = counted("tf32-core"), counted("tf32_channels_last-core")
    copy = longest(last, COPY)
    place = places(step, "RowwiseMomentsCUDAKernel f32")[0]
    backward = places(step, "ComputeInternalGradientsCUDAKernel f32")[-1]
    return spliced(spliced(step, backward, last, [copy]), place, last, [copy] * 2)


def attention_fp32() -> KernelTable:
    step, fp32 = counted("tf32-core"), counted("baseline-core")
    for old, new in (
        ("sm90_xmma_gemm tf32 tn 64x128x32", "sm80_xmma_gemm f32 tn 64x256x8"),
        ("sm90_xmma_gemm tf32 nn 64x128x32 segk", "sm80_xmma_gemm f32 nn 64x256x8"),
        ("sm90_xmma_gemm tf32 tn 128x64x32", "sm80_xmma_gemm f32 tn 256x64x8"),
    ):
        step = swapped(step, old, fp32, longest(fp32, new))
    return step


def adam_loop() -> KernelTable:
    """The whole optimizer of a recorded step with `foreach=False`."""
    step, apart = counted("tf32-core"), traced("adam-foreach-off")
    families = [family(name) for name in step.names]
    first = next(i for i, x in enumerate(step.launches) if families[x.name] == "optimizer")
    matched = len(step.launches) - first
    start = next(
        i for i, x in enumerate(apart.launches) if "lerp_scalar" in short_name(apart.names[x.name])
    )
    made = spliced(step, first, apart, apart.launches[start:], removed=matched)
    return replace(made, idle=made.idle + 4.6e6)


def host_copy() -> KernelTable:
    step = counted("tf32-core")
    copied = Launch(0, "copy", None, None, 4e6)
    other = KernelTable(("Memcpy DtoH (Device -> Pageable)",), (), (copied,), 0.0)
    return spliced(step, 40, other, [copied])


def synchronise() -> KernelTable:
    step = counted("tf32-core")
    return replace(step, idle=step.idle + 1.5e6)


def conv_twice() -> KernelTable:
    step = counted("tf32-core")
    place = places(step, FPROP)[1]
    return spliced(step, place, step, [step.launches[place]])


STEPS: dict[str, Callable[[], KernelTable]] = {
    "conv-fp32": conv_fp32,
    "contiguous": contiguous,
    "conv-algorithm": conv_algorithm,
    "extra-kernel": extra_kernel,
    "norm-layout": norm_layout,
    "attention-fp32": attention_fp32,
    "adam-loop": adam_loop,
    "host-copy": host_copy,
    "synchronise": synchronise,
    "conv-twice": conv_twice,
}


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """All ten, and both configurations without a loss."""
    tables = {suspects.clean(name): counted(file) for name, file in CLEAN.items()}
    tables[suspects.again("tf32")] = counted("tf32-core-1")
    tables |= {name: made() for name, made in STEPS.items()}
    return Recorded(tables, {"device": "NVIDIA H200"})


@pytest.fixture(scope="module")
def judged(recorded: Recorded) -> dict[str, Result]:
    return {result.name: result for result in results(recorded)}


def of(measured: KernelTable, name: str, clean: KernelTable) -> Result:
    """The result of one loss."""
    configuration = suspects.clean(NAMED[name].configuration)
    (result,) = results(Recorded({configuration: clean, name: measured}))
    return result


def test_each_cause_is_found_in_what_it_was_expected_to_launch(judged: dict[str, Result]) -> None:
    for name, loss in NAMED.items():
        result = judged[name]
        assert result.as_expected, causes.lines([result], 120)
        assert result.shown, name
        assert result.rank is not None
        guilty, one = loss.guilty, result.suspects[result.rank - 1]
        assert guilty
        assert one.kind in guilty.kinds, name
        assert re.search(guilty.kernel, one.row.what), name


def test_most_stand_first(judged: dict[str, Result]) -> None:
    ranks = {name: result.rank for name, result in judged.items() if result.rank != 1}
    # Where Adam goes over the weights one by one, the time in which the GPU waits is the longest.
    assert ranks == {"adam-loop": 2, "none": None}


def test_one_loss_is_not_taken_for_another(judged: dict[str, Result]) -> None:
    taken = {
        (other.name, result.name)
        for result in judged.values()
        for other in CAUSES
        if other.configuration == result.configuration and other.name != result.name
        for one in result.suspects
        if other.guilty and suspects.names(other.guilty, one)
    }
    # The GPU does wait where Adam goes over the weights one by one.
    assert taken == {("synchronise", "adam-loop")}


def test_a_second_clean_step_blames_nothing(judged: dict[str, Result]) -> None:
    result = judged["none"]
    assert (result.as_expected, result.suspects, result.same_launches) == (True, (), True)


def test_all_ten_were_found_on_an_h200_and_no_innocent_kernel() -> None:
    results = suspects.results(suspects.load(ROOT / "docs" / "runs" / "causes"))
    assert suspects.missed(results) == []
    assert [result.rank for result in results if result.name != suspects.NONE].count(1) == 9
    clean = [result for result in results if result.name == suspects.NONE]
    assert [(result.configuration, result.suspects) for result in clean] == [
        ("tf32", ()),
        ("tf32_channels_last", ()),
    ]


def test_kernels_that_nobody_touched_move_further_than_their_noise_and_are_not_blamed() -> None:
    """What docs/verdict.md says of the tails, and why small changes are never named."""
    tables = suspects.load(ROOT / "docs" / "runs" / "causes").tables
    elsewhere = ["none-tf32", "host-copy", "extra-kernel", "synchronise"]
    pairs = [("clean-tf32", other) for other in elsewhere]
    pairs += [*itertools.combinations(elsewhere, 2)]
    pairs += [("clean-tf32_channels_last", "none-tf32_channels_last")]
    surely: dict[tuple[str, str], list[float]] = {}
    for before, after in pairs:
        result = attribute(tables[after], tables[before], Naming(family, short_name))
        asked = [
            e for e in result.entries if e.p_value is not None and e.kind is not ChangeKind.GAP
        ]
        assert {entry.kind for entry in asked} == {ChangeKind.SAME}
        sure = attribution.discoveries([entry.p_value or 0.0 for entry in asked])
        moved = [abs(e.change) / result.before for e, s in zip(asked, sure, strict=True) if s]
        surely[before, after] = moved
    assert len(pairs) == 11
    assert sum(map(bool, surely.values())) == 9
    assert max(max(moved, default=0.0) for moved in surely.values()) == pytest.approx(
        3.5e-4, abs=5e-6
    )


def test_the_recorded_adam_without_foreach_is_found() -> None:
    """Both sides as they were measured, without counters."""
    result = of(traced("adam-foreach-off"), "adam-loop", traced("tf32"))
    assert result.rank == 2
    assert result.suspects[0].kind is ChangeKind.GAP
    assert result.suspects[1].row.what == "vectorized_elementwise addcdiv f32x3"
    assert result.shown


def test_a_fused_adam_is_not_an_unfused_one() -> None:
    assert not of(traced("adam-fused"), "adam-loop", traced("tf32")).as_expected


def test_below_the_first_three_nothing_is_found() -> None:
    clean = counted("tf32-core")
    made = conv_twice()
    for short in ("sm90_xmma_wgrad tf32 64x64x32 idx segk", "nchwToNhwcKernel f32x3 F T 2", MUL):
        launch = replace(longest(clean, short), duration=9e6)
        made = spliced(made, len(made.launches), clean, [launch])
    result = of(made, "conv-twice", clean)
    assert (result.as_expected, len(result.suspects)) == (False, suspects.TOP)


@pytest.mark.parametrize("name", ["conv-twice", "conv-algorithm"])
def test_a_gain_is_found_only_where_either_way_will_do(name: str) -> None:
    """The loss and the clean step the other way round."""
    taken = of(counted("tf32-core"), name, STEPS[name]())
    assert taken.change < 0 or name == "conv-algorithm"
    assert taken.as_expected is (name == "conv-algorithm")


def test_a_loss_that_changed_nothing_says_so() -> None:
    result = of(counted("tf32-core-1"), "conv-algorithm", counted("tf32-core"))
    assert not result.as_expected
    (head, *_) = causes.lines([result], 120)
    assert head.endswith("NOT FOUND; the same kernels were launched")


# What is printed


def failing(result: Result) -> Result:
    return replace(result, rank=None)


def test_nine_of_ten_are_enough(judged: dict[str, Result]) -> None:
    ten = list(judged.values())
    assert not causes.failed(ten)
    assert causes.verdict(ten).startswith("10 of 10 causes found by family and kernel")
    nine = [failing(r) if r.name == "host-copy" else r for r in ten]
    assert not causes.failed(nine)
    assert causes.verdict(nine).startswith("9 of 10 causes")
    assert causes.verdict(nine).endswith("(not: host-copy)")
    eight = [failing(r) if r.name == "synchronise" else r for r in nine]
    assert causes.failed(eight)


def test_of_a_choice_all_have_to_be_found(judged: dict[str, Result]) -> None:
    two = [judged["conv-twice"], judged["host-copy"]]
    assert not causes.failed(two)
    assert causes.failed([judged["conv-twice"], failing(judged["host-copy"])])
    assert causes.failed([])


def test_something_blamed_for_no_loss_fails(judged: dict[str, Result]) -> None:
    blamed = replace(judged["none"], suspects=judged["synchronise"].suspects)
    every = [*(r for r in judged.values() if r.name != "none"), blamed]
    assert causes.failed(every)
    assert causes.verdict(every).endswith("; 1 of 1 steps without a loss not clear")
    (head, *_) = causes.lines([blamed], 80)
    assert head.endswith("BLAMED ALL THE SAME")


def test_the_lines_name_what_was_expected_and_what_was_blamed(judged: dict[str, Result]) -> None:
    head, expected, named = causes.lines([judged["conv-twice"]], 120)
    assert head == "conv-twice (tf32): +2.6 ms (+1.12 %), found as number 1"
    assert expected == r"  expected added, convolution-forward: ^sm\d+_xmma_fprop tf32"
    assert named.split()[-6:] == ["added", "(called", "more", "often),", "1", "launch"]


@pytest.mark.parametrize("width", [50, 80])
def test_no_line_is_too_long(width: int, judged: dict[str, Result]) -> None:
    assert max(map(len, causes.lines([*judged.values()], width))) <= width


# Files


def test_saved_tables_are_judged_as_measured_ones(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = (suspects.clean("tf32"), suspects.again("tf32"), "conv-twice", "host-copy")
    four = replace(recorded, tables={name: recorded.tables[name] for name in names})
    for name, one in four.tables.items():
        suspects.save_table(tmp_path, name, one)
    suspects.save(tmp_path, four)
    assert suspects.load(tmp_path) == four
    saved = json.loads((tmp_path / suspects.RESULTS).read_text(encoding="utf-8"))
    assert [result["rank"] is not None for result in saved["results"]] == [True, True, False]
    assert causes.main(["--from", str(tmp_path)]) == 0
    assert "2 of 2 causes found" in " ".join(capsys.readouterr().out.split())
    assert causes.main(["--from", str(tmp_path), "--only", "host-copy"]) == 0
    assert "1 of 1 causes found" in " ".join(capsys.readouterr().out.split())


def test_the_documentation_counts_them(tmp_path: Path) -> None:
    clean = counted("tf32-core")
    tables = {"clean-tf32": clean, "none-tf32": counted("tf32-core-1"), "conv-twice": conv_twice()}
    for name, one in {**tables, "host-copy": clean}.items():
        suspects.save_table(tmp_path, name, one)
    about: dict[str, Scalar] = {"device": "NVIDIA H200", "torch": "2.11.0", "size": 128}
    suspects.save(tmp_path, Recorded(tables, about, {"adam-loop": "RuntimeError: a | b"}))
    assert evidence.causes(tmp_path) == (
        "1 of 3 found, 1 of them as the largest entry; NVIDIA H200, torch 2.11.0.\n"
    )


def test_tables_of_a_process_that_did_not_end_are_judged(tmp_path: Path) -> None:
    suspects.save_table(tmp_path, suspects.clean("tf32"), counted("tf32-core"))
    suspects.save_table(tmp_path, "conv-twice", conv_twice())
    (result,) = results(suspects.load(tmp_path))
    assert (result.name, result.rank) == ("conv-twice", 1)


def test_a_loss_that_was_not_measured_says_why() -> None:
    clean = {suspects.clean("tf32"): counted("tf32-core")}
    errors = {"host-copy": "OutOfMemoryError: no room", "none-tf32": "RuntimeError: lost"}
    loss, none = results(Recorded(clean, {}, errors))
    assert not loss.as_expected
    assert not none.as_expected
    head = causes.lines([loss], 100)[0]
    assert head == "host-copy (tf32): not measured: OutOfMemoryError: no room"
    (alone,) = results(Recorded({"conv-twice": conv_twice()}, {}, {}))
    assert alone.error == "the clean step: not measured"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("conv-twice.json.xz", b"{}", "not a whole compressed file"),
        ("results.json", b'{"about": {}}', "errors: Field required"),
    ],
)
def test_a_damaged_file_is_named(name: str, content: bytes, problem: str, tmp_path: Path) -> None:
    suspects.save_table(tmp_path, suspects.clean("tf32"), table(("fprop", 9.0)))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadFile, match=re.escape(problem)) as caught:
        suspects.load(tmp_path)
    assert caught.value.file == tmp_path / name


def test_a_folder_without_tables_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageFailure, match="no kernel tables"):
        suspects.load(tmp_path)
    assert causes.main(["--from", str(tmp_path)]) == 4
    assert str(tmp_path) in capsys.readouterr().err


# Measuring


class Answering:
    """A collector that runs the step and answers with tables, in order."""

    def __init__(self, tables: Sequence[KernelTable]) -> None:
        self._tables: Iterator[KernelTable] = iter(tables)
        self.losses: list[float] = []

    def kernels(self, work: Work, metrics: Sequence[Metric]) -> KernelTable:  # noqa: ARG002
        """The next table."""
        work.reset()
        self.losses.append(float(work.step()))  # type: ignore[arg-type]
        return next(self._tables)


def bench(
    collector: Answering, said: list[str] | None = None, kept: list[str] | None = None
) -> Bench:
    return Bench(
        small.network(),
        small.volumes(),
        collector,
        (),
        "cpu",
        keep=lambda name, _: None if kept is None else kept.append(name),
        say=(said if said is not None else []).append,
    )


def test_every_loss_is_measured_between_two_clean_steps(recorded: Recorded) -> None:
    tf32, last = suspects.clean("tf32"), suspects.clean("tf32_channels_last")
    names = [tf32, "host-copy", "conv-twice", "none-tf32"]
    answers = [recorded.tables[name] for name in names]
    answers += [recorded.tables[last], recorded.tables["contiguous"], recorded.tables[last]]
    said: list[str] = []
    kept: list[str] = []
    collector = Answering(answers)
    one = bench(collector, said, kept)
    one.measure([NAMED[name] for name in ("host-copy", "contiguous", "conv-twice")])
    assert one.errors == {}
    assert sorted(kept) == sorted([*names, last, "contiguous", "none-tf32_channels_last"])
    assert kept == [*one.tables]
    assert not causes.failed(results(Recorded(one.tables)))
    assert [line.partition(":")[0] for line in said] == kept
    # The clean steps compute the same: no loss is left in the step, and no weight has moved.
    assert collector.losses[0] == collector.losses[3]
    assert collector.losses[4] == collector.losses[6]


@contextmanager
def raising(step: TrainingStep) -> Iterator[None]:  # noqa: ARG001
    raise torch.OutOfMemoryError("CUDA out of memory.\nOf the allocated memory ...")
    yield


def test_a_loss_that_fails_is_reported_and_the_rest_go_on(recorded: Recorded) -> None:
    fails = replace(NAMED["host-copy"], applied=raising)
    names = (suspects.clean("tf32"), "conv-twice", "none-tf32")
    one = bench(Answering([recorded.tables[name] for name in names]))
    one.measure([fails, NAMED["conv-twice"]])
    assert one.errors == {"host-copy": "OutOfMemoryError: CUDA out of memory."}
    assert [*one.tables] == [*names]
    failed, blamed, none = results(Recorded(one.tables, {}, one.errors))
    assert failed.error
    assert blamed.as_expected
    assert none.as_expected


def test_a_configuration_that_fails_is_reported_and_the_next_goes_on(recorded: Recorded) -> None:
    answers = [recorded.tables[suspects.clean("tf32")], conv_twice(), counted("tf32-core-1")]
    one = bench(Answering(answers))
    unknown: Loss = replace(NAMED["contiguous"], configuration="tf64")
    one.measure([unknown, NAMED["conv-twice"]])
    assert one.errors == {"clean-tf64": "KeyError: 'tf64'", "contiguous": "KeyError: 'tf64'"}
    assert [*one.tables] == ["clean-tf32", "conv-twice", "none-tf32"]


def test_what_the_tables_depend_on_is_kept() -> None:
    known = causes.about(ScriptedCollector(), "synthetic", 16)
    assert known["device"] == H200.name
    assert (known["data"], known["size"], known["cupti"]) == ("synthetic", 16, "13.0")
    assert {"identity", "torch", "revision", "measured"} <= set(known)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "no CUDA device"),
        (["--size", "100"], "--size 100: a multiple of 16"),
    ],
)
def test_without_a_gpu_it_says_so(
    arguments: list[str],
    problem: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert causes.main(["--out", str(tmp_path / "out"), *arguments]) == 4
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_tables_of_an_earlier_process_are_not_mixed_with_new_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    suspects.save_table(tmp_path, "clean-tf32", table(("fprop", 9.0)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert causes.main(["--out", str(tmp_path)]) == 4
    assert f"{tmp_path} is not empty" in capsys.readouterr().err
