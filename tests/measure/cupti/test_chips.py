"""The catalogue against CUPTI itself: every name on every chip, every null, and the passes."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.measure.cupti import codes, configuration
from tests.measure.cupti.fake import Fake
from tests.measure.cupti.headers import ABSENT, Release, releases

LIBRARIES = [release for release in releases() if release.library]
GPUS = [name for name in architectures.ARCHITECTURES if name != architectures.CPU]
PASSES = Path("docs/passes.json")
NVPERF = Path(__file__).with_name("nvperf.py")

ASK = """
import json, sys
from pathlib import Path
from pytest_gpuperf.catalogue import architectures as arch
from pytest_gpuperf.commands import metrics as listing
from pytest_gpuperf.measure.cupti import configuration as chips, library
from pytest_gpuperf.errors import CountersUnavailable
from pytest_gpuperf.catalogue.metric_catalogue import catalogue

try:
    cupti = library.Cupti(Path(sys.argv[1]))
except CountersUnavailable as error:
    sys.exit(print(json.dumps({"unavailable": error.reason})))

metrics = [metric for metric in catalogue().metrics.values() if metric.hardware]
lost, found = {}, {}
for architecture in arch.ARCHITECTURES.values():
    name = architecture.name
    given = {m.hardware_name(name): m.name for m in metrics if m.hardware_name(name)}
    nulls = [m for m in metrics if not m.hardware_name(name)]
    for chip in set(architecture.chips) & set(chips.known(cupti)):
        refused = chips.schedule(cupti, chip, list(given)).refused
        lost[chip] = [given[entry.metric] for entry in refused]
    first = next(iter(architecture.chips), "")
    for metric in nulls if first in chips.known(cupti) else []:
        elsewhere = [other for other in metric.hardware.values() if other]
        if len(chips.schedule(cupti, first, elsewhere).refused) < len(elsewhere):
            found.setdefault(name, []).append(metric.name)
passes = listing.as_json(listing.listing(library=cupti.path))["passes"]
known = [chip for a in arch.ARCHITECTURES.values() for chip in a.chips if chip in lost]
print(json.dumps({"known": known, "lost": lost, "found": found, "passes": passes}))
"""

WITHOUT_TENSOR_CORES = ("TU116", "TU117")
"""Chips of sm75: the library has no counter for what their tensor cores do."""
SINCE = {"12.6.80": "sm70 sm75 sm80 sm86 sm89 sm90", "12.9.79": "sm100 sm120", "13.0.85": "sm103"}
"""The architectures that each release knows, beside those of the one before it."""


@cache
def answers(release: Release) -> Any:
    """What a release says, from a process of its own: a process has room for one CUPTI."""
    command = [sys.executable, "-c", ASK, str(release.library)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    said = json.loads(done.stdout)
    if "unavailable" in said:
        pytest.skip(said["unavailable"])
    return said


every_release = pytest.mark.parametrize("release", LIBRARIES or [ABSENT], ids=str)


@every_release
def test_every_name_of_the_catalogue_exists_on_every_chip(release: Release) -> None:
    for chip, lost in answers(release)["lost"].items():
        assert lost == (["tensor_ops_fp16"] if chip in WITHOUT_TENSOR_CORES else []), chip


@every_release
def test_the_host_library_agrees_where_cupti_wants_a_driver(release: Release) -> None:
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
    answered = json.loads(done.stdout)
    assert "GH100" in answered
    for chip, names in answered.items():
        lost = [given[chip][name] for name in names]
        assert lost == (["tensor_ops_fp16"] if chip in WITHOUT_TENSOR_CORES else []), chip


@every_release
def test_what_the_catalogue_calls_absent_has_none_of_its_names(release: Release) -> None:
    assert answers(release)["found"] == {}


@every_release
def test_which_architectures_a_release_knows(release: Release) -> None:
    expected: list[str] = []
    for name, more in SINCE.items():
        if tuple(map(int, name.split("."))) <= tuple(map(int, release.name.split("."))):
            expected += more.split()
    known = answers(release)["known"]
    found = [name for name in GPUS if architectures.ARCHITECTURES[name].chips[0] in known]
    assert found == [name for name in GPUS if name in expected]


@every_release
def test_passes_are_those_of_the_documentation(release: Release) -> None:
    documented = json.loads(PASSES.read_text(encoding="utf-8"))
    passes = answers(release)["passes"]
    if codes.release(release.version) != documented["cupti"]:
        pytest.skip(f"the documentation has the passes of CUDA {documented['cupti']}")
    assert passes == documented["passes"]


def test_passes_are_documented_for_every_architecture_and_set() -> None:
    documented = json.loads(PASSES.read_text(encoding="utf-8"))["passes"]
    assert list(documented) == GPUS
    for counts in documented.values():
        assert list(counts) == list(catalogue().counter_sets)
        assert counts["core"] == 1
        assert list(counts.values()) == sorted(counts.values())


def test_the_chips_that_a_library_knows(fake: Fake) -> None:
    assert configuration.known(fake.cupti) == ("GA100", "GH100")


def test_a_schedule_asks_no_device_and_leaves_nothing_behind(fake: Fake) -> None:
    fake.set("passes", 4)
    fake.set("unknown", "dram__bytes.sum")
    found = configuration.schedule(
        fake.cupti, "GA100", ["sm__cycles_elapsed.max", "dram__bytes.sum"]
    )
    assert found.passes == 4
    assert [entry.reason for entry in found.refused] == ["dram__bytes.sum does not exist on GA100"]
    assert not any("Availability" in call or "Range" in call for call in fake.log)
    assert fake.alive == 0


def test_nothing_takes_no_pass(fake: Fake) -> None:
    assert configuration.schedule(fake.cupti, "GA100", []) == configuration.Schedule(0, ())


def test_a_chip_that_is_not_known_is_an_error_and_no_list_of_lost_metrics(fake: Fake) -> None:
    with pytest.raises(
        UsageFailure, match=r"CUDA 13\.0\.1 does not .* GV100\. It knows GA100, GH100"
    ):
        configuration.schedule(fake.cupti, "GV100", ["sm__cycles_elapsed.max"])
    assert fake.alive == 0
