"""Reports of ncu (Nsight Compute) that were made elsewhere, as runs: `gpuperf import`.

A step that was profiled on a machine without this package can so be judged and reported here. Needs
no GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.commands import say
from pytest_gpuperf.commands.flags import add_new_run, check_new, new_run
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.measure.ncu import ncu_command, profiled_step
from pytest_gpuperf.model.measurement import STEP, Device, Fingerprint, Measurement
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import files, run_files
from pytest_gpuperf.storage.baseline_files import suite_of

USAGE: str | None = None
EXAMPLES = ("gpuperf import step.ncu-rep --test tests/perf/test_step.py::test_step",)


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
        "--steps",
        type=int,
        default=1,
        metavar="N",
        help="how many times each report has the step; default: 1",
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
    imported = imported_run(options.files, options.test, options.steps, options.ncu)
    run_files.save(imported, out)
    for one in imported.measurements:
        device, report = one.fingerprint.device, one.fingerprint.settings["imported"]
        say(
            f"{report}: a step on {device.name} ({device.arch}), as {one.test}",
            f"  has {', '.join(sample.metric for sample in one.samples)}",
            *(f"  without {entry.metric}: {entry.reason}" for entry in one.unsupported),
        )
    say(f"run saved: {out}")
    say(f"compare it with baselines:  pytest --gpuperf-replay {shlex.quote(str(out))} ...")
    return 0


def imported_run(
    reports: Sequence[Path], test: str = "", executions: int = 1, ncu: Path | None = None
) -> Run:
    """The reports as one run: a measurement of one test per file, each a process of its own.

    `test` is its node id; without one it is made of the file's name. Each report has so many
    `executions` of the step, one after the other. The module that opens reports lies beside the
    program `ncu`. A process's id is a digest of its file, so that what is imported twice does not
    count twice. Raises BadFile and UsageFailure for reports that cannot be read, are the same, or
    are not of one device.
    """
    if len(reports) > 1 and not test:
        raise UsageFailure(
            "several reports become processes of one test, which needs a name: --test "
            "tests/perf/test_step.py::test_step. If the tests differ, import the reports one by "
            "one"
        )
    if test and not (suite_of(test) and test.partition("::")[2]):
        raise UsageFailure(
            f"--test {test} is not the id of a test, such as tests/perf/test_a.py::test_b"
        )
    by_process: dict[str, Measurement] = {}
    for file in reports:
        report = profiled_step.read(file, ncu)
        measurement = _measurement(report, test or f"imported/{file.stem}::{STEP}", executions)
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


def _measurement(report: profiled_step.Report, test: str, executions: int) -> Measurement:
    step = profiled_step.step_of(report, executions)
    device = Device(report.arch, report.device, architectures.slug(report.device))
    if not device.slug:
        raise UsageFailure(
            f"{report.file} does not name its GPU, and baselines are kept per GPU. Profile the "
            "step again with a newer ncu"
        )
    replay = ncu_command.RANGE if report.rows[0].kind == "range" else ncu_command.KERNEL
    settings = {"collector": "ncu", "imported": report.file.name, "replay": replay}
    return Measurement(
        test=test,
        name=STEP,
        suite=suite_of(test),
        process=hashlib.sha256(report.file.read_bytes()).hexdigest()[:12],
        configuration="",
        workload={},
        samples=step.samples,
        unsupported=step.unsupported,
        fingerprint=Fingerprint(device, {}, settings),
        kernels=step.kernels,
    )
