"""The catalogue against real releases of CUPTI: every name on every chip, every null, the passes.

A process has room for one CUPTI, so each release answers everything in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.measure.cupti import abi
from pytest_gpuperf.measure.cupti.configuration import Configuration
from tests.measure.cupti.fake import Fake
from tests.measure.cupti.headers import ABSENT, Release, releases

ASKED = ("12.6.80", "12.8.90", "12.9.79", "13.0.85", "13.2.75", "13.5.25")
"""Releases that are asked about chips: which these are changes from one to the next."""
LIBRARIES = [release for release in releases() if release.library and release.name in ASKED]
GPUS = [name for name in architectures.ARCHITECTURES if name != architectures.CPU]
DOCUMENTED = json.loads(Path("docs/passes.json").read_text(encoding="utf-8"))
"""The passes of every set on every architecture, and the release that says so."""
NVPERF = Path(__file__).with_name("nvperf.py")

LOAD = """
import ctypes, json, sys
from pathlib import Path
from pytest_gpuperf.catalogue import architectures as arch
from pytest_gpuperf.measure.cupti import abi, configuration as chips, library
from pytest_gpuperf.errors import CountersUnavailable
from pytest_gpuperf.catalogue.metric_catalogue import catalogue, hardware

said = {"unavailable": "it ends its process without a driver"}
exports = ctypes.CDLL(sys.argv[1])
said["absent"] = [name for name in abi.FUNCTIONS.values() if not hasattr(exports, name)]
print(json.dumps(said), flush=True)
try:
    cupti = library.Cupti(Path(sys.argv[1]))
    said = {"absent": said["absent"], "version": cupti.version}
except CountersUnavailable as error:
    said["unavailable"] = error.reason
maps = Path("/proc/self/maps").read_text()
said["companions"] = "libnvperf_host.so" in maps and "libnvperf_target.so" in maps
if "unavailable" in said:
    sys.exit(print(json.dumps(said)))
"""
ASK = """
metrics = [metric for metric in catalogue().metrics.values() if metric.hardware]
nulls = {}

def schedule(chip, names):
    planned = chips.Configuration(cupti, chip.encode())
    planned.add(names)
    planned.close()
    return planned

for name, architecture in arch.ARCHITECTURES.items():
    for metric in (m for m in metrics if architecture.chips and not m.hardware_name(name)):
        elsewhere = list({*metric.hardware.values()} - {None})
        try:
            refused = schedule(next(iter(architecture.chips)), elsewhere).refused
        except CountersUnavailable:  # a chip that this release does not know
            continue
        if len(refused) < len(elsewhere):
            nulls.setdefault(name, []).append(metric.name)
said |= {"nulls": nulls}
if cupti.release == sys.argv[2]:
    for name in (name for name in arch.ARCHITECTURES if name != arch.CPU):
        chip = next(iter(arch.ARCHITECTURES[name].chips))
        for wanted in catalogue().counter_sets:
            asked = filter(None, [hardware(m, name) for m in catalogue().selected(wanted)])
            counts = said.setdefault("passes", {}).setdefault(name, {})
            counts[wanted] = schedule(chip, [*asked]).passes
print(json.dumps(said))
"""

WITHOUT_TENSOR_CORES = ("TU116", "TU117")
"""Chips of sm75: the library has no counter for what their tensor cores do."""
NEEDS_DRIVER = 130100
"""From here on even cuptiGetVersion may fail where there is no driver."""


CHOICES: list[Any] = [*LIBRARIES] or [ABSENT]


@pytest.fixture(scope="module", params=CHOICES, ids=str)
def release(request: pytest.FixtureRequest) -> Release:
    chosen: Release = request.param
    return chosen


@pytest.fixture(scope="module")
def loaded_release(release: Release) -> Any:
    """What a release says that has just been loaded, also before it ends its process."""
    command = [sys.executable, "-c", LOAD + ASK, str(release.library), DOCUMENTED["cupti"]]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode <= 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_release_loads_with_all_functions_and_its_companions(
    release: Release, loaded_release: Any
) -> None:
    assert loaded_release["absent"] == []
    refusal = loaded_release.get("unavailable", "")
    if release.version < NEEDS_DRIVER or not refusal:
        assert loaded_release["version"] == release.version
    assert loaded_release.get("companions", "ends its process" in refusal)


def test_every_name_of_the_catalogue_exists_on_every_chip(release: Release) -> None:
    """But for the operations of tensor cores that are none. No release needs a driver for it."""
    assert release.library is not None
    metrics = [metric for metric in catalogue().metrics.values() if metric.hardware]
    given = {
        chip: {name: metric.name for metric in metrics if (name := metric.hardware_name(arch_name))}
        for arch_name, architecture in architectures.ARCHITECTURES.items()
        for chip in architecture.chips
    }
    done = subprocess.run(
        [sys.executable, NVPERF, release.library.with_name("libnvperf_host.so")],
        input=json.dumps({chip: list(named) for chip, named in given.items()}),
        check=True,
        capture_output=True,
        text=True,
    )
    lost = json.loads(done.stdout)
    assert "GH100" in lost
    for chip, names in lost.items():
        without = ["tensor_ops_fp16"] if chip in WITHOUT_TENSOR_CORES else []
        assert [given[chip][name] for name in names] == without, chip


def test_what_is_absent_has_no_name_and_passes_are_documented(
    release: Release, loaded_release: Any
) -> None:
    if "unavailable" in loaded_release:  # it needs a driver for it
        pytest.skip(loaded_release["unavailable"])
    assert loaded_release["nulls"] == {}
    # Another release may take other passes.
    if abi.release(release.version) == DOCUMENTED["cupti"]:
        assert loaded_release["passes"] == DOCUMENTED["passes"]


def test_the_documentation_has_the_passes_of_every_set_and_a_core_of_one() -> None:
    documented = DOCUMENTED["passes"]
    assert list(documented) == GPUS
    for counts in documented.values():
        assert list(counts) == list(catalogue().counter_sets)
        assert counts["core"] == 1
        assert list(counts.values()) == sorted(counts.values())


# What is asked, of the scripted CUPTI


def test_a_schedule_asks_no_device_and_leaves_nothing_behind(fake: Fake) -> None:
    fake.set("passes", 4)
    fake.set("unknown", "dram__bytes.sum")
    with closing(Configuration(fake.cupti, b"GA100")) as schedule:
        schedule.add([])
        assert schedule.passes == 0
        schedule.add(["sm__cycles_elapsed.max", "dram__bytes.sum"])
    assert schedule.passes == 4
    assert [entry.reason for entry in schedule.refused] == [
        "dram__bytes.sum does not exist on GA100"
    ]
    assert not any("Availability" in call or "Range" in call for call in fake.log)
