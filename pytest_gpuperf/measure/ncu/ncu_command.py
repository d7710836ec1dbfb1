"""ncu (Nsight Compute): where the program is, its command line, and its failures as our errors."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_gpuperf.errors import CountersUnavailable, GpuperfError, MeasurementError
from pytest_gpuperf.measure import paper_window

KERNEL, RANGE, APP_RANGE = REPLAYS = ("kernel", "range", "app-range")
"""How ncu repeats what it counts: each kernel, all calls of the step, or the whole program."""

_PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
_TIME_LIMIT_SECONDS = 60
_QUOTED_LINES = 5
"""So many last lines of an output that nobody here knows are quoted."""


@dataclass(frozen=True)
class Control:
    """How ncu is run."""

    program: Path | None = None
    """The executable; None for the one that `find` finds."""
    replay: str = RANGE
    clocks: str = "none"
    """Whether ncu locks the GPU to its base clocks ("base") or leaves them alone ("none")."""
    caches: str = "none"
    """Whether it empties the caches before every replay ("all") or not ("none")."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong under ncu, and what to do about it."""

    reason: str
    remedy: str
    counters: bool = False
    """Counters cannot be read here at all, whatever is measured."""

    def error(self) -> GpuperfError:
        """As an exception: CountersUnavailable, or MeasurementError for this one step."""
        if self.counters:
            return CountersUnavailable(self.reason, self.remedy)
        return MeasurementError(f"{self.reason}. {self.remedy}")


def find() -> Path | None:
    """The ncu on the PATH, or of the newest Nsight Compute where NVIDIA installs it; or None."""
    on_path = shutil.which("ncu")
    if on_path:
        return Path(on_path)
    installed = [file for place in _PLACES for file in Path("/").glob(place[1:])]
    return max(installed, key=numbers, default=None)


def program(control: Control) -> Path:
    """The executable to run. Raises CountersUnavailable where there is none."""
    executable = control.program or find()
    if executable is None:
        raise CountersUnavailable(
            "ncu (Nsight Compute) was not found on the PATH or where NVIDIA installs it",
            "Install it, or name it: --gpuperf-ncu PROGRAM. The collector cupti does not need it",
        )
    return executable


def version(executable: Path) -> str:
    """What `ncu --version` says: "2025.3.1.0"; "" where it cannot be run."""
    try:
        done = subprocess.run(
            [str(executable), "--version"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_TIME_LIMIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"Version ([\d.]+)", done.stdout.decode("utf-8", "replace"))
    return match[1].rstrip(".") if match else ""


def of_step(
    executable: Path, control: Control, metrics: Sequence[str], report: Path, *, replay: str = ""
) -> list[str]:
    """The command that profiles what its program marks by cudaProfilerStart and -Stop.

    `metrics` are NVIDIA's names; `replay` goes before that of `control`.
    """
    replay = replay or control.replay
    # A range is what lies between the two calls: there the option is refused.
    marked = ["--profile-from-start", "off", "--nvtx"] if replay == KERNEL else []
    return [
        *_begun(executable, control, report),
        *("--replay-mode", replay, *marked),
        *("--metrics", ",".join(metrics)),
    ]


def of_window(
    executable: Path, control: Control, metrics: Sequence[str], report: Path
) -> list[str]:
    """The paper's command: 100 kernels after the first 10 of the process, the full set.

    The process is ended after them.
    """
    return [
        *_begun(executable, control, report),
        *("--replay-mode", KERNEL, "--set", "full", "--metrics", ",".join(metrics)),
        *("--launch-skip", str(paper_window.SKIPPED), "--launch-count", str(paper_window.COUNTED)),
        *("--kill", "yes"),
    ]


def numbers(path: Path) -> list[int]:
    """The numbers in a path: versions, by which the newest is found."""
    return [int(number) for number in re.findall(r"\d+", str(path))]


def recognized(output: str) -> Failure | None:
    """The failure that ncu's terminal output speaks of, if it is one of those known here."""
    for pattern, known in _KNOWN.items():
        match = re.search(pattern, output, re.IGNORECASE)
        if match:
            names = {name: text.strip(" .") for name, text in match.groupdict("").items()}
            return replace(known, reason=known.reason.format(**names))
    return None


def failure(output: str, code: int) -> Failure:
    """Why ncu, which printed `output` (stdout and stderr) and exited with `code`, failed.

    What is not known here is quoted: ncu's ==ERROR== lines, else its last lines.
    """
    known = recognized(output)
    if known is not None:
        return known
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("==ERROR==")] or lines
    quoted = " / ".join(said[-_QUOTED_LINES:]) or "it printed nothing"
    return Failure(
        f"ncu failed with exit code {code}: {quoted}",
        "Run the ncu command by itself to see all of its output",
    )


def _begun(executable: Path, control: Control, report: Path) -> list[str]:
    return [
        *(str(executable), "--target-processes", "all"),
        *("--clock-control", control.clocks, "--cache-control", control.caches),
        # A test that fails after it measured fails in the session as well, and says why there.
        *("--check-exit-code", "no"),
        *("--force-overwrite", "--export", str(report)),
    ]


# What ncu says when it fails, as regular expressions that are found in any case; their groups fill
# the braces of the reason. Sources of the texts: output of ncu 2025.3.1 (tests/data/ncu), the error
# list in NVIDIA's Nsight Compute documentation, and public reports of users. ncu exits with the
# program's own code where that failed, so the text decides, not the code.
# The first that matches is taken: causes stand before their consequences, since ncu goes on to say
# that the application failed and that no kernels were profiled.
_KNOWN = {
    r"ERR_NVGPUCTRPERM": Failure(
        "this user may not read the GPU's performance counters (ERR_NVGPUCTRPERM)",
        "Load the kernel module with NVreg_RestrictProfilingToAdminUsers=0 (a line `options "
        "nvidia NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d, then reboot), or run "
        "as root; a container also needs CAP_SYS_ADMIN (docker run --cap-add SYS_ADMIN), and its "
        "host decides",
        counters=True,
    ),
    r"driver resource was unavailable": Failure(
        "another tool holds the performance counters (a driver resource was unavailable)",
        "End other profilers; pause DCGM for the while: dcgmi profile --pause, then --resume",
        counters=True,
    ),
    r"InterprocessLockFailed|(?:open|create)[^\n]*lock file|nsight-compute-lock": Failure(
        "ncu's lock file (nsight-compute-lock in the temporary folder) cannot be opened: another "
        "user made it, or another ncu holds it",
        "Wait for the other ncu, or point TMPDIR at a folder of your own: "
        "mkdir -p ~/ncu && TMPDIR=~/ncu ...",
        counters=True,
    ),
    r"LibraryNotLoaded|Cuda driver is not compatible": Failure(
        "ncu could not load the driver's profiling library",
        "Check that the driver is at least as new as this ncu needs, and that a container is "
        "started with the driver's utilities (NVIDIA_DRIVER_CAPABILITIES=all)",
        counters=True,
    ),
    r"Failed to (?:find|access)[^\n]*?metrics?\b:?\s*(?:regex:)?\^?(?P<name>[^\s(,]+?)"
    r"\\?\.?(?:[\s(,]|$)": Failure(
        "this ncu does not know the metric {name} on this GPU",
        "`ncu --query-metrics` lists those that it knows; another version of ncu may know it",
    ),
    r"Option '?(?:--)?(?P<name>[\w-]+)'? is not supported (?:during|with) (?P<mode>\S+)": Failure(
        "ncu does not take the option --{name} in its {mode} replay mode",
        "Leave the option out, or profile kernel by kernel (--replay-mode kernel)",
    ),
    r"unrecogni[sz]ed option '?(?P<name>[\w-]+)": Failure(
        "this ncu does not know the option {name}",
        "Use a newer Nsight Compute",
    ),
    r"(?P<name>[\w:]{1,80}) (?:is|was|are) not supported (?:during|in|with|within|by) "
    r"(?:application )?range": Failure(
        "the step does something that ncu cannot replay as a range: {name} is not supported",
        "Profile kernel by kernel (--replay-mode kernel), or keep that call out of the range",
    ),
    r"out of memory|OutOfMemory|Failed to allocate|insufficient memory": Failure(
        "there was not enough memory to profile: ncu saves what kernels write, to replay them",
        "Make the step smaller, read fewer metrics, or replay the application "
        "(--replay-mode application), which saves nothing",
    ),
    r"UnknownError|Unknown Error on device": Failure(
        "the driver failed while a kernel was profiled (an unknown error on the device)",
        "See that the program runs without ncu, that the driver suits this version of ncu, and "
        "`dmesg` for errors of the GPU (Xid)",
    ),
    # Stands before the next: ncu ends a program with code 9 after it failed itself.
    r'Failed to profile "(?P<name>[^"\n]*)"': Failure(
        'ncu could not profile the kernel "{name}"',
        "Run the ncu command by itself to see why, and see that the program runs without ncu",
    ),
    r"The application returned an error code \((?P<code>-?\d+)\)": Failure(
        "the profiled program failed with exit code {code}",
        "Run it without ncu first: what it printed says why",
    ),
    r"No kernels were profiled": Failure(
        "no kernel was profiled",
        "See that the step runs on the GPU, that the filters (--nvtx-include, --kernel-name, "
        "--profile-from-start) let it through, and that child processes are followed "
        "(--target-processes all)",
    ),
}
