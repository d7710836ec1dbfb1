"""The command line of ncu, and what we say when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.ncu import ncu_command
from tests.measure.ncu_reports import DATA


def said(name: str) -> str:
    """Real output of ncu 2025.3.1 on an H200."""
    return (DATA / name).read_text(encoding="utf-8")


PERMISSION = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
    "Performance Counters on the target device 0.\n==WARNING== No kernels were profiled."
)
HELD = (
    "==ERROR== An error was reported by the driver:\n==ERROR== Profiling failed because a driver "
    "resource was unavailable. Ensure ...\n==WARNING== No kernels were profiled."
)


def test_causes_are_told_before_consequences_each_with_a_remedy() -> None:
    """Real output, and texts of other versions as users reported them."""
    none_at_all = {
        PERMISSION: "ERR_NVGPUCTRPERM",
        HELD: "another tool holds the performance counters",
        "==ERROR== LibraryNotLoaded": "profiling library",
    }
    of_this_step = {
        said("bad-none.txt"): "no kernel was profiled",
        "==ERROR== cuMemFree_v2 is not supported during range replay.": (
            "cuMemFree_v2, which ncu cannot replay as a range"
        ),
        "==ERROR== OutOfMemory": "ran out of memory",
        "==ERROR== Failed to allocate 12 GB": "ran out of memory",
    }
    for text, reason in {**none_at_all, **of_this_step}.items():
        error = ncu_command.failure(text, 9)
        kind = CountersUnavailable if text in none_at_all else MeasurementError
        assert isinstance(error, kind), reason
        assert str(error).partition(reason)[2], error  # what to do follows


def test_nothing_is_made_of_a_success() -> None:
    # This version says nothing of a metric that it does not know, and leaves its column out.
    for name in ("bad-metric.txt", "kernel.txt", "range.txt"):
        assert ncu_command.recognized(said(name)) is None


def test_unknown_errors_are_quoted() -> None:
    text = "step 1\n==PROF== Connected\n==ERROR== The moon is full.\n==PROF== Disconnected\n"
    for output, code, quoted in (
        (text, 5, "==ERROR== The moon is full."),
        (said("bad-child.txt"), 3, "==ERROR== The application returned an error code (3)."),
        ("\n".join(map(str, range(100))), 5, "95 / 96 / 97 / 98 / 99"),
        (" \n", -11, "it printed nothing"),
    ):
        message = str(ncu_command.failure(output, code))
        assert message.startswith(
            f"ncu failed with exit code {code}: {quoted}. Run the ncu command"
        )


def test_the_program_is_the_one_on_the_path_or_the_newest_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest, on_path = (tmp_path / version / "ncu" for version in ("2024.10.0", "2024.9.1"))
    for program, text in ((newest, "not a program"), (on_path, "#!/bin/sh\necho Version 2024.9.1")):
        program.parent.mkdir()
        program.write_text(text)
        program.chmod(0o755)
    monkeypatch.setattr(ncu_command, "_PLACES", (f"{tmp_path}/*/ncu",))
    monkeypatch.setenv("PATH", "")
    assert ncu_command.find() == newest
    assert ncu_command.version(newest) == ""
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert ncu_command.find() == on_path
    assert ncu_command.version(on_path) == "2024.9.1"
