"""How a C++ compiler lays out the structs of CUPTI's releases, as recorded and as compiled now.

    GPUPERF_CUPTI_HEADERS=FOLDER python -m tests.measure.cupti.layouts     writes RECORDED anew

from the headers of all releases (`script/cupti-headers --all FOLDER`).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_gpuperf.catalogue import yaml_table
from pytest_gpuperf.measure.cupti import abi, library
from tests import ROOT
from tests.measure.cupti.headers import LISTED, Release, releases

RECORDED = ROOT / "tests" / "data" / "cupti-layouts.json"
"""Of each release its API version, and what is laid out otherwise than in the release before it:
sizes of structs, offset and size of each field, numbers of enumerators; null where it is gone."""

Layout = Mapping[str, tuple[int, ...]]

HEADERS = tuple(
    f"cupti_{name}.h"
    for name in ("version", "target", "profiler_target", "profiler_host", "range_profiler")
)
STRUCTS = tuple(abi.FUNCTIONS)

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

ENUMERATORS: dict[str, int] = {
    "CUPTI_AutoRange": abi.AUTO_RANGE,
    "CUPTI_UserRange": abi.USER_RANGE,
    "CUPTI_UserReplay": abi.USER_REPLAY,
    "CUPTI_PROFILER_TYPE_RANGE_PROFILER": abi.RANGE_PROFILER,
    "CUPTI_ERROR_INVALID_PARAMETER": abi.INVALID_PARAMETER,
    "CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT": abi.PARAMETER_SIZE_NOT_SUFFICIENT,
    "CUPTI_ERROR_INVALID_METRIC_NAME": abi.INVALID_METRIC_NAME,
    **{f"CUPTI_{name}": of["code"] for name, of in yaml_table(library._REMEDIES).items()},
}
"""Not every release has each of them."""


def recorded() -> dict[str, tuple[int, Layout]]:
    """API version and layout of each release, oldest first."""
    layout: dict[str, tuple[int, ...]] = {}
    known: dict[str, tuple[int, Layout]] = {}
    for name, release in json.loads(RECORDED.read_text(encoding="utf-8")).items():
        layout = layout | release["layout"]
        layout = {key: tuple(numbers) for key, numbers in layout.items() if numbers is not None}
        known[name] = release["version"], layout
    return known


def expected(version: int, there: Layout) -> Layout:
    """What our structs and numbers are for that version; `there` says which enumerators it has."""
    layout: dict[str, tuple[int, ...]] = {}
    for params in STRUCTS:
        layout[f"{params.__name__}_STRUCT_SIZE"] = (params.size(version),)
        for name in params.field_names(version):
            field = getattr(params, name)
            layout[f"{params.__name__}.{name}"] = (field.offset, field.size)
    return layout | {name: (int(n),) for name, n in ENUMERATORS.items() if name in there}


def _program(release: Release) -> str:
    lines = ["#include <cstddef>", "#include <cstdio>"]
    lines += [f"#include <{header}>" for header in HEADERS]
    lines += ["int main() {"]
    for params in STRUCTS:
        struct = params.__name__
        lines.append(f'printf("{struct}_STRUCT_SIZE %zu\\n", (size_t){struct}_STRUCT_SIZE);')
        lines += [
            f'printf("{struct}.{name} %zu %zu\\n", '
            f"offsetof({struct}, {name}), sizeof((({struct}*)0)->{name}));"
            for name in params.field_names(release.version)
        ]
    words = set(re.findall(r"\w+", "".join(map(release.text, (*HEADERS, "cupti_result.h")))))
    known = [name for name in ENUMERATORS if name in words]
    lines += [f'printf("{name} %d\\n", (int){name});' for name in known]
    return "\n".join([*lines, "}", ""])


def compiled(release: Release, folder: Path) -> Layout:
    """What a C++ compiler makes of its headers. Skips the test where there is none."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if not compiler:
        pytest.skip("needs a C++ compiler (c++ or g++)")
    (folder / "cuda.h").write_text(CUDA_STUB)
    (folder / "layout.cpp").write_text(_program(release))
    folders, binary = (f"-I{folder}", f"-I{release.include}"), folder / "layout"
    command: list[str | Path] = [compiler, "-w", *folders, "-o", binary, f"{binary}.cpp"]
    subprocess.run(command, check=True)
    output = subprocess.run([binary], check=True, capture_output=True, text=True).stdout
    rows = (line.split() for line in output.splitlines())
    return {name: tuple(map(int, numbers)) for name, *numbers in rows}


def _on_one_line(numbers: re.Match[str]) -> str:
    return json.dumps([int(number) for number in numbers.groups() if number])


def main() -> None:
    """Writes RECORDED. Raises KeyError for a release that is not in the folder."""
    found = {release.name: release for release in releases()}
    before: Layout = {}
    written = {}
    for name in LISTED:
        with tempfile.TemporaryDirectory() as folder:
            layout = compiled(found[name], Path(folder))
        changed = {k: list(v) for k, v in layout.items() if before.get(k) != v}
        gone = dict.fromkeys(sorted(before.keys() - layout.keys()))
        written[name] = {"version": found[name].version, "layout": {**changed, **gone}}
        before = layout
    text = re.sub(r"\[\s+(\d+)(?:,\s+(\d+))?\s+\]", _on_one_line, json.dumps(written, indent=1))
    RECORDED.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
