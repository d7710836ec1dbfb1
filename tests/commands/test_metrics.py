"""`gpuperf metrics`: the catalogue as text."""

from __future__ import annotations

import pytest

from pytest_gpuperf import __main__, errors
from pytest_gpuperf.catalogue.architectures import ARCHITECTURES, CPU
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.commands.metrics import lines, names

METRICS = catalogue().metrics
GPUS = tuple(name for name in ARCHITECTURES if name != CPU)


def shown(*metrics: str, on: tuple[str, ...] = GPUS, width: int = 80) -> list[str]:
    """The listing of these metrics, or of all."""
    chosen = [METRICS[name] for name in metrics or METRICS]
    return [line.text for line in lines(chosen, on, width)]


def test_a_part_of_the_catalogue_on_three_architectures() -> None:
    assert shown("cycles", "ipc", "pipe_fp16", on=("sm90", "sm120", CPU)) == [
        "  metric       unit                better  class",
        "  core",
        "    cycles     cycles              lower   cycle, gated",
        "     sm__cycles_elapsed.max (sm90 sm120), absent (cpu)",
        "    ipc        instructions/cycle  -       ratio",
        "     sm__inst_executed.avg.per_cycle_active (sm90 sm120), absent (cpu)",
        "  paper",
        "    pipe_fp16  instructions        -       deterministic",
        "     absent",
    ]


def test_no_line_is_wider_than_the_terminal_and_nvidia_s_names_can_be_copied() -> None:
    for width in (40, 80, 400):
        assert max(map(len, shown(width=width))) <= width
    text = shown(on=("sm90",))
    for metric in METRICS.values():
        hardware = metric.hardware_name("sm90")
        assert hardware is None or any(hardware in line for line in text), metric.name


def test_every_metric_is_listed_once_with_the_smallest_set_that_has_it() -> None:
    text = shown()
    starts = [line.split()[0] for line in text[1:] if line.startswith("    ") and line[4] != " "]
    assert sorted(starts) == sorted(METRICS)
    titles = ["host", "core", "reference", "paper", "full"]
    listed = [line.strip() for line in text if line[:2] == "  " and line[2:3].strip()]
    assert [line for line in listed if line in titles] == titles


def test_architectures_with_one_name_stand_together() -> None:
    for metric, architectures, text in (
        ("cycles", ("sm80", "sm90"), "sm__cycles_elapsed.max"),
        ("step_time", ("sm80", "sm90"), ""),
        ("cycles", (CPU,), "absent"),
        # From a trace, an event or a counter: whatever only a GPU has.
        *((name, (CPU,), "absent") for name in ("launches", "kernel_time", "gpu_span")),
        ("step_time", (CPU,), "absent"),
        *((name, (CPU,), "") for name in ("copies", "graph_breaks", "wall_time", "operators")),
        ("step_time", ("sm90", CPU), "absent (cpu)"),
        ("pipe_fp16", ("sm89", "sm90"), "absent"),
        (
            *("pipe_uniform", ("sm70", "sm80", "sm90")),
            "absent (sm70), sm__inst_executed_pipe_uniform.sum (sm80 sm90)",
        ),
    ):
        assert names(METRICS[metric], architectures) == text


@pytest.mark.parametrize(
    ("words", "on", "metrics"),
    [
        ("", GPUS, [*METRICS]),
        ("--gpu-arch sm90 sm80", ("sm90", "sm80"), [*METRICS]),
        ("--gpu-arch sm90 --gpu-arch sm80", ("sm90", "sm80"), [*METRICS]),
        (f"--gpu-arch {CPU}", (CPU,), [*METRICS]),
        (
            "--gpu-arch sm90 --set core,l2_hit_rate",
            ("sm90",),
            [one.name for one in catalogue().selected("core,l2_hit_rate")],
        ),
    ],
)
def test_the_command_prints_what_is_asked_for(
    words: str, on: tuple[str, ...], metrics: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main(["metrics", *words.split()]) == errors.OK
    assert capsys.readouterr().out.splitlines() == shown(*metrics, on=on)


def test_bad_arguments_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    sets = '"papers" is neither a set nor a metric. Did you mean "paper"? Sets are host, core'
    for arguments, says in (
        ("--gpu-arch sm91", 'unknown architecture "sm91". Did you mean "sm90"?'),
        ("--gpu-arch", "expected at least one argument"),
        ("--set papers", sets),
        ("--set core,step_time", '"step_time" is not a hardware counter'),
    ):
        assert __main__.main(["metrics", *arguments.split()]) == errors.BAD_CONFIGURATION
        printed = capsys.readouterr()
        assert says in printed.err
        assert printed.out == ""
