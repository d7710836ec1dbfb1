"""`gpuperf report`: reports of a saved run, in the formats that the files' suffixes name.

No gate: whatever a run says, the exit code is 0. Needs no GPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_gpuperf.commands import complain, write_reports
from pytest_gpuperf.commands.flags import add_outputs, add_run, check_outputs, run_of
from pytest_gpuperf.commands.history import looked_back
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.report.interchange import SUFFIXES, report_text
from pytest_gpuperf.report.proof import proof_of
from pytest_gpuperf.storage import run_files

USAGE: str | None = None
EXAMPLES = (
    "gpuperf report run.json --output report.html",
    "gpuperf report run.json --history . --output report.html",
    "gpuperf report run.json --prove proof.json.xz --output report.html",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf report`."""
    add_run(parser)
    parser.add_argument(
        "--history",
        action="append",
        default=[],
        metavar="FOLDER|GLOB|FILE",
        help="runs of earlier nights; may be repeated; with them, HTML and Markdown show when each "
        "regression began, its likely causes and the next commands",
    )
    parser.add_argument(
        "--prove", type=Path, metavar="FILE", help="run file of `gpuperf prove`, for HTML reports"
    )
    add_outputs(
        parser,
        "report to write; the suffix (.html, .md, .json) sets the format; default: report.html",
    )


def act(options: argparse.Namespace) -> int:
    """Writes the reports as the flags say, and returns 0.

    Raises GpuperfError for a run that cannot be read, for an unknown suffix, and where --history
    names no run.
    """
    outputs = options.outputs or [Path("report.html")]
    check_outputs(outputs, SUFFIXES)
    file = run_of(options)
    if any(output.resolve() == file.resolve() for output in outputs):
        raise UsageFailure(f"--output {file} is the run itself. Name another file")
    if options.prove and not any(output.suffix == ".html" for output in outputs):
        raise UsageFailure("--prove is only for HTML. Name an --output that ends in .html")
    run = run_files.load(file)
    if run.unfinished:
        complain(f"{file}: {run.unfinished}")
    projects = {one.fingerprint.project for one in run.measurements} - {""}
    past = looked_back(options.history, projects=projects) if options.history else None
    proven = run_files.load(options.prove) if options.prove else None
    if proven and not proven.command.startswith(run_files.PROVE):
        raise UsageFailure(f"{options.prove}: `gpuperf prove` did not write this run file")
    proof = proof_of(proven) if proven else None
    write_reports(outputs, lambda output: report_text(run, output, str(file), None, past, proof))
    return 0
