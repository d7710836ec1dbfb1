"""How the suite's tests are judged, as keywords of the marker `gpuperf`, by configuration.

What is not named here has the judge's own tolerances. Figures: ranges over the processes of
docs/runs/h200-optimizations.json.xz, on two GPUs of two machines, largest to smallest, of one step.
"""

from __future__ import annotations

from typing import Any

from suites.meddpm.optimizations import Optimization, composed

_LAUNCHED = {"cycles": "10%", "step_time": "10%", "kernel_time": "1%"}
"""Of a step whose launches take about as long as its kernels: up to 5.1 % in training, and 4.5 % of
the time in sampling; of its kernels' time 0.7 % on one GPU."""
_LAUNCHED_BY_PYTHON = {"cycles": "100%", "step_time": "100%", "kernel_time": "1%"}
"""Where Triton's kernels are among them, each of which Python launches: cycles by up to 11 % in
training and 39 % in sampling. The time of its kernels: 0.5 %."""
_SHORT_GRAPH = {"step_time": "2%"}
"""Of a tenth of a second that is one CUDA graph: up to 0.7 % on one GPU."""
_WRITTEN_ANEW = {"instructions": "1%"}
"""Of code that torch.compile has written: without a cache on the disk it chooses among its kernels
by timing them, and does not choose alike on two machines. Up to 0.2 %, and 0.5 % to earlier runs.
"""


def of_training(configuration: str) -> dict[str, Any]:
    """Of the configuration's training step."""
    optimization = composed(configuration)
    return _of(optimization, short=optimization.precision == "bf16" and not optimization.captured)


def of_sampling(configuration: str) -> dict[str, Any]:
    """Of its sampling step, and of a chain of them."""
    return _of(composed(configuration), short=True)


def _of(optimization: Optimization, *, short: bool) -> dict[str, Any]:
    """`short`: its kernels take about as long as torch takes to launch them."""
    parts = {part.name for part in optimization.parts}
    anew = _WRITTEN_ANEW if "compile" in parts else {}
    if optimization.captured:
        tolerance = {**anew, **(_SHORT_GRAPH if short else {})}
        return {"tolerance": tolerance} if tolerance else {}
    if "fused_norm" in parts and not anew:
        return _by_kernels(_LAUNCHED_BY_PYTHON)
    return _by_kernels({**anew, **_LAUNCHED}) if anew or short else {}


def _by_kernels(tolerance: dict[str, str]) -> dict[str, Any]:
    """What holds a step whose host is part of its cycles is the time in which kernels ran."""
    return {"tolerance": tolerance, "metrics": "+kernel_time"}
