"""How the suite's tests are judged, as keywords of the marker `gpuperf`, by configuration.

What is not named here has the judge's own tolerances, or those of the device's baseline file (peak
memory on a GPU: up to 0.06 %, as torch's blocks depend on what was allocated before). Figures:
ranges over the processes of docs/runs/h200-optimizations.json.xz, on two GPUs of two machines,
largest to smallest, of one step.
"""

from __future__ import annotations

from typing import Any

from suites.meddpm.optimizations import Optimization, composed

_LAUNCHED_BY_PYTHON = {"cycles": "100%", "step_time": "100%", "kernel_time": "1%"}
"""Of a step with the fused norm, neither compiled nor captured.

Each of its Triton kernels is launched by Python, which is slower than the kernels of the smaller
volumes: cycles by up to 11 % in training and 39 % in sampling. The time of its kernels: 0.5 %.
"""
_WRITTEN_ANEW = {"instructions": "1%"}
"""Of code that torch.compile has written: without a cache on the disk it chooses among its kernels
by timing them, and does not choose alike on two machines. Up to 0.2 %, and 0.5 % to earlier runs.
"""
_COMPILED = {**_WRITTEN_ANEW, "cycles": "10%", "step_time": "10%", "kernel_time": "1%"}
"""Of such a step that the host launches: up to 5.1 %, and 4.2 % of the time; 0.3 % of the time of
its kernels on one GPU, and 1.7 % on two."""
_LAUNCHED = {"cycles": "5%", "step_time": "5%"}
"""Of a bfloat16 step that torch launches: in training up to 2.9 %."""
_SHORT = {"cycles": "10%", "step_time": "10%"}
"""Of a tenth of a second that the host launches: up to 4.5 % in sampling."""
_SHORT_CAPTURED = {"step_time": "2%"}
"""The same as one CUDA graph: up to 0.7 % on one GPU."""

_KERNELS = "+kernel_time"
"""What stands in for the cycles of a step whose host is part of them: while kernels ran."""


def of_training(configuration: str) -> dict[str, Any]:
    """Of the configuration's training step."""
    optimization = composed(configuration)
    launched = _has(optimization, "bf16") and not optimization.captured
    return _of(optimization, _LAUNCHED if launched else {})


def of_sampling(configuration: str) -> dict[str, Any]:
    """Of its sampling step, and of a chain of them."""
    optimization = composed(configuration)
    return _of(optimization, _SHORT_CAPTURED if optimization.captured else _SHORT)


def _of(optimization: Optimization, usual: dict[str, str]) -> dict[str, Any]:
    """`usual` is of what torch launches, and of what was captured."""
    compiled = _has(optimization, "compile")
    if optimization.captured:
        return {"tolerance": {**usual, **(_WRITTEN_ANEW if compiled else {})}}
    if compiled:
        return {"tolerance": _COMPILED, "metrics": _KERNELS}
    if _has(optimization, "fused_norm"):
        return {"tolerance": _LAUNCHED_BY_PYTHON, "metrics": _KERNELS}
    return {"tolerance": usual}


def _has(optimization: Optimization, name: str) -> bool:
    return any(part.name == name for part in optimization.parts)
