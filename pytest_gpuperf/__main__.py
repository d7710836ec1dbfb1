"""The command `gpuperf`: one module of `commands/` for each of its commands.

Only the module of the typed command is imported. `python -m pytest_gpuperf` is the same, for a
checkout that is not installed.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from pytest_gpuperf import __version__
from pytest_gpuperf.commands import complain
from pytest_gpuperf.errors import BAD_CONFIGURATION, INTERRUPTED, OK, GpuperfError

COMMANDS = {
    "doctor": "check whether gpuperf can measure on this machine, and describe its GPU",
    "metrics": "list metrics and their NVIDIA counters; needs no GPU",
    "record": "run tests in several fresh processes and save one run",
    "update-baseline": "accept a saved run as the baseline; needs no GPU",
    "baseline": "rename entries of baseline files; needs no GPU",
    "ab": "compare two revisions, measured in turn on one device; needs no baseline",
    "bisect": "find the commit or package release that made tests slower; needs no baseline",
    "compare": "compare two runs; needs no GPU",
    "report": "write a saved run as HTML, Markdown or JSON; needs no GPU",
    "history": "show trends over many nights and the nights on which a level changed; needs no GPU",
    "prove": "put known slowdowns into tests, and check that they fail",
    "calibrate": "estimate noise and false alarms from runs of identical code; needs no GPU",
    "import": "convert a report of ncu (Nsight Compute) to a run; needs no GPU",
    "night": "measure and judge a night on this machine, keep the run, and tell what came of it",
    "night-issues": "open, update and close a GitHub issue per cause of a red night; needs no GPU",
    "propose-baseline": "open a pull request with the baselines of a recorded run; needs no GPU",
    "pull-comment": "comment on a pull request with what was measured of it; needs no GPU",
    "export": "convert a saved run to the format of another program; needs no GPU",
}
"""The purpose of each command, in the order of `gpuperf --help`."""
_MODULES = {"import": "import_ncu"}
"""Names of modules that are not those of their commands."""
_WITH_PYTEST_ARGS = ("ab", "bisect", "prove", "night")


class Command(Protocol):
    """A module of `commands/`."""

    USAGE: str | None
    """The usage line; None if argparse's own is good enough."""
    EXAMPLES: tuple[str, ...]
    """Lines that one may type, at the end of its help."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    act: Callable[[argparse.Namespace], int]
    """Does what the flags say, and returns the exit code. Raises GpuperfError for bad input."""


def imported(name: str) -> Command:
    """The module of a command, one of COMMANDS."""
    module = _MODULES.get(name, name.replace("-", "_"))
    return cast("Command", importlib.import_module(f"pytest_gpuperf.commands.{module}"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; errors go to stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    words, after = _parted(words)
    try:
        options = parser(words).parse_args(words)
    except SystemExit as stop:
        # argparse exits with 2 for bad words; ours is pytest's code for bad configuration.
        return BAD_CONFIGURATION if stop.code else OK
    options.words = words
    if after is not None:
        options.pytest_args = after
    try:
        code: int = options.act(options)
    except GpuperfError as error:
        complain(error)
        return error.code
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    return code


def _parted(words: list[str]) -> tuple[list[str], list[str] | None]:
    """The command's words, and the words after "--" for pytest, if the command takes both.

    argparse would assign the latter to any optional argument of the command.
    """
    if not words or words[0] not in _WITH_PYTEST_ARGS:
        return words, None
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end + 1 :]


def parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser with all commands; flags only for the command that begins the words."""
    whole = argparse.ArgumentParser(
        prog="gpuperf", description="Baselines and checks for pytest-gpuperf."
    )
    whole.add_argument("--version", action="version", version=f"gpuperf {__version__}")
    known = whole.add_subparsers(required=True, metavar="COMMAND")
    for name, purpose in COMMANDS.items():
        if name not in words[:1]:
            known.add_parser(name, help=purpose)
            continue
        command = imported(name)
        own = known.add_parser(
            name,
            help=purpose,
            usage=command.USAGE,
            epilog="\n  ".join(("for example:", *command.EXAMPLES)),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(own)
        own.set_defaults(act=command.act)
    return whole


if __name__ == "__main__":
    sys.exit(main())
