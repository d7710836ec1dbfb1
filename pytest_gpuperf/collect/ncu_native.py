"""Reports in ncu's own format (.ncu-rep), as the table that its CSV is.

They are opened by NVIDIA's Python module `ncu_report` (in `extras/python` of Nsight Compute), or by
an `ncu` executable; neither needs a GPU. Nothing else reads the format.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from pytest_gpuperf.collect import ncu_command, ncu_csv, ncu_errors
from pytest_gpuperf.collect.ncu_csv import Line, Table
from pytest_gpuperf.errors import BadFile, UsageFailure

_TIME_LIMIT_SECONDS = 600
_INSTALLED = Path("/opt/nvidia/nsight-compute")
_EXTRAS = Path("extras/python")
_REMEDY = (
    "See that the file is complete and that this Nsight Compute is not older than the one that "
    "wrote it"
)
WORKLOAD = "gpuperf workload"
"""A column that CSV files do not have: kernel, range or graph, where the module says which."""


def load(file: Path, ncu: Path | None, counters: Collection[str]) -> Table:
    """The table of the report in `file`; of its metrics those named in `counters`, at least.

    `ncu` is the executable to open it with; the module that lies beside it goes before it, since
    its numbers are not rounded. Without one, any such module is tried, then an `ncu` on the PATH.
    Raises BadFile for a report that does not open, and UsageFailure where nothing here opens
    such files, or the executable does not run.
    """
    if not file.is_file():
        raise UsageFailure(f"{file}: no such file")
    module = _module_of(ncu) if ncu else _module()
    if module is not None:
        return _by_module(file, module, counters)
    executable = str(ncu) if ncu else shutil.which("ncu")
    if executable is None:
        raise UsageFailure(
            f"{file}: to open it takes Nsight Compute: its Python module ncu_report (add its "
            "folder extras/python to PYTHONPATH) or its executable ncu (on the PATH, or --ncu "
            "FILE), and neither is here. Or make a CSV where it is, and import that: ncu --import "
            f"{file.name} --csv --page raw --print-units base > {file.stem}.csv"
        )
    return _by_executable(file, executable)


def _module() -> Any | None:
    """NVIDIA's module, or None where it is missing or does not load."""
    try:
        return importlib.import_module("ncu_report")
    except Exception:  # its native part may be of another Python, or miss a library
        return None


def _module_of(ncu: Path) -> Any | None:
    """The module that belongs to this executable, or None where it does not lie beside it."""
    home = ncu.resolve().parent
    if any(part.startswith("cuda") for part in home.parts):
        # The toolkit's ncu only starts the one that is installed for itself.
        home = max(_INSTALLED.glob("*"), key=ncu_command.numbers, default=home)
    folder = home / _EXTRAS
    if not (folder / "ncu_report.py").is_file():
        return None
    sys.path.insert(0, str(folder))
    try:
        return _module()
    finally:
        sys.path.remove(str(folder))


def _by_executable(file: Path, executable: str) -> Table:
    command = [executable, "--import", str(file), "--csv", "--page", "raw"]
    try:
        done = subprocess.run(
            [*command, "--print-units", "base"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_TIME_LIMIT_SECONDS,
            check=False,
            # Numbers are grouped as the language of the user does it.
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
    except OSError as error:
        raise UsageFailure(
            f"{executable}: cannot be run ({error.strerror}). Name the ncu of Nsight Compute"
        ) from None
    except subprocess.TimeoutExpired:
        problem = f"{executable} did not open it within {_TIME_LIMIT_SECONDS} s"
        raise BadFile(file, "", problem, _REMEDY) from None
    if done.returncode:
        said = (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace")
        failure = ncu_errors.failure(said, done.returncode)
        raise BadFile(file, "", f"{executable} did not open it: {failure.reason}", _REMEDY)
    return ncu_csv.parse(done.stdout, file)


def _by_module(file: Path, module: Any, counters: Collection[str]) -> Table:
    units: dict[str, str] = {}
    lines = []
    try:
        for number, action in enumerate(_actions(module.load_report(str(file)))):
            line = Line(f"result {number}", _cells(action, counters, units, file))
            lines.append(line)
    except BadFile:
        raise
    except Exception as error:  # whatever a native module of others raises
        problem = f"ncu_report did not open it: {error or type(error).__name__}"
        raise BadFile(file, "", problem, _REMEDY) from None
    if not lines:
        raise BadFile(file, "", "has no kernel: nothing was profiled", _REMEDY)
    return Table(file, units, "units", tuple(lines))


def _actions(report: Any) -> Iterator[Any]:
    for index in range(report.num_ranges()):
        found = report.range_by_idx(index)
        for number in range(found.num_actions()):
            yield found.action_by_idx(number)


def _cells(
    action: Any, counters: Collection[str], units: dict[str, str], file: Path
) -> dict[str, str]:
    """The cells that the CSV would have of this result; notes the units of their columns."""
    cells = {"Kernel Name": _name(action), WORKLOAD: _workload(action)}
    for name in action.metric_names():
        if name.startswith(_TEXTS):
            cells[name] = str(action[name].as_string())
        elif name in counters or name.startswith(_NUMBERS):
            metric = action[name]
            unit = str(metric.unit() or "")
            if units.setdefault(name, unit) != unit:
                problem = f'its unit is "{unit}" here and "{units[name]}" in other kernels'
                raise BadFile(file, name, problem, _REMEDY)
            # No trailing ".0": grid and block are whole numbers.
            value = float(metric.as_double())
            cells[name] = str(int(value)) if value.is_integer() else repr(value)
    cells["Stream"] = cells.get("launch__stream_id", "")
    cells["Device"] = cells.get("launch__device_id", "")
    return {**cells, **_nvtx(action)}


_TEXTS = ("device__attribute_display_name",)
_NUMBERS = (
    "device__attribute_compute_capability_",
    "launch__grid_dim_",
    "launch__block_dim_",
    "launch__stream_id",
    "launch__device_id",
)


def _name(action: Any) -> str:
    """The demangled name, as the CSV has it; versions before 2022 know only one kind of name."""
    base = getattr(action, "NameBase_DEMANGLED", None)
    return str(action.name() if base is None else action.name(base))


def _workload(action: Any) -> str:
    """What kind of result this is; "" where the module is too old to know."""
    if not hasattr(action, "workload_type"):
        return ""
    found = action.workload_type()
    for kind in ("kernel", "range", "graph"):
        if found == getattr(action, f"WorkloadType_{kind.upper()}", object()):
            return kind
    return ""


def _nvtx(action: Any) -> dict[str, str]:
    """The NVTX ranges around this result, in columns that begin like those of the CSV."""
    state = action.nvtx_state() if hasattr(action, "nvtx_state") else None
    if state is None:
        return {}
    pushed, started = [], []
    for identifier in state.domains():
        domain = state.domain_by_id(identifier)
        pushed += [f'"{domain.name()}:{name}:{_NO_FIELDS}"' for name in domain.push_pop_ranges()]
        started += [f'"{domain.name()}:{name}:{_NO_FIELDS}"' for name in domain.start_end_ranges()]
    return {
        "thread Domain:Push/Pop_Range": " ".join(pushed),
        "Id:Domain:Start/Stop_Range": " ".join(started),
    }


_NO_FIELDS = ":".join(["none"] * 6)
"""What the CSV has after a range's name: payload, colour and message, with their types."""
