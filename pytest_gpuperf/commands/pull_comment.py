"""`gpuperf pull-comment`: one comment under a pull request with what was measured of it.

The job that measured ran the pull request's code, so nothing that it left is believed. The number
PULL and the revision MEASURED are from the maintainer who started it. `ab.md` is cut to what a
comment may have and indented: no line of it is Markdown, or a command to a bot. Without `ab.md`
the comment says that nothing was measured.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from pytest_gpuperf.commands import say
from pytest_gpuperf.commands.github_api import (
    BOT,
    TEXT_LIMIT,
    RequestRefused,
    asked,
    listed,
    setting,
)
from pytest_gpuperf.errors import OK, printable

USAGE: str | None = None
EXAMPLES = ("gpuperf pull-comment left",)
MARK = "<!-- gpuperf ab -->"
"""Begins our comment, by which it is known again."""
_MOST_BYTES, _MOST_LINES = 2**20, 500
_WHOSE = "The pull request's code ran while this text was made, and may have written any of it:"
_NOTHING = "Nothing was measured: the job ended before it had a report."
_LONGER = "The text is longer: the job's artifacts have it."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The argument of `gpuperf pull-comment`."""
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="what the job left, with `ab.md`"
    )


def act(options: argparse.Namespace) -> int:
    """Makes the comment or brings it up to date, and returns 0.

    Raises RequestRefused where GitHub refuses, or the pull request is not at MEASURED.
    """
    measured, number = setting("MEASURED"), setting("PULL")
    if not (number.isascii() and number.isdigit()):
        raise RequestRefused(f"PULL: {number!r} is no number of a pull request")
    head = asked("GET", f"pulls/{number}")["head"]["sha"]
    if head != measured:
        raise RequestRefused(
            f"pull request {number} is at {head[:12]}, and {measured[:12]} was measured: nothing "
            "is said of it there. Measure it again"
        )
    body = {"body": f"{MARK}\nMeasured at {measured[:12]}. {_text(options.folder / 'ab.md')}"}
    ours = (
        comment["id"]
        for comment in listed(f"issues/{number}/comments")
        if comment["user"]["login"] == BOT and comment["body"].startswith(MARK)
    )
    known = next(ours, None)
    if known is None:
        asked("POST", f"issues/{number}/comments", body)
    else:
        asked("PATCH", f"issues/comments/{known}", body)
    say(f"pull request {number}: comment {'made' if known is None else 'brought up to date'}")
    return OK


def _text(file: Path) -> str:
    """What somebody else wrote, as a block of text that says whose it is."""
    if file.is_symlink() or not file.is_file():
        return _NOTHING
    with file.open("rb") as opened:
        lines = opened.read(_MOST_BYTES).decode(errors="replace").splitlines()
    # In a block, nothing is Markdown, and escapes are only in the way.
    plain = (re.sub(r"\\([^a-zA-Z0-9\s])", r"\1", line) for line in lines[:_MOST_LINES])
    shown = "\n".join(f"    {printable(line)}" for line in plain)
    # Other programs know their comments by a mark, and bots their orders by a name.
    shown = shown.replace("<!--", "<\u200b!--").replace("@", "@\u200b")
    cut = f"\n\n{_LONGER}" if len(lines) > _MOST_LINES or len(shown) > TEXT_LIMIT else ""
    return f"{_WHOSE}\n\n{shown[:TEXT_LIMIT]}{cut}" if shown.strip() else _NOTHING
