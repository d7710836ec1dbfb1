"""The commands to type next, as they fit what came of a session."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import printable
from pytest_gpuperf.judge.stopping import LOOKS
from pytest_gpuperf.model.result import FAULTS, Outcome, Result
from pytest_gpuperf.report.text.table import wrapped

_INDENT = "  "
_WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+|["']""")
"""A word of a shell's, quoted parts and all."""


@dataclass(frozen=True)
class CommandContext:
    """What commands depend on, beside the verdicts. Files are named as one would type them."""

    command: str = ""
    """The arguments of pytest that say what is measured."""
    run: str = ""
    """The run to accept; "" where that is the newest, which needs no name."""
    replayed: bool = False
    """Whether `run` was judged in place of a device."""
    baselines: str = ""
    """The folder of the baselines; "" where that is the default."""
    processes: int = LOOKS[-1]
    """The most processes that a test was looked at in."""
    missing_passes: bool = False
    """Whether a test without a baseline passes, so that one which regressed comes first."""
    compared: tuple[str, str] | None = None
    """A run from before the first regression, and that of the session."""
    recorded: frozenset[tuple[str, str]] = frozenset()
    """Test and name of what this session has made a baseline of."""

    def accept(self, reason: str = "...") -> str:
        """The command that makes a baseline of the run."""
        words = ["gpuperf update-baseline"]
        words += [shlex.quote(self.run)] if self.run else []
        words += [f"--baselines {shlex.quote(self.baselines)}"] if self.baselines else []
        return " ".join([*words, f'--reason "{reason}"'])

    def record(self) -> tuple[str, str]:
        """The two commands that make a baseline for the tests that were selected."""
        accept = CommandContext(baselines=self.baselines).accept("first baseline")
        return f"gpuperf record --processes 5 -- {self.command}".rstrip(), accept


def lines(results: Sequence[Result], context: CommandContext, width: int) -> Iterator[str]:
    """What to do next and the command for it, in lines of at most `width` characters.

    Nothing where all is well. A command that is longer goes on after a backslash.
    """
    for what, commands in _wanted(results, context):
        yield from wrapped([what], width, "")
        for command in commands:
            yield from command_lines(command, width)


def command_lines(command: str, width: int) -> Iterator[str]:
    """`command` in indented lines that may be pasted as they are; broken between its words.

    A word that is longer than a line is broken too.
    """
    room = max(width, 20) - len(" \\")
    line = _INDENT
    for word in _together(_WORD.findall(printable(command)), room - len(line) * 2):
        if line.strip() and len(line) + len(word) > room:
            yield f"{line.rstrip()} \\"
            line = _INDENT * 2
        left = word
        while len(line) + len(left) > room:
            # What follows a backslash at the end of a line belongs to the same word.
            yield f"{line}{left[: room - len(line)]}\\"
            line, left = "", left[room - len(line) :]
        line += f"{left} "
    yield line.rstrip()


def _together(words: Sequence[str], room: int) -> Iterator[str]:
    """The words, a flag and its value as one where both fit in a line."""
    flag = ""
    for word in words:
        if flag and not word.startswith("-") and len(flag) + len(word) < room:
            flag, word = "", f"{flag} {word}"
        elif flag:
            yield flag
            flag = ""
        if word.startswith("-") and " " not in word:
            flag = word
        else:
            yield word
    if flag:
        yield flag


def _wanted(
    results: Sequence[Result], context: CommandContext
) -> Iterator[tuple[str, Sequence[str]]]:
    """What is to be done, and by which commands; the last is the one to go on with."""
    outcomes = {entry.outcome for result in results for entry in result.said}
    if any(map(_unreadable, results)):
        yield "to see why counters cannot be read:", ["gpuperf doctor"]
    worse = outcomes & {*FAULTS}
    missing = any(
        entry.outcome is Outcome.NO_BASELINE and (result.test, result.name) not in context.recorded
        for result in results
        for entry in result.said
    )
    if missing and not (context.missing_passes and worse):
        if context.replayed:
            yield "to make a baseline of this run:", [context.accept("first baseline")]
        else:
            yield "to make a baseline on this device:", context.record()
    elif worse:
        if context.compared:
            before, after = map(shlex.quote, context.compared)
            what = "to see what changed since a run that had not regressed:"
            yield what, [f"gpuperf compare {before} {after}"]
        if Outcome.REGRESSED in outcomes:
            yield "to accept what is intended:", [context.accept()]
    elif Outcome.INCONCLUSIVE in outcomes:
        yield _undecided(context)
    elif Outcome.UNFIT in outcomes or Outcome.MACHINE in outcomes:
        yield "to see what the device is and who else uses it:", ["gpuperf doctor"]
    elif Outcome.IMPROVED in outcomes:
        better = sum(
            any(entry.outcome is Outcome.IMPROVED for entry in result.said) for result in results
        )
        what = f"{better} improved; to accept, so that a later loss shows:"
        yield what, [context.accept()]


def _undecided(context: CommandContext) -> tuple[str, Sequence[str]]:
    most = LOOKS[-1]
    if context.replayed:
        again = f"gpuperf record --processes {most} -- {context.command}"
        return "to decide it by more processes than this run has:", [again.rstrip()]
    if context.processes < most:
        again = f"pytest --gpuperf-processes {most} {context.command}"
        return "to decide it by more processes:", [again.rstrip()]
    return "to measure again, when nothing else runs there:", [f"pytest {context.command}".rstrip()]


def _unreadable(result: Result) -> bool:
    """Whether a hardware counter that decides could not be read, though the device has it."""
    if not result.measurements:
        return False
    metrics = catalogue().metrics
    arch = result.first.fingerprint.device.arch
    tried = {entry.metric for entry in result.first.unsupported}
    return any(
        verdict.outcome is Outcome.UNSUPPORTED
        and verdict.metric in tried
        and metrics[verdict.metric].gated
        and metrics[verdict.metric].hardware_name(arch) is not None
        for verdict in result.verdicts
    )
