"""The detection of the GPU that torch would use, through a scripted NVML."""

from __future__ import annotations

import hashlib
import os
import platform
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.measure.device.nvml import visible_entries
from pytest_gpuperf.model.measurement import Device
from tests.scripted_nvml import Gpu, Install, Instance, Library

H200 = Gpu("GPU-aaaa1111", "NVIDIA H200", (9, 0))
A100 = Gpu("GPU-aabb2222", "NVIDIA A100-SXM4-40GB", (8, 0))
RTX = Gpu("GPU-cccc3333", "NVIDIA GeForce RTX 5090", (12, 0))


def detected() -> Device:
    """The device, which there is."""
    device = nvml.detect_device()
    assert device is not None
    return device


def test_the_gpus_are_those_that_cuda_would_use(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the first entry that is none; CUDA takes the beginning of a UUID, too."""
    install(Library([H200, A100, RTX]))
    a, b, c = (gpu.uuid for gpu in (H200, A100, RTX))
    assert visible_entries(None) is None
    for visible, entries, uuids in (
        (None, None, [a, b, c]),
        ("", (), []),
        ("-1", (), []),
        ("NoDevFiles", (), []),
        (" 2 , 0 ", ("2", "0"), [c, a]),
        ("2,7,0", ("2", "7", "0"), [c]),
        ("7,0", ("7", "0"), []),
        ("0,-1,1", ("0",), [a]),
        ("0,GPU-cccc", ("0",), [a]),
        ("1gpu,2", ("1", "2"), [b, c]),
        ("0,0", (), []),
        ("GPU-cccc,GPU-aab", ("GPU-cccc", "GPU-aab"), [c, b]),
        ("GPU-cccc,GPU-a", ("GPU-cccc", "GPU-a"), [c]),  # the beginning of two
        ("GPU-9999", ("GPU-9999",), []),
        ("GPU-cccc,1", ("GPU-cccc",), [c]),
        ("GPU-cccc,GPU-cccc", (), []),
        ("MIG-1234", ("MIG-1234",), []),
    ):
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert visible_entries(visible) == entries, visible
        seen = nvml.visible_gpus()
        assert [*seen] == uuids, visible
        assert nvml.detect_device() == next(iter(seen.values()), None), visible
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aab,GPU-aabb")  # one of them twice
    assert nvml.visible_gpus() == {}
    install(None)
    assert nvml.visible_gpus() == {}


def test_of_a_partitioned_gpu_all_instances_are_visible(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To processes of their own: one sees only the first."""
    instances: list[Instance | None] = [Instance("MIG-1"), None, Instance("MIG-2")]
    parted = Gpu("GPU-mig", capability=(8, 0), mig=True, instances=instances)
    install(Library([parted, H200, Gpu("GPU-empty", mig=True)]))
    for visible, uuids in (
        (None, ["MIG-1", "MIG-2", H200.uuid]),
        ("1,0", [H200.uuid, "MIG-1", "MIG-2"]),
        ("2,0", []),  # one without instances is no device
        ("GPU-mig", ["MIG-1", "MIG-2"]),
        ("MIG-2,MIG-1", ["MIG-2", "MIG-1"]),
        ("MIG-2,MIG-3,MIG-1", ["MIG-2"]),
    ):
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        seen = nvml.visible_gpus()
        assert [*seen] == uuids, visible
        assert {seen[uuid].arch for uuid in {*seen} - {H200.uuid}} <= {"sm80"}
        assert nvml.detect_device() == next(iter(seen.values()), None), visible


def test_a_mig_instance_is_a_device_of_its_own(install: Install) -> None:
    """Unless told which, CUDA takes the first; a driver may not name its profile."""
    name = "NVIDIA A100-SXM4-40GB"
    cases: tuple[tuple[list[Instance | None], str], ...] = (
        ([Instance("MIG-1111")], "nvidia-a100-sxm4-40gb-mig-1g-5gb"),
        ([None, Instance("2", "A MIG 2g.10gb"), Instance("1")], "a-mig-2g-10gb"),
        ([Instance("3", name, 3, 19968)], "nvidia-a100-sxm4-40gb-mig-3g-20gb"),
    )
    for instances, slug in cases:
        install(Library([Gpu("GPU-aabb2222", name, (8, 0), mig=True, instances=instances)]))
        assert (detected().arch, detected().slug) == ("sm80", slug)
    install(Library([Gpu("GPU-aabb2222", name, (8, 0), mig=True, instances=[None])]))
    assert nvml.detect_device() is None


# What a device looks like


def test_a_device_has_its_architecture_its_name_and_a_slug(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = Library([Gpu(capability=(7, 0), mig=None)])
    monkeypatch.setattr(older, "nvmlDeviceGetName", lambda _: "Tesla V100-SXM2-16GB")
    portable = nvml.portable_device()
    assert (portable.arch, portable.name, portable.slug) == ("cpu", "portable", "portable")
    assert portable.identity == nvml.portable_device().identity != ""
    for library, arch, name, slug in (
        (Library([H200]), "sm90", "NVIDIA H200", "nvidia-h200"),
        (Library([RTX]), "sm120", "NVIDIA GeForce RTX 5090", "nvidia-geforce-rtx-5090"),
        (older, "sm70", "Tesla V100-SXM2-16GB", "tesla-v100-sxm2-16gb"),
    ):
        install(library)
        device = detected()
        assert (device.arch, device.name, device.slug) == (arch, name, slug)
        assert library.open_sessions == 0


def test_nothing_is_detected_without_a_gpu_its_driver_or_their_answer(install: Install) -> None:
    for library in (
        Library([]),
        Library([H200], has_driver=False),
        Library([Gpu(capability=None)]),
        Library([Gpu(name=None)]),
    ):
        install(library)
        assert nvml.detect_device() is None
        assert library.open_sessions == 0
    install(None)
    assert nvml.detect_device() is None


def test_a_machine_s_identity_does_not_tell_its_name_or_id(tmp_path: Path) -> None:
    """Other programs know the id, and a name could be guessed."""
    known, other, none = tmp_path / "machine-id", tmp_path / "boot_id", tmp_path / "none"
    known.write_text("0123456789abcdef0123456789abcdef\n")
    other.write_text("01234567-89ab-cdef-0123-456789abcde0\n")
    identity = nvml.this_machine([known, other])
    assert re.fullmatch("[0-9a-f]{12}", identity)
    assert identity == nvml.this_machine([none, known])
    assert identity != nvml.this_machine([other])
    for told in ("0123456789abcdef0123456789abcdef", platform.node()):
        digits = hashlib.sha256(told.encode()).hexdigest()[:12]
        assert digits not in (identity, nvml.this_machine(), nvml.portable_device().identity)
    for content in ("", "uninitialized\n", "\xff", "0" * 31):
        none.write_text(content, encoding="latin-1")
        assert nvml.this_machine([none]) == ""
        assert nvml.this_machine([none, known]) == identity


# Cost


def test_importing_and_detecting_do_not_import_torch() -> None:
    code = (
        "import sys; from pytest_gpuperf.measure.device import fingerprint, guard, nvml; "
        "from pytest_gpuperf.measure.cpu import cpu_collector; nvml.detect_device(); guard.read(); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# What is held while one measures


def test_a_gpu_is_held_by_its_device_node_and_an_instance_by_that_of_its_gpu(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has none, or what is no device, shares one that is root's: nobody can plant another."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    ends = pty.openpty()
    node = Path(os.ttyname(ends[1]))
    number = int(node.name)
    gpus = [
        Gpu("GPU-a", minor=number),
        Gpu("GPU-b", minor=number, mig=True, instances=[Instance("MIG-1"), Instance("MIG-2")]),
        Gpu("GPU-c"),
    ]
    install(Library(gpus))
    monkeypatch.setattr(nvml, "_NODE", f"{node.parent}/{{}}")
    any_node = Path("/dev/null")
    uuids = ("", "GPU-b", "MIG-1", "GPU-c", "GPU-d")
    assert [nvml.node(uuid) for uuid in uuids] == [node, node, node, any_node, any_node]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-2")
    assert nvml.node() == node
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(node)
    for planted in ("file", "link", "nothing"):
        monkeypatch.setattr(nvml, "_NODE", str(tmp_path / planted))
        assert nvml.node() == any_node
    install(None)
    assert nvml.node() == any_node
    assert (any_node.is_char_device(), any_node.owner()) == (True, "root")
    for end in ends:
        os.close(end)
