"""Careful access to NVML: an answer that a driver does not give is None, never an exception.

NVML is NVIDIA's management library and comes with the driver. It lists all GPUs of a host in the
order of the PCI bus, and ignores CUDA_VISIBLE_DEVICES. `NvmlSession.gpu` finds the GPU that CUDA,
and so torch, would use. pynvml is untyped and is imported when a session opens.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_gpuperf.catalogue.architectures import CPU, slug
from pytest_gpuperf.model.measurement import Device

_MIG_ENABLED = 1
_PCI = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAY = "0x10de", "0x03"
"""PCI's vendor, and its class of VGA and 3D controllers."""
_NODE = "/dev/nvidia{}"
ANY_NODE = Path("/dev/null")
"""The node shared by all devices without their own."""
_MACHINE_FILES = (
    *(Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")),
    Path("/proc/sys/kernel/random/boot_id"),
)
_APPLICATION = bytes.fromhex("6d0f1b8f5c9a4e57a2c3d1790be8467a")
"""Ours alone: a random number."""


def detect_device() -> Device | None:
    """The GPU that CUDA would number 0, or None without a driver, a library or a GPU.

    Asks NVML and creates no CUDA context. Honours CUDA_VISIBLE_DEVICES; see `NvmlSession.gpu`.
    The architecture may be one that ARCHITECTURES does not have.
    """
    with open_session() as session:
        gpu = session.gpu()
        return _device(session, gpu) if gpu else None


def visible_gpus() -> dict[str, Device]:
    """All GPUs that CUDA_VISIBLE_DEVICES leaves to this process, as CUDA numbers them.

    By their UUIDs as CUDA_VISIBLE_DEVICES takes them: "GPU-...", and "MIG-..." for an instance.
    A GPU partitioned by MIG stands for all its instances, each for a process of its own, although
    CUDA would show one. As with CUDA, the list ends before its first invalid entry, and is empty if
    a GPU is named twice. Empty without NVML; devices without a UUID are left out. Creates no CUDA
    context.
    """
    with open_session() as session:
        entries = visible_entries(os.environ.get("CUDA_VISIBLE_DEVICES"))
        found = [
            (uuid, device)
            for gpu in session.every(entries)
            if (uuid := session.text("nvmlDeviceGetUUID", gpu.visible))
            and (device := _device(session, gpu))
        ]
    visible = dict(found)
    return visible if entries is None or len(visible) == len(found) else {}  # one named twice


def _device(session: NvmlSession, gpu: Gpu) -> Device | None:
    capability = session.ask("nvmlDeviceGetCudaComputeCapability", gpu.physical)
    name = session.text("nvmlDeviceGetName", gpu.physical)
    if capability is None or not name:
        return None
    if gpu.instance is not None:
        name = _instance_name(session, gpu.instance, name)
    uuid = session.text("nvmlDeviceGetUUID", gpu.visible)
    major, minor = capability
    # Twelve digits tell one GPU from another without naming it.
    identity = hashlib.sha256(uuid.encode()).hexdigest()[:12] if uuid else this_machine()
    return Device(f"sm{major}{minor}", name, slug(name), identity)


def silent_gpu() -> str:
    """The PCI address of an NVIDIA GPU of this machine that no driver reports; else "".

    Its driver was not installed, does not fit the kernel's module, or has lost the GPU.
    """
    with open_session() as session:
        if session.integer("nvmlDeviceGetCount"):
            return ""
    for device in sorted(_PCI.glob("*")):
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor == _NVIDIA and kind.startswith(_DISPLAY):
            return device.name
    return ""


def node(uuid: str = "") -> Path:
    """The file that all processes lock to measure on the GPU of this UUID.

    The GPU need not be visible to this process; by default it is the one that CUDA numbers 0.

    The file is its device node: users of the GPU may open it, and only root can replace it.
    Containers exclude each other if they have the host's own node (bound, not made anew). Instances
    of MIG share their GPU's clocks and power, and so its node. Devices without a node (WSL, no
    NVML) share one that belongs to root on every machine.
    """
    with open_session() as session:
        found = session.every([uuid]) if uuid else [session.gpu()]
        gpu = found[0] if found else None
        if gpu is None:
            return ANY_NODE
        own = Path(_NODE.format(session.integer("nvmlDeviceGetMinorNumber", gpu.physical)))
    return own if own.is_char_device() and not own.is_symlink() else ANY_NODE


def portable_device() -> Device:
    """The device of counts that are the same on every machine."""
    return Device(CPU, "portable", "portable", this_machine())


def this_machine(files: Sequence[Path] = _MACHINE_FILES) -> str:
    """Twelve hexadecimal digits that identify this machine and reveal nothing more.

    A hash of the host name could be guessed. The installation's id is random, and its hash here is
    specific to this package, like sd_id128_get_machine_app_specific(3). If it is missing, as in
    many containers, the id of this boot replaces it; "" without either.
    """
    for file in files:
        try:
            identifier = file.read_text(encoding="ascii").strip().replace("-", "")
        except (OSError, UnicodeDecodeError):
            continue
        if re.fullmatch("[0-9a-f]{32}", identifier):
            key = bytes.fromhex(identifier)
            return hmac.new(key, _APPLICATION, hashlib.sha256).hexdigest()[:12]
    return ""


def _instance_name(session: NvmlSession, instance: object, gpu_name: str) -> str:
    name = session.text("nvmlDeviceGetName", instance)
    if " MIG " in name:
        return name
    # Some drivers name the instance like its GPU: make up the profile from its size.
    attributes = session.ask("nvmlDeviceGetAttributes", instance)
    if attributes is None:
        return f"{gpu_name} MIG"
    gigabytes = round(attributes.memorySizeMB / 1024)
    return f"{gpu_name} MIG {attributes.gpuInstanceSliceCount}g.{gigabytes}gb"


@dataclass(frozen=True)
class Gpu:
    """NVML's handles of one CUDA device: opaque, valid while the session is open."""

    physical: object
    """The whole GPU: clocks, power and temperature belong to it."""
    instance: object | None = None
    """The MIG instance, where the GPU is partitioned and CUDA sees a part of it."""

    @property
    def visible(self) -> object:
        """The device that CUDA sees: the MIG instance, or the whole GPU."""
        return self.physical if self.instance is None else self.instance


class NvmlSession:
    """An initialised NVML."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def ask(self, function: str, *arguments: object, older: str = "") -> Any:
        """The answer of NVML's `function`, or None if driver or GPU do not support it.

        `older` is its name in older drivers, which CUDA 14 may remove.
        """
        try:
            return getattr(self._library, function)(*arguments)
        except (AttributeError, self._library.NVMLError):
            # AttributeError: an older pynvml that does not know the function yet.
            return self.ask(older, *arguments) if older else None

    def text(self, function: str, *arguments: object) -> str:
        """The answer of NVML's `function` as text, "" where there is none."""
        answer = self.ask(function, *arguments)
        return str(answer) if answer is not None else ""

    def integer(self, function: str, *arguments: object, older: str = "") -> int | None:
        """The answer of NVML's `function` as a number, or None where there is none."""
        answer = self.ask(function, *arguments, older=older)
        return None if answer is None else int(answer)

    def watts(self, function: str, *arguments: object) -> float | None:
        """The answer of NVML's `function`, converted from milliwatts; None without an answer."""
        milliwatts = self.integer(function, *arguments)
        return None if milliwatts is None else milliwatts / 1000

    def gpu(self) -> Gpu | None:
        """The GPU that CUDA numbers 0 under CUDA_VISIBLE_DEVICES, or None.

        NVML counts in the order of the PCI bus. CUDA does so too if all GPUs are of one kind or
        CUDA_DEVICE_ORDER=PCI_BUS_ID is set. On a host with a mixture CUDA puts the fastest first,
        which NVML does not know.
        """
        entries = visible_entries(os.environ.get("CUDA_VISIBLE_DEVICES"))
        found = self.every(("0",) if entries is None else entries[:1])
        return found[0] if found else None

    def every(self, entries: Sequence[str] | None) -> list[Gpu]:
        """The GPUs of these entries of CUDA_VISIBLE_DEVICES up to the first invalid entry.

        None means all GPUs. A GPU in MIG mode gives all its instances.
        """
        if entries is None:
            return [gpu for handle in self._handles() for gpu in self._whole_or_instances(handle)]
        found: list[Gpu] = []
        for entry in entries:
            named = self._named(entry)
            if not named:
                break
            found += named
        return found

    def _named(self, entry: str) -> list[Gpu]:
        """The GPU or instance of this number or UUID; CUDA takes the beginning of a UUID, too."""
        if entry.isdigit():
            begun = [self.ask("nvmlDeviceGetHandleByIndex", int(entry))]
        elif entry.startswith("MIG-"):
            instance = self.ask("nvmlDeviceGetHandleByUUID", entry)
            physical = instance and self.ask(
                "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", instance
            )
            return [Gpu(physical, instance)] if physical else []
        else:
            uuids = [(self.text("nvmlDeviceGetUUID", one), one) for one in self._handles()]
            begun = [handle for uuid, handle in uuids if uuid.startswith(entry)]
        # Of several that begin so it is none of them.
        return self._whole_or_instances(begun[0]) if len(begun) == 1 and begun[0] else []

    def _handles(self) -> list[object]:
        count = self.ask("nvmlDeviceGetCount") or 0
        every = (self.ask("nvmlDeviceGetHandleByIndex", index) for index in range(count))
        return [handle for handle in every if handle is not None]

    def _whole_or_instances(self, handle: object) -> list[Gpu]:
        modes = self.ask("nvmlDeviceGetMigMode", handle)
        if not modes or modes[0] != _MIG_ENABLED:
            return [Gpu(handle)]
        # A process can use one MIG instance only. Unless told which, CUDA takes the first, and on a
        # GPU in MIG mode without instances it finds no device.
        count = self.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
        every = (self.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, i) for i in range(count))
        return [Gpu(handle, instance) for instance in every if instance is not None]


def visible_entries(value: str | None) -> tuple[str, ...] | None:
    """The devices that a value of CUDA_VISIBLE_DEVICES names, read as CUDA reads it.

    None without a restriction. The list ends before its first invalid entry ("0,-1,2" is "0"). The
    first entry decides between indices, GPU UUIDs and MIG UUIDs. A device named twice makes the
    whole value invalid, which leaves no device.
    """
    if value is None:
        return None
    entries: list[str] = []
    prefix = next((p for p in ("GPU-", "MIG-") if value.strip().startswith(p)), "")
    pattern = re.compile(f"{prefix}.*" if prefix else r"\+?\d+")
    for part in value.split(","):
        if not (named := pattern.match(part.strip())):
            break
        entry = named[0] if prefix else str(int(named[0]))
        if entry in entries:
            return ()
        entries.append(entry)
    return tuple(entries)


@contextmanager
def open_session() -> Iterator[NvmlSession]:
    """Opens NVML for the block; without pynvml, driver or permission it answers nothing."""
    library: Any = SimpleNamespace(NVMLError=Exception)
    with suppress(ImportError):
        found: Any = importlib.import_module("pynvml")
        with suppress(found.NVMLError):
            found.nvmlInit()
            library = found
    opened = NvmlSession(library)
    try:
        yield opened
    finally:
        opened.ask("nvmlShutdown")
