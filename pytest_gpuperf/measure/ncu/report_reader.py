"""Reads a report by NVIDIA's module `ncu_report`, in a process of its own.

    python -m pytest_gpuperf.measure.ncu.report_reader REPORT OUT COUNTER[,COUNTER ...]

writes a `Page` into OUT as JSON. The module is native code of others, which has been seen to end
the process that it is loaded into (a segmentation fault, in version 2025.3.1, beside torch): here
that process is nobody's test session. `ncu_native.py` starts it.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MODULE = "ncu_report"
WORKLOAD = "gpuperf workload"
"""A column that CSV files do not have: kernel, range or graph, where the module says which."""


@dataclass(frozen=True)
class Page:
    """The cells that the CSV of the raw page would have, as far as they are needed."""

    there: bool = True
    """Whether the module is here and loads."""
    problem: str = ""
    """Why the report was not read; "" when it was."""
    units: dict[str, str] = field(default_factory=dict)
    """By counter."""
    lines: list[dict[str, str]] = field(default_factory=list)
    """Per result, the cells by column."""


def main(arguments: list[str]) -> int:
    """Reads what the arguments name; see the module."""
    report, out, counters = arguments
    Path(out).write_text(json.dumps(asdict(page(report, set(counters.split(","))))), "utf-8")
    return 0


def page(report: str, counters: Collection[str]) -> Page:
    """The report's page, or what is in the way."""
    try:
        module = importlib.import_module(MODULE)
    except Exception:  # its native part may be of another Python, or miss a library
        return Page(there=False)
    units: dict[str, str] = {}
    try:
        results = _actions(module.load_report(report))
        return Page(units=units, lines=[_cells(result, counters, units) for result in results])
    except Exception as error:  # whatever a native module of others raises
        return Page(problem=str(error) or type(error).__name__)


def _actions(report: Any) -> Iterator[Any]:
    for index in range(report.num_ranges()):
        found = report.range_by_idx(index)
        for number in range(found.num_actions()):
            yield found.action_by_idx(number)


def _cells(action: Any, counters: Collection[str], units: dict[str, str]) -> dict[str, str]:
    """The cells of this result; notes the units of its counters. Raises ValueError."""
    cells = {"Kernel Name": _name(action), WORKLOAD: _workload(action)}
    for name in action.metric_names():
        if name.startswith(_TEXTS):
            cells[name] = str(action[name].as_string())
        elif name in counters or name.startswith(_NUMBERS):
            metric = action[name]
            if name in counters:
                unit = str(metric.unit() or "")
                if units.setdefault(name, unit) != unit:
                    raise ValueError(f'the unit of {name} is "{unit}" here, "{units[name]}" there')
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
