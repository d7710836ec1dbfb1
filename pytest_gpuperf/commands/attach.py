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
EXAMPLES = ("gpuperf attach infer.py --batch 4", "gpuperf attach --name server -m engine.worker")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf attach`."""
    parser.add_argument("--name", default="worker", help="what the run calls it; default: worker")
    parser.add_argument("-m", dest="module", metavar="MODULE", help="a module in place of a script")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="SCRIPT ARGS")


def act(options: argparse.Namespace) -> int:
    """Runs the program as Python would, all of it in one block of a worker.

    What it raises, its exit code too, comes out. Raises UsageFailure where no program is named.
    """
    words: list[str] = options.program
    if options.module:
        sys.argv = [options.module, *words]
        sys.path.insert(0, str(Path.cwd()))
        with attached(options.name, first_use=True):
            runpy.run_module(options.module, run_name="__main__", alter_sys=True)
        return OK
    if not words:
        raise UsageFailure(f"which program? {USAGE}")
    if not Path(words[0]).is_file():
        raise UsageFailure(f"{words[0]}: no such script")
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    with attached(options.name, first_use=True):
        runpy.run_path(words[0], run_name="__main__")
    return OK
