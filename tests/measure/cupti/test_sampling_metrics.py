"""What a timeline samples fits into one pass on every chip, as CUPTI itself says, without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import catalogue, timeline_metrics
from tests.measure.cupti.headers import ABSENT, Release, releases

LIBRARIES = [release for release in releases() if release.library]
METRICS = timeline_metrics()
SAMPLED = [name for name in architectures.ARCHITECTURES if name not in (architectures.CPU, "sm70")]
CHIPS = {name: architectures.ARCHITECTURES[name].chips[0] for name in SAMPLED}

PASSES = """
import ctypes, json, sys
from pytest_gpuperf.measure.cupti import abi, library
from pytest_gpuperf.measure.cupti.codes import ProfilerType
from pytest_gpuperf.measure.cupti.configuration import strings
from pytest_gpuperf.errors import GpuperfError

def passes(cupti, chip, metrics):
    host = cupti.call(
        abi.HostInitialize, profilerType=ProfilerType.PM_SAMPLING, pChipName=chip.encode()
    ).pHostObject
    cupti.call(
        abi.HostConfigAddMetrics,
        pHostObject=host,
        ppMetricNames=strings(metrics),
        numMetrics=len(metrics),
    )
    size = cupti.call(abi.HostGetConfigImageSize, pHostObject=host).configImageSize
    image = ctypes.create_string_buffer(size)
    where = {"configImageSize": size, "pConfigImage": ctypes.addressof(image)}
    cupti.call(abi.HostGetConfigImage, pHostObject=host, **where)
    return cupti.call(abi.HostGetNumOfPasses, **where).numOfPasses

def answer(cupti, chip, metrics):
    try:
        return passes(cupti, chip, metrics)
    except GpuperfError as error:
        return str(error)

try:
    cupti = library.Cupti(sys.argv[1])
except GpuperfError as error:
    sys.exit(f"unusable: {error}")
print(json.dumps([answer(cupti, *question) for question in json.load(sys.stdin)]))
"""
"""In a process of its own, as there is room for one CUPTI in each."""


def names(name: str) -> list[str]:
    """NVIDIA's names of what is sampled on an architecture."""
    found = [metric.hardware_name(name) for metric in METRICS]
    return [hardware for hardware in found if hardware]


@pytest.mark.parametrize("release", LIBRARIES or [ABSENT], ids=str)
def test_all_of_them_together_take_one_pass(release: Release) -> None:
    asked = [(chip, names(name)) for name, chip in CHIPS.items()]
    done = subprocess.run(
        [sys.executable, "-c", PASSES, str(release.library)],
        input=json.dumps(asked),
        check=False,
        capture_output=True,
        text=True,
    )
    if "unusable" in done.stderr:
        pytest.skip(f"CUPTI {release} answers nothing without a driver")
    answers = dict(zip(CHIPS, json.loads(done.stdout), strict=True))
    # Blackwell and its successors came after CUDA 12.6.
    unknown = {name for name, said in answers.items() if "HostInitialize" in str(said)}
    assert unknown <= ({"sm100", "sm103", "sm120"} if release.version < 28 else {"sm103"})
    assert {name: said for name, said in answers.items() if name not in unknown} == {
        name: 1 for name in CHIPS if name not in unknown
    }


def test_every_architecture_has_all_of_them() -> None:
    for name in SAMPLED:
        assert len(names(name)) == len(METRICS) == 4
        assert all(hardware.endswith("_elapsed") for hardware in names(name))


def test_volta_cannot_be_sampled() -> None:
    assert names("sm70") == []


def test_they_are_not_of_the_catalogue() -> None:
    assert not {metric.name for metric in METRICS} & set(catalogue().metrics)
    assert not any(metric.gated for metric in METRICS)
