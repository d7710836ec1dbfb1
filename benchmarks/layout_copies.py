"""How much of Med-DDPM's training step goes into copies from one memory layout to another.

    python -m benchmarks.layout_copies docs/runs/meddpm-layout-copies.json tf32_channels_last best

measures each configuration on this machine's GPU, writes the file and prints its table. A kernel's
name does not say what it copies: torch's profiler knows the operator that launched it, with the
strides of its arguments. Counted as a layout copy is

- a copy by torch between tensors of five dimensions that lie in memory in another order,
- a library's conversion of a tensor, by its kernel's name,
- of kernels that torch.compile wrote, those that only move data.

A CUDA graph's kernels have no operators: a captured configuration is measured without its graph.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pytest_gpuperf.catalogue import kernel_families

_VOLUME = 5
"""Dimensions: batch, channels, depth, height, width."""
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of trace events that take time of the device."""


def measured(trace: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Milliseconds of all kernels in a trace of torch's profiler, and of each kind of layout copy.

    `trace` is the list `traceEvents` of the file that it exports, recorded with shapes.
    """
    events = list(trace)
    operators = {
        event["args"]["External id"]: event
        for event in events
        if event.get("cat") == "cpu_op" and "External id" in event.get("args", {})
    }
    total = 0.0
    copies: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") not in _KERNELS:
            continue
        total += event["dur"] / 1e3
        operator = operators.get(event.get("args", {}).get("External id"), {})
        what = layout_copy(event["name"], operator.get("name", ""), operator.get("args", {}))
        if what is not None:
            copies[what].append(event["dur"] / 1e3)
    return {
        "kernels_ms": round(total, 3),
        "copies": [
            {"what": what, "launches": len(times), "ms": round(sum(times), 3)}
            for what, times in sorted(copies.items(), key=lambda item: -sum(item[1]))
        ],
    }


def layout_copy(kernel: str, operator: str, arguments: Mapping[str, Any]) -> str | None:
    """What a kernel copies to another layout, and None for one that does something else."""
    if kernel_families.family(kernel) != "layout":
        return None
    if operator in ("aten::copy_", "aten::cat"):
        dims, strides = arguments.get("Input Dims", []), arguments.get("Input Strides", [])
        if operator == "aten::cat" or [len(shape) for shape in dims[:2]] != [_VOLUME, _VOLUME]:
            return None
        if not _reordered(dims[:2], strides[:2]):
            return None
        return f"torch: {'x'.join(map(str, dims[0]))}"
    if kernel.startswith("void at::"):
        return None
    return kernel_families.short_name(kernel)


def _reordered(shapes: Sequence[Sequence[int]], strides: Sequence[Sequence[int]]) -> bool:
    """Whether two tensors have their dimensions in another order in memory.

    A dimension of one element, or of one that is repeated (its stride is 0), has no place there.
    """
    placed = [
        d
        for d in range(_VOLUME)
        if all(shape[d] > 1 for shape in shapes) and all(steps[d] for steps in strides)
    ]
    one, other = (_order(placed, steps) for steps in strides)
    return one != other


def _order(dimensions: Sequence[int], strides: Sequence[int]) -> list[int]:
    """From the outermost to the innermost in memory."""
    return sorted(dimensions, key=lambda d: -strides[d])


def table(steps: Mapping[str, Mapping[str, Any]]) -> str:
    """A row per configuration: milliseconds of kernels and of layout copies, their share."""
    rows = [
        "| configuration | kernels | layout copies | share | the largest |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for name, step in steps.items():
        copies = step["copies"]
        took = sum(copy["ms"] for copy in copies)
        largest = f"`{copies[0]['what']}`, {copies[0]['ms']:.2f} ms" if copies else ""
        rows.append(
            f"| `{name}` | {step['kernels_ms']:.1f} ms | {took:.2f} ms "
            f"| {took / step['kernels_ms']:.1%} | {largest} |"
        )
    return "\n".join(rows) + "\n"


def load(file: Path) -> dict[str, dict[str, Any]]:
    """What a file has of each configuration."""
    steps: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return steps


def _measure(name: str, size: int, data_cache: Path) -> dict[str, Any]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    from suites.meddpm import data
    from suites.meddpm.model import med_ddpm
    from suites.meddpm.optimizations import uncaptured
    from suites.meddpm.step import TrainingStep

    torch.manual_seed(0)
    diffusion = med_ddpm(128).to("cuda")
    volumes = data.load("mni152", size, data_cache)
    optimization = uncaptured(name)
    with optimization.applied(diffusion):
        step = TrainingStep(diffusion, volumes, optimization, lambda _: nullcontext(), "cuda")
        for _ in range(2):
            step()
        activities = [ProfilerActivity.CUDA, ProfilerActivity.CPU]
        with profile(activities=activities, record_shapes=True) as profiled:
            step()
            torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiled.export_chrome_trace(file.name)
        return measured(json.loads(Path(file.name).read_bytes())["traceEvents"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the configurations that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="where the results are written")
    parser.add_argument("configuration", nargs="+")
    parser.add_argument("--size", type=int, default=128, help="edge of the volume")
    parser.add_argument("--data-cache", type=Path, default=Path(".gpuperf/data"))
    asked = parser.parse_args(arguments)
    steps = {name: _measure(name, asked.size, asked.data_cache) for name in asked.configuration}
    asked.file.write_text(json.dumps(steps, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(table(steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
