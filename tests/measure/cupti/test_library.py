"""Finding and loading libcupti, and what is wrong where it cannot be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_gpuperf.catalogue import yaml_table
from pytest_gpuperf.errors import CountersUnavailable, MeasurementError
from pytest_gpuperf.measure.cupti import abi, library
from pytest_gpuperf.measure.device import driver
from tests.measure.cupti.fake import Fake
from tests.measure.stand_ins import compiled


def built(folder: Path, source: str) -> Path:
    """A library of this C."""
    (folder / "source.c").write_text(source, encoding="utf-8")
    return compiled(folder / "source.c", folder / "libcupti.so.13")


def test_a_library_that_cannot_be_used_is_refused_with_a_remedy(
    fake: Fake, fake_library: Path, tmp_path: Path
) -> None:
    fake.set("version", 23)
    with pytest.raises(CountersUnavailable, match=r"CUPTI of CUDA 12\.5.* CUDA 12.6.2 or newer"):
        library.Cupti(fake_library)
    fake.fail("cuptiGetVersion", 999)
    with pytest.raises(CountersUnavailable, match=r"cuptiGetVersion failed.*driver"):
        library.Cupti(fake_library)
    with pytest.raises(CountersUnavailable, match="cannot be loaded"):
        library.Cupti(_file(tmp_path, "libcupti.so.13"))


def test_a_library_newer_than_all_that_are_known_is_used_where_its_structs_still_fit(
    fake: Fake, fake_library: Path
) -> None:
    fake.set("version", 140000)
    newer = library.Cupti(fake_library)
    assert (newer.version, newer.release) == (140000, "14.0")
    # The structs of the scripted one are those of 13.0: it takes this one, which has not grown.
    assert newer.call(abi.DeviceGetChipName, deviceIndex=0).pChipName == b"GH100"
    with pytest.raises(CountersUnavailable, match="CUPTI_ERROR_INVALID_PARAMETER") as caught:
        newer.call(abi.HostInitialize)
    assert "CUPTI 14.0" in caught.value.reason
    assert "knows CUPTI up to 13.5" in caught.value.reason
    assert "Update pytest-gpuperf, or use CUPTI of CUDA 13.5" in caught.value.remedy
    fake.set("version", abi.NEWEST)
    with pytest.raises(library.CuptiError):  # ours
        library.Cupti(fake_library).call(abi.HostInitialize)


def test_one_without_our_functions_is_refused_by_what_it_lacks(tmp_path: Path) -> None:
    other = built(tmp_path, "int cuptiGetVersion(unsigned *v) { *v = 140000; return 0; }")
    with pytest.raises(CountersUnavailable, match="cuptiProfilerInitialize") as caught:
        library.Cupti(other)
    assert "Update pytest-gpuperf" in caught.value.remedy


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
        _file(tmp_path / "nvidia/cu14/lib", "libcupti.so.14"),
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


@pytest.mark.usefixtures("bare")
def test_without_a_gpu_none_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUPTI of CUDA 13.2 would end the process."""
    monkeypatch.setattr(driver, "load", lambda: SimpleNamespace(device_count=lambda: 0))
    with pytest.raises(CountersUnavailable, match=r"no GPU is visible.*nvidia-smi"):
        library.load()


def test_without_cupti_the_remedy_is_how_to_get_it_and_a_broken_one_is_named(bare: Path) -> None:
    with pytest.raises(CountersUnavailable, match=r"not found.*nvidia-cuda-cupti"):
        library.load()
    broken = _file(bare / "extras/CUPTI/lib64", "libcupti.so.13")
    library.load.cache_clear()
    with pytest.raises(CountersUnavailable, match=str(broken)):
        library.load()


def test_what_forbids_counters_has_a_remedy_and_other_failures_have_call_and_code(
    fake: Fake,
) -> None:
    for name, known in yaml_table(library._REMEDIES).items():
        with pytest.raises(CountersUnavailable, match=f"someCall: CUPTI_{name}") as caught:
            fake.cupti.check(known["code"], "someCall")
        assert caught.value.reason.startswith(known["reason"])
        assert caught.value.remedy == known["remedy"].replace("INSTALL", library.INSTALL)
    for code, name in ((999, "CUPTI_ERROR_UNKNOWN"), (4711, "CUptiResult 4711")):
        with pytest.raises(library.CuptiError, match=name) as failed:
            fake.cupti.check(code, "someCall")
        assert (failed.value.function, failed.value.result) == ("someCall", code)


def test_an_older_driver_is_enough_for_cupti(fake: Fake) -> None:
    """The driver beside the scripted CUPTI has nothing of what the canary takes."""
    with fake.cuda.primary_context():
        with pytest.raises(MeasurementError, match=r"lacks cuModuleLoadData. Update it"):
            with fake.cuda.module(b""):
                pass
