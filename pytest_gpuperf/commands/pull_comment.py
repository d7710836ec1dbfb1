"""`gpuperf pull-comment`: one comment under a pull request with what was measured of it.

The job that measured ran the pull request's code, so nothing that it left is believed. `number` has
to be a pull request whose head is MEASURED. `ab.md` is text, cut to what a comment may have, that
calls nobody by name. Without `ab.md` the comment says that nothing was measured.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_gpuperf.commands import say
from pytest_gpuperf.commands.github_api import BOT, TEXT_LIMIT, Refused, asked, listed, setting
from pytest_gpuperf.errors import OK

USAGE: str | None = None
EXAMPLES = ("MEASURED=$HEAD gpuperf pull-comment left",)
MARK = "<!-- gpuperf ab -->"
"""Begins our comment, by which it is known again."""
_MOST_BYTES = 2**20
_NOTHING = "Nothing was measured: the job ended before it had a report."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The argument of `gpuperf pull-comment`."""
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="`number` and `ab.md`, as the job left them"
    )


def act(options: argparse.Namespace) -> int:
    """Makes the comment or brings it up to date, and returns 0.

    Raises Refused where GitHub refuses, or where the pull request is not at the revision MEASURED.
    """
    measured = setting("MEASURED")
    written = _left(options.folder / "number", 20).strip()
    if not (written.isascii() and written.isdigit()):
        raise Refused(f"number: {written!r} is no pull request")
    number = int(written)
    head = asked("GET", f"pulls/{number}")["head"]["sha"]
    if head != measured:
        raise Refused(
            f"pull request {number} is at {head[:12]}, and {measured[:12]} was measured: nothing "
            "is said of it there. Measure it again"
        )
    body = {"body": _text(_left(options.folder / "ab.md", _MOST_BYTES), measured)}
    known = _own_comment(number)
    if known is None:
        asked("POST", f"issues/{number}/comments", body)
    else:
        asked("PATCH", f"issues/comments/{known}", body)
    say(f"pull request {number}: comment {'made' if known is None else 'brought up to date'}")
    return OK


def _left(file: Path, most: int) -> str:
    """The text of a file that somebody else wrote; "" where there is none."""
    if file.is_symlink() or not file.is_file():
        return ""
    with file.open("rb") as opened:
        return opened.read(most).decode(errors="replace")


def _text(report: str, revision: str) -> str:
    """The comment: the report of that revision, with nobody called by name."""
    said = (report.strip() or _NOTHING).replace("@", "@\u200b").replace("<!--", "<\u200b!--")
    if len(said) > TEXT_LIMIT:
        # Whatever was open at the cut is closed, so that the last line is read as such.
        said = f"{said[:TEXT_LIMIT]}\n```\n\nThe report is longer: the job's artifacts have it"
    return f"{MARK}\n{said}\n\nMeasured at {revision[:12]}."


def _own_comment(number: int) -> int | None:
    """The id of our comment under that pull request, None where there is none yet."""
    for comment in listed(f"issues/{number}/comments"):
        if comment["user"]["login"] == BOT and comment["body"].startswith(MARK):
            return int(comment["id"])
    return None
