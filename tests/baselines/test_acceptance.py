"""Accepting runs: what changes in the baseline files, what stays and what is refused."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.baselines import acceptance
from pytest_gpuperf.baselines.acceptance import AcceptanceRequest
from pytest_gpuperf.baselines.objections import NEW_ORIGIN
from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.model.entry import BaselineFile, Entry, Processes
from pytest_gpuperf.model.measurement import STEP, Conditions, KernelTable, Measurement, Reading
from pytest_gpuperf.storage import baseline_files, data_files, run_files
from tests import ROOT
from tests.corruption import refusal
from tests.examples import A100, H200, TEST, measurement, processes, run
from tests.kernel_steps import table
from tests.killing import git
from tests.waiting import run_at_once

CREATED = "2026-03-01T23:59:59Z"


def request(folder: Path, reason: str = "because", **options: Any) -> AcceptanceRequest:
    """How to accept; by default whatever is objected, for there is mostly one process here."""
    return AcceptanceRequest(folder, reason, **{"created": CREATED, "force": True, **options})


def accepted(
    folder: Path, measurements: Sequence[Measurement], reason: str = "because", **options: Any
) -> BaselineFile:
    """Accepts measurements of one suite on one device, and reads what is then in the file."""
    proposals = acceptance.proposals(measurements, request(folder, reason, **options))
    acceptance.accept(proposals)
    return loaded(proposals[0].file)


def loaded(file: Path) -> BaselineFile:
    """The baselines in a file that is there."""
    kept = baseline_files.load(file)
    assert kept is not None
    return kept


def test_the_first_acceptance_makes_the_file_and_proposing_writes_nothing(tmp_path: Path) -> None:
    (proposal,) = acceptance.proposals([measurement()], request(tmp_path))
    assert proposal.first.test == TEST
    assert acceptance.proposals([], request(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []
    known = accepted(tmp_path, processes("cycles", [[1.0, 2.0, 4.0], [3.0, 3.0], [9.0]]))
    data = f"sm90/nvidia-h200/meddpm/{entry(known).data}"
    assert {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.*")} == {
        *("sm90/nvidia-h200/meddpm.yaml", data)
    }
    assert (known.arch, known.device, known.suite) == ("sm90", "NVIDIA H200", "meddpm")
    assert entry(known).metrics == {"cycles": (2.0, 3.0, 9.0)}
    samples = {"step": {"cycles": ((1.0, 2.0, 4.0), (3.0, 3.0), (9.0,))}}
    assert data_files.parsed(tmp_path / data, (tmp_path / data).read_bytes()).samples == samples
    assert entry(known).recorded == "2026-03-01"
    (log,) = entry(known).log
    assert (log.date, log.reason, log.moved) == ("2026-03-01", "because", {})
    assert (log.processes, log.revision) == (3, "0123456789ab")


def test_the_next_acceptance_says_old_and_new_and_keeps_the_log(tmp_path: Path) -> None:
    first = {"cycles": [100.0], "copies": [2.0], "operators": [5.0], "ipc": [2.0]}
    accepted(tmp_path, [measurement(first)], "first")
    later = {"cycles": [90.0], "instructions": [7.0], "operators": [5.0], "ipc": [3.0]}
    (proposal,) = acceptance.proposals([measurement(later)], request(tmp_path, "second"))
    assert proposal.changes == {
        "cycles": (100.0, 90.0),
        "instructions": (None, 7.0),
        "operators": (5.0, 5.0),
        "copies": (2.0, None),
    }
    acceptance.accept([proposal])
    known = entry(loaded(proposal.file))
    assert [log.reason for log in known.log] == ["first", "second"]
    assert known.log[1].moved == {"cycles": "-10.00 %"}
    assert known.metrics == {"cycles": 90.0, "instructions": 7.0, "operators": 5.0}


def test_different_workloads_are_no_baseline(tmp_path: Path) -> None:
    mixed = [measurement(process=f"p{size}", workload={"size": size}) for size in (64, 128)]
    with pytest.raises(UsageFailure, match=re.escape(TEST) + ".* different workloads"):
        acceptance.proposals(mixed, request(tmp_path))


def test_a_damaged_file_is_not_overwritten_and_nothing_else_is_written(tmp_path: Path) -> None:
    file = baseline_files.path_for(tmp_path, A100, "meddpm")
    file.parent.mkdir(parents=True)
    file.write_text("schema: 1\narch: [")

    def propose(_: Path) -> object:
        measured = [measurement(device=H200), measurement(device=A100)]
        return acceptance.proposals(measured, request(tmp_path))

    assert "line 3 column 1: invalid YAML" in refusal(propose, file, BadFile)
    assert list(tmp_path.rglob("*.yaml")) == [file]


ACCEPTING = """
import sys, tempfile
from pathlib import Path
from pytest_gpuperf.baselines import acceptance
from pytest_gpuperf.storage import run_files

run, folder = run_files.load(Path(sys.argv[1])), Path(sys.argv[2])
tempfile.tempdir = sys.argv[3]
print("ready", flush=True)
sys.stdin.readline()
request = acceptance.AcceptanceRequest(folder, "at once", run.created, force=True)
for proposal in acceptance.proposals(run.measurements, request):
    acceptance.accept([proposal])
"""


def test_two_who_accept_different_tests_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each with a TMPDIR of its own, as users, jobs and containers have."""
    folder, asked = tmp_path / "baselines", []
    expected: dict[str, Processes] = {}
    for who in ("a", "b"):
        measured = [
            measurement({"cycles": [float(number + 1)]}, test=f"{who}.py::test_{number:02}")
            for number in range(8)
        ]
        expected |= {m.test: (m.samples[0].values,) for m in measured}
        file = tmp_path / f"{who}.json"
        run_files.save(run(measured), file)
        (tmp_path / who).mkdir()
        asked.append(["-c", ACCEPTING, str(file), str(folder), str(tmp_path / who)])
    run_at_once(*asked)
    known = loaded(baseline_files.path_for(folder, H200, "meddpm"))
    kept = {test: names["step"].step["cycles"] for test, names in known.tests.items()}
    assert kept == expected
    assert all(len(names["step"].log) == 1 for names in known.tests.values())
    # What is the same has one file.
    assert len(list(folder.rglob("*.*"))) == 1 + 8


# Origins


def five(cycles: float = 437e6, **others: Any) -> list[Measurement]:
    """Five processes without noise, measured at a commit."""
    return [measurement({"cycles": [cycles]}, process=f"p{n}", **others) for n in range(5)]


def entry(known: BaselineFile) -> Entry:
    """The entry of the test."""
    return known.tests[TEST][STEP]


def test_another_workload_is_its_own_origin(tmp_path: Path) -> None:
    for _ in range(2):
        accepted(tmp_path, five(100.0))
    small = five(10.0, workload={"size": 64})
    for new_origin in (True, False):
        asked = request(tmp_path, force=False, new_origin=new_origin)
        (proposal,) = acceptance.proposals(small, asked)
        assert proposal.objections == ()
        assert "the workload changed (size 128, here 64), so the origin" in proposal.notes[-1]
        assert proposal.entry.log[-1].forced == ()
    (done,) = acceptance.accept([proposal])
    assert done.entry.log[-1].forced == ()
    assert entry(loaded(done.file)).origin is None


# Objections


def objected(folder: Path, measurements: Sequence[Measurement], **options: Any) -> list[str]:
    """What is said against accepting, in short; without force nothing is written then."""
    before = {file: file.read_bytes() for file in folder.rglob("*.yaml")}
    proposals = acceptance.proposals(measurements, request(folder, force=False, **options))
    against = [objection for proposal in proposals for objection in proposal.objections]
    if against:
        with pytest.raises(acceptance.Refused, match="nothing was written") as refused:
            acceptance.accept(proposals)
        assert all(objection.text in str(refused.value) for objection in against)
        assert {file: file.read_bytes() for file in folder.rglob("*.yaml")} == before
    return [objection.short for objection in against]


def test_all_objections_are_said_at_once_and_logged_when_forced(tmp_path: Path) -> None:
    hot = Reading(throttle_reasons=("hardware thermal slowdown",))
    first = five()[0]
    odd = replace(
        first,
        fingerprint=replace(
            first.fingerprint, revision="0123456789ab+dirty", conditions=Conditions(hot, hot)
        ),
    )
    objections = ["1 process of 3", "unfit device in 1 of 1", "dirty tree"]
    assert objected(tmp_path, [odd]) == objections
    assert entry(accepted(tmp_path, [odd])).log[0].forced == tuple(objections)


STEP_BY_STEP = [437e6 * 1.003**number for number in range(4)]
"""Each step is within the tolerance of 0.5 %; two of them are not."""


def test_creep_is_refused_unless_forced_or_with_a_new_origin(tmp_path: Path) -> None:
    first, second, third, fourth = STEP_BY_STEP
    for value in (first, second):
        assert objected(tmp_path, five(value)) == []
        accepted(tmp_path, five(value), force=False)
    assert objected(tmp_path, five(third)) == ["creep: cycles +0.60 %"]
    known = accepted(tmp_path, five(third))
    assert entry(known).log[-1].forced == ("creep: cycles +0.60 %",)
    # It is not forgotten: the origin is still the first.
    assert objected(tmp_path, five(third)) == ["creep: cycles +0.60 %"]
    known = accepted(tmp_path, five(third), force=False, new_origin=True)
    assert entry(known).log[-1].forced == (NEW_ORIGIN,)
    assert objected(tmp_path, five(fourth)) == []


def test_a_loss_that_one_acceptance_shows_is_where_later_creep_starts(tmp_path: Path) -> None:
    accepted(tmp_path, five(STEP_BY_STEP[0]))
    (proposal,) = acceptance.proposals(five(450e6), request(tmp_path, force=False))
    (note,) = (note for note in proposal.notes if "(origin)" in note)
    assert "This change shows cycles +2.97 %, so later creep is measured from these" in note
    assert (proposal.objections, proposal.entry.log[-1].forced) == ((), ())
    acceptance.accept([proposal])
    assert entry(loaded(proposal.file)).origin is None


# Kernels

ONE = table(("conv", 900.0), ("add", 20.0))
OTHER = table(("conv", 950.0), ("add", 20.0), ("add", 20.0))
FILE = Path("sm90/nvidia-h200/meddpm.yaml")


def tables(folder: Path) -> dict[str, KernelTable]:
    """The kernel tables that are kept on an H200, by test; no data is left that nothing names."""
    known = loaded(folder / FILE)
    assert data_files.unnamed(folder / FILE, known) == []
    kept = {
        test: data_files.load(folder / FILE, entries[STEP].data, "").kernels
        for test, entries in known.tests.items()
    }
    return {test: table for test, table in kept.items() if table is not None}


def test_the_table_of_the_first_process_that_has_one_is_kept_with_its_entry(
    tmp_path: Path,
) -> None:
    measured = [
        measurement(process="p1"),
        measurement(process="p2", kernels=ONE),
        measurement(process="p3", kernels=OTHER),
        measurement(test="b.py::test", kernels=ONE),
    ]
    accepted(tmp_path, measured)
    assert tables(tmp_path) == {TEST: ONE, "b.py::test": ONE}
    # It is replaced with its entry, and others stay.
    accepted(tmp_path, [measurement(test="b.py::test", kernels=OTHER)])
    assert tables(tmp_path) == {TEST: ONE, "b.py::test": OTHER}


def counted(instructions: float, **other: Any) -> Measurement:
    """A step that takes this many instructions."""
    return measurement({"cycles": [1e6], "instructions": [instructions]}, **other)


BAD = replace(ONE, mismatch="the trace has 3 kernels and the counters 4")
STAYS = "the old kernel table stays, because the counts have not changed"
GOES = (
    "no kernel table; the old table of 2026-03-01 is dropped. If this test gets slower, gpuperf "
    "cannot name the kernels. Record with gpuperf record, or with --gpuperf-kernels always"
)


@pytest.mark.parametrize(
    ("new", "damaged", "note", "kept"),
    [
        (counted(1e6), False, STAYS, True),
        (counted(1.00049e6), False, STAYS, True),
        (counted(1.00051e6), False, GOES, False),
        (counted(1e6), True, GOES, False),
        (counted(2e6, kernels=BAD), False, f"no kernel table ({BAD.mismatch}", False),
    ],
)
def test_a_table_stays_where_the_new_entry_has_none_and_counts_are_as_before(
    new: Measurement, damaged: bool, note: str, kept: bool, tmp_path: Path
) -> None:
    known = accepted(tmp_path, [counted(1e6, kernels=ONE)])
    accepted(tmp_path, [counted(1e6, test="b.py::test", kernels=OTHER)])
    if damaged:
        (data_files.folder_beside(tmp_path / FILE) / entry(known).data).write_bytes(b"damaged")
    (proposal,) = acceptance.proposals([new], request(tmp_path, created="2026-03-08T00:00:00Z"))
    assert proposal.notes[0].startswith(note)
    acceptance.accept([proposal])
    assert tables(tmp_path) == {**({TEST: ONE} if kept else {}), "b.py::test": OTHER}


def test_a_cpu_has_no_kernels_to_miss(tmp_path: Path) -> None:
    measured = measurement(device=nvml.portable_device())
    (proposal,) = acceptance.proposals([measured], request(tmp_path))
    assert proposal.notes == ()


# Files of earlier versions


def test_a_file_of_an_earlier_version_is_written_anew_with_the_first_acceptance(
    tmp_path: Path,
) -> None:
    old = ROOT / "tests" / "data" / "schema-1"
    cpu = nvml.portable_device()
    file = baseline_files.path_for(tmp_path, cpu, "meddpm")
    shutil.copytree(old, file.parent)
    before = loaded(file)
    known = accepted(tmp_path, [measurement({"flops": [5.0]}, device=cpu)])
    kept = {name: entries for name, entries in known.tests.items() if name != TEST}
    assert kept.keys() == before.tests.keys()
    for test, entries in kept.items():
        assert replace(entries[STEP], data="") == before.tests[test][STEP]
        assert data_files.load(file, entries[STEP].data, "").samples
    assert {one.name for one in file.parent.iterdir()} == {"meddpm.yaml", "meddpm"}
    assert acceptance.migrate(tmp_path) == []


def test_two_acceptances_of_different_tests_merge_in_git(tmp_path: Path) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")

    def accept(*tests: str, cycles: float) -> None:
        measured = [
            measurement({"cycles": [cycles], "copies": [1.0]}, test=test, process=f"p{n}")
            for test in tests
            for n in range(3)
        ]
        accepted(tmp_path, measured, f"because of {cycles}")
        git(tmp_path, "add", "-A")
        git(tmp_path, *who, "commit", "-qm", "accepted")

    tests = [f"suites/meddpm/test_{name}.py::test" for name in "abcd"]
    git(tmp_path, "init", "-qb", "main")
    accept(*tests, cycles=100.0)
    git(tmp_path, "checkout", "-qb", "theirs")
    accept(tests[1], f"{tests[3]}[new]", cycles=110.0)
    git(tmp_path, "checkout", "-q", "main")
    accept(tests[0], tests[2], cycles=90.0)
    git(tmp_path, *who, "merge", "-q", "--no-edit", "theirs")
    known = loaded(tmp_path / FILE)
    assert [known.tests[test][STEP].metrics["cycles"] for test in sorted(known.tests)] == [
        *(90.0, 110.0, 90.0, 100.0, 110.0)
    ]
    assert tables(tmp_path) == {}
    for test, entries in known.tests.items():
        assert data_files.load(tmp_path / FILE, entries[STEP].data, test).samples


# All or nothing


def test_what_was_accepted_in_between_is_what_the_log_calls_old(tmp_path: Path) -> None:
    accepted(tmp_path, five(100.0))
    shown = acceptance.proposals(five(99.0), request(tmp_path))
    accepted(tmp_path, five(90.0))
    (done,) = acceptance.accept(shown)
    assert shown[0].changes == {"cycles": (100.0, 99.0)}
    assert done.changes == {"cycles": (90.0, 99.0)}
    assert entry(loaded(done.file)).log[-1] == done.entry.log[-1]


def test_what_became_creep_in_between_is_refused(tmp_path: Path) -> None:
    first, second, third, _ = STEP_BY_STEP
    accepted(tmp_path, five(first))
    shown = acceptance.proposals(five(third), request(tmp_path, force=False))
    assert not shown[0].refused  # the loss is visible
    known = accepted(tmp_path, five(second))
    with pytest.raises(
        acceptance.Refused,
        match=r"creep, many small slowdowns since the first .* .origin. of 2026-03-01: ",
    ):
        acceptance.accept(shown)
    assert loaded(shown[0].file) == known


def test_when_one_file_cannot_be_written_the_others_are_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "sm80").symlink_to(tmp_path / "nowhere")
    for kernels in (ONE, OTHER, None):
        measured = [measurement({"cycles": [7.0]}, kernels=kernels), measurement(device=A100)]
        # Without files first, then with those of an acceptance.
        for _ in range(2):
            before = {file: file.read_bytes() for file in tmp_path.rglob("*.*")}
            shown = acceptance.proposals(measured, request(tmp_path))
            with pytest.raises(UsageFailure, match="cannot be written"):
                acceptance.accept(shown)
            assert {file: file.read_bytes() for file in tmp_path.rglob("*.*")} == before
            accepted(tmp_path, [measurement(kernels=ONE)])


# Paths out of files


def test_names_that_lead_out_of_the_folder_are_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "a" / "b" / "baselines"
    for suite, device in (
        ("../../../../escaped/evil", H200),
        (str(tmp_path / "evil"), H200),
        ("meddpm", replace(H200, slug="../../evil")),
        ("meddpm", replace(H200, arch="..")),
    ):
        with pytest.raises(UsageFailure, match=r"cannot name a baseline file: (suite|slug|arch) "):
            acceptance.proposals([measurement(suite=suite, device=device)], request(folder))
    assert [*tmp_path.iterdir()] == []


# Killed


KILLING = """
import os, shutil, signal, sys
from pathlib import Path
from pytest_gpuperf.baselines import acceptance
from pytest_gpuperf.storage import run_files

file, made = Path(sys.argv[1]), Path(sys.argv[2])
run = run_files.load(file)
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "fcntl.flock"}

def accept(folder):
    request = acceptance.AcceptanceRequest(folder, "killed", run.created, force=True)
    acceptance.accept(acceptance.proposals(run.measurements, request))

def killed_at(number, folder):
    left = number
    def hook(event, arguments):
        nonlocal left
        if event in CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    accept(folder)

accept_dry = acceptance.proposals(run.measurements, acceptance.AcceptanceRequest(
    made / "template", "killed", run.created, force=True))  # all is imported before it forks
for number in range(1, 200):
    folder = made / str(number)
    shutil.copytree(made / "template", folder)
    child = os.fork()
    if not child:
        killed_at(number, folder)
        os._exit(0)
    if os.waitpid(child, 0)[1] != signal.SIGKILL:
        break
"""


def test_killed_at_any_of_its_changes_it_leaves_files_that_belong_together(tmp_path: Path) -> None:
    made = tmp_path / "made"
    before, after = ({"cycles": [cycles]} for cycles in (100.0, 90.0))
    others = [measurement(test="b.py::test", kernels=ONE)]
    old = accepted(made / "template", [measurement(before, kernels=ONE), *others])
    file = tmp_path / "run.json"
    run_files.save(run([measurement(after, kernels=OTHER)]), file)
    subprocess.run([sys.executable, "-c", KILLING, str(file), str(made)], check=True)
    seen = []
    folders = sorted(made.glob("[0-9]*"), key=lambda folder: int(folder.name))
    assert 20 < len(folders) < 100
    for folder in folders:
        yaml = baseline_files.path_for(folder, H200, "meddpm")
        known = loaded(yaml)
        seen.append(known == old)
        for test in (TEST, "b.py::test"):
            table = data_files.load(yaml, known.tests[test][STEP].data, "").kernels
            assert table == (ONE if known == old or test != TEST else OTHER)
        # git adds what is whole, and nothing else.
        git(folder, "init", "-q")
        git(folder, "add", "-A")
        added = git(folder, "ls-files").split()
        assert str(FILE) in added
        assert all(name.endswith((".yaml", ".json.xz")) for name in added)
        assert len(added) in (3, 4)  # one more is data that nothing names
        # The next one goes on from there, and clears up.
        accepted(folder, [measurement(before, kernels=ONE)])
        assert tables(folder) == {TEST: ONE, "b.py::test": ONE}
        assert {*yaml.parent.iterdir()} == {yaml, data_files.folder_beside(yaml)}
        assert len([*data_files.folder_beside(yaml).iterdir()]) == 2
    # Killed later it had written more, never less.
    assert seen == sorted(seen, reverse=True)
    assert {*seen} == {True, False}
