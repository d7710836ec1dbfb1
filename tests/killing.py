"""Ends commands at random moments, and looks at what they leave.

    python -m tests.killing COUNT [SEED] [ab]

Each time one of the commands runs in a project of its own: a session with a second look by fresh
processes, `gpuperf record`, `update-baseline`, a report; with the last word `gpuperf ab` alone. It
is ended by SIGINT, once or twice, by SIGTERM or by SIGKILL. Afterwards every file is whole, a
baseline is the old or the new one, nothing that was started runs any more, and the next who accepts
neither waits nor finds anything left. After `gpuperf ab` the checkout and git's index are as they
were, and the next leaves no worktree.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import pydantic
import pytest
import yaml
from scipy import special

from pytest_gpuperf import __main__
from pytest_gpuperf.baselines import acceptance
from pytest_gpuperf.commands import ab, record, report, update_baseline, worktrees
from pytest_gpuperf.plugin import fixture, ledger
from pytest_gpuperf.report.html import page
from pytest_gpuperf.storage import baseline_files, run_files
from tests import ALONE, ROOT

LOADED = (
    *(pydantic, yaml, special, acceptance, ab, record, report, update_baseline),
    *(fixture, ledger, page),
)
"""Loaded before the first command is forked: what takes time to import is not what is to be hit."""
MARK = "GPUPERF_KILLING"
TWICE = (signal.SIGINT, signal.SIGINT)
ENDS = ((signal.SIGINT,), TWICE, (signal.SIGTERM,), (signal.SIGKILL,))
PATIENCE_S = 20.0
"""Until everything that was started has ended: a grace of 3 s, and a slow machine."""
TWICE_S = 0.05
CYCLES = (400_000_000, 440_000_000)
"""Of the baseline, and of the run that is accepted instead."""
_CONFTEST = f"""
import sys
sys.path.append({str(ROOT)!r})
from tests.plugin.scripted import pytest_gpuperf_collector
"""
_TESTS = """
def test_one(gpuperf):
    gpuperf.measure(lambda: None)

def test_two(gpuperf):
    gpuperf.measure(lambda: None)
"""
_PLAIN = ("-p", "no:xdist", "-q")
_ACCEPT = ("update-baseline", "slower.json", "--force", "--yes", "--reason", "killed")


@dataclass(frozen=True)
class Command:
    """What is run, and ended."""

    name: str
    run: Callable[[], object]


_SESSION = Command(
    "session", lambda: pytest.main([*_PLAIN, "--gpuperf-run=run.json", "test_steps.py"])
)
_RECORD = Command("record", lambda: __main__.main(["record", "--processes", "2", "--", *_PLAIN]))
_ACCEPTANCE = Command("accept", lambda: __main__.main([*_ACCEPT]))
_REPORT = Command(
    "report", lambda: __main__.main(["report", "slower.json", "--output", "report.html"])
)


def _compare() -> int:
    """`gpuperf ab`, whose temporary files are beside the project."""
    temporary = temporary_of(Path.cwd())
    temporary.mkdir()
    os.environ["TMPDIR"] = str(temporary)
    tempfile.tempdir = None
    return __main__.main(["ab", "HEAD", "--", *_PLAIN])


_AB = Command("ab", _compare)
COMMANDS = (
    *(_ACCEPTANCE, _REPORT, _SESSION, _ACCEPTANCE, _REPORT),
    *(_RECORD, _ACCEPTANCE, _REPORT, _REPORT, _ACCEPTANCE),
)
"""Oftener those that write more files, and take less time."""


def main(count: int, seed: int = 0, commands: Sequence[Command] = COMMANDS) -> int:
    """Ends so many commands. Prints how many of each, and what each left that it should not."""
    random = Random(seed)
    faults: list[str] = []
    ended: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="killing-") as made:
        # What ends by SIGKILL leaves its temporary files: they go with ours.
        (own := Path(made) / "temporary").mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(own)
        template = Path(made) / "template"
        prepare(template)
        if _AB in commands:
            put_under_git(template)
        # What looks at the files is imported here, and then no more by those that are forked.
        shutil.copytree(template, looked_at := Path(made) / "looked-at")
        assert not list(faults_in(looked_at))
        lasts = {command.name: duration(command, template) for command in {*commands}}
        with suppress(KeyboardInterrupt):  # which says what came of those until then
            for number in range(count):
                command, signals = commands[number % len(commands)], random.choice(ENDS)
                delay = random.uniform(0, 0.95 * lasts[command.name])
                folder = Path(made) / str(number)
                shutil.copytree(template, folder)
                what = f"{command.name}, {'+'.join(s.name for s in signals)} after {delay:.3f} s"
                was_ended = end(command, folder, signals, delay)
                ended[f"{command.name}{'' if was_ended else ' (had ended)'}"] += 1
                found = [*faults_in(folder)]
                if command is _AB:
                    found += left_of_ab(folder, template)
                faults += (f"{number}: {what}: {fault}" for fault in found)
                shutil.rmtree(folder)
    print(
        f"{sum(ended.values())} ended: "
        + ", ".join(f"{n} {what}" for what, n in sorted(ended.items()))
    )
    print("\n".join(faults) or "nothing was lost and nothing was left")
    return bool(faults)


def prepare(folder: Path) -> None:
    """A project with a baseline, and with a run that is slower by a tenth."""
    folder.mkdir()
    (folder / "conftest.py").write_text(_CONFTEST, encoding="utf-8")
    (folder / "test_steps.py").write_text(_TESTS, encoding="utf-8")
    (folder / "pytest.ini").write_text(f"[pytest]\naddopts = {ALONE}\n", encoding="utf-8")
    for name, factor in (("fast", 1.0), ("slower", CYCLES[1] / CYCLES[0])):
        script = {"factors": {"": {"cycles": factor}}}
        (folder / "device.json").write_text(json.dumps(script), encoding="utf-8")
        arguments = [*_PLAIN, f"--gpuperf-run={name}.json", "--gpuperf-no-judge"]
        assert in_a_fork(partial(pytest.main, arguments), folder) == 0
        if name == "fast":
            accept = ["update-baseline", "fast.json", "--force", "--yes", "--reason", "first"]
            assert in_a_fork(partial(__main__.main, accept), folder) == 0


def put_under_git(folder: Path) -> None:
    """Makes a commit, and a change that is in none."""
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "first")
    (folder / "changed").write_text("in no commit", encoding="utf-8")


def git(folder: Path, *words: str) -> str:
    """What git prints."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def temporary_of(folder: Path) -> Path:
    """The folder for temporary files of a command in `folder`."""
    return folder.with_name(f"{folder.name}-temporary")


def left_of_ab(folder: Path, template: Path) -> Iterator[str]:
    """What is not as before, once the next has removed what a killed one could not."""
    index = Path(".git") / "index"
    if (folder / index).read_bytes() != (template / index).read_bytes():
        yield "the index is another one"
    for name in ("conftest.py", "test_steps.py", "device.json", "changed"):
        if (folder / name).read_bytes() != (template / name).read_bytes():
            yield f"{name} is another one"
    worktrees.sweep(worktrees.repository(folder))
    if git(folder, "worktree", "list").count("\n") != 1:
        yield "a worktree is left"
    temporary = temporary_of(folder)
    for left in temporary.glob("*") if temporary.exists() else ():
        if left.name.startswith(worktrees.PREFIX):
            yield f"{left.name} is left"
    shutil.rmtree(temporary, ignore_errors=True)


def duration(command: Command, template: Path) -> float:
    """Seconds that the command takes where nobody ends it."""
    lasted = math.inf
    for attempt in range(3):  # the first time is slower, and others may be: by little, of much
        if attempt and lasted > 0.5:
            break
        folder = template.with_name(command.name)
        shutil.copytree(template, folder)
        begun = time.monotonic()
        in_a_fork(command.run, folder)
        lasted = min(lasted, time.monotonic() - begun)
        shutil.rmtree(folder)
    return lasted


def in_a_fork(run: Callable[[], object], folder: Path) -> int:
    """The exit code of what runs in a process of its own."""
    return os.waitstatus_to_exitcode(os.waitpid(forked(run, folder), 0)[1])


def forked(run: Callable[[], object], folder: Path) -> int:
    """The id of a new process in which this runs, silently."""
    child = os.fork()
    if child:
        return child
    code: object = 99
    try:
        os.chdir(folder)
        os.environ[MARK] = str(folder)
        with (folder / "output.txt").open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        code = run()
    except SystemExit as exit_:
        code = exit_.code
    finally:
        os._exit(code if isinstance(code, int) else 99)


def end(command: Command, folder: Path, signals: tuple[signal.Signals, ...], delay: float) -> bool:
    """Ends the command after so many seconds. Returns whether it still ran."""
    child = forked(command.run, folder)
    time.sleep(delay)
    for number in signals:
        with suppress(ProcessLookupError):
            os.kill(child, number)
        time.sleep(TWICE_S if len(signals) > 1 else 0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code != 0 or command.name == "session"


def faults_in(folder: Path) -> Iterator[str]:
    """What a command has left there that it should not."""
    until = time.monotonic() + PATIENCE_S
    while running(folder) and time.monotonic() < until:
        time.sleep(0.02)
    if left := running(folder):
        yield f"processes {left} still run"
    for file in [*folder.glob("*.json"), *folder.glob(".gpuperf/runs/*.json")]:
        if file.name != "device.json":
            yield from refused(run_files.load, file)
    page_file = folder / "report.html"
    if page_file.exists() and not page_file.read_text(encoding="utf-8").rstrip().endswith(
        "</html>"
    ):
        yield "half a page"
    yield from (f"before: {fault}" for fault in baseline_faults(folder, CYCLES))
    begun = time.monotonic()
    code = in_a_fork(lambda: __main__.main([*_ACCEPT]), folder)
    if code or time.monotonic() - begun > PATIENCE_S:
        yield f"who accepts next ends with {code} after {time.monotonic() - begun:.1f} s"
    yield from (f"after: {fault}" for fault in baseline_faults(folder, CYCLES[1:]))
    for staging in folder.rglob(".gpuperf-writing-*"):
        if staging.parent.is_relative_to(folder / "baselines"):
            yield f"{staging.relative_to(folder)} is left"


def baseline_faults(folder: Path, allowed: tuple[int, ...]) -> Iterator[str]:
    """Whether each test has an entry, and all are of one and the same acceptance."""
    (file,) = folder.glob("baselines/*/*/*.yaml")
    try:
        known = baseline_files.load(file)
    except Exception as error:
        yield f"the baseline cannot be read: {error}"
        return
    assert known is not None
    values = {
        value
        for entries in known.tests.values()
        for entry in entries.values()
        for rounds in entry.step["cycles"]
        for value in map(round, rounds)
    }
    if len(known.tests) != 2 or len(values) != 1 or not values & set(allowed):
        yield f"the baseline has {len(known.tests)} tests and cycles {sorted(values)}"


def refused(load: Callable[[Path], object], file: Path) -> Iterator[str]:
    """Why a file cannot be read."""
    try:
        load(file)
    except Exception as error:
        yield f"{file.name}: {error}"


def running(folder: Path) -> list[int]:
    """Processes that the command has started, by what it has put into their environment."""
    mark = f"{MARK}={folder}".encode()
    living = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in file.read_bytes().split(b"\0"):
                living.append(int(file.parent.name))
    return living


if __name__ == "__main__":
    count, *seed = (int(word) for word in sys.argv[1:] if word != _AB.name)
    chosen = (_AB,) if _AB.name in sys.argv else COMMANDS
    sys.exit(main(count, seed[0] if seed else 0, chosen))
