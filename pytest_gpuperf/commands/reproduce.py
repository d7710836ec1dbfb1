"""`gpuperf reproduce`: what measured a run, what is different here, and the command for it.

A run may come from anybody, and arguments of pytest execute, write and delete what they name. So
nothing of a run is executed but tests of the project that one stands in, with flags of ours that
only say how they are measured.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.commands import say, tell
from pytest_gpuperf.errors import OK, UsageFailure, printable
from pytest_gpuperf.measure.device import fingerprint, nvml
from pytest_gpuperf.measure.worktrees import Repository, Tree, repository, worktrees
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.model.result import Run, worst_first
from pytest_gpuperf.report.text.failure import brief
from pytest_gpuperf.report.text.next_command import alone, typed
from pytest_gpuperf.storage import run_files

NAME = "reproduce"
HELP = "what measured a run or a test of it, what is different here, and the command"
USAGE = "gpuperf reproduce RUN [TEST] [--run]"
EXAMPLES = ("gpuperf reproduce run.json", "gpuperf reproduce run.json 'test_step[tf32]'")

_DIRTY = "+dirty"
_MOST = 10
"""No more tests than this are told of, the worst of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf reproduce`."""
    parser.add_argument("file", type=Path, metavar="RUN", help="the run's file")
    parser.add_argument(
        "test",
        nargs="?",
        metavar="TEST",
        help="only tests that match, by the rules of update-baseline; default: the whole run",
    )
    parser.add_argument(
        "--run",
        dest="execute",
        action="store_true",
        help="execute the command too: at the run's revision, in a checkout of its own, where that "
        "is another one than here. A command that does more than measure is refused",
    )


def act(options: argparse.Namespace) -> int:
    """Prints how a run was measured, and with --run measures so again.

    Returns 0, or pytest's exit code. Raises UsageFailure for a run that no pytest has measured, and
    for a command that is not executed; NoMatch for a test that the run has not.
    """
    run = run_files.load(options.file)
    wanted = run_files.matching(run.measurements, [options.test] if options.test else [])
    if not wanted:
        raise UsageFailure(f"{options.file} has no measurements")
    tests = list(dict.fromkeys(m.test for m in wanted)) if options.test else []
    command = alone(run.command, tests) if tests else typed(run.command)
    if not command:
        run_files.pytest_arguments(run.command)  # says why
        raise UsageFailure(f"{options.file} does not say by what it was measured")
    here = _repository()
    tell(*_said(run, tests), *_measured(wanted))
    say(*_revisions(wanted, here))
    tell(*_environment(wanted[0]))
    say("command:", f"  {command}")
    return _execute(run, tests, wanted[0], here) if options.execute else OK


def _repository() -> Repository | None:
    """Where one stands; None outside of a repository."""
    try:
        return repository(Path.cwd())
    except UsageFailure:
        return None


def _said(run: Run, tests: Sequence[str]) -> Iterator[str]:
    """What was said of the tests, the worst first."""
    width = shutil.get_terminal_size().columns
    results = [r for r in worst_first(run.results()) if not tests or r.test in tests]
    for result in results[:_MOST]:
        yield from brief(result, width)


def _measured(measurements: Sequence[Measurement]) -> Iterator[str]:
    prints = [m.fingerprint for m in measurements]
    moments = sorted({one.measured for one in prints if one.measured})
    devices = dict.fromkeys(f"{one.device.name} ({one.device.arch})" for one in prints)
    when = f"{moments[0]}, " if moments else ""
    yield f"measured: {when}on {', '.join(devices)}"


def _revisions(measurements: Sequence[Measurement], here: Repository | None) -> Iterator[str]:
    """The revision of what was measured, and how to get there."""
    known = [*dict.fromkeys(m.fingerprint.revision for m in measurements)]
    now = fingerprint.revision(Path.cwd())
    for revision in known:
        commit, _, dirty = revision.partition("+")
        if not revision:
            yield "revision: unknown"
            continue
        same = " (as here)" if revision == now else f"; here: {now or 'no commit'}"
        yield f"revision: {revision}{same}"
        if dirty:
            yield "  it had changes that are in no commit"
        if not now.startswith(commit) and here is not None:
            if _has(here, commit):
                place = f"../{here.top.name}-{commit}"
                yield f"  git worktree add --detach {shlex.quote(place)} {shlex.quote(commit)}"
            else:
                yield f"  this repository has no commit {commit}: git fetch"


def _has(here: Repository, commit: str) -> bool:
    try:
        here.commit(commit)
    except UsageFailure:
        return False
    return True


def _environment(measurement: Measurement) -> Iterator[str]:
    """What is different here of what was noted then."""
    before, device = measurement.fingerprint, measurement.fingerprint.device
    gpu = None if device.arch == architectures.CPU else nvml.detect_device()
    now = nvml.portable_device() if gpu is None else gpu
    here = fingerprint.software()
    pairs = {"device": (device.name, now.name)}
    if device.name == now.name and device.arch != architectures.CPU:
        pairs["GPU"] = device.identity, now.identity
    pairs |= {name: (then, here.get(name, "none")) for name, then in before.software.items()}
    asked = {*here, "device", "GPU", "torch", "cuda", "cudnn", "driver"}
    differing = {name: both for name, both in pairs.items() if both[0] != both[1] and name in asked}
    if not differing:
        yield "environment: as here"
        return
    yield "environment, there -> here:"
    for name, (then, is_now) in differing.items():
        yield f"  {name}: {then} -> {is_now}"


def _execute(run: Run, tests: Sequence[str], first: Measurement, here: Repository | None) -> int:
    """Measures again. Raises UsageFailure for what is not executed."""
    tests = tests or list(dict.fromkeys(m.test for m in run.measurements))
    command = alone(run.command, tests)
    _check(command, tests)
    commit = first.fingerprint.revision
    with ExitStack() as opened:
        folder, environment = Path.cwd(), dict(os.environ)
        elsewhere = commit and commit != fingerprint.revision(folder)
        if elsewhere and here is not None and not commit.endswith(_DIRTY) and _has(here, commit):
            place = opened.enter_context(worktrees(here))
            tree: Tree = place.add("a", here.commit(commit))
            folder, environment["PYTHONPATH"] = tree.folder, tree.import_path()
        for file in dict.fromkeys(test.partition("::")[0] for test in tests):
            if not (folder / file).resolve().is_relative_to(folder.resolve()):
                raise UsageFailure(f"{file} is outside of {folder}: nothing was executed")
            if not (folder / file).exists():
                raise UsageFailure(
                    f"{folder} has no {file}: stand in the root directory of the project"
                )
        saved = run_files.new_file(run_files.project(Path.cwd()))
        words = [*shlex.split(command), f"--gpuperf-run={saved}"]
        say("executed, without what does more than measure:", f"  cd {shlex.quote(str(folder))}")
        say(f"  {shlex.join(words)}")
        python = [sys.executable, "-m", *words]
        return subprocess.run(python, cwd=folder, env=environment, check=False).returncode


def _check(command: str, tests: Sequence[str]) -> None:
    """Raises UsageFailure for what is not executed."""
    if not command.startswith("pytest "):
        raise UsageFailure(
            f"`{printable(command)}` is not executed out of a run: type it, if you trust this one"
        )
    for test in tests:
        if test.startswith("-"):
            raise UsageFailure(f"{printable(test)} is no test: nothing was executed")
