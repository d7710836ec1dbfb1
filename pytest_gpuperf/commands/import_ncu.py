"""Reports of ncu (Nsight Compute) that were made elsewhere, as runs: `gpuperf import`.

A step that was profiled on a machine without this package can so be judged and reported here. Needs
no GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.commands import say
from pytest_gpuperf.commands.flags import add_new_run, check_new, new_run
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.measure.ncu import profiled_step
from pytest_gpuperf.measure.ncu.profiled_step import ProfiledStep, Report
from pytest_gpuperf.model.measurement import STEP, Device, Fingerprint, Measurement, Scalar
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import files, run_files
from pytest_gpuperf.storage.baseline_files import suite_of

USAGE: str | None = None
EXAMPLES = ("gpuperf import step.ncu-rep --test tests/perf/test_step.py::test_step",)

_COLLECTOR = "ncu"
_CHUNK = 2**20
"""Bytes that are read at a time."""


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """The options for an import of reports."""

    test: str = ""
    """The node id; "" for a node id made of the file's name."""
    device_name: str = ""
    """The device's name where the report has no name: "NVIDIA H200"."""
    executions: int = 1
    """The number of executions of the step in each report, one after the other."""
    ncu: Path | None = None
    """The program ncu; the module that opens reports lies beside it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf import`."""
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="a report of ncu (.ncu-rep); each file counts as one process",
    )
    add_new_run(parser)
    parser.add_argument(
        "--test",
        default="",
        metavar="NODEID",
        help="node id of the measured test; default: imported/<file>::step",
    )
    parser.add_argument(
        "--device-name",
        default="",
        metavar="NAME",
        help='name of the GPU ("NVIDIA H200"), if the report lacks it',
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=1,
        metavar="N",
        help="executions of the step in each report (rounds); default: 1",
    )
    parser.add_argument(
        "--ncu",
        type=Path,
        metavar="PROGRAM",
        help="the ncu program that reads the reports; default: that of the Python package "
        "ncu-report, else the installed one",
    )


def act(options: argparse.Namespace) -> int:
    """Saves the run as the flags say, prints its contents, and returns 0.

    Raises UsageFailure, and writes nothing, for reports that cannot be imported.
    """
    check_new(out := new_run(options))
    request = ImportRequest(options.test, options.device_name, options.steps, options.ncu)
    imported = imported_run(options.files, request)
    run_files.save(imported, out)
    for measurement in imported.measurements:
        say(*_summary(measurement))
    say(f"run saved: {out}")
    say(f"compare it with baselines:  pytest --gpuperf-replay {shlex.quote(str(out))} ...")
    return 0


def imported_run(reports: Sequence[Path], request: ImportRequest) -> Run:
    """The reports as one run: a measurement of one test per file, each a process of its own.

    A process's id is a digest of its file, so that what is imported twice does not count twice.
    Raises BadFile and UsageFailure for reports that cannot be read, are the same, or are not of one
    device.
    """
    if len(reports) > 1 and not request.test:
        raise UsageFailure(
            "several reports become processes of one test, which needs a name: --test "
            "tests/perf/test_step.py::test_step. If the tests differ, import the reports one by "
            "one"
        )
    if request.test and not (suite_of(request.test) and request.test.partition("::")[2]):
        raise UsageFailure(
            f"--test {request.test} is not the id of a test, such as tests/perf/test_a.py::test_b"
        )
    by_process: dict[str, Measurement] = {}
    for file in reports:
        measurement = _measurement(file, request)
        known = by_process.setdefault(measurement.process, measurement)
        if known is not measurement:
            raise UsageFailure(
                f"{file} is the same report as {known.fingerprint.settings['imported']}, but each "
                "process counts once. Leave one out"
            )
    measurements = tuple(by_process.values())
    devices = dict.fromkeys(m.fingerprint.device for m in measurements)
    if len(devices) > 1:
        listed = " and ".join(f"{device.name} ({device.arch})" for device in devices)
        raise UsageFailure(f"the reports are from {listed}. Import only one device at a time")
    command = run_files.command_line(
        ["gpuperf", "import", *run_files.within(Path.cwd(), [*map(str, reports)])]
    )
    return Run(run_files.SCHEMA, files.utc_now(), command, measurements)


def _measurement(file: Path, request: ImportRequest) -> Measurement:
    report = profiled_step.read(file, request.ncu)
    step = profiled_step.step_of(report, request.executions)
    test = request.test or f"imported/{file.stem}::{STEP}"
    return Measurement(
        test=test,
        name=STEP,
        suite=suite_of(test),
        process=_digest(file),
        configuration="",
        workload={},
        samples=step.samples,
        unsupported=step.unsupported,
        fingerprint=Fingerprint(
            device=_device(report, request.device_name),
            software={},
            settings=_settings(report, step, request.executions),
        ),
        kernels=step.kernels,
    )


def _settings(report: Report, step: ProfiledStep, executions: int) -> dict[str, Scalar]:
    """The settings of the measurement, as far as the report has them."""
    settings: dict[str, Scalar] = {"collector": _COLLECTOR, "imported": report.file.name}
    if report.rows[0].kind == "range":
        settings["replay"] = "range"
    else:
        settings |= {"replay": "kernel", "kernels": step.launches}
    if executions > 1:
        settings["rounds"] = executions
    return settings


def _digest(file: Path) -> str:
    """Twelve hexadecimal digits that stand for the file's content. Raises UsageFailure."""
    digest = hashlib.sha256()
    try:
        with file.open("rb") as stream:
            # A report in ncu's own format may be larger than memory.
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise UsageFailure(f"{file}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()[:12]


def _device(report: Report, given: str) -> Device:
    """The device of a report. Raises UsageFailure where no name is known, or two names differ."""
    if given and report.device and given != report.device:
        raise UsageFailure(
            f"{report.file} was made on {report.device}, not on --device-name {given}. Leave this "
            "flag out"
        )
    name = report.device or given
    if not architectures.slug(name):
        raise UsageFailure(
            f"{report.file} does not name its GPU, and baselines are kept per GPU. Name it as "
            '`nvidia-smi -L` does: --device-name "NVIDIA H200"'
        )
    return Device(report.arch, name, architectures.slug(name))


def _summary(measurement: Measurement) -> list[str]:
    """Lines for people: the imported metrics, and the reason for each that was left out."""
    device, settings = measurement.fingerprint.device, measurement.fingerprint.settings
    executions, launches = settings.get("rounds", 1), settings.get("kernels")
    what = "a range" if launches is None else counted(int(launches), "kernel")
    rounds = f", {executions} executions," if executions != 1 else ""
    lines = [
        f"{settings['imported']}: {what}{rounds} on {device.name} ({device.arch}), "
        f"as {measurement.test}",
        f"  has {', '.join(sample.metric for sample in measurement.samples)}",
    ]
    lines += [f"  without {entry.metric}: {entry.reason}" for entry in measurement.unsupported]
    likely = profiled_step.repeats(measurement.kernels) if measurement.kernels else 1
    if likely > 1:
        lines.append(
            f"  note: the step repeats the same kernels {likely} times. If those are separate "
            f"executions, pass --steps {likely * int(executions)}"
        )
    return lines
