"""The command line of ncu, and what we say when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.ncu import ncu_command
from tests.measure.ncu_pages import DATA


def said(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


# Real output of ncu 2025.3.1


def test_failures_of_an_h200() -> None:
    for name, code, reason, remedy in (
        ("bad-child.txt", 3, "the profiled program failed with exit code 3", "without ncu"),
        ("bad-none.txt", 0, "no kernel was profiled", "--nvtx-include"),
        (
            *("bad-option.txt", 1),
            "ncu does not take the option --profile-from-start in its range replay mode",
            "kernel by kernel",
        ),
    ):
        failure = ncu_command.failure(said(name), code)
        assert failure.reason == reason
        assert remedy in failure.remedy
        assert isinstance(failure.error(), MeasurementError)


def test_nothing_is_made_of_a_success() -> None:
    # This version says nothing of a metric that it does not know, and leaves its column out.
    for name in ("bad-metric.txt", "kernel.txt", "range.txt"):
        assert ncu_command.recognized(said(name)) is None


# Texts of other versions, as users reported them


def test_causes_are_told_before_consequences() -> None:
    for text, reason, remedy, counters in (
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
    ):
        failure = ncu_command.failure(text, 9)
        assert reason in failure.reason
        assert remedy in failure.remedy
        assert isinstance(failure.error(), CountersUnavailable if counters else MeasurementError)
        assert str(failure.error()) == f"{failure.reason}. {failure.remedy}"


# What nobody here knows


def test_unknown_errors_are_quoted() -> None:
    text = "step 1\n==PROF== Connected\n==ERROR== The moon is full.\n==PROF== Disconnected\n"
    for output, code, quoted in (
        (text, 5, "==ERROR== The moon is full."),
        ("\n".join(map(str, range(100))), 5, "95 / 96 / 97 / 98 / 99"),
        (" \n", -11, "it printed nothing"),
    ):
        reason = f"ncu failed with exit code {code}: {quoted}"
        assert ncu_command.failure(output, code).reason == reason


def test_a_long_line_takes_no_time() -> None:
    assert ncu_command.recognized("x" * 500_000 + " 'Failed to" * 1000) is None


# The program


def test_the_program_is_the_one_on_the_path_or_the_newest_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = [tmp_path / version / "ncu" for version in ("2024.10.0", "2024.9.1")]
    for program in installed:
        program.parent.mkdir()
        program.write_text("not a program")
        program.chmod(0o755)
    monkeypatch.setattr(ncu_command, "_PLACES", (f"{tmp_path}/*/ncu",))
    monkeypatch.setenv("PATH", "")
    assert ncu_command.find() == installed[0]
    assert ncu_command.version(installed[0]) == ""
    monkeypatch.setenv("PATH", str(installed[1].parent))
    assert ncu_command.find() == installed[1]
