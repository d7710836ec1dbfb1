"""What ncu says when it fails, and what we say then."""

from __future__ import annotations

import pytest

from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.ncu import ncu_command
from tests.measure.ncu_pages import DATA


def said(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


# Real output of ncu 2025.3.1


def test_a_program_that_failed() -> None:
    failure = ncu_command.failure(said("bad-child.txt"), 3)
    assert failure.reason == "the profiled program failed with exit code 3"
    assert "without ncu" in failure.remedy
    assert isinstance(failure.error(), MeasurementError)


def test_no_kernels() -> None:
    failure = ncu_command.failure(said("bad-none.txt"), 0)
    assert failure.reason == "no kernel was profiled"
    assert "--nvtx-include" in failure.remedy


def test_an_option_that_range_replay_refuses() -> None:
    failure = ncu_command.failure(said("bad-option.txt"), 1)
    assert failure.reason == (
        "ncu does not take the option --profile-from-start in its range replay mode"
    )


@pytest.mark.parametrize("name", ["bad-metric.txt", "kernel.txt", "range.txt"])
def test_nothing_is_made_of_a_success(name: str) -> None:
    # This version says nothing of a metric that it does not know, and leaves its column out.
    assert ncu_command.recognized(said(name)) is None


# Texts of other versions, as users reported them


@pytest.mark.parametrize(
    ("text", "reason", "remedy", "counters"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
            "Performance Counters on the target device 0.\n==WARNING== No kernels were profiled.",
            "ERR_NVGPUCTRPERM",
            "NVreg_RestrictProfilingToAdminUsers=0",
            True,
        ),
        (
            "==ERROR== An error was reported by the driver:\n==ERROR== Profiling failed because a "
            "driver resource was unavailable. Ensure that no other tool (like DCGM) is ...\n"
            '==ERROR== Failed to profile "add" in process 7',
            "another tool holds the performance counters",
            "dcgmi profile --pause",
            True,
        ),
        (
            "==ERROR== Failed to open/create lock file /tmp/nsight-compute-lock. Please ...\n"
            "==ERROR== InterprocessLockFailed\n==ERROR== The application returned an error code "
            "(9).",
            "lock file",
            "TMPDIR",
            True,
        ),
        ("==ERROR== LibraryNotLoaded", "profiling library", "driver", True),
        (
            "==ERROR== Failed to find metric regex:^bad__metric\\.(sum|min|max|avg|pct|ratio)$",
            "does not know the metric bad__metric on",
            "--query-metrics",
            False,
        ),
        (
            "==ERROR== Failed to find metric bad__metric.sum\n==PROF== Disconnected",
            "the metric bad__metric.sum on",
            "--query-metrics",
            False,
        ),
        (
            "==ERROR== Failed to access the following 8 metrics: nvlrx__bytes.sum, nvltx__x.sum",
            "the metric nvlrx__bytes.sum on",
            "--query-metrics",
            False,
        ),
        (
            "==ERROR== Option '--app-replay-buffer' is not supported with range-based replay.",
            "the option --app-replay-buffer in its range-based replay",
            "kernel by kernel",
            False,
        ),
        ("==ERROR== unrecognised option '--output'.", "the option --output", "newer", False),
        (
            "==ERROR== cuMemFree_v2 is not supported during range replay.",
            "cuMemFree_v2 is not supported",
            "kernel by kernel",
            False,
        ),
        ("==ERROR== OutOfMemory", "not enough memory", "application", False),
        ("==ERROR== Failed to allocate 12 GB", "not enough memory", "application", False),
        (
            "==ERROR== Failed to prepare kernel for profiling\n==ERROR== Unknown Error on device "
            '0.\n==ERROR== Failed to profile "add" in process 7\n'
            "==ERROR== The application returned an error code (9).",
            "unknown error on the device",
            "dmesg",
            False,
        ),
        (
            '==ERROR== Failed to profile "add<{int}>" in process 7\n'
            "==ERROR== The application returned an error code (9).",
            'could not profile the kernel "add<{int}>"',
            "by itself",
            False,
        ),
    ],
)
def test_causes_are_told_before_consequences(
    text: str, reason: str, remedy: str, counters: bool
) -> None:
    failure = ncu_command.failure(text, 9)
    assert reason in failure.reason
    assert remedy in failure.remedy
    assert isinstance(failure.error(), CountersUnavailable if counters else MeasurementError)
    assert failure.reason in str(failure.error())
    assert failure.remedy in str(failure.error())


# What nobody here knows


def test_unknown_errors_are_quoted() -> None:
    text = "step 1\n==PROF== Connected\n==ERROR== The moon is full.\n==PROF== Disconnected\n"
    failure = ncu_command.failure(text, 5)
    assert failure.reason == "ncu failed with exit code 5: ==ERROR== The moon is full."


def test_without_an_error_line_the_last_lines_are_quoted() -> None:
    failure = ncu_command.failure("\n".join(map(str, range(100))), 5)
    assert failure.reason == "ncu failed with exit code 5: 95 / 96 / 97 / 98 / 99"


def test_silence_is_said_to_be_silence() -> None:
    assert ncu_command.failure(" \n", -11).reason.endswith("-11: it printed nothing")


def test_a_long_line_takes_no_time() -> None:
    assert ncu_command.recognized("x" * 500_000 + " 'Failed to" * 1000) is None
