"""Reports in ncu's own format (.ncu-rep), opened by NVIDIA's package ncu-report or by ncu itself.

Neither needs a GPU. The package is native code of others, which has been seen to end the process
that it is loaded into (a segmentation fault, in version 2025.3.1, beside torch), so it reads in a
process of its own:

    python -m pytest_gpuperf.measure.ncu.report_reader REPORT OUT COUNTER[,COUNTER ...]

writes a list of rows into OUT as JSON: the fields of a `ProfiledRow`, and its cells.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.measure.ncu import ncu_command
from pytest_gpuperf.measure.ncu.ncu_command import Cells, ProfiledRow, RawPage
from pytest_gpuperf.storage import files

PACKAGE = "ncu_report"
_TIME_LIMIT_SECONDS = 600
_REMEDY = (
    "See that the file is complete, and that ncu-report or Nsight Compute is not older than the "
    "one that wrote it"
)


def load(file: Path, ncu: Path | None, counters: Collection[str]) -> RawPage:
    """What the report in `file` has, of its metrics those named in `counters` at least.

    The package goes first, since its numbers are not rounded. Where it is not installed or does not
    read this, the executable does: `ncu`, or the one on the PATH.

    Raises BadFile for a report that does not open, and UsageFailure where nothing here opens such
    files, or the executable does not run.
    """
    if not file.is_file():
        raise UsageFailure(f"{file}: no such file")
    problem = ""
    if importlib.util.find_spec(PACKAGE) is not None:
        read = _by_package(file, counters)
        if not isinstance(read, str):
            return read
        problem = read
    executable = str(ncu) if ncu else shutil.which("ncu")
    if executable is not None:
        return _by_executable(file, executable)
    if problem:
        raise BadFile(file, "", problem, _REMEDY)
    raise UsageFailure(
        f"{file}: to open it takes NVIDIA's package ncu-report (pip install ncu-report) or Nsight "
        "Compute's executable ncu (on the PATH, or --ncu FILE), and neither is here. Or make a CSV "
        f"where it is, and import that: ncu --import {file.name} --csv --page raw "
        f"--print-units base > {file.stem}.csv"
    )


def _by_package(file: Path, counters: Collection[str]) -> RawPage | str:
    """What the package reads in a process of its own, or why it does not."""
    with tempfile.TemporaryDirectory(prefix="gpuperf-") as scratch:
        out = Path(scratch) / "rows.json"
        command = [sys.executable, "-m", __name__, str(file.resolve()), str(out)]
        # It finds what this process finds, however that came to find it.
        path = os.pathsep.join(sys.path)
        try:
            done = ncu_command.captured(
                [*command, ",".join(counters)], _TIME_LIMIT_SECONDS, PYTHONPATH=path
            )
        except subprocess.TimeoutExpired:
            return f"ncu_report did not read this within {_TIME_LIMIT_SECONDS} s"
        if done.returncode == 0:
            read: Any = files.parse_json(files.read_bytes(out), file, _REMEDY)
            if not read:  # nor has a file that is no report
                return "has no kernel: nothing was profiled"
            rows = tuple(ProfiledRow(**{k: _tupled(v) for k, v in row.items()}) for row, _ in read)
            return RawPage(file, rows, tuple(cells for _, cells in read))
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    return f"ncu_report ended the process that read this ({': '.join([how, *said])})"


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _by_executable(file: Path, executable: str) -> RawPage:
    command = [executable, "--import", str(file), "--csv", "--page", "raw"]
    command += ["--print-units", "base"]
    try:
        # Numbers are grouped as the language of the user does it.
        done = ncu_command.captured(command, _TIME_LIMIT_SECONDS, LC_ALL="C.UTF-8")
    except OSError as error:
        raise UsageFailure(
            f"{executable}: cannot be run ({error.strerror}). Name the ncu of Nsight Compute"
        ) from None
    except subprocess.TimeoutExpired:
        problem = f"{executable} did not open it within {_TIME_LIMIT_SECONDS} s"
        raise BadFile(file, "", problem, _REMEDY) from None
    if done.returncode:
        said = (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace")
        failure = ncu_command.failure(said, done.returncode)
        raise BadFile(file, "", f"{executable} did not open it: {failure.reason}", _REMEDY)
    return ncu_command.parse_page(done.stdout, file)


def main(arguments: list[str]) -> int:
    """Reads what the arguments name; see the module."""
    report, out, counters = arguments
    package = importlib.import_module(PACKAGE)
    context = package.load_report(report)
    results = [
        part.action_by_idx(number)
        for part in map(context.range_by_idx, range(context.num_ranges()))
        for number in range(part.num_actions())
    ]
    rows = [_read(result, n, counters.split(",")) for n, result in enumerate(results)]
    Path(out).write_text(json.dumps(rows), encoding="utf-8")
    return 0


def _read(result: Any, number: int, counters: Sequence[str]) -> tuple[dict[str, Any], Cells]:
    """The fields of a result's row, and its cells."""
    there = frozenset(result.metric_names())

    def whole(name: str) -> str:
        return str(int(result[name].as_double())) if name in there else ""

    kinds = {result.WorkloadType_RANGE: "range", result.WorkloadType_GRAPH: "graph"}
    kind = kinds.get(result.workload_type(), "kernel")
    sizes = {
        of: [int(result[f"launch__{of}_dim_{axis}"].as_double()) for axis in "xyz"]
        if kind == "kernel" and f"launch__{of}_dim_x" in there
        else None
        for of in ("grid", "block")
    }
    capability = [whole(f"device__attribute_compute_capability_{p}") for p in ("major", "minor")]
    device = "device__attribute_display_name"
    fields = {
        "where": f"result {number}",
        "name": str(result.name(result.NameBase_DEMANGLED)),
        "kind": kind,
        "process": "",
        **sizes,
        "gpu": whole("launch__device_id"),
        "device": str(result[device].as_string()) if device in there else "",
        "capability": ".".join(capability),
        "nvtx": _nvtx(result.nvtx_state()),
    }
    values = {name: result[name].as_double() for name in counters if name in there}
    return fields, {name: v if math.isfinite(v) else None for name, v in values.items()}


def _nvtx(state: Any) -> list[str]:
    """The names of the NVTX ranges around a result."""
    domains = [state.domain_by_id(number) for number in state.domains()] if state else []
    opened = [domain.push_pop_ranges() + domain.start_end_ranges() for domain in domains]
    return [str(name) for names in opened for name in names]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
