"""`gpuperf export`: runs in the formats of services that collect. Needs no GPU."""

from __future__ import annotations

import argparse

from pytest_gpuperf.commands import json_text, say
from pytest_gpuperf.commands.flags import add_outputs, add_run, run_of
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.model.metric import Direction
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.report import interchange
from pytest_gpuperf.storage import files, run_files

USAGE: str | None = None
EXAMPLES = (
    "gpuperf export run.json --output run.prom",
    "gpuperf export run.json --format benchmark-action-smaller --output smaller.json",
)

FORMATS = ("openmetrics", "benchmark-action-smaller", "benchmark-action-bigger")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf export`."""
    add_run(parser)
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default=FORMATS[0],
        help="openmetrics for Prometheus; benchmark-action-smaller or -bigger for "
        "customSmallerIsBetter or customBiggerIsBetter; default: openmetrics",
    )
    add_outputs(parser, "file to write; default: print")


def act(options: argparse.Namespace) -> int:
    """Exports the run as the flags say, and returns 0.

    Raises UsageFailure for a run that cannot be read, or has nothing to export.
    """
    file = run_of(options)
    run = run_files.load(file)
    try:
        text = _text(run, options.format)
    except (OverflowError, ValueError):
        raise UsageFailure(
            f"{file} has a value or a date that {options.format} cannot represent. Was it edited?"
        ) from None
    if not text:
        raise UsageFailure(f"{file} has no value that {options.format} can represent")
    if not options.outputs:
        say(*text.rstrip("\n").split("\n"))
    for output in options.outputs:
        files.write_atomically(output, text)
        say(f"written: {output}")
    return 0


def _text(run: Run, form: str) -> str:
    """The run in this format; "" where the run has nothing for the format.

    Raises OverflowError and ValueError for numbers that the format cannot have.
    """
    if form == FORMATS[0]:
        text = interchange.open_metrics(run)
        return "" if text == "# EOF\n" else text
    better = Direction.LOWER if form.endswith("smaller") else Direction.HIGHER
    benchmarks = interchange.action_benchmarks(run, better)
    return f"{json_text(benchmarks)}\n" if benchmarks else ""
