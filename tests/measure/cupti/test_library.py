"""Finding and loading libcupti, and what is wrong where it cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.cupti import codes, library
from pytest_gpuperf.measure.cupti.codes import ResultCode
from tests.measure.cupti.fake import Fake


def test_a_library_that_cannot_be_used_is_refused_with_a_remedy(
    fake: Fake, fake_library: Path, tmp_path: Path
) -> None:
    fake.set("version", 23)
    with pytest.raises(CountersUnavailable, match=r"CUPTI of CUDA 12\.5") as caught:
        library.Cupti(fake_library)
    assert "CUDA 12.6 or newer" in caught.value.remedy
    fake.fail("cuptiGetVersion", ResultCode.ERROR_UNKNOWN)
    with pytest.raises(CountersUnavailable, match="cuptiGetVersion failed") as caught:
        library.Cupti(fake_library)
    assert "driver" in caught.value.remedy
    with pytest.raises(CountersUnavailable, match="cannot be loaded"):
        library.Cupti(_file(tmp_path, "libcupti.so.13"))


def _file(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()
    return folder / name


def test_where_cupti_is_looked_for(
    bare: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Spec:
        submodule_search_locations = (str(tmp_path / "nvidia"),)

    monkeypatch.setattr(library, "find_spec", lambda _: Spec)
    monkeypatch.setattr(library, "_SONAMES", ("libcupti.so.13",))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    expected = [
        _file(tmp_path / "nvidia/cu13/lib", "libcupti.so.13"),
        _file(tmp_path / "nvidia/cuda_cupti/lib", "libcupti.so.12"),
        _file(tmp_path / "home/extras/CUPTI/lib64", "libcupti.so.13"),
        _file(tmp_path / "home/extras/CUPTI/lib64", "libcupti.so.12"),
        _file(bare / "targets/x86_64-linux/lib", "libcupti.so.12"),
        Path("libcupti.so.13"),
    ]
    assert list(library.candidates()) == expected


def test_what_the_process_has_loaded_is_the_only_candidate(bare: Path, tmp_path: Path) -> None:
    _file(bare / "extras/CUPTI/lib64", "libcupti.so.13")
    mapping = "7f00-7f01 r-xp 00000000 08:01 42    /opt/with space/libcupti.so.12\n"
    (tmp_path / "maps").write_text(mapping * 2 + "7f02-7f03 r-xp 0 08:01 43  /lib/libc.so.6\n")
    assert list(library.candidates()) == [Path("/opt/with space/libcupti.so.12")]


def test_without_cupti_the_remedy_is_how_to_get_it_and_a_broken_one_is_named(bare: Path) -> None:
    with pytest.raises(CountersUnavailable, match=r"not found.*nvidia-cuda-cupti"):
        library.load()
    broken = _file(bare / "extras/CUPTI/lib64", "libcupti.so.13")
    library.load.cache_clear()
    with pytest.raises(CountersUnavailable, match=str(broken)):
        library.load()


def test_what_forbids_counters_has_a_remedy() -> None:
    for result, remedy in (
        (ResultCode.ERROR_INSUFFICIENT_PRIVILEGES, "NVreg_RestrictProfilingToAdminUsers=0"),
        (ResultCode.ERROR_HARDWARE_BUSY, "dcgmi profile --pause"),
        (ResultCode.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, "torch.profiler"),
        (ResultCode.ERROR_MIG_DEVICE_NOT_SUPPORTED, "nvidia-smi -mig 0"),
        (ResultCode.ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES, "administrator of the host"),
        (ResultCode.ERROR_NOT_INITIALIZED, "libcupti"),
        (ResultCode.ERROR_INVALID_CHIP_NAME, "newer CUPTI"),
    ):
        with pytest.raises(CountersUnavailable, match=f"someCall: CUPTI_{result.name}") as caught:
            library.check(result, "someCall")
        assert remedy in caught.value.remedy


def test_other_failures_keep_call_and_code() -> None:
    for result in (ResultCode.ERROR_INVALID_METRIC_NAME, ResultCode.ERROR_UNKNOWN, 4711):
        with pytest.raises(library.CuptiError) as caught:
            library.check(result, "someCall")
        assert (caught.value.function, caught.value.result) == ("someCall", result)
        assert codes.result_name(result) in str(caught.value)


def test_an_older_driver_is_enough_for_cupti(fake: Fake) -> None:
    """The driver beside the scripted CUPTI has nothing of what the canary takes."""
    with fake.cuda.primary_context():
        with pytest.raises(MeasurementError, match=r"no cuModuleLoadData: install a newer"):
            with fake.cuda.module(b""):
                pass
