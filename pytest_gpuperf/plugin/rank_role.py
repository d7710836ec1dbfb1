"""The role of a process that is one of several ranks: one of them judges, writes and prints."""

from __future__ import annotations

import io
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.errors import UsageFailure, printable_lines
from pytest_gpuperf.measure import ranks
from pytest_gpuperf.measure.barrier import ENDED, STOPPED

if TYPE_CHECKING:
    from pytest_gpuperf.measure.instrument import Instrument
    from pytest_gpuperf.measure.ranks import Rank, RankInstrument, RankLauncher
    from pytest_gpuperf.measure.replica import Replicas
    from pytest_gpuperf.model.settings import Settings

FOLLOWED = "rank 0 compared this measurement"
"""The skip message for tests on the other ranks, which users do not have to read."""


def role_of(config: pytest.Config, settings: Settings) -> RankRole | None:
    """The role of this process, by torchrun's variables; None where there are no ranks.

    Raises UsageFailure where ranks cannot be measured in this session.
    """
    rank = ranks.own_rank()
    if rank is not None and hasattr(config, "workerinput"):
        raise UsageFailure(
            "torchrun runs the tests once per rank, but -n lets pytest-xdist run them in other "
            "processes. Leave -n out"
        )
    return None if rank is None else RankRole(config, settings, rank)


class RankRole:
    """One of several ranks, which torchrun or another session has started."""

    def __init__(self, config: pytest.Config, settings: Settings, rank: Rank) -> None:
        self.rank = rank
        self.others: RankInstrument | None = None
        """The ranks that measure together, once this process has an instrument."""
        self._config = config
        self._gpus: tuple[str, ...] = ()
        """The GPUs of all ranks that torchrun has started, once this process has taken its GPU."""
        self._stderr = os.dup(2)  # before tests run: pytest takes theirs
        if rank.leads:
            signal.signal(signal.SIGTERM, self._told_to_end)
        if not rank.launched and "cpu" not in (settings.arch, settings.collector):
            from pytest_gpuperf.measure.device import nvml

            self._gpus = ranks.take_gpu(rank, [*nvml.visible_gpus()], os.environ)
        if not rank.leads:
            settings = replace(settings, judge=False, missing="warn", github="never")
        if self.follows:
            settings = replace(settings, reports=(), run=None)
        self.settings = settings

    @property
    def follows(self) -> bool:
        """Whether another rank compares, saves and prints the measurements of this rank."""
        return not (self.rank.leads or self.rank.launched)

    def instrument(self, own: Instrument) -> Instrument:
        """The instrument for all ranks; this rank measures by `own`. Raises UsageFailure."""
        self.others = ranks.RankInstrument(own, self.rank, self.settings, self._tell)
        return self.others

    def launcher(self, replicas: Replicas, *, decides: bool) -> RankLauncher:
        """A launcher that starts as many ranks again, in the place of `replicas`."""
        made = ranks.RankLauncher(replicas, self.rank.count, self._gpus, decides=decides)
        if self.others is not None:
            self.others.launcher = made
        return made

    def say(self, what: str) -> None:
        """Prints a message about this rank past pytest's capture."""
        text = printable_lines(f"\ngpuperf: rank {self.rank.number}: {what}\n")
        os.write(self._stderr, text.encode(errors="replace"))

    def close(self) -> None:
        """Ends the role of this process with the session."""
        if self.others is not None:
            self.others.close()

    def _tell(self, why: str) -> None:
        self.say(f"{STOPPED} because {why}")

    def _told_to_end(self, number: int, _: object) -> None:
        """Names the failed rank when torchrun ends all ranks; else ends by the signal."""
        held = self.others.held if self.others is not None else None
        why = held.stops() if held is not None else ""
        if not why:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        # torchrun waits for 30 s and no longer: a test may take more, and so may those after it.
        self._tell(why)
        running: Any = self._config.pluginmanager.getplugin("session")
        running.shouldfail = STOPPED


class Follower:
    """Silences a rank that another rank leads, except for failures on this rank alone."""

    def __init__(self, role: RankRole, config: pytest.Config) -> None:
        self._role = role
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Stops this rank's terminal output: the leading rank prints."""
        reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter._tw._file = io.StringIO()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Prints the errors of collection on this rank."""
        if report.failed:
            self._role.say(f"{report.nodeid}: {report.longreprtext}")

    def pytest_internalerror(self, excrepr: object) -> None:
        """Prints the internal error of pytest, or of a plugin, on this rank."""
        self._role.say(str(excrepr))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Prints failures of this rank alone; the leading rank prints those that stop all ranks."""
        said = report.longreprtext
        told = FOLLOWED in said or (STOPPED in said and ENDED not in said)
        if report.failed and not told:
            self._role.say(f"{report.nodeid}: {said}")
