"""Stands in for NVIDIA's package `ncu_report`: a copy of that name is put on the module path.

The results that it has of any report are in `ncu_report.json` beside it, and how it fails.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_suffix(".json")


class Metric:
    """A metric of one result, as `ncu_report.IMetric` gives it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def as_double(self) -> float:
        return float(self._text.replace(",", ""))

    def as_string(self) -> str:
        return self._text


class Domain:
    """The NVTX ranges of the default domain."""

    def name(self) -> str:
        return "<default domain>"

    def push_pop_ranges(self) -> tuple[str, ...]:
        return ("gpuperf:step",)

    def start_end_ranges(self) -> tuple[str, ...]:
        return ()


class NvtxState:
    """One domain."""

    def domains(self) -> tuple[int, ...]:
        return (0,)

    def domain_by_id(self, _: int) -> Domain:
        return Domain()


class Action:
    """A kernel or range, as `ncu_report.IAction` gives it."""

    NameBase_FUNCTION, NameBase_DEMANGLED = 0, 1
    WorkloadType_KERNEL, WorkloadType_RANGE, WorkloadType_GRAPH = range(3)

    def __init__(self, result: dict[str, Any]) -> None:
        self._result = result

    def name(self, base: int = NameBase_FUNCTION) -> str:
        return str(self._result["name"]) if base == self.NameBase_DEMANGLED else "function"

    def workload_type(self) -> int:
        return int(getattr(self, f"WorkloadType_{self._result['workload'].upper()}"))

    def metric_names(self) -> list[str]:
        return list(self._result["texts"])

    def __getitem__(self, name: str) -> Metric:
        return Metric(self._result["texts"][name])

    def nvtx_state(self) -> NvtxState | None:
        return NvtxState() if self._result.get("nvtx", True) else None


class Range:
    """All results."""

    def __init__(self, results: list[dict[str, Any]]) -> None:
        self._results = results

    def num_actions(self) -> int:
        return len(self._results)

    def action_by_idx(self, index: int) -> Action:
        return Action(self._results[index])


class Report:
    """A report of one range."""

    def __init__(self, results: list[dict[str, Any]]) -> None:
        self._results = results

    def num_ranges(self) -> int:
        return 1

    def range_by_idx(self, _: int) -> Range:
        return Range(self._results)


def load_report(file: str) -> Report:
    """The prepared results, whatever is in `file`."""
    script = json.loads(SCRIPT.read_text(encoding="utf-8"))
    print("what a native library prints", flush=True)
    if script["fails"] == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if script["fails"]:
        raise RuntimeError(f"{script['fails']}: {Path(file).name}")
    return Report(script["results"])
