"""What `gpuperf doctor` finds out about this machine."""

from __future__ import annotations

from dataclasses import dataclass


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


# What `gpuperf doctor` finds out about this machine.


def examine() -> list[Check]:
    """Asks everything that measuring here depends on; raises nothing."""
    from pytest_gpuperf.measure.cupti.probe import probe

    return [_python(), *_gpu(), *probe(), _nsight_compute(), *_others()]


def _python() -> Check:
    from pytest_gpuperf.measure.device import fingerprint

    versions = fingerprint.software()
    detail = f"Python {versions['python']}, {versions['platform']}"
    if "torch" not in versions:
        return Check("torch", False, f"{detail}; torch is not installed", "pip install torch")
    cuda = f", CUDA {versions['cuda']}" if "cuda" in versions else ", a build without CUDA"
    return Check("torch", True, f"{versions['torch']}{cuda}; {detail}")


def _gpu() -> list[Check]:
    from pytest_gpuperf.catalogue import architectures
    from pytest_gpuperf.measure.device import nvml

    with nvml.open_session() as session:
        driver = session.text("nvmlSystemGetDriverVersion") if session else ""
    device = nvml.detect_device()
    found = [
        Check("driver", True, driver)
        if driver
        else Check(
            "driver",
            False,
            "no NVIDIA driver answers",
            "Install the driver, or in a container start it with GPUs (docker run --gpus all)",
        )
    ]
    if device is None:
        return [
            *found,
            Check(
                "GPU",
                False,
                "none is visible, so suites measure portable counts on the CPU",
                "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES",
            ),
        ]
    known = device.arch in architectures.ARCHITECTURES
    remedy = f"Known architectures are {', '.join(architectures.ARCHITECTURES)}; report this one"
    return [*found, Check("GPU", known, f"{device.name} ({device.arch})", remedy)]


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


def _others() -> list[Check]:
    from pytest_gpuperf.measure.device import guard, nvml

    if nvml.detect_device() is None:
        return []
    others = guard.read().other_processes
    if not others:
        return [Check("device to ourselves", True, "no other compute process")]
    pids = ", ".join(map(str, others))
    return [
        Check(
            "device to ourselves",
            False,
            f"other compute processes: {pids}",
            "End them, or measure when they are done: shared numbers are not gated on",
        )
    ]
