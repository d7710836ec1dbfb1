"""The ctypes structs against the headers of CUPTI releases, as a C++ compiler lays them out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.measure.cupti import abi, codes
from tests.measure.cupti.headers import (
    ABSENT,
    ANSWERING,
    LISTED,
    MISSING,
    WITHOUT_RANGES,
    Release,
    releases,
)

RELEASES = releases()
HEADERS = [
    *("version", "target", "profiler_target", "profiler_host", "range_profiler", "pmsampling")
]
STRUCTS = (*abi.FUNCTIONS, *abi.PM_FUNCTIONS)

# The wheels do not carry cuda.h. The headers need names from it; of these types only the size
# matters, and that is an int's for CUdevice and a pointer's for the handles.
CUDA_STUB = """
#pragma once
typedef int CUdevice;
typedef struct CUctx_st* CUcontext;
typedef struct CUstream_st* CUstream;
typedef struct CUgraph_st* CUgraph;
typedef struct CUmod_st* CUmodule;
typedef struct CUfunc_st* CUfunction;
"""

PREFIXES: dict[type[IntEnum], str] = {
    codes.ProfilerType: "CUPTI_PROFILER_TYPE_",
    codes.ProfilerApi: "CUPTI_PROFILER_",
    codes.TriggerMode: "CUPTI_PM_SAMPLING_TRIGGER_MODE_",
    codes.DecodeStopReason: "CUPTI_PM_SAMPLING_DECODE_STOP_REASON_",
    codes.AppendMode: "CUPTI_PM_SAMPLING_HARDWARE_BUFFER_APPEND_MODE_",
    codes.SupportLevel: "CUPTI_PROFILER_CONFIGURATION_",
    codes.ResultCode: "CUPTI_",
}
ENUMERATORS: dict[str, IntEnum] = {
    "CUPTI_AutoRange": codes.ProfilerRange.AUTO,
    "CUPTI_UserRange": codes.ProfilerRange.USER,
    "CUPTI_ApplicationReplay": codes.ProfilerReplayMode.APPLICATION,
    "CUPTI_KernelReplay": codes.ProfilerReplayMode.KERNEL,
    "CUPTI_UserReplay": codes.ProfilerReplayMode.USER,
    **{prefix + member.name: member for enum, prefix in PREFIXES.items() for member in enum},
}
NEWER_NAMES = {
    "CUPTI_PROFILER_CONFIGURATION_LIMITED_SUPPORT",
    "CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED",
    "CUPTI_ERROR_SLI_DEVICE_NOT_SUPPORTED",
    "CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED",
    "CUPTI_ERROR_INVALID_CHIP_NAME",
    "CUPTI_PM_SAMPLING_HARDWARE_BUFFER_APPEND_MODE_KEEP_OLDEST",
    "CUPTI_PM_SAMPLING_HARDWARE_BUFFER_APPEND_MODE_KEEP_LATEST",
}
"""Enumerators that not every release has."""


ANSWERS: list[Any] = [
    release for release in RELEASES if release.library and release.version <= ANSWERING
] or [ABSENT]
SIZES = Path(__file__).with_name("sizes.py")
SILENT = {
    # These two take any size; the others want a device, or ranges of one, beside their size.
    "cuptiProfilerInitialize",
    "cuptiProfilerDeInitialize",
    "cuptiRangeProfilerGetCounterDataSize",
    "cuptiPmSamplingGetCounterAvailability",
    "cuptiPmSamplingEnable",
    "cuptiPmSamplingSetConfig",
    "cuptiProfilerHostInitialize",
    # Of CUDA 12.
    "cuptiDeviceGetChipName",
    "cuptiRangeProfilerEnable",
}
"""Functions that do not tell their size without a driver."""


@pytest.mark.skipif(not RELEASES, reason=MISSING)
def test_there_is_every_release_that_is_listed_and_the_newest_is_the_newest_known() -> None:
    there = {release.name: release.version for release in RELEASES}
    used = [name for name in LISTED if name not in WITHOUT_RANGES]
    assert set(there) >= set(used)
    # In the order of their release, which is that of their API versions.
    versions = [there[name] for name in used]
    assert versions == sorted(versions)
    assert (versions[0], versions[-1]) == (codes.OLDEST, codes.NEWEST)


@pytest.mark.parametrize("release", RELEASES or [ABSENT], ids=str)
def test_layouts_and_numbers_are_those_of_the_headers(release: Release, tmp_path: Path) -> None:
    compiled = _compile_and_run(_program(release), release, tmp_path)
    assert compiled == _expected(release)


@pytest.mark.parametrize("release", ANSWERS, ids=str)
def test_a_library_takes_the_sizes_of_its_own_release_and_of_all_before_it_and_no_others(
    release: Release,
) -> None:
    versions = sorted({other.version for other in RELEASES if other.version <= release.version})
    known = {
        name: sorted({params.size(version) for version in versions})
        for params, name in {**abi.FUNCTIONS, **abi.PM_FUNCTIONS}.items()
        if name not in SILENT
    }
    asked = {name: [8, *sizes, sizes[-1] + 4, sizes[-1] + 64] for name, sizes in known.items()}
    done = subprocess.run(
        [sys.executable, SIZES, str(release.library)],
        input=json.dumps(asked),
        check=True,
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout) == known


def _expected(release: Release) -> dict[str, tuple[int, ...]]:
    expected: dict[str, tuple[int, ...]] = {}
    for params in STRUCTS:
        expected[f"{params.C_NAME}_STRUCT_SIZE"] = (params.size(release.version),)
        for name in params.field_names(release.version):
            field = getattr(params, name)
            expected[f"{params.C_NAME}.{name}"] = (field.offset, field.size)
    known = {name: (e.value,) for name, e in ENUMERATORS.items() if _has(release, name)}
    return expected | known


def _program(release: Release) -> str:
    lines = ["#include <cstddef>", "#include <cstdio>"]
    lines += [f"#include <cupti_{header}.h>" for header in HEADERS]
    lines += ["int main() {"]
    for params in STRUCTS:
        struct = params.C_NAME
        lines.append(f'printf("{struct}_STRUCT_SIZE %zu\\n", (size_t){struct}_STRUCT_SIZE);')
        lines += [
            f'printf("{struct}.{name} %zu %zu\\n", '
            f"offsetof({struct}, {name}), sizeof((({struct}*)0)->{name}));"
            for name in params.field_names(release.version)
        ]
    known = [name for name in ENUMERATORS if _has(release, name)]
    lines += [f'printf("{name} %d\\n", (int){name});' for name in known]
    return "\n".join([*lines, "}", ""])


def _has(release: Release, enumerator: str) -> bool:
    return enumerator not in NEWER_NAMES or any(
        re.search(rf"\b{enumerator}\b", release.text(header))
        for header in ("cupti_profiler_target.h", "cupti_result.h", "cupti_pmsampling.h")
    )


def _compile_and_run(program: str, release: Release, folder: Path) -> dict[str, tuple[int, ...]]:
    compiler = shutil.which("c++") or shutil.which("g++")
    if not compiler:
        pytest.skip("needs a C++ compiler (c++ or g++)")
    (folder / "cuda.h").write_text(CUDA_STUB)
    (folder / "layout.cpp").write_text(program)
    binary = folder / "layout"
    command = [compiler, "-w", f"-I{folder}", f"-I{release.include}", "-o", str(binary)]
    done = subprocess.run(
        [*command, str(folder / "layout.cpp")], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    output = subprocess.run([str(binary)], check=True, capture_output=True, text=True).stdout
    rows = (line.split() for line in output.splitlines())
    return {name: tuple(map(int, numbers)) for name, *numbers in rows}


def test_a_struct_is_as_long_as_the_version_knows_it() -> None:
    sizes = [abi.RangeEnable.size(version) for version in (24, 28, 130001, 130301, 130400, 140000)]
    assert sizes == [32, 32, 32, 32, 36, 36]
    assert abi.HostInitialize.of(28).structSize == 48
    assert abi.HostInitialize.of(130200).structSize == 56
    assert abi.SetConfig.size(24) + 4 == abi.SetConfig.size(26)


def test_fields_that_are_not_given_are_zero() -> None:
    params = abi.RangePushRange.of(28, pRangeName=b"step")
    assert (params.pPriv, params.structSize) == (None, 32)


def test_versions_and_results_have_names() -> None:
    versions = {24: "12.6", 28: "12.9.1", 130000: "13.0", 130201: "13.2.1", 12: "11 or older"}
    assert {version: codes.release(version) for version in versions} == versions
    assert codes.result_name(35) == "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
    assert codes.result_name(4711) == "CUptiResult 4711"
