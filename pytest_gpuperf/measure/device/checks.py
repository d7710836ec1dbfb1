"""The doctor's checks: questions about this machine, answered, with a remedy for every "no"."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuperf.catalogue.architectures import ARCHITECTURES
from pytest_gpuperf.errors import CountersUnavailable, GpuperfError, MeasurementError
from pytest_gpuperf.measure.cupti import library
from pytest_gpuperf.measure.cupti.range_session import RangeSession
from pytest_gpuperf.measure.device import driver, fingerprint, guard, nvml
from pytest_gpuperf.model.measurement import CHECKED, STEP, Canary, Device, Machine

_FOUND = "CUPTI"
_READ = "hardware counters"
_METRIC = "sm__cycles_elapsed.max"
_DOCTOR = "Report it, with this output, to the maintainers of pytest-gpuperf"


@dataclass(frozen=True)
class Check:
    """One question about the machine, and its answer."""

    __pydantic_config__ = CHECKED

    name: str
    """The subject of the check: torch, driver, GPU, CUPTI, hardware counters, ..."""
    ok: bool
    """Whether the check found it."""
    detail: str
    """The version or model found, or the obstacle."""
    remedy: str = ""
    """The remedy for a "no"."""
    optional: bool = False
    """Measuring works without it."""


@dataclass(frozen=True)
class Examination:
    """The output of `gpuperf doctor --format json`."""

    __pydantic_config__ = CHECKED

    schema: int
    """The version of this format."""
    measurable: bool
    """Whether everything is there that is not optional; the exit code says the same."""
    checks: tuple[Check, ...]
    """Every question with its answer, in the order in which they were asked."""
    device: Device | None
    """The GPU that is measured; None where there is none."""
    machine: Machine | None
    """The GPU's properties beyond its name; None without a GPU."""
    canary: Canary | None
    """The readings of its canary; None without a GPU."""


SCHEMA = 1
"""Of `Examination`."""


def examine() -> list[Check]:
    """Asks everything that measuring here depends on; raises nothing."""
    gpu = nvml.detect_device() is not None
    of_gpu = [_to_ourselves()] if gpu else []
    return [_torch(), _driver(), _gpu(), *counters(), _nsight_compute(), *of_gpu]


def counters() -> list[Check]:
    """Finds CUPTI and really reads a counter, over an empty range on device 0.

    Leaves the process as it was, except for libraries loaded. Raises nothing: each "no" is a Check
    with its remedy.
    """
    try:
        cupti = library.load()
    except CountersUnavailable as error:
        return [
            Check(_FOUND, False, error.reason, error.remedy),
            Check(_READ, False, "not read, as CUPTI is missing", error.remedy),
        ]
    there = Check(_FOUND, True, f"{cupti.release} (API {cupti.version}), {cupti.path}")
    return [there, _tried()]


def _torch() -> Check:
    versions = fingerprint.software()
    detail = f"Python {versions['python']}, {versions['platform']}"
    if "torch" not in versions:
        return Check("torch", False, f"{detail}; torch is not installed", "pip install torch")
    cuda = f", CUDA {versions['cuda']}" if "cuda" in versions else ", a build without CUDA"
    return Check("torch", True, f"{versions['torch']}{cuda}; {detail}")


def _driver() -> Check:
    version = fingerprint.driver_version()
    remedy = "Install the driver. In a container, start it with GPUs: docker run --gpus all"
    return Check("driver", bool(version), version or "no NVIDIA driver found", remedy)


def _gpu() -> Check:
    device = nvml.detect_device()
    if device is None:
        detail = "none is visible, so tests measure portable counts on the CPU"
        return Check("GPU", False, detail, "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES")
    remedy = f"gpuperf knows {', '.join(ARCHITECTURES)}. Report this one to its maintainers"
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
        "Install Nsight Compute, or pass --gpuperf-ncu PROGRAM to pytest",
        optional=True,
    )


def _to_ourselves() -> Check:
    others = guard.read().other_processes
    pids = ", ".join(map(str, others))
    return Check(
        "GPU not shared",
        not others,
        f"other compute processes: {pids}" if others else "no other compute process",
        "End them, or measure later: a test on a shared GPU is skipped, not compared",
    )


def _tried() -> Check:
    try:
        cuda = driver.load()
        with cuda.primary_context():
            return _read(cuda)
    except CountersUnavailable as error:
        return Check(_READ, False, error.reason, error.remedy)
    except GpuperfError as error:
        return Check(_READ, False, str(error), _DOCTOR)


def _read(cuda: driver.Driver) -> Check:
    with RangeSession([_METRIC]) as session:
        if session.unsupported:
            return Check(_READ, False, session.unsupported[0].reason, library.INSTALL)

        def empty_range() -> None:
            session.push(STEP)
            cuda.synchronize()
            session.pop()

        try:
            session.round([STEP], empty_range)
        except library.CuptiError:
            raise
        except MeasurementError:
            # CUPTI may leave out a range in which nothing ran. It was allowed to look, which is
            # what was asked.
            pass
        return Check(_READ, True, f"can be read on this {session.chip}")
