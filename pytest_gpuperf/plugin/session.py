"""The session: what one invocation of pytest measures with in this process, and for what.

Made when pytest starts, also where nobody uses us. So it imports nothing until that is needed.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.plugin import options

if TYPE_CHECKING:
    from pytest_gpuperf.baselines.judgement import Judging
    from pytest_gpuperf.measure.device.guard import Siblings
    from pytest_gpuperf.measure.fresh_process import Turn
    from pytest_gpuperf.measure.instrument import Instrument
    from pytest_gpuperf.measure.ranks import OtherRanks, Rank
    from pytest_gpuperf.measure.replica import Replicas, Task
    from pytest_gpuperf.model.settings import Settings
    from pytest_gpuperf.plugin.ledger import Ledger
    from pytest_gpuperf.plugin.workers import Allotment
    from pytest_gpuperf.report.text.next_command import CommandContext
    from pytest_gpuperf.report.text.progress import Display, Outlet


_OF_PYTHON = 1000
"""Objects that Python may set aside by itself: 3.12 begins with 375. Of torch there are 200,000."""


class Session:
    """One invocation of pytest in this process, which may be a worker's of pytest-xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.settings = options.read_settings(config)
        self.task: Task | None = None
        """What this process was started for by another session."""
        self.refusal: Exception | None = None
        """What keeps the tests of this worker from running: they say it."""
        self.ledger: Ledger | None = None
        """What was measured, once something was; in the process that writes."""
        self.turn: Turn | None = None
        """What a replica waits for before its test."""
        self.timer = Timer(config)
        """pytest-timeout's, of the test that runs."""
        self._stderr = -1
        self._rank_gpus: tuple[str, ...] = ()
        """Those of all ranks that torchrun has started, where this process has taken one."""
        self.rank: Rank | None = None
        """Which of several that torchrun, or another session, has started."""
        self._no_rank: Exception | None = None
        """Why it is none where there are several: that concerns only who measures."""
        self._parent: int | None = None
        self._frozen: bool | None = None
        """Whether the tests' imports are out of collections; None before that was a question."""
        self.others_ran = False
        """Whether a test has run that does not concern us."""
        self.gpus: tuple[str, ...] = ()
        """UUIDs of those that the test which runs holds; see `holding`."""
        self.allotment: Allotment | None = None
        """Its GPU, where it is a worker that was given one, or works for such a one."""
        if "GPUPERF_ALLOTMENT" in os.environ:
            from pytest_gpuperf.plugin import workers

            self.allotment = workers.own()
        self.is_fresh = "GPUPERF_PARENT" in os.environ
        """Whether `gpuperf record` or another session started this process, which only measures."""
        if self.is_fresh:
            self._follow_the_parent()
        elif not self.is_worker:  # its controller has been asked
            options.check_verdicts(config, self.settings)
        if "RANK" in os.environ:
            self._join_ranks()
        if not self.settings.judge:
            # Fresh processes, and their workers, have the flags of who started them.
            self.settings = replace(self.settings, require_judged=False)

    def _follow_the_parent(self) -> None:
        """A process that `gpuperf record` or another session started ends with who started it."""
        from pytest_gpuperf.measure import fresh_process, replica

        parent = fresh_process.follow_parent()
        self.task = replica.own_task()
        self.turn = fresh_process.own_turn()
        if self.task is not None:
            # `gpuperf record` waits too, and holds no device.
            self._parent = parent
            fresh_process.say_where_it_ends()
            # The session that sent this process looks at kernels itself.
            self.settings = replace(self.settings, kernels="never", protocol="whole-step")

    def _join_ranks(self) -> None:
        """One of several ranks has the leading one judge, write and print."""
        from pytest_gpuperf.errors import UsageFailure
        from pytest_gpuperf.measure import ranks

        try:
            rank = ranks.own_rank()
        except UsageFailure as error:
            self._no_rank = error
            return
        if rank is not None and self.is_worker:
            self._no_rank = UsageFailure(
                "under torchrun each rank runs its tests itself, and -n has pytest-xdist run them "
                "in other processes: leave it out"
            )
            return
        self.rank = rank
        if self.rank is None:
            return
        self._stderr = os.dup(2)  # before tests run: pytest takes theirs
        if self.rank.leads:
            signal.signal(signal.SIGTERM, self._told_to_end)
        if not self.rank.launched and "cpu" not in (self.settings.arch, self.settings.collector):
            from pytest_gpuperf.measure.device import nvml

            visible = [gpu.uuid for gpu in nvml.visible_gpus()]
            self._rank_gpus = ranks.take_gpu(self.rank, visible, os.environ)
        if not self.rank.leads:
            self.settings = replace(self.settings, judge=False, missing="warn", github="never")
        if self.follows:
            self.settings = replace(self.settings, reports=(), run=None)

    @property
    def follows(self) -> bool:
        """Whether another rank judges, writes and prints what this one measures."""
        return self.rank is not None and not (self.rank.leads or self.rank.launched)

    def say(self, what: str) -> None:
        """Says something of a rank past pytest's capture."""
        from pytest_gpuperf.errors import printable_lines

        number = self.rank.number if self.rank else 0
        text = printable_lines(f"\ngpuperf: rank {number}: {what}\n")
        os.write(self._stderr, text.encode(errors="replace"))

    @property
    def others(self) -> OtherRanks | None:
        """The ranks that this process measures with, once it has an instrument."""
        return getattr(self.__dict__.get("instrument"), "others", None)

    @property
    def stopped(self) -> bool:
        """Whether the ranks have stopped for one of them: no test after that one is measured."""
        return self.others is not None and self.others.stopped

    def _told_to_end(self, number: int, _: object) -> None:
        """Goes on where a rank has failed: torchrun ends all then, and this one says which."""
        why = self.others.client.stops() if self.others is not None else ""
        if not why:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        # torchrun waits for 30 s and no longer: a test may take more, and so may those after it.
        self._tell(why)
        running: Any = self.config.pluginmanager.getplugin("session")
        from pytest_gpuperf.measure.barrier import STOPPED

        running.shouldfail = STOPPED

    def _tell(self, why: str) -> None:
        """Says why this process ends at once, which all ranks do."""
        if not self.follows:
            from pytest_gpuperf.measure.barrier import STOPPED

            self.say(f"{STOPPED}: {why}")

    def close(self) -> None:
        """The session ends."""
        if self.others is not None:
            self.others.close()

    @property
    def decides(self) -> bool:
        """Whether a verdict is what this process measures for, and not a baseline of many."""
        if self.rank is not None and self.rank.launched:
            return self.rank.decides
        if self.task is not None:
            return self.task.is_replica
        return self.settings.judge and self.settings.missing != "record"

    def freeze_imports(self) -> None:
        """Takes what the tests import, torch above all, out of collections, once.

        Each collection takes 0.1 to 0.3 s otherwise, or 0.7 on a slow host, and a measurement
        begins with one.
        """
        if self._frozen is not None or "torch" not in sys.modules:
            return
        self._frozen = gc.get_freeze_count() < _OF_PYTHON  # a server that forks sets more aside
        if self._frozen:
            if self.others_ran:  # what they left may hold memory of a GPU
                gc.collect()
            gc.freeze()

    def collect(self) -> None:
        """Collects the session's garbage once, and sets aside what is left: pytest collects again.

        Five times, each through all of torch: 0.7 s on a slow host.
        """
        if self._frozen:
            gc.unfreeze()
            gc.collect()
            gc.freeze()

    def thaw(self) -> None:
        """Puts it back: a file that is open in it has its last lines when Python ends."""
        if self._frozen:
            gc.unfreeze()
            self._frozen = None

    @property
    def is_worker(self) -> bool:
        """Whether pytest-xdist started this process, which then writes no files."""
        return hasattr(self.config, "workerinput")

    @cached_property
    def instrument(self) -> Instrument:
        """What measures in this process. Raises UsageFailure."""
        from pytest_gpuperf.measure.instrument import instrument_for

        settings = self.settings
        if self._no_rank is not None:
            raise self._no_rank
        offered = None
        if settings.replay is None:
            offered = self.config.hook.pytest_gpuperf_collector(
                config=self.config, arch=settings.arch, name=settings.collector
            )
        instrument = instrument_for(
            settings,
            self.replicas,
            offered=offered,
            parent=self._parent,
            task=self.task,
            siblings=self._siblings,
            gpus=lambda: self.gpus,
        )
        if self.rank is not None and settings.replay is None:
            from pytest_gpuperf.measure.ranks import RankInstrument

            instrument = RankInstrument(instrument, self.rank, settings, self._tell)
        if settings.protocol == "paper-window":
            instrument.check_window()
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
        """What the environment of a fresh process has of this session's GPUs."""
        if self.allotment is None:
            return {}
        from pytest_gpuperf.plugin import workers

        return {workers.VARIABLE: self.allotment.passed_on(self.gpus).to_text()}

    @property
    def _siblings(self) -> Siblings | None:
        """The other workers of this session; None where there are none on our GPUs."""
        if self.allotment is None:
            return None
        from pytest_gpuperf.measure.device.guard import Siblings

        return Siblings(self.allotment.controller, self.allotment.beside)

    @cached_property
    def gpus_here(self) -> tuple[str, ...] | None:
        """UUIDs of the GPUs that a test may have, the one that is measured first.

        None where nobody asks: what measured a recorded run had what it needed.
        """
        if self.settings.replay is not None or self.rank is not None:
            return None  # a rank has its own
        if self.allotment is not None:
            return self.allotment.gpus
        if self.instrument.device.arch == "cpu":
            return ()
        from pytest_gpuperf.plugin import workers

        found = workers.fitting(self.instrument.device.arch)
        # Workers that nobody has given GPUs do not know of each other.
        return found[:1] if self.is_worker else found

    @contextmanager
    def holding(self, count: int) -> Iterator[None]:
        """Holds so many GPUs against the other workers of the session; see `Allotment.holding`."""
        with ExitStack() as held:
            if self.allotment is None:
                self.gpus = (self.gpus_here or ())[:count] if count > 1 else ()
            elif count <= len(self.allotment.gpus):  # with fewer the test is skipped
                self.gpus = held.enter_context(self.allotment.holding(count))
            try:
                yield
            finally:
                self.gpus = ()

    def _written(self) -> tuple[str, ...]:
        # A setting of a plugin that is switched off is an unknown one under --strict-config.
        caching = self.config.pluginmanager.hasplugin("cacheprovider")
        logging = self.config.pluginmanager.hasplugin("logging-plugin")
        log = ("log_file",) if logging and self.config.getini("log_file") else ()
        return (*(["cache_dir"] if caching else []), *log)

    @cached_property
    def judging(self) -> Judging:
        """Judges what this process measures."""
        from pytest_gpuperf.baselines.judgement import Judging

        if self.settings.replay is not None or self.rank is None:
            return Judging(self.settings, None if self.settings.replay else self.replicas)
        from pytest_gpuperf.measure.ranks import RankLauncher

        launcher = RankLauncher(
            self.replicas,
            self.rank.count,
            self._rank_gpus,
            decides=self.decides,
            waits=self._keeps_waiting,
        )
        return Judging(self.settings, launcher)

    def _keeps_waiting(self) -> None:
        """Says that this rank does something by itself, for which the others have to wait."""
        if self.others is not None:
            self.others.client.says("go on")

    @cached_property
    def display(self) -> Display:
        """Shows what is being measured."""
        from pytest_gpuperf.report.text.progress import Display, Outlet

        # What a process prints that we started, nobody reads.
        return Display(
            lambda: outlet(self.config) if self.task is None else Outlet(),
            aside=self.timer.stopped,
        )

    @cached_property
    def width(self) -> int:
        """The columns of the terminal that shows what tests say."""
        told: int | None = getattr(self.config, "workerinput", {}).get("gpuperf_width")
        return columns(self.config) if told is None else told

    def gathered(self) -> Ledger:
        """The ledger, made at its first use."""
        if self.ledger is None:
            from pytest_gpuperf.plugin.ledger import Ledger
            from pytest_gpuperf.storage.run_files import within

            words = within(self.settings.root, self.config.invocation_params.args)
            self.ledger = Ledger(self.settings, typed(words))
        return self.ledger

    def context(self, saved: Path | None = None) -> CommandContext:
        """What the commands to type next depend on; `saved` is the run's file."""
        from pytest_gpuperf.report.text.next_command import selection

        parameters = self.config.invocation_params
        words = selection(parameters.args)
        context = context_of(self.settings, typed(words), parameters.dir, saved)
        if self.rank is not None and self.rank.leads and self.settings.replay is None:
            context = replace(context, ranks=self.rank.count)
        if parameters.dir != self.settings.root:
            return context  # tests are named from there
        # Not those of `known_args_namespace`: there the value of a flag is one, where a conftest
        # file has brought the flag.
        named = {*self.config.option.file_or_dir}
        return replace(context, flags=typed([word for word in words if word not in named]))


class Timer:
    """pytest-timeout's, which stands still while a test waits for other processes.

    Fresh ones have a time limit of their own, and no test knows how many the judge asks for; nor
    does it know who measures on the device.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._hook = config.hook
        self._test: tuple[pytest.Item, Any] | None = None
        self._end = 0.0

    def begins(self, item: pytest.Item, settings: Any) -> None:
        """Notes when the timer of this test, with these settings of pytest-timeout, ends."""
        self._test = item, settings
        self._end = time.monotonic() + settings.timeout

    def ends(self) -> None:
        """Notes that no timer runs."""
        self._test = None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Lets no time pass for the timer; what was left is left after that."""
        if self._test is None:
            yield
            return
        item, settings = self._test
        # Of a timer that is about to end something is left: 0 would switch it off.
        left = max(self._end - time.monotonic(), 0.001)
        self._hook.pytest_timeout_cancel_timer(item=item)
        try:
            yield
        finally:
            self._hook.pytest_timeout_set_timer(item=item, settings=settings._replace(timeout=left))


def context_of(
    settings: Settings, command: str, folder: Path, saved: Path | None = None
) -> CommandContext:
    """What the commands to type next depend on, for somebody in `folder`.

    `command` are the arguments of pytest that say what is measured; `saved` is the run's file.
    """
    from pytest_gpuperf.report.text.next_command import CommandContext
    from pytest_gpuperf.storage.files import short

    # Elsewhere than in the root, `gpuperf update-baseline` does not find the newest run.
    run = settings.replay or settings.run or (saved if folder != settings.root else None)
    known = settings.baselines == folder / "baselines"
    return CommandContext(
        command=command,
        run=short(run, folder) if run else "",
        replayed=settings.replay is not None,
        baselines="" if known else short(settings.baselines, folder),
        processes=settings.processes,
        missing_passes=settings.missing == "warn",
    )


def typed(arguments: Sequence[str]) -> str:
    """Arguments of pytest as one would type them, but for secrets."""
    from pytest_gpuperf.storage.run_files import command_line

    return command_line(arguments)


def outlet(config: Any) -> Outlet:
    """Where progress appears in the session of this pytest.Config, past the capture of output.

    None under -q, and in a worker of xdist, which has no reporter.
    """
    from pytest_gpuperf.report.text.progress import Below, Occasional, Outlet, obeys

    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or config.get_verbosity() < 0:
        return Outlet()

    def write(text: str) -> None:
        with _uncaptured(config):
            sys.stdout.write(text)
            sys.stdout.flush()

    def say(text: str) -> None:
        with _uncaptured(config):
            reporter.ensure_newline()
            reporter.write_line(text)

    if obeys(reporter.isatty) and not _others_print(config):
        return Below(
            write, partial(columns, config), lambda: int(reporter._tw.width_of_current_line)
        )
    return Occasional(say, partial(columns, config))


def columns(config: Any) -> int:
    """How wide the terminal of the session of this pytest.Config is, past the capture of output."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None:
        from pytest_gpuperf.report.text.table import WIDTH

        return WIDTH
    with _uncaptured(config):  # the size is asked of stdout
        return int(reporter._tw.fullwidth)


def _uncaptured(config: Any) -> AbstractContextManager[None]:
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    return capture.global_and_fixture_disabled() if capture else nullcontext()


def _others_print(config: Any) -> bool:
    """Whether what tests print, or log, appears while they run: then no line can be erased."""
    logged = config.pluginmanager.hasplugin("logging") and (
        config.getini("log_cli") or config.getoption("log_cli_level") is not None
    )
    return bool(logged) or config.getoption("capture", "no") not in ("fd", "sys")
