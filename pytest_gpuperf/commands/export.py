"""`gpuperf export`: runs in the formats of other programs. Needs no GPU."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_gpuperf.commands import complain, json_text, say
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.report import interchange
from pytest_gpuperf.report.text.progress import counted
from pytest_gpuperf.storage import files, run_files

NAME = "export"
HELP = "write a saved run in the format of another program; needs no GPU"
USAGE: str | None = None
EXAMPLES = ("gpuperf export run.json --output benchmark.json",)

FORMATS = ("pytest-benchmark",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf export`."""
    parser.add_argument(
        "run", nargs="?", type=Path, metavar="RUN", help="a saved run; default: the newest"
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default=FORMATS[0],
        help="pytest-benchmark: what its --benchmark-json writes, step times with our counters",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: print it")


def act(options: argparse.Namespace) -> int:
    """Does what the flags say, and returns 0.

    Raises UsageFailure for a run that cannot be read, or has nothing to export, and where
    pytest-benchmark is not installed.
    """
    file: Path = options.run or run_files.newest(Path.cwd())
    text = _benchmarks(file)
    if options.output is None:
        say(*text.rstrip("\n").split("\n"))
        return 0
    files.write_atomically(options.output, text)
    say(f"written: {options.output}")
    return 0


def _benchmarks(file: Path) -> str:
    run = run_files.load(file)
    try:
        data, timeless = interchange.exported(run)
        text = json_text(data, indent=4)
    except (OverflowError, ValueError):
        raise UsageFailure(
            f"{file}: its times are beyond what statistics can be made of: was it edited?"
        ) from None
    except ImportError:
        raise UsageFailure(
            "gpuperf export takes the statistics from pytest-benchmark, which is not installed: "
            'pip install "pytest-gpuperf[benchmark]"'
        ) from None
    times = ", ".join(interchange.TIMES)
    if not data["benchmarks"]:
        raise UsageFailure(f"{file}: no measurement has a time to export ({times})")
    if timeless:
        left_out = counted(len(timeless), "measurement")
        complain(f"{left_out} left out, without a time: {', '.join(timeless)}")
    return text + "\n"
