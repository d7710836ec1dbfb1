"""The commands to type next, as they fit what came of a session."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_gpuperf.baselines.judgement import unread
from pytest_gpuperf.baselines.objections import about_measurements
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import UsageFailure, printable
from pytest_gpuperf.judge.stopping import LOOKS
from pytest_gpuperf.model.result import FAULTS, Outcome, Result, Run
from pytest_gpuperf.report import view
from pytest_gpuperf.report.text.table import INDENT, wrapped
from pytest_gpuperf.storage import run_files

PAIRED = ("gpuperf ab ", "gpuperf bisect ")
"""The start of the command of a run that compares two revisions or releases."""
_ASKED = (*FAULTS, Outcome.NO_BASELINE, Outcome.IMPROVED)
"""Outcomes of what a run asks to be accepted."""
_REPLAY, _BASELINES = "--gpuperf-replay", "--gpuperf-baselines"
_VALUELESS = ("--gpuperf-require-judged", "--gpuperf-require-counters", "--gpuperf-no-judge")
"""Our flags that take no value."""
_ABOUT_THE_RUN = (
    *(_REPLAY, "--gpuperf-run", "--gpuperf-report", "--gpuperf-github", "--gpuperf-missing"),
    *("--gpuperf-inconclusive", "--gpuperf-require-judged", "--gpuperf-processes"),
    "--gpuperf-kernels",  # `gpuperf record` counts them in its first process
)
"""Flags that say what becomes of the numbers."""
_MEASURING = (
    *("--gpu-arch", "--gpuperf-collector", "--gpuperf-metrics", "--gpuperf-rounds"),
    *("--gpuperf-processes", "--gpuperf-protocol", "--gpuperf-ncu-replay", "--gpuperf-kernels"),
    *(_REPLAY, _BASELINES, "--gpuperf-require-counters", "--gpuperf-no-judge"),
)
"""Flags that say how something is measured and judged, and no more: they write nothing, and execute
nothing."""


@dataclass(frozen=True)
class CommandContext:
    """The context of commands, without the verdicts. Files are named as a user types them."""

    command: str = ""
    """The arguments of pytest that say what is measured."""
    flags: str | None = None
    """The arguments without files, folders and tests; None if these cannot be told apart."""
    run: str = ""
    """The run to accept; "" for the newest, which needs no name."""
    replayed: bool = False
    """Whether `run` was judged in place of a device."""
    baselines: str = ""
    """The folder of the baselines; "" where that is the default."""
    processes: int = LOOKS[-1]
    """The most processes that a test was looked at in."""
    missing_passes: bool = False
    """Whether a test without a baseline passes, so that regressed tests come first."""
    launcher: str = ""
    """The command that starts pytest, "torchrun --nproc-per-node 4 -m"; "" for plain pytest."""
    recorded: frozenset[tuple[str, str]] = frozenset()
    """Test and name of what this session has made a baseline of."""
    root: str = ""
    """The root directory of test ids; "" if commands are typed there."""
    folder: str = ""
    """The folder where pytest was started, and where the user types commands."""

    def named(self, test: str) -> str:
        """A test id as one would type it in `folder`."""
        if self.root == self.folder:
            return test
        file, colons, rest = test.partition("::")
        return self.typed(Path(self.root) / file) + colons + rest

    def typed(self, file: Path) -> str:
        """A file as a user types it in `folder`; the full path outside of the project."""
        within = file.is_relative_to(self.root) or file.is_relative_to(self.folder)
        return os.path.relpath(file, self.folder) if within else str(file)

    def of(self, test: str) -> CommandContext:
        """The context for one test."""
        return replace(self, command=self._selecting([test]))

    def _selecting(self, tests: Sequence[str]) -> str:
        """The arguments that select these tests; all arguments if these are not told apart."""
        if not tests or self.flags is None:
            return self.command
        return " ".join(filter(None, [self.flags, *map(shlex.quote, map(self.named, tests))]))

    def started(self, command: str) -> str:
        """A command of pytest, started as the session was."""
        return f"{self.launcher} {command}" if self.launcher else command

    def accept(self, reason: str = "...", *, force: bool = False) -> str:
        """The command that makes a baseline of the run; `force`: over what speaks against it."""
        words = ["gpuperf update-baseline"]
        words += [shlex.quote(self.run)] if self.run else []
        words += [f"--baselines {shlex.quote(self.baselines)}"] if self.baselines else []
        words += ["--force"] if force else []
        return " ".join([*words, f'--reason "{reason}"'])

    def record(
        self, tests: Sequence[str] = (), reason: str = "first baseline", *, force: bool = False
    ) -> tuple[str, str]:
        """The two commands that make a baseline for these tests, or for all that were selected."""
        accept = CommandContext(baselines=self.baselines).accept(reason, force=force)
        selected = self._selecting(tests)
        selected = self.started(f"pytest {selected}") if self.launcher else selected
        return f"gpuperf record -- {selected}".rstrip(), accept


def selection(arguments: Sequence[str]) -> list[str]:
    """The arguments of pytest that select tests and devices, for `gpuperf record`.

    Leaves out this package's flags on the use of the numbers.
    """
    return _split(arguments, _ABOUT_THE_RUN)[1]


def _split(words: Sequence[str], flags: Collection[str]) -> tuple[list[str], list[str]]:
    """The arguments that are these flags, each with its value if any; and the others."""
    ours: list[str] = []
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        flag, equals, _ = word.partition("=")
        (ours if flag in flags else others).append(word)
        if flag in flags and flag not in _VALUELESS and not equals:
            ours.append(next(rest, ""))
    return ours, others


def alone(command: str, test: str) -> str:
    """The command that measures this test of a run again, in the same way.

    It keeps only arguments about how to measure; "" if pytest did not measure the run.
    """
    if command.startswith(PAIRED):
        return f"{command.partition(' -- ')[0]} -- {shlex.quote(test)}"
    try:
        _, words = run_files.launched(run_files.pytest_arguments(command))
    except UsageFailure:
        return ""
    words = words[: words.index("--")] if "--" in words else words
    return shlex.join(["pytest", *_split(words, _MEASURING)[0], test])


def of_run(run: Run, file: str) -> CommandContext:
    """The context derived from a run alone. `file` is where the run is saved."""
    try:
        words = run_files.pytest_arguments(run.command)
    except UsageFailure:  # it was imported, or is of two revisions
        if run.command.startswith(PAIRED):
            return CommandContext(run.command, run=file)
        return CommandContext(shlex.join(dict.fromkeys(m.test for m in run.measurements)), run=file)
    launcher, words = run_files.launched(words)
    words = words[1:] if words[:1] == ["pytest"] else words
    replayed = _value(words, _REPLAY)
    return CommandContext(
        shlex.join(selection(words)),
        launcher=shlex.join(launcher),
        run=file or replayed,
        replayed=bool(replayed),
        baselines=_value(words, _BASELINES),
        processes=max((verdict.processes for verdict in run.verdicts), default=LOOKS[-1]),
    )


def _value(words: Sequence[str], flag: str) -> str:
    """The last value given with a flag, which is pytest's; "" if the flag is absent."""
    given, _ = _split(words, (flag,))
    return given[-1].removeprefix(f"{flag}=") if given else ""


def lines(
    results: Sequence[Result], context: CommandContext, width: int, told: Sequence[Result] = ()
) -> Iterator[str]:
    """The next actions and their commands: in one line of at most `width`, or the command below.

    Empty if all is well. Leaves out what the message of the one test in `told` has said. A command
    longer than a line is not wrapped.
    """
    said = [
        [*commands]
        for result in (told if len(told) == 1 else ())
        for its in (context, context.of(result.test))
        for _, commands in wanted([result], its)
    ]
    for what, commands in wanted(results, context):
        whole = printable(" ".join([what, *commands]))
        if [*commands] in said:
            continue
        if len(commands) == 1 and len(whole) <= width:
            yield whole
        else:
            yield from wrapped([what], width, "")
            yield from (f"{INDENT}{printable(command)}" for command in commands)


def wanted(
    results: Sequence[Result], context: CommandContext
) -> Iterator[tuple[str, Sequence[str]]]:
    """The next actions with their commands; the last is the recommended one."""
    outcomes = {entry.outcome for result in results for entry in result.said}
    worse = outcomes & {*FAULTS}
    if context.command.startswith(PAIRED):  # in turn, without a baseline
        if worse:
            yield _again(results, context)
        return
    if any(map(_unreadable, results)):
        yield "see why counters cannot be read:", ["gpuperf doctor"]
    missing = dict.fromkeys(
        result.test
        for result in results
        for entry in result.said
        if entry.outcome is Outcome.NO_BASELINE
        and (result.test, result.name) not in context.recorded
    )
    if missing and not (context.missing_passes and worse):
        every = missing.keys() == {result.test for result in results if result.measurements}
        of = "of this run" if context.replayed else "on this device"
        tests = () if every else (*missing,)
        yield _accepting(f"make a baseline {of}", results, context, tests, "first baseline")
    elif worse:
        yield _again(results, context)
        if Outcome.REGRESSED in outcomes:
            yield _accepting("accept an intended change", results, context)
    elif Outcome.INCONCLUSIVE in outcomes:
        yield _undecided(context)
    elif Outcome.UNFIT in outcomes or Outcome.MACHINE in outcomes:
        yield "see the state of the GPU, and its other processes:", ["gpuperf doctor"]
    elif Outcome.IMPROVED in outcomes:
        yield _accepting("accept the gain, so that a later slowdown shows", results, context)


def _again(results: Sequence[Result], context: CommandContext) -> tuple[str, Sequence[str]]:
    """The command that repeats the failed test, or the worst of them, without the others."""
    failed = [r for r in view.worst_first(results) if any(e.outcome in FAULTS for e in r.said)]
    what = "measure it again:" if len(failed) == 1 else "measure the worst again:"
    test = context.named(failed[0].test)
    return what, [context.started(alone(context.command, test))]


def _accepting(
    what: str,
    results: Sequence[Result],
    context: CommandContext,
    tests: Sequence[str] | None = None,
    reason: str = "...",
) -> tuple[str, Sequence[str]]:
    """A command that accepts the run as it is, with --force over any reason to refuse.

    With too few processes, or for `tests` without a baseline, it records more first.
    """
    asked = [r for r in results if r.measurements and r.outcome in _ASKED]
    found = [one for result in asked for one in about_measurements(result.measurements)]
    if tests is None and any(one.more_processes for one in found):
        tests = [*dict.fromkeys(result.test for result in asked)]
    records = tests is not None and not context.replayed
    against = dict.fromkeys(one.short for one in found if not (records and one.more_processes))
    title = f"{what} (--force overrides: {', '.join(against)}):" if against else f"{what}:"
    if records:
        return title, context.record(tests or (), reason, force=bool(against))
    return title, [context.accept(reason, force=bool(against))]


def _undecided(context: CommandContext) -> tuple[str, Sequence[str]]:
    most = LOOKS[-1]
    if context.replayed:
        again = f"gpuperf record --processes {most} -- {context.command}"
        return "get a verdict with more processes than this run has:", [again.rstrip()]
    fewer = context.processes < most
    more = f"--gpuperf-processes {most} " if fewer else ""
    what = "get a verdict with more processes:" if fewer else "measure again on an idle machine:"
    return what, [context.started(f"pytest {more}{context.command}".rstrip())]


def _unreadable(result: Result) -> bool:
    """Whether a hardware counter that decides could not be read, though the device has it."""
    if not result.measurements:
        return False
    metrics, arch = catalogue().metrics, result.first.fingerprint.device.arch
    tried = {entry.metric for entry in result.first.unsupported}
    lacking = tried & {verdict.metric for verdict in unread(result)}
    return any(metrics[metric].hardware_name(arch) is not None for metric in lacking)


def typed(command: str) -> str:
    """The command of a run as a user types it; a run keeps only the arguments of pytest."""
    if not command or command.split(" ")[0] in ("pytest", "gpuperf", "python"):
        return command
    return f"pytest {command}"
