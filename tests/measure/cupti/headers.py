"""CUPTI's headers and libraries, where `script/cupti-headers` has put them."""

from __future__ import annotations

import os
import re
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import ROOT

VARIABLE = "GPUPERF_CUPTI_HEADERS"
_MISSING = f"needs CUPTI's headers: run script/cupti-headers FOLDER and set {VARIABLE}=FOLDER"
ABSENT = pytest.param(None, marks=pytest.mark.skip(reason=_MISSING), id="absent")
"""Stands in for the releases where there are none, so that the skip has its reason."""


@dataclass(frozen=True)
class Release:
    """One CUPTI release on disk."""

    name: str
    include: Path
    library: Path | None

    def __str__(self) -> str:
        return self.name

    def text(self, header: str) -> str:
        return (self.include / header).read_text(encoding="utf-8", errors="replace")

    @property
    def version(self) -> int:
        """CUPTI_API_VERSION."""
        defined = re.search(r"#define CUPTI_API_VERSION (\d+)", self.text("cupti_version.h"))
        assert defined
        return int(defined[1])


WITHOUT_RANGES = ("12.6.37", "12.6.68")
"""CUDA 12.6 has the range profiler from its second update on."""
LISTED = [
    version
    for _, version, _ in runpy.run_path(str(ROOT / "script" / "cupti-headers"))["RELEASES"]
    if version not in WITHOUT_RANGES
]
"""All releases on PyPI with the range profiler, oldest first."""


def releases() -> list[Release]:
    """All releases in the folder that the environment names; none where it names none."""
    folder = os.environ.get(VARIABLE)
    # Absolute: the loader looks for a relative path elsewhere.
    return list(_releases(Path(folder).resolve())) if folder else []


def _releases(folder: Path) -> Iterator[Release]:
    for path in sorted(folder.iterdir()):
        for header in path.rglob("cupti_range_profiler.h"):
            yield Release(path.name, header.parent, next(path.rglob("libcupti.so.*"), None))
