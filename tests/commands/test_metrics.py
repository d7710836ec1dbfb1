"""`gpuperf metrics`: the catalogue as text, with the scripted CUPTI and without any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gpuperf import __main__, errors
from pytest_gpuperf.catalogue.architectures import ARCHITECTURES, CPU
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.commands.metrics import Listing, Passes, lines, names
from pytest_gpuperf.model.measurement import Unsupported
from tests.measure.cupti.fake import Fake

METRICS = catalogue().metrics
GPUS = tuple(name for name in ARCHITECTURES if name != CPU)
COUNTS = {name: dict.fromkeys(catalogue().counter_sets, 10) for name in GPUS}
EVERYTHING = Listing(
    GPUS,
    tuple(METRICS.values()),
    catalogue().counter_sets,
    Passes("13.0.1", "/opt/libcupti.so.13", COUNTS, {}),
)
Ask = Callable[..., str]


def shown(listed: Listing, width: int = 80) -> list[str]:
    return [line.text for line in lines(listed, width)]


@pytest.fixture
def ask(fake: Fake, fake_library: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs the command with the scripted CUPTI, and returns what it printed."""
    assert fake.alive == 0

    def run(*arguments: str) -> str:
        assert __main__.main(["metrics", "--library", str(fake_library), *arguments]) == errors.OK
        return capsys.readouterr().out

    return run


# A listing as text


def test_a_part_of_the_catalogue_on_one_architecture() -> None:
    wanted = "cycles,pipe_fp16,ipc"
    refused = {"sm90": (Unsupported("x.sum", "x.sum does not exist on GH100"),)}
    passes = Passes("13.0.1", "/opt/libcupti.so.13", {"sm90": {wanted: 2}}, refused)
    metrics = tuple(METRICS[name] for name in ("cycles", "ipc", "pipe_fp16"))
    assert shown(Listing(("sm90", "sm120", CPU), metrics, (wanted,), passes)) == [
        "  metric                    unit                better  class",
        "  core",
        "    cycles                  cycles              lower   cycle, gated",
        "     sm__cycles_elapsed.max (sm90 sm120), absent (cpu)",
        "    ipc                     instructions/cycle  -       ratio",
        "     sm__inst_executed.avg.per_cycle_active (sm90 sm120), absent (cpu)",
        "  paper, besides reference",
        "    pipe_fp16               instructions        -       deterministic",
        "     absent",
        "",
        "passes of the step per round, by CUPTI of CUDA 13.0.1, /opt/libcupti.so.13:",
        "        cycles,pipe_fp16,ipc",
        "  sm90                     2",
        "note: this CUPTI does not know sm120",
        "note: sm90: x.sum does not exist on GH100",
    ]


def test_no_line_is_wider_than_the_terminal_and_nvidia_s_names_can_be_copied() -> None:
    for width in (40, 80, 400):
        assert max(map(len, shown(EVERYTHING, width))) <= width
    text = shown(Listing(("sm90",), tuple(METRICS.values()), ("core",), ""))
    for metric in METRICS.values():
        hardware = metric.hardware_name("sm90")
        assert hardware is None or any(hardware in line for line in text), metric.name


def test_every_metric_is_listed_once_with_the_smallest_set_that_has_it() -> None:
    text = shown(EVERYTHING)
    starts = [line.split()[0] for line in text[1:] if line.startswith("    ") and line[4] != " "]
    assert sorted(starts) == sorted(METRICS)
    titles = [
        "host, from a trace",
        "core",
        "reference, besides core",
        "paper, besides reference",
        "full, besides paper",
    ]
    listed = [line.strip() for line in text if line[:2] == "  " and line[2:3].strip()]
    assert [line for line in listed if line in titles] == titles


def test_architectures_with_one_name_stand_together() -> None:
    for metric, architectures, text in (
        ("cycles", ("sm80", "sm90"), "sm__cycles_elapsed.max"),
        ("step_time", ("sm80", "sm90"), ""),
        ("cycles", (CPU,), "absent"),
        # From a trace, an event or a counter: whatever only a GPU has.
        *((name, (CPU,), "absent") for name in ("launches", "kernel_time", "gpu_span")),
        *((name, (CPU,), "absent") for name in ("step_time", "own_instructions")),
        *((name, (CPU,), "") for name in ("copies", "graph_breaks", "wall_time", "operators")),
        ("step_time", ("sm90", CPU), "absent (cpu)"),
        ("pipe_fp16", ("sm89", "sm90"), "absent"),
        (
            *("pipe_uniform", ("sm70", "sm80", "sm90")),
            "absent (sm70), sm__inst_executed_pipe_uniform.sum (sm80 sm90)",
        ),
    ):
        assert names(METRICS[metric], architectures) == text


# The command


def test_the_whole_catalogue_and_the_passes_of_all_sets(ask: Ask, fake: Fake) -> None:
    fake.set("passes", 7)
    printed = ask()
    for name in catalogue().metrics:
        assert f"  {name} " in printed or f"  {name}:" in printed
    text = printed.splitlines()
    assert "        core  reference  paper  full" in text
    assert "  sm80     7          7      7     7" in text
    assert "  sm90     7          7      7     7" in text
    others = ", ".join(name for name in GPUS if name not in ("sm80", "sm90"))
    assert text[-1] == f"note: this CUPTI does not know {others}"


def test_a_part_of_it_in_the_order_of_its_mention(ask: Ask) -> None:
    printed = ask("--gpu-arch", "sm90", "--set", "core,l2_hit_rate")
    assert "lts__t_sector_hit_rate.pct" in printed
    assert "dram" not in printed
    assert printed.splitlines()[-2:] == ["        core,l2_hit_rate", "  sm90                 1"]
    # On a CPU nothing is counted in passes.
    printed = ask("--gpu-arch", "cpu")
    none = "passes: none, as gpuperf counts on a CPU while the step runs"
    assert printed.splitlines()[-1] == none
    assert "sm__" not in printed
    for words in (["--gpu-arch", "sm90", "sm80"], ["--gpu-arch", "sm90", "--gpu-arch", "sm80"]):
        rows = ask(*words, "--set", "core").splitlines()
        assert rows[-2:] == ["  sm90     1", "  sm80     1"]


def test_what_the_library_denies_is_noted(ask: Ask, fake: Fake) -> None:
    fake.set("unknown", "sm__cycles_elapsed.max")
    notes = [line for line in ask("--set", "core").splitlines() if line.startswith("note: sm")]
    assert notes == [
        "note: sm80: sm__cycles_elapsed.max does not exist on GA100",
        "note: sm90: sm__cycles_elapsed.max does not exist on GH100",
    ]


def test_without_cupti_the_catalogue_is_printed_all_the_same(
    bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not bare.exists()
    assert __main__.main(["metrics", "--gpu-arch", "sm90", "--set", "core"]) == errors.OK
    printed = capsys.readouterr().out
    assert "sm__cycles_elapsed.max" in printed
    assert "passes: unknown here: CUPTI (libcupti) was not found." in printed


def test_bad_arguments_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "libcupti.so.13"
    file.write_text("not a library")
    for arguments, says in (
        (["--gpu-arch", "sm91"], 'unknown architecture "sm91". Did you mean "sm90"?'),
        (["--gpu-arch", "sm90", "SM80"], 'unknown architecture "SM80". Did you mean "sm80"?'),
        (["--gpu-arch"], "expected at least one argument"),
        (
            ["--set", "papers"],
            '"papers" is neither a set nor a metric. Did you mean "paper"? Sets are host, core',
        ),
        (["--set", "core,step_time"], '"step_time" is not a hardware counter'),
        (["--library", "nowhere/libcupti.so.13"], "nowhere/libcupti.so.13 does not exist"),
        (["--library", str(file)], "gpuperf: --library: CUPTI cannot be loaded"),
        (["--library", str(file)], "CUPTI of CUDA 13.0 computes passes without a driver"),
    ):
        assert __main__.main(["metrics", *arguments]) == errors.BAD_CONFIGURATION
        printed = capsys.readouterr()
        assert says in printed.err
        assert printed.out == ""
