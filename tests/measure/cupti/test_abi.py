"""The ctypes structs against those of CUPTI's releases, and their libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf.measure.cupti import abi
from tests.measure.cupti.headers import ABSENT, LISTED, Release, releases
from tests.measure.cupti.layouts import ENUMERATORS, compiled, expected, recorded

RELEASES = releases()
LAYOUTS = recorded()


def test_every_release_that_is_listed_is_recorded_and_the_newest_is_the_newest_known() -> None:
    assert list(LAYOUTS) == LISTED
    # In the order of their release, which is that of their API versions.
    versions = [version for version, _ in LAYOUTS.values()]
    assert versions == sorted(versions)
    assert (versions[0], versions[-1]) == (abi.OLDEST, abi.NEWEST)
    _, newest = [*LAYOUTS.values()][-1]
    assert {*ENUMERATORS} <= {*newest}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_and_numbers_are_those_of_the_release(name: str) -> None:
    version, layout = LAYOUTS[name]
    assert layout == expected(version, layout)


@pytest.mark.parametrize("release", RELEASES or [ABSENT], ids=str)
def test_what_is_recorded_is_what_a_compiler_makes_of_the_headers(
    release: Release, tmp_path: Path
) -> None:
    assert (release.version, compiled(release, tmp_path)) == LAYOUTS[release.name]


def test_a_struct_is_as_long_as_the_version_knows_it() -> None:
    assert [abi.RangeEnable.of(version).structSize for version in (28, 140000)] == [32, 36]
    params = abi.RangePushRange.of(28, pRangeName=b"step")
    assert (params.pPriv, params.structSize) == (None, 32)  # what is not given is zero


def test_versions_have_names() -> None:
    versions = {24: "12.6", 28: "12.9.1", 130000: "13.0", 130201: "13.2.1", 18: "12 or older"}
    assert {version: abi.release(version) for version in versions} == versions
