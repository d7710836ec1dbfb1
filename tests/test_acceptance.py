"""Accepting a run: what changes in the baseline files, what stays, and two who accept at once."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_gpuperf import acceptance, baselines, runs
from pytest_gpuperf.baselines import BaselineFile, Change
from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.model import Measurement
from tests.corruption import refusal
from tests.examples import A100, H200, OTHER_H200, TEST, measurement, processes, run

CREATED = "2026-03-01T23:59:59Z"


def accepted(
    folder: Path, measurements: Sequence[Measurement], reason: str = "because"
) -> BaselineFile:
    """Accepts measurements of one suite on one device, and reads what is then in the file."""
    proposals = acceptance.proposals(measurements, folder, reason, CREATED)
    for proposal in proposals:
        acceptance.accept(proposal)
    return loaded(proposals[0].file)


def loaded(file: Path) -> BaselineFile:
    """The baselines in a file that is there."""
    found = baselines.load(file)
    assert found is not None
    return found


def test_the_first_acceptance_makes_the_file(tmp_path: Path) -> None:
    known = accepted(tmp_path, processes("cycles", [[1.0, 2.0, 4.0], [3.0, 3.0], [9.0]]))
    assert [file.relative_to(tmp_path) for file in tmp_path.rglob("*.*")] == [
        Path("sm90/nvidia-h200/meddpm.yaml")
    ]
    assert (known.arch, known.device, known.suite) == ("sm90", "NVIDIA H200", "meddpm")
    entry = known.tests[TEST]["step"]
    assert entry.samples == {"step": {"cycles": ((1.0, 2.0, 4.0), (3.0, 3.0), (9.0,))}}
    assert entry.recorded == "2026-03-01"
    (log,) = known.accepted
    assert (log.date, log.reason, log.test, log.name) == ("2026-03-01", "because", TEST, "step")
    assert (log.processes, log.revision) == (3, "0123456789ab")
    assert log.changes == {"cycles": Change(None, 3.0)}


def test_proposing_writes_nothing(tmp_path: Path) -> None:
    (proposal,) = acceptance.proposals([measurement()], tmp_path, "because", CREATED)
    assert proposal.test == TEST
    assert list(tmp_path.iterdir()) == []


def test_nothing_measured_is_nothing_to_accept(tmp_path: Path) -> None:
    assert acceptance.proposals([], tmp_path, "because", CREATED) == []


def test_the_next_acceptance_says_old_and_new_and_keeps_the_log(tmp_path: Path) -> None:
    accepted(tmp_path, [measurement({"cycles": [100.0], "ipc": [2.0]})], "first")
    known = accepted(tmp_path, [measurement({"cycles": [90.0], "instructions": [7.0]})], "second")
    assert [log.reason for log in known.accepted] == ["first", "second"]
    assert known.accepted[1].changes == {
        "cycles": Change(100.0, 90.0),
        "instructions": Change(None, 7.0),
        "ipc": Change(2.0, None),
    }
    samples = known.tests[TEST]["step"].samples
    assert samples == {"step": {"cycles": ((90.0,),), "instructions": ((7.0,),)}}


def test_entries_of_other_tests_and_other_names_stay(tmp_path: Path) -> None:
    before = accepted(
        tmp_path,
        [
            measurement({"cycles": [1.0]}, test="b.py::test"),
            measurement({"cycles": [2.0]}, test="a.py::test"),
            measurement({"cycles": [3.0]}, test="b.py::test", name="sampling"),
        ],
    )
    assert list(before.tests) == ["a.py::test", "b.py::test"]
    after = accepted(tmp_path, [measurement({"cycles": [5.0]}, test="b.py::test")])
    assert after.tests["a.py::test"] == before.tests["a.py::test"]
    assert after.tests["b.py::test"]["sampling"] == before.tests["b.py::test"]["sampling"]
    assert after.tests["b.py::test"]["step"].samples == {"step": {"cycles": ((5.0,),)}}
    assert after.accepted[:3] == before.accepted
    assert len(after.accepted) == 4


def test_several_machines_of_one_device_make_one_baseline(tmp_path: Path) -> None:
    known = accepted(
        tmp_path,
        [
            measurement({"cycles": [1.0]}, process="p1", device=H200),
            measurement({"cycles": [2.0]}, process="p2", device=OTHER_H200),
        ],
    )
    assert known.tests[TEST]["step"].samples == {"step": {"cycles": ((1.0,), (2.0,))}}
    assert known.accepted[0].processes == 2


def test_devices_and_suites_have_files_of_their_own(tmp_path: Path) -> None:
    accepted(
        tmp_path,
        [
            measurement(device=H200),
            measurement(device=A100),
            measurement(test="x", suite="convnext"),
        ],
    )
    assert {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.yaml")} == {
        "sm90/nvidia-h200/meddpm.yaml",
        "sm80/nvidia-a100-sxm4-40gb/meddpm.yaml",
        "sm90/nvidia-h200/convnext.yaml",
    }


def test_a_process_that_measured_twice_counts_once(tmp_path: Path) -> None:
    known = accepted(
        tmp_path,
        [measurement({"cycles": [1.0]}, process="p"), measurement({"cycles": [3.0]}, process="p")],
    )
    assert known.accepted[0].processes == 1
    assert known.tests[TEST]["step"].samples == {"step": {"cycles": ((1.0, 3.0),)}}


def test_different_workloads_are_no_baseline(tmp_path: Path) -> None:
    mixed = [
        measurement(process="p1", workload={"size": 64}),
        measurement(process="p2", workload={"size": 128}),
    ]
    with pytest.raises(UsageFailure, match=re.escape(TEST) + ".* different workloads"):
        acceptance.proposals(mixed, tmp_path, "because", CREATED)


def test_a_damaged_file_is_not_overwritten_and_nothing_else_is_written(tmp_path: Path) -> None:
    file = baselines.path_for(tmp_path, A100, "meddpm")
    file.parent.mkdir(parents=True)
    file.write_text("schema: 1\narch: [")

    def propose(_: Path) -> object:
        measured = [measurement(device=H200), measurement(device=A100)]
        return acceptance.proposals(measured, tmp_path, "because", CREATED)

    assert "line 3 column 1: not YAML" in refusal(propose, file, BadFile)
    assert list(tmp_path.rglob("*.yaml")) == [file]


def test_a_file_that_was_damaged_in_between_is_not_overwritten(tmp_path: Path) -> None:
    (proposal,) = acceptance.proposals([measurement()], tmp_path, "because", CREATED)
    proposal.file.parent.mkdir(parents=True)
    proposal.file.write_text("schema: 99")
    message = refusal(lambda _: acceptance.accept(proposal), proposal.file, BadFile)
    assert "schema version 99 is not 1" in message


ACCEPTING = """
import sys
from pathlib import Path
from pytest_gpuperf import acceptance, runs

run, folder = runs.load(Path(sys.argv[1])), Path(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for proposal in acceptance.proposals(run.measurements, folder, "at once", run.created):
    acceptance.accept(proposal)
"""


def test_two_who_accept_different_tests_at_once_lose_nothing(tmp_path: Path) -> None:
    folder, children = tmp_path / "baselines", []
    expected: dict[str, baselines.Processes] = {}
    for who in ("a", "b"):
        measured = [
            measurement({"cycles": [float(number)]}, test=f"{who}.py::test_{number:02}")
            for number in range(15)
        ]
        expected |= {m.test: (m.samples[0].values,) for m in measured}
        file = tmp_path / f"{who}.json"
        runs.save(run(measured), file)
        children.append(
            subprocess.Popen(
                [sys.executable, "-c", ACCEPTING, str(file), str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        child.communicate()
        assert child.returncode == 0
    known = loaded(baselines.path_for(folder, H200, "meddpm"))
    found = {
        test: entries["step"].samples["step"]["cycles"] for test, entries in known.tests.items()
    }
    assert found == expected
    assert len(known.accepted) == 30
    assert len(list(folder.rglob("*.*"))) == 1
