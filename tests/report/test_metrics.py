"""The metric catalogue as text."""

from __future__ import annotations

import pytest

from pytest_gpuperf.catalogue.architectures import ARCHITECTURES, CPU
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.commands.metrics import Listing, Passes, lines, names
from pytest_gpuperf.model.measurement import Unsupported

METRICS = catalogue().metrics
GPUS = tuple(name for name in ARCHITECTURES if name != CPU)
COUNTS = {name: dict.fromkeys(catalogue().counter_sets, 10) for name in GPUS}
EVERYTHING = Listing(
    GPUS,
    tuple(METRICS.values()),
    catalogue().counter_sets,
    Passes("13.0.1", "/opt/libcupti.so.13", COUNTS, {}),
)


def shown(found: Listing, width: int = 80) -> list[str]:
    return [line.text for line in lines(found, width)]


def test_a_part_of_the_catalogue_on_one_architecture() -> None:
    wanted = "cycles,pipe_fp16,ipc"
    passes = Passes("13.0.1", "/opt/libcupti.so.13", {"sm90": {wanted: 2}}, {})
    metrics = tuple(METRICS[name] for name in ("cycles", "ipc", "pipe_fp16"))
    found = Listing(("sm90",), metrics, (wanted,), passes)
    assert shown(found) == [
        "  metric                    unit                better  class",
        "  core",
        "    cycles                  cycles              lower   cycle",
        "     sm__cycles_elapsed.max",
        "    ipc                     instructions/cycle  -       ratio",
        "     sm__inst_executed.avg.per_cycle_active",
        "  paper, besides reference",
        "    pipe_fp16               instructions        -       deterministic",
        "     absent",
        "",
        "passes of the step per round, by CUPTI of CUDA 13.0.1, /opt/libcupti.so.13:",
        "        cycles,pipe_fp16,ipc",
        "  sm90                     2",
    ]


def test_where_columns_do_not_fit_the_rows_are_stacked() -> None:
    found = Listing(("sm90",), (METRICS["instructions"],), ("core",), "not known here: no CUPTI")
    assert shown(found, 50) == [
        "  core:",
        "    instructions:",
        "      unit instructions, better lower, class",
        "      deterministic, smsp__inst_executed.sum",
        "",
        "passes: not known here: no CUPTI",
    ]


@pytest.mark.parametrize("width", [40, 50, 80, 120, 400])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, shown(EVERYTHING, width))) <= width


@pytest.mark.parametrize("name", METRICS)
def test_at_80_columns_a_name_of_nvidia_s_can_be_copied(name: str) -> None:
    hardware = METRICS[name].hardware_name("sm90")
    found = Listing(("sm90",), (METRICS[name],), ("core",), "")
    assert hardware is None or any(hardware in line for line in shown(found))


def test_every_metric_is_listed_once_with_the_smallest_set_that_has_it() -> None:
    text = shown(EVERYTHING)
    starts = [line.split()[0] for line in text[1:] if line.startswith("    ") and line[4] != " "]
    assert sorted(starts) == sorted(METRICS)
    titles = ["core", "reference, besides core", "paper, besides reference", "full, besides paper"]
    listed = [line.strip() for line in text if line[:2] == "  " and line[2:3].strip()]
    assert [line for line in listed if line in titles] == titles


@pytest.mark.parametrize(
    ("metric", "architectures", "text"),
    [
        ("cycles", ("sm80", "sm90"), "sm__cycles_elapsed.max"),
        ("step_time", ("sm80", "sm90"), ""),
        ("cycles", ("cpu",), "absent"),
        ("pipe_fp16", ("sm89", "sm90"), "absent"),
        (
            "pipe_uniform",
            ("sm70", "sm80", "sm90"),
            "absent (sm70), sm__inst_executed_pipe_uniform.sum (sm80 sm90)",
        ),
    ],
)
def test_architectures_with_one_name_stand_together(
    metric: str, architectures: tuple[str, ...], text: str
) -> None:
    assert names(METRICS[metric], architectures) == text


def test_what_the_library_does_not_know_is_noted() -> None:
    refused = {"sm90": (Unsupported("x.sum", "x.sum does not exist on GH100"),)}
    passes = Passes("12.6", "/opt/libcupti.so.12", {"sm90": {"core": 1}}, refused)
    found = Listing(("sm90", "sm100", "sm120", "cpu"), (METRICS["ipc"],), ("core",), passes)
    assert shown(found)[-4:] == [
        "        core",
        "  sm90     1",
        "note: this CUPTI knows no chip of sm100, sm120",
        "note: sm90: x.sum does not exist on GH100",
    ]
