"""`gpuperf propose-baseline`: a pull request with the baselines of a recorded run, as old -> new.

In a checkout without changes. What `gpuperf update-baseline` refuses is proposed nowhere.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import os
import re
from pathlib import Path
from unittest import mock

from pytest_gpuperf.commands import flags, say, update_baseline
from pytest_gpuperf.commands.github_api import BOT, TEXT_LIMIT, asked, setting
from pytest_gpuperf.errors import OK
from pytest_gpuperf.storage import files

USAGE: str | None = None
EXAMPLES = ("gpuperf propose-baseline recorded.json.xz",)
_MAIL = "41898282+github-actions[bot]@users.noreply.github.com"
"""https://github.com/actions/checkout: how commits become those of the job."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `gpuperf propose-baseline`."""
    parser.add_argument("runs", nargs=1, type=Path, metavar="RUN", help="file of `gpuperf record`")
    flags.add_baselines(parser)


def act(options: argparse.Namespace) -> int:
    """Accepts the run, pushes a branch and opens its pull request.

    In the environment: REASON; BRANCH, the pull request's base; NUMBER, which names the branch, so
    that the same job's second attempt finds its own. Returns the exit code of `update-baseline`.
    Raises UsageFailure or RequestRefused where git or GitHub refuses.
    """
    reason, run = setting("REASON").strip(), options.runs[0]
    folder = str(flags.baselines_folder(options))
    accepting = argparse.ArgumentParser()
    update_baseline.add_arguments(accepting)
    words = [str(run), "--baselines", folder, "--reason", reason, "--yes"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = update_baseline.act(accepting.parse_args(words))
    shown = out.getvalue()
    say(*shown.splitlines())
    if code:
        return code
    files.git(Path.cwd(), "add", "--", folder)
    if not files.git(Path.cwd(), "status", "--porcelain", "--", folder):
        say("nothing is new: there is nothing to propose")
        return OK
    branch = f"gpuperf/baseline-{setting('NUMBER')}"
    title = f"Baselines: {reason.splitlines()[0]}"[:100]
    identity = ("-c", f"user.name={BOT}", "-c", f"user.email={_MAIL}")
    files.git(Path.cwd(), *identity, "commit", "--quiet", "--no-verify", "-m", title, "--", folder)
    _push(branch)
    owner = setting("GITHUB_REPOSITORY").partition("/")[0]
    if asked("GET", f"pulls?state=open&head={owner}:{branch}"):
        say(f"proposed already: {branch} is brought up to date")
        return OK
    wanted = {"title": title, "head": branch, "base": setting("BRANCH")}
    asked("POST", "pulls", {**wanted, "body": _text(reason, run.name, shown)})
    say(f"proposed: {branch}")
    return OK


def _text(reason: str, run: str, shown: str) -> str:
    """The pull request's text; what a test is called stays a text in it."""
    most = shown
    if len(shown) > TEXT_LIMIT:
        most = f"{shown[:TEXT_LIMIT]}\n(cut: the whole is in the job's log)"
    # Longer than any in it: nothing in it ends the block, and in a block nobody is called by name.
    fence = max(["``", *re.findall("`+", most)], key=len) + "`"
    quoted = "\n".join(f"> {line}" for line in reason.splitlines())
    return f"{quoted}\n\n`{run}`, accepted:\n\n{fence}\n{most.strip()}\n{fence}\n"


def _push(branch: str) -> None:
    """Puts the commit on GitHub, over that of the job's last attempt.

    The token is on no command line, and in no file.
    """
    login = base64.b64encode(f"x-access-token:{setting('GITHUB_TOKEN')}".encode()).decode()
    server = setting("GITHUB_SERVER_URL")
    secret = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"http.{server}/.extraheader",
        "GIT_CONFIG_VALUE_0": f"AUTHORIZATION: basic {login}",
    }
    with mock.patch.dict(os.environ, secret):
        address = f"{server}/{setting('GITHUB_REPOSITORY')}"
        files.git(Path.cwd(), "push", "--quiet", "--force", address, f"HEAD:refs/heads/{branch}")
