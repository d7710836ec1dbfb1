"""The detection of the GPU that torch would use, through a scripted NVML."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.measure.device.nvml import visible_entries
from tests.scripted_nvml import Gpu, Instance, Library

H200 = Gpu("GPU-aaaa1111", "NVIDIA H200", (9, 0))
A100 = Gpu("GPU-aabb2222", "NVIDIA A100-SXM4-40GB", (8, 0))
RTX = Gpu("GPU-cccc3333", "NVIDIA GeForce RTX 5090", (12, 0))

Install = Callable[[Library], Library]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a scripted NVML in place of the real one; CUDA_VISIBLE_DEVICES is unset."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def put(library: Library) -> Library:
        monkeypatch.setitem(sys.modules, "pynvml", library)
        return library

    return put


# Which devices CUDA_VISIBLE_DEVICES names


def test_visible_entries_are_read_as_cuda_reads_them() -> None:
    assert visible_entries(None) is None
    for value, entries in (
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        (" 2 , 0 ", ("2", "0")),
        ("0,-1,1", ("0",)),
        ("0,GPU-aaaa", ("0",)),
        ("1gpu,2", ("1", "2")),
        ("0,0", ()),
        ("GPU-aaaa,GPU-bbbb", ("GPU-aaaa", "GPU-bbbb")),
        ("GPU-aaaa,1", ("GPU-aaaa",)),
        ("GPU-aaaa,GPU-aaaa", ()),
        ("MIG-1234", ("MIG-1234",)),
    ):
        assert visible_entries(value) == entries, value


def test_detection_names_the_gpu_that_cuda_would_use(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(Library([H200, A100, RTX]))
    for visible, index, gpu in (
        (None, 0, H200),
        (None, 1, A100),
        (None, 3, None),
        ("1", 0, A100),
        ("2,0", 1, H200),
        ("1", 1, None),
        ("7", 0, None),
        ("", 0, None),
        ("GPU-aabb2222", 0, A100),
        ("GPU-aab", 0, A100),  # enough to tell it from the others
        ("GPU-aa", 0, None),
        ("GPU-9999", 0, None),
    ):
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        device = nvml.detect_device(index)
        assert (device.name if device else None) == (gpu.name if gpu else None), (visible, index)


# What a device looks like


def test_a_gpu(install: Install) -> None:
    library = install(Library([H200]))
    device = nvml.detect_device()
    assert device is not None
    assert (device.arch, device.name, device.slug) == ("sm90", "NVIDIA H200", "nvidia-h200")
    assert library.open_sessions == 0
    install(Library([RTX]))
    newer = nvml.detect_device()
    assert newer is not None
    assert newer.arch == "sm120"


def test_identity_tells_gpus_apart_without_naming_them(install: Install) -> None:
    install(Library([H200, A100]))
    first, again, other = nvml.detect_device(0), nvml.detect_device(0), nvml.detect_device(1)
    assert first is not None
    assert again is not None
    assert other is not None
    assert first.identity == again.identity != other.identity
    assert len(first.identity) == 12
    assert "aaaa1111" not in first.identity


def test_an_older_pynvml_answers_in_bytes(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = install(Library([Gpu(capability=(7, 0), mig=None)]))
    monkeypatch.setattr(library, "nvmlDeviceGetName", lambda _: b"Tesla V100-SXM2-16GB")
    device = nvml.detect_device()
    assert device is not None
    assert (device.arch, device.slug) == ("sm70", "tesla-v100-sxm2-16gb")


def test_nothing_is_detected_without(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in (
        Library([]),
        Library([H200], has_driver=False),
        Library([Gpu(capability=None)]),
        Library([Gpu(name=None)]),
    ):
        install(library)
        assert nvml.detect_device() is None
        assert library.open_sessions == 0
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.detect_device() is None


def test_the_portable_device() -> None:
    device = nvml.portable_device()
    assert (device.arch, device.name, device.slug) == ("cpu", "portable", "portable")
    assert device.identity == nvml.portable_device().identity != ""


# MIG


def partitioned(*instances: Instance | None) -> Gpu:
    return Gpu("GPU-aabb2222", "NVIDIA A100-SXM4-40GB", (8, 0), mig=True, instances=[*instances])


def test_a_mig_instance_is_a_device_of_its_own(install: Install) -> None:
    install(Library([partitioned(Instance("MIG-1111"))]))
    device = nvml.detect_device()
    assert device is not None
    assert (device.arch, device.slug) == ("sm80", "nvidia-a100-sxm4-40gb-mig-1g-5gb")


def test_unless_told_which_cuda_takes_the_first_mig_instance(install: Install) -> None:
    install(Library([partitioned(None, Instance("MIG-1111", "A MIG 2g.10gb"), Instance("x"))]))
    device = nvml.detect_device()
    assert device is not None
    assert device.name == "A MIG 2g.10gb"


@pytest.mark.parametrize("entry", ["MIG-2222", "MIG-GPU-aabb2222/3/1"])
def test_a_mig_instance_is_chosen_by_its_name(
    install: Install, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    second = Instance("MIG-2222", "A MIG 3g.20gb", ids=(3, 1))
    install(Library([H200, partitioned(Instance("MIG-1111"), second)]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", entry)
    device = nvml.detect_device()
    assert device is not None
    assert (device.arch, device.name) == ("sm80", "A MIG 3g.20gb")


@pytest.mark.parametrize("entry", ["MIG-9999", "MIG-GPU-aabb2222/9/9", "MIG-GPU-9999/0/0"])
def test_a_mig_instance_that_is_not_there_is_no_device(
    install: Install, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    install(Library([partitioned(Instance("MIG-1111"))]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", entry)
    assert nvml.detect_device() is None


def test_in_mig_mode_without_instances_there_is_no_device(install: Install) -> None:
    install(Library([partitioned(None)]))
    assert nvml.detect_device() is None


def test_the_profile_is_made_up_where_the_driver_does_not_name_it(install: Install) -> None:
    instance = Instance("MIG-1111", "NVIDIA A100-SXM4-40GB", slices=3, memory_mib=19968)
    install(Library([partitioned(instance)]))
    device = nvml.detect_device()
    assert device is not None
    assert device.slug == "nvidia-a100-sxm4-40gb-mig-3g-20gb"


# Cost


def test_importing_and_detecting_do_not_import_torch() -> None:
    code = (
        "import sys; from pytest_gpuperf.measure.device import fingerprint, guard, nvml; "
        "from pytest_gpuperf.measure.cpu import cpu_collector; nvml.detect_device(); guard.read(); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
