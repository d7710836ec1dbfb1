"""How the suite's tests are judged, as keywords of the marker `gpuperf`, by configuration.

What is not named here has the judge's own tolerances. Figures: ranges over the processes of
docs/runs/h200-optimizations.json.xz, on three GPUs of three machines, largest to smallest, of one
step.
"""

from __future__ import annotations

from typing import Any

from suites.meddpm.optimizations import Optimization, composed

_LAUNCHED = {"cycles": "15%", "step_time": "15%", "kernel_time": "1%"}
"""Of a step whose launches take torch about as long as its kernels take: up to 6.5 % of cycles. The
time of its kernels: 0.4 %."""
_LAUNCHED_BY_PYTHON = {"cycles": "100%", "step_time": "100%", "kernel_time": "1%"}
"""Where Python launches, the fused norm's kernels or those that torch.compile wrote: cycles by up
to 10 % in training and 27 % in sampling. The time of its kernels: 0.8 %."""
_GRAPH = {"peak_memory": "0.1%"}
"""Of a CUDA graph, whose pool has whole segments: sampling had one of 2 MiB less in three of six
processes, 0.05 %. Memory of all others is alike to the byte."""
_SHORT_GRAPH = {**_GRAPH, "cycles": "2%", "step_time": "1%"}
"""Of such a tenth of a second: up to 1.0 % of cycles, which were counted once in each process, and
0.5 % of the time, the median of three executions."""
_WRITTEN_ANEW = {"instructions": "2%"}
"""Of code that torch.compile has written: without a cache on the disk it chooses among its kernels
by timing them, and does not choose alike on two machines. Up to 1.3 %."""
_GATHERED = {"step_time": "10%"}
"""Of a step over ranks that gathers its weights block by block: a host or a peer that is late stops
it each time. 288 and 295 ms in two sessions on two H100s, for work that took 0.3 % more or less
(tests/data/h100-rank-sessions)."""


def of_training(configuration: str) -> dict[str, Any]:
    """Of the configuration's training step."""
    optimization = composed(configuration)
    return _of(optimization, short=optimization.precision == "bf16")


def of_sampling(configuration: str) -> dict[str, Any]:
    """Of its sampling step, and of a chain of them."""
    return _of(composed(configuration), short=True)


def of_ranks(sharding: str, configuration: str) -> dict[str, Any]:
    """Of its training step over several ranks, one way or another (`sharding.SHARDINGS`)."""
    if "compile" not in {part.name for part in composed(configuration).parts}:
        return {"tolerance": _GATHERED} if sharding == "fsdp2" else {}
    return {"tolerance": _LAUNCHED_BY_PYTHON}


def _of(optimization: Optimization, *, short: bool) -> dict[str, Any]:
    """`short`: its kernels take about as long as torch takes to launch them."""
    parts = {part.name for part in optimization.parts}
    anew = _WRITTEN_ANEW if "compile" in parts else {}
    if optimization.captured:
        return {"tolerance": {**anew, **(_SHORT_GRAPH if short else _GRAPH)}}
    if parts & {"compile", "fused_norm"}:
        return _by_kernels({**anew, **_LAUNCHED_BY_PYTHON})
    return _by_kernels(_LAUNCHED) if short else {}


def _by_kernels(tolerance: dict[str, str]) -> dict[str, Any]:
    """What holds a step whose host is part of its cycles is the time in which kernels ran."""
    return {"tolerance": tolerance, "metrics": "+kernel_time"}
