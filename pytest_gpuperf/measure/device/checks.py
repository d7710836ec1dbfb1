"""The doctor's checks: questions about this machine, answered, with a remedy for every "no"."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuperf.catalogue.architectures import ARCHITECTURES
from pytest_gpuperf.measure.device import fingerprint, guard, nvml


@dataclass(frozen=True)
class Check:
    """One question about the machine, and its answer."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    """What to do about a "no"."""
    optional: bool = False
    """Measuring works without it."""


def examine() -> list[Check]:
    """Asks everything that measuring here depends on; raises nothing."""
    from pytest_gpuperf.measure.cupti.probe import probe

    gpu = nvml.detect_device() is not None
    alone = [_to_ourselves()] if gpu else []
    return [_torch(), _driver(), _gpu(), *probe(), _nsight_compute(), *alone]


def _torch() -> Check:
    versions = fingerprint.software()
    detail = f"Python {versions['python']}, {versions['platform']}"
    if "torch" not in versions:
        return Check("torch", False, f"{detail}; torch is not installed", "pip install torch")
    cuda = f", CUDA {versions['cuda']}" if "cuda" in versions else ", a build without CUDA"
    return Check("torch", True, f"{versions['torch']}{cuda}; {detail}")


def _driver() -> Check:
    version = fingerprint.driver_version()
    remedy = "Install the driver, or in a container start it with GPUs (docker run --gpus all)"
    return Check("driver", bool(version), version or "no NVIDIA driver answers", remedy)


def _gpu() -> Check:
    device = nvml.detect_device()
    if device is None:
        detail = "none is visible, so suites measure portable counts on the CPU"
        return Check("GPU", False, detail, "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES")
    remedy = f"Known architectures are {', '.join(ARCHITECTURES)}; report this one"
    return Check("GPU", device.arch in ARCHITECTURES, f"{device.name} ({device.arch})", remedy)


def _nsight_compute() -> Check:
    from pytest_gpuperf.measure.ncu import ncu_command

    path = ncu_command.find()
    if path:
        version = ncu_command.version(path)
        return Check("Nsight Compute", True, f"{path}, {version}" if version else str(path))
    return Check(
        "Nsight Compute",
        False,
        "ncu was not found (the cupti collector does not need it)",
        "Install Nsight Compute, or name it by --gpuperf-ncu PROGRAM",
        optional=True,
    )


def _to_ourselves() -> Check:
    others = guard.read().other_processes
    pids = ", ".join(map(str, others))
    return Check(
        "device to ourselves",
        not others,
        f"other compute processes: {pids}" if others else "no other compute process",
        "End them, or measure when they are done: shared numbers are not gated on",
    )
