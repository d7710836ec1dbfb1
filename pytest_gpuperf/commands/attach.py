"""`gpuperf attach`: a program that a test's step starts, whose work is a part of that step."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from pytest_gpuperf.errors import OK, UsageFailure
from pytest_gpuperf.measure.attachment import attached

NAME = "attach"
HELP = "run a Python program as a worker of the test whose step started it"
USAGE = "gpuperf attach [--name NAME] {SCRIPT | -m MODULE} [ARGS ...]"
EXAMPLES = (
    "gpuperf attach infer.py --batch 4",
    "gpuperf attach --name server -m engine.worker --port 0",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf attach`."""
    parser.add_argument("--name", default="worker", help="what the run calls it; default: worker")
    parser.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        metavar="MODULE ARGS",
        help="a module in place of a script, and its arguments",
    )
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="SCRIPT ARGS")


def act(options: argparse.Namespace) -> int:
    """Runs the program as Python would, all of it in one block of a worker.

    What it raises, its exit code too, comes out. Raises UsageFailure where no program is named.
    """
    words: list[str] = options.module or options.script
    if not words:
        raise UsageFailure(f"which program? {USAGE}")
    program = words[0]
    if options.module is None and not Path(program).is_file():
        raise UsageFailure(f"{program}: no such script")
    sys.argv = words
    folder = Path.cwd() if options.module else Path(program).resolve().parent
    sys.path.insert(0, str(folder))
    with attached(options.name, first_use=True):
        if options.module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program, run_name="__main__")
    return OK
