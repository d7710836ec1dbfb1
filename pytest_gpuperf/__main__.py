"""The command `gpuperf`: one module of `commands/` for each word that may follow it.

`python -m pytest_gpuperf` is the same, for a checkout that is not installed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, cast

from pytest_gpuperf import __version__
from pytest_gpuperf.commands import (
    ab,
    baseline,
    bisect,
    calibrate,
    compare,
    complain,
    doctor,
    export,
    history,
    import_ncu,
    metrics,
    record,
    report,
    update_baseline,
)
from pytest_gpuperf.errors import BAD_CONFIGURATION, INTERRUPTED, OK, GpuperfError, meant


class Command(Protocol):
    """A module of `commands/`."""

    NAME: str
    """What one types after `gpuperf`."""
    HELP: str
    """One line of `gpuperf --help`."""
    USAGE: str | None
    """How it is called, where argparse would not say it well."""
    EXAMPLES: tuple[str, ...]
    """Lines that one may type, at the end of its help."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    act: Callable[[argparse.Namespace], int]
    """Does what the flags say, and returns the exit code. Raises GpuperfError for bad input."""


COMMANDS = tuple(
    cast("Command", module)
    for module in (
        *(doctor, metrics, record, update_baseline, baseline, ab, bisect, compare),
        *(report, history, calibrate, import_ncu, export),
    )
)
"""In the order of `gpuperf --help`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; errors go to stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    _complete(parser)
    words, after = _parted(words)
    known = [command.NAME for command in COMMANDS]
    if words and not words[0].startswith("-") and words[0] not in known:
        # argparse lists them and does not say which is nearest.
        complain(f'no command "{words[0]}".{meant(words[0], known)} There are {", ".join(known)}')
        return BAD_CONFIGURATION
    try:
        options = parser.parse_args(words)
    except SystemExit as stop:
        # argparse exits with 2 for bad words; ours is pytest's code for bad configuration.
        return BAD_CONFIGURATION if stop.code else OK
    if after is not None:
        options.pytest_args = after
    try:
        code: int = options.act(options)
    except GpuperfError as error:
        complain(error)
        return BAD_CONFIGURATION
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    return code


def _parted(words: list[str]) -> tuple[list[str], list[str] | None]:
    """The words, and those after "--" where they are pytest's and others before it are not.

    argparse would give them to whatever of the others may be left out.
    """
    if words[:1] not in ([ab.NAME], [bisect.NAME]):
        return words, None
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end + 1 :]


def _complete(parser: argparse.ArgumentParser) -> None:
    """Answers a shell that asks how a line goes on, and exits then; see docs/usage.md."""
    if "_ARGCOMPLETE" in os.environ:
        with suppress(ImportError):
            import argcomplete

            argcomplete.autocomplete(parser)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpuperf", description="Baselines and checks for pytest-gpuperf."
    )
    parser.add_argument("--version", action="version", version=f"gpuperf {__version__}")
    words = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        word = words.add_parser(
            command.NAME,
            help=command.HELP,
            usage=command.USAGE,
            epilog="\n  ".join(("for example:", *command.EXAMPLES)),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(word)
        word.set_defaults(act=command.act)
    return parser


if __name__ == "__main__":
    sys.exit(main())
