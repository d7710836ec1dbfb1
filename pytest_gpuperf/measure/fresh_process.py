"""pytest in a fresh interpreter: its start, its end, and the run it saved.

The child gets its own session, so Ctrl-C reaches only the parent, which then decides. Between the
two runs a reaper. It ends with the parent, in any case, and before that ends the child and all its
descendants, wherever they are.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pytest_gpuperf.errors import UsageFailure

if TYPE_CHECKING:  # a reaper must start fast and does not need it
    from pytest_gpuperf.model.measurement import Measurement
    from pytest_gpuperf.model.result import Run

GRACE = 3.0
"""Seconds between asking the processes to end (SIGTERM) and ending them (SIGKILL)."""

PARENT = "GPUPERF_PARENT"
"""The environment variable that tells the child the process id of who started it, and waits."""

TURN = "GPUPERF_TURN"
"""The environment variable of a process that waits for its turn: its socket, and its imports."""

_IMPORTED_AHEAD = ("torch", "torch._dynamo", "torch._inductor.compile_fx", "triton")
"""Modules that take seconds to import; torch imports some of them only in the first step."""
_QUOTED_LINES = 20
_STACK = "Current thread "
"""The start of faulthandler's text on the thread that got the signal, the main one."""
_PYTESTS = ("/_pytest/", "/pluggy/")
"""Frames that say nothing of a test, and all that follow."""
_OURS = "/pytest_gpuperf/"
"""Frames that say nothing of the step."""
_TICK = 1.0
"""The most seconds between two looks at the clock, while a process imports."""
_LEAST_DELAY, _MOST_DELAY = 0.0005, 0.05
"""Seconds between two looks at whether a process has ended; as Popen's own."""
_SIGNALLED = 128
"""Added to a signal's number: the exit code of a reaper whose child it ended, as of shells."""
_PARENT_DEATH_SIGNAL, _CHILD_SUBREAPER = 1, 36
"""PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of linux/prctl.h."""
_KEEPING = """\
import sys
sys.path.insert(0, sys.argv[1])
from pytest_gpuperf.measure import fresh_process
fresh_process.keep(int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
"""
_OF_ANOTHER_TEST = ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_")


@dataclass(frozen=True)
class Start:
    """The start of a process `python -m pytest`."""

    arguments: Sequence[str]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to this process's own, without variables that name its test or xdist worker."""
    python: str = sys.executable
    """The interpreter, which has pytest and this plugin; a path is relative to the folder."""
    judges: bool = False
    """Whether the process compares its measurements with baselines; by default it only measures."""
    under: Sequence[str] = ()
    """The command that starts it, a profiler's."""


@dataclass(frozen=True)
class Finished:
    """The result of one pytest process."""

    run: Run | None
    """The run that it measured and saved; None if there is none."""
    code: int
    """pytest's exit code; negative when a signal of that number killed it, as subprocess has it."""
    output: str
    """stdout and stderr together, in the order in which they were written."""
    seconds: float
    """The duration, including start-up."""
    timed_out: bool = False
    """Whether the time limit ended it."""

    def measurement(self, test: str, name: str) -> Measurement | None:
        """The measurement of this name that the test made; None when it made none."""
        measured = self.run.measurements if self.run else ()
        return next((m for m in measured if (m.test, m.name) == (test, name)), None)

    def last_lines(self) -> str:
        """The end of the output, to be quoted where it says why something failed."""
        return "\n".join(self.output.splitlines()[-_QUOTED_LINES:])

    def standing(self) -> str:
        """The position of the test when the process was told to end, the innermost call first.

        It is the end of the output if no position was printed: before the plugin was loaded, or if
        the test handles SIGTERM itself.
        """
        _, heading, stack = self.output.rpartition(_STACK)
        if not heading:
            return self.last_lines()
        lines = stack.partition("\n\n")[0].splitlines()[1:]
        frames = takewhile(lambda line: not any(of in line for of in _PYTESTS), lines)
        return "\n".join([line for line in frames if _OURS not in line][:_QUOTED_LINES])


def run_pytest(start: Start, *, time_limit: float | None = None) -> Finished:
    """Starts pytest in a fresh process, and waits for it.

    After `time_limit` seconds, and on any exception while waiting (Ctrl-C is one), the child and
    all its descendants are ended. They get SIGTERM, and SIGKILL after `GRACE` seconds. They also
    end with this process, even by SIGKILL. Processes that the child left running are ended too,
    since the next measurement would include them.

    Raises UsageFailure if the folder is none, and BadFile for a run that was saved but is damaged.
    """
    with FreshProcess(start) as child:
        return child.finished(time_limit)


def run(command: Sequence[str], *, folder: Path) -> tuple[int, str]:
    """Runs another command: its exit code and output. The command ends with this process.

    Raises UsageFailure if it cannot be started.
    """
    with tempfile.TemporaryFile() as output:
        process = _started(command, folder, _environment({}), output.fileno())
        try:
            _waited(process)
        finally:
            _end(process)
        code = _code(process) or 0
        process.poll()  # nothing of it is left
        output.seek(0)
        return code, output.read().decode(errors="replace")


def run_in_turn(
    starts: Sequence[Start],
    *,
    time_limit: Callable[[], float],
    begins: Callable[[int], None],
    ahead: Sequence[str] = (),
    meanwhile: Callable[[], object] | None = None,
) -> Generator[Finished, None, None]:
    """Runs pytest in several processes, which start together and run their tests in turn.

    Imports take longer than many a measurement and need no device. So all processes import at once,
    with the modules `ahead` and this process's imports of torch, and wait. `begins` is called
    before the tests of each, with its number from 1 on. Each has its own time limit, read when it
    begins to count. `meanwhile` is called once, when all have started. For the rest see
    `run_pytest`.
    """
    loaded = [name for name in _IMPORTED_AHEAD if name in sys.modules]
    modules = list(dict.fromkeys((*loaded, *ahead)))
    with ExitStack() as started:
        children = [started.enter_context(FreshProcess(start, ahead=modules)) for start in starts]
        if meanwhile:
            meanwhile()
        for child in children:
            child.prepared(time_limit())
        for number, child in enumerate(children, 1):
            begins(number)
            yield child.finished(time_limit())


class FreshProcess:
    """A pytest in a process of its own. Leaving the block ends it, and all that it has started."""

    def __init__(self, start: Start, ahead: Sequence[str] | None = None) -> None:
        """With `ahead`, it imports these modules and runs no test before `finished` is called."""
        self._kept = ExitStack()
        temporary = tempfile.TemporaryDirectory(prefix="gpuperf-", ignore_cleanup_errors=True)
        folder_of_its_own = Path(self._kept.enter_context(temporary))
        self._saved, self._said = folder_of_its_own / "run.json", folder_of_its_own / "output"
        # The starting process reports to GitHub for all processes together.
        flags = ["--gpuperf-github=never", f"--gpuperf-run={self._saved}"]
        flags += [] if start.judges else ["--gpuperf-no-judge"]
        # Unbuffered, or all of stdout would come after stderr.
        pytest = [start.python, "-u", "-m", "pytest", *with_flags(start.arguments, flags)]
        command = [*start.under, *pytest]
        added = dict(start.environment)
        self._late = False
        self._line, theirs = socket.socketpair()
        self._kept.enter_context(self._line)
        if ahead is not None:
            added[TURN] = " ".join((str(theirs.fileno()), *ahead))
        self._begun = time.monotonic()
        # A file instead of a pipe, so a grandchild that keeps it open does not delay the end.
        output = self._kept.enter_context(self._said.open("wb"))
        try:
            with theirs:
                passed_on = [] if ahead is None else [theirs.fileno()]
                self._process = _started(
                    command, start.folder, _environment(added), output.fileno(), *passed_on
                )
        except BaseException:
            self._kept.close()
            raise

    def __enter__(self) -> FreshProcess:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            _end(self._process)
        finally:
            self._process.poll()  # nothing of it is left
            self._kept.close()

    def ended(self) -> str:
        """The end of the process as a predicate; "" while it runs."""
        code = _code(self._process)
        if code is None:
            return ""
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def prepared(self, time_limit: float) -> None:
        """Returns when the process waits for its turn, or has ended before.

        A process that is late has no time left: the others began with it, and waited as long.
        """
        while (passed := time.monotonic() - self._begun) < time_limit:
            if select.select([self._line], [], [], min(_TICK, time_limit - passed))[0]:
                return
        self._late = True

    def finished(self, time_limit: float | None) -> Finished:
        """Gives it its turn, and waits until it has ended."""
        if self._late:
            time_limit = 0.0
        else:
            self._begun = time.monotonic()
            with suppress(OSError):  # it has ended before and its output says why, or has no turn
                self._line.send(b".")
        try:
            in_time = _waited(self._process, time_limit)
        finally:
            _end(self._process)
        from pytest_gpuperf.storage import run_files

        return Finished(
            run=run_files.load(self._saved) if self._saved.exists() else None,
            code=_code(self._process) or 0,
            output=self._said.read_text(encoding="utf-8", errors="replace"),
            seconds=time.monotonic() - self._begun,
            timed_out=not in_time,
        )


def own_turn() -> Callable[[], None] | None:
    """A function that returns when this process may run its tests; None if it need not wait.

    Removes the variable from the environment, so that a test's own processes do not see it.
    """
    text = os.environ.pop(TURN, None)
    if text is None:
        return None
    line, *modules = text.split()
    return partial(_await_turn, socket.socket(fileno=int(line)), modules)


def _await_turn(line: socket.socket, modules: Sequence[str]) -> None:
    """Imports what will be needed, says so, and returns when the turn has come."""
    with line:
        for name in modules:
            # A failed import is reported later, when the module is needed.
            with suppress(Exception):
                importlib.import_module(name)
        line.send(b".")
        line.recv(1)


def with_flags(arguments: Sequence[str], flags: Sequence[str]) -> list[str]:
    """The arguments of pytest and these flags, last where they are still read as flags."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    return [*arguments[:end], *flags, *arguments[end:]]


def say_where_it_ends() -> None:
    """Makes SIGTERM, which would end this process, first print each thread's position.

    faulthandler does it, even inside a library call that hangs. It prints to the present stderr.
    """
    faulthandler.register(signal.SIGTERM, os.dup(2), all_threads=True, chain=True)


def end(code: int) -> NoReturn:
    """Ends this process without Python's own teardown, which takes about 1 s with torch."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def beside() -> set[int]:
    """The reapers of processes that the same process started together with this one.

    They wait for their turn, and may hold device memory that their test modules allocated.
    """
    own = [os.getpid(), *ancestors(os.getpid())]
    starter = next(filter(None, map(_starter, own)), 0)
    if not starter:
        return set()
    children = {pid for pid in _processes() if ancestors(pid)[:1] == [starter]} - {*own}
    return {pid for pid in children if _starter(pid) == starter}


def _starter(pid: int) -> int:
    """The value of PARENT for this process, or 0: /proc keeps the environment at its start."""
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name == PARENT.encode():
                return int(value)
    return 0


def _environment(added: Mapping[str, str]) -> dict[str, str]:
    everything = {**os.environ, **added, PARENT: str(os.getpid())}
    # The child is not this test, and with xdist's variables it would take itself for a worker.
    return {
        name: value for name, value in everything.items() if not name.startswith(_OF_ANOTHER_TEST)
    }


def _started(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    output: int,
    *passed_on: int,
) -> subprocess.Popen[bytes]:
    # A path is that of a file beside the child, as its other relative arguments are.
    program = str(folder / command[0]) if os.sep in command[0] else command[0]
    if folder.is_dir() and not shutil.which(program):
        raise UsageFailure(f"{command[0]}: no such program")
    package = Path(__file__).parents[2]
    # Without site packages, so it starts faster.
    reaper = [sys.executable, "-I", "-S", "-c", _KEEPING, package, os.getpid(), GRACE, *command]
    try:
        return subprocess.Popen(
            [str(argument) for argument in reaper],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=passed_on,
        )
    except OSError as error:
        raise UsageFailure(
            f"pytest cannot be started in the folder {folder} ({error.strerror}). Name a folder "
            "that exists and that you may enter"
        ) from error


def _waited(child: subprocess.Popen[bytes], time_limit: float | None = None) -> bool:
    """Waits until the child has ended, or the limit passed; returns whether it ended in time."""
    begun, delay = time.monotonic(), _LEAST_DELAY
    while _code(child) is None:
        if time_limit is not None and time.monotonic() - begun >= time_limit:
            return False
        time.sleep(delay)
        delay = min(2 * delay, _MOST_DELAY)
    return True


def _code(child: subprocess.Popen[bytes]) -> int | None:
    """The exit code of the command below the reaper, as of `Popen.poll`; None while it runs.

    Popen's own methods hold a lock while they ask. Ctrl-C at the wrong moment leaves it locked, and
    later waits never return. Asking the kernel needs no lock.
    """
    try:
        ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # another caller has already taken the status
        return child.poll() or 0
    if ended is None:
        return None
    if ended.si_code != os.CLD_EXITED:
        return -ended.si_status
    signalled = ended.si_status - _SIGNALLED
    return -signalled if signalled in signal.valid_signals() else ended.si_status


def _end(reaper: subprocess.Popen[bytes]) -> None:
    """Makes a reaper end all its processes, and itself; Ctrl-C once more does not hurry it."""
    try:
        if _code(reaper) is None:
            os.kill(reaper.pid, signal.SIGTERM)
        _waited(reaper)
    finally:
        _waited(reaper)


def keep(parent: int, grace: float, command: list[str]) -> NoReturn:
    """Runs the command in its own session, ends all that is left of it, and exits as it did.

    The calling process does only this. The end of `parent` also ends it. Orphans below it become
    its children, so nothing escapes, neither into another process group nor into another session.
    """
    signals = {signal.SIGCHLD, signal.SIGTERM}
    others = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    _prctl(_CHILD_SUBREAPER, 1)
    _prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)
    child = os.fork()
    if not child:
        os.setsid()
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by this Python, for itself
            signal.signal(ignored, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, others)
        try:
            os.execvp(command[0], command)
        finally:
            os._exit(127)
    ended: dict[int, int] = {}
    while child not in ended and signal.sigwait(signals) == signal.SIGCHLD:
        _reap(ended)
    _end_descendants(signal.SIGTERM, grace, ended)
    while _reap(ended):  # what is forked meanwhile is killed the next time
        _end_descendants(signal.SIGKILL, grace, ended)
    code = os.waitstatus_to_exitcode(ended[child])
    os._exit(_SIGNALLED - code if code < 0 else code)


def _end_descendants(number: signal.Signals, grace: float, ended: dict[int, int]) -> None:
    """Sends all that descends from this process a signal, and waits for their end, but not long."""
    for pid in _processes():
        if os.getpid() in ancestors(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    end = time.monotonic() + grace
    while _reap(ended) and (left := end - time.monotonic()) > 0:
        signal.sigtimedwait({signal.SIGCHLD}, left)


def _reap(ended: dict[int, int]) -> bool:
    """Adds how children have ended, by their process ids; returns whether any is left.

    Without a child, this process has no descendants: orphans among them become its children.
    """
    with suppress(ChildProcessError):
        while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
            ended[reaped[0]] = reaped[1]
        return True
    return False


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _processes() -> list[int]:
    """All processes that /proc lists."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def ancestors(pid: int) -> list[int]:
    """The processes that this one descends from, the nearest first: a profiler may be between."""
    pids: list[int] = []
    with suppress(OSError):  # one of them is gone
        while pid := _parent(pid):
            pids.append(pid)
    return pids


def _parent(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return int(text.rpartition(")")[2].split()[1])  # "pid (name) state parent ...", any name
