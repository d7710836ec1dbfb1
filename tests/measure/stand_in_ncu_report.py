"""Stands in for NVIDIA's module `ncu_report`: a copy of that name is put on the module path.

A report is a file of JSON here: the results that it has, or how reading it fails.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any


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

    def __getitem__(self, name: str) -> SimpleNamespace:
        text = self._result["texts"][name]
        # A text is no number: only who asks for one finds out.
        return SimpleNamespace(as_string=lambda: text, as_double=lambda: float(text))


def load_report(file: str) -> SimpleNamespace:
    """The results in `file` as one range."""
    script = json.loads(Path(file).read_text(encoding="utf-8"))
    if fails := script.get("fails"):
        if fails == "KILL":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError(f"{fails}: {Path(file).name}")
    actions = [Action(result) for result in script["results"]]
    results = SimpleNamespace(num_actions=lambda: len(actions), action_by_idx=actions.__getitem__)
    return SimpleNamespace(num_ranges=lambda: 1, range_by_idx=lambda _: results)
