"""`gpuperf report`: reports of a saved run, in the formats that the files' suffixes name.

No gate: whatever a run says, the exit code is 0. Needs no GPU.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from pytest_gpuperf.commands import complain, say
from pytest_gpuperf.commands.history import looked_back
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.report import interchange
from pytest_gpuperf.report.interchange import SUFFIXES
from pytest_gpuperf.storage import files, run_files

NAME = "report"
HELP = "write a saved run as HTML, Markdown or JSON; needs no GPU"
USAGE: str | None = None
EXAMPLES = (
    "gpuperf report run.json --output report.html",
    "gpuperf report run.json --history . --output report.html",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf report`."""
    parser.add_argument(
        "run", nargs="?", type=Path, metavar="RUN", help="the run's file; default: the newest"
    )
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="DIR",
        help="judge the run against the baselines in this folder first; tolerances that tests have "
        "in their markers are not known then. Default: the verdicts that the run has",
    )
    parser.add_argument(
        "--history",
        action="append",
        default=[],
        metavar="FOLDER|GLOB|FILE",
        help="runs of other nights: HTML and Markdown then say what got worse since when, who is "
        "suspected and what to type next, with the last 30 days of each test; may be repeated",
    )
    parser.add_argument(
        "--output",
        dest="outputs",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="where to, the format by the suffix: .html, .md or .json; may be repeated; "
        "default: report.html",
    )


def act(options: argparse.Namespace) -> int:
    """Does what the flags say: writes the reports, and returns 0.

    Raises GpuperfError for a run or a baseline that cannot be read, for an unknown suffix, and
    where --history names no run.
    """
    outputs = options.outputs or [Path("report.html")]
    for output in outputs:
        if output.suffix not in SUFFIXES:
            raise UsageFailure(
                f'--output {output.name}: no report has the suffix "{output.suffix}", known are '
                + ", ".join(SUFFIXES)
            )
    file = options.run or run_files.newest(Path.cwd())
    if any(output.resolve() == file.resolve() for output in outputs):
        raise UsageFailure(f"--output {file}: this is the run itself; name another file")
    run = run_files.load(file)
    if run.unfinished:
        complain(f"{file}: {run.unfinished}")
    if options.baseline is not None:
        if not options.baseline.is_dir():
            raise UsageFailure(f"--baseline {options.baseline}: no such folder")
        run = judged(run, options.baseline)
    past = looked_back(options.history, options.baseline) if options.history else None
    for output in outputs:
        text = interchange.report_text(run, output, str(file), past=past)
        files.write_atomically(output, text)
        say(f"report written: {output}")
    return 0


def judged(run: Run, folder: Path) -> Run:
    """`run` with the verdicts, and the kernels, that its measurements have by these baselines.

    What tests expected of it stays. Raises BadFile for a baseline that cannot be trusted.
    """
    from pytest_gpuperf.baselines.judgement import attributed, verdicts
    from pytest_gpuperf.baselines.reference import baseline_of

    results = []
    for result in run.results():
        if result.measurements:
            baseline = baseline_of(result.first, folder, Path.cwd())
            said = verdicts(result.measurements, baseline)
            result = replace(result, verdicts=said, attribution=None, judged_by=baseline.judged_by)
            result = attributed(result, baseline)
        results.append(result)
    return run.with_results(results)
