"""The session: the instrument and the purpose of one invocation of pytest in this process.

Made when pytest starts, also in sessions without our tests; imports modules only on demand.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.plugin import options, terminal, workers

if TYPE_CHECKING:
    from pytest_gpuperf.baselines.judgement import Judging
    from pytest_gpuperf.measure.instrument import Instrument
    from pytest_gpuperf.measure.ranks import RankInstrument
    from pytest_gpuperf.measure.replica import Replicas, Task
    from pytest_gpuperf.model.settings import Settings
    from pytest_gpuperf.plugin.rank_role import RankRole
    from pytest_gpuperf.report.text.next_command import CommandContext
    from pytest_gpuperf.report.text.progress import Display


@dataclass(frozen=True)
class ProcessOrigin:
    """The process that started this one, and its purpose."""

    is_worker: bool = False
    """Whether pytest-xdist started this process as a worker: workers write no files."""
    is_fresh: bool = False
    """Whether `gpuperf record` or another session started this process: then it only measures."""
    parent: int | None = None
    """The pid of a session that waits, which may hold the device, or of `gpuperf record`."""
    task: Task | None = None
    """The task for which another session has started this process."""
    turn: Callable[[], None] | None = None
    """Waits for this process's turn before its tests, where several processes started together."""
    assignment: workers.GpuAssignment | None = None
    """The GPUs of this worker, or of the worker that started this process; None without any."""


class FrozenHeap:
    """Keeps what lives long out of collections, which would look through all of torch each time.

    A collection takes 0.1 to 0.3 s with torch; a measurement asks for several, and pytest's end for
    five. Python's own at exit see everything again: they may flush an open file.
    """

    def __init__(self) -> None:
        self._modules = self._tests = 0

    def unfreeze(self) -> None:
        """A fixture of several tests ended: what it left may be a cycle that holds GPU memory."""
        gc.unfreeze()
        self._modules = 0

    def freeze(self) -> None:
        """Before a test: after many imports, after `unfreeze`, and at each hundredth."""
        self._tests += 1
        many = len(sys.modules) - self._modules > _MANY_MODULES
        if "torch" in sys.modules and (many or self._tests % _EACH == 0):
            self._modules = len(sys.modules)
            gc.collect()
            gc.freeze()
            atexit.register(gc.unfreeze)


_MANY_MODULES, _EACH = 100, 100
"""Modules: torch has more than a thousand, its compiler hundreds. Tests: their reports are kept."""


def origin_of(config: pytest.Config) -> ProcessOrigin:
    """Reads the origin of this process."""
    is_worker, assignment = hasattr(config, "workerinput"), workers.own()
    if "GPUPERF_PARENT" not in os.environ:
        return ProcessOrigin(is_worker, assignment=assignment)
    from pytest_gpuperf.measure import fresh_process, replica

    # A test's own processes must not see it.
    parent, task = int(os.environ.pop(fresh_process.PARENT)), replica.own_task()
    turn = fresh_process.own_turn()
    if task is not None:
        fresh_process.say_where_it_ends()
    return ProcessOrigin(is_worker, True, parent, task, turn, assignment)


def session_of(config: pytest.Config) -> Session:
    """The session of this process. Raises pytest.UsageError for a bad setting."""
    settings, origin = options.read_settings(config), origin_of(config)
    if origin.task is not None:
        # The session that sent this process looks at kernels itself.
        settings = replace(settings, kernels="never", protocol="whole-step")
    if not (origin.is_fresh or origin.is_worker):  # who has started those was asked
        options.check_verdicts(config, settings)
    role = refused = None
    if "RANK" in os.environ:
        from pytest_gpuperf.plugin import rank_role

        try:
            role = rank_role.role_of(config, settings)
        except UsageFailure as error:
            refused = error
    settings = settings if role is None else role.settings
    if not settings.judge:
        # Fresh processes, and their workers, have the flags of who started them.
        settings = replace(settings, require_judged=False)
    return Session(config, settings, origin, role, refused)


@dataclass(frozen=True)
class Session:
    """One invocation of pytest in this process."""

    config: pytest.Config
    settings: Settings
    origin: ProcessOrigin
    role: RankRole | None = None
    """The role of this process among ranks that torchrun or another session has started."""
    refused: Exception | None = None
    """The error for which this process has no role among ranks: only measuring raises it."""
    held: list[str] = field(default_factory=list)
    """UUIDs of the GPUs that the test which runs holds; see `holding`."""
    entries: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of each test's entries in the baselines of this device, where tests are judged."""
    timer: dict[str, Any] = field(default_factory=dict)
    """The running test and pytest-timeout's settings for it; empty where no timer runs."""
    at_last: ExitStack = field(default_factory=ExitStack)
    """Callbacks for after pytest's own cleanups."""
    heap: FrozenHeap = field(default_factory=FrozenHeap)

    @property
    def others(self) -> RankInstrument | None:
        """The other ranks of the measurement, once this process has an instrument."""
        return self.role.others if self.role is not None else None

    @property
    def decides(self) -> bool:
        """Whether this process measures for a verdict, and not for a baseline of many processes."""
        rank = self.role.rank if self.role is not None else None
        if rank is not None and rank.launched:
            return rank.decides
        if self.origin.task is not None:
            return self.origin.task.is_replica
        return self.settings.judge and self.settings.missing != "record"

    @cached_property
    def instrument(self) -> Instrument:
        """The instrument of this process. Raises UsageFailure."""
        from pytest_gpuperf.measure.instrument import instrument_for

        settings, assignment, siblings, offered = self.settings, self.origin.assignment, None, None
        if self.refused is not None:
            raise self.refused
        if settings.replay is None:
            offered = self.config.hook.pytest_gpuperf_collector(
                config=self.config, arch=settings.arch, name=settings.collector
            )
        if assignment is not None:
            from pytest_gpuperf.measure.device.guard import Siblings

            siblings = Siblings(assignment.controller, assignment.beside)
        instrument = instrument_for(
            settings,
            self.replicas,
            offered=offered,
            parent=self.origin.parent if self.origin.task is not None else None,
            task=self.origin.task,
            siblings=siblings,
            gpus=lambda: self.held,
        )
        if self.role is not None and settings.replay is None:
            return self.role.instrument(instrument)
        return instrument

    @cached_property
    def replicas(self) -> Replicas:
        """Runs single tests of this session again, in fresh processes."""
        from pytest_gpuperf.measure.replica import Invocation, Replicas

        parameters = self.config.invocation_params
        # What a worker of xdist was started with is not what people typed.
        arguments, folder = getattr(self.config, "workerinput", {}).get(
            "gpuperf_invocation", (parameters.args, parameters.dir)
        )
        invocation = Invocation(
            tuple(map(str, arguments)),
            Path(folder),
            tuple(self.config.getini("addopts")),
            self._written(),
            distributed=self.config.pluginmanager.hasplugin("xdist"),
            # What the plugin has drawn is there by then; workers have that of their controller.
            seed=self.config.getoption("randomly_seed", None),
        )
        return Replicas(invocation, self.settings.time_limit, self.display, self._passed_on)

    def _passed_on(self) -> dict[str, str]:
        """The environment variables of a fresh process for this session's GPUs."""
        assignment = self.origin.assignment
        if assignment is None:
            return {}
        holding = replace(assignment, gpus=tuple(self.held), held=True)
        return {workers.VARIABLE: holding.to_text()}

    @cached_property
    def gpus_here(self) -> tuple[str, ...] | None:
        """UUIDs of the GPUs that a test may have, the one that is measured first.

        None for a rank, and for a replayed run, whose GPUs were there when it was recorded.
        """
        if self.settings.replay is not None or self.role is not None:
            return None  # a rank has its own
        if self.origin.assignment is not None:
            return self.origin.assignment.gpus
        if self.instrument.device.arch == "cpu":
            return ()
        found = workers.fitting(self.instrument.device.arch)
        # Workers that nobody has given GPUs do not know of each other.
        return found[:1] if self.origin.is_worker else found

    @contextmanager
    def holding(self, count: int) -> Iterator[None]:
        """Holds so many GPUs against the session's other workers; see `GpuAssignment.holding`."""
        assignment = self.origin.assignment
        with ExitStack() as holds:
            if assignment is None:
                self.held.extend((self.gpus_here or ())[:count] if count > 1 else ())
            elif count <= len(assignment.gpus):  # with fewer the test is skipped
                self.held.extend(holds.enter_context(assignment.holding(count)))
            try:
                yield
            finally:
                self.held.clear()

    def _written(self) -> tuple[str, ...]:
        # A setting of a plugin that is switched off is an unknown one under --strict-config.
        caching = self.config.pluginmanager.hasplugin("cacheprovider")
        logging = self.config.pluginmanager.hasplugin("logging-plugin")
        log = ("log_file",) if logging and self.config.getini("log_file") else ()
        return (*(["cache_dir"] if caching else []), *log)

    @cached_property
    def judging(self) -> Judging:
        """The judging of this process's measurements."""
        from pytest_gpuperf.baselines.judgement import Judging

        if self.settings.replay is not None:
            return Judging(self.settings, None)
        if self.role is None:
            return Judging(self.settings, self.replicas)
        return Judging(self.settings, self.role.launcher(self.replicas, decides=self.decides))

    @contextmanager
    def _timer_stopped(self) -> Iterator[None]:
        """Stops pytest-timeout's timer while the test waits for other processes; then anew.

        Fresh processes have their own time limit, and no test knows how many the judge asks for.
        """
        hook, timer = self.config.hook, dict(self.timer)
        if timer:
            hook.pytest_timeout_cancel_timer(item=timer["item"])
        try:
            yield
        finally:
            if timer:
                hook.pytest_timeout_set_timer(**timer)

    @cached_property
    def display(self) -> Display:
        """Shows what is being measured."""
        from pytest_gpuperf.report.text.progress import Display

        # Nobody reads what a process prints that we started.
        return Display(
            lambda: terminal.outlet(self.config) if self.origin.task is None else None,
            aside=self._timer_stopped,
        )

    @cached_property
    def width(self) -> int:
        """The columns of the terminal that shows what tests say."""
        return terminal.columns(self.config)

    def context(self, saved: Path | None = None) -> CommandContext:
        """The context of the commands to type next; `saved` is the run's file."""
        from pytest_gpuperf.report.text.next_command import CommandContext, selection
        from pytest_gpuperf.storage import run_files

        settings, parameters = self.settings, self.config.invocation_params
        words = selection(parameters.args)
        # Not those of `known_args_namespace`: there the value of a flag is one, where a conftest
        # file has brought the flag.
        named = {*self.config.option.file_or_dir}
        rank = self.role.rank if self.role is not None else None
        leads = rank is not None and rank.leads and settings.replay is None
        context = CommandContext(
            command=run_files.command_line(words),
            flags=run_files.command_line([word for word in words if word not in named]),
            replayed=settings.replay is not None,
            processes=settings.processes,
            missing_passes=settings.missing == "warn",
            launcher=f"torchrun --nproc-per-node {rank.count} -m" if rank and leads else "",
            root=str(settings.root),
            folder=str(parameters.dir),
        )
        # `gpuperf update-baseline` finds what is in the project that the folder is in.
        project = run_files.project(parameters.dir)
        run = settings.replay or settings.run or (saved if project != settings.root else None)
        known = settings.baselines == project / "baselines"
        return replace(
            context,
            run=context.typed(run) if run else "",
            baselines="" if known else context.typed(settings.baselines),
        )
