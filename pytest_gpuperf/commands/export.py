"""`gpuperf export`: runs in the formats of other programs. Needs no GPU."""

from __future__ import annotations

import argparse
import json

from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.commands import complain, json_text, say
from pytest_gpuperf.commands.flags import add_outputs, add_run, run_of
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.model.metric import Direction
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.report import interchange, view
from pytest_gpuperf.storage import files, run_files

USAGE: str | None = None
EXAMPLES = (
    "gpuperf export run.json --output benchmark.json",
    "gpuperf export run.json --format openmetrics --output run.prom",
)

FORMATS = (
    *("pytest-benchmark", "pytorch", "bencher"),
    *("benchmark-action-smaller", "benchmark-action-bigger", "openmetrics"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf export`."""
    add_run(parser)
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default=FORMATS[0],
        help="pytest-benchmark: what its --benchmark-json writes, step times with our counters; "
        "pytorch: records of its benchmark database, a line each; bencher: Bencher Metric Format; "
        "benchmark-action-smaller, -bigger: its customSmallerIsBetter and customBiggerIsBetter; "
        "openmetrics: for Prometheus; all but the first have every metric of the whole step",
    )
    add_outputs(parser, "default: print it")


def act(options: argparse.Namespace) -> int:
    """Does what the flags say, and returns 0.

    Raises UsageFailure for a run that cannot be read, or has nothing to export, and where
    pytest-benchmark is not installed.
    """
    file = run_of(options)
    run = run_files.load(file)
    try:
        text = _text(run, options.format)
    except (OverflowError, ValueError):
        raise UsageFailure(
            f"{file}: a value or a date is beyond what {options.format} can have: was it edited?"
        ) from None
    if not text:
        lacking = f"; no measurement has a time to export ({', '.join(view.TIMES)})"
        timed = options.format == FORMATS[0]
        raise UsageFailure(
            f"{file}: nothing in it is to be exported as {options.format}{lacking if timed else ''}"
        )
    if not options.outputs:
        say(*text.rstrip("\n").split("\n"))
    for output in options.outputs:
        files.write_atomically(output, text)
        say(f"written: {output}")
    return 0


def _text(run: Run, form: str) -> str:
    """The run in this format; "" where it has nothing for it.

    Raises OverflowError and ValueError for numbers that the format cannot have.
    """
    if form == FORMATS[0]:
        return _benchmarks(run)
    if form == "openmetrics":
        text = interchange.open_metrics(run)
        return "" if text == "# EOF\n" else text
    if form == "pytorch":
        return "".join(f"{_line(record)}\n" for record in interchange.pytorch_records(run))
    if form == "bencher":
        metrics = interchange.bencher_metrics(run)
        return f"{json_text(metrics)}\n" if metrics else ""
    better = Direction.LOWER if form.endswith("smaller") else Direction.HIGHER
    benchmarks = interchange.action_benchmarks(run, better)
    return f"{json_text(benchmarks)}\n" if benchmarks else ""


def _line(record: object) -> str:
    """One line of JSON Lines. Raises ValueError for NaN."""
    return json.dumps(record, allow_nan=False).replace("##", "#\\u0023")


def _benchmarks(run: Run) -> str:
    """As pytest-benchmark writes them; complains of measurements that have no time."""
    try:
        data, timeless = interchange.exported(run)
    except ImportError:
        raise UsageFailure(
            "gpuperf export takes the statistics from pytest-benchmark, which is not installed: "
            'pip install "pytest-gpuperf[benchmark]"'
        ) from None
    if not data["benchmarks"]:
        return ""
    if timeless:
        left_out = counted(len(timeless), "measurement")
        complain(f"{left_out} left out, without a time: {', '.join(timeless)}")
    return json_text(data, indent=4) + "\n"
