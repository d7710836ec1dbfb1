"""`gpuperf night`: measures, judges, keeps the run and says what came of it, on this machine.

First `gpuperf doctor`: if it says no, nothing is measured. Then pytest with
--gpuperf-require-judged. Whatever comes of that, the folder of --into has `run.json.xz`,
`report.html`, `night.md` and `doctor.json`; of a killed pytest they say so first. With --nights,
report and summary say since when something is worse, and what differs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import urlsplit

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.units import counted, value
from pytest_gpuperf.commands import complain, doctor, prove, say
from pytest_gpuperf.commands.github_api import RequestRefused, sent
from pytest_gpuperf.commands.history import looked_back
from pytest_gpuperf.errors import FAILED, UsageFailure
from pytest_gpuperf.history import retention
from pytest_gpuperf.history.nights import History
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.report import markdown
from pytest_gpuperf.report.conclusion import Conclusion, concluded, findings
from pytest_gpuperf.report.github import SUMMARY_LIMIT
from pytest_gpuperf.report.interchange import report_text
from pytest_gpuperf.report.proof import proof_of
from pytest_gpuperf.storage import files, run_files

USAGE = (
    "gpuperf night [--into FOLDER] [--nights FOLDER [--keep DAYS]] [--prove] [--notify URL] "
    "-- PYTEST-ARGS"
)
EXAMPLES = (
    "gpuperf night --nights nights -- --gpu-arch sm90 tests/perf",
    "gpuperf night -- --gpu-arch cpu tests/perf",
)
RUN, REPORT, SUMMARY = "run.json.xz", "report.html", "night.md"
DOCTOR, PROOF = "doctor.json", "proof.json.xz"
_FOREIGN = ("pull_request", "pull_request_target")
"""GitHub's events for which a checkout has the code of a pull request."""
_TEAMS = (".webhook.office.com", ".logic.azure.com", ".api.powerplatform.com")
_UNMEASURABLE = "this machine cannot be measured: the job's log has what gpuperf doctor says"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf night`."""
    parser.add_argument(
        "--into", type=Path, default=Path(), metavar="FOLDER", help="what the night leaves"
    )
    parser.add_argument(
        "--nights", type=Path, metavar="FOLDER", help="keep the runs of all nights here"
    )
    parser.add_argument(
        "--keep", type=int, metavar="DAYS", help="remove runs of --nights that are older"
    )
    parser.add_argument(
        "--prove", action="store_true", help="then check with known slowdowns that tests can fail"
    )
    parser.add_argument(
        "--notify",
        metavar="URL",
        default=os.environ.get("GPUPERF_NOTIFY", ""),
        help="tell of a red night there: Slack, Teams, or plain JSON; default: GPUPERF_NOTIFY",
    )
    parser.add_argument("pytest_args", nargs="*", metavar="PYTEST-ARGS")


def act(options: argparse.Namespace) -> int:
    """Measures and tells; returns the exit code of the night.

    That is pytest's; 128 and the signal for a killed one; 1 where nothing was judged or a gate is
    dead; that of `gpuperf doctor`. Raises UsageFailure for a pull request's code.
    """
    if os.environ.get("GITHUB_EVENT_NAME") in _FOREIGN:
        raise UsageFailure("`gpuperf night` measures no pull request. Use `gpuperf ab`")
    into: Path = options.into
    into.mkdir(parents=True, exist_ok=True)
    for name in (RUN, REPORT, SUMMARY, PROOF):  # a job must not take another night's for this one's
        (into / name).unlink(missing_ok=True)
    fit = _measurable(into, options.pytest_args)
    night = _measured(options) if fit else _nothing(into, FAILED, _UNMEASURABLE)
    if night.code and options.notify:
        _notify(options.notify, night)
    return night.code


def _measurable(into: Path, arguments: Sequence[str]) -> bool:
    """Writes the doctor's answer; whether tests can be measured. On a CPU they always can."""
    asked = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    asked.add_argument("--gpu-arch")
    on_cpu = asked.parse_known_args(arguments)[0].gpu_arch == architectures.CPU
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = doctor.act(argparse.Namespace(format="json"))
    files.write_atomically(into / DOCTOR, out.getvalue())
    if code and not on_cpu:
        doctor.act(argparse.Namespace(format="text"))
    return not code or on_cpu


def _measured(options: argparse.Namespace) -> Conclusion:
    """Runs pytest, and makes of its run what is left and kept.

    What fails after pytest makes no verdict red and none green.
    """
    into: Path = options.into
    command = [sys.executable, "-m", "pytest", "--gpuperf-require-judged"]
    command += [f"--gpuperf-run={into / RUN}", *options.pytest_args]
    # The summary is this night's, and not the session's.
    environment = {k: v for k, v in os.environ.items() if k != "GITHUB_STEP_SUMMARY"}
    code = subprocess.run(command, check=False, env=environment).returncode
    ended_with = code if code >= 0 else 128 - code  # as a shell has it for a signal
    if not (into / RUN).exists():
        ended = f"signal {-code} ended pytest" if code < 0 else f"pytest's exit code was {code}"
        return _nothing(into, ended_with or FAILED, f"a night that judged nothing; {ended}")
    run, dead, past = _ended(into / RUN, code), "", None
    nights = options.nights and options.nights.expanduser()
    try:
        if nights:
            _keep(into / RUN, nights, options.keep)
            past = looked_back([str(nights)])
        if options.prove and code in (0, FAILED):
            dead = _unproven(into, options.pytest_args)
    except Exception as error:  # a full disk, a broken folder of nights
        complain(error)
    night = concluded(run, ended_with or (FAILED if dead else 0), dead, past)
    try:
        _write(into, night, past, dead)
    except Exception as error:
        complain(error)
    return night


def _nothing(into: Path, code: int, why: str) -> Conclusion:
    """The conclusion without a run; an empty one is left, for what reads it."""
    run = replace(run_files.merged((), "gpuperf night"), skipped={"the whole night": why})
    run_files.save(run, into / RUN)
    _append(into, f"# gpuperf: {markdown.cell(why)}\n")
    return Conclusion(code, why, findings(run), run)


def _ended(file: Path, code: int) -> Run:
    """The run, with the signal that ended pytest, if any did."""
    run = run_files.load(file)
    if run.unfinished and code < 0:
        run = replace(run, unfinished=replace(run.unfinished, signal=-code))
        run_files.save(run, file)
    return run


def _keep(run: Path, nights: Path, days: int | None) -> None:
    """Puts the run beside those of other nights, never over one, and removes the oldest."""
    nights.mkdir(parents=True, exist_ok=True)
    now = datetime.now(timezone.utc)
    when = now.strftime("%Y%m%dT%H%M%S.%f")
    draft = nights / f".{when}-{os.getpid()}"
    shutil.copyfile(run, draft)
    draft.rename(nights / f"{when}-{os.getpid()}.json.xz")
    if days is not None:
        removed, stays = retention.keep(nights, days, now)
        say(f"{nights}: {counted(removed, 'run')} removed; {value(stays, 'bytes')} stay")


def _unproven(into: Path, arguments: Sequence[str]) -> str:
    """Puts known slowdowns into the tests. Returns "" only if a proof was made, and holds."""
    words = ["prove", f"--output={into / PROOF}"]
    chosen = argparse.Namespace(is_complete=False, output=into / PROOF, words=words)
    chosen.pytest_args = list(arguments)
    try:
        code = prove.act(chosen)
    except Exception as error:
        complain(error)
        code = getattr(error, "code", FAILED)
    return f"`gpuperf prove` ended with exit code {code}; the job's log says why" if code else ""


def _write(into: Path, night: Conclusion, past: History | None, dead: str) -> None:
    """Writes the report and the summary, with what other nights and a proof say."""
    proof = proof_of(run_files.load(into / PROOF)) if (into / PROOF).exists() else None
    html = report_text(night.run, into / REPORT, str(into / RUN), None, past, proof)
    files.write_atomically(into / REPORT, html)
    _append(into, markdown.markdown(night.run, SUMMARY_LIMIT // 2, None, night.findings))
    if dead:
        _append(into, f"# gpuperf: {dead}\n")
    if past:
        _append(into, markdown.nights(past))


def _append(into: Path, text: str) -> None:
    """Adds a text to the summary, and to that of the job, where there is one."""
    job = os.environ.get("GITHUB_STEP_SUMMARY")
    for file in (into / SUMMARY, *([Path(job)] if job else [])):
        with file.open("a", encoding="utf-8") as stream:
            stream.write(f"{text}\n")


def _notify(url: str, night: Conclusion) -> None:
    """Tells of a red night. A failure is said, and no more."""
    host = urlsplit(url).hostname or ""
    try:
        sent(url, message(host, night, os.environ.get("NIGHT", "")))
    except (RequestRefused, ValueError) as error:  # without the address, which is a secret
        complain(f"--notify: {host} took no message: {error if host else 'this is no URL'}")


def message(host: str, night: Conclusion, link: str) -> object:
    """The JSON that this host takes: Slack's, that of Teams, or that of the conclusion.

    https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks,
    https://learn.microsoft.com/power-automate/teams/send-a-message-in-teams
    """
    text = "\n".join(filter(None, (*night.lines(), link)))
    if host == "hooks.slack.com":
        return {"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}
    if host.endswith(_TEAMS):
        block = {"type": "TextBlock", "text": text.replace("\n", "\n\n"), "wrap": True}
        card = {"type": "AdaptiveCard", "version": "1.4", "body": [block]}
        kind = "application/vnd.microsoft.card.adaptive"
        return {"type": "message", "attachments": [{"contentType": kind, "content": card}]}
    return night.data(link)
