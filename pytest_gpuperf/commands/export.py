"""`gpuperf export`: a run as OpenMetrics, for Prometheus. Needs no GPU."""

from __future__ import annotations

import argparse

from pytest_gpuperf.commands import say
from pytest_gpuperf.commands.flags import add_outputs, add_run, run_of
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.report.interchange import open_metrics
from pytest_gpuperf.storage import files, run_files

USAGE: str | None = None
EXAMPLES = ("gpuperf export run.json --output run.prom",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf export`."""
    add_run(parser)
    add_outputs(parser, "file to write; default: print")


def act(options: argparse.Namespace) -> int:
    """Exports the run as the flags say, and returns 0.

    Raises UsageFailure for a run that cannot be read, or has nothing to export.
    """
    file = run_of(options)
    try:
        text = open_metrics(run_files.load(file))
    except (OverflowError, ValueError):
        raise UsageFailure(
            f"{file} has a value or a date that OpenMetrics cannot represent. Was it edited?"
        ) from None
    if not text:
        raise UsageFailure(f"{file} has no value that OpenMetrics can represent")
    if not options.outputs:
        say(*text.rstrip("\n").split("\n"))
    for output in options.outputs:
        files.write_atomically(output, text)
        say(f"written: {output}")
    return 0
