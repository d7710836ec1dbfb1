"""ncu (Nsight Compute): where the program is, its command line, and its failures as our errors."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pytest_gpuperf.catalogue import yaml_table
from pytest_gpuperf.errors import CountersUnavailable, GpuperfError, MeasurementError

KERNEL, RANGE = "kernel", "range"
"""Ways in which ncu repeats: each kernel, or all calls of the step."""

_PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
_INSTALLED = "opt/nvidia/nsight-compute/*"
_MODULE = "extras/python/ncu_report.py"
"""The place of the Python module in the folder of Nsight Compute."""
_TIME_LIMIT_SECONDS = 60
_FAILURES = Path(__file__).with_name("failures.yaml")
_QUOTED_LINES = 5
"""The number of last lines quoted from an unknown output."""


def find() -> Path | None:
    """The ncu on the PATH, or of the newest Nsight Compute where NVIDIA installs it; or None."""
    on_path = shutil.which("ncu")
    if on_path:
        return Path(on_path)
    installed = [file for place in _PLACES for file in Path("/").glob(place[1:])]
    return max(installed, key=numbers, default=None)


def module_of(executable: Path) -> Path | None:
    """The folder of the Python module that reads reports, in this ncu's Nsight Compute; or None.

    The program lies in that folder, or belongs to a CUDA toolkit that starts ncu there.
    """
    home = executable.resolve().parent
    if (home / _MODULE).exists():
        return (home / _MODULE).parent
    elsewhere = [home.parent.glob("nsight-compute-*"), Path("/").glob(_INSTALLED)]
    modules = [place / _MODULE for places in elsewhere for place in places]
    there = [module.parent for module in modules if module.exists()]
    return max(there, key=numbers, default=None)


def program(named: Path | None) -> Path:
    """The executable to run: the named one or the one found. Raises CountersUnavailable."""
    executable = named or find()
    if executable is None:
        raise CountersUnavailable(
            "ncu (Nsight Compute) is neither on the PATH nor where NVIDIA installs it",
            "Install ncu, pass --gpuperf-ncu PROGRAM, or use --gpuperf-collector cupti instead",
        )
    return executable


def version(executable: Path) -> str:
    """The version in `ncu --version`: "2025.3.1.0"; "" if it cannot be run."""
    try:
        done = subprocess.run(
            [executable, "--version"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_TIME_LIMIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"Version ([\d.]+)", done.stdout.decode("utf-8", "replace"))
    return match[1].rstrip(".") if match else ""


def of_step(executable: Path, replay: str, metrics: Sequence[str], report: Path) -> list[str]:
    """The command that profiles what its program marks by cudaProfilerStart and -Stop.

    `metrics` are NVIDIA's names. Clocks and caches are left as they are.
    """
    # A range lies between the two calls, and ncu refuses the option for it.
    marked = ["--profile-from-start", "off"] if replay == KERNEL else []
    return [
        *(str(executable), "--target-processes", "all"),
        *("--clock-control", "none", "--cache-control", "none"),
        # A test that fails after it measured fails in the session as well, and says why there.
        *("--check-exit-code", "no"),
        *("--force-overwrite", "--export", str(report)),
        *("--replay-mode", replay, *marked),
        *("--metrics", ",".join(metrics)),
    ]


def numbers(path: Path) -> list[int]:
    """The numbers in a path: versions, by which the newest is found."""
    return [int(number) for number in re.findall(r"\d+", str(path))]


def recognized(output: str) -> GpuperfError | None:
    """The known failure that ncu's terminal output describes; None for an unknown one.

    CountersUnavailable if counters cannot be read at all, MeasurementError for this one step.
    """
    for known in yaml_table(_FAILURES):
        match = re.search(known["pattern"], output, re.IGNORECASE)
        if match:
            names = {name: text.strip(" .") for name, text in match.groupdict("").items()}
            reason, remedy = known["reason"].format(**names), known["remedy"]
            if known.get("counters"):
                return CountersUnavailable(reason, remedy)
            return MeasurementError(f"{reason}. {remedy}")
    return None


def failure(output: str, code: int) -> GpuperfError:
    """Why ncu failed; it printed `output` (stdout and stderr) and exited with `code`.

    An unknown failure is quoted: ncu's ==ERROR== lines, else its last lines.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("==ERROR==")] or lines
    quoted = " / ".join(said[-_QUOTED_LINES:]) or "it printed nothing"
    return recognized(output) or MeasurementError(
        f"ncu failed with exit code {code}: {quoted}. Run the ncu command by itself to see all of "
        "its output"
    )
