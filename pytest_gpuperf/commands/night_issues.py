"""`gpuperf night-issues`: opens, updates and closes one GitHub issue per cause of a red night.

Tests that got slower by one function, or by one library's new version, share an issue. A killed
night, failed tests and a night that compared nothing have one each. What people write stays: only
the block between two marks is ours. An issue that a person closed, or labelled "known", is left
alone until it gets worse by a tenth. One that a night closed stays closed: the same cause opens
another.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pytest_gpuperf.commands import complain, say
from pytest_gpuperf.commands.github_api import BOT, RequestRefused, asked, listed
from pytest_gpuperf.errors import FAILED, OK, printable
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.report.conclusion import NightFinding, Subject, findings, gone
from pytest_gpuperf.report.markdown import cell, code
from pytest_gpuperf.storage import run_files

USAGE: str | None = None
EXAMPLES = ("gpuperf night-issues night/run.json.xz",)
LABEL, KNOWN, GONE = "gpuperf", "known", "gpuperf-gone"
"""Labels: every issue of ours, one that a person accepts for now, one that a night closed."""
MARK, END = "<!-- gpuperf night: ", "<!-- gpuperf end -->"
WORSE = math.log(1.1)
"""How much larger a change, as a logarithm, is news."""
LISTED = 30
"""Tests that a text names."""
TITLE = 200
"""Characters of a title; GitHub takes 256."""


@dataclass
class Issue:
    """An issue of ours, as GitHub has it."""

    number: int
    body: str
    is_open: bool
    labels: frozenset[str]
    key: tuple[str, ...]
    size: float
    """The worst size that it was told with."""
    subjects: tuple[Subject, ...]
    """What it is about; nothing if it is about a whole night."""

    @property
    def is_quiet(self) -> bool:
        """Whether a person has said that it is known."""
        return KNOWN in self.labels or (not self.is_open and GONE not in self.labels)


def marked(finding: NightFinding) -> str:
    """The mark that begins our block: which finding it is, and what was told of it."""
    state = {"key": finding.key, "size": round(finding.size, 4), "tests": finding.subjects}
    # What would end the comment that it stands in is an escape, which is still this JSON.
    text = json.dumps(state).replace("-", r"\u002d").replace(">", r"\u003e")
    return f"{MARK}{text} -->"


def issue_of(entry: dict[str, Any]) -> Issue | None:
    """The issue of this entry; None if it is a person's, a pull request, or without our mark."""
    body = entry.get("body") or ""
    if "pull_request" in entry or entry["user"]["login"] != BOT or MARK not in body:
        return None
    try:
        state = json.loads(body.split(MARK, 1)[1].split(" -->", 1)[0])
        key, size = tuple(map(str, state["key"])), float(state["size"])
        subjects = tuple((str(t), str(n), str(d)) for t, n, d in state["tests"])
    except (ValueError, KeyError, TypeError):
        return None
    labels = frozenset(label["name"] for label in entry["labels"])
    is_open = entry["state"] == "open"
    return Issue(entry["number"], body, is_open, labels, key, size, subjects)


def block(finding: NightFinding, run: Run) -> str:
    """Our part of an issue's text."""
    said = [f"- {cell(line)}" for line in finding.said[:LISTED]]
    if len(finding.said) > LISTED:
        said.append(f"- and {len(finding.said) - LISTED} more")
    lines = [marked(finding), f"**{cell(finding.title)}**", "", *said, ""]
    if pair := finding.revisions:
        lines += [f"Between {cell(pair[0])} (baseline) and {cell(pair[1])}{authors(*pair)}.", ""]
    lines += [f"`{code(command)}`" for command in finding.commands(run)]
    lines += ["", f"Night of {cell(run.created)}: {os.environ.get('NIGHT', '')}", "", END]
    return "\n".join(lines)


def authors(old: str, new: str) -> str:
    """The commits between two revisions, ": 3 commits by a, b"; "" if GitHub has no answer."""
    try:
        found = asked("GET", f"compare/{old}...{new}")
        commits = found["commits"]
        names = {
            (c.get("author") or {}).get("login") or c["commit"]["author"]["name"] for c in commits
        }
        return f": {found['total_commits']} commits by {cell(', '.join(sorted(names)[:5]))}"
    except (RequestRefused, KeyError, TypeError):
        return ""


def told(finding: NightFinding, known: Iterable[Issue], run: Run) -> None:
    """Opens an issue, or tells the one that there is, if that is news."""
    ours = [one for one in known if one.key == finding.key]
    issue = next((one for one in ours if one.is_open), None) or next(
        (one for one in ours if one.is_quiet), None
    )
    title = printable(finding.title)[:TITLE]
    if issue is None:
        asked("POST", "issues", {"title": title, "labels": [LABEL], "body": block(finding, run)})
        say(f"opened: {title}")
        return
    worse = finding.size > issue.size + WORSE
    joined = {*finding.subjects} - {*issue.subjects}
    if not worse and (issue.is_quiet or not joined):
        say(f"{'known' if issue.is_quiet else 'still there'}, #{issue.number}: {title}")
        return
    news = "Worse" if worse else f"{len(joined)} more of the tests"
    before, _, rest = issue.body.partition(MARK)
    body = before + block(finding, run) + rest.partition(END)[2]
    state = {} if issue.is_open else {"state": "open"}
    asked("PATCH", f"issues/{issue.number}", {"body": body, **state})
    comment = f"{news} in the night of {cell(run.created)}: {cell(finding.title)}"
    asked("POST", f"issues/{issue.number}/comments", {"body": comment})
    say(f"{news.lower()}, #{issue.number}: {title}")


def closed(issue: Issue, run: Run) -> None:
    """Closes an issue that this night has shown to be gone."""
    night = f"Gone in the night of {cell(run.created)}: {os.environ.get('NIGHT', '')}"
    asked("POST", f"issues/{issue.number}/comments", {"body": night})
    labels = sorted({*issue.labels, GONE})
    done = {"state": "closed", "state_reason": "completed", "labels": labels}
    asked("PATCH", f"issues/{issue.number}", done)
    say(f"closed, #{issue.number}")


def kept(run: Run, known: list[Issue]) -> int:
    """Opens, tells and closes what this run has something to say of; the number of refusals."""
    found = findings(run)
    keys = {finding.key for finding in found}
    done = [refused(f"not told, {one.title}", partial(told, one, known, run)) for one in found]
    done += [
        refused(f"not closed, #{one.number}", partial(closed, one, run))
        for one in known
        if one.is_open and one.key not in keys and gone(one.subjects, run)
    ]
    return sum(done)


def refused(fails: str, act: Callable[[], None]) -> bool:
    """Whether GitHub refused this, which is said and ends no other."""
    try:
        act()
    except RequestRefused as error:
        complain(f"{fails}: {error}")
        return True
    return False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `gpuperf night-issues`."""
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="the night's runs, one of each GPU"
    )


def act(options: argparse.Namespace) -> int:
    """Looks at each run and says what it did; returns 1 where GitHub refuses.

    NIGHT in the environment is a link to the job. Raises BadFile for a run that cannot be read.
    """
    runs = [run_files.load(file) for file in options.runs]
    entries = listed(f"issues?state=all&labels={LABEL}")
    known = [issue for entry in entries if (issue := issue_of(entry))]
    return FAILED if sum(kept(run, known) for run in runs) else OK
