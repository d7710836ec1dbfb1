"""A stand-in for the module pynvml: the functions that we call, answered from a script.

Handles are the scripted objects themselves. A field that is None is not supported, as on a driver
or GPU that does not offer it; a function that is not here does not exist, as in an older pynvml.
"""

# ruff: noqa: N802, N815  (the names are NVML's)
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar

_T = TypeVar("_T")


class NVMLError(Exception):
    """What pynvml raises for every status but success."""


@dataclass
class Instance:
    """A MIG instance."""

    uuid: str
    name: str | None = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    slices: int = 1
    memory_mib: int = 4864
    processes: list[int] = field(default_factory=list)


@dataclass
class Gpu:
    """A GPU."""

    uuid: str = "GPU-00000000-0000-0000-0000-000000000000"
    name: str | None = "NVIDIA H200"
    capability: tuple[int, int] | None = (9, 0)
    mig: bool | None = False
    instances: list[Instance | None] = field(default_factory=list)
    clocks: dict[int, int] = field(default_factory=lambda: {1: 1980, 2: 3201})
    celsius: int | None = 41
    milliwatts: int | None = 118_500
    reasons: int | None = 0
    processes: list[int] | None = field(default_factory=list)
    vbios: str | None = "96.00.A5.00.1A"
    board_part: str | None = "692-2G520-0282-001"
    inforom: str | None = "G520.0282.02.02"
    memory_mib: int | None = 143_771
    ecc: bool | None = True
    limits: tuple[int, int] | None = (700_000, 700_000)
    """By default and enforced, in mW."""
    pcie: tuple[int, int] | None = (5, 16)
    minor: int | None = None
    """The number in the name of its device node."""


def whole(handle: Gpu) -> Gpu:
    """Refuses a MIG instance, as NVML does for what only a whole GPU has."""
    if not isinstance(handle, Gpu):
        raise NVMLError("Not Supported")
    return handle


def supported(answer: _T | None) -> _T:
    """Refuses what is scripted as not supported."""
    if answer is None:
        raise NVMLError("Not Supported")
    return answer


def _of_gpu(field: str, *part: int) -> Callable[[Library, Gpu], Any]:
    """The function of NVML that answers with a field of a whole GPU, or with a part of one."""

    def answer(_: Library, handle: Gpu) -> Any:
        known = supported(getattr(whole(handle), field))
        return known[part[0]] if part else known

    return answer


@dataclass
class Library:
    """The module. Put it into sys.modules as "pynvml"."""

    gpus: list[Gpu]
    driver: str = "580.159"
    has_driver: bool = True
    open_sessions: int = 0
    NVMLError = NVMLError
    nvmlDeviceGetCudaComputeCapability = _of_gpu("capability")
    nvmlDeviceGetPowerUsage = _of_gpu("milliwatts")
    nvmlDeviceGetVbiosVersion = _of_gpu("vbios")
    nvmlDeviceGetBoardPartNumber = _of_gpu("board_part")
    nvmlDeviceGetInforomImageVersion = _of_gpu("inforom")
    nvmlDeviceGetMinorNumber = _of_gpu("minor")
    nvmlDeviceGetCurrentClocksThrottleReasons = _of_gpu("reasons")
    nvmlDeviceGetPowerManagementDefaultLimit = _of_gpu("limits", 0)
    nvmlDeviceGetEnforcedPowerLimit = _of_gpu("limits", 1)
    nvmlDeviceGetMaxPcieLinkGeneration = _of_gpu("pcie", 0)
    nvmlDeviceGetMaxPcieLinkWidth = _of_gpu("pcie", 1)

    def nvmlInit(self) -> None:
        if not self.has_driver:
            raise NVMLError("Driver Not Loaded")
        self.open_sessions += 1

    def nvmlShutdown(self) -> None:
        self.open_sessions -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.driver

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        if not 0 <= index < len(self.gpus):
            raise NVMLError("Invalid Argument")
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu | Instance:
        for gpu in self.gpus:
            for device in (gpu, *gpu.instances):
                if device is not None and device.uuid == uuid:
                    return device
        raise NVMLError("Not Found")

    def nvmlDeviceGetUUID(self, handle: Gpu | Instance) -> str:
        return handle.uuid

    def nvmlDeviceGetName(self, handle: Gpu | Instance) -> str:
        return supported(handle.name)

    def nvmlDeviceGetMigMode(self, handle: Gpu) -> list[int]:
        mode = int(supported(whole(handle).mig))
        return [mode, mode]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Gpu) -> int:
        return len(handle.instances)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Gpu, index: int) -> Instance:
        return supported(handle.instances[index])

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Instance) -> Gpu:
        return next(gpu for gpu in self.gpus if handle in gpu.instances)

    def nvmlDeviceGetAttributes(self, handle: Instance) -> SimpleNamespace:
        return SimpleNamespace(gpuInstanceSliceCount=handle.slices, memorySizeMB=handle.memory_mib)

    def nvmlDeviceGetClockInfo(self, handle: Gpu, domain: int) -> int:
        return supported(whole(handle).clocks.get(domain))

    def nvmlDeviceGetTemperature(self, handle: Gpu, sensor: int) -> int:
        assert sensor == 0
        return supported(whole(handle).celsius)

    def nvmlDeviceGetMemoryInfo(self, handle: Gpu | Instance) -> SimpleNamespace:
        return SimpleNamespace(total=supported(handle.memory_mib) << 20)

    def nvmlDeviceGetEccMode(self, handle: Gpu) -> list[int]:
        mode = int(supported(whole(handle).ecc))
        return [mode, 1 - mode]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Gpu | Instance) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in supported(handle.processes)]


Install = Callable[[Library | None], None]
"""Makes a library the module, or has there be none."""
